"""Templates of nodes that work on images: convolutions, pooling, and their gradients.

The window (taps, strides, padding) comes from a node's attributes and, for convolutions, the filter's shape; so kernels are
written when the shapes are known, and kept per window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.core.dtypes import DType
from ....graph.core.graph import Node
from ....graph.ops.nn.conv_geometry import Window, height_and_width, layout, window_of
from ...ir.tile_loops import TileLoops
from ..driver.device import Device
from ..ir import Routine, Target
from ..templates.conv import convolution, filter_gradient, input_gradient
from ..templates.depthwise import depthwise, depthwise_filter_gradient, depthwise_input_gradient
from ..templates.pooling import avg_pool, avg_pool_gradient, max_pool, max_pool_gradient, max_pool_gradient_gradient
from ..templates.windows import image_sizes
from .template import Choice, Template

Shape = tuple[int, ...]


def _in_layout(sizes: dict[str, int], data_format: str) -> Shape:
    """The shape of a convolution's result."""
    n, rows, columns, filters = (sizes[name] for name in ("images", "rows", "columns", "filters"))
    return (n, filters, rows, columns) if data_format == "NCHW" else (n, rows, columns, filters)


# --- convolutions ----------------------------------------------------------------------------------------------------


def _convolution(
    make: Callable[[DType, Window, int, str, dict[str, int]], Sequence[Routine]],
    order: tuple[int, ...],
    image: Callable[[Sequence[Shape], Sequence[Any]], Shape],
    filters: Callable[[Sequence[Shape], Sequence[Any]], Shape],
    result: str,
    is_depthwise: bool,
) -> Callable[[Node, Target], Template]:
    """A maker of templates.

    Args:
        make: (type, window, filters of a channel, layout, sizes) -> routines.
        order: the node's inputs: those that are loaded, and those that are only looked at.
        image, filters: their shapes, from the shapes of what is loaded, and the values of the others.
        result: what comes out: `result`, `image` or `filter`.
    """

    def maker(node: Node, target: Target) -> Template:
        dtype = node.outputs[0].dtype.base
        data_format = layout(node.attrs)
        window_of(node.attrs, (1, 1))  # ValueError for attributes that no window has

        def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
            x, w = image(shapes, others), filters(shapes, others)
            if len(x) != 4 or len(w) != 4 or 0 in (*x, *w):
                return None
            window = window_of(node.attrs, (w[0], w[1]))
            try:
                sizes = image_sizes(window, x, w[2] * w[3] if is_depthwise else w[3], data_format, is_depthwise)
            except ValueError:
                return None  # the reference says what is wrong, or can do what kernels cannot
            gradient = _in_layout(sizes, data_format)
            if sizes["channels"] != w[2] or (result != "result" and shapes[1] != gradient) or 0 in gradient:
                return None
            made = {"result": gradient, "image": x, "filter": w}[result]
            return Choice(list(make(dtype, window, w[3], data_format, sizes))[:4], sizes, [(made, dtype.np)])

        make(dtype, window_of(node.attrs, (1, 1)), 1, data_format, {})  # ValueError for a type that no kernel has
        loaded = 2
        return Template(loaded, choose, order)

    return maker


def _first(shapes: Sequence[Shape], others: Sequence[Any]) -> Shape:
    return shapes[0]


def _second(shapes: Sequence[Shape], others: Sequence[Any]) -> Shape:
    return shapes[1]


def _told(shapes: Sequence[Shape], others: Sequence[Any]) -> Shape:
    return tuple(others[0])


def _family(
    target: Target, is_depthwise: bool, edge: TileLoops | None, tf32: bool
) -> list[Callable[..., Sequence[Routine]]]:
    """Forward, and the gradients for image and filter."""
    if is_depthwise:
        return [
            lambda d, w, m, f, known: depthwise(d, w, m, data_format=f, known=known),
            lambda d, w, m, f, known: depthwise_input_gradient(d, w, m, data_format=f, known=known),
            lambda d, w, m, f, known: depthwise_filter_gradient(d, w, m, data_format=f, known=known),
        ]
    return [
        lambda d, w, m, f, known: convolution(
            d, w, target=target, data_format=f, known=known, epilogue=edge, tf32=tf32
        ),
        lambda d, w, m, f, known: input_gradient(
            d, w, target=target, data_format=f, known=known, epilogue=edge, tf32=tf32
        ),
        lambda d, w, m, f, known: filter_gradient(d, w, target=target, data_format=f, known=known, tf32=tf32),
    ]


def convolution_with_edge(node: Node, target: Target, edge: TileLoops | None, tf32: bool = False) -> Template:
    """The template of a convolution, or of its gradient for the image, with work on the result."""
    return _convolutions(False, {"Conv2D": 0, "Conv2DBackpropInput": 1}[node.type], edge)(node, target, tf32=tf32)


def _convolutions(is_depthwise: bool, which: int, edge: TileLoops | None = None) -> Callable[..., Template]:
    order, image, filters, result = (
        ((0, 1), _first, _second, "result"),
        ((1, 2, 0), _told, _first, "image"),
        ((0, 2, 1), _first, _told, "filter"),
    )[which]

    def maker(node: Node, target: Target, *, tf32: bool = False) -> Template:
        make = _family(target, is_depthwise, edge, tf32)[which]
        return _convolution(make, order, image, filters, result, is_depthwise)(node, target)

    return maker


# --- pooling ---------------------------------------------------------------------------------------------------------


def _pool(
    make: Callable[..., list[Routine]], loaded: int, order: tuple[int, ...], image_is_told: bool, gives_image: bool
) -> Callable[[Node, Target], Template]:
    """A maker of templates for one kind of pooling."""

    def maker(node: Node, target: Target) -> Template:
        dtype = node.outputs[0].dtype.base
        data_format = layout(node.attrs)
        window = window_of(node.attrs, height_and_width(node.attrs, "ksize"))
        make(dtype, window, data_format)  # ValueError, KeyError for a type that no kernel has

        def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
            x = tuple(others[0]) if image_is_told else shapes[0]
            if len(x) != 4 or 0 in x:
                return None
            try:
                sizes = image_sizes(window, x, None, data_format)
            except ValueError:
                return None
            pooled = _in_layout(sizes, data_format)
            given = pooled if gives_image else x
            if 0 in pooled or (len(shapes) > 1 and shapes[-1] != given) or (image_is_told and shapes[0] != pooled):
                return None
            return Choice(make(dtype, window, data_format, sizes), sizes, [(x if gives_image else pooled, dtype.np)])

        return Template(loaded, choose, order)

    return maker


IMAGE_MAKERS: dict[str, Callable[..., Template]] = {
    "Conv2D": _convolutions(False, 0),
    "Conv2DBackpropInput": _convolutions(False, 1),
    "Conv2DBackpropFilter": _convolutions(False, 2),
    "DepthwiseConv2dNative": _convolutions(True, 0),
    "DepthwiseConv2dNativeBackpropInput": _convolutions(True, 1),
    "DepthwiseConv2dNativeBackpropFilter": _convolutions(True, 2),
    "MaxPool": _pool(max_pool, 1, (0,), False, False),
    "MaxPoolGrad": _pool(max_pool_gradient, 3, (0, 1, 2), False, True),
    "MaxPoolGradGrad": _pool(max_pool_gradient_gradient, 3, (0, 1, 2), False, False),
    "AvgPool": _pool(avg_pool, 1, (0,), False, False),
    "AvgPoolGrad": _pool(avg_pool_gradient, 1, (1, 0), True, True),
}
