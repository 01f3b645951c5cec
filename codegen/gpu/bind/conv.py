"""Templates of nodes that work on images: convolutions, pooling, and their gradients.

The window (taps, strides, padding) comes from a node's attributes and, for convolutions, the filter's shape; so kernels are
written when the shapes are known, and kept per window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.core.graph import Node
from ....graph.ops.nn.conv_geometry import height_and_width, layout, window_of
from ...fusion.window_loops import image_sizes
from ...ir.tile_loops import TileLoops
from ..driver.device import Device
from ..ir import Routine
from ..templates.conv import convolution
from ..templates.windows import WindowKernels
from .template import Choice, Template

Shape = tuple[int, ...]


def _in_layout(sizes: dict[str, int], data_format: str) -> Shape:
    """The shape of a convolution's result."""
    n, rows, columns, filters = (sizes[name] for name in ("images", "rows", "columns", "filters"))
    return (n, filters, rows, columns) if data_format == "NCHW" else (n, rows, columns, filters)


# --- convolutions ----------------------------------------------------------------------------------------------------


_KERNELS = {
    "result": (WindowKernels.depthwise, (0, 1)),
    "image": (WindowKernels.depthwise_input_gradient, (1, 2, 0)),
    "filter": (WindowKernels.depthwise_filter_gradient, (0, 2, 1)),
}
"""What comes out: the convolution, the gradient for the image, or for the filter -> the kernels of a depthwise convolution, and the
node's inputs: those that are loaded, and that of which only the value is used."""


def _convolutions(which: str, is_depthwise: bool = False, edge: TileLoops | None = None) -> Callable[..., Template]:
    """A maker of templates. `edge`: work on the result."""
    depthwise, order = _KERNELS[which]

    def maker(node: Node, *, tf32: bool = False) -> Template:
        dtype, data_format = node.outputs[0].dtype.base, layout(node.attrs)
        options: dict[str, Any] = {"data_format": data_format, "tf32": tf32}
        options |= {} if edge is None else {"epilogue": edge}
        some = window_of(
            node.attrs, (1, 1)
        )  # ValueError for attributes that no window has, or a type that no kernel has
        WindowKernels(dtype, some, data_format, 1) if is_depthwise else convolution(dtype, some, which, **options)

        def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
            told = tuple(others[0]) if others else ()
            x, w = {"result": (shapes[0], shapes[1]), "image": (told, shapes[0]), "filter": (shapes[0], told)}[which]
            if len(x) != 4 or len(w) != 4 or 0 in (*x, *w):
                return None
            window = window_of(node.attrs, (w[0], w[1]))
            try:
                sizes = image_sizes(window, x, w[2] * w[3] if is_depthwise else w[3], data_format, is_depthwise)
            except ValueError:
                return None  # the reference says what is wrong, or can do what kernels cannot
            gradient = _in_layout(sizes, data_format)
            if sizes["channels"] != w[2] or (which != "result" and shapes[1] != gradient) or 0 in gradient:
                return None
            made = {"result": gradient, "image": x, "filter": w}[which]
            ways = (
                depthwise(WindowKernels(dtype, window, data_format, w[3]), sizes)
                if is_depthwise
                else convolution(dtype, window, which, known=sizes, **options)
            )
            return Choice(ways[:4], sizes, [(made, dtype.np)])

        return Template(2, choose, order)

    return maker


def convolution_with_edge(node: Node, edge: TileLoops | None, tf32: bool = False) -> Template:
    """The template of a convolution, or of its gradient for the image, with work on the result."""
    return _convolutions({"Conv2D": "result"}.get(node.type, "image"), edge=edge)(node, tf32=tf32)


# --- pooling ---------------------------------------------------------------------------------------------------------


def _pool(
    make: Callable[[WindowKernels, dict[str, int]], Sequence[Routine]],
    loaded: int,
    order: tuple[int, ...],
    image_is_told: bool,
    gives_image: bool,
) -> Callable[[Node], Template]:
    """A maker of templates for one kind of pooling."""

    def maker(node: Node) -> Template:
        dtype = node.outputs[0].dtype.base
        data_format = layout(node.attrs)
        window = window_of(node.attrs, height_and_width(node.attrs, "ksize"))
        kernels = WindowKernels(dtype, window, data_format)  # ValueError, KeyError for a type that no kernel has

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
            return Choice(make(kernels, sizes), sizes, [(x if gives_image else pooled, dtype.np)])

        return Template(loaded, choose, order)

    return maker


IMAGE_MAKERS: dict[str, Callable[..., Template]] = {
    "Conv2D": _convolutions("result"),
    "Conv2DBackpropInput": _convolutions("image"),
    "Conv2DBackpropFilter": _convolutions("filter"),
    "DepthwiseConv2dNative": _convolutions("result", True),
    "DepthwiseConv2dNativeBackpropInput": _convolutions("image", True),
    "DepthwiseConv2dNativeBackpropFilter": _convolutions("filter", True),
    "MaxPool": _pool(WindowKernels.max_pool, 1, (0,), False, False),
    "MaxPoolGrad": _pool(WindowKernels.max_pool_gradient, 3, (0, 1, 2), False, True),
    "MaxPoolGradGrad": _pool(WindowKernels.max_pool_gradient_gradient, 3, (0, 1, 2), False, False),
    "AvgPool": _pool(WindowKernels.avg_pool, 1, (0,), False, False),
    "AvgPoolGrad": _pool(WindowKernels.avg_pool_gradient, 1, (1, 0), True, True),
}
