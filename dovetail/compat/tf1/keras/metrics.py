"""`dt.keras.metrics`: numbers that tell how well a model does, put together over the batches of an epoch.

A metric keeps sums in variables: `update_state` adds a batch's, `result` makes the number. Under a strategy each replica adds to its
own copy, and who reads the result across replicas gets the sums of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....graph.core.build import convert
from ....graph.core.default_graph import get_default_graph
from ....graph.core.dtypes import float32
from ....graph.core.graph import Node, Tensor
from ....graph.ops.array.creation import ones_like
from ....graph.ops.array.identity_and_placeholders import group
from ....graph.ops.array.shapes import expand_dims, reshape, size
from ....graph.ops.array.sorting import in_top_k
from ....graph.ops.math.arithmetic import div_no_nan, multiply, sqrt
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, greater, greater_equal, logical_and, logical_not
from ....graph.ops.math.reduce import reduce_mean, reduce_sum
from ....graph.ops.math.scan import argmax
from ....graph.variables.variable import VariableAggregation, VariableSynchronization
from . import losses
from .backend import batch_set_value, copies
from .layers.base import Layer
from .losses import aligned, class_numbers, weights_for
from .registry import Registry


class Metric(Layer):
    """Base of the metrics.

    A subclass makes its sums in `__init__` (or later) by `add_weight`, and defines `update_state(y_true, y_pred, sample_weight=None)`,
    which gives a node, and `result()`, which gives a tensor.
    """

    _is_part = False

    def __init__(self, name: str | None = None, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(name=name, dtype=dtype, trainable=True, **kwargs)
        self.built = True

    def add_weight(self, name: str | None = None, shape: Any = (), *args: Any, **kwargs: Any) -> Any:
        """Make a variable that holds a sum: each replica has its own."""
        wanted = {
            "initializer": "zeros", "trainable": False, "synchronization": VariableSynchronization.ON_READ,
            "aggregation": VariableAggregation.SUM,
        }  # fmt: skip
        return super().add_weight(name, shape, *args, **{**wanted, **kwargs})

    def update_state(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch: a node."""
        raise NotImplementedError

    def result(self) -> Any:
        """The number, as a tensor."""
        raise NotImplementedError

    def _variables(self) -> list[Any]:
        """Its variables, made if they are not there yet."""
        self._ensure()
        return self.weights

    def _ensure(self) -> None:
        """Make the variables that do not depend on data."""

    def _reset_nodes(self) -> list[Node]:
        """Nodes that set every copy of its sums to zero."""
        nodes = []
        for copy in (c for v in self._variables() for c in copies(v)):
            with copy.graph.device(copy.device):
                zeros = np.zeros(copy.shape.as_list(), copy.dtype.base.np)
                nodes.append(copy.assign(zeros, read_value=False))
        return nodes

    def reset_state(self) -> None:
        """Begin anew, in the session of the models."""
        batch_set_value([(v, np.zeros(v.shape.as_list(), v.dtype.base.np)) for v in self._variables()])

    reset_states = reset_state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch, and give the result after it as a tensor."""
        graph = get_default_graph()
        with graph.control_dependencies([_as_node(self.update_state(*args, **kwargs))]):
            return self.result()

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {"name": self.name, "dtype": self.dtype.name}


def _as_node(update: Any) -> Any:
    return update if isinstance(update, Node) else update.op


def _weight_of_each(x: Tensor, sample_weight: Any) -> Tensor:
    """Weights of the shape of `x`: the weight of a sample counts once for each of its numbers."""
    found: Tensor = multiply(weights_for(x, sample_weight), ones_like(x))
    return found


class Reduce(Metric):
    """A sum of values, or their mean, weighted."""

    _counts = True

    def _ensure(self) -> None:
        if not self._weights:
            self.total = self.add_weight("total")
            if self._counts:
                self.count = self.add_weight("count")

    def _add(self, values: Any, sample_weight: Any = None) -> Node:
        self._ensure()
        x = convert(values)
        x = x if x.dtype.base is self.dtype else cast(x, self.dtype)
        if sample_weight is None:
            total, count = reduce_sum(x), cast(size(x), self.dtype)
        else:
            weight = _weight_of_each(x, sample_weight)
            total, count = reduce_sum(multiply(x, weight)), reduce_sum(weight)
        nodes = [self.total.assign_add(total, read_value=False)]
        if self._counts:
            nodes.append(self.count.assign_add(count, read_value=False))
        node: Node = group(*nodes)
        return node

    def result(self) -> Tensor:
        """See `Metric.result`."""
        self._ensure()
        return div_no_nan(self.total.value(), self.count.value()) if self._counts else self.total.value()


class Mean(Reduce):
    """The mean of values."""

    def update_state(self, values: Any, sample_weight: Any = None) -> Node:
        """Add values, of any shape; weights broadcast to them."""
        return self._add(values, sample_weight)


class Sum(Reduce):
    """The sum of values."""

    _counts = False

    def update_state(self, values: Any, sample_weight: Any = None) -> Node:
        """Add values, of any shape; weights broadcast to them."""
        return self._add(values, sample_weight)


class MeanMetricWrapper(Reduce):
    """The mean of a function of targets and predictions.

    Args:
        fn: gives a number per sample: `fn(y_true, y_pred, **kwargs)`.
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(name or getattr(fn, "__name__", None), dtype)
        self._fn, self._kwargs = fn, kwargs

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Node:
        """Add a batch."""
        return self._add(self._fn(y_true, y_pred, **self._kwargs), sample_weight)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), **self._kwargs}


