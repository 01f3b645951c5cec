"""In-graph replication as multi-GPU trainers of TensorFlow 1 have it: a tower per device, variables shared, gradients averaged."""

import re

import numpy as np

import dovetail as tf

TOWERS = 2
CLASSES = 4


def fixed(shape, dtype=None, partition_info=None):
    """Numbers that are the same everywhere."""
    n = int(np.prod(shape))
    return tf.constant((np.sin(np.arange(n) * 1.3) * 0.3).reshape(shape).astype(np.float32))


def variable_on_cpu(name, shape, decay=None):
    with tf.device("/cpu:0"):
        var = tf.get_variable(name, shape, initializer=fixed)
    if decay is not None:
        tf.add_to_collection("losses", tf.multiply(tf.nn.l2_loss(var), decay, name="weight_loss"))
    return var


def inference(images):
    with tf.variable_scope("conv1") as scope:
        kernel = variable_on_cpu("weights", [3, 3, 1, 6])
        biases = variable_on_cpu("biases", [6])
        conv = tf.nn.conv2d(images, kernel, [1, 1, 1, 1], padding="SAME")
        conv1 = tf.nn.relu(tf.nn.bias_add(conv, biases), name=scope.name)
        tf.summary.scalar(re.sub("tower_[0-9]*/", "", conv1.op.name) + "/sparsity", tf.nn.zero_fraction(conv1))
    pool1 = tf.nn.max_pool(conv1, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME", name="pool1")
    norm1 = tf.nn.lrn(pool1, 2, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name="norm1")
    with tf.variable_scope("local2") as scope:
        flat = tf.reshape(norm1, [images.get_shape()[0].value, -1])
        dim = flat.get_shape()[1].value
        weights = variable_on_cpu("weights", [dim, 8], decay=0.004)
        biases = variable_on_cpu("biases", [8])
        local2 = tf.nn.relu(tf.matmul(flat, weights) + biases, name=scope.name)
    with tf.variable_scope("softmax_linear") as scope:
        weights = variable_on_cpu("weights", [8, CLASSES])
        biases = variable_on_cpu("biases", [CLASSES])
        return tf.add(tf.matmul(local2, weights), biases, name=scope.name)


def tower_loss(scope, images, labels):
    logits = inference(images)
    xent = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    tf.add_to_collection("losses", tf.reduce_mean(xent, name="cross_entropy"))
    return tf.add_n(tf.get_collection("losses", scope), name="total_loss")


def average_gradients(tower_grads):
    average = []
    for grads_and_vars in zip(*tower_grads, strict=False):
        grads = [tf.expand_dims(g, 0) for g, _ in grads_and_vars]
        average.append((tf.reduce_mean(tf.concat(grads, 0), 0), grads_and_vars[0][1]))
    return average


def main():
    rng = np.random.RandomState(0)
    x = rng.rand(8, 6, 6, 1).astype(np.float32)
    y = rng.randint(0, CLASSES, 8)
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        global_step = tf.get_variable("global_step", [], initializer=tf.constant_initializer(0), trainable=False)
        lr = tf.train.exponential_decay(0.1, global_step, 4, 0.5, staircase=True)
        opt = tf.train.GradientDescentOptimizer(lr)
        images, labels = tf.split(tf.constant(x), TOWERS), tf.split(tf.constant(y), TOWERS)
        tower_grads, losses = [], []
        with tf.variable_scope(tf.get_variable_scope()):
            for i in range(TOWERS):
                with tf.device(f"/cpu:{i}"), tf.name_scope(f"tower_{i}") as scope:
                    loss = tower_loss(scope, images[i], labels[i])
                    tf.get_variable_scope().reuse_variables()
                    summaries = tf.get_collection(tf.GraphKeys.SUMMARIES, scope)
                    tower_grads.append(opt.compute_gradients(loss))
                    losses.append(loss)
        grads = average_gradients(tower_grads)
        apply_gradients = opt.apply_gradients(grads, global_step=global_step)
        averages = tf.train.ExponentialMovingAverage(0.9, global_step)
        with tf.control_dependencies([apply_gradients]):
            train_op = averages.apply(tf.trainable_variables())
        shadow = averages.average(tf.trainable_variables()[0])
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": TOWERS}, allow_soft_placement=True)) as sess:
            sess.run(tf.global_variables_initializer())
            history = [[float(v) for v in sess.run([*losses, train_op])[:-1]] for _ in range(8)]
            return {
                "losses": history,
                "shadow": sess.run(shadow).ravel()[:4].tolist(),
                "rate": float(sess.run(lr)),
                "variables": [v.name for v in tf.trainable_variables()],
                "shadow_name": shadow.op.name,
                "summaries": len(summaries),
            }
