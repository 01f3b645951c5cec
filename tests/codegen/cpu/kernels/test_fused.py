"""Fused kernels, compiled, against the reference evaluator: chosen graphs, and random ones."""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_interpreter import Interpreter, execution_order

import dovetail as dt
from dovetail.codegen.check import agree
from dovetail.codegen.cpu.backend import NumbaBackend
from dovetail.codegen.cpu.kernels.fused import CpuFusedKernel, parts_for
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.ir.fused_kernel import FusedKernel
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.pipeline import run_graph_passes
from dovetail.codegen.target import REDUCED_PIECE
from dovetail.graph.core.errors import InternalError
from dovetail.graph.core.graph import Node

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")

SIZES = (0, 1, 2, 7, 64, 1009)  # of the axis that is not known before: none, one, even, prime, large


def partition_of(fetches: Sequence[Any], feeds: Sequence[Any]) -> PartitionGraph:
    order = execution_order([t.op for t in fetches], dict.fromkeys(feeds))
    nodes = [n for n in order if n.type != "Placeholder"]
    return PartitionGraph(
        "/device:CPU:0", tuple(nodes), tuple((t.name, t) for t in feeds), tuple((t.name, t) for t in fetches)
    )


def no_context(node: Node) -> Any:
    """For nodes without state."""
    pytest.fail(f"{node.name} has state")


class Fused:
    """Graph outputs by way of fused kernels, like a program but without one."""

    def __init__(self, fetches: Sequence[Any], feeds: Sequence[Any]) -> None:
        self.fetches = fetches
        backend = NumbaBackend(fuse_small=True, compile_first=True, threads=2)
        self.steps: list[tuple[Any, Sequence[Any], Sequence[Any]]] = []
        self.kernels: list[CpuFusedKernel] = []
        for step in run_graph_passes(partition_of(fetches, feeds), backend, no_context).steps:
            if isinstance(step, FusedKernel):
                kernel = backend.bind(backend.choose(step), no_context)
                self.kernels.append(kernel)
                self.steps.append((kernel, (*step.inputs, *step.shapes), step.outputs))
            else:
                assert isinstance(step, Node)
                if step.type == "Const":
                    self.steps.append((lambda value=step.attrs["value"]: value, (), step.outputs))
                else:
                    self.steps.append((backend.bind(backend.choose(step), no_context), step.inputs, step.outputs))

    def run(self, feeds: Mapping[Any, Any]) -> list[Any]:
        values = dict(feeds)
        with np.errstate(all="ignore"):
            for function, taken, made in self.steps:
                result = function(*[values[t] for t in taken])
                for t, v in zip(made, result if len(made) != 1 else (result,), strict=True):
                    values[t] = v
        return [values[t] for t in self.fetches]


