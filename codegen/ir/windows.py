"""Windows that slide over images: what a launch knows of them, and which ops have them.

Static facts are a `Window` (taps, strides, dilations, padding): they are constants of a loop nest. A launch gives the sizes of
`image_sizes`, and with them the padding that "SAME" needs:

    images, height, width, channels   of the image
    rows, columns, filters            of the result
    top, left                         pixels of padding before the image
    phase_rows, phase_columns         height and width, divided by the strides and rounded up
    filter_size                       numbers in the filter of a convolution

Channel c of a depthwise convolution has the filters c * multiplier + m; its filter is [height, width, channels, multiplier].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...graph.core.graph import Node
from ...graph.ops.nn.conv_geometry import Window, height_and_width, nhwc, window_of
from ..target import GPU_INDEX_MARGIN
from .loop_nest import NotFusibleError

_MOST_WRITTEN_OUT = 25  # taps

Shape = tuple[int, ...]


def taps_are_axes(window: Window) -> bool:
    """Whether a window has so many taps that they are reduced axes of its loops; fewer are written out."""
    return math.prod(window.taps) > _MOST_WRITTEN_OUT


def image_sizes(
    window: Window, image: Sequence[int], filters: int | None = None, data_format: str = "NHWC"
) -> dict[str, int]:
    """The sizes that a launch needs.

    Args:
        image: the image's shape, in the order of `data_format`.
        filters: channels of the result; None: those of the image, as in pooling.

    Raises:
        ValueError: the window is larger than the padded image, or an array has nearly 2^31 numbers or more.
    """
    n, height, width, channels = (int(d or 0) for d in nhwc(tuple(image), data_format))
    filters = channels if filters is None else filters
    rows, columns = window.positions(0, height), window.positions(1, width)
    assert rows is not None and columns is not None
    (sh, sw), (kh, kw) = window.strides, window.taps
    if max(n * height * width * channels, n * rows * columns * filters) + GPU_INDEX_MARGIN >= 1 << 31:
        raise ValueError(
            f"kernels for images count to 2^31 with a block's margin; an image of shape {tuple(image)} or its result has more numbers"
        )
    return {
        "images": n, "height": height, "width": width, "channels": channels, "rows": rows, "columns": columns,
        "filters": filters, "top": window.pads(0, height)[0], "left": window.pads(1, width)[0],
        "phase_rows": -(-height // sh), "phase_columns": -(-width // sw), "filter_size": kh * kw * filters * channels,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class WindowOp:
    """What an op over windows takes and gives. The numbers of a vector of sizes are those of what it gives.

    Attributes:
        inputs: what each input of a node is: an "image", a "result", a "filter", "sizes"; "" is not read.
        gives: what its output is.
    """

    inputs: tuple[str, ...]
    gives: str = "result"

    def window(self, node: Node) -> tuple[Window, int]:
        """A node's window, and its filters for each channel; 0: it has no filter.

        Raises:
            NotFusibleError: they are not known before the graph runs.
        """
        if "filter" not in (*self.inputs, self.gives):
            return window_of(node.attrs, height_and_width(node.attrs, "ksize")), 0
        of = node.outputs[0] if self.gives == "filter" else node.inputs[self.inputs.index("filter")]
        high, wide, _, multiplier = of.dims or (None,) * 4
        if not high or not wide or not multiplier:
            raise NotFusibleError("the sizes of its filter are not known before the graph runs")
        return window_of(node.attrs, (high, wide)), multiplier


WINDOW_OPS = {
    "MaxPool": WindowOp(("image",)),
    "MaxPoolChoice": WindowOp(("image",)),
    "MaxPoolChoiceGrad": WindowOp(("sizes", "result", "result"), "image"),
    "MaxPoolGradGrad": WindowOp(("image", "", "image")),
    "AvgPool": WindowOp(("image",)),
    "AvgPoolGrad": WindowOp(("sizes", "result"), "image"),
    "DepthwiseConv2dNative": WindowOp(("image", "filter")),
    "DepthwiseConv2dNativeBackpropInput": WindowOp(("sizes", "filter", "result"), "image"),
    "DepthwiseConv2dNativeBackpropFilter": WindowOp(("image", "sizes", "result"), "filter"),
}
"""The ops, on CPUs and GPUs. `fusion/window_loops.py` has their loops."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A window of a kernel: what is read through it, and the axes that loops over it have.

    Attributes:
        window: taps, strides, dilations, padding.
        data_format: "NHWC" or "NCHW": the order of the axes of images and results.
        multiplier: filters for each channel; 0: there is no filter.
        inputs: what is read through it ("image", "result", "filter"), and which of the kernel's inputs that is.
        over: what the loops go over, an "image" or a "result".
        axes: the space's axes of its images, height, width and channels; None: of size 1.
    """

    window: Window
    data_format: str
    multiplier: int
    inputs: tuple[tuple[str, int], ...]
    over: str
    axes: tuple[int | None, ...]

    def sizes(self, shapes: Sequence[Shape], space: list[int | None]) -> dict[str, int] | None:
        """What a launch gives, for inputs of these shapes; fills in the sizes of the space's axes. None if these do not fit.

        `space`: the sizes of axes that are known. Those of an image that loops go over are.
        """
        found: dict[str, Sequence[int]] = {}
        for what, i in self.inputs:
            if len(shapes[i]) != 4 or 0 in shapes[i] or found.setdefault(what, shapes[i]) != shapes[i]:
                return None
        if self.over == "image":
            n, h, w, c = (1 if a is None else space[a] or 0 for a in self.axes)
            found["image"] = (n, c, h, w) if self.data_format == "NCHW" else (n, h, w, c)
        inner = found["image"][1 if self.data_format == "NCHW" else 3]
        try:
            sizes = image_sizes(self.window, found["image"], inner * (self.multiplier or 1), self.data_format)
        except ValueError:
            return None  # the reference says what is wrong, or can do what kernels cannot
        n, h, w, c = (sizes[name] for name in ("images", "rows", "columns", "filters"))
        result = (n, c, h, w) if self.data_format == "NCHW" else (n, h, w, c)
        taps = (*self.window.taps, inner, self.multiplier)
        fits = found.get("filter", taps) == taps and found.get("result", result) == result
        if not fits or 0 in (*found["image"], *result):
            return None
        if self.over == "image":
            n, h, w, c = (sizes[name] for name in ("images", "height", "width", "channels"))
        for axis, size in zip(self.axes, (n, h, w, c if "filter" in found else inner), strict=True):
            if axis is not None and space[axis] is None:
                space[axis] = size
            elif (1 if axis is None else space[axis]) != size:
                return None
        return sizes
