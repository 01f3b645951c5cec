"""What convolutions and pooling share: sizes, and where a pixel lies in memory.

Static facts come as a `Window` (taps, strides, dilations, padding): they are constants of the kernels. Sizes, and with them the
padding that "SAME" needs, are parameters:

    images, height, width, channels   of the image
    rows, columns, filters            of the result
    top, left                         pixels of padding before the image
    phase_rows, phase_columns         height and width, divided by the strides and rounded up
    filter_size                       numbers in the filter
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....graph.ops.nn.conv_geometry import Window
from ..ir import Parameter
from .text import Constants, inside

IMAGE = ("images", "height", "width", "channels")
WINDOW = ("rows", "columns", "top", "left")


def image_sizes(
    window: Window, image: Sequence[int], filters: int | None = None, data_format: str = "NHWC", depthwise: bool = False
) -> dict[str, int]:
    """The sizes that a launch needs.

    Args:
        image: the image's shape, in the order of `data_format`.
        filters: channels of the result; None: those of the image, as in pooling.
        depthwise: whether each channel has filters of its own.

    Raises:
        ValueError: the window is larger than the padded image, or an array has 2^31 numbers or more.
    """
    n, a, b, c = image
    height, width, channels = (b, c, a) if data_format == "NCHW" else (a, b, c)
    filters = channels if filters is None else filters
    rows, columns = window.positions(0, height), window.positions(1, width)
    assert rows is not None and columns is not None
    (sh, sw), (kh, kw) = window.strides, window.taps
    if max(n * height * width * channels, n * rows * columns * filters) >= 1 << 31:
        raise ValueError(
            f"kernels for images count to 2^31; an image of shape {tuple(image)} or its result has more numbers"
        )
    return {
        "images": n, "height": height, "width": width, "channels": channels, "rows": rows, "columns": columns,
        "filters": filters, "top": window.pads(0, height)[0], "left": window.pads(1, width)[0],
        "phase_rows": -(-height // sh), "phase_columns": -(-width // sw),
        "filter_size": kh * kw * filters * (1 if depthwise else channels),
    }  # fmt: skip


def window_constants(window: Window) -> Constants:
    """The window as constants: KH x KW taps, strides SH and SW, dilations DH and DW."""
    (kh, kw), (sh, sw), (dh, dw) = window.taps, window.strides, window.dilations
    return (("KH", kh), ("KW", kw), ("SH", sh), ("SW", sw), ("DH", dh), ("DW", dw))


def size_parameters(names: Sequence[str], known: Mapping[str, int]) -> tuple[Parameter, ...]:
    """Parameters for sizes; those that are known multiples of 16 promise to be."""
    return tuple(Parameter(n, "i32", known.get(n, 1) % 16 == 0) for n in names)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a pixel lies: "NHWC" or "NCHW"."""

    data_format: str

    @property
    def channels_first(self) -> bool:
        """Whether it is NCHW."""
        return self.data_format == "NCHW"

    def offset(self, sizes: tuple[str, str, str], n: str, h: str, w: str, c: str) -> str:
        """Offset of one pixel of an image with (height, width, channels); `n` is int64, and so is the result."""
        height, width, channels = sizes
        if self.channels_first:
            return f"(({n} * {channels} + {c}) * {height} + {h}) * {width} + {w}"
        return f"(({n} * {height} + {h}) * {width} + {w}) * {channels} + {c}"

    def ordered(self, n: str, h: str, w: str, c: str) -> tuple[str, str, str, str]:
        """Four things, one per axis, in the order of the axes in memory."""
        return (n, c, h, w) if self.channels_first else (n, h, w, c)

    def decode(self, flat: str, sizes: tuple[str, str, str], names: tuple[str, str, str, str]) -> list[str]:
        """Lines that take an offset into an image apart; `names` of (n, h, w, c)."""
        height, width, channels = sizes
        n, h, w, c = names
        if self.channels_first:
            return [f"{w} = {flat} % {width}", f"{h} = {flat} // {width} % {height}",
                    f"{c} = {flat} // {width} // {height} % {channels}",
                    f"{n} = ({flat} // {width} // {height} // {channels}).to(tl.int64)"]  # fmt: skip
        return [f"{c} = {flat} % {channels}", f"{w} = {flat} // {channels} % {width}",
                f"{h} = {flat} // {channels} // {width} % {height}",
                f"{n} = ({flat} // {channels} // {width} // {height}).to(tl.int64)"]  # fmt: skip


def for_taps(window: Window, *body: str | Sequence[str]) -> str:
    """Loops over all taps (i, j): written out, unless they are many."""
    many = window.taps[0] * window.taps[1] > 25
    loop = "for {0} in range({1}):" if many else "for {0} in tl.static_range({1}):"
    return inside(loop.format("i", "KH"), inside(loop.format("j", "KW"), *body))
