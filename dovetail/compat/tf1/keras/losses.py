"""`dt.keras.losses`: what training minimises, as functions and as classes.

A function gives one number per sample (and per step, where the targets have steps): `loss(y_true, y_pred)`. A class has arguments,
weighs samples and takes the mean. Where predictions are the output of a softmax or a sigmoid, cross-entropies start from what went
into it, which loses nothing to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....graph.core.build import convert
from ....graph.core.dtypes import int64
from ....graph.core.graph import Tensor
from ....graph.ops.array.shapes import expand_dims, reshape, shape, squeeze
from ....graph.ops.math.arithmetic import absolute, maximum, multiply, negative, square, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.clip import clip_by_value
from ....graph.ops.math.compare import less_equal, where_v2
from ....graph.ops.math.elementwise import log, log1p
from ....graph.ops.math.reduce import reduce_mean, reduce_sum
from ....graph.ops.nn.activations import softplus
from ....graph.ops.nn.normalization import l2_normalize
from ....graph.ops.nn.softmax import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
)
from ..losses import smoothed
from .backend import epsilon
from .registry import Configured, Registry


def aligned(y_true: Any, y_pred: Any) -> tuple[Tensor, Tensor]:
    """Targets of the predictions' type, and of their rank where one has an axis of size 1 more.

    Raises:
        ValueError: their last axes differ. Broadcasting would compare each target with the predictions for others.
    """
    pred = convert(y_pred)
    true = convert(y_true)
    true, pred = squeezed(true if true.dtype.base is pred.dtype.base else cast(true, pred.dtype.base), pred)
    if true.dims and pred.dims and len(pred.dims) > 1:
        sizes = true.dims[-1], pred.dims[-1]
        if len(true.dims) != len(pred.dims) or None not in sizes and sizes[0] != sizes[1]:
            raise ValueError(f"Targets of shape {true.shape} do not fit predictions of shape {pred.shape}")
    return true, pred


def squeezed(true: Tensor, pred: Tensor) -> tuple[Tensor, Tensor]:
    """Both, without the last axis of size 1 that only one of them has."""
    if true.shape.rank is None or pred.shape.rank is None:
        return true, pred
    if true.shape.rank == pred.shape.rank + 1 and true.shape.as_list()[-1] == 1:
        return squeeze(true, [-1]), pred
    if pred.shape.rank == true.shape.rank + 1 and pred.shape.as_list()[-1] == 1:
        return expand_dims(true, -1), pred
    return true, pred


def mean_squared_error(y_true: Any, y_pred: Any) -> Tensor:
    """mean((y_true - y_pred) ** 2) over the last axis."""
    true, pred = aligned(y_true, y_pred)
    return reduce_mean(square(subtract(pred, true)), -1)


def mean_absolute_error(y_true: Any, y_pred: Any) -> Tensor:
    """mean(|y_true - y_pred|) over the last axis."""
    true, pred = aligned(y_true, y_pred)
    return reduce_mean(absolute(subtract(pred, true)), -1)


def mean_absolute_percentage_error(y_true: Any, y_pred: Any) -> Tensor:
    """100 * mean(|y_true - y_pred| / |y_true|) over the last axis."""
    true, pred = aligned(y_true, y_pred)
    return 100.0 * reduce_mean(absolute(subtract(true, pred) / maximum(absolute(true), epsilon())), -1)


def mean_squared_logarithmic_error(y_true: Any, y_pred: Any) -> Tensor:
    """mean((log(y_true + 1) - log(y_pred + 1)) ** 2) over the last axis."""
    true, pred = aligned(y_true, y_pred)
    return reduce_mean(square(log1p(maximum(true, epsilon())) - log1p(maximum(pred, epsilon()))), -1)


def huber(y_true: Any, y_pred: Any, delta: float = 1.0) -> Tensor:
    """Half the square of errors up to `delta`, linear beyond (Huber, 1964); the mean over the last axis."""
    true, pred = aligned(y_true, y_pred)
    error = absolute(subtract(pred, true))
    return reduce_mean(where_v2(less_equal(error, delta), 0.5 * square(error), delta * error - 0.5 * delta * delta), -1)


def log_cosh(y_true: Any, y_pred: Any) -> Tensor:
    """mean(log(cosh(y_pred - y_true))) over the last axis."""
    true, pred = aligned(y_true, y_pred)
    error = subtract(pred, true)
    return reduce_mean(error + softplus(-2.0 * error) - 0.6931471805599453, -1)


def hinge(y_true: Any, y_pred: Any) -> Tensor:
    """mean(max(1 - y_true * y_pred, 0)) over the last axis; targets of 0 and 1 mean -1 and 1."""
    true, pred = aligned(y_true, y_pred)
    signs = where_v2(less_equal(true, 0.0), convert(-1.0, true.dtype), convert(1.0, true.dtype))
    return reduce_mean(maximum(1.0 - signs * pred, 0.0), -1)


def kl_divergence(y_true: Any, y_pred: Any) -> Tensor:
    """sum(y_true * log(y_true / y_pred)) over the last axis."""
    true, pred = aligned(y_true, y_pred)
    true, pred = clip_by_value(true, epsilon(), 1.0), clip_by_value(pred, epsilon(), 1.0)
    return reduce_sum(true * log(true / pred), -1)


def poisson(y_true: Any, y_pred: Any) -> Tensor:
    """mean(y_pred - y_true * log(y_pred)) over the last axis."""
    true, pred = aligned(y_true, y_pred)
    return reduce_mean(pred - true * log(pred + epsilon()), -1)


def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> Tensor:
    """Minus the cosine of the angle between both: -1 where they point the same way."""
    true, pred = aligned(y_true, y_pred)
    return negative(reduce_sum(l2_normalize(true, axis) * l2_normalize(pred, axis), axis))


def binary_crossentropy(y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of probabilities (or logits) with targets of 0 and 1; the mean over the last axis."""
    true, pred = aligned(y_true, y_pred)
    if label_smoothing:
        true = true * (1.0 - label_smoothing) + 0.5 * label_smoothing
    if not from_logits and (logits := _before(pred, "Sigmoid")) is not None:
        pred, from_logits = logits, True
    if from_logits:
        return reduce_mean(sigmoid_cross_entropy_with_logits(labels=true, logits=pred), -1)
    p = clip_by_value(pred, epsilon(), 1.0 - epsilon())
    return negative(reduce_mean(true * log(p) + (1.0 - true) * log(1.0 - p), -1))


