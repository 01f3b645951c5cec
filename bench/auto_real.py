"""Automatic placement on real processes: is it faster than what people do by hand, and does it take as long as it says?

    python bench/auto_real.py [--quick] [--json FILE]

Three tasks with one CPU device each, on this machine, that differ as machines do:

    big     a budget of two threads
    small   a budget of one
    far     a budget of one, and a link with 1 ms more delay and 200 MiB/s (`delay` and `rate` of DOVETAIL_FAULTS)

That takes four cores. Where there are fewer, a thread of the budget is a quarter of a core: `big` is slowed twofold
(`_slow_tasks.py`) on a core for itself, and the two others share one, each slowed fourfold. So the tasks together keep either core
busy half of the time, and find it free when they need it.

Two steps are placed: the training of a transformer (two layers, four heads, written out), and a wide graph of branches that differ
in length and width. Devices and links are measured as `dovetail devices --measure` does it, each node on each device by `dt.profile`.
Then the same step runs as `auto` placed it, as HEFT did with the same costs, with its blocks dealt to the devices in turn, and on
each device alone. The steps are timed in turn, so that what else the machine does meets them all; medians count.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from _harness import Row, main, row

SLOW_LINK = "delay:1,rate:200"
ROUNDS, PROFILED = 25, 15
JOBS = ("big", "small", "far")


# --- the tasks -----------------------------------------------------------------------------------------------------------


def budgets() -> dict[str, tuple[list[int], str]]:
    """Job -> the cores that its task may use, and its faults: those of DOVETAIL_FAULTS, and `slow`, the factor of its kernels."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= 4:
        return {"big": (cores[:2], ""), "small": (cores[2:3], ""), "far": (cores[3:4], SLOW_LINK)}
    one, other = cores[0], cores[-1]
    return {"big": ([one], "slow:2"), "small": ([other], "slow:4"), "far": ([other], f"slow:4,{SLOW_LINK}")}


def serve(cores: str, faults: str) -> None:
    """Be a task: with these cores and faults, which must be known before anything is loaded."""
    os.sched_setaffinity(0, map(int, cores.split(",")))
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = str(len(cores.split(",")))
    given = dict(fault.split(":") for fault in faults.split(",") if fault)
    factor = float(given.pop("slow", 1.0))
    if given:
        os.environ["DOVETAIL_FAULTS"] = ",".join(map(":".join, given.items()))
    if "rate" in faults:  # what a link carries must pass the link
        os.environ["DOVETAIL_SHARED_MEMORY_MB"] = "0"
    sys.argv = sys.argv[:1]
    from _slow_tasks import main as run_task, slow_kernels

    slow_kernels(factor)
    run_task()


# --- the steps -----------------------------------------------------------------------------------------------------------

Build = Callable[[Any, Callable[[int], Any]], tuple[list[Any], dict[Any, Any]]]
"""(dovetail, block number -> its device block) -> fetches and feeds"""


def wide(dt: Any, block: Callable[[int], Any]) -> tuple[list[Any], dict[Any, Any]]:
    """Twelve branches from one input, of two to five layers and four widths, joined at the end."""
    import numpy as np

    rng = np.random.default_rng(1)
    x = dt.placeholder(dt.float32, [512, 256], name="x")
    ends = []
    for b in range(12):
        with block(b), dt.name_scope(f"branch_{b}"):
            h, width = x, 256
            for k in range(2 + b % 4):
                n = (256, 384, 512, 320)[(b + k) % 4]
                w = dt.Variable((rng.standard_normal((width, n)) / np.sqrt(width)).astype(np.float32), name=f"w{k}")
                h, width = dt.nn.relu(dt.matmul(h, w)), n
            w = dt.Variable((rng.standard_normal((width, 128)) / np.sqrt(width)).astype(np.float32), name="out")
            ends.append(dt.nn.tanh(dt.matmul(h, w)))
    with block(0):
        y = dt.reduce_mean(dt.math.add_n(ends), name="y")
    return [y], {x: rng.standard_normal((512, 256)).astype(np.float32)}


LAYERS, HEADS, WIDTH, SEQUENCES, TOKENS = 2, 4, 256, 8, 128


