"""Ready-made estimators: linear models and networks of dense layers, over feature columns.

Variables have the names that TensorFlow's have: `linear/linear_model/<column>/weights`, `dnn/hiddenlayer_0/kernel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....graph.core.default_graph import GraphKeys, control_dependencies, get_default_graph
from ....graph.core.graph import Tensor
from ....graph.ops.nn.activations import relu
from ....graph.ops.nn.dense import dropout as without_some
from ....graph.variables.initializers import glorot_uniform_initializer
from ....graph.variables.scope import variable_scope
from ..feature_column import input_layer, linear_model
from ..layers import batch_normalization, dense
from ..losses import Reduction
from .estimator import Estimator
from .heads import BinaryHead, Head, MultiClassHead, RegressionHead, step_of
from .spec import EstimatorSpec, ModeKeys

DNN_RATE = 0.05  # learning rates of optimizers that are named, as TensorFlow has them
MOST_LINEAR_RATE = 0.2

_Logits = Callable[[Any, str], Tensor]


class LinearClassifier(Estimator):
    """Classes by a weighted sum of features.

    Args:
        feature_columns: what the sum is of: numeric and categorical columns (`dt.feature_column`).
        model_dir: as of `Estimator`.
        config: as of `Estimator`.
        warm_start_from: as of `Estimator`.
        n_classes: how many classes.
        weight_column: name of the feature, or numeric column, that says how much an example counts.
        label_vocabulary: names of the classes, where labels are text; else labels are whole numbers below `n_classes`.
        optimizer: of `dt.train`, or a function that makes one, or "Ftrl", "Adagrad", "Adam", "RMSProp", "SGD".
        partitioner: how variables are cut.
        loss_reduction: how the losses of a batch become one: their sum, as in TensorFlow 1.
        sparse_combiner: how weights of several ids of an example are combined.

    Raises:
        ValueError: fewer than two classes, or something unknown.

    >>> model = LinearClassifier([dt.feature_column.numeric_column("age"), city], n_classes=3)
    >>> model.train(input_fn, steps=1000)
    """

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = Reduction.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = _class_head(n_classes, label_vocabulary, weight_column, loss_reduction)
        model_fn = _linear(head, feature_columns, optimizer, partitioner, sparse_combiner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearRegressor(Estimator):
    """Numbers by a weighted sum of features.

    Args:
        label_dimension: numbers of an example's label. The others: as of `LinearClassifier`.
    """

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = Reduction.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        model_fn = _linear(head, feature_columns, optimizer, partitioner, sparse_combiner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNClassifier(Estimator):
    """Classes by a network of dense layers. Other arguments are as of `LinearClassifier`.

    Args:
        hidden_units: sizes of the layers.
        feature_columns: what the first one takes: dense columns, such as embeddings.
        optimizer: as of `LinearClassifier`.
        activation_fn: of the layers.
        dropout: share of a layer's results that is dropped in training; None: none.
        input_layer_partitioner: how tables are cut.
        batch_norm: whether layers are normalized.

    >>> model = DNNClassifier([64, 32], [dt.feature_column.embedding_column(city, 8)], n_classes=10)
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Tensor], Tensor] = relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = Reduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        head = _class_head(n_classes, label_vocabulary, weight_column, loss_reduction)
        model_fn = _dnn(
            head, hidden_units, feature_columns, optimizer, activation_fn, dropout, input_layer_partitioner, batch_norm
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNRegressor(Estimator):
    """Numbers by a network of dense layers.

    Args:
        label_dimension: numbers of an example's label. The others: as of `DNNClassifier`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Tensor], Tensor] = relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = Reduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        model_fn = _dnn(
            head, hidden_units, feature_columns, optimizer, activation_fn, dropout, input_layer_partitioner, batch_norm
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


def _class_head(n_classes: int, vocabulary: Any, weight_column: Any, loss_reduction: str) -> Head:
    if n_classes < 2:
        raise ValueError(f"n_classes must be at least 2. Given: {n_classes}")
    if n_classes == 2:
        return BinaryHead(vocabulary, weight_column, loss_reduction)
    return MultiClassHead(n_classes, vocabulary, weight_column, loss_reduction)


def _linear(
    head: Head, feature_columns: Sequence[Any], optimizer: Any, partitioner: Any, sparse_combiner: str
) -> Callable[..., EstimatorSpec]:
    columns = list(feature_columns)
    rate = min(MOST_LINEAR_RATE, 1.0 / math.sqrt(max(1, len(columns))))

    def logits(features: Any, mode: str) -> Tensor:
        with variable_scope("linear", partitioner=partitioner):
            return linear_model(features, columns, head.logits_dimension, sparse_combiner)

    return _model_fn(head, logits, optimizer, rate)


def _dnn(
    head: Head, hidden_units: Sequence[int], feature_columns: Sequence[Any], optimizer: Any,
    activation_fn: Callable[[Tensor], Tensor], dropout: float | None, partitioner: Any, batch_norm: bool,
) -> Callable[..., EstimatorSpec]:  # fmt: skip
    columns, sizes = list(feature_columns), list(hidden_units)

    def logits(features: Any, mode: str) -> Tensor:
        training = mode == ModeKeys.TRAIN
        with variable_scope("dnn"):
            with variable_scope("input_from_feature_columns", partitioner=partitioner):
                net = input_layer(features, columns)
            for i, size in enumerate(sizes):
                net = _dense(net, size, activation_fn, f"hiddenlayer_{i}")
                if dropout is not None and training:
                    net = without_some(net, rate=dropout)
                if batch_norm:
                    net = batch_normalization(net, momentum=0.999, training=training, name=f"batchnorm_{i}")
            return _dense(net, head.logits_dimension, None, "logits")

    return _model_fn(head, logits, optimizer, DNN_RATE)


def _dense(x: Tensor, size: int, activation: Any, name: str) -> Tensor:
    return dense(x, size, activation, kernel_initializer=glorot_uniform_initializer(), name=name)


def _model_fn(head: Head, logits: _Logits, optimizer: Any, rate: float) -> Callable[..., EstimatorSpec]:
    def optimize(loss: Tensor) -> Any:
        with control_dependencies(get_default_graph().get_collection(GraphKeys.UPDATE_OPS)):
            return step_of(_optimizer(optimizer, rate))(loss)

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        if not isinstance(features, dict):
            raise ValueError(f"features should be a dictionary of `Tensor`s. Given type: {type(features)}")
        return head.spec(features, mode, logits(features, mode), labels, optimize)

    return model_fn


def _optimizer(given: Any, rate: float) -> Any:
    """An optimizer: as given, made by a function, or by its name with a learning rate."""
    from .... import train

    kinds = {
        "Adagrad": train.AdagradOptimizer,
        "Adam": train.AdamOptimizer,
        "Ftrl": train.FtrlOptimizer,
        "RMSProp": train.RMSPropOptimizer,
        "SGD": train.GradientDescentOptimizer,
    }
    if isinstance(given, str):
        if given not in kinds:
            raise ValueError(f"Unsupported optimizer name: {given}. Supported names are: {tuple(sorted(kinds))}")
        return kinds[given](learning_rate=rate)
    return given() if callable(given) else given


__all__ = ["DNNClassifier", "DNNRegressor", "LinearClassifier", "LinearRegressor"]
