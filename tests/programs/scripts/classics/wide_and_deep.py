"""Wide and deep: sparse linear weights by Ftrl, embeddings and a network by Adagrad; only rows that occur are updated."""

import numpy as np

import dovetail as tf


def fixed(shape, dtype=None, partition_info=None):
    """Numbers that are the same everywhere."""
    n = int(np.prod(shape))
    return tf.constant((np.sin(np.arange(n) * 1.3) * 0.3).reshape(shape).astype(np.float32))


def main():
    rng = np.random.RandomState(0)
    ids, dense = rng.randint(0, 20, (16, 3)), rng.rand(16, 2).astype(np.float32)
    target = (ids.sum(1) % 2).astype(np.float32).reshape(-1, 1)
    with tf.Graph().as_default():
        features, numbers = tf.placeholder(tf.int64, [None, 3]), tf.placeholder(tf.float32, [None, 2])
        labels = tf.placeholder(tf.float32, [None, 1])
        with tf.variable_scope("wide"):
            table = tf.get_variable("weights", [30, 1], initializer=tf.zeros_initializer())
            wide = tf.reduce_sum(tf.nn.embedding_lookup(table, features), 1)
        with tf.variable_scope("deep", initializer=fixed):
            embedding = tf.get_variable("embedding", [30, 4])
            net = tf.concat([tf.reshape(tf.nn.embedding_lookup(embedding, features), [-1, 12]), numbers], 1)
            for i, units in enumerate([8, 1]):
                with tf.variable_scope(f"layer_{i}"):
                    kernel = tf.get_variable("kernel", [net.get_shape()[1].value, units])
                    net = tf.matmul(net, kernel) + tf.get_variable("bias", [units])
                    net = net if units == 1 else tf.nn.relu(net)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=wide + net))
        step = tf.train.get_or_create_global_step()
        wide_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="wide")
        deep_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="deep")
        wide_op = tf.train.FtrlOptimizer(0.2, l1_regularization_strength=0.01).minimize(loss, var_list=wide_vars)
        deep_op = tf.train.AdagradOptimizer(0.1).minimize(loss, var_list=deep_vars)
        with tf.control_dependencies([wide_op, deep_op]):
            train_op = tf.assign_add(step, 1)
        predictions = tf.nn.sigmoid(wide + net)
        accuracy, update = tf.metrics.accuracy(labels, tf.cast(predictions > 0.5, tf.float32))
        with tf.Session() as sess:
            sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            feed = {features: ids, numbers: dense, labels: target}
            losses = [float(sess.run([loss, train_op], feed)[0]) for _ in range(10)]
            sess.run(update, feed)
            untouched = sorted(set(range(30)) - set(ids.ravel().tolist()))
            rows = sess.run(tf.gather(embedding, untouched)), sess.run(tf.gather(fixed([30, 4]), untouched))
            return {
                "losses": losses,
                "accuracy": float(sess.run(accuracy)),
                "steps": int(sess.run(step)),
                "untouched": bool((rows[0] == rows[1]).all()),
            }
