"""A program that starts a cluster and never closes it: python cluster_owner.py fails|runs"""

import sys

import dovetail as tf

how = sys.argv[1]
cluster = tf.LocalCluster({"ps": 1, "worker": 1})
with tf.device("/job:ps"):
    v = tf.Variable(0.0)
    up = tf.assign_add(v, 1.0)
with tf.Session(cluster.target("worker")) as sess:
    sess.run(v.initializer)
    print(*[cluster.process(job, i).pid for job, i in cluster.tasks], flush=True)
    if how == "fails":
        raise RuntimeError("this program is wrong")
    while how == "runs":
        sess.run(up)
