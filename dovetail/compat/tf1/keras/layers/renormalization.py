"""Batch renormalisation (Ioffe, 2017): training normalises nearly as evaluation does, by slowly moving statistics.

Besides the averages for evaluation, a layer keeps others for training (`renorm_mean`, `renorm_stddev`), which may move at a speed of their
own. Normalising by the batch is corrected to what normalising by these would give, within limits, through which no gradient passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .....graph.core.build import convert
from .....graph.core.default_graph import GraphKeys, control_dependencies, get_default_graph
from .....graph.core.graph import Tensor
from .....graph.ops.array.creation import ones_like, zeros_like
from .....graph.ops.array.identity_and_placeholders import stop_gradient
from .....graph.ops.array.shapes import reshape
from .....graph.ops.math.arithmetic import maximum, minimum, sqrt, square
from .....graph.ops.nn.normalization import batch_normalization, moments
from .core import either
from .normalization import BatchNormalization


class Renormalization:
    """What a `BatchNormalization` with `renorm=True` does beside.

    Args:
        layer: the layer, built. clipping: `rmax`, `rmin` and `dmax`, limits of the correction's factor and offset; tensors, or numbers.
        momentum: how much of the statistics for training stays in each step.
    """

    def __init__(self, layer: BatchNormalization, clipping: Mapping[str, Any] | None, momentum: float) -> None:
        unknown = set(clipping or {}) - {"rmax", "rmin", "dmax"}
        if unknown:
            raise ValueError(f"renorm_clipping has {sorted(unknown)}; it may have rmax, rmin, dmax")
        self._layer, self._limits, self._momentum = layer, dict(clipping or {}), momentum

        def root(shape: Any, dtype: Any = None, **more: Any) -> Tensor:
            return sqrt(convert(layer.moving_variance_initializer(shape, dtype=dtype)))

        size = layer.moving_mean.shape.as_list()
        self.moving_stddev = layer.add_weight("moving_stddev", size, None, root, trainable=False)
        self.renorm_mean = layer.add_weight("renorm_mean", size, None, layer.moving_mean_initializer, trainable=False)
        self.renorm_stddev = layer.add_weight("renorm_stddev", size, None, root, trainable=False)

    def normal(self, inputs: Tensor, training: Any) -> Tensor:
        """The layer's output."""
        layer = self._layer
        rank = inputs.shape.rank or 0
        axis = layer.axis % rank
        mean, variance = either(
            training,
            lambda: tuple(moments(inputs, [i for i in range(rank) if i != axis])),
            lambda: (layer.moving_mean.value(), layer.moving_variance.value()),
        )
        gamma = ones_like(mean) if layer.gamma is None else convert(layer.gamma)
        beta = zeros_like(mean) if layer.beta is None else convert(layer.beta)
        if training is not False:
            factor, offset = self._correction(mean, variance, training)
            with control_dependencies([factor, offset]):  # which look at what the statistics were
                self._move(mean, variance, training)
            gamma, beta = gamma * factor, beta + gamma * offset
        spread = [-1 if i == axis else 1 for i in range(rank)]
        mean, variance, beta, gamma = (reshape(v, spread) for v in (mean, variance, beta, gamma))
        return batch_normalization(inputs, mean, variance, beta, gamma, layer.epsilon)

    def _correction(self, mean: Tensor, variance: Tensor, training: Any) -> tuple[Tensor, Tensor]:
        epsilon, limits = self._layer.epsilon, self._limits
        stddev = maximum(self.renorm_stddev.value(), epsilon**0.5)
        factor = sqrt(variance + epsilon) / stddev
        offset = (mean - self.renorm_mean.value()) / stddev
        if limits.get("rmin") is not None:
            factor = maximum(factor, limits["rmin"])
        if limits.get("rmax") is not None:
            factor = minimum(factor, limits["rmax"])
        if limits.get("dmax") is not None:
            offset = minimum(maximum(offset, -limits["dmax"]), limits["dmax"])
        return (
            stop_gradient(either(training, lambda: factor, lambda: ones_like(factor))),
            stop_gradient(either(training, lambda: offset, lambda: zeros_like(offset))),
        )

    def _move(self, mean: Tensor, variance: Tensor, training: Any) -> None:
        layer = self._layer
        stddev = sqrt(variance + layer.epsilon)
        share = either(training, lambda: convert(1.0 - layer.momentum), lambda: convert(0.0))
        slow = either(training, lambda: convert(1.0 - self._momentum), lambda: convert(0.0))
        layer._move(self.renorm_mean, mean, 1.0 - slow)
        layer._move(self.renorm_stddev, stddev, 1.0 - slow)
        layer._move(layer.moving_mean, mean, 1.0 - share)
        held = self.moving_stddev.value()
        moved = held - (held - stddev) * share
        for variable, value in (
            (self.moving_stddev, moved),
            (layer.moving_variance, maximum(square(moved) - layer.epsilon, 0.0)),
        ):
            update = variable.assign(value, read_value=False)
            layer._updates.append(update)
            get_default_graph().add_to_collection(GraphKeys.UPDATE_OPS, update)
