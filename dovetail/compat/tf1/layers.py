"""`dt.layers`: layers as functions, TensorFlow 1's.

The classes are Keras' (`dt.keras.layers`), but their variables are made by `get_variable`: they are found again by `reuse`, obey the
variable scopes around them, and add what regularizers and moving averages want to the graph's collections.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...graph.core.argument_names import explain_members
from ...graph.core.build import convert
from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.core.dtypes import DType, bfloat16, float16, float32, float64
from ...graph.core.errors import UnimplementedError
from ...graph.core.graph import Tensor
from ...graph.core.nest import flatten as leaves_of
from ...graph.core.operators import is_tracing
from ...graph.core.source_location import warn_caller
from ...graph.ops.array.shapes import transpose
from ...graph.ops.math.cast import cast
from ...graph.variables.scope import VariableScope, get_variable, get_variable_scope, variable_scope
from ...graph.variables.variable import VariableSynchronization
from .keras.backend import snake_case
from .keras.layers import (
    base as _base,
    convolution as _convolution,
    core as _core,
    normalization as _normalization,
    pooling as _pooling,
)
from .keras.layers.convolution import data_format_of
from .keras.layers.renormalization import Renormalization

_NARROW = (float16, bfloat16)


class Layer(_base.Layer):
    """A layer whose variables are made by `get_variable`, in a variable scope of the layer's name.

    Args:
        _reuse: whether variables of that name are used again.
        _scope: a variable scope to use.

    Keyword Args:
        name (str | None): name of the variable scope; None: after the class, numbered.
        dtype (DType | None): element type of its variables; None: that of its first input.
    """

    _by_function = False  # whether a function such as `dense` has made it, whose `name` is the scope's

    def __init__(self, *args: Any, _reuse: bool | None = None, _scope: Any = None, **kwargs: Any) -> None:
        self._wanted = kwargs.get("name")
        self._base_name = self._wanted or snake_case(type(self).__name__)  # subclasses of programs may set another
        self._follows = kwargs.get("dtype") is None
        super().__init__(*args, **kwargs)
        self._reuse, self._variable_scope = _reuse, _scope

    @contextmanager
    def _naming(self) -> Iterator[None]:
        kept = self._variable_scope
        if isinstance(kept, VariableScope):  # each call's nodes go where those of the first one are
            reuse = True if self.built else self._reuse
            names = get_default_graph().name_scope(kept.original_name_scope)
            with variable_scope(kept, reuse=reuse, auxiliary_name_scope=False), names:
                yield
            return
        if kept is not None or self._by_function or self._reuse:
            opened = variable_scope(kept or self._wanted, default_name=self._base_name, reuse=self._reuse)
        else:  # an object's name is a wish, as in TensorFlow: a second one of that name gets a number
            opened = variable_scope(None, default_name=self._base_name)
        with opened as scope:
            self._variable_scope = scope
            yield

    def _build_for(self, inputs: Any) -> None:
        types = [t.dtype.base for t in leaves_of(inputs)]
        if self._follows and types and types[0].is_floating:
            self.dtype = self._dtype_for(types[0])
            made = get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES)
            # Once for each function.
            if self.dtype is float64 and is_tracing() and not any(v.dtype.base is float64 for v in made):
                warn_caller(
                    f"'{self.name}' makes float64 weights, because its input is float64: twice the bytes of float32. NumPy makes float64 "
                    "arrays unless told otherwise: pass x.astype(np.float32). To keep float64, say so in the layer, as in "
                    "dt.layers.Dense(..., dtype=dt.float64)"
                )
        super()._build_for(inputs)

    def _dtype_for(self, given: DType) -> DType:
        """The element type of its variables, for inputs of this one."""
        return given

    def _default_initializer(self, dtype: DType) -> Any:
        return None  # the variable scope's

    def _make_variable(
        self, name: str, shape: list[int], dtype: Any, initializer: Any, regularizer: Any, **kwargs: Any
    ) -> Any:
        wanted = kwargs.get("trainable")
        if wanted is None:  # getters of variable scopes look at it
            wanted = kwargs.get("synchronization") is not VariableSynchronization.ON_READ
        kwargs["trainable"] = wanted and self.trainable
        if not self._is_in_scope():  # `build` is called by itself
            with self._naming():
                return self._make_variable(name, shape, dtype, initializer, regularizer, **kwargs)
        with variable_scope(get_variable_scope(), reuse=None) as scope:
            if wanted is False:  # moving averages are updated as a whole
                scope.set_partitioner(None)
            return get_variable(name, shape, dtype, initializer, regularizer, **kwargs)

    def _is_in_scope(self) -> bool:
        kept = self._variable_scope
        return isinstance(kept, VariableScope) and f"/{get_variable_scope().name}/".startswith(
            f"/{kept.name}/".replace("//", "/")
        )

    def add_loss(self, losses: Any) -> None:
        """Add scalars to the collection of regularization losses."""
        for loss in losses if isinstance(losses, (list, tuple)) else [losses]:
            get_default_graph().add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)

    @property
    def scope_name(self) -> str:
        """The name of its variable scope. ValueError: it was not called yet."""
        if self._variable_scope is None:
            raise ValueError(
                f"No name available for layer scope because the layer '{self.name}' has not been used yet."
            )
        return str(getattr(self._variable_scope, "name", self._variable_scope))


class Dense(Layer, _core.Dense):
    """See `dense`."""


class Dropout(Layer, _core.Dropout):
    """See `dropout`."""

    def __init__(self, rate: Any = 0.5, noise_shape: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(rate, noise_shape, seed, **kwargs)


class Flatten(Layer, _core.Flatten):
    """See `flatten`."""


class Conv1D(Layer, _convolution.Conv1D):
    """See `conv1d`."""


class Conv2D(Layer, _convolution.Conv2D):
    """See `conv2d`."""


class Conv2DTranspose(Layer, _convolution.Conv2DTranspose):
    """See `conv2d_transpose`."""


class SeparableConv2D(Layer, _convolution.SeparableConv2D):
    """See `separable_conv2d`."""


class MaxPooling1D(Layer, _pooling.MaxPooling1D):
    """See `max_pooling1d`."""


class MaxPooling2D(Layer, _pooling.MaxPooling2D):
    """See `max_pooling2d`."""


class AveragePooling1D(Layer, _pooling.AveragePooling1D):
    """See `average_pooling1d`."""


class AveragePooling2D(Layer, _pooling.AveragePooling2D):
    """See `average_pooling2d`."""


class BatchNormalization(Layer, _normalization.BatchNormalization):
    """See `batch_normalization`; its arguments, too, by name."""

    def __init__(
        self,
        *args: Any,
        renorm: bool = False,
        renorm_clipping: Any = None,
        renorm_momentum: float = 0.99,
        virtual_batch_size: int | None = None,
        adjustment: Any = None,
        **kwargs: Any,
    ) -> None:
        for variant, wanted in (("virtual_batch_size", virtual_batch_size), ("adjustment", adjustment)):
            if wanted:
                raise UnimplementedError(
                    None, None,
                    f"batch_normalization has no {variant}: leave it out for the ordinary normalization by the whole batch",
                )  # fmt: skip
        super().__init__(*args, **kwargs)
        if renorm and self.fused:
            raise ValueError("Passing both fused=True and renorm=True is unsupported")
        self._renorm = (renorm_clipping, renorm_momentum) if renorm else None
        self._renormalization: Renormalization | None = None

    def build(self, input_shape: Any) -> None:
        """See `Layer.build`."""
        super().build(input_shape)
        if self._renorm is not None:
            self._renormalization = Renormalization(self, *self._renorm)

    def _dtype_for(self, given: DType) -> DType:
        return float32 if given in _NARROW else given

    def call(self, inputs: Tensor, training: Any = None) -> Tensor:
        """See `Layer.call`: narrow floats are normalized as float32, by statistics in float32."""
        given = inputs.dtype.base
        if given in _NARROW:
            found: Tensor = cast(self.call(cast(inputs, float32), training), given)
            return found
        if self._renormalization is not None:
            return self._renormalization.normal(inputs, training if self.trainable else False)
        return super().call(inputs, training)

    def _variance_to_keep(self, unbiased: Tensor, count: Tensor) -> Tensor:
        return unbiased  # as TensorFlow's fused op keeps it


def dense(
    inputs: Any,
    units: int,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
) -> Tensor:
    """A fully connected layer: `activation(inputs @ kernel + bias)`, along the last axis.

    Args:
        inputs: `[..., features]`, the last size known.
        units: size of the output's last axis.
        activation: function or name of one of `dt.keras.activations`; None: none.
        use_bias: whether there is a bias.
        kernel_initializer: None: the variable scope's, or Glorot's uniform one.
        kernel_regularizer: function of the variable whose result joins the regularization losses.
        bias_regularizer: function of the variable whose result joins the regularization losses.
        kernel_constraint: function that is applied after each update.
        bias_constraint: function that is applied after each update.
        trainable: whether optimizers change the variables.
        name: name of the variable scope; None: `dense`, made unique.
        reuse: whether its variables are used again.

    Returns:
        `[..., units]`.

    >>> logits = dt.layers.dense(dt.layers.dense(images, 64, dt.nn.relu), 10)
    """
    layer = Dense(
        units, activation, use_bias, kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
        activity_regularizer, kernel_constraint, bias_constraint, trainable=trainable, name=name, _reuse=reuse,
    )  # fmt: skip
    return _called(layer, inputs)


def conv2d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = (1, 1),
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
) -> Tensor:
    """A convolution over images: `[batch, height, width, channels]` -> `[batch, height, width, filters]`.

    Other arguments are as of `dense`.

    Args:
        filters: how many channels come out.
        kernel_size: a number, or one for height and one for width.
        strides: a number, or one for height and one for width.
        dilation_rate: a number, or one for height and one for width.
        padding: "valid" or "same".
        data_format: "channels_last" or "channels_first".
    """
    layer = Conv2D(
        filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, kernel_initializer, bias_initializer,
        kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint, bias_constraint, trainable=trainable,
        name=name, _reuse=reuse,
    )  # fmt: skip
    return _called(layer, inputs)


def conv1d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = 1,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
) -> Tensor:
    """A convolution over steps: `[batch, steps, channels]` -> `[batch, steps, filters]`; arguments as of `conv2d`."""
    layer = Conv1D(
        filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, kernel_initializer, bias_initializer,
        kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint, bias_constraint, trainable=trainable,
        name=name, _reuse=reuse,
    )  # fmt: skip
    return _called(layer, inputs)


def conv2d_transpose(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
) -> Tensor:
    """The way back of a convolution: images grow by the strides; arguments as of `conv2d`."""
    layer = Conv2DTranspose(
        filters, kernel_size, strides, padding, data_format, 1, activation, use_bias, kernel_initializer, bias_initializer,
        kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint, bias_constraint, trainable=trainable,
        name=name, _reuse=reuse,
    )  # fmt: skip
    return _called(layer, inputs)


def separable_conv2d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = (1, 1),
    depth_multiplier: int = 1,
    activation: Any = None,
    use_bias: bool = True,
    depthwise_initializer: Any = None,
    pointwise_initializer: Any = None,
    bias_initializer: Any = "zeros",
    depthwise_regularizer: Any = None,
    pointwise_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    depthwise_constraint: Any = None,
    pointwise_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
) -> Tensor:
    """A convolution of each channel by itself, with `depth_multiplier` filters, then one of single pixels; arguments as of `conv2d`."""
    layer = SeparableConv2D(
        filters, kernel_size, strides, padding, data_format, dilation_rate, depth_multiplier, activation, use_bias, depthwise_initializer,
        pointwise_initializer, bias_initializer, depthwise_regularizer, pointwise_regularizer, bias_regularizer, activity_regularizer,
        depthwise_constraint, pointwise_constraint, bias_constraint, trainable=trainable, name=name, _reuse=reuse,
    )  # fmt: skip
    return _called(layer, inputs)


def max_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Tensor:
    """The largest of each window of images.

    Args:
        pool_size: a number, or one for height and one for width.
        strides: a number, or one for height and one for width.
        padding: "valid" or "same".
    """
    return _called(MaxPooling2D(pool_size, strides, padding, data_format, name=name), inputs)


def average_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Tensor:
    """The mean of each window of images; arguments as of `max_pooling2d`."""
    return _called(AveragePooling2D(pool_size, strides, padding, data_format, name=name), inputs)


def max_pooling1d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Tensor:
    """The largest of each window of steps; arguments as of `max_pooling2d`."""
    return _called(MaxPooling1D(pool_size, strides, padding, data_format, name=name), inputs)


def average_pooling1d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Tensor:
    """The mean of each window of steps; arguments as of `max_pooling2d`."""
    return _called(AveragePooling1D(pool_size, strides, padding, data_format, name=name), inputs)


def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> Tensor:
    """All axes but the first as one; `data_format="channels_first"`: in the order that the channels in the last place would have."""
    x: Tensor = convert(inputs)
    if data_format_of(data_format) == "channels_first" and (x.shape.rank is None or x.shape.rank > 2):
        if x.shape.rank is None:
            raise ValueError(f"The channels of {x!r} can only be moved where its rank is known: x.set_shape")
        x = transpose(x, [0, *range(2, x.shape.rank), 1])
    return _called(Flatten(name=name), x)


def dropout(
    inputs: Any,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: Any = False,
    name: str | None = None,
) -> Tensor:
    """While `training` (a bool, or a bool tensor): elements set to 0 at random, the others scaled up.

    Args:
        rate: share of the elements, in [0, 1): a number, or a tensor.
        noise_shape: as of `dt.nn.dropout`.
        seed: as of `dt.nn.dropout`.
    """
    return _called(Dropout(rate, noise_shape, seed, name=name), inputs, training=training)


def batch_normalization(
    inputs: Any,
    axis: int = -1,
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
    training: Any = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_momentum: float = 0.99,
    fused: bool | None = None,
    virtual_batch_size: int | None = None,
    adjustment: Any = None,
) -> Tensor:
    """Each channel with mean 0 and variance 1: by the batch while `training` (a bool, or a bool tensor), else by the moving averages.

    The nodes that move the averages join the collection `UPDATE_OPS`: run them with the training op.

    Args:
        axis: the channels' axis.
        momentum: how much of the averages stays in each step.
        epsilon: added to the variance.
        center: whether there are `beta` and `gamma`.
        scale: whether there are `beta` and `gamma`.
        fused: False: images are not normalised by one node, and the average of their variances is then of the biased ones, as in
            TensorFlow.
        renorm: normalise by batch renormalisation, whose statistics move by `renorm_momentum`, and whose correction has the limits
            `rmax`, `rmin` and `dmax` of `renorm_clipping`.
        virtual_batch_size: TensorFlow's variants, which are not there: leave them.
        adjustment: TensorFlow's variants, which are not there: leave them.

    Raises:
        UnimplementedError: one of those variants is asked for.

    >>> y = dt.layers.batch_normalization(x, training=True)
    >>> with dt.control_dependencies(dt.get_collection(dt.GraphKeys.UPDATE_OPS)):
    ...     train_op = optimizer.minimize(loss)
    """
    layer = BatchNormalization(
        axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer, moving_mean_initializer,
        moving_variance_initializer, beta_regularizer, gamma_regularizer, beta_constraint, gamma_constraint,
        fused, renorm=renorm, renorm_clipping=renorm_clipping, renorm_momentum=renorm_momentum,
        virtual_batch_size=virtual_batch_size, adjustment=adjustment, trainable=trainable, name=name, _reuse=reuse,
    )  # fmt: skip
    return _called(layer, inputs, training=training)


def _called(layer: Layer, inputs: Any, **kwargs: Any) -> Tensor:
    layer._by_function = True
    found: Tensor = layer(convert(inputs), **kwargs)
    return found


explain_members(sys.modules[__name__])

__all__ = [
    "AveragePooling1D",
    "AveragePooling2D",
    "BatchNormalization",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "Dense",
    "Dropout",
    "Flatten",
    "Layer",
    "MaxPooling1D",
    "MaxPooling2D",
    "SeparableConv2D",
    "average_pooling1d",
    "average_pooling2d",
    "batch_normalization",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "dense",
    "dropout",
    "flatten",
    "max_pooling1d",
    "max_pooling2d",
    "separable_conv2d",
]