def numbers(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Any:
    if dtype.np.kind == "f":
        return rng.standard_normal(shape).astype(dtype.np)
    if dtype.np.kind == "b":
        return rng.random(shape) < 0.5
    return rng.integers(0 if dtype.is_unsigned else -100, 100, shape).astype(dtype.np)


def compare(fetches: Sequence[Any], feeds: Sequence[Any], seed: int = 0, sizes: Sequence[int] = SIZES) -> Fused:
    """Check all sizes of the unknown axis; the feeds' shapes have None for it."""
    fused = Fused(fetches, feeds)
    rng = np.random.default_rng(seed)
    for size in sizes:
        values = {t: numbers(rng, [size if d is None else d for d in t.dims], t.dtype) for t in feeds}
        expected = Interpreter(fetches[0].graph, check=True).run(list(fetches), values)
        for t, mine, theirs in zip(fetches, fused.run(values), expected, strict=True):
            assert np.asarray(mine).dtype == np.asarray(theirs).dtype
            assert agree(mine, theirs), f"{t} at size {size}:\n{mine}\n{theirs}"
    return fused


# --- chosen graphs ---------------------------------------------------------------------------------------------------

FLOAT_CASES: dict[str, Callable[[Any], Any]] = {
    "softmax": dt.nn.softmax,
    "log softmax": dt.nn.log_softmax,
    "by hand": lambda x: dt.exp(x - dt.reduce_max(x, -1, keepdims=True)) / dt.reduce_sum(dt.exp(x), -1, keepdims=True),
    "layer norm": lambda x: (
        (x - dt.reduce_mean(x, -1, keepdims=True))
        * dt.rsqrt(dt.reduce_mean(dt.square(x - dt.reduce_mean(x, -1, keepdims=True)), -1, keepdims=True) + 1e-5)
    ),
    "columns": lambda x: (
        (x - dt.reduce_mean(x, 0)) / dt.sqrt(dt.reduce_mean(dt.square(x - dt.reduce_mean(x, 0)), 0) + 1e-3)
    ),
    "everything": lambda x: dt.reduce_sum(dt.tanh(x)) + 1.0,
    "gelu": dt.nn.gelu,
    "activations": lambda x: dt.nn.elu(x) + dt.nn.selu(x) * dt.nn.softplus(x) + dt.nn.softsign(x) - dt.nn.relu6(x),
    "leaky": lambda x: dt.nn.leaky_relu(x) * 2.0,
    "extremes": lambda x: dt.reduce_max(x, -1) * dt.reduce_min(x * 2.0, -1),
    "product": lambda x: dt.reduce_prod(dt.tanh(x) + 1.5, -1),
    "rounding": lambda x: dt.floor(x) + dt.ceil(x * 3.0) * dt.round(x * 2.5) - dt.sign(x),
    "powers": lambda x: x**3 + x**2.0,
    "not a number": lambda x: dt.where_v2(dt.is_nan(dt.log(x)), dt.zeros_like(x), dt.log(x)),
    "clipped": lambda x: dt.clip_by_value(x, -0.5, 0.5) * 2.0,
}


# In float64, one case for each function and each way of reducing: the others have the same loops.
FLOAT64_CASES = [
    "softmax", "columns", "everything", "gelu", "activations", "product", "rounding", "powers", "not a number",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, dt.float32) for name in FLOAT_CASES), *((name, dt.float64) for name in FLOAT64_CASES)],
    ids=lambda v: v if isinstance(v, str) else v.name,
)
def test_floats(name: str, dtype: Any) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dtype, [None, 13])
        fused = compare([FLOAT_CASES[name](x)], [x])
    assert fused.kernels


@pytest.mark.parametrize("dtype", [dt.int8, dt.int32, dt.int64, dt.uint8, dt.uint32, dt.uint64], ids=lambda t: t.name)
def test_integers_wrap_around(dtype: Any) -> None:
    with dt.Graph().as_default():
        x, y = dt.placeholder(dtype, [None, 5]), dt.placeholder(dtype, [None, 5])
        z = (x * x * y - x) * (y + 100) - abs(x) + dt.maximum(x, y) - dt.minimum(x, -y)
        fused = compare([z, dt.reduce_sum(z, 1), dt.reduce_max(z, 1)], [x, y])
    assert len(fused.kernels) == 1


def test_conditions_and_casts() -> None:
    with dt.Graph().as_default():
        x, c = dt.placeholder(dt.float32, [None, 6]), dt.placeholder(dt.bool, [None, 6])
        both = dt.logical_and(c, x > 0.1) | dt.logical_not(dt.equal(x, x))
        chosen = dt.where_v2(both, dt.cast(dt.cast(x * 9.0, dt.int32), dt.float32), dt.cast(c, dt.float32))
        fused = compare([both, chosen, dt.reduce_any(both, 1), dt.reduce_all(both, 1)], [x, c])
    assert len(fused.kernels) == 1