def categorical_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Tensor:
    """Cross-entropy of probabilities (or logits) along `axis` with one-hot targets."""
    true, pred = aligned(y_true, y_pred)
    if label_smoothing:
        true = smoothed(true, label_smoothing, axis)
    if (
        not from_logits
        and (logits := _before(pred, "Softmax")) is not None
        and axis in (-1, (pred.shape.rank or 0) - 1)
    ):
        pred, from_logits = logits, True
    if from_logits:
        return softmax_cross_entropy_with_logits_v2(labels=true, logits=pred, axis=axis)
    p = pred / reduce_sum(pred, axis, keepdims=True)
    return negative(reduce_sum(true * log(clip_by_value(p, epsilon(), 1.0 - epsilon())), axis))


def sparse_categorical_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, ignore_class: int | None = None, axis: int = -1
) -> Tensor:
    """Cross-entropy of probabilities (or logits) along the last axis with class numbers.

    Targets of `ignore_class` cost nothing. ValueError: another axis than the last one.
    """
    pred = convert(y_pred)
    if axis not in (-1, (pred.shape.rank or 0) - 1):
        raise ValueError("sparse_categorical_crossentropy takes classes along the last axis: transpose the predictions")
    labels = class_numbers(y_true, pred)
    if not from_logits:
        logits = _before(pred, "Softmax")
        if logits is None:
            p = pred / reduce_sum(pred, -1, keepdims=True)
            logits = log(clip_by_value(p, epsilon(), 1.0 - epsilon()))
        pred = logits
    if ignore_class is None:
        return sparse_softmax_cross_entropy_with_logits(labels=labels, logits=pred)
    ignored = less_equal(absolute(labels - ignore_class), 0)
    losses = sparse_softmax_cross_entropy_with_logits(labels=where_v2(ignored, convert(0, int64), labels), logits=pred)
    return where_v2(ignored, convert(0.0, losses.dtype), losses)


