"""Metrics of several classes: how often each was right, and what was taken for what."""

from __future__ import annotations

import sys
from typing import Any

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike
from ....graph.core.dtypes import float64, int64
from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import stack
from ....graph.ops.array.creation import ones_like
from ....graph.ops.array.diagonal import diag_part
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.array.scatter import scatter_nd
from ....graph.ops.array.segments import unsorted_segment_sum
from ....graph.ops.array.shapes import reshape
from ....graph.ops.math.arithmetic import add, multiply, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, greater
from ....graph.ops.math.reduce import reduce_mean, reduce_sum
from .totals import Metric, Names, aligned, as_float, metric, ratio, spread


def _flat(labels: Tensor, predictions: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Labels and predictions as vectors of class numbers, and as many weights."""
    labels, predictions = aligned(cast(labels, int64), cast(predictions, int64))
    each = as_float(ones_like(predictions)) if weights is None else spread(weights, as_float(predictions))
    return reshape(labels, [-1]), reshape(predictions, [-1]), reshape(each, [-1])


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
        labels: the right classes, from 0 to num_classes - 1.
        predictions: the model's.
        weights: as of `mean`.
        metrics_collections: as of `mean`.
        updates_collections: as of `mean`.
        name: as of `mean`.

    Returns:
        (the value so far, a float32 scalar; the confusion matrix after this batch was added, float64, a row for each right class).
    """

    def build(labels: Tensor, predictions: Tensor, weights: Tensor | None) -> Any:
        right, said, each = _flat(labels, predictions, weights)
        table = scatter_nd(stack([right, said], 1), cast(each, float64), [num_classes, num_classes])
        return {"total_confusion_matrix": table}, value

    def value(table: Tensor) -> Tensor:
        right = diag_part(table)
        union = subtract(add(reduce_sum(table, 0), reduce_sum(table, 1)), right)
        seen = reduce_sum(cast(greater(union, 0.0), float64))
        return as_float(ratio(reduce_sum(ratio(right, union)), seen))

    inputs = labels, predictions, weights
    return metric(name, "mean_iou", inputs, build, metrics_collections, updates_collections, identity)


def mean_per_class_accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """The accuracy for each class, as the mean over all classes; the update gives that of each class. Arguments as of `mean_iou`."""

    def build(labels: Tensor, predictions: Tensor, weights: Tensor | None) -> Any:
        truth, said, each = _flat(labels, predictions, weights)
        right = multiply(each, as_float(equal(truth, said)))
        sums = {title: unsorted_segment_sum(x, truth, num_classes) for title, x in (("total", each), ("count", right))}
        return sums, lambda total, count: reduce_mean(ratio(count, total))

    inputs = labels, predictions, weights
    return metric(
        name,
        "mean_accuracy",
        inputs,
        build,
        metrics_collections,
        updates_collections,
        lambda total, count: ratio(count, total),
    )


explain_members(sys.modules[__name__])

__all__ = ["mean_iou", "mean_per_class_accuracy"]