def test_a_loss_and_its_gradient() -> None:
    with dt.Graph().as_default():
        x, labels = dt.placeholder(dt.float32, [None, 11]), dt.placeholder(dt.float32, [None, 11])
        h = dt.nn.gelu(x, approximate=True)
        loss = dt.reduce_mean(dt.nn.softmax_cross_entropy_with_logits_v2(labels=dt.nn.softmax(labels), logits=h))
        (gradient,) = dt.gradients(loss, [x])
        compare([loss, gradient], [x, labels], sizes=(1, 7, 64))


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16], ids=lambda d: d.name)
def test_short_rows(dtype: Any) -> None:
    """Several are worked on at a time: vectors of their first elements, of their second ones, and so on."""
    with dt.Graph().as_default():
        x = dt.placeholder(dtype, [None, 20])
        fused = compare([dt.nn.softmax(x), dt.nn.log_softmax(x)], [x], sizes=(0, 1, 511, 512, 513, 1300))
        assert all("for at in range(lo, hi, 512)" in k.text for k in fused.kernels)
        # Only a row's own costly number, the logarithm of its sum, is worth it.
        along = compare([dt.nn.softmax(x)], [x], sizes=(0, 1, 511))
        assert not any("for at in range(lo, hi, 512)" in k.text for k in along.kernels)
        y = dt.placeholder(dtype, [None, 3, 4])
        compare([dt.reduce_sum(dt.exp(y), [1, 2])], [y], sizes=(0, 1, 700))
        compare([dt.argmax(y, 2), y - dt.reduce_max(y, 2, keepdims=True)], [y], sizes=(1, 700))
        z = dt.placeholder(dtype, [5, None, 7])  # rows behind two axes
        compare([dt.nn.softmax(z)], [z], sizes=(0, 1, 600))


@pytest.mark.parametrize(
    ("row", "dtype"), [(2, dt.float16), (7, dt.float32), (10, dt.float16), (15, dt.float32)], ids=str
)
def test_rows_that_are_written_out(row: int, dtype: Any) -> None:
    with dt.Graph().as_default():
        x, b = dt.placeholder(dtype, [None, row]), dt.placeholder(dtype, [row])
        mean = dt.reduce_mean(x, 1, keepdims=True)
        fused = compare([dt.nn.softmax(x), dt.reduce_max(x, 1), (x - mean) * 2.0], [x], sizes=(0, 1, 100))
        assert all(f"n1 = {row}" in k.text and f"i1 = {row - 1}" in k.text for k in fused.kernels)
        assert f"i1 = {row - 1}" in compare([dt.tanh(x + b)], [x, b], sizes=(0, 1, 100)).kernels[0].text


def test_bias_and_its_gradient() -> None:
    with dt.Graph().as_default():
        x, b = dt.placeholder(dt.float32, [None, 4, 6]), dt.placeholder(dt.float32, [6])
        y = dt.nn.relu(dt.nn.bias_add(x, b))
        (gradient,) = dt.gradients(dt.reduce_sum(dt.square(y)), [b])
        compare([y, gradient], [x, b])


def test_nan_and_infinities_come_through() -> None:
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [3, None])
        y = [
            dt.nn.softmax(x),
            dt.reduce_max(x * 1.0, 1),
            dt.reduce_sum(x + 0.0, 1),
            dt.maximum(x, 0.0) * 2.0,
            dt.tanh(x) + 1.0,
        ]
        fused = Fused(y, [x])
        value = np.full((3, 40), 1, np.float32)
        value[0, 7], value[1, 8], value[1, 9], value[2] = np.nan, np.inf, -np.inf, -np.inf
        expected = Interpreter(graph).run(y, {x: value})
        for mine, theirs in zip(fused.run({x: value}), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_long_sum_is_as_accurate_as_numpys() -> None:
    value = np.random.default_rng(0).random(3_000_001).astype(np.float32)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None])
        total = Fused([dt.reduce_sum(x * 1.0)], [x]).run({x: value})[0]
    exact = value.astype(np.float64).sum()
    assert abs(float(total) - exact) <= 2 * abs(float(value.sum()) - exact) + np.spacing(np.float32(exact))


