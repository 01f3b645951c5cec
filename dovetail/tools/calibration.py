"""Measures kernels, launches and messages on a machine, for predicted times, with Dovetail's own compiler and runtime.

`calibrate` runs steps in this process, each with kernels of one kind and size, and small steps on a cluster of processes. Another kernel of
the same step consumes the output of a measured kernel, so that memory is reused as in most steps. The time of a kernel is the time of the
step minus the time of the same step without the kernel, or with fewer of them, and minus the time of a launch. Each time is the lower
quartile of repeated runs, because other work on the machine can only make runs slower. The number of cores that a kernel keeps busy is the
CPU time of its steps divided by the elapsed time. `placer/cost/launches.py` defines the kinds of kernels and their work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import dovetail as dt

from ..graph.core.interpreter_state import own_cores
from ..placer.cluster.calibration import Calibration, Point, processor, release
from ..placer.cost.launches import BATCHED, CONVOLVED, REDUCED, SIDES, TRANSPOSED, product_kind

SAMPLE_S, WARM_S, MIN_RUNS = 0.02, 0.02, 7
"""Minimum duration of a measurement and of its warm-up, in seconds, and minimum number of its runs."""
MESSAGES_S = 0.2
"""Duration of a measurement of several tasks, in seconds. It is longer because the time at which a core wakes up varies."""
ROUNDS = 4
"""Number of repetitions of all measurements. The fastest one counts, because other work on the machine slows down whole rounds."""
FEW, COPIES = 32 * 1024, 16
"""A kernel of at most FEW elements runs COPIES times in a step."""
FEW_OPERATIONS = 1e6
"""A kernel of at most this many operations also runs COPIES times."""
CHAIN, FAN, RALLY = 128, 32, 17
"""Lengths of chains of kernels: in a long step, with a variable per kernel, and between two tasks."""
LARGE_MESSAGE = 512 * 1024
"""Size in bytes of the larger messages between two tasks."""
HOPS, HOP_PRODUCTS, WIDTH, SENT = 8, 4, 512, 8
"""Number of hops between tasks that wait for each other, products per hop, rows of the products' weights (1 MiB, which fills a cache), and
number of messages of a task that computes."""
BLOCK = 256
"""Rows and columns of the matrices that a walk over memory reads."""
KIB, MIB = 1 << 10, 1 << 20


class Case(NamedTuple):
    """A step that measures a kernel.

    Attributes:
        kind: the kind of the kernel.
        work: its work, as defined in `placer/cost/launches.py`.
        nodes: the nodes of the step.
        beside: the nodes of the same step without the kernel; empty: an empty step.
        copies: number of runs of the kernel in the step.
    """

    kind: str
    work: float
    nodes: Sequence[Any]
    beside: Sequence[Any] = ()
    copies: int = 1


class Timed(NamedTuple):
    """The time of a step in seconds, and the number of cores that this process kept busy."""

    seconds: float
    cores: float


def timed(run: Callable[[], Any], sample_s: float = SAMPLE_S, rank: float = 0.25) -> Timed:
    """Runs a step repeatedly. `rank`: the quantile of its times to return; a low one excludes disturbed runs."""
    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        run()
    taken: list[float] = []
    began, busy = time.perf_counter(), time.process_time()
    while len(taken) < MIN_RUNS or sum(taken) < sample_s:
        at = time.perf_counter()
        run()
        taken.append(time.perf_counter() - at)
    return Timed(sorted(taken)[int(rank * len(taken))], (time.process_time() - busy) / (time.perf_counter() - began))


def calibrate(target: str = "", tell: Callable[[str], None] = lambda text: None) -> Calibration:
    """Measures this machine.

    Args:
        target: target of a running cluster whose messages are measured; '': start four processes for it.
        tell: called with a message before each measurement.

    Raises:
        OpError: a step failed.
        ValueError: the cluster at `target` has one task.
    """
    overheads = _in_process()
    kernels: dict[str, list[Point]] = {}
    for number, family in enumerate(FAMILIES, 1):
        tell(f"kernels, {number} of {len(FAMILIES)}: {family.__name__.strip('_')}")
        for kind, point in _kernels(family, overheads):
            kernels.setdefault(kind, []).append(point)
    points = {kind: tuple(sorted(found)) for kind, found in kernels.items()}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    machine = Calibration(processor(), own_cores(), now, release(), points, overheads, 1.0)
    moved, _ = machine.at("stream", 2.0 * LARGE_MESSAGE)
    if target:
        tell(f"the cluster at {target}")
        shared, more = _messages(target, moved)
        tcp_byte = more["shared byte"]
    else:
        tell("four processes")
        with dt.LocalCluster({"worker": 4}) as cluster:
            shared, more = _messages(cluster.target("worker", 0), moved)
        tell("two processes without shared memory")
        with dt.LocalCluster({"worker": 2}, environment={"DOVETAIL_SHARED_MEMORY_MB": "0"}) as cluster:
            tcp_byte = _messages(cluster.target("worker", 0), moved)[1]["shared byte"]
    return replace(machine, overheads={**overheads, **more, "tcp byte": tcp_byte}, shared=shared)


# --- this process ---------------------------------------------------------------------------------------------------------


def _in_process() -> dict[str, float]:
    """Measures the overheads of steps and launches in this process."""
    with dt.Graph().as_default(), dt.Session() as session:
        x, rows = dt.placeholder(dt.float32, [1, 8]), dt.placeholder(dt.float32, [None])
        w = _variable(8, 8)
        alone = [dt.matmul(x, w).op, dt.reduce_max(x).op]  # too few kernels for a region, so Python calls them

        def chain(weights: Sequence[Any]) -> Any:
            end = x
            for each in weights:
                end = dt.nn.tanh(dt.matmul(end, each))
            return end.op

        few, many = chain([w] * 2), chain([w] * (2 + CHAIN // 2))
        repeated, variables = chain([w] * FAN), chain([_variable(8, 8) for _ in range(FAN)])
        session.run(dt.global_variables_initializer())

        def seconds(fetch: Any, fed: Any, value: Any) -> float:
            session.warmup(fetch, {fed: value})
            call = session.make_callable(fetch, [fed])
            return timed(lambda: call(value)).seconds

        one = np.zeros((1, 8), np.float32)
        step, shortest = seconds(dt.no_op(), x, one), seconds(few, x, one)
        launch = max(seconds(many, x, one) - shortest, 0.0) / CHAIN
        variable = max(seconds(variables, x, one) - seconds(repeated, x, one), 0.0) / (FAN - 1)
        call = max(seconds(alone, x, one) - step, 0.0) / len(alone) - launch
        much = seconds(rows[:1] + 1.0, rows, np.zeros(2 * MIB, np.float32)) - seconds(rows[:1] + 1.0, rows, one[0])
    return {
        "step": step, "launch": launch, "region": max(shortest - step - variable - 4 * launch, 0.0),
        "call": max(call, launch), "variable": variable, "fed byte": max(much, 0.0) / (8 * MIB),
    }  # fmt: skip


def _kernels(family: Callable[[], Iterator[Case]], overheads: Mapping[str, float]) -> Iterator[tuple[str, Point]]:
    """Measures a family of kernels. Yields pairs of kind and point."""
    with dt.Graph().as_default(), dt.Session() as session:
        cases = list(family())
        session.run(dt.global_variables_initializer())
        steps = [[list(nodes) for nodes in (case.nodes, case.beside) if nodes] for case in cases]
        for nodes in (nodes for both in steps for nodes in both):
            session.warmup(nodes)
        calls = [[session.make_callable(nodes) for nodes in both] for both in steps]
        rounds = [[[timed(call) for call in both] for both in calls] for _ in range(ROUNDS)]
        for case, *taken in zip(cases, *rounds, strict=True):
            found, *rest = map(min, zip(*taken, strict=True))
            beside = rest[0].seconds if rest else overheads["step"] + overheads["region"]
            seconds = max((found.seconds - beside) / case.copies - overheads["launch"], 2e-8)
            yield case.kind, Point(case.work, seconds, min(max(found.cores, 1.0), own_cores()))


def _variable(*shape: int) -> Any:
    return dt.Variable(dt.random.uniform(shape, -0.5, 0.5, seed=1))


def _summed(made: Any) -> Any:
    """Returns a product that consumes a kernel's output, and is not fused with the kernel."""
    width = min(made.shape.num_elements(), 64)
    return dt.reduce_max(dt.matmul(dt.reshape(made, [-1, width]), dt.ones([width, 1]))).op


