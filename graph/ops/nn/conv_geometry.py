"""Windows that slide over images: the geometry that convolutions and pooling share.

Along each spatial axis a window has a size, a stride (the step between positions) and a dilation (the distance between its taps), and the
image may be padded. The NumPy references take images as `[batch, height, width, channels]`. They use two functions that are each other's
transpose: `patches` copies the window at every position ("im2col"), and `overlay` adds such windows up to an image ("col2im").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.dtypes import Array
from ...core.graph import Tensor
from ...core.opdef import Attrs
from ...core.shape import Dims
from ..math.common import layout_of
from ..math.static_operands import need_rank

PADDINGS = ("SAME", "VALID", "EXPLICIT")


@dataclass(frozen=True, slots=True)
class Window:
    """A window over height and width. Each field has a value for either axis.

    Attributes:
        size: the number of taps. None if it is unknown.
        strides: the step from one position to the next, in pixels.
        dilations: the distance between neighbouring taps, in pixels.
        padding: "SAME" for ceil(pixels / stride) positions, "VALID" for positions inside the image, "EXPLICIT" for `explicit`.
        explicit: the padding (before, after) along either axis, in pixels.
    """

    size: tuple[int | None, int | None]
    strides: tuple[int, int]
    dilations: tuple[int, int] = (1, 1)
    padding: str = "VALID"
    explicit: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))

    @property
    def taps(self) -> tuple[int, int]:
        """The size of a window whose size is known."""
        height, width = self.size
        assert height is not None
        assert width is not None
        return height, width

    def span(self, axis: int) -> int:
        """The number of pixels from the first to the last tap, both included."""
        taps = self.size[axis]
        assert taps is not None
        return (taps - 1) * self.dilations[axis] + 1

    def positions(self, axis: int, length: int | None) -> int | None:
        """The number of positions along an image axis of `length` pixels. None if it is unknown.

        Raises:
            ValueError: the window is larger than the padded image.
        """
        if length is None:
            return None
        if self.padding == "SAME":
            return -(-length // self.strides[axis])
        if self.size[axis] is None:
            return None
        room = length + sum(self.explicit[axis]) - self.span(axis)
        if room < 0:
            padded = length + sum(self.explicit[axis])
            raise ValueError(
                f"the window spans {self.span(axis)} pixels of {('height', 'width')[axis]}, "
                f"the padded image has {padded}"
            )
        return room // self.strides[axis] + 1

    def pads(self, axis: int, length: int) -> tuple[int, int]:
        """The padding before and after an image axis of `length` pixels. An odd pixel of "SAME" is added after, as in TensorFlow."""
        if self.padding != "SAME":
            return self.explicit[axis]
        count = -(-length // self.strides[axis])
        total = max((count - 1) * self.strides[axis] + self.span(axis) - length, 0)
        return total // 2, total - total // 2


def patches(x: Array, window: Window, fill: Any = 0) -> Array:
    """The window at each position: `[n, h, w, c]` -> `[n, rows, columns, c, window height, window width]`.

    Padding has the value `fill`. The result is a view of the padded image, and must not be written to.
    """
    rows, columns = window.positions(0, x.shape[1]), window.positions(1, x.shape[2])
    (top, bottom), (left, right) = window.pads(0, x.shape[1]), window.pads(1, x.shape[2])
    if rows == 0 or columns == 0:
        return np.zeros((x.shape[0], rows or 0, columns or 0, x.shape[3], *window.taps), x.dtype)
    if top or bottom or left or right:
        x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
    spans = (window.span(0), window.span(1))
    views = np.lib.stride_tricks.sliding_window_view(x, spans, (1, 2))
    (sh, sw), (dh, dw) = window.strides, window.dilations
    return views[:, ::sh, ::sw, :, ::dh, ::dw]


def overlay(parts: Array, height: int, width: int, window: Window) -> Array:
    """The transpose of `patches`: images `[n, height, width, c]` whose pixels are the sums of the taps over them."""
    n, rows, columns, c, taps_high, taps_wide = parts.shape
    (top, bottom), (left, right) = window.pads(0, height), window.pads(1, width)
    out = np.zeros((n, top + height + bottom, left + width + right, c), parts.dtype)
    (sh, sw), (dh, dw) = window.strides, window.dilations
    for i in range(taps_high):
        for j in range(taps_wide):
            at = np.s_[:, i * dh : i * dh + rows * sh : sh, j * dw : j * dw + columns * sw : sw]
            out[at] += parts[..., i, j]
    return out[:, top : top + height, left : left + width]


# --- layouts ------------------------------------------------------------------------------------------------


def layout(attrs: Attrs) -> str:
    """The attribute data_format. ValueError unless it is "NHWC" or "NCHW"."""
    return layout_of(attrs.get("data_format"))


def channels_last(x: Array, data_format: str) -> Array:
    """An image in the layout `data_format` as `[n, h, w, c]`."""
    return np.moveaxis(x, 1, 3) if data_format == "NCHW" else x


def as_layout(x: Array, data_format: str) -> Array:
    """An image `[n, h, w, c]` in the layout `data_format`."""
    return np.ascontiguousarray(np.moveaxis(x, 3, 1)) if data_format == "NCHW" else x


def image_dims(tensor: Tensor, data_format: str, what: str) -> tuple[int | None, ...]:
    """The sizes of an image tensor as (n, h, w, c). None where they are unknown."""
    need_rank(tensor.dims, 4, what)
    return nhwc(tensor.dims, data_format)


def nhwc(dims: Dims, data_format: str) -> tuple[int | None, ...]:
    """Sizes in the layout `data_format`, as (n, h, w, c)."""
    if dims is None:
        return (None,) * 4
    n, a, b, c = dims
    return (n, b, c, a) if data_format == "NCHW" else (n, a, b, c)


def in_layout(sizes: tuple[int | None, ...], data_format: str) -> Dims:
    """Sizes (n, h, w, c) in the layout `data_format`."""
    n, h, w, c = sizes
    return (n, c, h, w) if data_format == "NCHW" else (n, h, w, c)


def axes_of(data_format: str) -> tuple[int, int]:
    """The axes of height and width."""
    return (2, 3) if data_format == "NCHW" else (1, 2)


def window_of(attrs: Attrs, size: tuple[int | None, int | None]) -> Window:
    """The window of a node, from its attributes strides, padding, explicit_paddings, dilations and data_format.

    Raises:
        ValueError: an attribute is missing or malformed, or the window moves along batches or channels.
    """
    data_format = layout(attrs)
    padding = attrs.get("padding")
    if padding not in PADDINGS:
        raise ValueError(f"padding must be 'SAME', 'VALID' or a list of paddings, not {padding!r}")
    strides = height_and_width(attrs, "strides")
    dilations = height_and_width(attrs, "dilations") if "dilations" in attrs else (1, 1)
    explicit = ((0, 0), (0, 0))
    if padding == "EXPLICIT":
        pads = _ints(attrs, "explicit_paddings", 8, 0)
        pairs = [(pads[2 * i], pads[2 * i + 1]) for i in range(4)]
        a, b = axes_of(data_format)
        if any(pairs[i] != (0, 0) for i in range(4) if i not in (a, b)):
            raise ValueError(f"batches and channels cannot be padded: {pairs}")
        explicit = (pairs[a], pairs[b])
    if any(s is not None and s < 1 for s in size):
        raise ValueError(f"a window must have at least one tap along each axis, not {size}")
    return Window(size, strides, dilations, str(padding), explicit)


def _ints(attrs: Attrs, name: str, count: int, lowest: int) -> tuple[int, ...]:
    """An attribute of `count` ints. ValueError if it is something else, or one is below `lowest`."""
    value = attrs.get(name)
    if (
        not isinstance(value, (list, tuple))
        or len(value) != count
        or not all(type(v) is int and v >= lowest for v in value)
    ):
        raise ValueError(f"{name} must be {count} numbers of {lowest} or more, not {value!r}")
    return tuple(value)


def height_and_width(attrs: Attrs, name: str) -> tuple[int, int]:
    """The entries for height and width of an attribute with a number per axis of the image. ValueError unless the others are 1."""
    value = _ints(attrs, name, 4, 1)
    data_format = layout(attrs)
    a, b = axes_of(data_format)
    if any(value[i] != 1 for i in range(4) if i not in (a, b)):
        raise ValueError(f"{name} over batches and channels must be 1: {value} for {data_format}")
    return value[a], value[b]


# --- arguments of public functions --------------------------------------------------------------------------


def four(value: Any, name: str, data_format: str) -> tuple[int, ...]:
    """One number per axis of the image, from one number, (height, width), or all four.

    >>> four(2, "strides", "NCHW")
    (1, 1, 2, 2)
    """
    numbers = [int(v) for v in value] if isinstance(value, Sequence) else [int(value)]
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) == 2:
        height, width = numbers
        return (1, 1, height, width) if data_format == "NCHW" else (1, height, width, 1)
    if len(numbers) != 4:
        raise ValueError(f"{name} must be 1, 2 or 4 numbers, not {value!r}")
    return tuple(numbers)


def padding_attrs(padding: Any) -> dict[str, Any]:
    """The attributes for "SAME", "VALID" or four pairs [[before, after], ...] in the order of the image's axes."""
    if isinstance(padding, str):
        return {"padding": padding.upper(), "explicit_paddings": ()}
    if not isinstance(padding, Sequence) or len(padding) != 4 or any(len(p) != 2 for p in padding):
        raise ValueError(f"padding must be 'SAME', 'VALID' or four pairs [before, after], not {padding!r}")
    return {"padding": "EXPLICIT", "explicit_paddings": tuple(int(p) for pair in padding for p in pair)}
