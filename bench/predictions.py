"""Predicted beside measured step times: eight programs, three batch sizes, one process and four.

    python bench/predictions.py [--quick] [--json FILE] [--only "one process"]

Each program trains or runs as people write it. In one process all of it is on one device; with four processes of this machine its blocks
are dealt to their devices in turn, and the `ps` program has two parameter servers and two workers. A step is timed as its client sees
it: `session.run` of what trains or of what is computed, with arrays that are fed. The prediction is that of `simulate(client=True)` for
the same plan, with this machine's profile (`dovetail calibrate`). The rows give both, and by how much the prediction is off. All steps
are timed in turn, in four rounds, of which the fastest counts: what else runs on a shared processor slows steps down for seconds.

The last rows are an ablation of the model: the median error of all steps, with each part of the model and without it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from _harness import Row, main, row

BATCHES = (1, 64, 1024)
PROCESSES = {"one process": 1, "four processes": 4}
LEAST_S, LEAST_STEPS, ROUNDS = 0.5, 5, 4

Blocks = Callable[[int], Any]
"""Block number -> the device block that it runs in."""
Built = tuple[Any, Callable[[int], dict[Any, Any]]]
"""Fetches, and a function from a batch size to what is fed."""


def _normal(*shape: int) -> Any:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def _images(x: Any, y: Any, *shape: int) -> Callable[[int], dict[Any, Any]]:
    return lambda batch: {x: _normal(batch, *shape), y: np.arange(batch, dtype=np.int64) % 10}


def _trained(dt: Any, logits: Any, labels: Any) -> list[Any]:
    loss = dt.reduce_mean(dt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return [loss, dt.train.GradientDescentOptimizer(0.01).minimize(loss, colocate_gradients_with_ops=True)]


def mlp(dt: Any, block: Blocks) -> Built:
    """784-512-512-512-10, trained with gradient descent; a block for each layer."""
    x, y = dt.placeholder(dt.float32, [None, 784]), dt.placeholder(dt.int64, [None])
    h, widths = x, (784, 512, 512, 512, 10)
    for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False)):
        with block(i):
            h = dt.matmul(h, dt.Variable(_normal(a, b))) + dt.Variable(np.zeros(b, np.float32))
            h = dt.nn.relu(h) if b != 10 else h
    with block(3):
        return _trained(dt, h, y), _images(x, y, 784)


def transformer(dt: Any, block: Blocks) -> Built:
    """Two blocks of attention over 16 tokens of width 128, four heads, and their dense layers, trained."""
    tokens, width, heads = 16, 128, 4
    x, y = dt.placeholder(dt.float32, [None, tokens, width]), dt.placeholder(dt.int64, [None])

    def norm(h: Any) -> Any:
        mean = dt.reduce_mean(h, -1, keepdims=True)
        return (h - mean) * dt.math.rsqrt(dt.reduce_mean(dt.square(h - mean), -1, keepdims=True) + 1e-5)

    h = dt.reshape(x, [-1, width])
    for layer in range(2):
        with block(2 * layer):
            parts = dt.reshape(
                dt.matmul(norm(h), dt.Variable(_normal(width, 3 * width))), [-1, tokens, 3, heads, width // heads]
            )
            q, k, v = dt.unstack(dt.transpose(parts, [2, 0, 3, 1, 4]), axis=0)
            scores = dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5)
            mixed = dt.reshape(dt.transpose(dt.matmul(scores, v), [0, 2, 1, 3]), [-1, width])
            h = h + dt.matmul(mixed, dt.Variable(_normal(width, width)))
        with block(2 * layer + 1):
            up = dt.nn.relu(dt.matmul(norm(h), dt.Variable(_normal(width, 4 * width))))
            h = h + dt.matmul(up, dt.Variable(_normal(4 * width, width)))
    with block(3):
        logits = dt.matmul(dt.reduce_mean(dt.reshape(h, [-1, tokens, width]), 1), dt.Variable(_normal(width, 10)))
        return _trained(dt, logits, y), _images(x, y, tokens, width)


def lenet(dt: Any, block: Blocks) -> Built:
    """LeNet-5 with rectifiers, trained: two convolutions and three dense layers."""
    x, y = dt.placeholder(dt.float32, [None, 28, 28, 1]), dt.placeholder(dt.int64, [None])
    h = x
    for i, (shape, padding) in enumerate((((5, 5, 1, 6), "SAME"), ((5, 5, 6, 16), "VALID"))):
        with block(i):
            h = dt.nn.conv2d(h, dt.Variable(_normal(*shape) * 0.3), strides=1, padding=padding)
            h = dt.nn.max_pool(
                dt.nn.relu(dt.nn.bias_add(h, dt.Variable(np.zeros(shape[-1], np.float32)))), 2, 2, "VALID"
            )
    with block(2):
        h = dt.nn.relu(dt.matmul(dt.reshape(h, [-1, 400]), dt.Variable(_normal(400, 120))))
    with block(3):
        h = dt.nn.relu(dt.matmul(h, dt.Variable(_normal(120, 84))))
        return _trained(dt, dt.matmul(h, dt.Variable(_normal(84, 10))), y), _images(x, y, 28, 28, 1)


def embedding(dt: Any, block: Blocks) -> Built:
    """Four tables of 50,000 rows of 64, of each 20 rows a sample, their means in a dense layer, trained."""
    y, ids, means = dt.placeholder(dt.int64, [None]), [], []
    for i in range(4):
        with block(i):
            ids.append(dt.placeholder(dt.int64, [None, 20]))
            table = dt.Variable(dt.random.uniform([50_000, 64], -0.1, 0.1, seed=i))
            means.append(dt.reduce_mean(dt.nn.embedding_lookup(table, ids[-1]), 1))
    with block(0):
        h = dt.nn.relu(dt.matmul(dt.concat(means, 1), dt.Variable(_normal(256, 128))))
        fetches = _trained(dt, dt.matmul(h, dt.Variable(_normal(128, 10))), y)

    def feeds(batch: int) -> dict[Any, Any]:
        rng = np.random.default_rng(batch)
        return {y: np.arange(batch, dtype=np.int64) % 10, **{i: rng.integers(0, 50_000, (batch, 20)) for i in ids}}

    return fetches, feeds


def ps(dt: Any, block: Blocks) -> Built:
    """The demo's step: 64-256-256-10 with Adam. Its variables are on the two parameter servers, in four processes."""
    from dovetail.tools.demo.model import classifier, make_optimizer

    with block(-1):
        replica = classifier(make_optimizer())
    feeds = _images(replica.images, replica.labels, 64)
    return [replica.train_op, replica.loss, replica.global_step], feeds


