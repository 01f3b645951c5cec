"""The classifier under a distribution strategy: `dovetail demo --strategy mirrored|central|multiworker|ps`.

`python -m dovetail.tools.demo.strategies STRATEGY --steps N` runs one task of a cluster, which TF_CONFIG defines.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dovetail as tf

from .data import load_digits
from .model import BATCH_SIZE, Replica, classifier, make_optimizer
from .watch import DemoError, end_with_parent

STEPS = 400
REPORT_EVERY_S = 1.0
DEVICES = ("/cpu:0", "/cpu:1")
KINDS: dict[str, Callable[[], Any]] = {
    "mirrored": lambda: tf.distribute.MirroredStrategy(DEVICES),
    "central": lambda: tf.distribute.CentralStorageStrategy(DEVICES, parameter_device="/cpu:0"),
    "multiworker": tf.distribute.MultiWorkerMirroredStrategy,
    "ps": tf.distribute.ParameterServerStrategy,
}
CLUSTERED = ("multiworker", "ps")


def run(kind: str, steps: int, workers: int, ps: int, log: Callable[[str], None]) -> None:
    """Trains under a strategy, in this process or in a cluster of processes.

    Args:
        kind: name of the strategy.
        steps: number of updates.
        workers: number of workers of a cluster.
        ps: number of parameter servers of a cluster.
        log: called with each message.

    Raises:
        ValueError: there is no such strategy.
        DemoError: a process failed.
    """
    if kind not in KINDS:
        raise ValueError(f"There is no strategy {kind!r}. Strategies: {', '.join(KINDS)}")
    load_digits()  # reports missing packages before any process starts
    if kind not in CLUSTERED:
        work(kind, steps, log)
        return
    jobs = {"worker": workers} | ({"ps": ps} if kind == "ps" else {})
    program = [sys.executable, "-m", "dovetail.tools.demo.strategies", kind, "--steps", str(steps)]
    with tf.LocalCluster(jobs, programs=dict.fromkeys(jobs, program), piped=jobs) as cluster:
        # A thread per worker reads its output until it is done.
        readers = [threading.Thread(target=_read, args=(cluster, i, log), daemon=True) for i in range(workers)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        failed = [i for i in range(workers) if cluster.process("worker", i).poll() not in (None, 0)]
    if failed:
        raise DemoError(f"worker {failed[0]} failed. Its last lines above show the reason")


def _read(cluster: tf.LocalCluster, worker: int, log: Callable[[str], None]) -> None:
    pipe = cluster.process("worker", worker).stdout
    assert pipe is not None
    for line in pipe:
        text = line.decode(errors="replace").rstrip()
        if text == "DONE":
            return
        log(f"worker {worker}: {text}")


def work(kind: str, steps: int, log: Callable[[str], None]) -> None:
    """Trains in this process, which is one task of a cluster or, with a strategy of one process, the only one."""
    strategy = KINDS[kind]()
    resolver = strategy.cluster_resolver
    if resolver is not None and resolver.task_type == "ps":
        strategy.server.join()
    in_step = max(1, len(getattr(strategy, "_workers", ())))
    digits, optimizer = load_digits(), make_optimizer()
    with strategy.scope():
        tf.set_random_seed(1)
        built = strategy.run(lambda: classifier(optimizer))
        replicas: list[Replica] = strategy.unwrap(built)
        loss = strategy.reduce("MEAN", tf.distribute.PerReplica([r.loss for r in replicas]))
        everybody = strategy.barrier() if in_step > 1 else tf.no_op()
    variables = tf.trainable_variables()
    log(f"{strategy.num_replicas_in_sync} replicas in step on {', '.join(strategy.extended.worker_devices)}")
    log(f"{variables[0].op.name} is on {', '.join(c.device for c in variables[0].values)}")
    batches = digits.batches(BATCH_SIZE * len(replicas), seed=_number(resolver))
    config = strategy.update_config_proto(tf.ConfigProto(device_count={"CPU": len(DEVICES)}))
    fetches = [loss, replicas[0].global_step, *(r.train_op for r in replicas)]
    with tf.Session(strategy.session_target, config=config) as session:
        if strategy.extended.experimental_should_init or in_step > 1:
            session.run(tf.global_variables_initializer())
        else:
            missing = tf.report_uninitialized_variables()
            while session.run(missing).size:
                time.sleep(0.05)
        step, reported_at, done = 0, time.monotonic(), 0
        while step < steps:
            images, labels = next(batches)
            feeds: dict[Any, Any] = {}
            for r, x, y in zip(replicas, np.split(images, len(replicas)), np.split(labels, len(replicas)), strict=True):
                feeds |= {r.images: x, r.labels: y}
            mean, step, *_ = session.run(fetches, feeds)
            done += 1
            now = time.monotonic()
            if now - reported_at >= REPORT_EVERY_S or step >= steps:
                log(f"step {int(step)}/{steps}   loss {mean:.4f}   {done / (now - reported_at):.0f} steps/s")
                reported_at, done = now, 0
        first = replicas[0]
        feeds = {first.images: digits.test_images, first.labels: digits.test_labels}
        log(f"held-out accuracy {session.run(first.accuracy, feeds):.4f}")
        session.run(everybody)  # no worker ends while others still need it


def _number(resolver: Any) -> int:
    return 0 if resolver is None or resolver.task_id is None else int(resolver.task_id)


def main() -> None:
    """Runs one task of the cluster. It continues to serve until standard input closes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kind", choices=CLUSTERED)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    end_with_parent()
    work(arguments.kind, arguments.steps, lambda line: print(line, flush=True))
    print("DONE", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
