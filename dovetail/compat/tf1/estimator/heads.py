"""Heads: what becomes of the last layer of a ready-made model: predictions, a loss, metrics, under TensorFlow's names.

A head is given logits, and labels where there are any, and makes an `EstimatorSpec` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.core.build import convert
from ....graph.core.dtypes import float32, int64, string
from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import concat
from ....graph.ops.array.gather import gather
from ....graph.ops.array.shapes import expand_dims, reshape
from ....graph.ops.math.arithmetic import maximum
from ....graph.ops.math.cast import cast
from ....graph.ops.math.elementwise import sigmoid
from ....graph.ops.math.scan import argmax
from ....graph.ops.nn.softmax import (
    sigmoid_cross_entropy_with_logits,
    softmax,
    sparse_softmax_cross_entropy_with_logits,
)
from ....train.global_step import get_global_step
from .. import metrics
from ..losses import Reduction, compute_weighted_loss
from ..ops.hashing import vocabulary_index
from .export import ExportOutput, outputs_of_classes, outputs_of_numbers
from .spec import EstimatorSpec, ModeKeys


class Head:
    """Base of the heads.

    Args:
        weight_column: name of the feature, or numeric column, that says how much each example counts; None: all the same.
        loss_reduction: how the losses of examples become one; one of `dt.losses.Reduction`.
    """

    logits_dimension: int

    def __init__(self, weight_column: Any, loss_reduction: str) -> None:
        if loss_reduction not in Reduction.all() or loss_reduction == Reduction.NONE:
            raise ValueError(f"Invalid loss_reduction: {loss_reduction}")
        self._weight_column, self._reduction = weight_column, loss_reduction

    def spec(
        self, features: Any, mode: str, logits: Tensor, labels: Any, optimize: Callable[[Tensor], Any]
    ) -> EstimatorSpec:
        """What the model is in a mode; `optimize(loss)` makes its training step."""
        predictions = self.predictions(logits)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions, export_outputs=self.exported(predictions))
        if labels is None:
            raise ValueError("You must provide a labels Tensor. Given: None: the input function gives features alone")
        wanted = self.labels(labels)
        losses, weights = self.losses(logits, wanted), self._weights(features)
        loss = compute_weighted_loss(losses, 1.0 if weights is None else weights, reduction=self._reduction)
        if mode == ModeKeys.EVAL:
            found = {"average_loss": metrics.mean(losses, weights)} | self.metrics(predictions, wanted, weights)
            return EstimatorSpec(mode, predictions, loss, eval_metric_ops=found)
        return EstimatorSpec(mode, predictions, loss, optimize(loss))

    def _weights(self, features: Any) -> Tensor | None:
        """`[examples, 1]`."""
        from ..feature_column.columns import NumericColumn, values_of

        column = self._weight_column
        if column is None:
            return None
        x = column.numbers(features) if isinstance(column, NumericColumn) else values_of(features, column)
        return reshape(cast(x, float32), [-1, 1])

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """What it predicts, by name."""
        raise NotImplementedError

    def exported(self, predictions: dict[str, Tensor]) -> dict[str, ExportOutput]:
        """What a saved model gives, by the name of the signature."""
        return outputs_of_classes(predictions) if "classes" in predictions else outputs_of_numbers(predictions)

    def labels(self, given: Any) -> Tensor:
        """Labels as the loss takes them."""
        raise NotImplementedError

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each example, `[examples, 1]`."""
        raise NotImplementedError

    def metrics(self, predictions: dict[str, Tensor], labels: Tensor, weights: Tensor | None) -> dict[str, Any]:
        """Metrics beside the average loss."""
        raise NotImplementedError


class _ClassHead(Head):
    """What heads of classes share.

    Args:
        n_classes: how many. vocabulary: their names, if labels are text; else labels are numbers.
    """

    def __init__(
        self, n_classes: int, vocabulary: Sequence[str] | None, weight_column: Any, loss_reduction: str
    ) -> None:
        super().__init__(weight_column, loss_reduction)
        if vocabulary is not None and len(vocabulary) != n_classes:
            raise ValueError(
                f"Length of label_vocabulary must equal to n_classes. Given: {len(vocabulary)} vs {n_classes}"
            )
        self._vocabulary = None if vocabulary is None else list(vocabulary)
        self._names = [str(i) for i in range(n_classes)] if vocabulary is None else self._vocabulary

    def _ids(self, given: Any) -> Tensor:
        labels = convert(given)
        labels = expand_dims(labels, -1) if labels.shape.rank == 1 else labels
        if labels.dtype.base is string:
            if self._vocabulary is None:
                raise ValueError(
                    "Labels dtype should be integer. Instead got string: name the classes in label_vocabulary"
                )
            return vocabulary_index(labels, self._vocabulary)
        if self._vocabulary is not None:
            raise ValueError(
                f"Labels dtype should be string since there is a vocabulary. Instead got {labels.dtype.name}."
            )
        found: Tensor = cast(labels, int64)
        return found

    def _classes(self, ids: Tensor) -> dict[str, Tensor]:
        return {"class_ids": ids, "classes": gather(convert(self._names, string), ids)}


