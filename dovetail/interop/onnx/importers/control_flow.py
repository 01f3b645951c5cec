"""Branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....graph.control_flow.cond_while import cond, while_loop
from ....graph.core.build import constant
from ....graph.core.constant_value import static_value
from ....graph.core.dtypes import DType, bool_, int32, int64
from ....graph.core.graph import Tensor
from ....graph.core.shape import Dims, TensorShape, common
from ....graph.ops.array.gather import gather, reverse
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.array.shapes import reshape, shape, transpose
from ....graph.ops.control.tensor_array import TensorArray
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import logical_and
from ..registry import Body, Call, UnsupportedError, imports, normalize_axis

Types = list[tuple[DType, Dims]]


@imports("If")
def if_(call: Call, condition: Tensor) -> list[Tensor]:
    """Imports a conditional. If the condition is known, only the selected branch is built."""
    yes, no = call.attr("then_branch"), call.attr("else_branch")
    known = static_value(condition)
    if known is not None:
        return [identity(t) for t in (yes if bool(known.ravel()[0]) else no)()]
    made = cond(reshape(condition, []), lambda: yes(), lambda: no(), strict=True)
    return list(made)


def _invariant_types(body: Body, before: Types, carried: Types, skip: int, after: Types) -> tuple[Types, Types]:
    """Returns types and shapes of the carried values that hold in all iterations, and those of the body's outputs.

    Args:
        body: the body of the loop.
        before: types and shapes of the body's inputs before the carried values.
        carried: types and shapes of the carried values before the loop.
        skip: number of outputs before the carried values.
        after: types and shapes of the body's inputs after the carried values.
    """
    while True:
        made = body.result_types([*before, *carried, *after])
        wider = [(t, common(d, m)) for (t, d), (_, m) in zip(carried, made[skip:], strict=False)]
        if wider == carried:
            return carried, made
        carried = wider


@imports("Loop")
def loop(call: Call, trips: Tensor | None, going: Tensor | None, *first: Tensor) -> list[Tensor]:
    """Imports a loop that runs while the condition holds, at most the trip count. The scan outputs of the iterations are stacked."""
    body: Body = call.attr("body")
    count = len(first)
    head: Types = [(int64, ()), (bool_, ())]
    carried, made = _invariant_types(body, head, [(t.dtype.base, t.dims) for t in first], 1, [])
    lists = [TensorArray(t, 0, dynamic_size=True, element_shape=TensorShape(d)) for t, d in made[1 + count :]]
    limit = None if trips is None else reshape(trips, [])
    go = constant(True) if going is None else reshape(going, [])

    def more(i: Tensor, keep: Tensor, values: Sequence[Tensor], out: Sequence[TensorArray]) -> Tensor:
        return keep if limit is None else logical_and(i < limit, keep)

    def step(i: Tensor, keep: Tensor, values: Sequence[Tensor], out: Sequence[TensorArray]) -> tuple[Any, ...]:
        keep, *results = body(i, keep, *values)
        at = cast(i, int32)
        written = [a.write(at, v) for a, v in zip(out, results[count:], strict=True)]
        return i + 1, reshape(keep, []), [identity(r) for r in results[:count]], written

    shapes = (
        TensorShape(()),
        TensorShape(()),
        [TensorShape(d) for _, d in carried],
        [TensorShape(None) for _ in lists],
    )
    start = (constant(0, int64), go, list(first), lists)
    _, _, values, out = while_loop(more, step, start, shape_invariants=shapes)
    return [*values, *(a.stack() for a in out)]


@imports("Scan")
def scan(call: Call, *inputs: Tensor) -> list[Tensor]:
    """Imports a loop over slices of its inputs. The outputs of the iterations are stacked."""
    if call.opset < 9:
        raise UnsupportedError("Scan of an opset before 9")
    body: Body = call.attr("body")
    many = call.attr("num_scan_inputs")
    first, xs = inputs[: len(inputs) - many], inputs[len(inputs) - many :]
    axes = [
        normalize_axis(a, len(call.dims(x)))
        for a, x in zip(call.attr("scan_input_axes") or [0] * many, xs, strict=True)
    ]
    turned = call.attr("scan_input_directions") or [0] * many
    xs = tuple(reverse(x, [a]) if t else x for x, a, t in zip(xs, axes, turned, strict=True))
    slices: Types = [
        (x.dtype.base, tuple(n for i, n in enumerate(call.dims(x)) if i != a)) for x, a in zip(xs, axes, strict=True)
    ]
    carried, made = _invariant_types(body, [], [(t.dtype.base, t.dims) for t in first], 0, slices)
    length = shape(xs[0])[axes[0]]
    lists = [TensorArray(t, length, element_shape=TensorShape(d)) for t, d in made[len(first) :]]

    def step(i: Tensor, values: Sequence[Tensor], out: Sequence[TensorArray]) -> tuple[Any, ...]:
        results = body(*values, *(gather(x, i, axis=a) for x, a in zip(xs, axes, strict=True)))
        written = [a.write(i, v) for a, v in zip(out, results[len(first) :], strict=True)]
        return i + 1, [identity(r) for r in results[: len(first)]], written

    shapes = (TensorShape(()), [TensorShape(d) for _, d in carried], [TensorShape(None) for _ in lists])
    _, values, out = while_loop(
        lambda i, *_: i < length, step, (constant(0), list(first), lists), shape_invariants=shapes
    )
    stacked = [a.stack() for a in out]
    ends = call.attr("scan_output_axes") or [0] * len(stacked)
    back = call.attr("scan_output_directions") or [0] * len(stacked)
    stacked = [reverse(s, [0]) if b else s for s, b in zip(stacked, back, strict=True)]
    return [*values, *(_moved(call, s, axis) for s, axis in zip(stacked, ends, strict=True))]


def _moved(call: Call, x: Tensor, axis: int) -> Tensor:
    """Returns a tensor with its first axis moved to another position."""
    rank = len(call.dims(x))
    axis = normalize_axis(axis, rank)
    order = list(range(1, rank))
    order.insert(axis, 0)
    return transpose(x, order) if axis else x
