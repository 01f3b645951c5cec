"""The gradient of a convolution by its image as convolutions: one for each phase of its pixels.

It is a convolution of the result's gradient with the filter turned around. With strides, the image's pixels fall into as many phases
as there are strides, and each phase is a convolution of its own, with those taps that ever meet such a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.ops.nn.conv_geometry import Window


@dataclass(frozen=True, slots=True)
class Phase:
    """Pixels of an image that the same taps meet; each field is for rows and for columns.

    Attributes:
        to, count: the first pixel, and how many there are. taps: from last to first.
        begin: where in the result the first pixel's window begins, which may be before it. spans: from its first tap to the last.
    """

    to: tuple[int, int]
    count: tuple[int, int]
    taps: tuple[slice, slice]
    begin: tuple[int, int]
    spans: tuple[int, int]


def phases_of(window: Window, size: tuple[int, int]) -> list[Phase]:
    """The phases of an image of this height and width; none has strides together with dilations."""
    rows, columns = (_along(window, axis, size[axis]) for axis in range(2))
    return [
        Phase((r.to, c.to), (r.count, c.count), (r.taps, c.taps), (r.begin, c.begin), (r.span, c.span))
        for r in rows
        for c in columns
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    """A phase along one axis."""

    to: int
    count: int
    taps: slice
    begin: int
    span: int


def _along(window: Window, axis: int, length: int) -> list[_Part]:
    """The phases of one axis."""
    stride, dilation, taps = window.strides[axis], window.dilations[axis], window.taps[axis]
    padding = window.pads(axis, length)[0]
    out = []
    for phase in range(stride):  # pixels of the padded image that are `phase` beyond a multiple of the stride
        first = (phase - padding) % stride
        own = -(-(taps - phase) // stride)
        pixels = -(-(length - first) // stride)
        if own <= 0 or pixels <= 0:
            continue
        span = (own - 1) * dilation + 1
        begin = (first + padding - phase) // stride - (span - 1)
        last = phase + (own - 1) * stride
        stop = phase - stride
        out.append(_Part(first, pixels, slice(last, stop if stop >= 0 else None, -stride), begin, span))
    return out
