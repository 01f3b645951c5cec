"""What convolutions and pools have in common: axes of the picture, strides, dilations, padding.

A picture of the standard is `[batch, channels, *sizes]`. Those with one axis get a second one of size 1 in front, so that all
are `NCHW`, the layout with channels first that the graph's own ops have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ....graph.core.graph import Tensor
from ....graph.ops.array.shapes import expand_dims, squeeze
from ..registry import Call, UnsupportedError

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Windows:
    """How a window moves over a picture; one entry for each of its two axes.

    Attributes:
        taps, strides, dilations: of the window.
        pads: (before, after), or None where they follow from the size, as many windows as ceil(size / stride).
        sizes: of the picture, None where they are not known.
        ceil: whether a last window that reaches beyond the end counts.
    """

    taps: Pair
    strides: Pair
    dilations: Pair
    pads: tuple[Pair, Pair] | None
    sizes: tuple[int | None, int | None]
    ceil: bool = False

    def span(self, axis: int) -> int:
        """From a window's first tap to its last, both included."""
        return (self.taps[axis] - 1) * self.dilations[axis] + 1

    def around(self, axis: int) -> Pair:
        """The padding of one axis, as a number.

        Raises:
            UnsupportedError: it depends on a size that is not known.
        """
        if self.pads is not None:
            return self.pads[axis]
        size, stride = self.sizes[axis], self.strides[axis]
        if size is None and stride > 1:
            raise UnsupportedError(f"padding of axis {axis + 2}, whose size is known only when the graph runs")
        more = max(0, self.span(axis) - (stride if size is None or size % stride == 0 else size % stride))
        return more // 2, more - more // 2

    def beyond(self, axis: int) -> int:
        """How far the last window of `ceil` reaches beyond the padding."""
        if not self.ceil or self.strides[axis] == 1:
            return 0
        (before, after), size = self.around(axis), self.sizes[axis]
        stride, span = self.strides[axis], self.span(axis)
        if size is None:
            if after + stride - 1 >= span:
                raise UnsupportedError(f"ceil_mode along axis {axis + 2}, whose size is known only when the graph runs")
            return stride - 1
        count = -(-(size + before + after - span) // stride) + 1
        if (count - 1) * stride >= size + before:  # its window would contain only padding
            count -= 1
        return max(0, (count - 1) * stride + span - (size + before + after))

    def explicit(self) -> list[list[int]]:
        """All padding in the graph's own way: pairs for batches, channels, and both axes."""
        return [[0, 0], [0, 0], *([b, a + self.beyond(i)] for i, (b, a) in enumerate(map(self.around, (0, 1))))]

    def positions(self, axis: int) -> int:
        """How many windows there are.

        Raises:
            UnsupportedError: the size is not known.
        """
        size = self.sizes[axis]
        if size is None:
            raise UnsupportedError(
                f"dilated windows along axis {axis + 2}, whose size is known only when the graph runs"
            )
        before, after = self.around(axis)
        return (size + before + after + self.beyond(axis) - self.span(axis)) // self.strides[axis] + 1

    def each_tap(self) -> Iterator[tuple[slice, ...]]:
        """For each tap, the pixels of the padded picture that it sees."""
        for tap in product(*map(range, self.taps)):
            seen = (
                slice(t * d, t * d + (self.positions(a) - 1) * s + 1, s)
                for a, (t, d, s) in enumerate(zip(tap, self.dilations, self.strides, strict=True))
            )
            yield slice(None), slice(None), *seen


def windows_of(call: Call, x: Tensor, taps: tuple[int, ...]) -> Windows:
    """The windows that a node's attributes describe, for a picture with as many axes as the window."""
    axes = len(taps)
    if axes not in (1, 2):
        raise UnsupportedError(f"windows over {axes} axes; they can have 1 or 2")
    strides, dilations = (tuple(call.attr(n) or (1,) * axes) for n in ("strides", "dilations"))
    how = call.only("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    numbers = call.attr("pads", (0,) * 2 * axes) if how == "NOTSET" else (0,) * 2 * axes
    if min(numbers) < 0:
        raise UnsupportedError("negative padding")
    pads: tuple[Pair, ...] | None = tuple(zip(numbers[:axes], numbers[axes:], strict=True))
    sizes = call.dims(x)[2:]
    if axes == 1:
        taps, strides, dilations, sizes = (1, *taps), (1, *strides), (1, *dilations), (1, *sizes)
        pads = ((0, 0), *(pads or ()))
    made = Windows(taps, strides, dilations, None, sizes)  # type: ignore[arg-type]
    if how == "SAME_LOWER":
        turned = tuple(made.around(a)[::-1] for a in (0, 1))
        return Windows(taps, strides, dilations, turned, sizes)  # type: ignore[arg-type]
    return made if how == "SAME_UPPER" else Windows(
        taps, strides, dilations, pads, sizes, bool(call.attr("ceil_mode", 0))  # type: ignore[arg-type]
    )  # fmt: skip


def as_picture(x: Tensor) -> Tensor:
    """With two axes, the first one of size 1 if there is only one."""
    return expand_dims(x, 2) if x.dims is not None and len(x.dims) == 3 else x


def as_before(made: Tensor, x: Tensor) -> Tensor:
    """With as many axes as x."""
    return squeeze(made, [2]) if x.dims is not None and len(x.dims) == 3 else made
