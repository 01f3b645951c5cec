"""One worker of several in step: trains with LAMB, whose steps follow norms, and prints the checksum of its weights after each step."""

import json
import sys
import zlib

import numpy as np

import dovetail as tf

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id
rng = np.random.RandomState(worker)
x, y = rng.normal(size=(64, 100)), rng.randint(0, 10, 64)

with strategy.scope():
    images, labels = tf.placeholder(tf.float32, [None, 100]), tf.placeholder(tf.int64, [None])

    def step():
        hidden = tf.layers.dense(tf.layers.dense(images, 400, activation=tf.nn.tanh), 400, activation=tf.nn.tanh)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(hidden, 10))
        return loss, tf.train.LAMBOptimizer(1e-3).minimize(loss)

    loss, train = strategy.run(step)
    weights = [v.value() for v in tf.trainable_variables()]
    end = strategy.barrier()

sums = []
with tf.Session(strategy.session_target, config=strategy.update_config_proto(tf.ConfigProto())) as session:
    session.run(tf.global_variables_initializer())
    for number in range(int(sys.argv[1])):
        session.run([train, loss] if worker == 0 and number % 20 == 0 else train, {images: x, labels: y})
        sums.append(zlib.crc32(b"".join(w.tobytes() for w in session.run(weights))))
    print("RESULT " + json.dumps(sums), flush=True)
    session.run(end)  # or one would end while the other one still waits for it
