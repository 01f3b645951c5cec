"""Inputs by queues: names, rows, shuffled batches; threads that a coordinator stops."""

import numpy as np

import dovetail as tf


def main():
    x = np.random.RandomState(0).rand(40, 5).astype(np.float32)
    y = x.sum(1, keepdims=True)
    with tf.Graph().as_default():
        image, label = tf.train.slice_input_producer([tf.constant(x), tf.constant(y)], num_epochs=5, seed=1)
        images, labels = tf.train.shuffle_batch([image, label], batch_size=8, capacity=40, min_after_dequeue=16, seed=2)
        w = tf.get_variable("w", [5, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(images, w) - labels))
        train_op = tf.train.MomentumOptimizer(0.05, 0.5).minimize(loss)
        with tf.Session() as sess:
            sess.run(tf.group(tf.global_variables_initializer(), tf.local_variables_initializer()))
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess=sess, coord=coord)
            losses = []
            try:
                while not coord.should_stop():
                    losses.append(float(sess.run([train_op, loss])[1]))
            except tf.errors.OutOfRangeError:
                pass
            finally:
                coord.request_stop()
            coord.join(threads)
            return {"steps": len(losses), "first": losses[0], "last": losses[-1]}