class BinaryHead(_ClassHead):
    """Two classes: one logit."""

    logits_dimension = 1

    def __init__(self, vocabulary: Sequence[str] | None, weight_column: Any, loss_reduction: str) -> None:
        super().__init__(2, vocabulary, weight_column, loss_reduction)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """As `Head.predictions`."""
        logistic = sigmoid(logits)
        probabilities = concat([1.0 - logistic, logistic], -1)
        ids = expand_dims(argmax(probabilities, -1), -1)
        return {"logits": logits, "logistic": logistic, "probabilities": probabilities} | self._classes(ids)

    def labels(self, given: Any) -> Tensor:
        """As `Head.labels`: 0.0 or 1.0."""
        found: Tensor = cast(self._ids(given), float32)
        return found

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """As `Head.losses`."""
        return sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def metrics(self, predictions: dict[str, Tensor], labels: Tensor, weights: Tensor | None) -> dict[str, Any]:
        """As `Head.metrics`."""
        logistic, ids = predictions["logistic"], predictions["class_ids"]
        mean = metrics.mean(labels, weights)
        return {
            "accuracy": metrics.accuracy(labels, ids, weights),
            "precision": metrics.precision(labels, ids, weights),
            "recall": metrics.recall(labels, ids, weights),
            "prediction/mean": metrics.mean(logistic, weights),
            "label/mean": mean,
            "accuracy_baseline": tuple(maximum(convert(m), 1.0 - convert(m)) for m in mean),
            "auc": metrics.auc(labels, logistic, weights),
            "auc_precision_recall": metrics.auc(
                labels, logistic, weights, curve="PR", summation_method="careful_interpolation"
            ),
        }


class MultiClassHead(_ClassHead):
    """Several classes: a logit each."""

    def __init__(
        self, n_classes: int, vocabulary: Sequence[str] | None, weight_column: Any, loss_reduction: str
    ) -> None:
        super().__init__(n_classes, vocabulary, weight_column, loss_reduction)
        self.logits_dimension = n_classes

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """As `Head.predictions`."""
        ids = expand_dims(argmax(logits, -1), -1)
        return {"logits": logits, "probabilities": softmax(logits)} | self._classes(ids)

    def labels(self, given: Any) -> Tensor:
        """As `Head.labels`."""
        return self._ids(given)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """As `Head.losses`."""
        return expand_dims(sparse_softmax_cross_entropy_with_logits(labels=reshape(labels, [-1]), logits=logits), -1)

    def metrics(self, predictions: dict[str, Tensor], labels: Tensor, weights: Tensor | None) -> dict[str, Any]:
        """As `Head.metrics`."""
        return {"accuracy": metrics.accuracy(labels, predictions["class_ids"], weights)}


class RegressionHead(Head):
    """Numbers: as many logits as an example has labels."""

    def __init__(self, label_dimension: int, weight_column: Any, loss_reduction: str) -> None:
        super().__init__(weight_column, loss_reduction)
        if label_dimension < 1:
            raise ValueError(f"Invalid label_dimension {label_dimension}.")
        self.logits_dimension = label_dimension

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """As `Head.predictions`."""
        return {"predictions": logits}

    def labels(self, given: Any) -> Tensor:
        """As `Head.labels`."""
        return reshape(cast(convert(given), float32), [-1, self.logits_dimension])

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """As `Head.losses`: the squares of differences, each of its own."""
        difference = logits - labels
        return difference * difference

    def metrics(self, predictions: dict[str, Tensor], labels: Tensor, weights: Tensor | None) -> dict[str, Any]:
        """As `Head.metrics`."""
        return {
            "prediction/mean": metrics.mean(predictions["predictions"], weights),
            "label/mean": metrics.mean(labels, weights),
        }


def step_of(optimizer: Any) -> Callable[[Tensor], Any]:
    """What makes a training step of a loss, and counts it."""
    return lambda loss: optimizer.minimize(loss, global_step=get_global_step())


__all__ = ["BinaryHead", "Head", "MultiClassHead", "RegressionHead", "step_of"]
