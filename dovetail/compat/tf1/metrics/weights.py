"""Weights of values: as many axes as the values have."""

from __future__ import annotations

from ....graph.core.default_graph import control_dependencies
from ....graph.core.dtypes import int32
from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import concat
from ....graph.ops.array.creation import ones, ones_like
from ....graph.ops.array.identity_and_placeholders import Assert
from ....graph.ops.array.shapes import broadcast_to, expand_dims, rank, reshape, shape, squeeze
from ....graph.ops.math.arithmetic import maximum, multiply
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, greater, logical_and, logical_or


def broadcast_weights(weights: Tensor, values: Tensor) -> Tensor:
    """Weights, one for each of the values: a scalar weighs all, an axis of size 1 all along it.

    Raises:
        ValueError: the weights have another rank, or another size. InvalidArgumentError: the same, when the graph runs.
    """
    w, v = weights.dims, values.dims
    if w is not None and v is not None:
        if w and (len(w) != len(v) or any(a not in (1, None, b) and b is not None for a, b in zip(w, v, strict=True))):
            raise ValueError(
                f"weights can not be broadcast to values: weights have shape {weights.shape}, and values {values.shape}. "
                "Each axis must have size 1, or that of the values; or give a scalar"
            )
        if all(a in (1, b) and a is not None for a, b in zip(w, v, strict=False)):
            return multiply(weights, ones_like(values))
        return broadcast_to(weights, shape(values))
    ranks = rank(weights), rank(values)
    with control_dependencies(
        [Assert(logical_or(equal(ranks[0], 0), equal(*ranks)), ["weights can not be broadcast to values", *ranks])]
    ):
        return broadcast_to(weights, shape(values))


def without_last(x: Tensor, least: Tensor) -> Tensor:
    """The tensor of rank `least`, which may be one less than its own: then its last axis, of size 1, goes."""
    return x if x.dims and x.dims[-1] not in (1, None) else reshape(x, shape(x)[: maximum(least, rank(x) - 1)])


def of_rank(weights: Tensor, values: Tensor) -> Tensor:
    """Weights with a last axis of size 1 less or more, if that gives them the rank of the values; a scalar stays one."""
    w, v = weights.shape.rank, values.shape.rank
    if w == 0:
        return weights
    if w is not None and v is not None:
        if w - v == 1:
            return squeeze(weights, [-1])
        return expand_dims(weights, -1) if v - w == 1 else weights
    wanted = rank(values)
    grows = logical_and(equal(rank(weights), wanted - 1), greater(rank(weights), 0))
    return reshape(weights, concat([shape(weights)[:wanted], ones(expand_dims(cast(grows, int32), 0), int32)], 0))