def pipeline(dt: Any, block: Blocks) -> Built:
    """Four stages of two dense layers of 256 each, through which four parts of the batch go one after the other."""
    x = dt.placeholder(dt.float32, [None, 256])
    weights = []
    for stage in range(4):
        with block(stage):
            weights.append([dt.Variable(_normal(256, 256)) for _ in range(2)])
    ends = []
    for part in range(4):
        with block(0):
            h = x + 0.1 * part
        for stage in range(4):
            with block(stage):
                for w in weights[stage]:
                    h = dt.nn.relu(dt.matmul(h, w))
        with block(3):
            ends.append(dt.reduce_mean(h))
    with block(3):
        return [dt.math.add_n(ends)], lambda batch: {x: _normal(batch, 256)}


def wide(dt: Any, block: Blocks) -> Built:
    """Twelve branches from one input, of two to five layers and four widths, joined at the end."""
    x, ends = dt.placeholder(dt.float32, [None, 256]), []
    for b in range(12):
        with block(b):
            h, width = x, 256
            for k in range(2 + b % 4):
                n = (256, 384, 512, 320)[(b + k) % 4]
                h, width = dt.nn.relu(dt.matmul(h, dt.Variable(_normal(width, n)))), n
            ends.append(dt.nn.tanh(dt.matmul(h, dt.Variable(_normal(width, 128)))))
    with block(0):
        return [dt.reduce_mean(dt.math.add_n(ends))], lambda batch: {x: _normal(batch, 256)}


def tiny(dt: Any, block: Blocks) -> Built:
    """Four chains of 60 products with 8 x 8 matrices and sums along rows: many small kernels that cannot be one."""
    x, ends = dt.placeholder(dt.float32, [None, 8]), []
    for i in range(4):
        with block(i):
            h, w = x, dt.Variable(_normal(8, 8))
            for _ in range(60):
                h = dt.nn.tanh(dt.matmul(h, w))
                h = h - dt.reduce_mean(h, 0, keepdims=True)
            ends.append(dt.reduce_sum(h))
    with block(0):
        return [dt.math.add_n(ends)], lambda batch: {x: _normal(batch, 8)}


PROGRAMS: dict[str, Callable[[Any, Blocks], Built]] = {
    f.__name__: f for f in (mlp, transformer, lenet, embedding, ps, pipeline, wide, tiny)
}


def _blocks(dt: Any, program: str, processes: int) -> Blocks:
    """Which block is on which device."""
    if processes == 1:
        return lambda _: dt.device(None)
    if program == "ps":
        spec = dt.train.ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]})
        by_bytes = dt.train.GreedyLoadBalancingStrategy(2, dt.train.byte_size_load_fn)
        setter = dt.train.replica_device_setter(worker_device="/job:worker/task:0", cluster=spec, ps_strategy=by_bytes)
        return lambda _: dt.device(setter)
    return lambda number: dt.device(f"/job:worker/task:{number % processes}")


