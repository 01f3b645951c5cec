"""Metrics that are means: of values, of errors, of right answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, convert
from ....graph.core.graph import Tensor
from ....graph.ops.array.creation import ones_like
from ....graph.ops.array.shapes import expand_dims, size
from ....graph.ops.math.arithmetic import absolute, div_no_nan, multiply, sqrt, square, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, less
from ....graph.ops.math.reduce import reduce_sum
from .totals import Metric, Names, PairMetric, aligned, as_float, metric, of_pairs, ratio, spread


def mean(
    values: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """The mean of all values of all batches.

    Args:
        values: numbers of any shape.
        weights: how much each counts; of the same rank, axes may have size 1; or a scalar.
        metrics_collections: names of collections that the two tensors join.
        updates_collections: names of collections that the two tensors join.
        name: of the scope; None: the metric's own name.

    Returns:
        (the value so far, the value after this batch was added), float32 scalars; 0 before the first batch.

    >>> loss, update = mean([1.0, 3.0])
    """

    def build(values: Tensor, weights: Tensor | None) -> Any:
        return _mean_parts(as_float(values), weights)

    return metric(name, "mean", (values, weights), build, metrics_collections, updates_collections)


def _mean_parts(
    values: Tensor, weights: Tensor | None, value: Callable[..., Tensor] = ratio
) -> tuple[dict[str, Tensor], Callable[..., Tensor]]:
    if weights is None:
        return {"total": reduce_sum(values), "count": as_float(convert(size(values)))}, value
    each = spread(weights, values)
    return {"total": reduce_sum(multiply(values, each)), "count": reduce_sum(each)}, value


def mean_tensor(
    values: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """The mean over the batches, element by element. Other arguments as of `mean`; the result has the shape of `values`."""

    def build(values: Tensor, weights: Tensor | None) -> Any:
        values = as_float(values)
        each = ones_like(values) if weights is None else spread(weights, values)
        return {"total_tensor": multiply(values, each), "count_tensor": each}, ratio

    return metric(name, "mean", (values, weights), build, metrics_collections, updates_collections)


def _of_pairs(
    name: str, each: Callable[[Tensor, Tensor], Tensor], doc: str, value: Callable[..., Tensor] = ratio
) -> PairMetric:
    """A metric that is the mean of a function of label and prediction, or `value` of its total and count."""

    def build(labels: Tensor, predictions: Tensor, weights: Tensor | None) -> Any:
        labels, predictions = aligned(labels, predictions)
        return _mean_parts(each(labels, predictions), weights, value)

    return of_pairs(
        name,
        build,
        f"""{doc}

    Args:
        labels: what is right. predictions: what the model says, of the same shape.
        weights, metrics_collections, updates_collections, name: as of `mean`.

    Returns:
        (the value so far, the value after this batch was added), float32 scalars.

    Raises:
        ValueError: the shapes differ.
    """,
    )


def _difference(labels: Tensor, predictions: Tensor) -> Tensor:
    return subtract(as_float(predictions), as_float(labels))


accuracy = _of_pairs(
    "accuracy",
    lambda labels, predictions: as_float(equal(cast(predictions, labels.dtype.base), labels)),
    "How many predictions equal their labels, of all. Classes, not scores: take `dt.argmax` before.",
)
mean_absolute_error = _of_pairs(
    "mean_absolute_error",
    lambda labels, predictions: absolute(_difference(labels, predictions)),
    "The mean of |prediction - label|.",
)
mean_squared_error = _of_pairs(
    "mean_squared_error",
    lambda labels, predictions: square(_difference(labels, predictions)),
    "The mean of (prediction - label)^2.",
)
root_mean_squared_error = _of_pairs(
    "root_mean_squared_error",
    lambda labels, predictions: square(_difference(labels, predictions)),
    "The square root of `mean_squared_error`.",
    lambda total, count: sqrt(ratio(total, count)),
)


def mean_relative_error(
    labels: TensorLike,
    predictions: TensorLike,
    normalizer: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """The mean of |prediction - label| / normalizer, 0 where that is 0. `normalizer` has the labels' shape; other arguments as of
    `mean_absolute_error`."""

    def build(labels: Tensor, predictions: Tensor, normalizer: Tensor, weights: Tensor | None) -> Any:
        labels, predictions = aligned(labels, predictions)
        normalizer = as_float(aligned(labels, normalizer)[1])
        return _mean_parts(div_no_nan(absolute(_difference(labels, predictions)), normalizer), weights)

    inputs = labels, predictions, normalizer, weights
    return metric(name, "mean_relative_error", inputs, build, metrics_collections, updates_collections)


def mean_cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    dim: int,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """1 - the mean of the products of labels and predictions, summed over axis `dim`: both are unit vectors along it. `weights` has
    size 1 there. Other arguments as of `mean_absolute_error`."""

    def build(labels: Tensor, predictions: Tensor, weights: Tensor | None) -> Any:
        labels, predictions = aligned(labels, predictions)
        products = reduce_sum(multiply(as_float(predictions), as_float(labels)), [dim], keepdims=True)
        if weights is not None and weights.shape.rank == (products.shape.rank or 0) - 1:
            weights = expand_dims(weights, dim)
        return _mean_parts(products, weights, lambda total, count: subtract(1.0, ratio(total, count)))

    inputs = labels, predictions, weights
    return metric(name, "mean_cosine_distance", inputs, build, metrics_collections, updates_collections)


def percentage_below(
    values: TensorLike,
    threshold: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """The share, from 0 to 1, of values below a threshold. Other arguments as of `mean`."""

    def build(values: Tensor, threshold: Tensor, weights: Tensor | None) -> Any:
        return _mean_parts(as_float(less(values, cast(threshold, values.dtype.base))), weights)

    inputs = values, threshold, weights
    return metric(name, "percentage_below_threshold", inputs, build, metrics_collections, updates_collections)


explain_members(sys.modules[__name__])

__all__ = [
    "accuracy",
    "mean",
    "mean_absolute_error",
    "mean_cosine_distance",
    "mean_relative_error",
    "mean_squared_error",
    "mean_tensor",
    "percentage_below",
    "root_mean_squared_error",
]