def _elementwise() -> Iterator[Case]:
    for size in (4 * KIB, 64 * KIB, MIB, 8 * MIB, 64 * MIB):
        xs = [_variable(size // 8) for _ in range(COPIES if size <= 8 * FEW else 2)]
        yield Case("stream", size, [_summed(x * 1.5 + 0.5) for x in xs], [_summed(x) for x in xs], len(xs))
    for count in (KIB, 16 * KIB, MIB):
        xs = [_variable(count) for _ in range(COPIES if count <= FEW else 2)]
        yield Case(
            "function",
            count,
            [_summed(dt.nn.tanh(x * 1.5 + 0.5)) for x in xs],
            [_summed(x * 1.5 + 0.5) for x in xs],
            len(xs),
        )
        if count < MIB:
            rows, each = [_variable(count // 8, 8) for _ in range(COPIES)], _variable(8)
            yield Case(
                "function in short rows",
                count,
                [_summed(dt.nn.tanh(x * each)) for x in rows],
                [_summed(x * each) for x in rows],
                len(rows),
            )
        yield _several("uniform", count, partial(dt.random.uniform, [count]))
        yield _several("normal", count, partial(dt.random.normal, [count]))


def _walks() -> Iterator[Case]:
    for size in (MIB // 4, MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB):
        weights = [_variable(BLOCK, BLOCK) for _ in range(size // (4 * BLOCK * BLOCK))]
        passes = max(COPIES // len(weights), 1)
        row = _variable(1, BLOCK)
        for w in weights * passes:
            row = dt.matmul(row, w)
        yield Case("walk", size, [dt.reduce_max(row).op], copies=passes)


def _products() -> Iterator[Case]:
    for rows, depth, columns in product(SIDES, repeat=3):
        yield _repeated(
            product_kind(rows, depth, columns), 2.0 * rows * depth * columns, _operands(rows, depth, columns)
        )
    for rows in (16, 32, 64, 128, 256):
        yield _repeated("cores", 2.0 * rows * 256 * 256, _operands(rows, 256, 256))
    for side in TRANSPOSED:
        for depth in (side, 16 * side):
            yield _repeated(f"transposed {side}", 2.0 * depth * 512 * side, partial(_transposed, depth, side))
    for small in BATCHED:
        for batch in (4, 64, 1024):
            yield _several(f"batch {small}", 2.0 * batch * small**3, partial(_product, *[(batch, small, small)] * 2))


def _operands(rows: int, depth: int, columns: int) -> Callable[[], Any]:
    """Returns a function that builds products with the same larger operand, so that caches hold it."""
    if columns >= rows:
        kept = _variable(depth, columns)
        return lambda: dt.matmul(_variable(rows, depth), kept)
    kept = _variable(rows, depth)
    return lambda: dt.matmul(kept, _variable(depth, columns))


def _repeated(kind: str, work: float, make: Callable[[], Any]) -> Case:
    """Measures a kernel by the difference between steps with many and with few of it. Both have the same number of consumers."""
    made, few = _made(work, make)
    given = [_variable(*made[0].shape.as_list()) for _ in made]
    more, fewer = ([dt.reduce_max(y).op for y in both] for both in (made + given[:few], made[:few] + given))
    return Case(kind, work, more, fewer, len(made) - few)


def _several(kind: str, work: float, make: Callable[[], Any]) -> Case:
    """Measures a kernel without a consumer, by the difference between steps with many and with few of it."""
    made, few = _made(work, make)
    nodes = [y.op for y in made]
    return Case(kind, work, nodes, nodes[:few], len(nodes) - few)


def _made(work: float, make: Callable[[], Any]) -> tuple[list[Any], int]:
    """Returns the outputs of the kernels of a large step, and the number of kernels of the small step."""
    first = make()
    size = np.prod(first.shape.as_list())
    few, many = (COPIES, 3 * COPIES) if work <= FEW_OPERATIONS and size <= FEW else (2, 6) if size <= MIB else (2, 4)
    return [first] + [make() for _ in range(many - 1)], few


def _transposed(depth: int, side: int) -> Any:
    return dt.matmul(_variable(depth, 512), _variable(depth, side), transpose_a=True)


def _product(a: Sequence[int], b: Sequence[int]) -> Any:
    return dt.matmul(_variable(*a), _variable(*b))


def _reductions() -> Iterator[Case]:
    for side in REDUCED:
        for count in (512, 8 * KIB, 64 * KIB, MIB):
            shape = (count // side, side)
            for axis, which in ((-1, "last"), (0, "first")):
                copies = COPIES if count <= 2 * FEW else 1
                made = [_summed(dt.reduce_sum(_variable(*shape), axis)) for _ in range(copies)]
                beside = [_summed(_variable(count // side if axis else side)) for _ in made]
                yield Case(f"reduce {which} {side}", count, made, beside, copies)


def _convolution(batch: int, high: int, channels: int, taps: int, filters: int, which: int) -> Any:
    """Builds a convolution (0), or its gradient for its input (1) or its filter (2)."""
    x, w = _variable(batch, high, high, channels), _variable(taps, taps, channels, filters)
    y = dt.nn.conv2d(x, w, strides=1, padding="SAME")
    return y if which == 0 else dt.gradients(y, [x, w], grad_ys=_variable(batch, high, high, filters))[which - 1]


def _numbers(count: int, most: int) -> Any:
    return dt.Variable(dt.random.uniform([count], 0, most, dt.int64, seed=1))


def _lost(batch: int) -> Any:
    labels = _numbers(batch, 10)
    return dt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=_variable(batch, 10))


def _pool(batch: int, gradient: bool) -> Any:
    x = _variable(batch, 28, 28, 6)
    y = dt.nn.max_pool(x, 2, 2, "VALID")
    return dt.gradients(y, x, grad_ys=_variable(batch, 14, 14, 6))[0] if gradient else y


def _convolutions() -> Iterator[Case]:
    for small, (high, taps, channels) in zip(CONVOLVED, ((28, 5, 1), (14, 5, 6), (14, 3, 64)), strict=True):
        for batch in (1, 64) if small == CONVOLVED[-1] else (1, 64, 512):
            work = 2.0 * batch * high * high * taps * taps * channels * small
            for number, kind in enumerate(("convolution", "input gradient", "filter gradient")):
                yield _several(
                    f"{kind} {small}", work, partial(_convolution, batch, high, channels, taps, small, number)
                )
    for batch in (1, 64, 1024):
        yield _several("cross entropy", 10.0 * batch, partial(_lost, batch))
    for batch in (1, 64, 512):
        yield _several("pool", 4.0 * batch * 28 * 28 * 6, partial(_pool, batch, gradient=False))
        yield _several("pool gradient", 4.0 * batch * 28 * 28 * 6, partial(_pool, batch, gradient=True))


def _gathered(table: Any, rows: int) -> Any:
    return dt.gather(table, _numbers(rows, 50_000))


def _rows_and_updates() -> Iterator[Case]:
    table = _variable(50_000, 64)
    descent = dt.train.GradientDescentOptimizer(0.01)
    for rows in (16, 1024, 16 * KIB):
        ids = _numbers(rows, 50_000)
        yield _repeated("gather", rows * 256.0, partial(_gathered, table, rows))
        changes = dt.IndexedSlices(_variable(rows, 64), ids, dt.constant([50_000, 64], dt.int64))
        yield Case("scatter", rows * 256.0, [descent.apply_gradients([(changes, table)])])
    for size in (4 * KIB, 256 * KIB, 4 * MIB, 32 * MIB):
        for kind, optimizer in (("update", descent), ("adam", dt.train.AdamOptimizer(0.01))):
            copies = COPIES if size <= 4 * FEW else 1
            pairs = [(_variable(size // 4), _variable(size // 4)) for _ in range(copies)]
            yield Case(kind, size, [optimizer.apply_gradients(pairs)], copies=copies)


FAMILIES: Sequence[Callable[[], Iterator[Case]]] = (
    _elementwise,
    _walks,
    _products,
    _reductions,
    _convolutions,
    _rows_and_updates,
)


# --- several processes ----------------------------------------------------------------------------------------------------


def _messages(target: str, moved: float) -> tuple[float, dict[str, float]]:
    """Measures the cores that tasks keep busy together, and the overheads of steps of several tasks and their messages.

    `moved`: time of an element-wise kernel that reads and writes `LARGE_MESSAGE` bytes, in seconds.
    """
    with dt.Graph().as_default() as graph, dt.Session(target, graph=graph) as session:
        devices = list(dict.fromkeys(str(d.name) for d in session.list_devices() if d.device_type == "CPU"))
        if len(devices) < 2:
            raise ValueError(f"The cluster at {target} has one task, but messages need two")
        here, there = devices[:2]
        x, big = dt.placeholder(dt.float32, []), dt.placeholder(dt.float32, [None])
        with dt.device(here):
            empty, fed = x + 1.0, big[:1] + 1.0
            mine = [_variable(16) for _ in range(8)]
        with dt.device(there):
            theirs = [_variable(16) for _ in range(8)]
        everywhere = []
        for device in devices:
            with dt.device(device):
                everywhere.append((x * 2.0).op)
        weights = {}
        for device in devices:
            with dt.device(device):
                weights[device] = _variable(WIDTH, WIDTH)
        with dt.device(here):
            alone = hops = dt.fill([1, WIDTH], x)
        for i in range(HOPS):  # the products are too small to use several threads, which would sleep in between
            with dt.device(devices[(i + 1) % len(devices)]):
                for _ in range(HOP_PRODUCTS):
                    hops = dt.nn.relu(dt.matmul(hops, weights[devices[(i + 1) % len(devices)]]))
            with dt.device(here):
                for _ in range(HOP_PRODUCTS):
                    alone = dt.nn.relu(dt.matmul(alone, weights[here]))
        ends = []
        with dt.device(here):
            sender = dt.fill([1, WIDTH], x)
            for _ in range(SENT):  # far apart in time, so that each is sent as a message
                for _ in range(4 * HOP_PRODUCTS):
                    sender = dt.nn.relu(dt.matmul(sender, weights[here]))
                ends.append(sender[:, :4])
            kept = dt.math.add_n(ends)
        with dt.device(there):
            sent = dt.math.add_n(ends)
        at_once = []
        for device in devices:
            with dt.device(device):
                row = dt.fill([1, WIDTH], x)
                for _ in range(2 * HOPS * COPIES):
                    row = dt.nn.relu(dt.matmul(row, weights[device]))
                at_once.append(row.op)
        played, rallies = x, []
        for value in (x, dt.fill([LARGE_MESSAGE // 4], x)):
            for i in range(RALLY):
                with dt.device(devices[i % 2]):
                    value = value + 1.0
            rallies.append(value.op)
        with dt.device(here):
            for _ in range(RALLY):
                played = played + 1.0
            reads = [[dt.reduce_sum(v * x).op for v in some] for some in (mine, theirs)]
            changes = [[v.assign_add(x * dt.ones([16])).op for v in some] for some in (mine, theirs)]
        session.run(dt.global_variables_initializer())

        fetches = {
            "empty": empty.op, "everywhere": everywhere, "rally": rallies[0], "large rally": rallies[1], "played": played.op,
            "hops": hops.op, "alone": alone.op, "sent": sent.op, "kept": [kept.op, everywhere[1]],
            "by itself": at_once[0], "at once": at_once,
            "own read": reads[0], "read": reads[1], "own update": changes[0], "update": changes[1],
        }  # fmt: skip
        steps: dict[str, tuple[Any, Any, Any]] = {name: (fetch, x, 1.0) for name, fetch in fetches.items()}
        steps["fed"] = fed.op, big, np.zeros(2 * MIB, np.float32)
        for fetch, placeholder, number in steps.values():
            session.warmup(fetch, {placeholder: number})
        calls = {name: partial(session.make_callable(fetch, [p]), number) for name, (fetch, p, number) in steps.items()}
        rounds = [{name: timed(call, MESSAGES_S, 0.5).seconds for name, call in calls.items()} for _ in range(ROUNDS)]
    took = {name: min(seconds[name] for seconds in rounds) for name in calls}

    def further(more: str, fewer: str) -> float:
        return max(took[more] - took[fewer], 0.0)

    transfer = further("rally", "played") / (RALLY - 1)  # the receivers are awake, because they have just sent
    message = further("sent", "kept") / SENT
    # Each task computes, and then waits longer for its next input, as in typical steps.
    asleep = further("hops", "alone") / HOPS
    # The operating system decides anew which tasks share a core. So this is a mean, and not the fastest round.
    shared = statistics.fmean(
        len(devices) * (s["by itself"] - s["empty"]) / max(s["at once"] - s["everywhere"], 1e-9) for s in rounds
    )
    return min(max(shared, 1.0), float(own_cores())), {
        "remote step": took["empty"],
        "remote fed byte": further("fed", "empty") / (8 * MIB),
        "task": further("everywhere", "empty") / (len(devices) - 1),
        "transfer": transfer,
        "message": message,
        "wake": max(asleep - transfer / 2 - max(message, transfer / 2), 0.0),
        "shared byte": max(further("large rally", "rally") / (RALLY - 1) - moved, 0.0) / LARGE_MESSAGE,
        "read": further("read", "own read") / 8,
        "update": further("update", "own update") / 8,
    }