def test_strided_and_read_only_inputs() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, None])
        fused = Fused([x * 2.0 + 1.0], [x])
        value = np.arange(60, dtype=np.float32).reshape(6, 10)
        for view in (value.T, value[::2], value[:, 1::3], value[::-1]):
            np.testing.assert_array_equal(fused.run({x: view})[0], view * 2 + 1)
        value.flags.writeable = False
        np.testing.assert_array_equal(fused.run({x: value})[0], value * 2 + 1)


def test_the_result_does_not_depend_on_the_number_of_threads() -> None:
    value = np.random.default_rng(1).standard_normal((301, 4001)).astype(np.float32)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, None])
        for y in (dt.nn.softmax(x), dt.reduce_sum(dt.tanh(x), 0), dt.reduce_sum(dt.tanh(x), 1)):
            (group,) = [s for s in fuse(partition_of([y], [x]), small=True).steps if isinstance(s, FusedKernel)]
            results = [CpuFusedKernel(group, threads=n, compile_first=True)(*[value] * len(group.inputs), *[
                t.op.attrs["value"] for t in group.shapes
            ]) for n in (1, 2, 3)]  # fmt: skip
            sized = group.sized([value.shape], {})
            assert sized is not None
            _, parts = parts_for(group.loops, CpuFusedKernel(group).source.schedule, sized, 3)
            assert parts > 1
            for other in results[1:]:
                np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int32, dt.bfloat16], ids=lambda d: d.name)
def test_all_there_is_is_reduced_in_pieces_that_threads_share(dtype: Any) -> None:
    rng = np.random.default_rng(2)
    with dt.Graph().as_default():
        x = dt.placeholder(dtype, [None])
        y = x * x - x
        fetches = [dt.reduce_sum(y), dt.reduce_max(y), dt.reduce_min(x * y), dt.reduce_any(y > x), y]
        (group,) = [s for s in fuse(partition_of(fetches, [x]), small=True).steps if isinstance(s, FusedKernel)]
        for size in (0, 1, REDUCED_PIECE - 1, REDUCED_PIECE, REDUCED_PIECE + 1, 10 * REDUCED_PIECE + 5):
            value = numbers(rng, [size], dtype)
            results = [CpuFusedKernel(group, threads=n, compile_first=True)(value) for n in (1, 2, 3)]
            sized = group.sized([value.shape], {})
            assert sized is not None
            _, parts = parts_for(group.loops, CpuFusedKernel(group).source.schedule, sized, 3)
            assert parts > 1 or size <= REDUCED_PIECE + 1
            for other in results[1:]:
                for mine, theirs in zip(other, results[0], strict=True):
                    np.testing.assert_array_equal(mine, theirs)
        compare(fetches, [x], sizes=(0, 1, REDUCED_PIECE + 1))
        with dt.Session(config=dt.ConfigProto(intra_op_parallelism_threads=2)) as session:
            norm = dt.reduce_sum(y)  # in a plan, again and again
            session.warmup([norm, y / (norm + 1)], [x])
            value = numbers(rng, [10 * REDUCED_PIECE + 5], dtype)
            first = session.run(norm, {x: value})
            for _ in range(5):
                assert session.run([norm, y / (norm + 1)], {x: value})[0] == first


def test_a_shape_that_fusion_did_not_foresee_runs_on_numpy() -> None:
    with dt.Graph().as_default():
        x, y = dt.placeholder(dt.float32, [None, 3]), dt.placeholder(dt.float32, [None, 3])
        fused = Fused([(x + y) * 2.0], [x, y])
        a, b = np.ones((5, 3), np.float32), np.ones((1, 3), np.float32)
        assert fused.kernels[0].group.sized([a.shape, b.shape], {}) is None
        np.testing.assert_array_equal(fused.run({x: a, y: b})[0], (a + b) * 2)


