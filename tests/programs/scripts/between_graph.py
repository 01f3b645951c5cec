"""Between-graph replication: every worker runs this program, a client in the same process as its server.

    python between_graph.py DATA REPORTS STEPS VARIABLES

DATA is an .npz with x and y; into the folder REPORTS each worker writes what it saw. VARIABLES is `reference`
or `resource`. Which worker this is stands in TF_CONFIG. Each trains by itself, on its share of the data.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import dovetail as tf

data, reports, steps, variables = sys.argv[1:]
described = json.loads(os.environ["TF_CONFIG"])
cluster = tf.train.ClusterSpec(described["cluster"])
task = described["task"]["index"]
is_chief = task == 0

server = tf.train.Server(cluster, job_name="worker", task_index=task)

if variables == "resource":
    tf.enable_resource_variables()
with tf.device(tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % task, cluster=cluster)):  # noqa: UP031
    x = tf.placeholder(tf.float32, [None, 64], name="x")
    y = tf.placeholder(tf.int64, [None], name="y")
    rng = np.random.default_rng(task)  # each worker would start somewhere else; the chief's start counts
    w1 = tf.Variable(rng.normal(0, 0.2, (64, 32)).astype(np.float32), name="w1")
    b1 = tf.Variable(tf.zeros([32]), name="b1")
    w2 = tf.Variable(rng.normal(0, 0.2, (32, 10)).astype(np.float32), name="w2")
    b2 = tf.Variable(tf.zeros([10]), name="b2")
    stamp = tf.Variable(100.0 + task, trainable=False, name="stamp")
    global_step = tf.train.get_or_create_global_step()
    hidden = tf.nn.relu(tf.matmul(x, w1) + b1)
    logits = tf.matmul(hidden, w2) + b2
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits), name="loss")
    train_op = tf.train.GradientDescentOptimizer(0.2).minimize(loss, global_step=global_step)
    init = tf.global_variables_initializer()
    uninitialized = tf.report_uninitialized_variables()

with np.load(data) as loaded:
    mine = slice(task, None, cluster.num_tasks("worker"))
    rows_x, rows_y = loaded["x"][mine], loaded["y"][mine]

with tf.Session(server.target) as sess:  # waits until all servers are up
    if is_chief:
        sess.run(init)
    deadline = time.monotonic() + 20
    while len(sess.run(uninitialized)):
        if time.monotonic() > deadline:
            sys.exit("the chief has not initialised the variables")
        time.sleep(0.01)

    losses, seen = [], []
    for _ in range(int(steps)):
        batch = rng.choice(len(rows_y), 64)
        value, _, step = sess.run([loss, train_op, global_step], {x: rows_x[batch], y: rows_y[batch]})
        losses.append(float(value))
        seen.append(int(step))

    try:  # more labels than images: the error says where the loss is computed
        sess.run(loss, {x: rows_x[:2], y: rows_y[:3]})
        complaint = ""
    except tf.errors.InvalidArgumentError as error:
        complaint = str(error)

    report = {
        "pid": os.getpid(),
        "devices": {v.op.name: v.device for v in tf.global_variables()},
        "stamp": float(sess.run(stamp)),
        "losses": losses,
        "steps": seen,
        "complaint": complaint,
    }
Path(reports, f"worker{task}.json").write_text(json.dumps(report))
