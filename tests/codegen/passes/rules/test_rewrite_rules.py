"""Each rewrite rule: a program it fires in, what is left of it, and that the numbers stay what they were."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from rewriting import EVERYTHING, evaluate, partition_of

import dovetail as dt
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.options import KernelOptions
from dovetail.codegen.passes.attention_fusion import fuse_attention
from dovetail.codegen.passes.rewrite import rewrite
from dovetail.codegen.passes.rules.algebra import algebra_rules
from dovetail.codegen.passes.rules.einsum import einsum_rules
from dovetail.codegen.passes.rules.layout import arranging_rules, moving_rules
from dovetail.codegen.passes.rules.shapes import shape_rules
from dovetail.codegen.reference import NumpyBackend
from dovetail.graph.core.build import make
from dovetail.graph.core.graph import Node

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, 1e-40, -1e38, 3e38, np.inf, -np.inf, np.nan, 0.1, 7.0], np.float32)


@dataclass(frozen=True)
class Case:
    """A rule, a program, the lines that are left of it without feeds and fetches, and how near its numbers must be.

    `feeds`: element type and shape of each placeholder (x, y, z), or the arrays to feed to them. `unknown`: their first sizes are
    not known.
    """

    rule: str
    build: Callable[..., Any]
    after: str
    feeds: tuple[Any, ...] = (SPECIAL,)
    tolerance: float = 0.0
    fast: bool = False
    unknown: bool = False


def floats(*shape: int, low: float = -3.0, high: float = 3.0) -> Any:
    return np.random.default_rng(len(shape)).uniform(low, high, shape).astype(np.float32)


def sum_to(x: Any, whole: Any, part: Any) -> Any:
    """The gradient of what was repeated to meet x."""
    return dt.reduce_sum(whole, make("BroadcastGradientArgs", (dt.shape(x), dt.shape(part))).outputs[1])


def channels_last(x: Any) -> Any:
    return dt.transpose(x, [0, 2, 3, 1])


def channels_first(x: Any) -> Any:
    return dt.transpose(x, [0, 3, 1, 2])


ROWS = floats(5, 16)
SHORT = np.arange(-6, 6, dtype=np.int16).reshape(3, 4)

CASES = [
    Case("to the power one", lambda x: dt.abs(x**1.0), "y = Abs(x)"),
    Case("to the power a half", lambda x: dt.abs(x) ** 0.5, "a = Abs(x)\ny = Sqrt(a)", (ROWS,), 1e-6, fast=True),
    Case("to the power minus one", lambda x: x**-1.0, "y = Reciprocal(x)", (ROWS,), 1e-6, fast=True),
    Case("logarithm of an exponential", lambda x: dt.abs(dt.log(dt.exp(x))), "y = Abs(x)", (ROWS,), 1e-5, fast=True),
    Case("logarithm of a softmax", lambda x: dt.log(dt.nn.softmax(x)), "y = LogSoftmax(x)", (ROWS,), 1e-5, fast=True),
    Case("identity", lambda x: dt.abs(dt.identity(dt.stop_gradient(x))), "y = Abs(x)"),
    Case("transpose that moves nothing", lambda x: dt.abs(dt.transpose(x, [0, 1])), "y = Abs(x)", (ROWS,)),
    Case(
        "transpose twice",
        lambda x: dt.transpose(dt.transpose(x, [1, 2, 0]), [1, 0, 2]),
        "y = [2, 1, 0]\ny = Transpose(x, y)",
        (floats(2, 3, 4),),
    ),
    Case(
        "transpose into MatMul",
        lambda x, y: dt.matmul(dt.transpose(x), y) + dt.matmul(y, dt.transpose(x)),
        "a = MatMul(x, x2, transpose_a=True, transpose_b=False)\n"
        "a = MatMul(x2, x, transpose_a=False, transpose_b=True)\ny = AddV2(a, a)",
        (floats(5, 5), floats(5, 5, 1)[..., 0]),
        1e-5,
    ),
    Case(
        "transpose into BatchMatMulV2",
        lambda x: dt.matmul(x, dt.transpose(x, [0, 2, 1])),
        "y = BatchMatMulV2(x, x, adj_x=False, adj_y=True)",
        (floats(2, 3, 4),),
        1e-5,
    ),
    Case(
        "transpose into BatchMatMulV2",
        lambda x, y: dt.matmul(x, dt.transpose(y, [0, 2, 3, 1])) + dt.matmul(dt.transpose(y, [0, 2, 3, 1]), x),
        "a = [0, 2, 1, 3]\na = Transpose(x2, a)\na = BatchMatMulV2(x, a, adj_x=False, adj_y=True)\n"
        "a = BatchMatMulV2(a, x, adj_x=True, adj_y=False)\ny = AddV2(a, a)",
        (floats(2, 3, 4, 4), floats(2, 4, 3, 4)),
        1e-5,
    ),
    Case(
        "transpose by rows behind BatchMatMulV2",
        lambda x, y: dt.transpose(dt.matmul(x, y, transpose_a=True), [0, 3, 1, 2]),
        "a = BatchMatMulV2(x2, x, adj_x=True, adj_y=False)\ny = [0, 2, 1, 3]\ny = Transpose(a, y)",
        (floats(2, 3, 5, 4), floats(2, 3, 5, 6)),
        1e-5,
    ),
    Case(
        "Einstein summation as a product", lambda x, y: dt.einsum("bthd,bshd->bhts", x, y),
        "y = [0, 2, 1, 3]\ny = Transpose(x, y)\ny = Transpose(x2, y)\ny = BatchMatMulV2(y, y, adj_x=False, adj_y=True)",
        (floats(2, 5, 3, 4), floats(2, 6, 3, 4)), 1e-5,
    ),
    Case("integer divided by one", lambda x: dt.abs(x // 1), "y = Abs(x)", (np.arange(-4, 5),)),
    Case(
        "shape of what it is made from",
        lambda x: dt.size(dt.cast(dt.exp(x) * 2.0, dt.int32)),
        "y = Size(x, out_type=int32)",
        (ROWS,),
        unknown=True,
    ),
    Case(
        "sum over known axes",
        lambda x: sum_to(x, x - (total := dt.reduce_sum(x, 0, keepdims=True)), total),
        "a = 0\na = Sum(x, a, keep_dims=True)\na = Sub(x, a)\ny = [0]\ny = Sum(a, y, keep_dims=False)",
        (ROWS,),
        unknown=True,
    ),
    Case(
        "reshape to the shape it has",
        lambda x: dt.abs(dt.reshape(dt.exp(x), dt.shape(x * 2.0))),
        "a = Exp(x)\ny = Abs(a)",
        (ROWS,),
        unknown=True,
    ),
    Case(
        "arithmetic on sizes",
        lambda x: dt.size(x) // int(ROWS.shape[1]),
        "y = Shape(x, out_type=int32)\ny = 0\ny = GatherV2(y, y, y, batch_dims=0)",
        (ROWS,),
        unknown=True,
    ),
    Case(
        "transpose undone behind arithmetic",
        lambda x, y, b: channels_first(dt.nn.relu(channels_last(x) * 2.0 + b) + channels_last(y)),
        "a = 2.0\na = Mul(x, a)\na = [1, -1, 1, 1]\na = Reshape(x3, a)\na = AddV2(a, a)\na = Relu(a)\ny = AddV2(a, x2)",
        (floats(2, 3, 4, 5), floats(2, 3, 4, 5)[::-1].copy(), floats(3)),
        unknown=True,
    ),
    Case(
        "transpose behind arithmetic into MatMul",
        lambda x, y: dt.matmul(dt.nn.relu(dt.transpose(x) + 1.0), y),
        "a = 1.0\na = AddV2(x, a)\na = Relu(a)\ny = MatMul(a, x2, transpose_a=True, transpose_b=False)",
        (floats(5, 6), floats(5, 7)),
        1e-5,
    ),
    Case(
        "transpose behind arithmetic into BatchMatMulV2",
        lambda x, y: dt.matmul(y, dt.exp(dt.transpose(x, [0, 2, 1]))),
        "a = Exp(x)\ny = BatchMatMulV2(x2, a, adj_x=False, adj_y=True)",
        (floats(2, 5, 6), floats(2, 7, 6)),
        1e-5,
    ),
    Case(
        "wider later",
        lambda x, y: dt.transpose(dt.concat([dt.cast(x, dt.float32), dt.cast(y, dt.float32)], 0)),
        "a = 0\na = ConcatV2(x, x2, a)\na = [1, 0]\na = Transpose(a, a)\ny = Cast(a, DstT=float32)",
        (SHORT, SHORT),
    ),
    Case(
        "narrower sooner",
        lambda x: dt.cast(dt.transpose(dt.abs(x)), dt.float16),
        "a = Abs(x)\na = [1, 0]\na = Cast(a, DstT=float16)\ny = Transpose(a, a)",
        (ROWS,),
    ),
]  # fmt: skip


def rewritten(case: Case) -> tuple[PartitionGraph, PartitionGraph, set[str]]:
    graph = dt.Graph()
    with graph.as_default():
        shapes = [(None, *v.shape[1:]) if case.unknown and v.ndim else v.shape for v in case.feeds]
        feeds = [
            dt.placeholder(v.dtype, dims, name=f"x{i + 1}" if i else "x")
            for i, (v, dims) in enumerate(zip(case.feeds, shapes, strict=True))
        ]
        result = case.build(*feeds)
    partition = partition_of([result], feeds)
    done, fired = rewrite(partition, KernelOptions(fast_math=case.fast))
    return partition, done, {f.rule for f in fired}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.rule)
def test_a_rule_fires_and_leaves(case: Case) -> None:
    partition, done, fired = rewritten(case)
    assert case.rule in fired
    ((_, fetched),) = done.fetches
    lines = []
    for line in str(done).splitlines():
        if line.startswith(("feed", "fetch")):
            continue
        # Names come from Python's names of the ops; what matters is the result ("y") and what leads there ("a").
        for node in sorted({n.name for n in partition.steps}, key=len, reverse=True):
            line = _renamed(line, node, "y" if node == fetched.op.name else "a")
        lines.append(line)
    assert "\n".join(lines) == case.after


def _renamed(line: str, name: str, to: str) -> str:
    return re.sub(rf"(?<![\w/]){re.escape(name)}(?![\w/])(?!\()", to, line)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.rule)
def test_a_rule_keeps_the_numbers(case: Case) -> None:
    partition, done, _ = rewritten(case)
    (before,), (after,) = evaluate(partition, case.feeds), evaluate(done, case.feeds)
    assert np.asarray(before).dtype == np.asarray(after).dtype
    assert np.shape(before) == np.shape(after)
    if case.tolerance:
        np.testing.assert_allclose(after, before, rtol=case.tolerance, atol=case.tolerance)
    else:
        np.testing.assert_array_equal(after, before)
        if not case.fast and np.asarray(before).dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(after)[after == after], np.signbit(before)[after == after])


def test_every_rule_has_a_case() -> None:
    names = {r.name for r in (*algebra_rules, *einsum_rules, *arranging_rules, *shape_rules, *moving_rules)}
    assert names == {c.rule for c in CASES}


@given(st.data())
def test_any_equation_of_two_operands_as_a_product(data: st.DataObject) -> None:
    """Labels in any order, with known and unknown sizes, beside NumPy's einsum."""
    first, second = (data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True)) for _ in "xy")
    kept = [a for a in dict.fromkeys(first + second) if (a in first) != (a in second) or data.draw(st.booleans())]
    equation = f"{''.join(first)},{''.join(second)}->{''.join(data.draw(st.permutations(kept)))}"
    size = {a: data.draw(st.integers(1, 4)) for a in kept} | {a: 3 for a in "abcdef" if a not in kept}
    arrays = [floats(*(size[a] for a in labels)) for labels in (first, second)]
    unknown = data.draw(st.booleans())
    with dt.Graph().as_default():
        x, y = (dt.placeholder(dt.float32, [None, *a.shape[1:]] if unknown else a.shape) for a in arrays)
        z = dt.einsum(equation, x, y)
    partition = partition_of([z], [x, y])
    done, fired = rewrite(partition, EVERYTHING)
    if not unknown:
        assert "Einstein summation as a product" in {f.rule for f in fired}
    (found,) = evaluate(done, arrays)
    assert found.shape == np.einsum(equation, *arrays).shape
    np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-5)


