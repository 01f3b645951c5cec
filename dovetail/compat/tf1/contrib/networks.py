"""Layers of `tf.contrib.layers` and slim: functions whose variables are called `weights` and `biases`, and obey `arg_scope`.

They are `dt.layers` with other names and other defaults: a relu behind each, Glorot's initializer, "SAME" convolutions. What makes the
variables is `model_variable`, so an `arg_scope` of that tells their devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ....graph.core.build import convert
from ....graph.core.graph import Tensor
from ....graph.ops.nn.activations import relu
from ....graph.ops.nn.conv import depthwise_conv2d, separable_conv2d as _separable
from ....graph.ops.nn.dense import bias_add as _bias_add
from ....graph.variables.initializers import zeros_initializer
from ....graph.variables.scope import VariableScope, variable_scope
from .. import layers as core
from .arg_scope import add_arg_scope
from .regularizers import xavier_initializer
from .utils import collect_named_outputs, get_variable_collections
from .variables import model_variable

Function = Callable[..., Any]
_ZEROS = zeros_initializer()
_NAMES = {"kernel": "weights", "bias": "biases"}


@contextmanager
def layer_scope(
    scope: Any, default: str, inputs: Any, reuse: Any, names: Mapping[str, str] = _NAMES, collections: Any = None
) -> Iterator[VariableScope]:
    """A layer's variable scope, in which variables are the model's, under these names."""

    def made(getter: Function, name: str, *args: Any, **kwargs: Any) -> Any:
        before, slash, last = name.rpartition("/")
        last = names.get(last, last)
        kwargs["collections"] = get_variable_collections(collections, last)
        return model_variable(before + slash + last, *args, **{**_known(kwargs), "custom_getter": getter})

    with variable_scope(scope, default, [inputs], reuse=reuse, custom_getter=made) as found:
        yield found


def _known(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What `model_variable` takes of what a getter is given."""
    left_out = ("reuse", "validate_shape", "constraint")
    return {k: v for k, v in kwargs.items() if k not in left_out}


def finished(
    y: Tensor, within: VariableScope, normalizer_fn: Any, normalizer_params: Any, activation_fn: Any, collections: Any
) -> Tensor:
    if normalizer_fn is not None:
        y = normalizer_fn(y, **(normalizer_params or {}))
    if activation_fn is not None:
        y = activation_fn(y)
    return collect_named_outputs(collections, within.name, y)


def order_of(data_format: str | None) -> str:
    """As `dt.layers` calls it. ValueError: there is none of that name."""
    known = {None: "channels_last", "NHWC": "channels_last", "NCHW": "channels_first", "NWC": "channels_last"}
    if data_format not in known:
        raise ValueError(f"data_format has to be either NCHW or NHWC, not {data_format!r}")
    return known[data_format]


def channels_of(x: Tensor, data_format: str | None) -> int:
    """How many channels there are. ValueError: that is unknown."""
    first = order_of(data_format) == "channels_first"
    found = None if x.shape.rank is None else x.shape.as_list()[1 if first else -1]
    if found is None:
        raise ValueError(f"Inputs {x.name} has undefined channels dimension {x.shape}.")
    return found


def _has_bias(normalizer_fn: Any, biases_initializer: Any) -> bool:
    return normalizer_fn is None and biases_initializer is not None