def class_numbers(y_true: Any, pred: Tensor) -> Tensor:
    """Targets as int64 class numbers, without a last axis of size 1."""
    labels = convert(y_true)
    rank = labels.shape.rank
    if rank is not None and rank == pred.shape.rank and labels.shape.as_list()[-1] == 1:
        labels = squeeze(labels, [-1])
    elif rank is not None and rank == pred.shape.rank and pred.shape.rank is not None and pred.shape.rank > 1:
        labels = reshape(labels, shape(pred)[:-1])
    found: Tensor = cast(labels, int64)
    return found


def _before(pred: Tensor, op: str) -> Tensor | None:
    """What went into the op that made the predictions, if it is that one (and works along the last axis)."""
    node = pred.op
    return node.inputs[0] if node.type == op else None


# --- classes ----------------------------------------------------------------------------------------------------------


class Loss(Configured):
    """Base of the loss classes. A subclass defines `call(y_true, y_pred)`, which gives a number per sample.

    Args:
        reduction: "sum_over_batch_size" (the mean), "sum", or "none".
        name: its name.
    """

    def __init__(self, reduction: str | None = "sum_over_batch_size", name: str | None = None) -> None:
        found = "none" if reduction is None else str(getattr(reduction, "value", reduction)).lower()
        found = "sum_over_batch_size" if found in ("auto", "mean") else found
        if found not in ("sum_over_batch_size", "sum", "none"):
            raise ValueError(f"reduction must be 'sum_over_batch_size', 'sum' or 'none', not {reduction!r}")
        self.reduction = found
        self.name = name

    def call(self, y_true: Any, y_pred: Any) -> Tensor:
        """A number per sample."""
        raise NotImplementedError

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        """The loss of a batch: a scalar, unless the reduction is "none"."""
        losses = self.call(y_true, y_pred)
        if sample_weight is not None:
            losses = multiply(losses, weights_for(losses, sample_weight))
        if self.reduction == "none":
            return losses
        return reduce_sum(losses) if self.reduction == "sum" else reduce_mean(losses)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal one."""
        return {"reduction": self.reduction, "name": self.name}


def weights_for(losses: Tensor, sample_weight: Any) -> Tensor:
    """Weights that broadcast against losses: [batch], or with the losses' further axes."""
    weight = convert(sample_weight)
    weight = weight if weight.dtype.base is losses.dtype.base else cast(weight, losses.dtype.base)
    rank, wanted = weight.shape.rank, losses.shape.rank
    if rank is None or wanted is None:
        return weight
    if rank > wanted and weight.shape.as_list()[-1] == 1:
        return squeeze(weight, [-1])
    for _ in range(wanted - rank if rank else 0):
        weight = expand_dims(weight, -1)
    return weight


