"""Slices: `Slice`, and `StridedSlice`, which computes `t[1:, ..., None, -1]`.

A `StridedSlice` encodes its slice specs in three vectors (begin, end, strides) and five bit masks, as in TensorFlow. Bit `i` of a mask is
about spec `i`: its begin or end is omitted, it is an ellipsis, it inserts a new axis, or it is a single index that removes its axis.
Python's indexing has all of these. So `python_index` decodes the specs to a Python index, from which NumPy computes the values and the
shape rule the sizes.
"""

from __future__ import annotations

from builtins import slice as py_slice
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.constant_value import static_dims
from ...core.dtypes import Array, int64
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define, set_gradient, typed_attr
from ...core.places import Place, Places, checked_places
from ...core.shape import MAX_RANK, Dims, compatible, of_rank, text
from ..math.common import same_type
from ..math.reduce import reduce_sum
from ..math.static_operands import Index, apply_op, dims_of, need_index, no_cost, static_int, static_ints, write_cost
from .concat_stack import stack
from .padding import pad
from .shapes import reshape, shape

# --- slice: begin and size ----------------------------------------------------------------------------------


def _slice_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, begin, size = inputs
    same_type((begin, size))
    for t, what in ((begin, "begin"), (size, "size")):
        need_index(t, what, 1)
    lengths = {t.dims[0] for t in (begin, size) if t.dims is not None} - {None}
    if x.dims is not None:
        lengths.add(len(x.dims))
    if len(lengths) > 1:
        raise ValueError(f"begin and size must have one number for each dimension of {text(x.dims)}")
    if not lengths:
        return [(x.dtype.base, None)]
    (rank,) = lengths
    begins, sizes = static_ints(begin), static_ints(size)
    dims = x.dims if x.dims is not None else of_rank(rank)
    if dims is None or sizes is None:
        partial = static_dims(size)  # -1 reads as unknown here, which is right for both
        return [(x.dtype.base, partial if partial is not None else of_rank(rank))]
    out: list[int | None] = []
    for i, (d, count) in enumerate(zip(dims, sizes, strict=True)):
        start = None if begins is None else begins[i]
        rest = None if d is None or start is None else d - start
        starts_outside = start is not None and (start < 0 or (rest is not None and rest < 0))
        room = rest if rest is not None else d
        if starts_outside or count < -1 or (room is not None and count > room):
            raise ValueError(f"slice of {count} from {start} does not lie in dimension {i} of size {d}")
        out.append(rest if count == -1 else count)
    return [(x.dtype.base, tuple(out))]


def _slice(x: Array, begin: Array, size: Array) -> Array:
    starts, counts = dims_of(begin), dims_of(size)
    if len(starts) == len(counts) == x.ndim:
        counts = [d - b if s == -1 else s for b, s, d in zip(starts, counts, x.shape, strict=True)]
        if all(b >= 0 and s >= 0 and b + s <= d for b, s, d in zip(starts, counts, x.shape, strict=True)):
            return x[tuple(py_slice(b, b + s) for b, s in zip(starts, counts, strict=True))]
    raise invalid(f"Slice of {dims_of(size)} from {starts} does not lie in shape {text(x.shape)}")


def _slice_gradient(node: Node, grad: Any) -> Sequence[Any]:
    x, begin, _ = node.inputs
    index_type = begin.dtype.base
    grad = convert(grad)
    after = shape(x, out_type=index_type) - begin - shape(grad, out_type=index_type)
    return [pad(grad, stack([begin, after], axis=1)), None, None]


def _slice_places(node: Node) -> Sequence[Places | None] | None:
    begins, sizes = static_ints(node.inputs[1]), static_ints(node.inputs[2])
    if begins is None or sizes is None:
        return None
    spans = enumerate(zip(begins, sizes, strict=True))
    return [checked_places(node, 0, [Place(d, b, is_whole=b == 0 and n == -1) for d, (b, n) in spans])]


define("Slice", _slice_rule, _slice, gradient=_slice_gradient, places=_slice_places, cost=no_cost)


def slice(input_: TensorLike, begin: TensorLike, size: TensorLike, name: str | None = None) -> Tensor:
    """A block of a tensor: `size[i]` elements from `begin[i]` on, along each dimension `i`.

    Args:
        input_: a tensor.
        begin: the first index along each dimension.
        size: the number of elements along each dimension. -1 means all that follow.
        name: name of the node.

    Raises:
        ValueError: the block is not inside the tensor. InvalidArgumentError if only the step knows.
    """
    if any(isinstance(v, Tensor) and v.dtype.base is int64 for v in (begin, size)):  # both operands must be int64
        begin, size = (v if isinstance(v, Tensor) else convert(v, int64) for v in (begin, size))
    return apply_op("Slice", name, input=input_, begin=Index(begin), size=Index(size))


# --- strided slices: the encoding ---------------------------------------------------------------------------

Subscript: TypeAlias = "int | py_slice | EllipsisType | None"

MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def python_index(
    begin: Sequence[int], end: Sequence[int], strides: Sequence[int], masks: Attrs
) -> tuple[Subscript, ...]:
    """Decode a strided slice to a Python index.

    >>> python_index([0, 1], [0, 2], [1, 1], {"ellipsis_mask": 1, "shrink_axis_mask": 2})
    (Ellipsis, 1)
    """
    out: list[Subscript] = []
    for i, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        kind = _kind(masks, i)
        if kind == "ellipsis":
            out.append(...)
        elif kind == "new_axis":
            out.append(None)
        elif kind == "shrink":
            if step <= 0:
                raise ValueError("a single index must have a positive stride")
            out.append(int(first))
        else:
            if step == 0:
                raise ValueError(f"strides[{i}] must not be zero")
            from_start, to_end = (masks.get(m, 0) >> i & 1 for m in ("begin_mask", "end_mask"))
            out.append(py_slice(None if from_start else int(first), None if to_end else int(last), int(step)))
    return tuple(out)


def _kind(masks: Attrs, i: int) -> str:
    """The kind of spec `i`. If several bits are set, they take precedence in TensorFlow's order."""
    for kind in ("ellipsis", "new_axis"):
        if masks.get(f"{kind}_mask", 0) >> i & 1:
            return kind
    return "shrink" if masks.get("shrink_axis_mask", 0) >> i & 1 else "slice"


def _sliced_dims(dims: Dims, count: int, masks: Attrs, index: tuple[Subscript, ...] | None) -> Dims:
    """The shape of a strided slice of `count` specs. `index` is None if strides are not known statically.

    Raises:
        ValueError: more specs than dimensions, or an index outside of its dimension.
    """
    kinds = [_kind(masks, i) for i in range(count)]
    if kinds.count("ellipsis") > 1:
        raise ValueError("only one ellipsis is allowed")
    if dims is None:
        return None
    used = sum(k in ("slice", "shrink") for k in kinds)
    if used > len(dims):
        raise ValueError(f"{used} indices for the {len(dims)} dimensions of {text(dims)}")
    if "ellipsis" not in kinds:
        kinds.append("ellipsis")
    out: list[int | None] = []
    axis = 0
    for i, kind in enumerate(kinds):
        if kind == "ellipsis":
            skipped = len(dims) - used
            out.extend(dims[axis : axis + skipped])
            axis += skipped
        elif kind == "new_axis":
            out.append(1)
        else:
            size = dims[axis]
            spec = index[i] if index is not None else None
            if kind == "slice":
                out.append(_slice_size(spec, size) if isinstance(spec, py_slice) else None)
            elif isinstance(spec, int) and size is not None and not -size <= spec < size:
                raise ValueError(f"index {spec} is out of bounds for dimension {axis} of size {size}")
            axis += 1
    return tuple(out)


def _slice_size(spec: py_slice, size: int | None) -> int | None:
    """The number of elements that a Python slice takes of a dimension. None if that depends on an unknown size."""
    if size is not None:
        return len(range(*spec.indices(size)))
    # Between two ends counted from the same side there are at most `stop - start` elements, so only an empty slice is certain.
    if spec.start is not None and spec.stop is not None and (spec.start < 0) == (spec.stop < 0):
        return 0 if len(range(spec.start, spec.stop, spec.step)) == 0 else None
    return None


def _need_encoding(vectors: Sequence[Tensor], attrs: Attrs) -> int | None:
    """Check the three vectors and five masks. Returns the number of specs, None if it is unknown."""
    same_type(vectors)
    for mask in MASKS:
        if mask in attrs:
            typed_attr(attrs, mask, int)
    counts = set()
    for t, what in zip(vectors, ("begin", "end", "strides"), strict=True):
        need_index(t, what, 1)
        if t.dims is not None and t.dims[0] is not None:
            counts.add(t.dims[0])
    if len(counts) > 1:
        raise ValueError(f"begin, end and strides must have equal lengths, not {sorted(counts)}")
    count = counts.pop() if counts else None
    if count is not None and count > MAX_RANK:
        raise ValueError(f"there may be {MAX_RANK} indices, not {count}")
    return count


def _strided_slice_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, begin, end, strides = inputs
    return [(x.dtype.base, sliced_dims(x.dims, begin, end, strides, attrs))]


def sliced_dims(dims: Dims, begin: Tensor, end: Tensor, strides: Tensor, attrs: Attrs) -> Dims:
    """The shape of a strided slice, as far as it is known. TypeError or ValueError if the encoding is invalid or does not fit the shape."""
    count = _need_encoding((begin, end, strides), attrs)
    return None if count is None else _sliced_dims(dims, count, attrs, _static_index(begin, end, strides, count, attrs))