def test_a_kernel_starts_on_numpy_and_is_swapped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.codegen.cpu.jit.COMPILE_AFTER_S", 1e-9)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None])
        y = dt.exp(x * 0.125) + 3.25
        (group,) = [s for s in fuse(partition_of([y], [x])).steps if isinstance(s, FusedKernel)]
    swapped = threading.Event()

    class Told(CpuFusedKernel):
        def _swap_in(self, function: Any) -> None:
            super()._swap_in(function)
            swapped.set()

    kernel = Told(group)
    value = np.ones(10, np.float32)
    first = kernel(value)
    assert kernel._asked
    assert swapped.wait(240)
    assert kernel.function is not None
    np.testing.assert_allclose(kernel(value), first, rtol=1e-6)


def test_checking_names_the_first_node_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 4])
        y = dt.tanh(dt.exp(x * 0.5, name="wrong") * 0.1, name="last")
        (group,) = [s for s in fuse(partition_of([y], [x]), small=True).steps if isinstance(s, FusedKernel)]
    right = CpuFusedKernel(group, compile_first=True, check=True)
    right(np.ones((2, 4), np.float32))

    def reference_of(node: Node, context_of: Any) -> Any:
        return (lambda x: np.exp(x) + 1) if node.name == "wrong" else node.opdef.reference

    monkeypatch.setattr("dovetail.codegen.reference.reference_of", reference_of)
    with pytest.raises(InternalError, match="first in 'wrong'"):
        CpuFusedKernel(group, compile_first=True, check=True)(np.ones((2, 4), np.float32))


# --- random graphs ---------------------------------------------------------------------------------------------------

UNARY: list[Callable[[Any], Any]] = [
    dt.tanh, lambda x: dt.exp(-abs(x)), dt.nn.relu, lambda x: dt.sqrt(abs(x) + 0.5), lambda x: dt.log1p(abs(x)),
    dt.erf, dt.sigmoid, lambda x: x * 0.5, lambda x: dt.square(x) * 0.25, lambda x: dt.floor(x * 4.0),
    lambda x: dt.expand_dims(x, -1)[..., 0], dt.identity, dt.sin, lambda x: -x,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: dt.maximum(x, y), lambda x, y: x / (abs(y) + 1.0),
    lambda x, y: dt.where_v2(x > y, x, y * 0.5), lambda x, y: dt.squared_difference(x, y) * 0.1,
]  # fmt: skip
REDUCTIONS: list[Callable[..., Any]] = [dt.reduce_mean, dt.reduce_max, dt.reduce_min, dt.reduce_mean, dt.nn.softmax]


