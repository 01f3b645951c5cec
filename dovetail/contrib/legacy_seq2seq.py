"""Losses of unrolled sequences that TensorFlow 1 had in `tf.contrib.legacy_seq2seq`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..graph.build import convert
from ..graph.default_graph import name_scope
from ..graph.node import Tensor
from ..graph.ops.arithmetic import add_n
from ..graph.ops.cast import cast
from ..graph.ops.reduce import reduce_sum
from ..graph.ops.shapes import reshape, shape
from ..graph.ops.softmax import sparse_softmax_cross_entropy_with_logits

_NO_DIVISION_BY_ZERO = 1e-12  # TensorFlow's


def sequence_loss_by_example(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """Weighted cross entropy of each sequence.

    Args:
        logits: per step `[batch, classes]`. targets: per step classes, `[batch]`. weights: per step `[batch]`.
        average_across_timesteps: whether each sequence's sum is over the sum of its weights.

    Returns:
        `[batch]`.

    Raises:
        ValueError: the lists differ in length.
    """
    if not len(logits) == len(targets) == len(weights):
        raise ValueError(
            f"logits, targets and weights must have one length: {len(logits)}, {len(targets)}, {len(weights)}"
        )
    with name_scope(name or "sequence_loss_by_example"):
        loss = softmax_loss_function or sparse_softmax_cross_entropy_with_logits
        factors = [convert(w) for w in weights]
        steps = [
            loss(labels=reshape(t, [-1]), logits=convert(x)) * w
            for x, t, w in zip(logits, targets, factors, strict=True)
        ]
        total = add_n(steps)
        return total / (add_n(factors) + _NO_DIVISION_BY_ZERO) if average_across_timesteps else total


def sequence_loss(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """The sum of `sequence_loss_by_example`, over the size of the batch unless told otherwise: a scalar."""
    with name_scope(name or "sequence_loss"):
        per_row = sequence_loss_by_example(logits, targets, weights, average_across_timesteps, softmax_loss_function)
        cost = reduce_sum(per_row)
        return cost / cast(shape(convert(targets[0]))[0], cost.dtype.base) if average_across_batch else cost


__all__ = ["sequence_loss", "sequence_loss_by_example"]