# --- where a rule must not fire --------------------------------------------------------------------------------------

LEFT_ALONE: dict[str, Callable[[Any], Any]] = {
    "a cast that loses": lambda x: dt.cast(dt.cast(x, dt.float16), dt.float32),
    "a sum over one operand": lambda x: dt.einsum("i,j->i", x, x),
    "a diagonal": lambda x: dt.einsum("ii,j->ij", dt.reshape(dt.tile(x, [12]), [12, 12]), x),
    "a fraction cut off": lambda x: dt.cast(dt.cast(x, dt.int32), dt.float32),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [12])
        y = LEFT_ALONE[name](x)
    partition = partition_of([y], [x])
    done, fired = rewrite(partition, EVERYTHING)
    assert {f.rule for f in fired} <= {"equal nodes", "constant"}
    (after,), (before,) = evaluate(done, [SPECIAL]), evaluate(partition, [SPECIAL])
    np.testing.assert_array_equal(np.asarray(after).view(np.uint8), np.asarray(before).view(np.uint8))


def test_attention_is_one_node_unless_somebody_else_takes_its_parts() -> None:
    arrays = floats(2, 3, 5, 4), floats(2, 3, 6, 4), floats(2, 3, 6, 7)
    with dt.Graph().as_default():
        q, k, v = feeds = [dt.placeholder(dt.float32, x.shape) for x in arrays]
        scores = dt.matmul(q, k, transpose_b=True) * 0.3
        p = dt.nn.softmax(scores)
        y = dt.matmul(p, v)
        for fetches in ([y, p], [y, scores]):
            assert fuse_attention(partition_of(fetches, feeds))[1] == ()
        partition = partition_of([y], feeds)
    fused, fired = fuse_attention(partition)
    assert [(f.rule, f.became) for f in fired] == [("attention", "Attention")]
    assert [s.type for s in fused.steps if isinstance(s, Node) and s.type != "Const"] == ["Attention"]
    (before,), (after,) = evaluate(partition, arrays), evaluate(fused, arrays)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_a_shape_that_is_given_later_may_not_fit() -> None:
    """The inferred shape is the only one that fits; what is fed may still be another, and that is an error."""
    with dt.Graph().as_default():
        x, n = dt.placeholder(dt.float32, [2]), dt.placeholder(dt.int32, [1])
        once = dt.reshape(x, n)
        twice = dt.reshape(once, [2, 1])
        with dt.Session(config=dt.ConfigProto(graph_rewrite=1)) as session:
            for fetched in (once, twice):
                assert session.run(fetched, {x: [1.0, 2.0], n: [2]}).size == 2
                with pytest.raises(dt.errors.InvalidArgumentError, match="reshape"):
                    session.run(fetched, {x: [1.0, 2.0], n: [3]})