# --- functions --------------------------------------------------------------------------------------------------------


def binary_accuracy(y_true: Any, y_pred: Any, threshold: float = 0.5) -> Tensor:
    """Share of the last axis where the prediction is on the target's side of `threshold`."""
    true, pred = aligned(y_true, y_pred)
    return reduce_mean(cast(equal(true, cast(greater(pred, threshold), true.dtype)), float32), -1)


def categorical_accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1 where the largest prediction is at the place of the one-hot target's largest, else 0."""
    true, pred = aligned(y_true, y_pred)
    found: Tensor = cast(equal(argmax(true, -1), argmax(pred, -1)), float32)
    return found


def sparse_categorical_accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1 where the largest prediction is at the target, a class number, else 0."""
    pred = convert(y_pred)
    found: Tensor = cast(equal(class_numbers(y_true, pred), argmax(pred, -1)), float32)
    return found


def accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1 where target and prediction are equal, else 0."""
    true, pred = aligned(y_true, y_pred)
    found: Tensor = cast(equal(true, pred), float32)
    return found


def sparse_top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Tensor:
    """1 where the target, a class number, is among the `k` largest predictions, else 0."""
    pred = convert(y_pred)
    found: Tensor = cast(in_top_k(pred, class_numbers(y_true, pred), k), float32)
    return found


def top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Tensor:
    """1 where the one-hot target is among the `k` largest predictions, else 0."""
    return sparse_top_k_categorical_accuracy(argmax(convert(y_true), -1), y_pred, k)


def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> Tensor:
    """The cosine of the angle between target and prediction."""
    return -losses.cosine_similarity(y_true, y_pred, axis)


# --- classes ----------------------------------------------------------------------------------------------------------


class Accuracy(MeanMetricWrapper):
    """Share of predictions that are equal to their targets."""

    def __init__(self, name: str = "accuracy", dtype: Any = None) -> None:
        super().__init__(accuracy, name, dtype)


class BinaryAccuracy(MeanMetricWrapper):
    """See `binary_accuracy`."""

    def __init__(self, name: str = "binary_accuracy", dtype: Any = None, threshold: float = 0.5) -> None:
        super().__init__(binary_accuracy, name, dtype, threshold=threshold)


