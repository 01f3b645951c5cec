"""`dt.losses`: losses of a batch as scalars, which join a collection: TensorFlow 1's.

Each takes `weights` (a number, or of a shape that broadcasts against the losses), a `reduction`, and the collection to which the result
is added. `get_total_loss` sums them up, with what regularizers of variables give.
"""

from __future__ import annotations

import sys
from typing import Any

from ...graph.core.argument_names import explain_members
from ...graph.core.build import convert
from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.core.dtypes import float32, int64
from ...graph.core.graph import Tensor
from ...graph.ops.array.identity_and_placeholders import identity, stop_gradient
from ...graph.ops.array.ranges import range as range_
from ...graph.ops.array.shapes import rank, shape, size, squeeze
from ...graph.ops.math.arithmetic import (
    absolute,
    add_n,
    div_no_nan,
    maximum,
    minimum,
    multiply,
    negative,
    square,
    subtract,
)
from ...graph.ops.math.cast import cast
from ...graph.ops.math.compare import not_equal
from ...graph.ops.math.elementwise import log
from ...graph.ops.math.reduce import reduce_sum
from ...graph.ops.nn.activations import relu
from ...graph.ops.nn.softmax import (
    checked_logits,
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
)
from .metrics.weights import broadcast_weights, without_last


class Reduction:
    """What becomes of the losses of a batch."""

    NONE = "none"
    """They stay as they are."""
    SUM = "weighted_sum"
    """Their weighted sum."""
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    """Their weighted sum over how many there are."""
    MEAN = "weighted_mean"
    """Their weighted sum over the sum of the weights."""
    SUM_OVER_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"
    """As `SUM_BY_NONZERO_WEIGHTS`."""
    SUM_BY_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"
    """Their weighted sum over how many have a weight that is not zero: the default."""

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """All of them."""
        return cls.NONE, cls.SUM, cls.MEAN, cls.SUM_OVER_BATCH_SIZE, cls.SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def validate(cls, key: str) -> None:
        """ValueError: it is none of them."""
        if key not in cls.all():
            raise ValueError(f"Invalid ReductionKey {key}.")


_NONZERO = Reduction.SUM_BY_NONZERO_WEIGHTS


def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES,
    reduction: str = _NONZERO,
) -> Tensor:
    """The losses, weighted and reduced; the result joins `loss_collection` (None: no collection).

    Args:
        losses: of floating type, any shape.
        weights: broadcasts to it: a scalar, or sizes of 1 where they differ.

    Raises:
        ValueError: weights of a shape that does not fit, or an unknown reduction.
    """
    Reduction.validate(reduction)
    with get_default_graph().name_scope(scope or "weighted_loss"):
        values = convert(losses)
        dtype = values.dtype.base
        wide = values if dtype is float32 else cast(values, float32)
        weight = convert(weights)
        weight = weight if weight.dtype.base is float32 else cast(weight, float32)
        scalar = weight.shape.rank == 0
        weight = weight if scalar else broadcast_weights(weight, wide)
        loss = multiply(wide, weight)
        if reduction != Reduction.NONE:
            loss = reduce_sum(loss)
        if reduction not in (Reduction.NONE, Reduction.SUM):
            count = cast(size(wide), float32)
            if reduction != Reduction.SUM_OVER_BATCH_SIZE:
                each = weight if reduction == Reduction.MEAN else cast(not_equal(weight, 0.0), float32)
                count = multiply(each, count) if scalar else reduce_sum(each)
            loss = div_no_nan(loss, count, name="value")
        result: Tensor = loss if dtype is float32 else cast(loss, dtype)
        add_loss(result, loss_collection)
        return result


