"""Image resizing.

Each axis is resized separately. Each index of the result maps to a coordinate in the input, and its value is a weighted sum of the
neighbors of this coordinate. The indices and weights are computed once in NumPy, for all modes of the standard. The graph only gathers
slices and adds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....graph.core.build import constant
from ....graph.core.dtypes import float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.gather import gather
from ....graph.ops.math.arithmetic import add, multiply
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import where_v2
from ..registry import Array, Call, UnsupportedError, imports, normalize_axis

# (index in the result, its size, size of the input, scale, start and end of the crop) -> coordinate in the input
_COORDINATES: dict[str, Callable[..., Array]] = {
    "half_pixel": lambda x, new, old, scale, crop: (x + 0.5) / scale - 0.5,
    "half_pixel_symmetric": lambda x, new, old, scale, crop: (
        old / 2 * (1 - new / (scale * old)) + (x + 0.5) / scale - 0.5
    ),
    "pytorch_half_pixel": lambda x, new, old, scale, crop: (x + 0.5) / scale - 0.5 if new > 1 else x * 0,
    "align_corners": lambda x, new, old, scale, crop: x * (old - 1) / (new - 1) if new > 1 else x * 0,
    "asymmetric": lambda x, new, old, scale, crop: x / scale,
    "tf_crop_and_resize": lambda x, new, old, scale, crop: (
        crop[0] * (old - 1) + x * (crop[1] - crop[0]) * (old - 1) / (new - 1)
        if new > 1
        else x * 0 + 0.5 * (crop[0] + crop[1]) * (old - 1)
    ),
}

_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _triangle(x: Any) -> Any:
    return np.clip(1 - np.abs(x), 0, 1)


def _cubic(x: Any, a: float) -> Any:
    """Returns Keys' cubic kernel (1981)."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


@imports("Resize", "Upsample", static=(1, 2, 3))
def resize(
    call: Call, x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None, sizes: Tensor | None = None
) -> Tensor:
    """Imports resizing by scale factors, or to given sizes."""
    if scales is None and sizes is None and roi is not None:  # before opset 11 the factors were the second input
        roi, scales = None, roi
    rank = len(call.dims(x))
    axes = [normalize_axis(a, rank) for a in call.attr("axes") or range(rank)]
    old = [call.dims(x)[a] for a in axes]
    factors, new = _target(call, old, scales, sizes)
    mode = call.choice("mode", "nearest", "linear", "cubic", "bilinear")
    crop = call.static(roi, "roi")
    dtype = x.dtype.base
    made: Tensor = x if mode == "nearest" or dtype.is_floating else cast(x, float32)
    for i, axis in enumerate(axes):
        if factors[i] == 1.0 and new[i] in (old[i], None) and (crop is None or not crop.size):
            continue
        size = old[i]
        if size is None or new[i] is None:
            raise UnsupportedError(f"axis {axis} has a size that is known only when the graph runs")
        window = (0.0, 1.0) if crop is None or not crop.size else (float(crop[i]), float(crop[i + len(axes)]))
        made = _resized(call, made, axis, size, int(new[i] or 0), factors[i], mode, window)
    back: Tensor = made if made.dtype.base is dtype else cast(made, dtype)
    return back


def _target(
    call: Call, old: list[int | None], scales: Tensor | None, sizes: Tensor | None
) -> tuple[list[float], list[int | None]]:
    """Returns the scale factors and the new sizes of the axes."""
    given = call.static(scales, "scales") if scales is not None else call.attr("scales")
    if given is not None and len(given):
        factors = [float(s) for s in given]
        return factors, [None if n is None else math.floor(n * f) for n, f in zip(old, factors, strict=True)]
    wanted = call.static(sizes, "sizes")
    if wanted is None:
        raise UnsupportedError("neither scales nor sizes")
    new: list[int | None] = [int(n) for n in wanted]
    if None in old and any(o != n for o, n in zip(old, new, strict=True) if o is not None):
        raise UnsupportedError("sizes for axes whose own are known only when the graph runs")
    factors = [1.0 if o is None or n is None else n / o for o, n in zip(old, new, strict=True)]
    policy = call.choice("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
    if policy != "stretch":
        one = min(factors) if policy == "not_larger" else max(factors)
        return [one] * len(old), [None if n is None else math.floor(n * one + 0.5) for n in old]
    return factors, new


def _resized(
    call: Call, x: Tensor, axis: int, old: int, new: int, scale: float, mode: str, crop: tuple[float, float]
) -> Tensor:
    """Resizes x along one axis."""
    default = "half_pixel" if call.opset >= 11 and call.op == "Resize" else "asymmetric"
    way = call.choice("coordinate_transformation_mode", default, *_COORDINATES)
    # With scale factors, the standard's formulas use the size before it is rounded down.
    exact = scale * old
    length = new if way == "half_pixel_symmetric" or abs(exact - new) < 1e-6 else exact
    places = _COORDINATES[way](np.arange(new, dtype=np.float64), length, old, scale, crop)
    if mode == "nearest":
        default = "round_prefer_floor" if call.opset >= 11 and call.op == "Resize" else "floor"
        at = np.clip(_NEAREST[call.choice("nearest_mode", default, *_NEAREST)](places), 0, old - 1)
        made = gather(x, constant(at.astype(np.int32)), axis=axis)
    else:
        made = _weighted(call, x, axis, old, scale, mode, places)
    outside = (places < 0) | (places > old - 1)
    if way == "tf_crop_and_resize" and outside.any():
        shown = np.reshape(outside, [-1 if a == axis else 1 for a in range(len(call.dims(x)))])
        made = where_v2(constant(shown), _number(call.attr("extrapolation_value", 0.0), x), made)
    return made


def _weighted(call: Call, x: Tensor, axis: int, old: int, scale: float, mode: str, places: Array) -> Tensor:
    """Returns weighted sums of the neighbors of each coordinate."""
    a = call.attr("cubic_coeff_a", -0.75)
    kernel: Any = (lambda t: _cubic(t, a)) if mode == "cubic" else _triangle
    narrow = min(scale, 1.0) if call.attr("antialias", 0) else 1.0
    reach = math.ceil((2 if mode == "cubic" else 1) / narrow)
    taps = np.floor(places)[:, None] + np.arange(1 - reach, reach + 1)
    weights = kernel((taps - places[:, None]) * narrow)
    if call.attr("exclude_outside", 0):
        weights = np.where((taps < 0) | (taps > old - 1), 0.0, weights)
    weights /= weights.sum(1, keepdims=True)
    at = np.clip(taps, 0, old - 1).astype(np.int32)
    shown = [-1 if i == axis else 1 for i in range(len(call.dims(x)))]
    total: Tensor | None = None
    for t in range(taps.shape[1]):
        if len(weights) and not weights[:, t].any():
            continue
        part = gather(x, constant(at[:, t]), axis=axis)
        part = multiply(part, constant(weights[:, t].reshape(shown).astype(x.dtype.base.np)))
        total = part if total is None else add(total, part)
    assert total is not None  # the weights of an index sum to 1
    return total


def _number(value: float, x: Tensor) -> Tensor:
    return constant(np.array(value, x.dtype.base.np))
