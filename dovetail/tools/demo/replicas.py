"""The two kinds of replication of the classifier over the workers. Both train asynchronously.

Between-graph replication: each worker process is a client with its own graph. This process only evaluates, with a graph of the same
variables. In-graph replication: this process is the only client. Its graph has the variables and a copy of the computation per worker, and
a thread per copy runs its training op.
"""

from __future__ import annotations

import queue
import sys
import threading
from typing import Protocol

import dovetail as tf

from .data import Digits
from .model import BATCH_SIZE, Replica, classifier, make_optimizer, parameters_on_ps, train
from .watch import JOIN_S, Failed, Finished, Progress, Report
from .worker import build


class Replicas(Protocol):
    """The interface of both kinds of replication."""

    graph: tf.Graph
    replicas: list[Replica]
    """The replicas in this process's graph. The first one is used for evaluation."""

    def start(self, session: tf.Session) -> None:
        """Starts the training."""

    def join(self) -> None:
        """Waits for this process's threads, at most `JOIN_S` seconds each. The training has ended, or the session was closed."""


class BetweenGraph:
    """A client and a graph per worker. The workers start to train when their processes start."""

    program = [sys.executable, "-m", "dovetail.tools.demo.worker"]

    def __init__(self, cluster: tf.LocalCluster) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.replicas = [build(cluster.cluster_spec, worker=0)]

    def start(self, session: tf.Session) -> None:
        """Does nothing: the chief initializes the variables, and the workers wait for that."""

    def join(self) -> None:
        """Does nothing: the workers are processes."""


class InGraph:
    """One client and one graph, with a copy of the computation per worker."""

    def __init__(
        self,
        cluster: tf.LocalCluster,
        workers: int,
        digits: Digits,
        last_step: int,
        reports: queue.Queue[Report],
    ) -> None:
        self._digits, self._last_step, self._reports = digits, last_step, reports
        self._threads: list[threading.Thread] = []
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.set_random_seed(1)
            optimizer = make_optimizer()
            self.replicas = []
            for worker in range(workers):
                place = parameters_on_ps(cluster.cluster_spec, worker)
                with tf.device(place), tf.name_scope(f"worker_{worker}"):
                    self.replicas.append(classifier(optimizer))
            self._initialize = tf.global_variables_initializer()

    def start(self, session: tf.Session) -> None:
        """Initializes the variables, and starts a thread per replica."""
        session.run(self._initialize)
        for worker, replica in enumerate(self.replicas):
            thread = threading.Thread(target=self._train, args=(session, worker, replica), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _train(self, session: tf.Session, worker: int, replica: Replica) -> None:
        def report(steps: int, global_step: int, loss: float, rate: float) -> None:
            self._reports.put(Progress(worker, steps, global_step, loss, rate))

        try:
            train(session, replica, self._digits.batches(BATCH_SIZE, seed=worker), self._last_step, report)
            self._reports.put(Finished(worker))
        except Exception as e:
            self._reports.put(Failed(worker, f"{type(e).__name__}: {e}"))

    def join(self) -> None:
        """Waits for the threads."""
        for thread in self._threads:
            thread.join(JOIN_S)