def transformer(dt: Any, block: Callable[[int], Any]) -> tuple[list[Any], dict[Any, Any]]:
    """A step of training: two layers before which is normed, each head by itself, gradient descent."""
    import numpy as np

    rng = np.random.default_rng(2)

    def weights(name: str, *shape: int) -> Any:
        return dt.Variable((rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32), name=name)

    def norm(h: Any) -> Any:
        mean = dt.reduce_mean(h, -1, keepdims=True)
        return (h - mean) * dt.math.rsqrt(dt.reduce_mean(dt.square(h - mean), -1, keepdims=True) + 1e-5)

    x = dt.placeholder(dt.float32, [SEQUENCES * TOKENS, WIDTH], name="x")
    h, size = x, WIDTH // HEADS
    for layer in range(LAYERS):
        with dt.name_scope(f"layer_{layer}"):
            with block(2 * layer):
                a, heads = norm(h), []
            for i in range(HEADS):
                with block(2 * layer + i), dt.name_scope(f"head_{i}"):
                    q, k, v = (
                        dt.reshape(dt.matmul(a, weights(n, WIDTH, size)), [SEQUENCES, TOKENS, size]) for n in "qkv"
                    )
                    mixed = dt.matmul(dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * size**-0.5), v)
                    heads.append(dt.matmul(dt.reshape(mixed, [SEQUENCES * TOKENS, size]), weights("o", size, WIDTH)))
            with block(2 * layer + 1):
                h = h + dt.math.add_n(heads)
                h = h + dt.matmul(
                    dt.nn.relu(dt.matmul(norm(h), weights("up", WIDTH, 4 * WIDTH))), weights("down", 4 * WIDTH, WIDTH)
                )
    with block(0):
        loss = dt.reduce_mean(dt.square(h - x), name="loss")
        step = dt.train.GradientDescentOptimizer(1e-3).minimize(loss)
    return [loss, step], {x: rng.standard_normal(x.shape).astype(np.float32)}


# --- measuring -----------------------------------------------------------------------------------------------------------


class Placed:
    """A step in a session of its own, placed in one way."""

    def __init__(self, dt: Any, target: str, build: Build, block: Callable[[int], Any], config: Any) -> None:
        self._dt, graph = dt, dt.Graph()
        with graph.as_default():
            self.fetches, self.feeds = build(dt, block)
            initial = dt.global_variables_initializer()
        self.session = dt.Session(target, graph=graph, config=config)
        self.session.run(initial)
        self.session.warmup(self.fetches, self.feeds)
        self._call = self.session.make_callable(self.fetches, list(self.feeds))
        self.seconds: list[float] = []
        self()

    def __call__(self) -> float:
        began = perf_counter()
        self._call(*self.feeds.values())
        return perf_counter() - began

    def predicted(self, costs: Any) -> float:
        """Seconds that the plan that runs is predicted to take."""
        return float(self._dt.simulate(self.session.last_plan, costs=costs, client=True).makespan)


def compare(dt: Any, target: str, cluster: Any, name: str, build: Build, rounds: int) -> Iterator[Row]:
    """Place a step in all ways and time them in turn."""
    devices = [str(d.name) for d in cluster.devices]
    placed: dict[str, Placed] = {}
    profiles = []
    for device in devices:
        one = Placed(dt, target, build, lambda _, d=device: dt.device(d), None)
        profiles.append(dt.profile(one.session, one.fetches, one.feeds, steps=min(PROFILED, rounds)))
        placed[f"all on {device.partition('/replica')[0].removeprefix('/job:')}"] = one
    costs = reduce(or_, profiles).with_links(cluster)
    placed["round robin"] = Placed(dt, target, build, lambda i: dt.device(devices[i % len(devices)]), None)
    for strategy in ("heft", "auto"):
        config = dt.ConfigProto(placement_strategy=strategy, placement_costs=costs)
        placed[strategy] = Placed(dt, target, build, lambda _: dt.device(None), config)
    ways = list(placed.values())
    for r in range(rounds):
        for way in ways if r % 2 else reversed(ways):
            way.seconds.append(way())
    taken = {how: median(way.seconds) * 1e3 for how, way in placed.items()}
    predicted = {how: way.predicted(costs) * 1e3 for how, way in placed.items()}
    print(placed["auto"].session.last_plan.report(costs=costs))
    others = sorted((t, how) for how, t in taken.items() if how != "auto")
    yield row(f"{name}: a step as auto placed it", "ms", taken["auto"], others[0][0], others[0][1], target="ratio <= 1")
    for t, how in others:
        yield row(f"{name}: {how}", "ms", t, predicted[how], "its prediction")
    error = abs(predicted["auto"] / taken["auto"] - 1) * 100
    yield row(f"{name}: auto, predicted", "ms", predicted["auto"], taken["auto"], "measured")
    yield row(f"{name}: the prediction is off by", "%", error, target="dovetail <= 25")


def rows(quick: bool) -> Iterator[Row]:
    """Both steps on one cluster."""
    import dovetail as dt
    from dovetail.runtime.session.profiling import measure

    programs = {
        job: [sys.executable, str(Path(__file__).resolve()), "--serve", ",".join(map(str, cores)), faults]
        for job, (cores, faults) in budgets().items()
    }
    with dt.LocalCluster(dict.fromkeys(JOBS, 1), programs=programs) as cluster:
        target = cluster.target("big")
        described = measure(target)
        for name, build in (("transformer", transformer), ("wide graph", wide)):
            yield from compare(dt, target, described, name, build, 5 if quick else ROUNDS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main("Automatic placement on real processes", rows)
