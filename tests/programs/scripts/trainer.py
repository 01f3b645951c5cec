"""The usual trainer of a cluster: one program for parameter servers and workers, told apart by flags.

    python trainer.py --ps_hosts=a:1,b:2 --worker_hosts=c:3,d:4 --job_name=worker --task_index=0 --data=digits.npz ...

Without hosts and job it takes them from TF_CONFIG. A worker writes the weights that it sees at the end to --report.
"""

import json
import os

import numpy as np

import dovetail as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Addresses of the parameter servers, with commas")
flags.DEFINE_string("worker_hosts", "", "Addresses of the workers, with commas")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "Which task of its job this is")
flags.DEFINE_string("data", None, "An .npz with x and y")
flags.DEFINE_string("checkpoint_dir", None, "Where to save")
flags.DEFINE_string("report", "", "Folder for what each worker saw")
flags.DEFINE_integer("steps", 100, "Stop at this global step")
flags.DEFINE_integer("batch_size", 64, "Rows per step of each worker")
flags.DEFINE_float("learning_rate", 0.2, "Rate")
flags.DEFINE_integer("save_steps", 20, "Save that often")
flags.DEFINE_boolean("sync", False, "Average the gradients of all workers")
flags.mark_flag_as_required("data")
FLAGS = flags.FLAGS


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    if FLAGS.job_name:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        job, index = FLAGS.job_name, FLAGS.task_index
    else:
        described = json.loads(os.environ["TF_CONFIG"])
        cluster = tf.train.ClusterSpec(described["cluster"])
        job, index = described["task"]["type"], described["task"]["index"]
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()
        return
    train(cluster, server, index)


def train(cluster, server, index):
    workers, is_chief = cluster.num_tasks("worker"), index == 0
    with np.load(FLAGS.data) as data:
        images, labels = data["x"], data["y"]

    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        tf.set_random_seed(1)
        x = tf.placeholder(tf.float32, [None, 64])
        y = tf.placeholder(tf.int64, [None])
        w1 = tf.get_variable("w1", [64, 32])
        b1 = tf.get_variable("b1", [32], initializer=tf.zeros_initializer())
        w2 = tf.get_variable("w2", [32, 10])
        b2 = tf.get_variable("b2", [10], initializer=tf.zeros_initializer())
        logits = tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2) + b2
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        tf.summary.scalar("loss", loss)
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.MomentumOptimizer(FLAGS.learning_rate, 0.9)
        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps), tf.train.NanTensorHook(loss)]
        if FLAGS.sync:
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, workers)
        train_op = optimizer.minimize(loss, global_step=global_step)
        if FLAGS.sync:
            hooks.append(optimizer.make_session_run_hook(is_chief, num_tokens=0))

    trained = tf.trainable_variables()
    final = tf.train.FinalOpsHook([global_step, *trained])
    session = tf.train.MonitoredTrainingSession(
        server.target, is_chief, FLAGS.checkpoint_dir, hooks=[*hooks, final], save_checkpoint_steps=FLAGS.save_steps,
        # A worker needs the servers and itself: it goes on when another one has ended, or is gone.
        config=tf.ConfigProto(peer_timeout_s=2.0, device_filters=["/job:ps", f"/job:worker/task:{index}"]),
    )  # fmt: skip
    batch, rows = 0, FLAGS.batch_size
    with session:
        while not session.should_stop():
            # Each worker takes its own rows of the batch that all of them make together.
            first = (batch * workers + index) * rows % (len(labels) - rows + 1)
            batch += 1
            session.run(train_op, {x: images[first : first + rows], y: labels[first : first + rows]})
    if FLAGS.report:
        step, *weights = final.final_ops_values
        np.savez(f"{FLAGS.report}/worker{index}.npz", *weights, step=step)


if __name__ == "__main__":
    tf.app.run(main)
