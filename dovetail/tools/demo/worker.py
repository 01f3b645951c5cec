"""The program of a worker process of the demo (between-graph replication).

Every worker builds the same graph, with the computation on its own task. The variables have the same names in all graphs and are on the
parameter servers, so they are the same variables.
"""

from __future__ import annotations

import argparse
import os
import time

import dovetail as tf

from ...runtime.server.process import server_from_environment
from .data import load_digits
from .model import BATCH_SIZE, Replica, classifier, make_optimizer, parameters_on_ps, train
from .watch import Failed, Finished, Progress, end_with_parent, to_line


def build(cluster: tf.train.ClusterSpec, worker: int) -> Replica:
    """Builds the graph of a worker in the default graph."""
    tf.set_random_seed(1)
    with tf.device(parameters_on_ps(cluster, worker)):
        return classifier(make_optimizer())


def work(server: tf.train.Server, last_step: int) -> None:
    """Trains on this worker's server until all workers have made `last_step` updates together."""
    worker = server.task_index
    digits = load_digits()
    replica = build(server.cluster_spec, worker)
    initialize = tf.global_variables_initializer()
    uninitialized = tf.report_uninitialized_variables()

    def report(steps: int, global_step: int, loss: float, rate: float) -> None:
        print(to_line(Progress(worker, steps, global_step, loss, rate)), flush=True)

    with tf.Session(server.target) as session:
        if worker == 0:  # the chief
            session.run(initialize)
        else:
            while session.run(uninitialized).size:
                time.sleep(0.05)
        train(session, replica, digits.batches(BATCH_SIZE, seed=worker), last_step, report)
    print(to_line(Finished(worker)), flush=True)


def main() -> None:
    """Serves and trains. Then continues to serve until standard input closes, for tasks that still use the cluster."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    server = server_from_environment()
    end_with_parent()
    try:
        work(server, arguments.steps)
    except Exception as e:
        print(to_line(Failed(server.task_index, f"{type(e).__name__}: {e}")), flush=True)
        os._exit(1)  # threads may be inside a kernel; do not wait for them
    server.join()


if __name__ == "__main__":
    main()