# --- transposes and casts that move ------------------------------------------------------------------------------------


STAYS: dict[str, Callable[[Any], Any]] = {
    "a part that somebody else takes": lambda x: [channels_first(h := dt.abs(channels_last(x))), h],
    "another order": lambda x: [dt.transpose(dt.abs(channels_last(x)), [0, 2, 1, 3])],
    "one factor in the other order": lambda x: [channels_first(channels_last(x) + dt.reshape(x, [2, 4, 5, 3]))],
    "a large constant": lambda x: [channels_first(dt.transpose(x[..., :1], [0, 2, 3, 1]) * np.ones((2, 4, 4099, 3), np.float32))],
    "a bias, which is added to channels": lambda x: [channels_first(dt.nn.bias_add(channels_last(x), [1.0, 2.0, 3.0]))],
    "a sum over an axis": lambda x: [channels_first(dt.reduce_sum(channels_last(x), 3, keepdims=True))],
    "transposed for another one, too": lambda x: [dt.matmul(dt.abs(h := dt.transpose(x, [0, 1, 3, 2])), x), h],
    "wider, and somebody takes it": lambda x: [dt.transpose(w := dt.cast(x, dt.float64)), w],
    "wider where it is computed": lambda x: [dt.transpose(dt.cast(dt.exp(x), dt.float64))],
    "narrower where nothing is computed": lambda x: [dt.cast(dt.transpose(x), dt.float16)],
    "narrower for one of two": lambda x: [dt.cast(dt.transpose(h := dt.exp(x)), dt.float16), h],
    "more rows than the table has": lambda x: [dt.gather(dt.cast(x, dt.float64), [0, 1, 1])],
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_stays_where_it_is(name: str) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [2, 3, 4, 5])
        fetches = STAYS[name](x)
    fired = {f.rule for f in rewrite(partition_of(fetches, [x]), EVERYTHING)[1]}
    assert fired.isdisjoint({r.name for r in moving_rules})


