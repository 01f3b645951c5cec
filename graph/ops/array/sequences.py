"""Repeated elements; masks and reversal of sequences of different lengths."""

from __future__ import annotations

from builtins import range as py_range
from typing import Any

import numpy as np

from ...core.build import TensorLike, constant, convert
from ...core.dtypes import bool_, int32
from ...core.graph import Tensor
from ...core.shape import compatible, text
from ..math.arithmetic import maximum
from ..math.cast import cast
from ..math.compare import less, logical_or, where_v2
from ..math.reduce import reduce_max, reduce_sum
from ..math.scan import cumsum
from ..math.static_operands import (
    INDEX_TYPES,
    index_operand,
    normal_axis,
    op_scope,
    static_ints,
)
from .concat_stack import concat, stack
from .dynamic_partition import setdiff1d
from .gather import gather_densely, gather_nd
from .padding import tile
from .ranges import range as range_
from .shapes import expand_dims, invert_permutation, rank, reshape, shape, transpose
from .sorting import searchsorted

# --- repeat -------------------------------------------------------------------------------------------------


def repeat(input: TensorLike, repeats: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Repeat each element, or each slice along an axis.

    Args:
        input: a tensor. A scalar counts as a vector of one element.
        repeats: how often each is repeated: one number for all, or a vector with a number for each. A slice whose number is 0, or negative
            in a vector, is left out.
        axis: the axis. None means that the input is flattened first.
        name: name scope of the nodes.

    Raises:
        ValueError: `repeats` has more than one axis, or its length is not the size of the axis.

    >>> repeat([[1, 2], [3, 4]], [2, 1], axis=0)   # [[1, 2], [1, 2], [3, 4]]
    """
    with op_scope(name, "Repeat", input, repeats):
        x = convert(input, name="input")
        counts = cast(index_operand(repeats, "repeats"), int32)
        if axis is None or x.dims == ():
            x, axis = reshape(x, [-1]), axis or 0
        if x.dims is not None:
            axis = normal_axis(axis, len(x.dims))
        if counts.dims is None or len(counts.dims) > 1:
            raise ValueError(f"repeats must be a number or a vector, not of shape {text(counts.dims)}")
        length = None if x.dims is None else x.dims[axis]
        if not counts.dims or counts.dims[0] == 1:
            return _repeat_all(x, reshape(counts, []), axis)
        if not compatible(counts.dims, (length,)):
            raise ValueError(f"repeats has {counts.dims[0]} numbers, the axis {axis} of the input {length}")
        known = static_ints(counts)
        if known is not None:
            sources: Tensor = constant(np.repeat(np.arange(len(known), dtype=np.int32), np.maximum(known, 0)))
        else:
            # Result slice k is a copy of the first slice whose cumulative count exceeds k.
            counts = maximum(counts, 0)
            sources = searchsorted(cumsum(counts), range_(reduce_sum(counts)), side="right")
        return gather_densely(x, sources, axis=axis)


def _repeat_all(x: Tensor, count: Tensor, axis: int) -> Tensor:
    """Repeat every slice `count` times: insert an axis after `axis`, tile along it, and merge the two axes."""
    if x.dims is None:
        raise ValueError("repeat along an axis needs to know the input's rank; use set_shape")
    rank = len(x.dims)
    times = stack([count if i == axis + 1 else 1 for i in py_range(rank + 1)])
    spread = tile(expand_dims(x, axis + 1), times)
    sizes = shape(x)
    merged = concat([sizes[:axis], expand_dims(sizes[axis] * count, 0), sizes[axis + 1 :]], 0)
    return reshape(spread, merged)


# --- masks and reversal -------------------------------------------------------------------------------------


def sequence_mask(
    lengths: TensorLike, maxlen: TensorLike = None, dtype: Any = bool_, name: str | None = None
) -> Tensor:
    """A mask of sequences: element j of each row is true if j is below the row's length.

    Args:
        lengths: integers of any shape.
        maxlen: the length of the rows. None means the largest of the lengths.
        dtype: element type of the result.
        name: name scope of the nodes.

    Returns:
        Shape `lengths.shape + [maxlen]`.

    >>> sequence_mask([1, 3], 3)   # [[True, False, False], [True, True, True]]
    """
    with op_scope(name, "SequenceMask", lengths, maxlen):
        counts = convert(lengths, name="lengths")
        if not counts.dtype.base.is_integer:
            raise TypeError(f"lengths must be integers, not {counts.dtype.name}")
        if counts.dtype.base not in INDEX_TYPES:
            counts = cast(counts, int32)
        if maxlen is None:
            # reduce_max of no lengths is the type's least value.
            longest = maximum(reduce_max(counts), constant(0, counts.dtype.base))
        else:
            longest = cast(index_operand(maxlen, "maxlen"), counts.dtype.base)
        if longest.dims != ():
            raise ValueError(f"maxlen must be scalar for sequence_mask, not of shape {text(longest.dims)}")
        zero, one = constant(0, counts.dtype.base), constant(1, counts.dtype.base)
        mask = less(range_(zero, longest, one), expand_dims(counts, -1))
        result: Tensor = cast(mask, dtype)
        return result


def reverse_sequence(
    input: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
    seq_dim: int | None = None,
    batch_dim: int | None = None,
) -> Tensor:
    """Reverse the first `seq_lengths[i]` elements of each sequence i of a batch. The elements after them stay.

    Args:
        input: a tensor of rank 2 or more. If its rank is unknown, axes must not be negative.
        seq_lengths: the length of each sequence, int32 or int64 `[batch]`.
        seq_axis: the axis along which sequences are reversed.
        batch_axis: the axis of the batch. None means 0.
        name: name scope of the nodes.
        seq_dim: old name of `seq_axis`.
        batch_dim: old name of `batch_axis`.

    Returns:
        A tensor of the shape and type of `input`.

    Raises:
        ValueError: `seq_axis` is missing, or equal to `batch_axis`.
        InvalidArgumentError: in a step, a length is negative or larger than the axis.

    >>> reverse_sequence([[1, 2, 3], [4, 5, 6]], [2, 3], seq_axis=1)   # [[2, 1, 3], [6, 5, 4]]
    """
    seq_axis = seq_dim if seq_axis is None else seq_axis
    batch_axis = batch_dim if batch_axis is None else batch_axis
    with op_scope(name, "ReverseSequence", input, seq_lengths):
        x, lengths = convert(input, name="input"), index_operand(seq_lengths, "seq_lengths")
        if seq_axis is None:
            raise ValueError("reverse_sequence needs seq_axis: the axis along which the sequences go")
        along, batch = seq_axis, batch_axis or 0
        if x.dims is not None:
            along, batch = normal_axis(along, len(x.dims)), normal_axis(batch, len(x.dims))
        elif along < 0 or batch < 0:
            raise ValueError(
                f"seq_axis {along} and batch_axis {batch} count from the end, but the rank of {x!r} is unknown"
            )
        if along == batch:
            raise ValueError(f"seq_axis and batch_axis must differ: both are {along}")
        order: Any = [batch, along]
        if x.dims is not None:
            order += [i for i in range(len(x.dims)) if i not in order]
        else:
            order = concat([order, setdiff1d(range_(rank(x)), order).out], 0)
        first = transpose(x, order)
        steps = expand_dims(range_(shape(first)[1]), 0)
        ends = expand_dims(cast(lengths, int32), 1)
        # Lengths that are negative or too large give indices out of range, which gather_nd refuses.
        step = where_v2(logical_or(less(steps, ends), less(ends, 0)), ends - 1 - steps, steps)
        row = tile(expand_dims(range_(shape(first)[0]), 1), [1, shape(first)[1]])
        turned = gather_nd(first, stack([row, step], -1))
        back = invert_permutation(order) if isinstance(order, Tensor) else [order.index(i) for i in range(len(order))]
        result = transpose(turned, back)
        result.set_shape(x.dims)
        return result
