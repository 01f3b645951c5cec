"""Metrics of several classes, from the table of what was taken for what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph.build import TensorLike
from ..graph.dtypes import int64
from ..graph.node import Tensor
from ..graph.ops.arithmetic import add, subtract, truediv
from ..graph.ops.cast import cast
from ..graph.ops.compare import greater
from ..graph.ops.creation import ones_like
from ..graph.ops.diagonal import diag_part
from ..graph.ops.joining import stack
from ..graph.ops.reduce import reduce_sum
from ..graph.ops.scattering import scatter_nd
from ..graph.ops.shapes import reshape
from .totals import Build, Metric, Names, aligned, as_float, metric, ratio, spread


def _of_table(num_classes: int, value: Callable[[Tensor], Tensor]) -> Build:
    """What a metric counts, and has as its value, that follows from the table."""

    def build(labels: Tensor, predictions: Tensor, weights: Tensor | None) -> Any:
        labels, predictions, weights = aligned(cast(labels, int64), cast(predictions, int64), weights)
        cells = stack([reshape(labels, [-1]), reshape(predictions, [-1])], 1)
        each = as_float(ones_like(predictions)) if weights is None else spread(weights, as_float(predictions))
        table = scatter_nd(cells, reshape(each, [-1]), [num_classes, num_classes])
        return {"total_confusion_matrix": table}, value

    return build


def mean_iou(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """Intersection over union of what is of a class and what was taken for it, as the mean over the classes that were seen.

    Args:
        labels: the right classes, from 0 to num_classes - 1. predictions: the model's.
        weights, metrics_collections, updates_collections, name: as of `mean`.

    Returns:
        (the value so far, the value after this batch was added), float32 scalars.
    """

    def value(table: Tensor) -> Tensor:
        right = diag_part(table)
        union = subtract(add(reduce_sum(table, 0), reduce_sum(table, 1)), right)
        seen = reduce_sum(as_float(greater(union, 0.0)))
        return ratio(reduce_sum(ratio(right, union)), seen)

    inputs, build = (labels, predictions, weights), _of_table(num_classes, value)
    return metric(name, "mean_iou", inputs, build, metrics_collections, updates_collections)


def mean_per_class_accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """The accuracy for each class, as the mean over all classes. Arguments as of `mean_iou`."""

    def value(table: Tensor) -> Tensor:
        return truediv(reduce_sum(ratio(diag_part(table), reduce_sum(table, 1))), float(num_classes))

    inputs, build = (labels, predictions, weights), _of_table(num_classes, value)
    return metric(name, "mean_accuracy", inputs, build, metrics_collections, updates_collections)


__all__ = ["mean_iou", "mean_per_class_accuracy"]
