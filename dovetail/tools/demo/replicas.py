"""The two ways to replicate the classifier over the workers; both train asynchronously.

Between graphs: each worker process is its own client with its own graph. This process only watches, with a
graph of the same variables. In the graph: this process is the only client; one graph holds one set of
variables and a copy of the compute per worker, and a thread per copy runs its training op.
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
    """What `run` needs of a way to replicate."""

    graph: tf.Graph
    replicas: list[Replica]
    """Those in this process's graph; the first is used for evaluation."""

    def start(self, session: tf.Session) -> None:
        """Begin to train; reports come through the queue from now on."""

    def join(self) -> None:
        """Wait a moment for this process's own threads. Training has ended, or the session was closed."""


class BetweenGraph:
    """A client and a graph per worker. The workers train from the moment when their processes start."""

    program = [sys.executable, "-m", "dovetail.tools.demo.worker"]

    def __init__(self, cluster: tf.LocalCluster) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.replicas = [build(cluster.cluster_spec, worker=0)]

    def start(self, session: tf.Session) -> None:
        """Nothing to do: the chief initialises the variables, and each worker begins when they are there."""

    def join(self) -> None:
        """Nothing to do: the workers are processes."""


class InGraph:
    """One client, one graph, one copy of the compute per worker."""

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
        """Initialise the variables, and start a thread per replica."""
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
        """Wait for the threads."""
        for thread in self._threads:
            thread.join(JOIN_S)
