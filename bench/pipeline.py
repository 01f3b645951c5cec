"""Pipelines of micro-batches on real processes: how much faster a step is, and what it holds.

    python bench/pipeline.py [--quick] [--json FILE]

Six layers of width 768, three of them on each of two tasks that have a core each, are trained on a batch of 1024: at once, so that one
task always waits for the other, and in a pipeline of 8 micro-batches, as GPipe and as 1F1B. Each way has processes of its own, whose
largest memory is read before the steps and after.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from _harness import Row, main, row

LAYERS, WIDTH, BATCH, MICRO_BATCHES = 6, 768, 1024, 8
TASKS = ("first", "second")
STEPS = 30


class Found(NamedTuple):
    """Seconds of a step, and MiB that the tasks held more than before, together."""

    seconds: float
    mib: float


def model(dt: Any, schedule: str) -> tuple[Any, Any]:
    """The input and the training op; `schedule` "": the whole batch at once."""
    x = h = dt.placeholder(dt.float32, [None, WIDTH], name="x")
    for i in range(LAYERS):
        with dt.device(f"/job:{TASKS[i * len(TASKS) // LAYERS]}"):
            h = dt.nn.relu(dt.matmul(h, dt.get_variable(f"w{i}", [WIDTH, WIDTH])))
    with dt.device(f"/job:{TASKS[-1]}"):
        loss = dt.reduce_mean(dt.square(h))
    descent = dt.train.GradientDescentOptimizer(0.01)
    if not schedule:
        return x, descent.minimize(loss, colocate_gradients_with_ops=True)
    return x, dt.train.PipelineOptimizer(descent, [x], MICRO_BATCHES, schedule).minimize(loss)


def run(schedule: str, steps: int) -> Found:
    """Train for some steps on processes of their own."""
    import numpy as np

    import dovetail as dt

    tasks = str(Path(__file__).resolve().parent / "auto_real.py")
    cores = sorted(os.sched_getaffinity(0))
    programs = {job: [sys.executable, tasks, "--serve", str(cores[i % len(cores)]), ""] for i, job in enumerate(TASKS)}
    batch = np.random.default_rng(1).random((BATCH, WIDTH), np.float32)
    with dt.LocalCluster(dict.fromkeys(TASKS, 1), programs=programs) as cluster, dt.Graph().as_default():
        x, train_op = model(dt, schedule)
        with dt.Session(cluster.target(TASKS[0])) as session:
            session.run(dt.global_variables_initializer())
            session.warmup(train_op, [x])
            processes = [cluster.process(job, 0).pid for job in TASKS]
            before, seconds = sum(map(_most_mib, processes)), []
            for _ in range(steps + 1):  # the first one makes connections
                began = perf_counter()
                session.run(train_op, {x: batch})
                seconds.append(perf_counter() - began)
            return Found(median(seconds[1:]), sum(map(_most_mib, processes)) - before)


def _most_mib(pid: int) -> float:
    line = next(s for s in Path(f"/proc/{pid}/status").read_text().splitlines() if s.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def rows(quick: bool) -> Iterator[Row]:
    """A step in each way, and what it holds."""
    at_once, gpipe, one_each = (run(schedule, 5 if quick else STEPS) for schedule in ("", "gpipe", "1f1b"))
    whole = "the whole batch at once"
    yield row("a step as 1F1B", "ms", one_each.seconds * 1e3, at_once.seconds * 1e3, whole, target="ratio <= 0.85")
    yield row("a step as GPipe", "ms", gpipe.seconds * 1e3, at_once.seconds * 1e3, whole)
    yield row("memory of a step as 1F1B", "MiB", one_each.mib, gpipe.mib, "GPipe", target="ratio <= 0.75")
    yield row("the same", "MiB", one_each.mib, at_once.mib, whole)


if __name__ == "__main__":
    main("Pipelines of micro-batches on two processes", rows)
