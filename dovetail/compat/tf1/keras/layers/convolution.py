"""Convolutions, in one and two dimensions, depthwise and transposed."""

from __future__ import annotations

from typing import Any

from .....graph.core.graph import Tensor
from .....graph.core.nest import flatten
from .....graph.ops.array.concat_stack import stack
from .....graph.ops.array.padding import pad
from .....graph.ops.array.shapes import expand_dims, shape, squeeze, transpose
from .....graph.ops.math.common import need_floats
from .....graph.ops.nn.conv import conv2d, conv2d_transpose, depthwise_conv2d_native, separable_conv2d
from .....graph.ops.nn.dense import bias_add
from .. import activations, constraints, initializers, regularizers
from ..backend import image_data_format
from .base import Layer, Shape
from .core import known, weighted_config


def several(value: Any, count: int, name: str) -> tuple[int, ...]:
    """A number for each of `count` axes, from one for all or one for each. ValueError: neither."""
    found = (int(value),) * count if isinstance(value, int) else tuple(int(v) for v in value)
    if len(found) != count:
        raise ValueError(f"`{name}` needs a number or {count} of them, not {value!r}")
    return found


def data_format_of(given: str | None) -> str:
    """'channels_last' or 'channels_first', from what a layer was given."""
    found = image_data_format() if given is None else given.lower()
    if found not in ("channels_last", "channels_first"):
        raise ValueError(f"data_format must be 'channels_last' or 'channels_first', not {given!r}")
    return found


class _Conv(Layer):
    """What convolutions share.

    Args:
        filters: how many channels come out.
        kernel_size, strides, dilation_rate: a number, or one for each axis.
        padding: "valid", or "same": as many steps as went in, over the stride; "causal" (one dimension): only what came before.
        data_format: "channels_last" or "channels_first"; None: `keras.backend.image_data_format()`.
    """

    _rank = 2

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.filters = int(filters)
        self.kernel_size = several(kernel_size, self._rank, "kernel_size")
        self.strides = several(strides, self._rank, "strides")
        self.dilation_rate = several(dilation_rate, self._rank, "dilation_rate")
        self.padding = padding.lower()
        if self.padding not in ("valid", "same", *(["causal"] if self._rank == 1 else [])):
            raise ValueError(f"padding must be 'valid' or 'same', not {padding!r}")
        self.data_format = data_format_of(data_format)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.bias: Any = None
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)
        self.bias_constraint = constraints.get(bias_constraint)

    def _build_for(self, inputs: Any) -> None:
        for x in flatten(inputs):
            need_floats(x, f"The input of the layer '{self.name}'", "a convolution")
        super()._build_for(inputs)

    @property
    def _channel_axis(self) -> int:
        return -1 if self.data_format == "channels_last" else 1

    def _kernel_shape(self, channels: int) -> list[int]:
        return [*self.kernel_size, channels, self.filters]

    def build(self, input_shape: Shape) -> None:
        """See `Layer.build`."""
        channels = known(self, input_shape, self._channel_axis)
        self._add_kernels(channels)
        if self.use_bias:
            self.bias = self.add_weight(
                "bias", [self._outputs(channels)], None, self.bias_initializer, self.bias_regularizer,
                constraint=self.bias_constraint,
            )  # fmt: skip

    def _add_kernels(self, channels: int) -> None:
        self.kernel = self.add_weight(
            "kernel", self._kernel_shape(channels), None, self.kernel_initializer, self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )  # fmt: skip

    def _outputs(self, channels: int) -> int:
        return self.filters

    def _finished(self, y: Tensor, data_format: str = "") -> Tensor:
        """With bias and activation."""
        if self.use_bias:
            y = bias_add(y, self.bias, data_format or ("NHWC" if self.data_format == "channels_last" else "NCHW"))
        out: Tensor = self.activation(y)
        return out

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": list(self.kernel_size),
            "strides": list(self.strides),
            "padding": self.padding,
            "data_format": self.data_format,
            "dilation_rate": list(self.dilation_rate),
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            **weighted_config(self, "kernel", "bias"),
        }


def _attrs(layer: Any) -> dict[str, Any]:
    """Strides, dilations and format as the ops take them."""
    if layer.data_format == "channels_last":
        return {
            "strides": [1, *layer.strides, 1], "dilations": [1, *layer.dilation_rate, 1], "data_format": "NHWC",
        }  # fmt: skip
    return {"strides": [1, 1, *layer.strides], "dilations": [1, 1, *layer.dilation_rate], "data_format": "NCHW"}


class Conv2D(_Conv):
    """A convolution over images: [batch, height, width, channels] -> [batch, height, width, filters]. Arguments: see `Conv1D`."""

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        return self._finished(conv2d(inputs, self.kernel, padding=self.padding.upper(), **_attrs(self)))


class Conv1D(_Conv):
    """A convolution over steps: [batch, steps, channels] -> [batch, steps, filters]. Other arguments are as of `Dense`.

    Args:
        filters: how many channels come out.
        kernel_size: numbers of steps.
        strides: numbers of steps.
        dilation_rate: numbers of steps.
        padding: "valid", "same", or "causal": a step sees only itself and those before it.
        data_format: "channels_last" or "channels_first".
    """

    _rank = 1

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        x = inputs if self.data_format == "channels_last" else transpose(inputs, [0, 2, 1])
        padding = self.padding
        if padding == "causal":
            x = pad(x, [[0, 0], [self.dilation_rate[0] * (self.kernel_size[0] - 1), 0], [0, 0]])
            padding = "valid"
        y = conv2d(
            expand_dims(x, 1), expand_dims(self.kernel, 0), strides=[1, 1, self.strides[0], 1], padding=padding.upper(),
            dilations=[1, 1, self.dilation_rate[0], 1],
        )  # fmt: skip
        done = self._finished(squeeze(y, [1]), "NHWC")
        return done if self.data_format == "channels_last" else transpose(done, [0, 2, 1])