def median_seconds(run: Callable[[], Any]) -> float:
    """The median time of a step, of at least LEAST_STEPS and LEAST_S of them."""
    taken: list[float] = []
    while len(taken) < LEAST_STEPS or sum(taken) < LEAST_S:
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


class Program(NamedTuple):
    """A program that runs: its session, what it fetches, and a function from a batch size to what is fed."""

    session: Any
    fetches: Any
    feeds: Callable[[int], dict[Any, Any]]

    def seconds(self, batch: int) -> float:
        """The median time of a step."""
        fed = self.feeds(batch)
        self.session.warmup(self.fetches, fed)
        call = partial(self.session.make_callable(self.fetches, list(fed)), *fed.values())
        for _ in range(8):
            call()
        return median_seconds(call)


def _started(program: str, processes: int, stack: ExitStack) -> Program:
    import dovetail as dt

    target = ""
    if processes > 1:
        jobs = {"ps": 2, "worker": 2} if program == "ps" else {"worker": processes}
        target = stack.enter_context(dt.LocalCluster(jobs)).target("worker", 0)
    with dt.Graph().as_default() as graph:
        fetches, feeds = PROGRAMS[program](dt, _blocks(dt, program, processes))
        session = dt.Session(target, graph=graph)
        stack.callback(session.close)
        session.run(dt.global_variables_initializer())
    return Program(session, fetches, feeds)


def stepped(processes: int, batches: Sequence[int] = BATCHES) -> Iterator[tuple[str, int, float, Any]]:
    """(program, batch, measured seconds, plan for that batch) of all programs."""
    with ExitStack() as stack:
        programs = {name: _started(name, processes, stack) for name in PROGRAMS}
        cases = [(name, batch) for name in programs for batch in batches]
        rounds = [[programs[name].seconds(batch) for name, batch in cases] for _ in range(ROUNDS)]
        for (name, batch), *taken in zip(cases, *rounds, strict=True):
            session, fetches, feeds = programs[name]
            session.run(fetches, feeds(batch))
            yield name, batch, min(taken), session.last_plan


def _without_working_set(plan: Any) -> float:
    from dovetail.placer.simulate import device_times

    def alone(nodes: Any, launches: Any, machine: Any, working: float) -> Any:
        return device_times(nodes, launches, machine, 0.0)

    with mock.patch("dovetail.placer.simulate.device_times", alone):
        return float(plan.simulate(client=True).makespan)


def _without_cold_messages(plan: Any) -> float:
    with mock.patch("dovetail.placer.search.from_graph.COLD_BYTES", math.inf):
        return float(plan.simulate(client=True).makespan)


def _without_fusion(plan: Any) -> float:
    with mock.patch("dovetail.placer.simulate.LAUNCHED", 0):
        return float(plan.simulate(client=True).makespan)


def _without(plan: Any, **parts: Any) -> float:
    """Seconds by the clock without parts of its problem."""
    from dovetail.placer.simulate import step_of, timeline

    problem, assignment, names, devices = step_of(plan, client=True)
    return float(timeline(replace(problem, **parts), assignment, names, devices, in_order=True).makespan)


MODEL: dict[str, Callable[[Any], float]] = {
    "kernels as they are fused": _without_fusion,
    "the cache that holds the working set": _without_working_set,
    "what the client does": lambda plan: float(plan.simulate().makespan),
    "cores that tasks share": partial(_without, host=None, used=None),
    "messages of tasks that compute": _without_cold_messages,
    "waking tasks that wait": partial(_without, wake=0.0),
}
"""Parts of the model -> the predicted step without them."""
_errors: dict[str, list[float]] = {name: [] for name in ("", *MODEL)}


def measured(how: str, quick: bool) -> Iterator[Row]:
    """The rows of all programs: the measured step beside the predicted one, and the error."""
    for program, batch, seconds, plan in stepped(PROCESSES[how], BATCHES[:2] if quick else BATCHES):
        predicted = plan.simulate(client=True).makespan
        for name, error in _errors.items():
            error.append(abs((MODEL[name](plan) if name else predicted) / seconds - 1))
        yield row(f"{program}, {how}, batch {batch}", "µs", seconds * 1e6, predicted * 1e6, "predicted")


def ablated(quick: bool) -> Iterator[Row]:
    """The median error without each part of the model, over the steps that were measured in this run."""
    median = {name: statistics.median(error) * 100 for name, error in _errors.items() if error}
    for name in MODEL if median else ():
        yield row(f"median error: {name}", "%", median[""], median[name], "without")


if __name__ == "__main__":
    main(
        "Predicted and measured step times",
        {how: partial(measured, how) for how in PROCESSES} | {"the model": ablated},
    )
