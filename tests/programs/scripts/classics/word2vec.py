"""Skip-gram with noise-contrastive estimation; both tables are cut into parts."""

import numpy as np

import dovetail as tf

VOCAB, DIM, BATCH = 30, 6, 8


def fixed(shape, dtype=None, partition_info=None):
    """Numbers that are the same everywhere."""
    n = int(np.prod(shape))
    return tf.constant((np.sin(np.arange(n) * 1.3) * 0.5).reshape(shape).astype(np.float32))


def main():
    rng = np.random.RandomState(0)
    words = rng.randint(0, VOCAB, BATCH)
    context = ((words * 7 + 3) % VOCAB).reshape(BATCH, 1)
    with tf.Graph().as_default():
        inputs = tf.placeholder(tf.int32, shape=[BATCH])
        labels = tf.placeholder(tf.int32, shape=[BATCH, 1])
        noise = tf.placeholder(tf.int64, shape=[5])
        with tf.variable_scope("tables", partitioner=tf.fixed_size_partitioner(3), initializer=fixed):
            embeddings = tf.get_variable("embeddings", [VOCAB, DIM])
            weights = tf.get_variable("nce_weights", [VOCAB, DIM])
        biases = tf.Variable(tf.zeros([VOCAB]))
        embed = tf.nn.embedding_lookup(embeddings, inputs, partition_strategy="div")
        counts = (tf.fill([BATCH, 1], 0.3), tf.fill([5], 0.2))
        common = {
            "num_sampled": 5,
            "num_classes": VOCAB,
            "partition_strategy": "div",
            "sampled_values": (noise, *counts),
        }
        loss = tf.reduce_mean(tf.nn.nce_loss(weights, biases, labels, embed, **common))
        sampled = tf.reduce_mean(tf.nn.sampled_softmax_loss(weights, biases, labels, embed, **common))
        train = tf.train.AdagradOptimizer(1.0).minimize(loss)
        norm = tf.sqrt(tf.reduce_sum(tf.square(tf.convert_to_tensor(embeddings)), 1, keepdims=True))
        normalized = tf.convert_to_tensor(embeddings) / norm
        _, nearest = tf.nn.top_k(tf.matmul(normalized[:4], normalized, transpose_b=True), 3)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            found = []
            for step in range(6):
                feed = {inputs: words, labels: context, noise: (np.arange(5) * 6 + step) % VOCAB}
                found.append([float(v) for v in session.run([loss, sampled, train], feed)[:2]])
            return {"losses": found, "nearest": session.run(nearest)[:, 0].tolist(), "parts": len(list(embeddings))}
