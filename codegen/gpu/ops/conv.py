"""Templates of convolutions and their gradients.

The window (taps, strides, padding) comes from a node's attributes and the filter's shape; so kernels are written when the shapes are
known, and kept per window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.core.graph import Node
from ....graph.ops.nn.conv_geometry import layout, window_of
from ...ir.loop_nest import TileLoops
from ...ir.windows import image_sizes
from ..ir import Choice, Shape, Template
from ..templates.conv import convolution

_ORDERS = {"result": (0, 1), "image": (1, 2, 0), "filter": (0, 2, 1)}
"""What comes out: the convolution, the gradient for the image, or for the filter -> the node's inputs: those that are loaded, and that
of which only the value is used."""


def convolutions(which: str, edge: TileLoops | None = None) -> Callable[..., Template]:
    """A maker of templates. `edge`: work on the result."""

    def maker(node: Node, *, tf32: bool = False) -> Template:
        dtype, data_format = node.outputs[0].dtype.base, layout(node.attrs)
        options: dict[str, Any] = {"data_format": data_format, "tf32": tf32, "epilogue": edge}
        # ValueError for attributes that no window has, or a type that no kernel has.
        some = window_of(node.attrs, (1, 1))
        convolution(dtype, some, which, **options)

        def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
            told = tuple(others[0]) if others else ()
            x, w = {"result": (shapes[0], shapes[1]), "image": (told, shapes[0]), "filter": (shapes[0], told)}[which]
            if len(x) != 4 or len(w) != 4 or 0 in (*x, *w):
                return None
            window = window_of(node.attrs, (w[0], w[1]))
            try:
                sizes = image_sizes(window, x, w[3], data_format)
            except ValueError:
                return None  # the reference says what is wrong, or can do what kernels cannot
            axes = ("filters", "rows", "columns") if data_format == "NCHW" else ("rows", "columns", "filters")
            gradient = tuple([sizes[name] for name in ("images", *axes)])
            if sizes["channels"] != w[2] or (which != "result" and shapes[1] != gradient) or 0 in gradient:
                return None
            made = {"result": gradient, "image": x, "filter": w}[which]
            ways = convolution(dtype, window, which, known=sizes, **options)
            return Choice(ways[:4], sizes, [(made, dtype.np)])

        return Template(2, choose, _ORDERS[which])

    return maker


IMAGE_MAKERS: dict[str, Callable[..., Template]] = {
    "Conv2D": convolutions("result"),
    "Conv2DBackpropInput": convolutions("image"),
    "Conv2DBackpropFilter": convolutions("filter"),
}