@add_arg_scope
def fully_connected(
    inputs: Any,
    num_outputs: int,
    activation_fn: Function | None = relu,
    normalizer_fn: Function | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Tensor:
    """`activation_fn(inputs @ weights + biases)`, along the last axis.

    Args:
        inputs: `[..., features]`, the last size known.
        num_outputs: size of the output's last axis.
        activation_fn: function of the output; None: none.
        normalizer_fn: a layer that stands in the place of the biases, such as `batch_norm`, and its arguments.
        normalizer_params: a layer that stands in the place of the biases, such as `batch_norm`, and its arguments.
        weights_initializer: None: Glorot's uniform one.
        biases_initializer: None: there are no biases.
        weights_regularizer: function of the variable; its result joins the regularization losses.
        biases_regularizer: function of the variable; its result joins the regularization losses.
        reuse: whether the scope's variables are used again.
        variables_collections: collections that the variables join, or a mapping from "weights" and "biases" to them.
        outputs_collections: collections that the output joins, under the name of its scope.
        trainable: whether optimizers change the variables.
        scope: name of the variable scope, or one; None: `fully_connected`, made unique.

    Returns:
        `[..., num_outputs]`.

    >>> net = fully_connected(images, 256, scope="fc1")
    """
    x = convert(inputs)
    with layer_scope(scope, "fully_connected", x, reuse, collections=variables_collections) as within:
        layer = core.Dense(
            num_outputs, None, _has_bias(normalizer_fn, biases_initializer), weights_initializer or xavier_initializer(),
            biases_initializer or _ZEROS, weights_regularizer, biases_regularizer, trainable=trainable,
            name=within.name, _scope=within, _reuse=reuse,
        )  # fmt: skip
        return finished(layer(x), within, normalizer_fn, normalizer_params, activation_fn, outputs_collections)


@add_arg_scope
def convolution(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
    activation_fn: Function | None = relu,
    normalizer_fn: Function | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Tensor:
    """A convolution over steps or images; arguments as of `fully_connected`, and:

    Args:
        inputs: `[batch, steps, channels]` or `[batch, height, width, channels]`; the channels second for "NCHW".
        num_outputs: how many channels come out.
        kernel_size: a number, or one for each axis; `rate` is the distance between the elements of a window.
        stride: a number, or one for each axis; `rate` is the distance between the elements of a window.
        rate: a number, or one for each axis; `rate` is the distance between the elements of a window.
        padding: "SAME" or "VALID".

    Raises:
        ValueError: the input has another rank.
    """
    x = convert(inputs)
    if x.shape.rank not in (3, 4):
        raise ValueError(f"Convolution expects input with rank 3 or 4, got {x.shape.rank}")
    kind = core.Conv1D if x.shape.rank == 3 else core.Conv2D
    size, step, apart = (_one(v) if kind is core.Conv1D else v for v in (kernel_size, stride, rate))
    with layer_scope(scope, "Conv", x, reuse, collections=variables_collections) as within:
        layer = kind(
            num_outputs, size, step, padding.lower(), order_of(data_format), apart, None,
            _has_bias(normalizer_fn, biases_initializer), weights_initializer or xavier_initializer(), biases_initializer or _ZEROS,
            weights_regularizer, biases_regularizer, trainable=trainable, name=within.name, _scope=within, _reuse=reuse,
        )  # fmt: skip
        return finished(layer(x), within, normalizer_fn, normalizer_params, activation_fn, outputs_collections)


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


conv2d = convolution2d = conv1d = convolution1d = convolution


@add_arg_scope
def conv2d_transpose(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    activation_fn: Function | None = relu,
    normalizer_fn: Function | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Tensor:
    """The way back of a convolution: images grow by the stride; arguments as of `conv2d`."""
    x = convert(inputs)
    with layer_scope(scope, "Conv2d_transpose", x, reuse, collections=variables_collections) as within:
        layer = core.Conv2DTranspose(
            num_outputs, kernel_size, stride, padding.lower(), order_of(data_format), 1, None,
            _has_bias(normalizer_fn, biases_initializer), weights_initializer or xavier_initializer(), biases_initializer or _ZEROS,
            weights_regularizer, biases_regularizer, trainable=trainable, name=within.name, _scope=within, _reuse=reuse,
        )  # fmt: skip
        return finished(layer(x), within, normalizer_fn, normalizer_params, activation_fn, outputs_collections)


convolution2d_transpose = conv2d_transpose


@add_arg_scope
def separable_conv2d(
    inputs: Any,
    num_outputs: int | None,
    kernel_size: Any,
    depth_multiplier: int = 1,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    rate: Any = 1,
    activation_fn: Function | None = relu,
    normalizer_fn: Function | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = None,
    pointwise_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Tensor:
    """A convolution of each channel by itself, then one over the channels of each pixel; arguments as of `conv2d`, and:

    Args:
        num_outputs: how many channels come out; None: the second convolution is left out.
        depth_multiplier: how many channels the first one makes of each.
        pointwise_initializer: of the second one's weights; None: the same.
    """
    x = convert(inputs)
    first = order_of(data_format) == "channels_first"
    channels = channels_of(x, data_format)
    height, width = _two(kernel_size)
    down, right = _two(stride)
    strides = [1, 1, down, right] if first else [1, down, right, 1]
    begin = weights_initializer or xavier_initializer()
    made = {"dtype": x.dtype.base, "regularizer": weights_regularizer, "trainable": trainable}
    with layer_scope(scope, "SeparableConv2d", x, reuse, {}, variables_collections) as within:
        collections = get_variable_collections(variables_collections, "weights")
        depthwise = model_variable(
            "depthwise_weights",
            shape=[height, width, channels, depth_multiplier],
            initializer=begin,
            collections=collections,
            **made,
        )
        if num_outputs is None:
            width_out = channels * depth_multiplier
            y = depthwise_conv2d(x, depthwise, strides, padding, _two(rate), data_format=data_format)
        else:
            width_out = num_outputs
            pointwise = model_variable(
                "pointwise_weights", shape=[1, 1, channels * depth_multiplier, num_outputs], initializer=pointwise_initializer or begin,
                collections=collections, **made,
            )  # fmt: skip
            y = _separable(x, depthwise, pointwise, strides, padding, _two(rate), data_format=data_format)
        if _has_bias(normalizer_fn, biases_initializer):
            biases = _biases(width_out, x, biases_initializer, biases_regularizer, trainable, variables_collections)
            y = _bias_add(y, biases, data_format)
        return finished(y, within, normalizer_fn, normalizer_params, activation_fn, outputs_collections)


separable_convolution2d = separable_conv2d


def _two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _biases(size: int, x: Tensor, initializer: Any, regularizer: Any, trainable: bool, collections: Any) -> Any:
    return model_variable(
        "biases", shape=[size], dtype=x.dtype.base, initializer=initializer, regularizer=regularizer, trainable=trainable,
        collections=get_variable_collections(collections, "biases"),
    )  # fmt: skip


@add_arg_scope
def bias_add(
    inputs: Any,
    activation_fn: Function | None = None,
    initializer: Any = _ZEROS,
    regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Tensor:
    """A number per channel, `biases`, is added; arguments as of `fully_connected`."""
    x = convert(inputs)
    with layer_scope(scope, "BiasAdd", x, reuse, {}, variables_collections) as within:
        channels = channels_of(x, data_format)
        biases = _biases(channels, x, initializer, regularizer, trainable, variables_collections)
        y = _bias_add(x, biases, data_format)
        return finished(y, within, None, None, activation_fn, outputs_collections)


__all__ = [
    "bias_add",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "convolution",
    "convolution1d",
    "convolution2d",
    "convolution2d_transpose",
    "fully_connected",
    "separable_conv2d",
    "separable_convolution2d",
]
