"""Metrics of the k classes with the highest scores: how many of them are right, and how many of the right ones are among them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, convert
from ....graph.core.dtypes import float64, int64
from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import concat
from ....graph.ops.array.creation import ones_like
from ....graph.ops.array.ranges import range
from ....graph.ops.array.shapes import expand_dims, reshape, shape
from ....graph.ops.array.sorting import top_k
from ....graph.ops.math.arithmetic import minimum, multiply, truediv
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, greater_equal, less, logical_and, logical_not, not_equal
from ....graph.ops.math.reduce import reduce_any, reduce_sum
from ....graph.ops.math.scan import cumsum
from ....graph.ops.sparse.arrange import sparse_tensor_to_dense
from ....graph.tensors.sparse_tensor import SparseTensor, is_sparse
from ..ops.sets import convert_to_tensor_or_sparse_tensor
from .totals import Metric, Names, metric, ratio, spread

_NO_LABEL = np.iinfo(np.int64).min  # what fills rows of sparse labels that have fewer than others


class _Ranked:
    """The best classes of each row and its labels, each once: two sets.

    `said` and `right` are (..., k) and (..., labels): class numbers. `in_right` and `in_said` tell which of them are in the other
    set too, `one_said` and `one_right` which of them count.
    """

    def __init__(self, labels: Any, said: Tensor, class_id: int | None) -> None:
        self.said, self.right = cast(said, int64), _dense(labels, said)
        pairs = equal(expand_dims(self.said, -1), expand_dims(self.right, -2))
        self.in_right, self.in_said = reduce_any(pairs, -1), reduce_any(pairs, -2)
        self.one_said = _first(self.said)
        self.one_right = logical_and(_first(self.right), not_equal(self.right, _NO_LABEL))
        if class_id is not None:
            self.one_said = logical_and(self.one_said, equal(self.said, class_id))
            self.one_right = logical_and(self.one_right, equal(self.right, class_id))


def _dense(labels: Any, said: Tensor) -> Tensor:
    """Labels with an axis for several of a row, as `said` has it for classes."""
    given = convert_to_tensor_or_sparse_tensor(labels)
    given = sparse_tensor_to_dense(given, _NO_LABEL) if isinstance(given, SparseTensor) else given
    given = cast(given, int64)
    p, q = said.shape.rank, given.shape.rank
    if p is None or q is None:
        return reshape(given, concat([shape(said)[:-1], [-1]], 0))
    return expand_dims(given, -1) if p == q + 1 else given


def _first(ids: Tensor) -> Tensor:
    """Whether each number stands in its row for the first time."""
    place = range(shape(ids)[-1])
    same = equal(expand_dims(ids, -1), expand_dims(ids, -2))
    return logical_not(reduce_any(logical_and(same, less(expand_dims(place, 0), expand_dims(place, 1))), -1))


def _weighted(counted: Tensor, weights: Tensor | None) -> Tensor:
    """How many of each row are counted, times the weight of the row."""
    found = reduce_sum(cast(counted, float64), -1)
    return found if weights is None else multiply(found, spread(weights, found))


def _share(
    what: str,
    rest: str,
    missed: Callable[[_Ranked], Tensor],
    labels: Any,
    said: TensorLike,
    k: int | None,
    class_id: int | None,
    weights: TensorLike | None,
    metrics_collections: Names,
    updates_collections: Names,
    name: str | None,
) -> Metric:
    """True positives over themselves and what `missed` gives."""
    end = ("_at_k" if k is None else f"_at_{k}") + ("" if class_id is None else f"_class{class_id}")

    def build(said: Tensor, weights: Tensor | None) -> Any:
        sets = _Ranked(labels, said, class_id)
        found = _weighted(logical_and(sets.one_said, sets.in_right), weights)
        parts = {"true_positive": found, rest: _weighted(missed(sets), weights)}
        return {title + end: reduce_sum(part) for title, part in parts.items()}, lambda tp, other: truediv(
            tp, tp + other
        )

    return metric(name, what + end, (said, weights), build, metrics_collections, updates_collections)


def recall_at_top_k(
    labels: Any,
    predictions_idx: TensorLike,
    k: int | None = None,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """`recall_at_k` of classes that are chosen already: `predictions_idx`, int (..., k). `k` only names what is counted."""
    return _share(
        "recall", "false_negative", lambda sets: logical_and(sets.one_right, logical_not(sets.in_said)),
        labels, predictions_idx, k, class_id, weights, metrics_collections, updates_collections, name,
    )  # fmt: skip


def precision_at_top_k(
    labels: Any,
    predictions_idx: TensorLike,
    k: int | None = None,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """`precision_at_k` of classes that are chosen already: `predictions_idx`, int (..., k). `k` only names what is counted."""
    return _share(
        "precision", "false_positive", lambda sets: logical_and(sets.one_said, logical_not(sets.in_right)),
        labels, predictions_idx, k, class_id, weights, metrics_collections, updates_collections, name,
    )  # fmt: skip


def recall_at_k(
    labels: Any,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """Of the right classes of all rows, the share that is among the k classes with the highest scores of their row.

    Args:
        labels: the right classes of each row, int64 (..., labels) or (...), or a sparse tensor where rows have different numbers of
            them. One that stands twice in a row counts once.
        predictions: the scores, (..., classes).
        class_id: count this class alone.
        weights: how much each row counts: of shape (...), axes may have size 1; or a scalar.
        metrics_collections: as of `mean`.
        updates_collections: as of `mean`.
        name: as of `mean`.

    Returns:
        (the value so far, the value after this batch was added): float64 scalars, NaN while nothing was counted.
    """
    best = top_k(predictions, k).indices
    return recall_at_top_k(labels, best, k, class_id, weights, metrics_collections, updates_collections, name)


def precision_at_k(
    labels: Any,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """Of the k classes with the highest scores of each row, the share that is right. Arguments as of `recall_at_k`."""
    best = top_k(predictions, k).indices
    return precision_at_top_k(labels, best, k, class_id, weights, metrics_collections, updates_collections, name)


def average_precision_at_k(
    labels: Any,
    predictions: TensorLike,
    k: int,
    weights: TensorLike | None = None,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """The mean over the rows of: the sum of the precisions at 1 to k where the class there is right, over the number of the row's
    labels, at most k. As in TensorFlow, dense labels that are no class do not count, and a dense label that stands twice counts twice.
    Each different sparse label counts once, also if it is no class. Arguments as of `recall_at_k`.
    """

    def build(predictions: Tensor, weights: Tensor | None) -> Any:
        sets = _Ranked(labels, top_k(predictions, k).indices, None)
        hits = cast(sets.in_right, float64)
        precisions = truediv(cumsum(hits, -1), cumsum(ones_like(hits), -1))
        classes = cast(shape(predictions)[-1], int64)
        valid = logical_and(greater_equal(sets.right, 0), less(sets.right, classes))
        relevant = reduce_sum(cast(sets.one_right if is_sparse(labels) else valid, float64), -1)
        found = truediv(reduce_sum(multiply(precisions, hits), -1), minimum(relevant, float(k)))
        each = ones_like(found) if weights is None else spread(weights, found)
        return {"max": reduce_sum(each), "total": reduce_sum(multiply(found, each))}, lambda most, total: ratio(
            total, most
        )

    given = convert(predictions), weights
    return metric(name, f"average_precision_at_{k}", given, build, metrics_collections, updates_collections)


explain_members(sys.modules[__name__])

__all__ = ["average_precision_at_k", "precision_at_k", "precision_at_top_k", "recall_at_k", "recall_at_top_k"]