class LossFunctionWrapper(Loss):
    """A loss class around a function: its keywords are kept."""

    def __init__(
        self, fn: Callable[..., Any], reduction: Any = "sum_over_batch_size", name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(reduction, name or getattr(fn, "__name__", None))
        self.fn, self._kwargs = fn, kwargs

    def call(self, y_true: Any, y_pred: Any) -> Tensor:
        """See `Loss.call`."""
        found: Tensor = self.fn(y_true, y_pred, **self._kwargs)
        return found

    def get_config(self) -> dict[str, Any]:
        """See `Loss.get_config`."""
        return {**super().get_config(), **self._kwargs}


class MeanSquaredError(LossFunctionWrapper):
    """See `mean_squared_error`."""

    def __init__(self, reduction: Any = "sum_over_batch_size", name: str = "mean_squared_error") -> None:
        super().__init__(mean_squared_error, reduction, name)


class MeanAbsoluteError(LossFunctionWrapper):
    """See `mean_absolute_error`."""

    def __init__(self, reduction: Any = "sum_over_batch_size", name: str = "mean_absolute_error") -> None:
        super().__init__(mean_absolute_error, reduction, name)


class MeanAbsolutePercentageError(LossFunctionWrapper):
    """See `mean_absolute_percentage_error`."""

    def __init__(self, reduction: Any = "sum_over_batch_size", name: str = "mean_absolute_percentage_error") -> None:
        super().__init__(mean_absolute_percentage_error, reduction, name)


class MeanSquaredLogarithmicError(LossFunctionWrapper):
    """See `mean_squared_logarithmic_error`."""

    def __init__(self, reduction: Any = "sum_over_batch_size", name: str = "mean_squared_logarithmic_error") -> None:
        super().__init__(mean_squared_logarithmic_error, reduction, name)


class Huber(LossFunctionWrapper):
    """See `huber`."""

    def __init__(self, delta: float = 1.0, reduction: Any = "sum_over_batch_size", name: str = "huber_loss") -> None:
        super().__init__(huber, reduction, name, delta=delta)


class LogCosh(LossFunctionWrapper):
    """See `log_cosh`."""

    def __init__(self, reduction: Any = "sum_over_batch_size", name: str = "log_cosh") -> None:
        super().__init__(log_cosh, reduction, name)


class Hinge(LossFunctionWrapper):
    """See `hinge`."""

    def __init__(self, reduction: Any = "sum_over_batch_size", name: str = "hinge") -> None:
        super().__init__(hinge, reduction, name)


class KLDivergence(LossFunctionWrapper):
    """See `kl_divergence`."""

    def __init__(self, reduction: Any = "sum_over_batch_size", name: str = "kl_divergence") -> None:
        super().__init__(kl_divergence, reduction, name)


class Poisson(LossFunctionWrapper):
    """See `poisson`."""

    def __init__(self, reduction: Any = "sum_over_batch_size", name: str = "poisson") -> None:
        super().__init__(poisson, reduction, name)


class CosineSimilarity(LossFunctionWrapper):
    """See `cosine_similarity`."""

    def __init__(self, axis: int = -1, reduction: Any = "sum_over_batch_size", name: str = "cosine_similarity") -> None:
        super().__init__(cosine_similarity, reduction, name, axis=axis)


class BinaryCrossentropy(LossFunctionWrapper):
    """See `binary_crossentropy`."""

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        reduction: Any = "sum_over_batch_size",
        name: str = "binary_crossentropy",
    ) -> None:
        super().__init__(binary_crossentropy, reduction, name, from_logits=from_logits, label_smoothing=label_smoothing)


class CategoricalCrossentropy(LossFunctionWrapper):
    """See `categorical_crossentropy`."""

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: Any = "sum_over_batch_size",
        name: str = "categorical_crossentropy",
    ) -> None:
        super().__init__(
            categorical_crossentropy, reduction, name,
            from_logits=from_logits, label_smoothing=label_smoothing, axis=axis,
        )  # fmt: skip


class SparseCategoricalCrossentropy(LossFunctionWrapper):
    """See `sparse_categorical_crossentropy`."""

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: Any = "sum_over_batch_size",
        name: str = "sparse_categorical_crossentropy",
    ) -> None:
        super().__init__(
            sparse_categorical_crossentropy, reduction, name, from_logits=from_logits, ignore_class=ignore_class
        )


mse = MSE = mean_squared_error
mae = MAE = mean_absolute_error
mape = MAPE = mean_absolute_percentage_error
msle = MSLE = mean_squared_logarithmic_error
kld = KLD = kullback_leibler_divergence = kl_divergence
logcosh = log_cosh

_registry = Registry(
    "loss",
    mean_squared_error, mean_absolute_error, mean_absolute_percentage_error, mean_squared_logarithmic_error, huber, log_cosh, hinge,
    kl_divergence, poisson, cosine_similarity, binary_crossentropy, categorical_crossentropy, sparse_categorical_crossentropy,
    mse=mse, MSE=mse, mae=mae, MAE=mae, mape=mape, MAPE=mape, msle=msle, MSLE=msle, kld=kld, KLD=kld, logcosh=log_cosh,
)  # fmt: skip
for _class in (
    MeanSquaredError, MeanAbsoluteError, MeanAbsolutePercentageError, MeanSquaredLogarithmicError, Huber, LogCosh, Hinge,
    KLDivergence, Poisson, CosineSimilarity, BinaryCrossentropy, CategoricalCrossentropy, SparseCategoricalCrossentropy,
):  # fmt: skip
    _registry.add(_class.__name__, _class)
serialize, deserialize, get = _registry.serialize, _registry.deserialize, _registry.get
