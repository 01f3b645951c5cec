"""Pooling over windows, and over whole pictures."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from ....graph.core.build import constant
from ....graph.core.graph import Tensor
from ....graph.ops.array.padding import pad
from ....graph.ops.math.arithmetic import absolute, add, divide, maximum, power
from ....graph.ops.math.reduce import reduce_max, reduce_mean, reduce_sum
from ....graph.ops.nn.pooling import avg_pool, max_pool
from ..registry import Call, UnsupportedError, imports
from .windows import Windows, as_before, as_picture, windows_of


def _windows(call: Call, x: Tensor) -> Windows:
    return windows_of(call, x, tuple(call.attr("kernel_shape")))


def _how(windows: Windows) -> dict[str, Any]:
    padding: Any = "SAME" if windows.pads is None else windows.explicit()
    return {"ksize": windows.taps, "strides": windows.strides, "padding": padding, "data_format": "NCHW"}


def _each(x: Tensor, windows: Windows, fill: Any) -> list[Tensor]:
    """What each tap sees of the picture."""
    around = windows.explicit()
    padded = pad(x, around, constant_values=constant(np.array(fill, x.dtype.base.np))) if np.any(around) else x
    return [padded[seen] for seen in windows.each_tap()]


@imports("MaxPool")
def max_pool_(call: Call, x: Tensor) -> Tensor:
    """The largest pixel; padding is never the largest."""
    if call.wants(1):
        raise UnsupportedError("the output Indices")
    windows, image = _windows(call, x), as_picture(x)
    if windows.dilations == (1, 1):
        return as_before(max_pool(image, **_how(windows)), x)
    lowest = -np.inf if x.dtype.base.is_floating else x.dtype.base.min
    return as_before(reduce(maximum, _each(image, windows, lowest)), x)


@imports("AveragePool")
def average_pool(call: Call, x: Tensor) -> Tensor:
    """The mean; padding counts with `count_include_pad` only, elements beyond it never."""
    windows, image = _windows(call, x), as_picture(x)
    if windows.dilations != (1, 1):
        total = reduce(add, _each(image, windows, 0))
        high, wide = (windows.sizes[a] for a in (0, 1))
        around = windows.explicit()
        inner = np.ones((1, 1, high or 0, wide or 0))
        if call.attr("count_include_pad", 0):
            inner = np.pad(inner, [(0, 0), (0, 0), *map(windows.around, (0, 1))], constant_values=1)
            around = [[0, 0], [0, 0], [0, windows.beyond(0)], [0, windows.beyond(1)]]
        ones = np.pad(inner, around)
        counts = sum(ones[seen] for seen in windows.each_tap())
        return as_before(divide(total, constant(np.asarray(counts, x.dtype.base.np))), x)
    how = _how(windows)
    if call.attr("count_include_pad", 0):
        pads = [(0, 0), (0, 0), *map(windows.around, (0, 1))]
        image = pad(image, pads)
        how["padding"] = [[0, 0], [0, 0], [0, windows.beyond(0)], [0, windows.beyond(1)]]
    return as_before(avg_pool(image, **how), x)


@imports("LpPool")
def lp_pool(call: Call, x: Tensor) -> Tensor:
    """The p-norm of each window."""
    p, windows = call.attr("p", 2), _windows(call, x)
    taps = _each(power(absolute(as_picture(x)), float(p)), windows, 0)
    return as_before(power(reduce(add, taps), 1.0 / p), x)


def _picture_axes(call: Call, x: Tensor) -> list[int]:
    return list(range(2, len(call.dims(x))))


@imports("GlobalAveragePool")
def global_average_pool(call: Call, x: Tensor) -> Tensor:
    """The mean of each channel."""
    return reduce_mean(x, _picture_axes(call, x), True)


@imports("GlobalMaxPool")
def global_max_pool(call: Call, x: Tensor) -> Tensor:
    """The largest pixel of each channel."""
    return reduce_max(x, _picture_axes(call, x), True)


@imports("GlobalLpPool")
def global_lp_pool(call: Call, x: Tensor) -> Tensor:
    """The p-norm of each channel."""
    p = call.attr("p", 2)
    return power(reduce_sum(power(absolute(x), float(p)), _picture_axes(call, x), True), 1.0 / p)
