"""Synchronous training, written out: gradients of all workers meet in an accumulator, tokens let the workers go on.

    python synchronous.py REPORTS ROUNDS

Every worker runs this program, a client in the same process as its server. Worker 0 is the chief: a thread of it takes the mean
of the gradients, updates, and hands each worker a token. Each has a queue of its own: of a common one, a quick worker could take the
token of one that has given its gradient but has not come to the queue yet.
"""

import json
import os
import sys
import time
from pathlib import Path

import dovetail as tf

reports, rounds = sys.argv[1:]
described = json.loads(os.environ["TF_CONFIG"])
cluster = tf.train.ClusterSpec(described["cluster"])
task = described["task"]["index"]
workers = cluster.num_tasks("worker")
server = tf.train.Server(cluster, job_name="worker", task_index=task)

with tf.device(tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % task, cluster=cluster)):  # noqa: UP031
    global_step = tf.train.get_or_create_global_step()
    v = tf.get_variable("v", initializer=[0.0] * 1000)
    gradient = tf.zeros_like(v) + float(task + 1)
with tf.device("/job:worker/task:%d" % task):  # noqa: UP031
    local_step = tf.Variable(tf.constant(0, tf.int64), trainable=False, name=f"local_{task}", collections=["mine"])
with tf.device(v.device):
    accumulator = tf.ConditionalAccumulator(tf.float32, shape=[1000], shared_name="v/grad_accum")
    mean = accumulator.take_grad(workers)
with tf.device(global_step.device):
    tokens = [tf.FIFOQueue(-1, tf.int64, shapes=[[]], shared_name=f"sync_token_q_{i}") for i in range(workers)]
    with tf.control_dependencies([tf.assign_sub(v, 0.1 * mean)]):
        updated = tf.assign_add(global_step, 1)
    hand_out = tf.group(*[queue.enqueue(updated + 0) for queue in tokens])
with tf.control_dependencies([accumulator.apply_grad(gradient, local_step)]):
    token = tokens[task].dequeue()
train_op = tf.assign(local_step, token)
ready = tf.report_uninitialized_variables()

with tf.Session(server.target) as sess:
    while not Path(reports, "go").exists():  # the test waits until all servers answer
        time.sleep(0.01)
    sess.run(local_step.initializer)
    coord = tf.train.Coordinator()
    threads = []
    if task == 0:
        sess.run(tf.global_variables_initializer())
        runner = tf.train.QueueRunner(tokens[0], [hand_out])
        threads = runner.create_threads(sess, coord, daemon=True, start=True)
    deadline = time.monotonic() + 20
    while len(sess.run(ready)):
        if time.monotonic() > deadline:
            sys.exit("the chief has not initialised the variables")
        time.sleep(0.01)
    seen = []
    for _ in range(int(rounds)):
        sess.run(train_op)
        value = sess.run(v)
        seen.append((int(sess.run(local_step)), float(value.min()), float(value.max())))
    Path(reports, f"worker{task}.json").write_text(json.dumps(seen))
    if task == 0:  # the others may still be reading
        while not all(Path(reports, f"worker{i}.json").exists() for i in range(workers)):
            time.sleep(0.01)
        coord.request_stop()
        sess.close()  # its thread waits for gradients that nobody will send
        coord.join(threads, stop_grace_period_secs=10)
