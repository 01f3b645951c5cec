"""Metrics of `tf.contrib.metrics` and `slim.metrics`: those of `dt.metrics`, with the predictions first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....graph.core.build import convert
from ....graph.core.dtypes import float32
from ....graph.core.graph import Tensor
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal
from ....graph.ops.math.reduce import reduce_mean
from .. import metrics
from ..metrics import mean as streaming_mean, mean_tensor as streaming_mean_tensor


def aggregate_metrics(*value_update_tuples: tuple[Any, Any]) -> tuple[list[Any], list[Any]]:
    """The values of metrics, and their updates, in two lists. ValueError: there are none."""
    if not value_update_tuples:
        raise ValueError("Expected at least one value_tensor/update_op pair")
    values, updates = zip(*value_update_tuples, strict=True)
    return list(values), list(updates)


def aggregate_metric_map(names_to_tuples: Mapping[str, tuple[Any, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of named metrics, and their updates, in two dictionaries.

    >>> values, updates = aggregate_metric_map({"accuracy": dt.metrics.accuracy(labels, predictions)})
    """
    return {n: v for n, (v, _) in names_to_tuples.items()}, {n: u for n, (_, u) in names_to_tuples.items()}


def accuracy(predictions: Any, labels: Any, weights: Any = None, name: str | None = None) -> Tensor:
    """The share of a batch's predictions that are right, a scalar."""
    hits = cast(equal(convert(predictions), convert(labels)), float32)
    if weights is None:
        return reduce_mean(hits, name=name)
    counted = cast(convert(weights), float32)
    return reduce_mean(hits * counted, name=name) / reduce_mean(counted)


def streaming_accuracy(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
    """See `dt.metrics.accuracy`."""
    return metrics.accuracy(labels, predictions, *args, **kwargs)


def streaming_precision(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
    """See `dt.metrics.precision`."""
    return metrics.precision(labels, predictions, *args, **kwargs)


def streaming_recall(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
    """See `dt.metrics.recall`."""
    return metrics.recall(labels, predictions, *args, **kwargs)


def streaming_auc(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
    """See `dt.metrics.auc`."""
    return metrics.auc(labels, predictions, *args, **kwargs)


def streaming_mean_squared_error(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
    """See `dt.metrics.mean_squared_error`."""
    return metrics.mean_squared_error(labels, predictions, *args, **kwargs)


def streaming_mean_absolute_error(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
    """See `dt.metrics.mean_absolute_error`."""
    return metrics.mean_absolute_error(labels, predictions, *args, **kwargs)


def streaming_root_mean_squared_error(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
    """See `dt.metrics.root_mean_squared_error`."""
    return metrics.root_mean_squared_error(labels, predictions, *args, **kwargs)


def streaming_mean_iou(predictions: Any, labels: Any, num_classes: int, *args: Any, **kwargs: Any) -> Any:
    """See `dt.metrics.mean_iou`."""
    return metrics.mean_iou(labels, predictions, num_classes, *args, **kwargs)


__all__ = [
    "accuracy",
    "aggregate_metric_map",
    "aggregate_metrics",
    "streaming_accuracy",
    "streaming_auc",
    "streaming_mean",
    "streaming_mean_absolute_error",
    "streaming_mean_iou",
    "streaming_mean_squared_error",
    "streaming_mean_tensor",
    "streaming_precision",
    "streaming_recall",
    "streaming_root_mean_squared_error",
]
