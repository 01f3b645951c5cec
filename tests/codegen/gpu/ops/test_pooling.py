"""Pooling and depthwise convolutions: their numbers in Triton's interpreter, and what they compile to."""

from typing import Any

import numpy as np
import pytest
from kernel_checks import TARGETS, check, compiles, run

from dovetail.codegen.fusion.window_loops import WINDOW_OPS, image_sizes
from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.ops.conv import need_window_type, window_ways
from dovetail.codegen.ir.loop_nest import NotFusibleError
from dovetail.codegen.target import SM90, Target
from dovetail.graph.core.dtypes import DType, bfloat16, bool_, float16, float32, float64, int8, int64
from dovetail.graph.ops.nn.conv_geometry import Window

pytest.importorskip("triton")

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_cache")]

WINDOWS = {
    "valid": Window((2, 2), (2, 2)),
    "same, overlapping": Window((3, 2), (1, 2), padding="SAME"),
    "gaps": Window((1, 2), (2, 3), padding="VALID"),
    "explicit": Window((3, 3), (2, 1), (1, 1), "EXPLICIT", ((1, 2), (0, 1))),
    "many taps": Window((6, 5), (3, 4), padding="SAME"),
}
IMAGE = (2, 6, 7, 3)
DIGITS = {"float64": 1e-14, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2, "int8": 0, "int64": 0}


def stored(x: Any, data_format: str) -> Any:
    """An NHWC image as it lies in memory."""
    return np.ascontiguousarray(np.moveaxis(x, 3, 1)) if data_format == "NCHW" else np.ascontiguousarray(x)


def values(dtype: DType, *shape: int) -> Any:
    """Few different ones, so that windows have several largest pixels."""
    return np.random.default_rng(2).integers(-3, 4, shape).astype(dtype.np)


def windows(window: Window, image: tuple[int, ...]) -> Any:
    """For each position, its taps in order: (number of the tap, pixel), pixel None where it is padding."""
    rows, columns = window.positions(0, image[1]), window.positions(1, image[2])
    (top, _), (left, _) = window.pads(0, image[1]), window.pads(1, image[2])
    for r in range(rows or 0):
        for q in range(columns or 0):
            seen = []
            for i in range(window.taps[0]):
                for j in range(window.taps[1]):
                    h = r * window.strides[0] - top + i * window.dilations[0]
                    w = q * window.strides[1] - left + j * window.dilations[1]
                    inside = 0 <= h < image[1] and 0 <= w < image[2]
                    seen.append(((i, j), (h, w) if inside else None))
            yield (r, q), seen


LAYOUTS = [(w, float32, f) for w in WINDOWS for f in ("NHWC", "NCHW")]
TYPES = [("same, overlapping", d, "NHWC") for d in (float64, float16, bfloat16, int8, int64)]


@pytest.mark.parametrize("name, dtype, data_format", LAYOUTS + TYPES, ids=lambda v: getattr(v, "name", v))
def test_largest(name: str, dtype: DType, data_format: str) -> None:
    window = WINDOWS[name]
    x = values(dtype, *IMAGE)
    rows, columns = window.positions(0, IMAGE[1]), window.positions(1, IMAGE[2])
    dy = values(dtype, IMAGE[0], rows or 0, columns or 0, IMAGE[3])
    y, dx, picked = dy.copy(), np.zeros(IMAGE, np.float64), dy.copy()
    like = x[:, ::-1].copy()
    for p, taps in windows(window, IMAGE):
        for n in range(IMAGE[0]):
            for c in range(IMAGE[3]):
                best = max(
                    (pixel for _, pixel in taps if pixel), key=lambda pixel: (x[n, *pixel, c], (-pixel[0], -pixel[1]))
                )  # noqa: B023
                y[n, *p, c] = x[n, *best, c]
                dx[n, *best, c] += float(dy[n, *p, c])
                picked[n, *p, c] = like[n, *best, c]
    sizes = image_sizes(window, stored(x, data_format).shape, None, data_format)
    arrays = {"in0": stored(x, data_format), "in2": stored(dy, data_format)}
    picks = {**arrays, "in2": stored(like, data_format)}
    for op, given, want in (
        ("MaxPool", arrays, y),
        ("MaxPoolGrad", arrays, dx),
        ("MaxPoolGradGrad", picks, picked),
    ):
        for routine in window_ways(op, dtype, window, sizes, data_format)[:1]:
            out = np.full_like(stored(want.astype(dtype.np), data_format), 9)
            run(routine, {**given, "out0": out}, sizes)
            check(out, stored(want.astype(dtype.np), data_format), DIGITS[dtype.name])


