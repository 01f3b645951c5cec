"""Metrics of two classes: how many of each are taken for which, at one threshold or at several, and what follows from that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, constant, convert
from ....graph.core.dtypes import bool_, float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.creation import ones_like
from ....graph.ops.array.gather import gather, reverse
from ....graph.ops.array.shapes import reshape
from ....graph.ops.math.arithmetic import absolute, add, maximum, minimum, multiply, subtract, truediv
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import greater, logical_and, logical_not, where_v2
from ....graph.ops.math.elementwise import log
from ....graph.ops.math.reduce import reduce_sum
from ....graph.ops.math.scan import argmin
from .totals import Build, Metric, Names, PairMetric, aligned, as_float, metric, of_pairs, ratio, spread

CASES = ("true_positives", "false_negatives", "true_negatives", "false_positives")
EPSILON = 1e-7  # moves the first and last threshold outside [0, 1], as TensorFlow does: scores of 0 and 1 are inside
SMOOTH = 1e-6  # TensorFlow's: what is added to counts before dividing, for curves that begin with nothing


def _counts(
    labels: Tensor,
    predictions: Tensor,
    weights: Tensor | None,
    thresholds: Sequence[float] | None,
    cases: Sequence[str],
) -> dict[str, Tensor]:
    """How often each case happens in a batch: a scalar, or one number for each threshold."""
    if thresholds is None:
        labels, predictions = aligned(cast(labels, bool_), cast(predictions, bool_))
        said: Tensor = predictions
        truth: Tensor = labels
        each = None if weights is None else spread(weights, as_float(predictions))
        axis = None
    else:
        labels, scores = aligned(cast(labels, bool_), as_float(predictions))
        each = None if weights is None else reshape(spread(weights, scores), [1, -1])
        truth = reshape(labels, [1, -1])
        limits = constant(np.asarray(thresholds, np.float32).reshape(-1, 1))
        said = greater(reshape(scores, [1, -1]), limits)
        axis = 1

    def count(which: Tensor) -> Tensor:
        values = as_float(which)
        return reduce_sum(values if each is None else multiply(values, each), axis)

    both: dict[str, Callable[[], Tensor]] = {
        "true_positives": lambda: logical_and(truth, said),
        "false_negatives": lambda: logical_and(truth, logical_not(said)),
        "true_negatives": lambda: logical_and(logical_not(truth), logical_not(said)),
        "false_positives": lambda: logical_and(logical_not(truth), said),
    }
    return {case: count(both[case]()) for case in cases}


def _counted(cases: Sequence[str], value: Callable[..., Tensor], thresholds: Sequence[float]) -> Build:
    """What a metric counts at thresholds, and has as its value, that follows from how often each case happens."""

    def build(labels: Tensor, predictions: Tensor, weights: Tensor | None) -> Any:
        return _counts(labels, predictions, weights, thresholds, cases), value

    return build


_ARGUMENTS = """

    Args:
        labels: what is right: booleans, or what is cast to them. {predictions}
        weights, metrics_collections, updates_collections, name: as of `mean`.

    Returns:
        (the value so far, the value after this batch was added): float32, {result}.
    """


def _of_classes(name: str, cases: Sequence[str], value: Callable[..., Tensor], doc: str) -> PairMetric:
    """A metric of predicted classes. Its sums are named as the metrics that count the cases alone."""
    more = _ARGUMENTS.format(
        predictions="predictions: what the model says, likewise.", result="a scalar; 0 where nothing was counted"
    )

    def build(labels: Tensor, predictions: Tensor, weights: Tensor | None) -> Any:
        found = _counts(labels, predictions, weights, None, cases)
        return {"count" if case == name else f"{case}/count": part for case, part in found.items()}, value

    return of_pairs(name, build, doc + more)


class ThresholdMetric(Protocol):
    """A metric of labels and scores at several thresholds."""

    def __call__(
        self,
        labels: TensorLike,
        predictions: TensorLike,
        thresholds: Sequence[float],
        weights: TensorLike | None = None,
        metrics_collections: Names = None,
        updates_collections: Names = None,
        name: str | None = None,
    ) -> Metric: ...


def _at_thresholds(name: str, cases: Sequence[str], value: Callable[..., Tensor], doc: str) -> ThresholdMetric:
    """A metric of predicted scores, for each of several thresholds."""

    def found(
        labels: TensorLike,
        predictions: TensorLike,
        thresholds: Sequence[float],
        weights: TensorLike | None = None,
        metrics_collections: Names = None,
        updates_collections: Names = None,
        name: str | None = None,
    ) -> Metric:
        inputs, build = (labels, predictions, weights), _counted(cases, value, list(thresholds))
        return metric(name, own, inputs, build, metrics_collections, updates_collections)

    found.__name__ = found.__qualname__ = name
    own = cases[0] if len(cases) == 1 else name
    found.__doc__ = doc + _ARGUMENTS.format(
        predictions="predictions: scores from 0 to 1. thresholds: above which a score means yes.",
        result="one number for each threshold",
    )
    return found


def _alone(count: Tensor) -> Tensor:
    return count


def _precision(tp: Tensor, fp: Tensor) -> Tensor:
    return ratio(tp, add(tp, fp))


def _recall(tp: Tensor, fn: Tensor) -> Tensor:
    return ratio(tp, add(tp, fn))


true_positives = _of_classes("true_positives", CASES[:1], _alone, "How often yes was said, and right.")
false_negatives = _of_classes("false_negatives", CASES[1:2], _alone, "How often no was said, and wrong.")
true_negatives = _of_classes("true_negatives", CASES[2:3], _alone, "How often no was said, and right.")
false_positives = _of_classes("false_positives", CASES[3:], _alone, "How often yes was said, and wrong.")
precision = _of_classes(
    "precision",
    (CASES[0], CASES[3]),
    _precision,
    "Of those for which yes was said, the share for which that was right.",
)
recall = _of_classes("recall", CASES[:2], _recall, "Of those for which yes is right, the share for which it was said.")

true_positives_at_thresholds = _at_thresholds(
    "true_positives_at_thresholds", CASES[:1], _alone, "`true_positives` at each threshold."
)
false_negatives_at_thresholds = _at_thresholds(
    "false_negatives_at_thresholds", CASES[1:2], _alone, "`false_negatives` at each threshold."
)
true_negatives_at_thresholds = _at_thresholds(
    "true_negatives_at_thresholds", CASES[2:3], _alone, "`true_negatives` at each threshold."
)
false_positives_at_thresholds = _at_thresholds(
    "false_positives_at_thresholds", CASES[3:], _alone, "`false_positives` at each threshold."
)
precision_at_thresholds = _at_thresholds(
    "precision_at_thresholds", (CASES[0], CASES[3]), _precision, "`precision` at each threshold."
)
recall_at_thresholds = _at_thresholds("recall_at_thresholds", CASES[:2], _recall, "`recall` at each threshold.")


# --- curves -----------------------------------------------------------------------------------------------------------


def _even_thresholds(count: int, last: float = 1.0 + EPSILON) -> list[float]:
    if count < 2:
        raise ValueError(f"num_thresholds must be at least 2, not {count}")
    inside = [(i + 1) / (count - 1) for i in range(count - 2)]
    return [0.0 - EPSILON, *inside, last]


def auc(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: Sequence[float] | None = None,
) -> Metric:
    """The area under a curve that is drawn by moving the threshold, as a sum over so many thresholds.

    Args:
        labels: what is right: booleans, or what is cast to them.
        predictions: scores from 0 to 1.
        num_thresholds: how many, evenly from 0 to 1.
        thresholds: or these, between 0 and 1, which are then added to.
        curve: "ROC": recall over the share of wrong alarms; "PR": precision over recall.
        summation_method: "trapezoidal", "minoring", "majoring", or for "PR" "careful_interpolation" (Davis and Goadrich, 2006).
        weights: as of `mean`.
        metrics_collections: as of `mean`.
        updates_collections: as of `mean`.
        name: as of `mean`.

    Returns:
        (the value so far, the value after this batch was added), float32 scalars.

    Raises:
        ValueError: a curve or method of another name.
    """
    if curve not in ("ROC", "PR"):
        raise ValueError(f"curve must be either ROC or PR, {curve} unknown")
    methods = ("trapezoidal", "minoring", "majoring", "careful_interpolation")
    if summation_method not in methods:
        raise ValueError(f"Invalid summation_method: {summation_method}; there are {', '.join(methods)}")
    if thresholds is None:
        limits = _even_thresholds(num_thresholds)
    else:
        limits = [0.0 - EPSILON, *sorted(thresholds), 1.0 + EPSILON]

    def area(tp: Tensor, fn: Tensor, tn: Tensor, fp: Tensor) -> Tensor:
        if curve == "PR" and summation_method == "careful_interpolation":
            return _interpolated(tp, fn, fp)
        recalled = truediv(add(tp, SMOOTH), add(add(tp, fn), SMOOTH))
        if curve == "ROC":
            x, y = truediv(fp, add(add(fp, tn), SMOOTH)), recalled
        else:
            x, y = recalled, truediv(add(tp, SMOOTH), add(add(tp, fp), SMOOTH))
        widths = subtract(x[:-1], x[1:])
        if summation_method == "minoring":
            heights = minimum(y[:-1], y[1:])
        elif summation_method == "majoring":
            heights = maximum(y[:-1], y[1:])
        else:
            heights = truediv(add(y[:-1], y[1:]), 2.0)
        return reduce_sum(multiply(widths, heights))

    inputs, build = (labels, predictions, weights), _counted(CASES, area, limits)
    return metric(name, "auc", inputs, build, metrics_collections, updates_collections)


def _interpolated(tp: Tensor, fn: Tensor, fp: Tensor) -> Tensor:
    """The area under the precision-recall curve, where true positives grow linearly between two points."""
    gained = subtract(tp[:-1], tp[1:])
    said = add(tp, fp)
    slope = ratio(gained, subtract(said[:-1], said[1:]))
    intercept = subtract(tp[1:], multiply(slope, said[1:]))
    both = logical_and(greater(said[:-1], 0.0), greater(said[1:], 0.0))
    quotient = where_v2(both, ratio(said[:-1], said[1:]), ones_like(said[1:]))
    areas = multiply(slope, add(gained, multiply(intercept, log(quotient))))
    return reduce_sum(ratio(areas, add(tp[1:], fn[1:])))


def _check_level(level: float) -> None:
    if not 0 <= level <= 1:
        raise ValueError(f"it must be in the range [0, 1], not {level}")


def sensitivity_at_specificity(
    labels: TensorLike,
    predictions: TensorLike,
    specificity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """The recall at the threshold where the share of right noes comes nearest to `specificity`. Other arguments as of `auc`."""
    _check_level(specificity)

    def value(tp: Tensor, fn: Tensor, tn: Tensor, fp: Tensor) -> Tensor:
        specific = ratio(tn, add(tn, fp))
        at = argmin(absolute(subtract(specific, convert(specificity, dtype=float32))), 0)
        return ratio(gather(tp, at), add(gather(tp, at), gather(fn, at)))

    inputs, build = (labels, predictions, weights), _counted(CASES, value, _even_thresholds(num_thresholds))
    return metric(name, "sensitivity_at_specificity", inputs, build, metrics_collections, updates_collections)


def specificity_at_sensitivity(
    labels: TensorLike,
    predictions: TensorLike,
    sensitivity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Names = None,
    updates_collections: Names = None,
    name: str | None = None,
) -> Metric:
    """The share of right noes at the highest threshold where the recall comes nearest to `sensitivity`. Other arguments as of `auc`."""
    _check_level(sensitivity)

    def value(tp: Tensor, fn: Tensor, tn: Tensor, fp: Tensor) -> Tensor:
        distance = absolute(subtract(_recall(tp, fn), convert(sensitivity, dtype=float32)))
        at = num_thresholds - 1 - argmin(reverse(distance, [0]), 0)
        return ratio(gather(tn, at), add(gather(tn, at), gather(fp, at)))

    limits = _even_thresholds(num_thresholds, 1.0 - EPSILON)  # the last one too is reached: by a score of 1
    inputs, build = (labels, predictions, weights), _counted(CASES, value, limits)
    return metric(name, "specificity_at_sensitivity", inputs, build, metrics_collections, updates_collections)


explain_members(sys.modules[__name__])

__all__ = [
    "auc",
    "false_negatives",
    "false_negatives_at_thresholds",
    "false_positives",
    "false_positives_at_thresholds",
    "precision",
    "precision_at_thresholds",
    "recall",
    "recall_at_thresholds",
    "sensitivity_at_specificity",
    "specificity_at_sensitivity",
    "true_negatives",
    "true_negatives_at_thresholds",
    "true_positives",
    "true_positives_at_thresholds",
]