class CategoricalAccuracy(MeanMetricWrapper):
    """See `categorical_accuracy`."""

    def __init__(self, name: str = "categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(categorical_accuracy, name, dtype)


class SparseCategoricalAccuracy(MeanMetricWrapper):
    """See `sparse_categorical_accuracy`."""

    def __init__(self, name: str = "sparse_categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(sparse_categorical_accuracy, name, dtype)


class TopKCategoricalAccuracy(MeanMetricWrapper):
    """See `top_k_categorical_accuracy`."""

    def __init__(self, k: int = 5, name: str = "top_k_categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(top_k_categorical_accuracy, name, dtype, k=k)


class SparseTopKCategoricalAccuracy(MeanMetricWrapper):
    """See `sparse_top_k_categorical_accuracy`."""

    def __init__(self, k: int = 5, name: str = "sparse_top_k_categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(sparse_top_k_categorical_accuracy, name, dtype, k=k)


class MeanSquaredError(MeanMetricWrapper):
    """The mean squared error."""

    def __init__(self, name: str = "mean_squared_error", dtype: Any = None) -> None:
        super().__init__(losses.mean_squared_error, name, dtype)


class RootMeanSquaredError(MeanMetricWrapper):
    """The root of the mean squared error."""

    def __init__(self, name: str = "root_mean_squared_error", dtype: Any = None) -> None:
        super().__init__(losses.mean_squared_error, name, dtype)

    def result(self) -> Tensor:
        """See `Metric.result`."""
        return sqrt(super().result())


class MeanAbsoluteError(MeanMetricWrapper):
    """The mean absolute error."""

    def __init__(self, name: str = "mean_absolute_error", dtype: Any = None) -> None:
        super().__init__(losses.mean_absolute_error, name, dtype)


class MeanAbsolutePercentageError(MeanMetricWrapper):
    """The mean absolute percentage error."""

    def __init__(self, name: str = "mean_absolute_percentage_error", dtype: Any = None) -> None:
        super().__init__(losses.mean_absolute_percentage_error, name, dtype)


class CosineSimilarity(MeanMetricWrapper):
    """See `cosine_similarity`."""

    def __init__(self, name: str = "cosine_similarity", dtype: Any = None, axis: int = -1) -> None:
        super().__init__(cosine_similarity, name, dtype, axis=axis)


class BinaryCrossentropy(MeanMetricWrapper):
    """The mean binary cross-entropy."""

    def __init__(self, name: str = "binary_crossentropy", dtype: Any = None, from_logits: bool = False) -> None:
        super().__init__(losses.binary_crossentropy, name, dtype, from_logits=from_logits)


class CategoricalCrossentropy(MeanMetricWrapper):
    """The mean categorical cross-entropy."""

    def __init__(self, name: str = "categorical_crossentropy", dtype: Any = None, from_logits: bool = False) -> None:
        super().__init__(losses.categorical_crossentropy, name, dtype, from_logits=from_logits)


class SparseCategoricalCrossentropy(MeanMetricWrapper):
    """The mean cross-entropy with class numbers."""

    def __init__(
        self, name: str = "sparse_categorical_crossentropy", dtype: Any = None, from_logits: bool = False
    ) -> None:
        super().__init__(losses.sparse_categorical_crossentropy, name, dtype, from_logits=from_logits)


class _Confusion(Metric):
    """Counts of right and wrong answers at some thresholds."""

    _kept: tuple[str, ...] = ()

    def __init__(self, thresholds: Any = None, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.thresholds = thresholds
        given = 0.5 if thresholds is None else thresholds
        self._at: list[float] = [float(t) for t in given] if isinstance(given, Sequence) else [float(given)]
        self._sums: dict[str, Any] = {}

    def _ensure(self) -> None:
        for name in self._kept:
            if name not in self._sums:
                self._sums[name] = self.add_weight(name, [len(self._at)])

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Node:
        """Add a batch of targets 0 and 1, and of probabilities."""
        self._ensure()
        true, pred = aligned(y_true, y_pred)
        weight = None if sample_weight is None else reshape(_weight_of_each(pred, sample_weight), [1, -1])
        is_true = greater_equal(reshape(true, [1, -1]), 0.5)
        is_said = greater(reshape(pred, [1, -1]), expand_dims(convert(np.asarray(self._at, np.float32), pred.dtype), 1))
        cells = {
            "true_positives": lambda: logical_and(is_true, is_said),
            "false_positives": lambda: logical_and(logical_not(is_true), is_said),
            "false_negatives": lambda: logical_and(is_true, logical_not(is_said)),
            "true_negatives": lambda: logical_and(logical_not(is_true), logical_not(is_said)),
        }
        nodes = []
        for name in self._kept:
            found = cast(cells[name](), self.dtype)
            found = found if weight is None else multiply(found, weight)
            nodes.append(self._sums[name].assign_add(reduce_sum(found, 1), read_value=False))
        node: Node = group(*nodes)
        return node

    def _of(self, name: str) -> Tensor:
        self._ensure()
        found: Tensor = self._sums[name].value()
        return found

    def _one(self, values: Tensor) -> Tensor:
        return values if isinstance(self.thresholds, Sequence) else values[0]

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "thresholds": self.thresholds}


class Precision(_Confusion):
    """Share of what was said to be true that is true."""

    _kept = ("true_positives", "false_positives")

    def result(self) -> Tensor:
        """See `Metric.result`."""
        right = self._of("true_positives")
        return self._one(div_no_nan(right, right + self._of("false_positives")))


class Recall(_Confusion):
    """Share of what is true that was said to be true."""

    _kept = ("true_positives", "false_negatives")

    def result(self) -> Tensor:
        """See `Metric.result`."""
        right = self._of("true_positives")
        return self._one(div_no_nan(right, right + self._of("false_negatives")))


class AUC(_Confusion):
    """Area under the ROC curve, by trapezoids between `num_thresholds` thresholds."""

    _kept = ("true_positives", "false_positives", "false_negatives", "true_negatives")

    def __init__(self, num_thresholds: int = 200, name: str | None = None, dtype: Any = None) -> None:
        inner = [(i + 1) / (num_thresholds - 1) for i in range(num_thresholds - 2)]
        super().__init__([-1e-7, *inner, 1.0 + 1e-7], name, dtype)
        self.num_thresholds = num_thresholds

    def result(self) -> Tensor:
        """See `Metric.result`."""
        right = self._of("true_positives")
        wrong = self._of("false_positives")
        up = div_no_nan(right, right + self._of("false_negatives"))
        along = div_no_nan(wrong, wrong + self._of("true_negatives"))
        return reduce_sum((along[:-1] - along[1:]) * (up[:-1] + up[1:]) / 2.0)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        config = super().get_config()
        del config["thresholds"]
        return {**config, "num_thresholds": self.num_thresholds}


_registry = Registry(
    "metric",
    binary_accuracy, categorical_accuracy, sparse_categorical_accuracy, top_k_categorical_accuracy,
    sparse_top_k_categorical_accuracy, cosine_similarity, losses.mean_squared_error, losses.mean_absolute_error,
    losses.mean_absolute_percentage_error, losses.mean_squared_logarithmic_error, losses.binary_crossentropy,
    losses.categorical_crossentropy, losses.sparse_categorical_crossentropy, losses.kl_divergence, losses.poisson, losses.hinge,
    mse=losses.mse, MSE=losses.mse, mae=losses.mae, MAE=losses.mae, mape=losses.mape, msle=losses.msle,
)  # fmt: skip
for _class in (
    Accuracy, BinaryAccuracy, CategoricalAccuracy, SparseCategoricalAccuracy, TopKCategoricalAccuracy, SparseTopKCategoricalAccuracy,
    MeanSquaredError, RootMeanSquaredError, MeanAbsoluteError, MeanAbsolutePercentageError, CosineSimilarity, BinaryCrossentropy,
    CategoricalCrossentropy, SparseCategoricalCrossentropy, Precision, Recall, AUC, Mean, Sum,
):  # fmt: skip
    _registry.add(_class.__name__, _class)
serialize, deserialize = _registry.serialize, _registry.deserialize


def get(identifier: Any) -> Any:
    """The metric that is meant: by name, by config, a function of (y_true, y_pred), or as it is."""
    found = _registry.get(identifier)
    if found is None or isinstance(found, Metric):
        return found
    return MeanMetricWrapper(found, identifier if isinstance(identifier, str) else None)


mse = MSE = losses.mse
mae = MAE = losses.mae
