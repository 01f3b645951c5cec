"""A small convolutional net that learns the digits under a strategy: two replicas in one process. Prints what came out, as JSON.

python convnet.py STEPS
"""

import json
import sys

import numpy as np

import dovetail as tf
from dovetail.tools.demo.data import load_digits

steps, wanted = int(sys.argv[1]), float(sys.argv[2])
LOOK_EVERY = 25
digits = load_digits()
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])


def shifted(x, rng):
    """The batch, sometimes moved by a pixel."""
    padded = np.pad(x.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    down, right = rng.choice(3, 2, p=[0.15, 0.7, 0.15])
    return padded[:, down : down + 8, right : right + 8].reshape(-1, 64)


def convolved(x, width, name):
    """Convolution 3 × 3, ReLU, and the largest of each 2 × 2."""
    with tf.variable_scope(name):
        kernel = tf.get_variable(
            "kernel", [3, 3, int(x.shape[3]), width], initializer=tf.glorot_uniform_initializer(seed=1)
        )
        bias = tf.get_variable("bias", [width], initializer=tf.zeros_initializer())
    h = tf.nn.relu(tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding="SAME") + bias)
    return tf.nn.max_pool(h, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


def logits_of(images, keep):
    """Ten numbers for each image."""
    h = tf.reshape(images, [-1, 8, 8, 1])
    h = convolved(convolved(h, 16, "first"), 32, "second")
    h = tf.nn.dropout(tf.reshape(h, [-1, 2 * 2 * 32]), keep_prob=keep, seed=3)
    w = tf.get_variable("w", [2 * 2 * 32, 10], initializer=tf.glorot_uniform_initializer(seed=2))
    return tf.matmul(h, w) + tf.get_variable("b", [10], initializer=tf.zeros_initializer())


with strategy.scope():
    images, labels = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
    rate, keep = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])

    def step(x, y):
        logits = logits_of(x, keep)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        train = tf.train.AdamOptimizer(rate).minimize(loss)
        return train, tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32)

    train, right = strategy.run(step, (strategy.split_batch(images), strategy.split_batch(labels)))
    accuracy = strategy.reduce("MEAN", right, axis=0)

with tf.Session(config=strategy.update_config_proto(tf.ConfigProto(device_count={"CPU": 2}))) as session:
    session.run(tf.global_variables_initializer())
    batches, rng = digits.batches(128, seed=0), np.random.default_rng(0)
    even = len(digits.test_labels) // 2 * 2
    tests = {images: digits.test_images[:even], labels: digits.test_labels[:even], keep: 1.0}
    found = 0.0
    for number in range(steps):
        x, y = next(batches)
        session.run(train, {images: shifted(x, rng), labels: y, rate: 0.01 * (1 - number / steps), keep: 0.7})
        if number % LOOK_EVERY == 0 or number == steps - 1:
            found = session.run(accuracy, tests)
            if found >= wanted:
                break
print("RESULT " + json.dumps({"accuracy": float(found), "steps": number + 1}))
