"""Bringing numbers to a common scale: by the batch (`BatchNormalization`), or by the sample (`LayerNormalization`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .....distribute.context import get_strategy
from .....graph.core.build import convert
from .....graph.core.graph import Tensor
from .....graph.ops.array.creation import ones, zeros, zeros_like
from .....graph.ops.array.shapes import reshape, shape, size
from .....graph.ops.math.cast import cast
from .....graph.ops.math.common import need_floats
from .....graph.ops.math.compare import greater, where_v2
from .....graph.ops.nn.normalization import batch_normalization, fused_batch_norm, moments
from .. import constraints, initializers, regularizers
from .base import Layer, Shape
from .core import either, known, weighted_config


class BatchNormalization(Layer):
    """While training, each channel gets mean 0 and variance 1 over the batch; else the moving averages of both are used
    (Ioffe and Szegedy, 2015).

    Under a strategy each replica normalises by its own rows; the moving averages follow the mean over all replicas. A layer with
    `trainable = False` uses the moving averages in training, too.

    Args:
        axis: the channels' axis.
        momentum: how much of the moving averages stays in each step.
        epsilon: added to the variance.
        center: whether `beta` is added.
        scale: whether it is multiplied by `gamma`.
        fused: whether images are normalised by one node (`dt.nn.fused_batch_norm`); None: they are.
    """

    supports_masking = True

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        fused: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fused = fused
        axes = [axis] if isinstance(axis, int) else [int(a) for a in axis]
        if len(axes) != 1:
            raise ValueError(f"BatchNormalization takes one axis of channels, not {axis!r}")
        (self.axis,) = axes
        self.momentum, self.epsilon, self.center, self.scale = momentum, epsilon, center, scale
        self.beta_initializer = initializers.get(beta_initializer)
        self.gamma_initializer = initializers.get(gamma_initializer)
        self.moving_mean_initializer = initializers.get(moving_mean_initializer)
        self.moving_variance_initializer = initializers.get(moving_variance_initializer)
        self.beta_regularizer = regularizers.get(beta_regularizer)
        self.gamma_regularizer = regularizers.get(gamma_regularizer)
        self.beta_constraint = constraints.get(beta_constraint)
        self.gamma_constraint = constraints.get(gamma_constraint)

    def _build_for(self, inputs: Any) -> None:
        need_floats(inputs, f"The input of the layer '{self.name}'", "batch normalization")
        super()._build_for(inputs)

    def build(self, input_shape: Shape) -> None:
        """See `Layer.build`."""
        size = [known(self, input_shape, self.axis)]
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(
                "gamma", size, None, self.gamma_initializer, self.gamma_regularizer, constraint=self.gamma_constraint
            )
        if self.center:
            self.beta = self.add_weight(
                "beta", size, None, self.beta_initializer, self.beta_regularizer, constraint=self.beta_constraint
            )
        self.moving_mean = self.add_weight("moving_mean", size, None, self.moving_mean_initializer, trainable=False)
        self.moving_variance = self.add_weight(
            "moving_variance", size, None, self.moving_variance_initializer, trainable=False
        )

    def call(self, inputs: Tensor, training: Any = None) -> Tensor:
        """See `Layer.call`."""
        if not self.trainable:
            training = False
        rank = inputs.shape.rank or 0
        axis = self.axis % rank
        others = [i for i in range(rank) if i != axis]
        if rank == 4 and axis in (1, 3) and training is not False and self.fused is not False:
            return self._of_images(inputs, training, "NHWC" if axis == 3 else "NCHW")
        spread = [-1 if i == axis else 1 for i in range(rank)]

        def along(v: Any) -> Any:
            return v if v is None or axis == rank - 1 else reshape(convert(v), spread)

        mean, variance = either(
            training,
            lambda: tuple([_if_any(inputs, m, zeros_like(m)) for m in moments(inputs, others)]),
            lambda: (self.moving_mean.value(), self.moving_variance.value()),
        )
        if training is not False:
            self._move_averages(inputs, mean, variance)
        found: Tensor = batch_normalization(
            inputs, along(mean), along(variance), along(self.beta), along(self.gamma), self.epsilon
        )
        return found

    def _of_images(self, inputs: Tensor, training: Any, data_format: str) -> Tensor:
        """Training on images, in one node; its variance is the unbiased one."""
        channels, dtype = self.moving_mean.shape, self.moving_mean.dtype.base
        gamma = ones(channels, dtype) if self.gamma is None else self.gamma
        beta = zeros(channels, dtype) if self.beta is None else self.beta

        def by_batch() -> tuple[Tensor, ...]:
            y, mean, variance = fused_batch_norm(inputs, gamma, beta, epsilon=self.epsilon, data_format=data_format)
            axes = [0, 1, 2] if data_format == "NHWC" else [0, 2, 3]
            sizes = shape(inputs)
            count = cast(sizes[axes[0]] * sizes[axes[1]] * sizes[axes[2]], variance.dtype)
            return y, mean, self._variance_to_keep(variance, count)

        def by_averages() -> tuple[Tensor, ...]:
            mean, variance = self.moving_mean.value(), self.moving_variance.value()
            return tuple(
                fused_batch_norm(inputs, gamma, beta, mean, variance, self.epsilon, data_format, is_training=False)
            )

        y, mean, variance = either(training, by_batch, by_averages)
        self._move_averages(inputs, mean, variance)
        found: Tensor = y
        return found

    def _variance_to_keep(self, unbiased: Tensor, count: Tensor) -> Tensor:
        return unbiased * ((count - 1.0) / count)

    def _move_averages(self, inputs: Tensor, mean: Tensor, variance: Tensor) -> None:
        for average, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            self._move(average, _if_any(inputs, value, average.value()), self.momentum)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {
            **super().get_config(),
            "axis": self.axis,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            **weighted_config(self, "beta", "gamma", "moving_mean", "moving_variance"),
        }


def _if_any(inputs: Tensor, value: Tensor, otherwise: Tensor) -> Tensor:
    """A statistic of a batch; the other value for a batch without rows, where a strategy says that there may be some."""
    if not get_strategy().extended.experimental_enable_get_next_as_optional:
        return value
    return where_v2(greater(size(inputs), 0), value, otherwise)


class LayerNormalization(Layer):
    """Each sample gets mean 0 and variance 1 along some axes (Ba et al., 2016).

    Args:
        axis: that axis, or axes.
        epsilon: added to the variance.
        center: whether `beta` is added.
        scale: whether it is multiplied by `gamma`.
    """

    supports_masking = True

    def __init__(
        self,
        axis: Any = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.axis = [int(a) for a in axis] if isinstance(axis, (list, tuple)) else int(axis)
        self.epsilon, self.center, self.scale = epsilon, center, scale
        self.beta_initializer = initializers.get(beta_initializer)
        self.gamma_initializer = initializers.get(gamma_initializer)
        self.beta_regularizer = regularizers.get(beta_regularizer)
        self.gamma_regularizer = regularizers.get(gamma_regularizer)

    def _axes(self, rank: int) -> list[int]:
        given = self.axis if isinstance(self.axis, list) else [self.axis]
        return sorted(a % rank for a in given)

    def build(self, input_shape: Shape) -> None:
        """See `Layer.build`."""
        size = [known(self, input_shape, a) for a in self._axes(len(input_shape))]
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight("gamma", size, None, self.gamma_initializer, self.gamma_regularizer)
        if self.center:
            self.beta = self.add_weight("beta", size, None, self.beta_initializer, self.beta_regularizer)

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        rank = inputs.shape.rank or 0
        axes = self._axes(rank)
        sizes = inputs.shape.as_list()
        spread = [sizes[i] if i in axes else 1 for i in range(rank)]

        def along(v: Any) -> Any:
            return v if v is None or axes == [rank - 1] else reshape(convert(v), spread)

        mean, variance = moments(inputs, axes, keepdims=True)
        found: Tensor = batch_normalization(inputs, mean, variance, along(self.beta), along(self.gamma), self.epsilon)
        return found

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {
            **super().get_config(),
            "axis": self.axis,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            **weighted_config(self, "beta", "gamma"),
        }


__all__ = ["BatchNormalization", "LayerNormalization"]
