"""Scans: cumulative sums and products along an axis. Also argmax and argmin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, graph_of
from ...core.constant_value import static_value
from ...core.dtypes import NUMBERS, as_dtype, bool_, int32, int64, widened
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from .arithmetic import div_no_nan, multiply
from .common import allowed, input_cost
from .static_operands import need_index, normal_axis, one_of


def _known_axis(x: Tensor, axis: Tensor) -> int | None:
    """The axis as a non-negative int, or None if it is not known statically. Checks the operand's type, rank and range."""
    need_index(axis, "the axis", 0)
    value = static_value(axis)
    return None if value is None or x.dims is None else normal_axis(int(value), len(x.dims))


# --- cumulative sums and products ---------------------------------------------------------------------------


def _scan_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, axis = inputs
    _known_axis(x, axis)
    for flag in ("exclusive", "reverse"):
        typed_attr(attrs, flag, bool)
    return [(allowed(x.dtype.base, NUMBERS), x.dims)]


def _scan(function: Callable[..., Any], neutral: int) -> Callable[..., Any]:
    def reference(x: Any, axis: Any, *, exclusive: bool, reverse: bool) -> Any:
        along, work = normal_axis(int(axis), x.ndim), widened(x)
        if reverse:
            work = np.flip(work, along)
        if exclusive and work.shape[along]:
            first = np.full_like(np.take(work, [0], along), neutral)
            work = np.concatenate([first, np.take(work, range(work.shape[along] - 1), along)], along)
        out = function(work, axis=along, dtype=work.dtype)
        if reverse:
            out = np.flip(out, along)
        return np.ascontiguousarray(out).astype(x.dtype, copy=False)

    return reference


def _cumsum_gradient(node: Node, grad: Tensor) -> list[Tensor | None]:
    attrs = node.attrs
    return [cumsum(grad, node.inputs[1], attrs["exclusive"], not attrs["reverse"]), None]


def _cumprod_gradient(node: Node, grad: Tensor) -> list[Tensor | None]:
    # Exact where x has no zeros. The gradient of a zero element is 0, as in TensorFlow.
    x, axis = node.inputs
    attrs = node.attrs
    weighted = multiply(node.outputs[0], grad)
    return [div_no_nan(cumsum(weighted, axis, attrs["exclusive"], not attrs["reverse"]), x), None]


define("Cumsum", _scan_rule, _scan(np.cumsum, 0), gradient=_cumsum_gradient, cost=input_cost(1.0))
define("Cumprod", _scan_rule, _scan(np.cumprod, 1), gradient=_cumprod_gradient, cost=input_cost(1.0))


def _apply_scan(op: str, x: TensorLike, axis: Any, exclusive: bool, reverse: bool, name: str | None) -> Tensor:
    attrs = {"exclusive": bool(exclusive), "reverse": bool(reverse)}
    if isinstance(x, Tensor) and isinstance(axis, Tensor):
        return apply(op, (x, axis), attrs, name)
    with graph_of(x, axis).op_scope(name or op) as scope:
        return apply(op, (convert(x, name="x"), convert(axis, name="axis")), attrs, scope)


def cumsum(
    x: TensorLike, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Cumulative sums along an axis.

    Args:
        x: tensor of any numeric type. The result has its shape and type.
        axis: an int, which may be negative, or a scalar int tensor.
        exclusive: leave each element out of its own sum: `[0, a, a + b]`.
        reverse: sum from the end: `[a + b + c, b + c, c]`.
        name: name of the node.

    >>> cumsum([1, 2, 3])   # evaluates to [1, 3, 6]
    """
    return _apply_scan("Cumsum", x, axis, exclusive, reverse, name)


def cumprod(
    x: TensorLike, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Cumulative products along an axis (see `cumsum`). The gradient of an element that is 0 is 0, as in TensorFlow."""
    return _apply_scan("Cumprod", x, axis, exclusive, reverse, name)


# --- argmax and argmin --------------------------------------------------------------------------------------


def _arg_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, axis = inputs
    allowed(x.dtype.base, (*NUMBERS, bool_))
    if x.dims == ():
        raise ValueError("the input must have at least one axis")
    over = _known_axis(x, axis)
    output_type = attrs.get("output_type")
    if output_type not in (int32, int64):
        raise ValueError(f"attribute output_type must be int32 or int64, not {output_type!r}")
    if x.dims is None:
        return [(output_type, None)]
    if over is None:
        return [(output_type, (None,) * (len(x.dims) - 1))]
    return [(output_type, x.dims[:over] + x.dims[over + 1 :])]


def _arg(function: Callable[..., Any]) -> Callable[..., Any]:
    def reference(x: Any, axis: Any, *, output_type: Any) -> Any:
        return np.asarray(function(x, axis=normal_axis(int(axis), x.ndim))).astype(output_type.np)

    return reference


define("ArgMax", _arg_rule, _arg(np.argmax), cost=input_cost(1.0))
define("ArgMin", _arg_rule, _arg(np.argmin), cost=input_cost(1.0))


def _apply_arg(op: str, x: TensorLike, axis: Any, dimension: Any, output_type: Any, name: str | None) -> Tensor:
    axis = one_of(axis, dimension, "axis", "dimension")
    axis = 0 if axis is None else axis
    attrs = {"output_type": as_dtype(output_type)}
    if isinstance(x, Tensor) and isinstance(axis, Tensor):
        return apply(op, (x, axis), attrs, name)
    with graph_of(x, axis).op_scope(name or op) as scope:
        return apply(op, (convert(x, name="input"), convert(axis, name="dimension")), attrs, scope)


def argmax(
    input: TensorLike,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: Any = int64,
) -> Tensor:
    """The index of the largest element along an axis. Of equal elements, the first.

    Args:
        input: tensor of any numeric type or bool.
        axis: an int, which may be negative, or a scalar int tensor. None means 0.
        name: name of the node.
        dimension: old name of `axis`.
        output_type: int64 or int32.

    Returns:
        The indices. Their shape is the input's without that axis.

    >>> argmax([[1, 5, 2]], axis=1)   # evaluates to [1]
    """
    return _apply_arg("ArgMax", input, axis, dimension, output_type, name)


def argmin(
    input: TensorLike,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: Any = int64,
) -> Tensor:
    """The index of the smallest element along an axis. Of equal elements, the first (see `argmax`)."""
    return _apply_arg("ArgMin", input, axis, dimension, output_type, name)