def test_nan_is_the_largest() -> None:
    x = np.array([1, np.nan, 3, np.nan], np.float32).reshape(1, 1, 4, 1)
    window = Window((1, 4), (1, 1))
    out, dx = np.zeros((1, 1, 1, 1), np.float32), np.full_like(x, -1)
    sizes = image_sizes(window, x.shape)
    run(window_ways("MaxPool", float32, window, sizes)[0], {"in0": x, "out0": out}, sizes)
    assert np.isnan(out).all()
    run(
        window_ways("MaxPoolGrad", float32, window, sizes)[0],
        {"in0": x, "in2": np.full_like(out, 5), "out0": dx},
        sizes,
    )
    np.testing.assert_array_equal(dx.ravel(), [0, 5, 0, 0])


@pytest.mark.parametrize("name, dtype, data_format", LAYOUTS + TYPES[:3], ids=lambda v: getattr(v, "name", v))
def test_mean(name: str, dtype: DType, data_format: str) -> None:
    window = WINDOWS[name]
    rng = np.random.default_rng(4)
    x = rng.standard_normal(IMAGE).astype(dtype.np)
    rows, columns = window.positions(0, IMAGE[1]), window.positions(1, IMAGE[2])
    dy = rng.standard_normal((IMAGE[0], rows or 0, columns or 0, IMAGE[3])).astype(dtype.np)
    y, dx = np.zeros(dy.shape), np.zeros(IMAGE)
    for p, taps in windows(window, IMAGE):
        pixels = [pixel for _, pixel in taps if pixel]
        y[:, *p] = np.mean([x[:, *pixel].astype(np.float64) for pixel in pixels], 0)
        for pixel in pixels:
            dx[:, *pixel] += dy[:, *p].astype(np.float64) / len(pixels)
    sizes = image_sizes(window, stored(x, data_format).shape, None, data_format)
    out = np.zeros_like(stored(dy, data_format))
    run(
        window_ways("AvgPool", dtype, window, sizes, data_format)[0],
        {"in0": stored(x, data_format), "out0": out},
        sizes,
    )
    check(out, stored(y, data_format), DIGITS[dtype.name])
    out = np.zeros_like(stored(x, data_format))
    run(
        window_ways("AvgPoolGrad", dtype, window, sizes, data_format)[0],
        {"in0": stored(dy, data_format), "out0": out},
        sizes,
    )
    check(out, stored(dx, data_format), DIGITS[dtype.name])


def test_what_is_not_pooled() -> None:
    with pytest.raises(ValueError, match="no kernel pools bool"):
        need_window_type("MaxPool", bool_)
    with pytest.raises(NotFusibleError, match="division of integers"):
        window_ways("AvgPool", int64, WINDOWS["valid"], image_sizes(WINDOWS["valid"], IMAGE))
    with pytest.raises(ValueError, match="not in float64"):
        need_window_type("DepthwiseConv2dNative", float64)
    with pytest.raises(ValueError, match="count to 2\\^31"):
        image_sizes(WINDOWS["valid"], (1 << 16, 256, 256, 3))


# --- depthwise convolutions --------------------------------------------------------------------------------------------

DEPTHWISE = {
    "same": (Window((3, 3), (1, 1), padding="SAME"), 1, float32),
    "strides, two filters": (Window((3, 2), (2, 3), padding="SAME"), 2, float32),
    "dilations": (Window((2, 3), (1, 1), (2, 2), "VALID"), 3, float32),
    "many taps": (Window((6, 5), (1, 2), padding="SAME"), 1, float32),
    "float16": (Window((3, 3), (2, 2), padding="SAME"), 2, float16),
    "bfloat16": (Window((3, 3), (1, 1), padding="SAME"), 1, bfloat16),
}


