"""Convolutions, pooling, normalization.

In the standard, channels are the second axis. Images with channels last are transposed before and after an op. A filter whose value is
known is transposed when the model is written.
"""

from __future__ import annotations

from typing import Any

from ....graph.core.constant_value import static_dims
from ....graph.core.graph import Node, Tensor
from ....graph.ops.nn.conv_geometry import Window, height_and_width, window_of
from ..registry import UnsupportedError
from ..writing import Names, Writer, exports

# The permutations of axes to channels first, and to channels last.
_FIRST, _LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def _is_last(node: Node) -> bool:
    return bool(node.attrs["data_format"] == "NHWC")


def _channels_first(w: Writer, node: Node, x: Tensor) -> str:
    """Returns an image with its channels first."""
    return w.transpose(x, _FIRST) if _is_last(node) else w.name(x)


def _result(w: Writer, node: Node, made: str) -> str:
    """Returns a result in the layout of the graph's node."""
    return w.transpose_name(made, _LAST) if _is_last(node) else made


def _sizes(node: Node, dims: Any) -> list[int | None]:
    """Returns the height and the width."""
    return [None, None] if dims is None else list(dims[1:3] if _is_last(node) else dims[2:4])


def _pads(window: Window, sizes: list[int | None]) -> dict[str, Any]:
    """Returns the standard's padding attribute: the padding before each axis, then after each axis. For unknown sizes, `auto_pad`."""
    if window.padding == "SAME" and None in sizes:
        if window.dilations != (1, 1):
            raise UnsupportedError(
                "SAME padding with dilations, for images whose size is known only when the graph runs"
            )
        return {"auto_pad": "SAME_UPPER"}
    pairs = [window.pads(a, size or 0) for a, size in enumerate(sizes)]
    return {"pads": [p[i] for i in (0, 1) for p in pairs]}


def _window(w: Writer, node: Node, filters: Tensor) -> Window:
    if filters.dims is None or None in filters.dims[:2]:
        raise UnsupportedError("the filter's size is known only when the graph runs")
    return window_of(node.attrs, (filters.dims[0], filters.dims[1]))


def _moves(window: Window) -> dict[str, Any]:
    return {"strides": list(window.strides), "dilations": list(window.dilations), "kernel_shape": list(window.taps)}


@exports("Conv2D")
def conv(w: Writer, node: Node) -> Names:
    """Exports a convolution. The standard's filter has the shape `[out, in, *taps]`."""
    x, filters = node.inputs
    window = _window(w, node, filters)
    how = {**_moves(window), **_pads(window, _sizes(node, x.dims))}
    return _result(w, node, w.emit("Conv", _channels_first(w, node, x), w.transpose(filters, [3, 2, 0, 1]), **how))


@exports("DepthwiseConv2dNative")
def depthwise(w: Writer, node: Node) -> Names:
    """Exports a convolution with one group per channel."""
    x, filters = node.inputs
    window = _window(w, node, filters)
    assert filters.dims is not None
    channels, many = filters.dims[2:]
    if channels is None or many is None:
        raise UnsupportedError("the number of channels is known only when the graph runs")
    apart = w.transpose(filters, [2, 3, 0, 1])
    flat = w.emit("Reshape", apart, w.int64s([channels * many, 1, *window.taps]))
    how = {**_moves(window), **_pads(window, _sizes(node, x.dims)), "group": channels}
    return _result(w, node, w.emit("Conv", _channels_first(w, node, x), flat, **how))


@exports("Conv2DBackpropInput")
def conv_transpose(w: Writer, node: Node) -> Names:
    """Exports the gradient of a convolution for its input. The standard's filter has the shape `[in, out, *taps]`."""
    wanted, filters, x = node.inputs
    window = _window(w, node, filters)
    old, new = _sizes(node, x.dims), _sizes(node, static_dims(wanted))
    if None in new or None in old:
        raise UnsupportedError("the result's size is known only when the graph runs")
    pairs = [window.pads(a, n or 0) for a, n in enumerate(new)]
    more = [
        (n or 0) - ((o or 0) - 1) * window.strides[a] - window.span(a) + sum(pairs[a])
        for a, (o, n) in enumerate(zip(old, new, strict=True))
    ]
    how = {**_moves(window), "pads": [p[i] for i in (0, 1) for p in pairs], "output_padding": more}
    return _result(
        w, node, w.emit("ConvTranspose", _channels_first(w, node, x), w.transpose(filters, [3, 2, 0, 1]), **how)
    )


@exports("MaxPool", "AvgPool")
def pool(w: Writer, node: Node) -> Names:
    """Exports pooling that ignores padding."""
    (x,) = node.inputs
    window = window_of(node.attrs, height_and_width(node.attrs, "ksize"))
    op = "MaxPool" if node.type == "MaxPool" else "AveragePool"
    how = {"kernel_shape": list(window.taps), "strides": list(window.strides), **_pads(window, _sizes(node, x.dims))}
    return _result(w, node, w.emit(op, _channels_first(w, node, x), **how))


@exports("FusedBatchNormV3")
def batch_norm(w: Writer, node: Node) -> Names:
    """Exports batch normalization with running statistics."""
    if node.attrs["is_training"]:
        raise UnsupportedError("is_training=True; export the model that uses running statistics")
    x, scale, shift, mean, variance = node.inputs
    made = w.emit(
        "BatchNormalization", _channels_first(w, node, x), *map(w.name, (scale, shift, mean, variance)),
        epsilon=float(node.attrs["epsilon"]),
    )  # fmt: skip
    return [_result(w, node, made), w.name(mean), w.name(variance)]