def test_what_is_made_again_keeps_its_name_and_its_line() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 3, 4, 5])
        b = dt.placeholder(dt.float32, [None])
        moved = dt.add(channels_last(x), b, name="shifted")
        done, _ = rewrite(partition_of([channels_first(moved)], [x, b]), EVERYTHING)
    (node,) = [n for n in done.steps if isinstance(n, dt.Operation) and n.type == "AddV2"]
    assert node.name == "shifted"
    assert node.source == moved.op.source


def test_a_chain_of_any_length_is_looked_at_once() -> None:
    with dt.Graph().as_default():
        x = y = dt.placeholder(dt.float32, [2, 3])
        y = dt.transpose(y)
        for _ in range(3000):
            y = dt.sin(y)
        _, fired = rewrite(partition_of([dt.transpose(y)], [x]), EVERYTHING)
    assert {f.rule for f in fired} == {"equal nodes"}


ORDERS = list(itertools.permutations(range(3)))


@given(st.data())
def test_random_chains_give_the_same_bits(data: st.DataObject) -> None:
    """Chains whose transposes are undone somewhere, of small whole numbers: a product of them is exact in any order."""
    draw, rng = data.draw, np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    with dt.Graph().as_default():
        sizes = [draw(st.sampled_from((0, 1, 2, 3))) for _ in range(3)]
        values = [rng.integers(-3, 4, sizes).astype(t) for t in (np.float32, np.int16)]
        feeds = [dt.placeholder(v.dtype, [None, *sizes[1:]] if draw(st.booleans()) else sizes) for v in values]
        x, lies = draw(st.sampled_from(feeds)), [0, 1, 2]  # which axes of the feeds those of x are
        made = [x]
        for kind in draw(st.lists(st.sampled_from(sorted(_STEPS)), min_size=2, max_size=8)):
            turn = rng.integers(3)  # into another order, back, or neither
            if turn < 2:
                order = ORDERS[rng.integers(1, 6)] if turn == 0 or lies == [0, 1, 2] else np.argsort(lies)
                x, lies = dt.transpose(x, order), [lies[i] for i in order]
            if kind == "both":
                x = dt.sign(x - dt.cast(dt.transpose(feeds[rng.integers(2)], lies), x.dtype))
            else:
                x = _STEPS[kind](x, rng, sizes[lies[2]])
            made.append(x)
        x = dt.transpose(x, np.argsort(lies))
        if x.dtype.is_floating and x.dtype is not dt.float16:
            x = dt.matmul(x, x + 1.0, transpose_b=True)
        fetches = [x, draw(st.sampled_from(made))] if draw(st.integers(0, 3)) == 0 else [x]
        done, plain = (
            rewrite(partition_of(fetches, feeds), wanted)[0] for wanted in (EVERYTHING, NumpyBackend.options)
        )
    for a, b in zip(evaluate(done, values), evaluate(plain, values), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


_STEPS: dict[str, Any] = {
    "both": None,
    "abs": lambda x, rng, last: abs(x),
    "number": lambda x, rng, last: dt.minimum(x + dt.constant(1, x.dtype), dt.constant(3, x.dtype)),
    "vector": lambda x, rng, last: dt.minimum(x, rng.integers(0, 3, last).astype(x.dtype.np)),
    "wide": lambda x, rng, last: dt.cast(x, dt.float64),
    "narrow": lambda x, rng, last: dt.cast(x, dt.float16),
}