def _pair(labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    """Both as float32. ValueError: their shapes differ. TypeError: their types are those of each other."""
    if labels is None or predictions is None:
        raise ValueError("labels and predictions must not be None.")
    given, found = convert(predictions), convert(labels)
    if not given.shape.is_compatible_with(found.shape):
        remedy = "they must be of one shape: dt.reshape or dt.squeeze changes that of one of them"
        raise ValueError(f"labels of shape {found.shape} and predictions of shape {given.shape} differ; {remedy}")
    if found.dtype.is_floating and not given.dtype.is_floating:
        raise TypeError(
            f"The labels are {found.dtype.base.name}, the predictions {given.dtype.base.name}: are the two swapped? The labels come first"
        )
    return cast(found, float32), cast(given, float32)


def mean_squared_error(
    labels: Any, predictions: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = _NONZERO,
) -> Tensor:  # fmt: skip
    """(predictions - labels) ** 2."""
    true, given = _pair(labels, predictions)
    return compute_weighted_loss(
        square(subtract(given, true)), weights, scope or "mean_squared_error", loss_collection, reduction
    )


def absolute_difference(
    labels: Any, predictions: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = _NONZERO,
) -> Tensor:  # fmt: skip
    """|predictions - labels|."""
    true, given = _pair(labels, predictions)
    return compute_weighted_loss(
        absolute(subtract(given, true)), weights, scope or "absolute_difference", loss_collection, reduction
    )


def mean_pairwise_squared_error(
    labels: Any, predictions: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES,
) -> Tensor:  # fmt: skip
    """The squares of the differences between the errors of each two elements of an example, as twice their mean over the pairs; summed
    over the batch. Labels and predictions are (batch, ...), weights (batch,) with as many axes of size 1, or a scalar, or of their shape.
    """
    true, given = _pair(labels, predictions)
    with get_default_graph().name_scope(scope or "mean_pairwise_squared_error"):
        error = subtract(given, true)
        weight = cast(weights, float32)
        present = broadcast_weights(cast(not_equal(weight, 0.0), float32), error)
        axes = range_(1, rank(error))
        count = reduce_sum(present, axes, keepdims=True)
        others = maximum(count - 1.0, 0.0)
        squares, sums = reduce_sum(square(error), axes, keepdims=True), reduce_sum(error, axes, keepdims=True)
        pairs = 2.0 * (div_no_nan(squares, others) - div_no_nan(square(sums), count * others))
        loss: Tensor = identity(reduce_sum(multiply(pairs, weight)), name="value")
    add_loss(loss, loss_collection)
    return loss


def huber_loss(
    labels: Any, predictions: Any, weights: Any = 1.0, delta: float = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = _NONZERO,
) -> Tensor:  # fmt: skip
    """Half the square of errors up to `delta`, linear beyond (Huber, 1964)."""
    true, given = _pair(labels, predictions)
    error = absolute(subtract(given, true))
    near = minimum(error, delta)
    losses = 0.5 * square(near) + delta * subtract(error, near)
    return compute_weighted_loss(losses, weights, scope or "huber_loss", loss_collection, reduction)


def hinge_loss(
    labels: Any, logits: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = _NONZERO,
) -> Tensor:  # fmt: skip
    """max(1 - labels * logits, 0), labels of 0 and 1 taken for -1 and 1."""
    true, given = _pair(labels, logits)
    losses = relu(1.0 - (2.0 * true - 1.0) * given)  # of which the gradient is 0 at 0; that of `maximum` is 1
    return compute_weighted_loss(losses, weights, scope or "hinge_loss", loss_collection, reduction)


def log_loss(
    labels: Any, predictions: Any, weights: Any = 1.0, epsilon: float = 1e-7, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = _NONZERO,
) -> Tensor:  # fmt: skip
    """-labels log(predictions) - (1 - labels) log(1 - predictions), for probabilities."""
    true, given = _pair(labels, predictions)
    losses = negative(multiply(true, log(given + epsilon))) - multiply(1.0 - true, log(1.0 - given + epsilon))
    return compute_weighted_loss(losses, weights, scope or "log_loss", loss_collection, reduction)


def cosine_distance(
    labels: Any, predictions: Any, axis: int | None = None, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = _NONZERO, dim: int | None = None,
) -> Tensor:  # fmt: skip
    """1 - the product of both, summed over an axis, for vectors of length 1. ValueError: no axis."""
    along = dim if axis is None else axis
    if along is None:
        raise ValueError("You must specify 'axis'.")
    true, given = _pair(labels, predictions)
    losses = 1.0 - reduce_sum(multiply(true, given), along, keepdims=True)
    return compute_weighted_loss(losses, weights, scope or "cosine_distance_loss", loss_collection, reduction)


def sigmoid_cross_entropy(
    multi_class_labels: Any, logits: Any, weights: Any = 1.0, label_smoothing: float = 0.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = _NONZERO,
) -> Tensor:  # fmt: skip
    """The cross-entropy of each logit with its label, which goes towards 1/2 by `label_smoothing`."""
    given = checked_logits("sigmoid_cross_entropy", multi_class_labels, logits)
    true = cast(multi_class_labels, given.dtype.base)
    if label_smoothing > 0:
        true = true * (1.0 - label_smoothing) + 0.5 * label_smoothing
    losses = sigmoid_cross_entropy_with_logits(labels=true, logits=given)
    return compute_weighted_loss(losses, weights, scope or "sigmoid_cross_entropy_loss", loss_collection, reduction)


def smoothed(labels: Tensor, amount: float, axis: int = -1) -> Tensor:
    """One-hot labels that go towards an even spread over the classes along an axis by `amount`."""
    made: Tensor = labels * (1.0 - amount) + amount / cast(shape(labels)[axis], labels.dtype.base)
    return made


def softmax_cross_entropy(
    onehot_labels: Any, logits: Any, weights: Any = 1.0, label_smoothing: float = 0.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = _NONZERO,
) -> Tensor:  # fmt: skip
    """The cross-entropy of logits along the last axis with one-hot labels, which go towards an even spread by `label_smoothing`."""
    given = checked_logits("softmax_cross_entropy", onehot_labels, logits)
    true = stop_gradient(cast(onehot_labels, given.dtype.base))
    if label_smoothing > 0:
        true = smoothed(true, label_smoothing)
    losses = softmax_cross_entropy_with_logits_v2(labels=true, logits=given)
    return compute_weighted_loss(losses, weights, scope or "softmax_cross_entropy_loss", loss_collection, reduction)


def sparse_softmax_cross_entropy(
    labels: Any, logits: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = _NONZERO,
) -> Tensor:  # fmt: skip
    """The cross-entropy of logits along the last axis with class numbers (a last axis of size 1 is left out).

    >>> loss = dt.losses.sparse_softmax_cross_entropy(labels, logits)
    """
    given = checked_logits("sparse_softmax_cross_entropy", labels, logits)
    true, weight = convert(labels), convert(weights)
    if true.shape.rank is None or given.shape.rank is None:
        true = without_last(true, rank(given) - 1)
    elif true.shape.rank == given.shape.rank:
        if (true.dims or (1,))[-1] not in (1, None):
            raise ValueError(
                f"sparse_softmax_cross_entropy: labels of shape {true.shape} are one probability per class, as in one-hot labels. "
                "This loss takes class numbers: pass dt.argmax(labels, axis=-1), or use dt.losses.softmax_cross_entropy"
            )
        true = squeeze(true, [-1])
    if true.shape.rank is None or weight.shape.rank is None:
        weight = without_last(weight, rank(true))
    elif weight.shape.rank == true.shape.rank + 1:
        weight = squeeze(weight, [-1])
    true = true if true.dtype.is_integer else cast(true, int64)
    losses = sparse_softmax_cross_entropy_with_logits(labels=true, logits=given)
    return compute_weighted_loss(
        losses, weight, scope or "sparse_softmax_cross_entropy_loss", loss_collection, reduction
    )


# --- collections ------------------------------------------------------------------------------------------------------


def add_loss(loss: Tensor, loss_collection: str | None = GraphKeys.LOSSES) -> None:
    """Add a loss of your own to the collection."""
    if loss_collection:
        get_default_graph().add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = GraphKeys.LOSSES) -> list[Any]:
    """The losses that were added; with `scope`, those whose name matches that regular expression."""
    return get_default_graph().get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Any]:
    """What regularizers of variables gave; `scope` as of `get_losses`."""
    return get_default_graph().get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(scope: str | None = None, name: str = "total_regularization_loss") -> Tensor:
    """The sum of the regularization losses; 0 where there are none."""
    found = get_regularization_losses(scope)
    return add_n(found, name=name) if found else convert(0.0, name=name)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """The sum of all losses. ValueError: there is none."""
    found = get_losses(scope)
    if add_regularization_losses:
        found = [*found, *get_regularization_losses(scope)]
    if not found:
        raise ValueError("There is no loss in the collection: make one by dt.losses, or add yours by add_loss")
    return add_n(found, name=name)


explain_members(sys.modules[__name__])

__all__ = [
    "Reduction",
    "absolute_difference",
    "add_loss",
    "compute_weighted_loss",
    "cosine_distance",
    "get_losses",
    "get_regularization_loss",
    "get_regularization_losses",
    "get_total_loss",
    "hinge_loss",
    "huber_loss",
    "log_loss",
    "mean_pairwise_squared_error",
    "mean_squared_error",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
]