class DepthwiseConv2D(_Conv):
    """A convolution of each channel by itself, `depth_multiplier` filters each; other arguments: see `Conv1D`."""

    def __init__(
        self, kernel_size: Any, strides: Any = 1, padding: str = "valid", depth_multiplier: int = 1, **kwargs: Any
    ) -> None:
        if "depthwise_initializer" in kwargs:
            kwargs["kernel_initializer"] = kwargs.pop("depthwise_initializer")
        super().__init__(1, kernel_size, strides, padding, **kwargs)
        self.depth_multiplier = depth_multiplier

    def _kernel_shape(self, channels: int) -> list[int]:
        return [*self.kernel_size, channels, self.depth_multiplier]

    def _outputs(self, channels: int) -> int:
        return channels * self.depth_multiplier

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        return self._finished(
            depthwise_conv2d_native(inputs, self.kernel, padding=self.padding.upper(), **_attrs(self))
        )

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        config = {**super().get_config(), "depth_multiplier": self.depth_multiplier}
        del config["filters"]
        return config


class SeparableConv2D(_Conv):
    """A convolution of each channel by itself, and then one of single pixels that mixes the channels.

    Other arguments are as of `Conv1D`.

    Args:
        depth_multiplier: how many filters each channel has at first.
        depthwise_initializer: of the first kernel, `[height, width, channels, depth_multiplier]`; so regularizer and constraint.
        pointwise_initializer: of the second one, `[1, 1, channels * depth_multiplier, filters]`; so regularizer and constraint.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        pointwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None,
        pointwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        pointwise_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias,
            bias_initializer=bias_initializer, bias_regularizer=bias_regularizer, activity_regularizer=activity_regularizer,
            bias_constraint=bias_constraint, **kwargs,
        )  # fmt: skip
        self.depth_multiplier = int(depth_multiplier)
        self.depthwise_initializer = initializers.get(depthwise_initializer)
        self.pointwise_initializer = initializers.get(pointwise_initializer)
        self.depthwise_regularizer = regularizers.get(depthwise_regularizer)
        self.pointwise_regularizer = regularizers.get(pointwise_regularizer)
        self.depthwise_constraint = constraints.get(depthwise_constraint)
        self.pointwise_constraint = constraints.get(pointwise_constraint)

    def _add_kernels(self, channels: int) -> None:
        self.depthwise_kernel = self.add_weight(
            "depthwise_kernel", [*self.kernel_size, channels, self.depth_multiplier], None, self.depthwise_initializer,
            self.depthwise_regularizer, constraint=self.depthwise_constraint,
        )  # fmt: skip
        self.pointwise_kernel = self.add_weight(
            "pointwise_kernel", [*[1] * self._rank, channels * self.depth_multiplier, self.filters], None,
            self.pointwise_initializer, self.pointwise_regularizer, constraint=self.pointwise_constraint,
        )  # fmt: skip

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        attrs = {**_attrs(self), "dilations": self.dilation_rate}
        return self._finished(
            separable_conv2d(
                inputs, self.depthwise_kernel, self.pointwise_kernel, padding=self.padding.upper(), **attrs
            )
        )

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        kept = {k: v for k, v in super().get_config().items() if not k.startswith("kernel_") or k == "kernel_size"}
        return {**kept, "depth_multiplier": self.depth_multiplier, **weighted_config(self, "depthwise", "pointwise")}


class Conv2DTranspose(_Conv):
    """The way back of a convolution: images grow by the strides. Arguments: see `Conv1D`.

    Raises:
        ValueError: dilations.
    """

    def build(self, input_shape: Shape) -> None:
        """See `Layer.build`."""
        if self.dilation_rate != (1, 1):
            raise ValueError("Conv2DTranspose takes no dilation_rate")
        super().build(input_shape)

    def _kernel_shape(self, channels: int) -> list[int]:
        return [*self.kernel_size, self.filters, channels]

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        first = self.data_format == "channels_first"
        sizes = inputs.shape.as_list()
        at = 2 if first else 1
        out = []
        for i in range(2):
            size: Any = sizes[at + i] if sizes[at + i] is not None else shape(inputs)[at + i]
            more = max(self.kernel_size[i] - self.strides[i], 0) if self.padding == "valid" else 0
            out.append(size * self.strides[i] + more)
        whole = [shape(inputs)[0], self.filters, *out] if first else [shape(inputs)[0], *out, self.filters]
        attrs = _attrs(self)
        y = conv2d_transpose(
            inputs,
            self.kernel,
            stack(whole),
            strides=attrs["strides"],
            padding=self.padding.upper(),
            data_format=attrs["data_format"],
        )
        static = [None if isinstance(s, Tensor) else s for s in out]
        y.set_shape([sizes[0], self.filters, *static] if first else [sizes[0], *static, self.filters])
        return self._finished(y)


class ZeroPadding2D(Layer):
    """Zeros around images: a number for all sides, (height, width), or ((top, bottom), (left, right))."""

    def __init__(self, padding: Any = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        pairs = (padding, padding) if isinstance(padding, int) else padding
        self.padding = tuple((p, p) if isinstance(p, int) else tuple(p) for p in pairs)
        self.data_format = data_format_of(data_format)

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        around = [list(p) for p in self.padding]
        none = [0, 0]
        return pad(inputs, [none, *around, none] if self.data_format == "channels_last" else [none, none, *around])

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "padding": [list(p) for p in self.padding], "data_format": self.data_format}


__all__ = ["Conv1D", "Conv2D", "Conv2DTranspose", "DepthwiseConv2D", "SeparableConv2D", "ZeroPadding2D"]