def random_graph(seed: int, dtype: Any) -> tuple[list[Any], list[Any]]:
    """Fetches and feeds. Values stay of moderate size, so that rounding stays small."""
    rnd = random.Random(seed)
    wide, deep = rnd.choice([1, 3, 8, 37]), rnd.choice([1, 2, 5])
    shapes = [[None, deep, wide], [wide], [None, 1, wide], [deep, 1], [None, deep, 1], [None, deep, wide], []]
    feeds = [dt.placeholder(dtype, s) for s in shapes]
    values = list(feeds)
    for _ in range(rnd.randint(3, 25)):
        kind = rnd.random()
        if kind < 0.45:
            new = rnd.choice(UNARY)(rnd.choice(values))
        elif kind < 0.85:
            x, y = rnd.choice(values), rnd.choice(values)
            try:
                new = rnd.choice(BINARY)(x, y)
            except ValueError:  # their shapes do not fit
                continue
        else:
            x = rnd.choice(values)
            rank = len(x.dims)
            if rank == 0:
                continue
            reduce = rnd.choice(REDUCTIONS)
            if reduce is dt.nn.softmax:
                new = reduce(x)
            else:
                over = rnd.sample(range(rank), rnd.randint(1, rank))
                new = reduce(x, over, keepdims=rnd.random() < 0.7)
        values.append(new)
    made = values[len(feeds) :] or [feeds[0] + 1.0]
    fetches = [made[-1], *rnd.sample(made, min(len(made), 2))]
    return list(dict.fromkeys(fetches)), feeds


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(i, marks=pytest.mark.slow) for i in range(6, 60))])
def test_random_graphs(seed: int) -> None:
    with dt.Graph().as_default():
        fetches, feeds = random_graph(seed, dt.float32 if seed % 3 else dt.float64)
        compare(fetches, feeds, seed, sizes=(1, 7, 64) if seed % 4 else (2, 1009))


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs_keep_their_order(seed: int) -> None:
    """Every tensor is there before it is taken, whatever was fused; checked without compiling."""
    with dt.Graph().as_default():
        fetches, feeds = random_graph(seed, dt.float32)
        fusion = fuse(partition_of(fetches, feeds), small=True)
    there = set(feeds)
    ran: list[Node] = []
    for step in fusion.steps:
        taken = step.inputs if isinstance(step, Node) else (*step.inputs, *step.shapes)  # type: ignore[union-attr]
        for t in taken:
            assert t in there or t.op.type == "Const", f"{t} is not there for {step}"
        if isinstance(step, FusedKernel):
            inside = set(step.inputs) | set(step.shapes)
            for node in step.nodes:
                assert all(t in inside or t.op.type == "Const" for t in node.inputs)
                inside.update(node.outputs)
            assert set(step.outputs) <= inside
            ran += step.nodes
        else:
            assert isinstance(step, Node)
            ran.append(step)
        there.update(step.outputs)  # type: ignore[union-attr]
    assert set(fetches) <= there


def test_one_of_two_processes_compiles_and_the_cache_is_used_by_the_next(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = """
import numpy as np, time
import dovetail as dt
from dovetail.codegen import artifact_cache
from dovetail.codegen.cpu import jit
from dovetail.codegen.cpu.emit.module import source_of
from dovetail.codegen.cpu.native.launches import share
from dovetail.codegen.cpu.schedule import schedule_of
from dovetail.codegen.ir.loop_nest import LoopNestBuilder
from dovetail.graph.core.dtypes import float32
b = LoopNestBuilder([False])
x = b.load(0, float32, [0])
b.store(b.apply("exp", b.apply("mul", x, b.constant(0.75, float32))), [0])
loops, _ = b.finish()
artifact_cache.WAIT_S = 1000.0
function = jit.compile_now(source_of(loops, schedule_of(loops)).text)
out = np.empty(3, np.float32)
share(function, (np.ones(3, np.float32), out, 3), 3, 1, 1)
assert np.allclose(out, np.exp(0.75))
print(sum(function.stats.cache_hits.values()))
"""
    import os

    environment = {
        **os.environ,
        "DOVETAIL_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).resolve().parents[4]),
    }
    command = [sys.executable, "-c", program]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [process.communicate()[0].strip() for process in both]  # at the same time
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(found) == ["0", "1"]
    assert not list(tmp_path.glob("numba/*/*.lock"))
    third = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert third.stdout.strip() == "1"
    assert (tmp_path / "numba").stat().st_mode & 0o077 == 0


# --- positions along an axis -----------------------------------------------------------------------------------------


def in_session(fetches: Any, feeds: Any) -> Any:
    with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as session:
        return session.run(fetches, feeds)


def test_a_loss_of_sparse_labels_is_one_kernel_and_refuses_what_is_no_label() -> None:
    with dt.Graph().as_default():
        x, y = dt.placeholder(dt.float32, [None, 7]), dt.placeholder(dt.int32, [None])
        loss = dt.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x * 2.0)
        fetches = [loss, *dt.gradients(loss, [x])]
        first, *_ = [s for s in fuse(partition_of(fetches, [x, y]), small=True).steps if isinstance(s, FusedKernel)]
        assert [n.type for n in first.nodes] == ["Mul", "SparseSoftmaxCrossEntropyWithLogits"]
        value = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
        feeds = {x: value, y: [0, 6, 3, 3, 1]}
        p = np.exp(2 * value) / np.exp(2 * value).sum(1, keepdims=True)
        found, gradient = in_session(fetches, feeds)
        np.testing.assert_allclose(found, -np.log(p[np.arange(5), feeds[y]]), rtol=1e-5)
        np.testing.assert_allclose(gradient, 2 * (p - np.eye(7)[feeds[y]]), rtol=1e-4, atol=1e-6)
        for wrong in (7, -1):
            with pytest.raises(dt.errors.InvalidArgumentError, match=f"label value of {wrong} which is outside"):
                in_session(fetches, {x: value, y: [0, wrong, 0, 0, 0]})


