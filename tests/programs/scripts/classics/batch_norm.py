"""Layers with batch normalisation, fed by a data set: an initialisable iterator for training, another for the test."""

import numpy as np

import dovetail as tf


def model(x, training, reuse):
    with tf.variable_scope("model", reuse=reuse):
        net = tf.layers.dense(x, 16, use_bias=False, name="hidden")
        net = tf.nn.relu(tf.layers.batch_normalization(net, momentum=0.5, training=training, name="norm"))
        net = tf.layers.dropout(net, 0.1, training=training)
        return tf.layers.dense(net, 3, name="logits")


def main():
    rng = np.random.RandomState(0)
    x = rng.randn(120, 4).astype(np.float32) * 3 + 1
    y = (x[:, :3]).argmax(1)
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        train = tf.data.Dataset.from_tensor_slices((x[:96], y[:96])).shuffle(96, seed=0).repeat(8).batch(16)
        train = train.map(lambda a, b: (a * 1.0, b), num_parallel_calls=tf.data.experimental.AUTOTUNE).prefetch(1)
        test = tf.data.Dataset.from_tensor_slices((x[96:], y[96:])).batch(24)
        iterator = tf.data.make_initializable_iterator(train)
        test_iterator = tf.data.make_initializable_iterator(test)
        features, labels = iterator.get_next()
        loss = tf.losses.sparse_softmax_cross_entropy(labels, model(features, True, None))
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = tf.train.AdamOptimizer(0.02).minimize(loss)
        test_features, test_labels = test_iterator.get_next()
        logits = model(test_features, False, True)
        right = tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, test_labels, 1), tf.float32))
        with tf.variable_scope("model/norm", reuse=True):
            mean = tf.get_variable("moving_mean")
        with tf.Session() as sess:
            sess.run([tf.global_variables_initializer(), iterator.initializer])
            losses = []
            while True:
                try:
                    losses.append(float(sess.run([loss, train_op])[0]))
                except tf.errors.OutOfRangeError:
                    break
            sess.run(test_iterator.initializer)
            return {
                "steps": len(losses),
                "first": losses[0],
                "last": losses[-1],
                "right": float(sess.run(right)),
                "moved": float(abs(sess.run(mean)).max()),
            }