@pytest.mark.parametrize(
    ("case", "data_format"),
    [
        *((case, "NHWC") for case in DEPTHWISE.values()),
        (DEPTHWISE["strides, two filters"], "NCHW"),
        (DEPTHWISE["dilations"], "NCHW"),
    ],
    ids=[*DEPTHWISE, "strides, two filters, NCHW", "dilations, NCHW"],
)
def test_depthwise(case: tuple[Window, int, DType], data_format: str) -> None:
    window, multiplier, dtype = case
    rng = np.random.default_rng(8)
    filters = IMAGE[3] * multiplier
    x = rng.standard_normal(IMAGE).astype(dtype.np)
    w = rng.standard_normal((*window.taps, IMAGE[3], multiplier)).astype(dtype.np)
    rows, columns = window.positions(0, IMAGE[1]), window.positions(1, IMAGE[2])
    dy = rng.standard_normal((IMAGE[0], rows or 0, columns or 0, filters)).astype(dtype.np)
    y, dx, dw = np.zeros(dy.shape), np.zeros(IMAGE), np.zeros(w.shape)
    grouped = dy.astype(np.float64).reshape(*dy.shape[:3], IMAGE[3], multiplier)
    for p, taps in windows(window, IMAGE):
        for tap, pixel in taps:
            if pixel is not None:
                seen = x[:, *pixel, :, None].astype(np.float64)
                y[:, *p] += (seen * w[tap].astype(np.float64)).reshape(IMAGE[0], filters)
                dx[:, *pixel] += (grouped[:, *p] * w[tap].astype(np.float64)).sum(-1)
                dw[tap] += (grouped[:, *p] * seen).sum(0)
    laid = {"x": stored(x, data_format), "dy": stored(dy, data_format)}
    sizes = image_sizes(window, laid["x"].shape, filters, data_format, depthwise=True)
    digits = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype.name]
    for name, first, second, want in (
        ("DepthwiseConv2dNative", laid["x"], w, stored(y, data_format)),
        ("DepthwiseConv2dNativeBackpropInput", w, laid["dy"], stored(dx, data_format)),
        ("DepthwiseConv2dNativeBackpropFilter", laid["x"], laid["dy"], dw),
    ):
        for routine in window_ways(name, dtype, window, sizes, data_format, multiplier)[:2]:
            out = np.full(want.shape, 9, dtype.np)
            run(routine, {"in0": first, "in1": second, "out0": out}, sizes)
            check(out, want, digits)


def test_the_gradient_of_a_filter_over_many_positions_is_summed_in_pieces() -> None:
    window, image = Window((2, 2), (1, 1)), (2, 90, 80, 2)
    sizes = image_sizes(window, image, 2, depthwise=True)
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal(image), rng.standard_normal((2, 89, 79, 2))
    want = np.array([[(x[:, i : i + 89, j : j + 79] * dy).sum((0, 1, 2)) for j in range(2)] for i in range(2)])
    first, *_ = window_ways("DepthwiseConv2dNativeBackpropFilter", float32, window, sizes)
    assert len(first.launches) == 2
    out = np.zeros((2, 2, 2), np.float32)
    run(first, {"in0": x.astype(np.float32), "in1": dy.astype(np.float32), "out0": out}, sizes)
    check(out, want, 3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_compiles(target: Target) -> None:
    window = Window((3, 3), (2, 2), padding="SAME")
    made: list[Routine] = []
    for dtype, data_format, image in (
        (bfloat16, "NHWC", (32, 56, 56, 64)),
        (float32, "NCHW", (32, 64, 56, 56)),
    )[: None if target is SM90 else 1]:  # the texts do not depend on the target
        sizes = image_sizes(window, image, data_format=data_format)
        made += [way for name in WINDOW_OPS for way in window_ways(name, dtype, window, sizes, data_format)[:1]]
    whole = Window((7, 7), (1, 1))
    sizes = image_sizes(whole, (32, 7, 7, 2048))
    made += window_ways("AvgPool", bfloat16, whole, sizes)[:1]
    for routine in made:
        compiles(routine, [target], stack=16)
