"""The loss of sequences that TensorFlow 1 had in `tf.contrib.seq2seq`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....graph.core.build import convert
from .....graph.core.default_graph import name_scope
from .....graph.core.graph import Tensor
from .....graph.ops.array.shapes import reshape, shape
from .....graph.ops.math.reduce import reduce_sum
from .....graph.ops.nn.softmax import sparse_softmax_cross_entropy_with_logits

_NO_DIVISION_BY_ZERO = 1e-12  # TensorFlow's


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """Weighted cross entropy of sequences of classes.

    Args:
        logits: `[batch, steps, classes]`. targets: classes, `[batch, steps]`. weights: `[batch, steps]`; 0 leaves a step out.
        average_across_timesteps, average_across_batch: over which axes the mean is taken; both: over all weights.
        softmax_loss_function: of `labels` and `logits`; None: the sparse softmax's cross entropy.

    Returns:
        A scalar; `[batch]` without `average_across_batch`, `[steps]` without `average_across_timesteps`, else `[batch, steps]`.

    Raises:
        ValueError: shapes of the wrong rank.
    """
    with name_scope(name or "sequence_loss"):
        x, classes, factors = convert(logits), convert(targets), convert(weights)
        for value, rank, what in ((x, 3, "logits"), (classes, 2, "targets"), (factors, 2, "weights")):
            if value.dims is not None and len(value.dims) != rank:
                raise ValueError(f"{what} must have {rank} axes, not shape {value.shape}")
        loss = softmax_loss_function or sparse_softmax_cross_entropy_with_logits
        flat = loss(
            labels=reshape(classes, [-1]), logits=reshape(x, [-1, shape(x)[2]] if _unknown(x) else [-1, _last(x)])
        )
        losses = reshape(flat, shape(classes)) * factors
        axes = [axis for axis, mean in ((0, average_across_batch), (1, average_across_timesteps)) if mean]
        if not axes:
            return losses
        return reduce_sum(losses, axes) / (reduce_sum(factors, axes) + _NO_DIVISION_BY_ZERO)


def _unknown(x: Tensor) -> bool:
    return x.dims is None or x.dims[2] is None


def _last(x: Tensor) -> int:
    assert x.dims is not None and x.dims[2] is not None
    return x.dims[2]


__all__ = ["sequence_loss"]
