"""What is around the model: traces, printing, checks, Python functions, loops, callables, checkpoints."""

import json
import tempfile
from pathlib import Path

import numpy as np

import dovetail as tf


def fibonacci(n):
    def body(i, numbers):
        return i + 1, numbers.write(i, numbers.read(i - 1) + numbers.read(i - 2))

    numbers = tf.TensorArray(tf.int32, size=n, clear_after_read=False).write(0, 1).write(1, 1)
    return tf.while_loop(lambda i, _: i < n, body, [2, numbers])[1].stack()


def main():
    result = {}
    with tf.Graph().as_default(), tempfile.TemporaryDirectory() as folder:
        x = tf.placeholder(tf.float32, [None, 3], name="x")
        w = tf.get_variable("w", initializer=np.arange(6, dtype=np.float32).reshape(3, 2))
        with tf.control_dependencies([tf.Assert(tf.reduce_all(x >= 0), [x], name="check")]):
            y = tf.matmul(x, w, name="y")
        y = tf.Print(y, [tf.shape(y)], message="shape of y: ")
        squared = tf.py_func(lambda a: a * a, [y], tf.float32)
        squared.set_shape(y.get_shape())
        branch = tf.cond(tf.reduce_sum(y) > 10, lambda: tf.constant("large"), lambda: tf.constant("small"))
        running = tf.scan(lambda total, v: total + v, tf.range(5))
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        metadata = tf.RunMetadata()
        saver = tf.train.Saver({"weights": w}, max_to_keep=2)
        config = tf.ConfigProto(log_device_placement=False, gpu_options=tf.GPUOptions(allow_growth=True))
        with tf.Session(config=config) as sess:
            sess.run(tf.global_variables_initializer())
            ones = np.ones([2, 3], np.float32)
            result["squared"] = sess.run(squared, {x: ones}, options=options, run_metadata=metadata).tolist()
            trace = tf.timeline.Timeline(metadata.step_stats).generate_chrome_trace_format()
            result["traced"] = any("y" in str(e.get("args", {}).get("name")) for e in json.loads(trace)["traceEvents"])
            result["branch"] = sess.run(branch, {x: ones}).decode()
            result["scan"] = sess.run(running).tolist()
            result["fibonacci"] = sess.run(fibonacci(8)).tolist()
            call = sess.make_callable(y, feed_list=[x])
            result["callable"] = call(ones).tolist()
            try:
                sess.run(y, {x: -ones})
            except tf.errors.InvalidArgumentError as e:
                result["assertion"] = "assertion failed" in str(e)
            path = saver.save(sess, f"{folder}/model", global_step=3)
            sess.run(w.assign(tf.zeros([3, 2])))
            saver.restore(sess, tf.train.latest_checkpoint(folder))
            result["restored"] = [Path(path).name, sess.run(w).ravel().tolist()]
    return result
