"""A cluster that is used for long, by clients of which some are killed: does it stay as quick, and as small?

Two parameter servers and a worker run all the time. One client measures: small steps, and now and then a large tensor. Others, in
processes of their own, do the same and are killed with -9 at random moments, in the middle of steps, and replaced. Rows compare the last
quarter of the run with the second one: the first warms up.

    python bench/soak.py                  an hour
    python bench/soak.py --seconds 600    ten minutes; --quick: 20 s
    python bench/soak.py chaos            training under `dovetail run` whose processes are killed: see _chaos.py
"""

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import _chaos
from _harness import ROOT, Row, main, row

HOUR_S, QUICK_S = 3600.0, 20.0
CLIENTS = 2
LIFE_S = 8.0  # of a client, about
SAMPLES = 60


def client(tf: Any, target: str, seed: int) -> Iterator[float]:
    """Run steps for ever; gives the seconds of each small one."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device("/job:ps/task:0"):
            small = tf.get_variable("small", initializer=tf.zeros([64, 64]))
            queue = tf.FIFOQueue(100, tf.float32, shapes=[[]], shared_name="soak")
            put = queue.enqueue(1.0)
            take = queue.dequeue()
        with tf.device("/job:ps/task:1"):
            large = tf.get_variable("large", initializer=tf.zeros([1 << 18]))
        with tf.device("/job:worker/task:0"):
            x = tf.placeholder(tf.float32, [None, 64])
            y = tf.reduce_mean(tf.matmul(x, small))
            got = tf.reduce_max(large)
        with tf.device("/job:ps/task:0"):
            train = small.assign_sub(0.001 * tf.ones([64, 64]) * y)
        start = tf.global_variables_initializer()
    rng = random.Random(seed)
    fed = np.ones([8, 64], np.float32)
    with tf.Session(target, graph=graph) as session:
        session.run(start)
        while True:
            what = rng.random()
            if what < 0.02:
                session.run(got)
            elif what < 0.04:
                session.run(put)
                session.run(take)
            else:
                began = time.perf_counter()
                session.run(train, {x: fed})
                yield time.perf_counter() - began


def held(pids: list[int]) -> tuple[float, int]:
    """(MiB of memory, descriptors) of processes, together."""
    memory, descriptors = 0.0, 0
    for pid in pids:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        memory += int(status["VmRSS"].split()[0]) / 1024
        descriptors += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return memory, descriptors


def soak(seconds: float, seed: int = 0) -> dict[str, Any]:
    """Run for so long. Gives latencies and sizes by time, and how many clients were killed."""
    import dovetail as tf

    rng = random.Random(seed)
    latencies: list[tuple[float, float]] = []
    sizes: list[tuple[float, float, int]] = []
    clients: list[tuple[float, subprocess.Popen[bytes]]] = []
    killed = 0
    with contextlib.ExitStack() as ending, tf.LocalCluster({"ps": 2, "worker": 1}) as cluster:
        ending.callback(lambda: [end(process) for _, process in clients])
        target = cluster.target("worker", 0)
        pids = [cluster.process(job, i).pid for job, i in cluster.tasks]
        steps = client(tf, target, seed)
        ending.callback(steps.close)
        next(steps)
        began = time.monotonic()
        sample_at = 0.0
        while (now := time.monotonic() - began) < seconds:
            latencies.append((now, next(steps)))
            if now >= sample_at:
                sample_at = now + seconds / SAMPLES
                sizes.append((now, *held(pids)))
            for i, (until, process) in enumerate(clients):
                if now > until:
                    end(process)
                    killed += 1
                    del clients[i]
                    break
            if len(clients) < CLIENTS:
                command = [sys.executable, str(Path(__file__)), "client", target, str(rng.randrange(1 << 30))]
                process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)
                clients.append((now + LIFE_S * rng.uniform(0.3, 1.7), process))
            time.sleep(0.002)
    return {"latencies": latencies, "sizes": sizes, "killed": killed}


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a client wherever it is."""
    process.kill()
    process.wait()


def rows(seconds: float) -> Iterator[Row]:
    """The last quarter beside the second."""
    run = soak(seconds)

    def quarter(which: int, values: list[Any]) -> list[Any]:
        return [v for v in values if which * seconds / 4 <= v[0] < (which + 1) * seconds / 4]

    early, late = ([s * 1e6 for _, s in quarter(q, run["latencies"])] for q in (1, 3))
    yield row("a step, second quarter", "µs", statistics.median(early))
    yield row(
        "a step, last quarter",
        "µs",
        statistics.median(late),
        statistics.median(early),
        "second quarter",
        "ratio <= 1.2",
    )
    slow = [statistics.quantiles(q, n=100)[98] for q in (early, late)]
    yield row("99 of 100 steps, last quarter", "µs", slow[1], slow[0], "second quarter", "ratio <= 1.5")
    before, after = quarter(1, run["sizes"]), quarter(3, run["sizes"])
    for name, unit, which, most in (("memory of the tasks", "MiB", 1, 1.1), ("descriptors of the tasks", "", 2, 1.1)):
        first, last = (statistics.median(v[which] for v in q) for q in (before, after))
        yield row(name, unit, last, first, "second quarter", f"ratio <= {most}")
    yield row("clients killed", "", run["killed"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        sys.path.insert(0, str(ROOT))
        import dovetail

        for _ in client(dovetail, sys.argv[2], int(sys.argv[3])):
            pass
    if sys.argv[1:2] == ["chaos"]:
        _chaos.main(sys.argv[2:])
        sys.exit()
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seconds", type=float, help="how long; default: an hour")
    mine, others = parser.parse_known_args()
    main("Soak", lambda quick: rows(mine.seconds or (QUICK_S if quick else HOUR_S)), others)
