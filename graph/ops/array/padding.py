"""Padding and tiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.constant_value import partly_known, static_value
from ...core.dtypes import Array
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, choice_attr, define
from ...core.places import Place, Places, checked_places
from ...core.rows import sum_rows
from ...core.shape import of_rank, text
from ..math.common import same_type
from ..math.reduce import reduce_sum
from ..math.static_operands import (
    Index,
    apply_op,
    dims_of,
    index_operand,
    known_rank,
    move_cost,
    need_index,
    need_rank,
    op_scope,
    static_ints,
)
from .concat_stack import stack
from .ranges import range as range_
from .shapes import reshape, shape, size, transpose

# --- tile ---------------------------------------------------------------------------------------------------


def _tile_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, multiples = inputs
    need_index(multiples, "multiples", 1)
    rank = len(x.dims) if x.dims is not None else multiples.dims[0] if multiples.dims else None
    if rank is None:
        return [(x.dtype.base, None)]
    if multiples.dims is not None and multiples.dims[0] not in (rank, None):
        raise ValueError(f"multiples must have one number for each of the {rank} dimensions, not {multiples.dims[0]}")
    times = partly_known(multiples)
    dims = (None,) * rank if x.dims is None else x.dims
    if times is None:
        return [(x.dtype.base, of_rank(rank))]
    if any(m is not None and m < 0 for m in times):
        raise ValueError(f"multiples must not be negative: {times}")
    return [(x.dtype.base, tuple(_times(d, m) for d, m in zip(dims, times, strict=True)))]


def _times(d: int | None, m: int | None) -> int | None:
    if d == 0 or m == 0:
        return 0
    return None if d is None or m is None else d * m


def _tile(x: Array, multiples: Array) -> Array:
    if len(multiples) != x.ndim or (multiples < 0).any():
        raise invalid(
            f"multiples {multiples.tolist()} must have one number, not negative, for each dimension of {text(x.shape)}"
        )
    pairs = [size for pair in zip(dims_of(multiples), x.shape, strict=True) for size in pair]
    out = np.empty(pairs, x.dtype)  # [m0, d0, m1, d1, ...]: the copies are along the even dimensions
    out[...] = x.reshape([d for size in x.shape for d in (1, size)])
    return out.reshape([m * d for m, d in zip(pairs[::2], pairs[1::2], strict=True)])


def _tile_gradient(node: Node, grad: Any) -> Sequence[Any]:
    # Reshaped to [m0, d0, m1, d1, ...], the gradient has the copies along the even dimensions.
    x, multiples = node.inputs
    rank = known_rank((x,))
    pairs = reshape(transpose(stack([multiples, shape(x, out_type=multiples.dtype.base)])), [-1])
    copies = range_(0, size(pairs), 2) if rank is None else list(range(0, 2 * rank, 2))
    return [reduce_sum(reshape(grad, pairs), copies), None]


define("Tile", _tile_rule, _tile, gradient=_tile_gradient, cost=move_cost)


def tile(input: TensorLike, multiples: TensorLike, name: str | None = None) -> Tensor:
    """Repeat a tensor `multiples[i]` times along each dimension `i`."""
    return apply_op("Tile", name, input=input, multiples=Index(multiples))


# --- pad ----------------------------------------------------------------------------------------------------


def _padded(x: Tensor, paddings: Tensor, sign: int = 1) -> Output:
    """The output type and shape of padding (sign 1), or of removing padding (sign -1)."""
    need_index(paddings, "paddings")
    if paddings.dims is not None and (len(paddings.dims) != 2 or paddings.dims[1] not in (2, None)):
        raise ValueError(f"paddings must have shape (rank, 2), not {text(paddings.dims)}")
    rank = len(x.dims) if x.dims is not None else paddings.dims[0] if paddings.dims else None
    if rank is None:
        return x.dtype.base, None
    if paddings.dims is not None and paddings.dims[0] not in (rank, None):
        raise ValueError(f"paddings must have one row for each of the {rank} dimensions, not {paddings.dims[0]}")
    rows = partly_known(paddings)
    if rows is None or x.dims is None:
        return x.dtype.base, of_rank(rank)
    if any(v is not None and v < 0 for row in rows for v in row):
        raise ValueError(f"paddings must not be negative: {rows}")
    dims = tuple(None if d is None or None in row else d + sign * sum(row) for d, row in zip(x.dims, rows, strict=True))
    if any(d is not None and d < 0 for d in dims):
        raise ValueError(f"paddings {rows} are larger than the shape {text(x.dims)}")
    return x.dtype.base, dims


def _pad_v2_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, paddings, value = inputs
    need_rank(value.dims, 0, "constant_values")
    same_type((x, value))
    return [_padded(x, paddings)]


def _pad_widths(x: Array, paddings: Array) -> list[tuple[int, int]]:
    if paddings.shape != (x.ndim, 2) or (paddings < 0).any():
        raise invalid(
            f"paddings {paddings.tolist()} must have one pair, not negative, for each dimension of {text(x.shape)}"
        )
    return [(int(before), int(after)) for before, after in paddings]


def _pad_v2(x: Array, paddings: Array, value: Array | None = None) -> Array:
    widths = _pad_widths(x, paddings)
    fill = (b"" if x.dtype == object else 0) if value is None else value
    out = np.full([b + d + a for (b, a), d in zip(widths, x.shape, strict=True)], fill, x.dtype)
    out[tuple(slice(b, b + d) for (b, _), d in zip(widths, x.shape, strict=True))] = x
    return out


def _pad_places(node: Node) -> Sequence[Places | None] | None:
    flat = static_ints(node.inputs[1])
    if flat is None:
        return None
    margins = enumerate(zip(flat[::2], flat[1::2], strict=True))
    return [checked_places(node, 0, [Place(d, -low, 1, low == high == 0, True) for d, (low, high) in margins])]


define("Pad", lambda inputs, attrs: [_padded(*inputs)], _pad_v2, places=_pad_places, cost=move_cost)
define("PadV2", _pad_v2_rule, _pad_v2, places=_pad_places, cost=move_cost)

# Mode -> number of edge elements that are not repeated. REFLECT does not repeat the edge element, SYMMETRIC does.
MIRROR_OFFSETS = {"REFLECT": 1, "SYMMETRIC": 0}


def _mirror_offset(attrs: Attrs) -> int:
    return MIRROR_OFFSETS[choice_attr(attrs, "mode", MIRROR_OFFSETS)]


def _mirror_pad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, paddings = inputs
    offset = _mirror_offset(attrs)
    output = _padded(x, paddings)
    rows = static_value(paddings)
    if rows is not None and x.dims is not None:
        for i, (d, row) in enumerate(zip(x.dims, rows, strict=True)):
            if d is not None and max(row) > d - offset:
                raise ValueError(
                    f"paddings {[int(v) for v in row]} of dimension {i} reach beyond its mirror: its size is {d}"
                )
    return [output]


def _mirror_index(size: int, before: int, after: int, offset: int) -> Array:
    """For each position of a padded dimension, the position of the input from which it is copied."""
    if max(before, after) > size - offset:
        raise invalid(f"paddings ({before}, {after}) reach beyond the mirror of a dimension of size {size}")
    inner = np.arange(size)
    return np.concatenate(
        [inner[offset : offset + before][::-1], inner, inner[size - offset - after : size - offset][::-1]]
    )


def _mirror_pad(x: Array, paddings: Array, *, mode: str) -> Array:
    for axis, (before, after) in enumerate(_pad_widths(x, paddings)):
        x = np.take(x, _mirror_index(x.shape[axis], before, after, MIRROR_OFFSETS[mode]), axis)
    return x


def _mirror_pad_grad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    grad, paddings = inputs
    _mirror_offset(attrs)
    return [_padded(grad, paddings, -1)]


def _mirror_pad_grad(grad: Array, paddings: Array, *, mode: str) -> Array:
    for axis, (before, after) in enumerate(_pad_widths(grad, paddings)):
        size = grad.shape[axis] - before - after
        sources = _mirror_index(size, before, after, MIRROR_OFFSETS[mode])
        grad = np.moveaxis(sum_rows(np.moveaxis(grad, axis, 0), sources, size), 0, axis)
    return grad


for _name, _rule, _reference, _transpose in (
    ("MirrorPad", _mirror_pad_rule, _mirror_pad, "MirrorPadGrad"),
    ("MirrorPadGrad", _mirror_pad_grad_rule, _mirror_pad_grad, "MirrorPad"),
):
    define(
        _name,
        _rule,
        _reference,
        gradient=lambda node, grad, op=_transpose: [apply(op, (grad, node.inputs[1]), dict(node.attrs)), None],
        cost=move_cost,
    )


def pad(
    tensor: TensorLike,
    paddings: TensorLike,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: TensorLike = 0,
) -> Tensor:
    """Add elements before and after those of a tensor, along each dimension.

    Args:
        tensor: the tensor.
        paddings: int32 or int64 `[rank, 2]`: the number of elements before and after, for each dimension.
        mode: "CONSTANT" (filled with `constant_values`), "REFLECT" (mirrored without the edge element) or "SYMMETRIC" (with it).
        name: name of the node.
        constant_values: the fill value of the mode "CONSTANT", a scalar.

    Raises:
        ValueError: the paddings do not fit the rank, a mirrored padding is larger than the tensor, or the mode is unknown.

    >>> pad([1, 2, 3], [[2, 0]], "REFLECT")   # evaluates to [3, 2, 1, 2, 3]
    """
    mode = mode.upper()
    if mode in MIRROR_OFFSETS:
        return apply_op("MirrorPad", name, {"mode": mode}, input=tensor, paddings=Index(paddings))
    if mode != "CONSTANT":
        raise ValueError(f"mode must be CONSTANT, REFLECT or SYMMETRIC, not {mode!r}")
    if not isinstance(constant_values, Tensor) and np.ndim(constant_values) == 0 and not constant_values:
        return apply_op("Pad", name, input=tensor, paddings=Index(paddings))
    with op_scope(name, "PadV2", tensor, paddings, constant_values) as scope:
        x, widths = convert(tensor, name="input"), index_operand(paddings, "paddings")
        value = convert(constant_values, name="constant_values", prefer=x.dtype.base)
        return apply("PadV2", (x, widths, value), None, scope)
