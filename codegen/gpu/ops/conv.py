"""Templates of nodes that work on images: convolutions, pooling, and their gradients.

The window (taps, strides, padding) comes from a node's attributes and, for convolutions, the filter's shape; so kernels are
written when the shapes are known, and kept per window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....graph.core.dtypes import DType, bfloat16, float16, float32
from ....graph.core.graph import Node
from ....graph.ops.nn.conv_geometry import Window, layout, window_of
from ...fusion.window_loops import CHOSEN, WINDOW_OPS, axis_names, image_sizes
from ...ir.loop_nest import TileLoops
from ..emit.expr import Names
from ..emit.launches import candidates, one_after_another
from ..ir import Choice, Count, Routine, Scratch, Shape, Template, triton_type
from ..templates.conv import convolution

# --- convolutions ----------------------------------------------------------------------------------------------------


_ORDERS = {"result": (0, 1), "image": (1, 2, 0), "filter": (0, 2, 1)}
"""What comes out: the convolution, the gradient for the image, or for the filter -> the node's inputs: those that are loaded, and that
of which only the value is used."""


def convolutions(which: str, edge: TileLoops | None = None) -> Callable[..., Template]:
    """A maker of templates. `edge`: work on the result."""

    def maker(node: Node, *, tf32: bool = False) -> Template:
        dtype, data_format = node.outputs[0].dtype.base, layout(node.attrs)
        options: dict[str, Any] = {"data_format": data_format, "tf32": tf32}
        options |= {} if edge is None else {"epilogue": edge}
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


# --- pooling and depthwise convolutions --------------------------------------------------------------------------------
#
# Their kernels are made from loops (`fusion/window_loops.py`). The largest pixel's gradient is made by two: one writes which tap is the
# largest of each window, the other one goes over the pixels. No two programs add to one number.


def need_window_type(name: str, dtype: DType) -> None:
    """Raises ValueError or KeyError if arrays of an op over windows cannot have this type."""
    triton_type(dtype.name)
    if WINDOW_OPS[name].is_depthwise and dtype not in (float32, float16, bfloat16):
        raise ValueError(f"depthwise convolutions are computed in float32, float16 or bfloat16, not in {dtype.name}")
    if dtype.is_bool or dtype.is_complex:
        raise ValueError(f"no kernel pools {dtype.name}")


def window_ways(
    name: str, dtype: DType, window: Window, sizes: Mapping[str, int], data_format: str = "NHWC", multiplier: int = 1
) -> tuple[Routine, ...]:
    """Ways to compute an op over windows for these `image_sizes`, the likely best one first; `multiplier`: filters of each channel.

    Arrays: the inputs that are loaded, in0...; out0.
    """
    op = WINDOW_OPS[name]
    more = (multiplier,) if op.is_depthwise else ()
    loaded = [i for i in range(len(op.inputs)) if i != op.told]
    parts: list[tuple[Routine, ...]] = []
    for number, (make, which, space) in enumerate(op.steps, 1):
        out = "out0" if number == len(op.steps) else "scratch0"
        arrays = {
            "scratch0" if i == CHOSEN else f"in{loaded.index(i)}": f"{op.inputs[i] if i != CHOSEN else 'result'}_size"
            for i in which
        }
        axes = axis_names(space, window, data_format, op.is_depthwise)
        names = Names(tuple(arrays), (out,), axes, tables=arrays)
        nest = make(dtype, window, *more, data_format)
        parts.append(candidates(nest, names, [sizes[a] for a in axes]))
    if len(parts) == 1:
        return parts[0]
    scratch = [Scratch("scratch0", "i32", (Count(("result_size",)),))]
    return one_after_another([[way.launches[0] for way in ways] for ways in parts], scratch)


def _windows(node: Node) -> Template:
    """The template of an op over windows, which is made from loops."""
    op, dtype, data_format = WINDOW_OPS[node.type], node.outputs[0].dtype.base, layout(node.attrs)
    need_window_type(node.type, dtype)
    loaded = [i for i in range(len(op.inputs)) if i != op.told]
    gives = op.steps[-1][2]

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        given = dict(zip((*loaded, op.told), (*shapes, *map(tuple, others)), strict=False))
        found = op.sizes(node.attrs, [given[i] for i in range(len(op.inputs))])
        if found is None:
            return None
        window, sizes, known = found
        multiplier = known["filter"][3] if op.is_depthwise else 1
        ways = window_ways(node.type, dtype, window, sizes, data_format, multiplier)
        return Choice(ways[:4], sizes, [(known[gives], dtype.np)])

    return Template(len(loaded), choose, None if op.told < 0 else (*loaded, op.told))


IMAGE_MAKERS: dict[str, Callable[..., Template]] = {
    "Conv2D": convolutions("result"),
    "Conv2DBackpropInput": convolutions("image"),
    "Conv2DBackpropFilter": convolutions("filter"),
    **dict.fromkeys(WINDOW_OPS, _windows),
}