def test_labels_that_are_made_beside_a_loss_are_looked_at_before_it() -> None:
    with dt.Graph().as_default():
        x, y = dt.placeholder(dt.float32, [None, 7]), dt.placeholder(dt.float32, [None])
        loss = dt.nn.sparse_softmax_cross_entropy_with_logits(labels=dt.cast(y + 1.0, dt.int64), logits=x)
        feeds = {x: np.zeros((2, 7), np.float32), y: [5.0, 0.0]}
        np.testing.assert_allclose(in_session(loss, feeds), [np.log(7)] * 2, rtol=1e-6)
        with pytest.raises(dt.errors.InvalidArgumentError, match="label value of 7"):
            in_session(loss, {**feeds, y: [6.0, 0.0]})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int) -> None:
    with dt.Graph().as_default():
        i = dt.placeholder(dt.int8, [None, 5])
        hot = dt.one_hot(i, 300, on_value=3, off_value=-1, axis=axis) * 2
        value = np.random.default_rng(2).integers(-20, 120, (11, 5)).astype(np.int8)
        want = np.where(np.expand_dims(value, axis) == np.arange(300).reshape(np.roll([1, 1, -1], axis + 1)), 6, -2)
        np.testing.assert_array_equal(in_session(hot, {i: value}), want)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_places_of_extremes(dtype: str) -> None:
    rng = np.random.default_rng(3)
    value = rng.integers(0, 6, (9, 10, 11)).astype(dtype)  # many are equal: the first is meant
    if dtype.startswith("f"):
        value[2, 3, 4] = value[2, 5, 6] = np.nan
    for axis in range(3):
        with dt.Graph().as_default():
            x = dt.placeholder(dtype, [None, 10, 11])
            found = in_session([dt.argmax(x + x, axis), dt.argmin(x, axis, output_type=dt.int32)], {x: value})
        np.testing.assert_array_equal(found[0], np.argmax(value, axis))
        np.testing.assert_array_equal(found[1], np.argmin(value, axis))


def test_there_is_no_place_in_nothing() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 3])
        with pytest.raises(dt.errors.InvalidArgumentError, match="empty sequence"):
            in_session(dt.argmax(x * 2.0, 0), {x: np.zeros((0, 3))})


def test_an_axis_with_positions_joins_no_other() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 5, 7])
        (group,) = [
            s for s in fuse(partition_of([dt.argmax(x, 1)], [x]), small=True).steps if isinstance(s, FusedKernel)
        ]
    assert str(group.loops).splitlines() == [
        "loops over d0, d2, reducing d1",
        "  v0: float32[d0, d1, d2] = load in0",
        "  v1: int64[d1] = position",
        "  v2: float32[d0, d2] = reduce max v0",
        "  v3: bool[d0, d1, d2] = eq v0 v2",
        "  v4: bool[d0, d1, d2] = isnan v0",
        "  v5: bool[d0, d1, d2] = or v3 v4",
        "  v6: int64 = constant 9223372036854775807",
        "  v7: int64[d0, d1, d2] = select v5 v1 v6",
        "  v8: int64[d0, d2] = reduce min v7",
        "  store out0[d0, d2] = v8",
    ]
