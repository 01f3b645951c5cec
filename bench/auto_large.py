"""Searched placement of a million nodes: `auto` beside every single pass, on steps of different shape.

    python bench/auto_large.py [--quick] [--json FILE]

Each step has about as many nodes as asked for, as arrays from the start, and eight devices, four in each of two tasks; every other
device takes twice as long. Links within a task take 5 microseconds and 10 GB/s, between tasks 50 and 1, which is what Dovetail takes
for typical. A node works for some tens of microseconds, so a move between tasks costs as much as a few nodes.

For each shape and each strategy: seconds of the search, by the clock and of the processors, and
the predicted time of the step. The peer of `auto` is the best single pass. Problems are arrays before the clock
starts; compiled code is loaded before, too. Processor time is what it takes on a quiet machine with one core.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from _harness import Row, main, row
from dovetail.placer.search.portfolio import search
from dovetail.placer.search.problem import Objective, Problem
from dovetail.placer.search.types import Floats

PASSES = ("single", "heft", "m-etf", "contiguous")
COUNT, QUICK = 1_000_000, 100_000
DEVICES, PER_TASK, SLOWER = 8, 4, 2.0
MEAN_S, MEAN_BYTES = 30e-6, 64e3
Numbers = npt.NDArray[np.int64]


def layered(count: int, rng: np.random.Generator) -> Problem:
    """Deep: 24 branches side by side that now and then lead into each other, and all meet every 50 layers."""
    width, every = 24, 50
    layers = count // width
    node = np.arange(layers * width).reshape(layers, width)
    source, target = node[:-1].ravel(), node[1:].ravel()
    some = np.flatnonzero(rng.random(len(source)) < 0.05)
    other = target[some] // width * width + rng.integers(0, width, len(some))
    after = node[every::every]
    before = node[every - 1 :: every][: len(after)]
    return _problem(
        layers * width,
        np.concatenate([source, source[some], np.repeat(before, width, axis=1).ravel()]),
        np.concatenate([target, other, np.tile(after, (1, width)).ravel()]),
        rng,
    )


def towers(count: int, rng: np.random.Generator) -> Problem:
    """Forty towers with a short cut over every third node; every thousand layers one node joins all of them."""
    width, every = 40, 1000
    layers = count // width
    node = np.arange(layers * width).reshape(layers, width)
    joins = layers * width + np.arange((layers - 1) // every)
    before, after = node[every - 1 :: every][: len(joins)], node[every::every][: len(joins)]
    into, out = np.repeat(joins, width), before.ravel()
    return _problem(
        layers * width + len(joins),
        np.concatenate([node[:-1].ravel(), node[:-3:3].ravel(), out, into]),
        np.concatenate([node[1:].ravel(), node[3::3].ravel(), into, after.ravel()]),
        rng,
    )


def blocks(count: int, rng: np.random.Generator) -> Problem:
    """A transformer's blocks, forward over 16 batches: norm, 8 heads, two more matmuls, residuals, and weights.

    A block's weights are variables that all batches use; they are large, and do not all fit on one device.
    """
    batches, heads = 16, 8
    inner = 2 + 5 * heads + 5  # nodes of a block for one batch
    depth = max(count // (batches * inner + 6), 1)
    size = batches * inner + 6
    source: list[tuple[int, int]] = []  # within a block: local node -> local node, for one batch behind the weights
    add = source.append
    add((0, 1))
    for h in range(heads):
        q = 2 + 5 * h
        for k in range(3):
            add((1, q + k))  # norm -> q, k, v
        add((q, q + 3))
        add((q + 1, q + 3))  # scores
        add((q + 2, q + 4))
        add((q + 3, q + 4))  # mix
        add((q + 4, 2 + 5 * heads))
    last = 2 + 5 * heads
    for k in range(4):
        add((last + k, last + k + 1))
    add((0, last + 4))  # residual
    local = np.array(source)
    uses = [(w, 2 + 5 * h + w) for w in range(3) for h in range(heads)] + [(w, last + w - 3) for w in (3, 4, 5)]
    weight = np.array(uses)
    begin = (np.arange(depth) * size)[:, None, None] + 6 + (np.arange(batches) * inner)[:, None]
    ends = [
        ((begin + local[:, 0]).ravel(), (begin + local[:, 1]).ravel()),
        ((begin * 0 + (np.arange(depth) * size)[:, None, None] + weight[:, 0]).ravel(), (begin + weight[:, 1]).ravel()),
        ((begin[:-1] + last + 4).ravel(), begin[1:].ravel()),
    ]
    n = depth * size
    is_weight = np.arange(n) % size < 6
    memory = np.where(is_weight, 4e6, 0.0)
    return _problem(
        n, np.concatenate([a for a, _ in ends]), np.concatenate([b for _, b in ends]), rng,
        memory=memory, capacity=memory.sum() / 4, idle=is_weight, size=np.where(is_weight, 1e6, MEAN_BYTES),
    )  # fmt: skip


def random_layers(count: int, rng: np.random.Generator) -> Problem:
    """Layers of 2,000 nodes, each with one to four inputs from the three layers before."""
    width = 2000
    n = count // width * width
    inputs = rng.integers(1, 5, n)
    target = np.repeat(np.arange(n), inputs)
    layer = target // width
    source = (layer - rng.integers(1, 4, len(target))) * width + rng.integers(0, width, len(target))
    real = source >= 0
    return _problem(n, source[real], target[real], rng)


SHAPES: dict[str, Callable[[int, np.random.Generator], Problem]] = {
    "layered": layered, "towers": towers, "blocks": blocks, "random": random_layers,
}  # fmt: skip


def _problem(
    n: int, source: Numbers, target: Numbers, rng: np.random.Generator, *, memory: Floats | None = None,
    capacity: float = np.inf, idle: npt.NDArray[np.bool_] | None = None, size: Any = MEAN_BYTES,
) -> Problem:  # fmt: skip
    """One value per node that has consumers; time and size of each are drawn around the mean."""
    edge = np.unique(source * n + target)
    source, target = edge // n, edge % n
    producer, start = np.unique(source, return_index=True)
    work = rng.lognormal(0.0, 0.7, n) * MEAN_S
    if idle is not None:
        work[idle] = 0.0
    task = np.arange(DEVICES) // PER_TASK
    apart, itself = task[:, None] != task[None], np.eye(DEVICES, dtype=bool)
    latency = np.where(itself, 0.0, np.where(apart, 50e-6, 5e-6))
    per_byte = np.where(itself, 0.0, np.where(apart, 1e-9, 1e-10))
    weigh = rng.lognormal(0.0, 0.7, n) * np.broadcast_to(size, n)
    return Problem(
        Objective.MAKESPAN,
        seconds=np.stack([work, SLOWER * work]),
        device_class=(np.arange(DEVICES) % 2).astype(np.int32),
        memory=np.zeros(n) if memory is None else memory,
        capacity=np.full(DEVICES, capacity),
        slots=np.ones(DEVICES, np.int32),
        value_source=producer.astype(np.int32),
        value_bytes=weigh[producer],
        value_start=np.append(start, len(edge)).astype(np.int32),
        value_target=target.astype(np.int32),
        group=np.arange(n, dtype=np.int32),
        allowed=np.ones((1, DEVICES), bool),
        allowed_kind=np.zeros(n, np.int32),
        link_latency=latency,
        link_per_byte=per_byte,
        port_latency=latency.mean(axis=0),
        port_per_byte=per_byte.mean(axis=0),
    )


def rows(quick: bool) -> Iterator[Row]:
    """Per shape: the predicted step, then what the searches took."""
    for make in SHAPES.values():  # load what is compiled
        search(make(20_000, np.random.default_rng(0)), budget_s=0.5)
    for shape, make in SHAPES.items():
        steps: dict[str, float] = {}
        took: dict[str, tuple[float, float]] = {}
        for strategy in (*PASSES, "auto"):
            problem = make(QUICK if quick else COUNT, np.random.default_rng(1))
            clock, processors = time.perf_counter(), time.process_time()
            try:
                steps[strategy] = search(problem, strategy=strategy).objective
            except ValueError:  # it does not fit memory this way
                continue
            took[strategy] = time.perf_counter() - clock, time.process_time() - processors
        auto = steps.pop("auto")
        best = min(steps, key=lambda strategy: steps[strategy])
        yield row(
            f"{shape}, {problem.nodes:,} nodes, step", "s", auto, steps[best], f"best single pass: {best}",
            target="ratio <= 0.999999999",
        )  # fmt: skip
        for strategy, step in steps.items():
            yield row(f"{shape}, step by {strategy}", "s", step)
        for strategy, (clock, processors) in took.items():
            yield row(
                f"{shape}, search by {strategy}", "s", clock, target="dovetail <= 15" if strategy == "auto" else ""
            )
            yield row(f"{shape}, search by {strategy}, processor time", "s", processors)


if __name__ == "__main__":
    main("Searched placement of large steps", rows)
