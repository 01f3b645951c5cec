"""Images in the form that compiled loops want: channels last, with the padding that windows see."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ....graph.ops.nn.conv_geometry import Window
from ..native.recorder import Doer

Array: TypeAlias = np.ndarray[Any, Any]


def padded(doer: Doer, x: Array, before: tuple[int, int], sizes: tuple[int, int], threads: int = 1) -> Array:
    """An image with zeros around it, `sizes` pixels in all (what lies beyond is cut off); as it is when nothing changes."""
    n, height, width, c = x.shape
    if before == (0, 0) and sizes == (height, width):
        return doer.ordered(x)
    out = doer.empty((n, *sizes, c), x.dtype)
    (top, left), (high, wide) = before, sizes
    bottom, right = min(high, top + height), min(wide, left + width)
    doer.clear(out[:, :top])
    doer.clear(out[:, bottom:])
    doer.clear(out[:, top:bottom, :left])
    doer.clear(out[:, top:bottom, right:])
    doer.put(x[:, : bottom - top, : right - left], out[:, top:bottom, left:right], threads)
    return out


def windowed(doer: Doer, x: Array, window: Window, threads: int = 1) -> Array:
    """The image with the window's padding: all that the windows see."""
    before = (window.pads(0, x.shape[1])[0], window.pads(1, x.shape[2])[0])
    seen = [((window.positions(i, x.shape[1 + i]) or 0) - 1) * window.strides[i] + window.span(i) for i in range(2)]
    return padded(doer, x, before, (seen[0], seen[1]), threads)


def repeated(doer: Doer, x: Array, times: int) -> Array:
    """An image with each channel so many times."""
    if times == 1:
        return x
    out = doer.empty((*x.shape, times), x.dtype)
    doer.put(np.broadcast_to(x[..., None], out.shape), out)
    return out.reshape(*x.shape[:3], -1)


def as_layout(doer: Doer, x: Array, data_format: str) -> Array:
    """An image `[n, h, w, c]` in the order of `data_format`."""
    return doer.ordered(np.moveaxis(x, 3, 1)) if data_format == "NCHW" else x