def _static_index(
    begin: Tensor, end: Tensor, strides: Tensor, count: int, masks: Attrs
) -> tuple[Subscript, ...] | None:
    """The Python index as far as it is known statically. An ellipsis stands for a spec that is not fully known."""
    known = [static_ints(t) for t in (begin, end, strides)]
    if known[2] is None:
        return None
    if known[0] is not None and known[1] is not None:
        return python_index(known[0], known[1], known[2], masks)
    # Some specs may be fully known, such as the second one of `t[:n, 1:]` for a tensor n.
    firsts, lasts = _partial(begin, count), _partial(end, count)
    out: list[Subscript] = []
    for i, step in enumerate(known[2]):
        no_begin, no_end = (bool(masks.get(m, 0) >> i & 1) for m in ("begin_mask", "end_mask"))
        kind = _kind(masks, i)
        first, last = firsts[i], lasts[i]
        if kind == "shrink" and first is not None:
            out.append(first)
        elif kind == "slice" and (no_begin or first is not None) and (no_end or last is not None):
            out.append(py_slice(None if no_begin else first, None if no_end else last, step))
        else:
            out.append(...)
    return tuple(out)


def _partial(vector: Tensor, count: int) -> list[int | None]:
    """The elements of a vector that are known statically: those of a Const, or constants among the inputs of a Pack."""
    exact = static_ints(vector)
    if exact is not None:
        return list(exact)
    if vector.op.type == "Pack" and len(vector.op.inputs) == count:
        return [static_int(t) if t.dims == () else None for t in vector.op.inputs]
    return [None] * count


def checked_index(
    dims: tuple[int, ...], begin: Array, end: Array, strides: Array, masks: Attrs
) -> tuple[Subscript, ...]:
    """The Python index of a strided slice of an array of shape `dims`. InvalidArgumentError unless it fits."""
    try:
        index = python_index(dims_of(begin), dims_of(end), dims_of(strides), masks)
        _sliced_dims(dims, len(index), masks, index)
    except ValueError as e:
        raise invalid(f"Cannot slice shape {text(dims)}: {e}") from None
    return index


def _strided_slice(x: Array, begin: Array, end: Array, strides: Array, **masks: int) -> Array:
    # asarray, because an element of an object array is not an array.
    return np.asarray(x[checked_index(x.shape, begin, end, strides, masks)], x.dtype)


def _strided_slice_gradient(node: Node, grad: Any) -> Sequence[Any]:
    x, begin, end, strides = node.inputs
    dims = shape(x, out_type=begin.dtype.base)
    back = apply("StridedSliceGrad", (dims, begin, end, strides, convert(grad)), dict(node.attrs))
    return [back, None, None, None]


def _strided_slice_places(node: Node) -> Sequence[Places | None] | None:
    x, *vectors = node.inputs
    begin, end, strides = map(static_ints, vectors)
    if begin is None or end is None or strides is None:
        return None
    index, dims = python_index(begin, end, strides, node.attrs), x.dims or ()
    at = index.index(...) if ... in index else len(index)
    rest = (py_slice(None),) * (len(dims) - sum(isinstance(s, int | py_slice) for s in index))
    places, made, sizes = [], 0, iter(dims)
    for s in (*index[:at], *rest, *index[at + 1 :]):
        if isinstance(s, py_slice):
            size = next(sizes)
            if size is None and s not in (py_slice(None), py_slice(None, None, 1)):
                return None
            first, _, step = s.indices(size or 0)
            places.append(Place(made, first, step, size is None))
        elif isinstance(s, int):
            size = next(sizes)
            places.append(Place(None, s % size if size else s, is_whole=False))
        made += not isinstance(s, int)
    return [checked_places(node, 0, places)]


define(
    "StridedSlice",
    _strided_slice_rule,
    _strided_slice,
    gradient=_strided_slice_gradient,
    places=_strided_slice_places,
    cost=no_cost,
)


def _strided_slice_grad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    wanted, begin, end, strides, grad = inputs
    need_index(wanted, "shape")
    dims = static_dims(wanted)
    sliced = sliced_dims(dims, begin, end, strides, attrs)
    if not compatible(sliced, grad.dims):
        raise ValueError(f"the slice has shape {text(sliced)}, its gradient {text(grad.dims)}")
    return [(grad.dtype.base, dims)]


def _strided_slice_grad(wanted: Array, begin: Array, end: Array, strides: Array, grad: Array, **masks: int) -> Array:
    dims = tuple(dims_of(wanted))
    out = np.zeros(dims, grad.dtype)
    out[checked_index(dims, begin, end, strides, masks)] = grad
    return out


define(
    "StridedSliceGrad",
    _strided_slice_grad_rule,
    _strided_slice_grad,
    gradient=lambda node, grad: [
        *[None] * 4,
        apply("StridedSlice", (convert(grad), *node.inputs[1:4]), dict(node.attrs)),
    ],
    cost=write_cost,
)


# --- the gradient of padding is a slice ----------------------------------------------------------------------


def _pad_gradient(node: Node, grad: Any) -> Sequence[Any]:
    x, paddings = node.inputs[:2]
    before = reshape(slice(paddings, [0, 0], [-1, 1]), [-1])
    return [slice(grad, before, shape(x, out_type=paddings.dtype.base)), *[None] * (len(node.inputs) - 1)]


def _pad_v2_gradient(node: Node, grad: Any) -> Sequence[Any]:
    inside, _, _ = _pad_gradient(node, grad)
    return [inside, None, reduce_sum(grad) - reduce_sum(inside)]


set_gradient("Pad", _pad_gradient)
set_gradient("PadV2", _pad_v2_gradient)
