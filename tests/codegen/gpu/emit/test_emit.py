"""Fused kernels for GPUs: their text, what they compile to, and their numbers in Triton's interpreter against the references."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_checks import SOME, compiles
from kernel_runner import run_routine
from reference_interpreter import Interpreter, execution_order

import dovetail as dt
from dovetail.codegen.check import agree
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.gpu.emit.expr import rows_in
from dovetail.codegen.gpu.emit.launches import routines
from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.schedule import Specialisation, specialise
from dovetail.codegen.ir.fused_kernel import FusedKernel
from dovetail.codegen.ir.loop_nest import LoopNest, LoopNestBuilder
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.passes.decompose import functionalize_random
from dovetail.codegen.target import SM90
from dovetail.graph.core.build import apply
from dovetail.graph.core.dtypes import bfloat16, float16, float32

pytest.importorskip("triton")

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_cache")]

GOLDEN = Path(__file__).parents[2] / "golden"


# --- graphs ----------------------------------------------------------------------------------------------------------

Shape = tuple[int | None, ...]


def layer_norm(x: Any) -> Any:
    mean = dt.reduce_mean(x, -1, keepdims=True)
    variance = dt.reduce_mean(dt.square(x - mean), -1, keepdims=True)
    return (x - mean) * dt.rsqrt(variance + 1e-5)


def batch_norm(x: Any) -> Any:
    mean = dt.reduce_mean(x, 0)
    return (x - mean) / dt.sqrt(dt.reduce_mean(dt.square(x - mean), 0) + 1e-3)


def loss_and_gradient(x: Any, labels: Any) -> list[Any]:
    loss = dt.nn.softmax_cross_entropy_with_logits_v2(labels=dt.nn.softmax(labels), logits=dt.nn.gelu(x))
    return [loss, *dt.gradients(loss, [x])]


def bias_and_gradient(x: Any, b: Any) -> list[Any]:
    y = dt.nn.relu(dt.nn.bias_add(x, b))
    return [y, *dt.gradients(dt.reduce_sum(dt.square(y)), [b])]


PLACES = np.array([[0, 2, 1], [1, 1, 0]], np.int32)


def segments(x: Any) -> list[Any]:
    """Sums of computed rows, of single numbers and of slices."""
    ids = dt.cast(dt.shape(x)[0] - dt.range(dt.shape(x)[0]) - 1, dt.int32) // 3 % 5 - 1
    rows = dt.math.unsorted_segment_sum(dt.exp(x) * 2.0, ids, 5)
    both = dt.math.unsorted_segment_sum(dt.sigmoid(x), dt.stack([ids, ids + 1, ids, ids - 9], 1), 5)
    return [rows, both, dt.math.unsorted_segment_sum(dt.cast(x[:, 0, 0], dt.int32) * 2, ids, 5)]


def labelled(x: Any) -> list[Any]:
    loss = dt.nn.sparse_softmax_cross_entropy_with_logits(labels=dt.constant([3, 0, 10, 7]), logits=x * 2.0)
    return [loss, *dt.gradients(loss, [x])]


def moved(x: Any, y: Any) -> list[Any]:
    """Elements that are read at other places, and in places that an input does not have."""
    joined = dt.pad(x, [[0, 0], [2, 1], [0, 0]], constant_values=3.0) * dt.concat([y, x], 1)
    rows = dt.reduce_sum(dt.concat([x, dt.tanh(x)], 2) * 2.0, 2)
    return [joined, rows, dt.transpose(x, [1, 0, 2]) * 2.0, x[:, 1:, ::-2] - x[:, :-1, ::2] * 3.0]


CASES: dict[str, tuple[tuple[Shape, ...], Callable[..., Any]]] = {
    "softmax": (((None, 13),), dt.nn.softmax),
    "layer norm": (((None, 13),), layer_norm),
    "batch norm": (((None, 13),), batch_norm),
    "everything": (((None, 13),), lambda x: [dt.reduce_sum(dt.tanh(x)) + 1.0, dt.reduce_max(x), dt.tanh(x) * 2.0]),
    "activations": (((None, 13),), lambda x: dt.nn.elu(x) + dt.nn.softplus(x) * dt.erf(x) - dt.nn.leaky_relu(x)),
    "angles": (((None, 13),), lambda x: dt.sin(x * 1e6) * dt.cos(x) + dt.tan(x)),
    "powers": (((None, 13), (None, 13)), lambda x, y: abs(x) ** y + dt.math.erfc(x) * dt.math.lgamma(y)),
    "powers of a number": (((None, 13),), lambda x: 0.5**x + dt.atan2(2.0, x)),
    "rounding": (((None, 13),), lambda x: dt.floor(x) + dt.ceil(x * 3.0) * dt.round(x * 2.5) - dt.sign(x) * abs(x)),
    "product": (((None, 13),), lambda x: dt.reduce_prod(dt.tanh(x) + 1.5, -1) * dt.reduce_min(x, -1)),
    "not a number": (((None, 13),), lambda x: dt.where_v2(dt.is_nan(dt.log(x)), dt.zeros_like(x), dt.log1p(dt.expm1(abs(x))))),
    "loss": (((None, 11), (None, 11)), loss_and_gradient),
    "bias": (((None, 4, 6), (6,)), bias_and_gradient),
    "broadcast": (((None, 4, 6), (4, 1), (6,)), lambda x, a, b: dt.sqrt(abs(x * a + b)) / 3.0),
    "mask": (((None, 3, 4, 7), (None, 1, 4, 7)), lambda x, m: dt.nn.softmax(x * 0.5 + m)),
    "images": (((2, None, 6, 3),), lambda x: dt.reduce_mean(dt.nn.relu(x), [1, 2])),
    "channels": (((2, 3, None, 6),), lambda x: dt.reduce_sum(dt.exp(x), [0, 2, 3])),
    "rows looked up": (((6, 9), (9,)), lambda x, b: [layer_norm(dt.gather(x * 1.0, PLACES) * 3.0 + b), dt.tanh(dt.gather(b, PLACES))]),
    "rows added": (((None, 4, 6),), lambda x: segments(x)),
    "places": (((7, 13),), lambda x: [dt.argmax(dt.tanh(x), 1), dt.argmin(x * 2.0, 0), dt.one_hot(dt.argmax(x, 1), 13) * x]),
    "moved": (((None, 4, 6), (None, 3, 6)), lambda x, y: moved(x, y)),
    "labels": (((4, 11),), lambda x: labelled(x)),
}  # fmt: skip


def groups_of(fetches: Sequence[Any], feeds: Sequence[Any]) -> list[FusedKernel]:
    order = execution_order([t.op for t in fetches], dict.fromkeys(feeds))
    nodes = tuple(n for n in order if n.type != "Placeholder")
    partition = PartitionGraph(
        "/device:GPU:0", nodes, tuple((t.name, t) for t in feeds), tuple((t.name, t) for t in fetches)
    )
    return fuse(functionalize_random(partition), small=True, lone=True).kernels


def numbers(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Any:
    if dtype.np.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.np.kind in "iu":
        return rng.integers(0 if dtype.is_unsigned else -100, 100, shape).astype(dtype.np)
    return rng.standard_normal(shape).astype(dtype.np)


def forms(loops: LoopNest, facts: Specialisation) -> list[Routine]:
    """All candidates, and those for long rows."""
    out = list(routines(loops, facts))
    if loops.reduced_axes:
        out += routines(loops, replace(facts, row=0, exact=False))[:1]
        if all(v.op != "scan" for v in loops.values):
            out += routines(loops, replace(facts, splits=4))[:2]
    return out


def run(
    routine: Routine,
    loops: LoopNest,
    inputs: Sequence[Any],
    sizes: Sequence[int],
    outputs: Sequence[Any],
    tables: Mapping[str, int] | None = None,
) -> None:
    """Run on the interpreter, as a launcher would. `tables`: how many rows these have."""
    arguments: dict[str, Any] = {f"in{i}": x for i, x in enumerate(inputs)}
    arguments |= {f"out{i}": y for i, y in enumerate(outputs)} | {f"n{i}": n for i, n in enumerate(sizes)}
    run_routine(routine, arguments | dict(tables or {}))


def check(fetches: Sequence[Any], feeds: Sequence[Any], values: Sequence[Any], every_form: bool = True) -> int:
    """Compare each kernel's outputs with the references'; how many kernels there are."""
    groups = groups_of(fetches, feeds)
    expected = list(dict.fromkeys(t for g in groups for t in (*g.inputs, *g.shapes, *g.outputs)))
    with np.errstate(all="ignore"):
        known = dict(
            zip(
                expected,
                Interpreter(fetches[0].graph).run(expected, dict(zip(feeds, values, strict=True))),
                strict=True,
            )
        )
    for group in groups:
        inputs = [np.ascontiguousarray(known[t]) for t in group.inputs]
        vectors = [tuple(known[group.shapes[a.position]].tolist()) for a in group.assumed]
        shapes = [x.shape for x in inputs]
        told = {at: np.ravel(known[group.shapes[at]]).tolist() for *_, at in group.tables}
        told |= {a.position: vector for a, vector in zip(group.assumed, vectors, strict=True)}
        sized = group.sized(shapes, told)
        if sized is None:  # broadcast in a way that fusion did not foresee: runs node by node
            continue
        tables = sized.numbers | {rows_in(f"out{i}"): count for i, count in sized.rows.items()}
        sizes = list(sized.loops)
        facts = specialise(group.loops, sizes)
        for routine in forms(group.loops, facts) if every_form else routines(group.loops, facts)[:1]:
            outputs = [np.full(known[t].shape, 77).astype(known[t].dtype) for t in group.outputs]
            if group.tables:
                outputs[0][...] = 0
            run(routine, group.loops, inputs, sizes, outputs, tables)
            for t, mine in zip(group.outputs, outputs, strict=True):
                text = "\n".join(step.kernel.text for step in routine.launches)
                assert agree(mine, known[t]), f"{t} for {sizes}:\n{mine}\n{known[t]}\n{text}"
    return len(groups)


def check_case(name: str, dtype: Any, size: int, every_form: bool = True) -> None:
    shapes, build = CASES[name]
    rng = np.random.default_rng(size)
    with dt.Graph().as_default():
        feeds = [dt.placeholder(dtype, s) for s in shapes]
        made = build(*feeds)
        values = [numbers(rng, [size if d is None else d for d in s], dtype) for s in shapes]
        assert check(made if isinstance(made, list) else [made], feeds, values, every_form)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "batch norm", "broadcast", "everything"])
def test_numbers(name: str) -> None:
    check_case(name, float32, 7)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 67])
@pytest.mark.parametrize("name", CASES)
def test_numbers_of_all_cases(name: str, size: int) -> None:
    check_case(name, float32, size, every_form=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "product", "loss", "bias", "images", "channels"])
def test_numbers_of_all_forms(name: str) -> None:
    check_case(name, float32, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["activations", "batch norm", "loss"])
def test_numbers_in_float64(name: str) -> None:
    check_case(name, dt.float64, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [dt.int8, dt.int16, dt.int32, dt.int64, dt.uint8, dt.uint16, dt.uint32, dt.uint64], ids=lambda t: t.name
)
def test_integers_wrap_around(dtype: Any) -> None:  # fmt: skip
    with dt.Graph().as_default():
        x, y = dt.placeholder(dtype, [None, 5]), dt.placeholder(dtype, [None, 5])
        z = (x * x * y - x) * (y + 100) - abs(x) + dt.maximum(x, y) - dt.minimum(x, -y)
        rng = np.random.default_rng(0)
        check(
            [z, dt.reduce_sum(z, 1), dt.reduce_max(z, 0), dt.reduce_min(z)],
            [x, y],
            [numbers(rng, (7, 5), dtype) for _ in range(2)],
        )


def test_conditions_and_casts() -> None:
    with dt.Graph().as_default():
        x, c = dt.placeholder(float32, [None, 6]), dt.placeholder(dt.bool, [None, 6])
        both = dt.logical_and(c, x > 0.1) | dt.logical_not(dt.equal(x, x))
        chosen = dt.where_v2(both, dt.cast(dt.cast(x * 9.0, dt.int32), float32), dt.cast(c, float32))
        rng = np.random.default_rng(0)
        values = [numbers(rng, (7, 6), float32), numbers(rng, (7, 6), dt.bool)]
        check([both, chosen, dt.reduce_any(both, 1), dt.reduce_all(both, 1)], [x, c], values)


def noise(x: Any, key: Any, draw: Any) -> list[Any]:
    """Uniform and normal numbers over all of x, and over its rows."""

    def drawn(op: str, like: Any, dtype: Any) -> Any:
        return apply(op, (dt.shape(like), key, draw), {"dtype": dtype})

    y = dt.where_v2(drawn("UniformOfStream", x, float32) >= 0.25, x, 0.0) + drawn("NormalOfStream", x, float32)
    rows = dt.reduce_sum(y, 1) * drawn("UniformOfStream", x[:, 0], float32)
    return [y, rows, dt.reduce_max(drawn("UniformOfStream", x, dt.float64), 0), drawn("UniformOfStream", x, bfloat16)]


def noise_with(columns: int) -> tuple[list[Any], list[Any]]:
    feeds = [dt.placeholder(float32, [None, columns]), dt.placeholder(dt.uint64, []), dt.placeholder(dt.uint64, [])]
    return noise(*feeds), feeds


@pytest.mark.parametrize("columns", [13, 32])
def test_random_numbers(columns: int) -> None:
    with dt.Graph().as_default():
        made, feeds = noise_with(columns)
        x = np.random.default_rng(0).standard_normal((7, columns)).astype(np.float32)
        check(made, feeds, [x, np.uint64(2**63 + 17), np.uint64(2**40 + 3)])


@pytest.mark.slow
@pytest.mark.parametrize("columns", [13, 32])
def test_random_numbers_compile(columns: int) -> None:
    with dt.Graph().as_default():
        made, feeds = noise_with(columns)
        for group in groups_of(made, feeds):
            for sizes in ([1000, columns], [32000]):
                if len(group.loops.reduced) == len(sizes):
                    compiles(routines(group.loops, specialise(group.loops, sizes))[0], SOME)


def scans(x: Any) -> list[Any]:
    """Running sums of each kind along rows and columns, alone and with work around."""
    out: list[Any] = []
    for axis in (0, 1):
        for reverse in (False, True):
            both = [f(x * 0.5, axis, e, reverse) for f in (dt.cumsum, dt.cumprod) for e in (False, True)]
            out += [both[0] * 2.0 + both[1], both[2] - both[3], dt.reduce_max(both[0], axis)]
            out.append(
                dt.exp(dt.cumsum(x, axis, True, reverse) - dt.reduce_max(dt.cumsum(x, axis, True, reverse), axis, True))
            )
    return out


def test_running_sums() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(float32, [None, 13])
        check(scans(x), [x], [np.random.default_rng(0).standard_normal((21, 13)).astype(np.float32)])


@pytest.mark.slow
def test_running_sums_of_other_types_compile() -> None:
    for dtype in (float32, bfloat16, dt.float64, dt.int16):
        with dt.Graph().as_default():
            x = dt.placeholder(dtype, [None, 13])
            made = [dt.cumsum(x, 1, reverse=True) * x, dt.cumprod(x, 0, exclusive=True)]
            for group in groups_of(made, [x]):
                facts = specialise(group.loops, [1000, 13])
                for routine in (
                    routines(group.loops, facts)[0],
                    routines(group.loops, replace(facts, row=0, exact=False))[0],
                ):
                    compiles(routine, SOME)


def shifts(dtype: Any) -> LoopNest:
    b = LoopNestBuilder([False])
    x, by = b.load(0, dtype, [0]), b.load(1, dtype, [0])
    b.store(b.apply("shl", x, by), [0])
    b.store(b.apply("shr", x, by), [0])
    return b.finish()[0]


@pytest.mark.parametrize("dtype", [dt.int8, dt.uint32], ids=lambda t: t.name)
def test_shifts_by_all_bits_leave_nothing(dtype: Any) -> None:
    x = np.array([-3 if dtype is dt.int8 else 3, 5, 100, 1], dtype.np)
    by = np.array([1, 8 * dtype.size, 3, 8 * dtype.size - 1], dtype.np)
    outputs = [np.empty_like(x), np.empty_like(x)]
    loops = shifts(dtype)
    run(routines(loops, specialise(loops, [4]))[0], loops, [x, by], [4], outputs)
    np.testing.assert_array_equal(outputs[0], np.left_shift(x, by))
    np.testing.assert_array_equal(outputs[1], np.right_shift(x, by))


def test_nan_and_infinities_come_through() -> None:
    value = np.full((4, 40), 1, np.float32)
    value[0, 7], value[1, 8], value[1, 9], value[2], value[3, :20] = np.nan, np.inf, -np.inf, -np.inf, np.inf
    with dt.Graph().as_default():
        x = dt.placeholder(float32, [None, 40])
        fetches = [
            dt.nn.softmax(x),
            dt.reduce_max(x * 1.0, 1),
            dt.reduce_min(x + 0.0, 0),
            dt.maximum(x, 0.0) * dt.tanh(x),
        ]
        check(fetches, [x], [value])


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda t: t.name)
def test_narrow_floats_are_rounded_once(dtype: Any) -> None:
    b = LoopNestBuilder([False, True])
    x = b.load(0, dtype, [0, 1])
    e = b.apply("exp", b.apply("sub", x, b.reduce("max", x)))
    b.store(b.apply("div", e, b.reduce("sum", e)), [0, 1])
    loops, _ = b.finish()
    value = np.random.default_rng(0).standard_normal((6, 40)).astype(dtype.np)
    wide = value.astype(np.float64)
    exact = np.exp(wide - wide.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    for routine in forms(loops, specialise(loops, [6, 40])):
        out = np.empty_like(value)
        run(routine, loops, [value], [6, 40], [out])
        rounded = exact.astype(np.float32).astype(dtype.np)
        assert np.count_nonzero(out != rounded) <= 2  # a tie that float32 breaks the other way
        np.testing.assert_allclose(out.astype(np.float64), exact, rtol=2e-3 if dtype is float16 else 2e-2)


def test_pieces_of_a_long_sum_are_accurate() -> None:
    b = LoopNestBuilder([True])
    b.store(b.reduce("sum", b.load(0, float32, [0])), [])
    loops, _ = b.finish()
    value = np.random.default_rng(0).random(300_001).astype(np.float32)
    facts = specialise(loops, [len(value)])
    assert facts.splits > 8
    routine = routines(loops, facts)[0]
    assert len(routine.launches) == 2
    out = np.empty((), np.float32)
    run(routine, loops, [value], [len(value)], [out])
    exact = value.astype(np.float64).sum()
    assert abs(float(out) - exact) <= 2 * np.spacing(np.float32(exact))


def test_nothing_is_launched_for_no_elements_but_a_reduction_of_nothing_is() -> None:
    b = LoopNestBuilder([False, True])
    x = b.load(0, float32, [0, 1])
    b.store(b.reduce("max", x), [0])
    loops, _ = b.finish()
    (launch,) = routines(loops, specialise(loops, [0, 5]))[0].launches
    assert launch.grid.of({"n0": 0, "n1": 5}) == (0, 1, 1)
    out = np.zeros(3, np.float32)
    run(routines(loops, specialise(loops, [3, 0]))[0], loops, [np.empty((3, 0), np.float32)], [3, 0], [out])
    np.testing.assert_array_equal(out, -np.inf)


# --- specialisation --------------------------------------------------------------------------------------------------


def rows() -> LoopNest:
    b = LoopNestBuilder([False, True])
    x = b.load(0, float32, [0, 1])
    b.store(b.apply("sub", x, b.reduce("max", x)), [0, 1])
    return b.finish()[0]


def test_batches_of_all_sizes_share_a_kernel() -> None:
    loops = rows()
    texts = {
        r.launches[0].kernel
        for n in (272, 1024, 4096, 100_000)
        for r in routines(loops, specialise(loops, [n, 512]))[:1]
    }
    assert len(texts) == 1


def test_promises_and_widths_follow_the_sizes() -> None:
    loops = rows()
    (kernel, *_) = [r.launches[0].kernel for r in routines(loops, specialise(loops, [300, 512]))]
    assert [(p.name, p.type, p.divisible) for p in kernel.parameters] == [
        ("in0", "*fp32", True), ("out0", "*fp32", True), ("n0", "i32", False), ("n1", "i32", True),
    ]  # fmt: skip
    large = routines(loops, specialise(loops, [1 << 22, 1024]))[0].launches[0].kernel
    assert [(p.type, p.divisible) for p in large.parameters] == [
        ("*fp32", True), ("*fp32", True), ("i64", True), ("i64", True),
    ]  # fmt: skip


def test_few_long_rows_are_cut_into_pieces_and_many_are_not() -> None:
    loops = rows()
    assert specialise(loops, [4, 1 << 20]).splits == 256
    assert specialise(loops, [1, 1 << 28]).splits == 1024
    assert specialise(loops, [4096, 1 << 12]).splits == 1
    assert specialise(loops, [4, 64]).splits == 1


def test_what_is_known_before_a_sum_is_stored_as_its_pieces_are_read() -> None:
    with dt.Graph().as_default():
        x, grad = dt.placeholder(float32, (None, 1024)), dt.placeholder(float32, (None, 1024))
        y = dt.where_v2(x > 0.0, grad, 0.0)
        (group,) = groups_of([y, dt.reduce_sum(y, 0)], [x, grad])
    pieces, total = routines(group.loops, specialise(group.loops, [4096, 1024]))[0].launches
    assert {"out0", "out1"} <= {p.name for launch in (pieces, total) for p in launch.kernel.parameters}
    assert "tl.store(out0 + i0 * n1 + i1" in pieces.kernel.text
    assert [p.name for p in total.kernel.parameters if p.name.startswith("in")] == []


def test_what_follows_pieces_has_tiles_of_the_last_axis() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(float32, (None, 64))
        (group,) = groups_of([batch_norm(x)], [x])
    *_, last = routines(group.loops, specialise(group.loops, [1 << 20, 64]))[0].launches
    assert dict(last.kernel.constants) == {"YB": 16, "XB": 64}


# --- text ------------------------------------------------------------------------------------------------------------


def unscaled(x: Any) -> Any:
    """Random numbers for each element of x, before a range is made of them."""
    return dt.random_uniform(dt.shape(x)).op.inputs[0].op.inputs[0]


TEXTS: dict[str, tuple[tuple[int | None, ...], Callable[[Any], Any], tuple[int, ...], int]] = {
    "pointwise": ((None, 8), lambda x: dt.nn.relu(x) * 2.0 + 1.0, (4000,), 0),
    "softmax_rows": ((None, None), dt.nn.softmax, (4096, 1000), 0),
    "layer_norm_long": ((4, None), layer_norm, (4096, 50_000), 0),
    "softmax_columns": (
        (None, 8), lambda x: dt.exp(x - dt.reduce_max(x, 0)) / dt.reduce_sum(dt.exp(x - dt.reduce_max(x, 0)), 0),
        (100, 40_000), 0,
    ),
    "channels_first": ((2, 3, 5, 6), lambda x: dt.reduce_sum(dt.exp(x), [0, 2, 3]), (2, 300, 30), 0),
    "mean_in_pieces": ((None, 3, None), lambda x: dt.reduce_mean(x * x), (1 << 20,), 0),
    "masked": ((None, 8), lambda x: dt.where_v2(unscaled(x) < 0.25, x, 0.0), (4000,), 0),
    "running_sum": ((None, 8), lambda x: dt.cumsum(dt.exp(x), 1, exclusive=True) * 2.0, (100, 1000), 0),
    "running_product_back": ((None, None), lambda x: dt.cumprod(x, 1, reverse=True), (100, 20_000), 0),
    "sums_of_rows": (
        (None, 8), lambda x: dt.math.unsorted_segment_sum(dt.exp(x), dt.placeholder(dt.int32, [None]), 10), (5000, 48), 0,
    ),
    "looked_up_rows": (
        (None, 8), lambda x: dt.nn.softmax(dt.gather(x, dt.placeholder(dt.int32, [None, 3])) * 2.0), (5000, 48), 0,
    ),
    "padded_and_concatenated": (
        (None, 6, 8), lambda x: dt.nn.relu(dt.pad(x, [[0, 0], [1, 1], [0, 0]])) * dt.concat([x[:, 1:], x[:, :3]], 1), (100, 8, 8), 0,
    ),
    "pooled_means": (
        (None, 8, 8, 6), lambda x: dt.nn.relu(dt.nn.avg_pool(x, [1, 2], [1, 2], "SAME") * 2.0), (100, 8, 4, 6), 0,
    ),
    "noisy_columns": ((None, 8), lambda x: dt.reduce_sum(x + dt.random_normal(dt.shape(x)), 0), (100, 40_001), 0),
}  # fmt: skip


def routine_of(name: str) -> Routine:
    shape, build, sizes, candidate = TEXTS[name]
    with dt.Graph().as_default():
        x = dt.placeholder(float32, shape)
        made = build(x)
        (group,) = groups_of([made], [n.outputs[0] for n in x.graph.nodes if n.type == "Placeholder"])
    return routines(group.loops, specialise(group.loops, sizes))[candidate]


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_kernel(name: str) -> None:
    parts = []
    for launch in routine_of(name).launches:
        k = launch.kernel
        parts.append(f"{k.text}\n# {launch.grid}\n# {dict(k.constants)}, {k.num_warps} warps\n")
    text = "\n\n".join(parts)
    path = GOLDEN / f"triton_{name}.py.txt"
    if os.environ.get("DOVETAIL_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


# --- binaries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pointwise", "softmax_rows"])
def test_kernels_compile(name: str) -> None:
    compiles(routine_of(name), [SM90])


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_kernels_compile_for_all_targets(name: str) -> None:
    compiles(routine_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_cases_compile(name: str) -> None:
    shapes, build = CASES[name]
    with dt.Graph().as_default():
        feeds = [dt.placeholder(float32 if name != "images" else bfloat16, s) for s in shapes]
        made = build(*feeds)
        for group in groups_of(made if isinstance(made, list) else [made], feeds):
            facts = specialise(group.loops, [1000 + 8 * a for a in range(len(group.loops.reduced))])
            compiles(routines(group.loops, facts)[0], SOME)


@pytest.mark.slow
def test_kernels_of_integers_and_conditions_compile() -> None:
    for dtype in (dt.int8, dt.uint64):
        loops = shifts(dtype)
        compiles(routines(loops, specialise(loops, [4096]))[0], SOME)
    with dt.Graph().as_default():
        x, c = dt.placeholder(dt.int16, [None, 6]), dt.placeholder(dt.bool, [None, 6])
        z = dt.where_v2(c & (x > 3), x * x, -x)
        for group in groups_of([z, dt.reduce_sum(z, 1), dt.reduce_max(z, 1), dt.reduce_all(c, 1)], [x, c]):
            compiles(routines(group.loops, specialise(group.loops, [512, 6]))[0], SOME)
