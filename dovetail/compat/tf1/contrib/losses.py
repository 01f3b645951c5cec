"""The losses of `tf.contrib.losses` and `slim.losses`: those of `dt.losses`, with the predictions first."""

from __future__ import annotations

from typing import Any

from ....graph.core.graph import Tensor
from .. import losses
from ..losses import add_loss, get_losses, get_regularization_losses, get_total_loss
from .arg_scope import add_arg_scope


@add_arg_scope
def absolute_difference(predictions: Any, labels: Any = None, weights: Any = 1.0, scope: str | None = None) -> Tensor:
    """See `dt.losses.absolute_difference`."""
    return losses.absolute_difference(labels, predictions, weights, scope)


@add_arg_scope
def mean_squared_error(predictions: Any, labels: Any = None, weights: Any = 1.0, scope: str | None = None) -> Tensor:
    """See `dt.losses.mean_squared_error`."""
    return losses.mean_squared_error(labels, predictions, weights, scope)


@add_arg_scope
def log_loss(
    predictions: Any, labels: Any = None, weights: Any = 1.0, epsilon: float = 1e-7, scope: str | None = None
) -> Tensor:
    """See `dt.losses.log_loss`."""
    return losses.log_loss(labels, predictions, weights, epsilon, scope)


@add_arg_scope
def hinge_loss(logits: Any, labels: Any = None, scope: str | None = None) -> Tensor:
    """See `dt.losses.hinge_loss`."""
    return losses.hinge_loss(labels, logits, scope=scope)


@add_arg_scope
def sigmoid_cross_entropy(
    logits: Any, multi_class_labels: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: str | None = None
) -> Tensor:
    """See `dt.losses.sigmoid_cross_entropy`."""
    return losses.sigmoid_cross_entropy(multi_class_labels, logits, weights, label_smoothing, scope)


@add_arg_scope
def softmax_cross_entropy(
    logits: Any, onehot_labels: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: str | None = None
) -> Tensor:
    """See `dt.losses.softmax_cross_entropy`."""
    return losses.softmax_cross_entropy(onehot_labels, logits, weights, label_smoothing, scope)


@add_arg_scope
def sparse_softmax_cross_entropy(logits: Any, labels: Any, weights: Any = 1.0, scope: str | None = None) -> Tensor:
    """See `dt.losses.sparse_softmax_cross_entropy`."""
    return losses.sparse_softmax_cross_entropy(labels, logits, weights, scope)


@add_arg_scope
def cosine_distance(
    predictions: Any,
    labels: Any = None,
    axis: int | None = None,
    weights: Any = 1.0,
    scope: str | None = None,
    dim: int | None = None,
) -> Tensor:
    """See `dt.losses.cosine_distance`."""
    return losses.cosine_distance(labels, predictions, axis, weights, scope, dim=dim)


@add_arg_scope
def compute_weighted_loss(losses_: Any, weights: Any = 1.0, scope: str | None = None) -> Tensor:
    """See `dt.losses.compute_weighted_loss`."""
    return losses.compute_weighted_loss(losses_, weights, scope)


__all__ = [
    "absolute_difference",
    "add_loss",
    "compute_weighted_loss",
    "cosine_distance",
    "get_losses",
    "get_regularization_losses",
    "get_total_loss",
    "hinge_loss",
    "log_loss",
    "mean_squared_error",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
]
