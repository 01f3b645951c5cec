"""Sequences of different lengths in one tensor."""

from __future__ import annotations

from ...core.build import TensorLike, convert
from ...core.dtypes import int32
from ...core.graph import Tensor
from ..math.cast import cast
from ..math.compare import less, where_v2
from ..math.static_operands import index_operand, normal_axis, op_scope
from .concat_stack import stack
from .creation import range as range_
from .gather import gather_nd
from .padding import tile
from .shapes import expand_dims, shape, transpose


def reverse_sequence(
    input: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
    seq_dim: int | None = None,
    batch_dim: int | None = None,
) -> Tensor:
    """Each sequence turned round up to its length; what lies behind stays.

    Args:
        input: a tensor of rank 2 or more, its rank known.
        seq_lengths: `[batch]`, int32 or int64: how long each sequence is.
        seq_axis: the axis along which sequences go. batch_axis: the axis of the sequences; None: 0.
        name: scope of the nodes. seq_dim, batch_dim: older names of the axes.

    Returns:
        Shape and type as `input`.

    Raises:
        ValueError: no `seq_axis`, an unknown rank, or both axes are one. In a step: InvalidArgumentError where a length is
        larger than the axis.

    >>> reverse_sequence([[1, 2, 3], [4, 5, 6]], [2, 3], seq_axis=1)   # [[2, 1, 3], [6, 5, 4]]
    """
    seq_axis = seq_dim if seq_axis is None else seq_axis
    batch_axis = batch_dim if batch_axis is None else batch_axis
    with op_scope(name, "ReverseSequence", input, seq_lengths):
        x, lengths = convert(input, name="input"), index_operand(seq_lengths, "seq_lengths")
        if seq_axis is None:
            raise ValueError("reverse_sequence needs seq_axis: the axis along which the sequences go")
        if x.dims is None:
            raise ValueError(f"the rank of {x!r} must be known")
        along, batch = normal_axis(seq_axis, len(x.dims)), normal_axis(batch_axis or 0, len(x.dims))
        if along == batch:
            raise ValueError(f"seq_axis and batch_axis must differ: both are {along}")
        order = [batch, along, *(i for i in range(len(x.dims)) if i not in (batch, along))]
        first = transpose(x, order)
        steps = expand_dims(range_(shape(first)[1]), 0)
        ends = expand_dims(cast(lengths, int32), 1)
        step = where_v2(less(steps, ends), ends - 1 - steps, steps)
        row = tile(expand_dims(range_(shape(first)[0]), 1), [1, shape(first)[1]])
        turned = gather_nd(first, stack([row, step], -1))
        result = transpose(turned, [order.index(i) for i in range(len(order))])
        result.set_shape(x.dims)
        return result


__all__ = ["reverse_sequence"]
