"""Pooling and depthwise convolutions: their numbers in Triton's interpreter, and what they compile to."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from kernel_checks import TARGETS, check, compiles, run
from window_kernels import attrs_of, fused_kernels, given

import dovetail as dt
from dovetail.codegen.gpu.emit.launches import fused, size_names
from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.ir.fused_kernel import FusedKernel, KernelSizes
from dovetail.codegen.target import SM90, Target
from dovetail.graph.core.build import apply
from dovetail.graph.core.dtypes import DType, bfloat16, float16, float32, float64, int8, int64
from dovetail.graph.core.graph import Tensor
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


def routines(kernel: FusedKernel, sized: KernelSizes) -> Sequence[Routine]:
    """Ways to run a kernel for these sizes."""
    return fused(kernel.loops, sized.loops)


def made(tensor: Tensor, feeds: Mapping[Tensor, Any], way: int = 0, operations_per_byte: float = 0.0) -> Any:
    """What the kernels of a program give for a tensor."""
    there = dict(feeds)
    for kernel in fused_kernels(tensor, list(feeds), operations_per_byte):
        sized = kernel.sized([there[t].shape for t in kernel.inputs], {})
        assert sized is not None
        out = [np.full(shape, 9, dtype) for shape, dtype in sized.outputs]
        sizes = dict(zip(size_names(kernel.loops), sized.loops, strict=True)) | sized.numbers
        arrays = {f"in{i}": there[t] for i, t in enumerate(kernel.inputs)} | {f"out{i}": y for i, y in enumerate(out)}
        ways = routines(kernel, sized)
        run(ways[min(way, len(ways) - 1)], arrays, sizes)
        there |= dict(zip(kernel.outputs, out, strict=True))
    return there[tensor]


def pooled(op: str, window: Window, data_format: str, *arrays: Any) -> Any:
    """What the kernels of an op of pooling give."""
    with dt.Graph().as_default():
        told = [dt.constant(np.array(arrays[0], np.int32))] if op == "AvgPoolGrad" else []
        feeds = given(*arrays[len(told) :])
        y = apply(op, (*told, *feeds), attrs_of(window, data_format, pooling=True))
        return made(y, feeds)


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
    laid, slopes = stored(x, data_format), stored(dy, data_format)
    for op, arrays, want in (
        ("MaxPool", (laid,), y),
        ("MaxPoolGrad", (laid, slopes, slopes), dx),
        ("MaxPoolGradGrad", (laid, slopes, stored(like, data_format)), picked),
    ):
        out = pooled(op, window, data_format, *arrays)
        check(out, stored(want.astype(dtype.np), data_format), DIGITS[dtype.name])


def test_nan_is_the_largest() -> None:
    x = np.array([1, np.nan, 3, np.nan], np.float32).reshape(1, 1, 4, 1)
    window = Window((1, 4), (1, 1))
    y = pooled("MaxPool", window, "NHWC", x)
    assert np.isnan(y).all()
    dx = pooled("MaxPoolGrad", window, "NHWC", x, y, np.full_like(y, 5))
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
    laid = stored(x, data_format)
    check(pooled("AvgPool", window, data_format, laid), stored(y, data_format), DIGITS[dtype.name])
    out = pooled("AvgPoolGrad", window, data_format, laid.shape, stored(dy, data_format))
    check(out, stored(dx, data_format), DIGITS[dtype.name])


# --- depthwise convolutions --------------------------------------------------------------------------------------------

DEPTHWISE = {
    "same": (Window((3, 3), (1, 1), padding="SAME"), 1, float32),
    "strides, two filters": (Window((3, 2), (2, 3), padding="SAME"), 2, float32),
    "dilations": (Window((2, 3), (1, 1), (2, 2), "VALID"), 3, float32),
    "many taps": (Window((6, 5), (1, 2), padding="SAME"), 1, float32),
    "float64": (Window((3, 3), (1, 1), padding="SAME"), 1, float64),
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
    digits = {"float64": 1e-14, "float32": 3e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype.name]
    attrs = attrs_of(window, data_format)
    with dt.Graph().as_default():
        image, filter, slopes = feeds = given(laid["x"], w, laid["dy"])
        sizes = [dt.constant(np.array(t.dims, np.int32)) for t in (image, filter)]
        for name, inputs, want in (
            ("DepthwiseConv2dNative", (image, filter), stored(y, data_format)),
            ("DepthwiseConv2dNativeBackpropInput", (sizes[0], filter, slopes), stored(dx, data_format)),
            ("DepthwiseConv2dNativeBackpropFilter", (image, sizes[1], slopes), dw),
        ):
            for way in range(2):
                check(made(apply(name, inputs, attrs), feeds, way), want, digits)


def test_the_gradient_of_a_filter_over_many_positions_is_summed_in_pieces() -> None:
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 90, 80, 2), (2, 89, 79, 2)))
    want = np.array([[(x[:, i : i + 89, j : j + 79] * dy).sum((0, 1, 2)) for j in range(2)] for i in range(2)])
    with dt.Graph().as_default():
        image, slopes = feeds = given(x, dy)
        attrs = attrs_of(Window((2, 2), (1, 1)), "NHWC")
        sizes = dt.constant([2, 2, 2, 1])
        y = apply("DepthwiseConv2dNativeBackpropFilter", (image, sizes, slopes), attrs)
        (kernel,) = fused_kernels(y, list(feeds))
        sized = kernel.sized([x.shape, dy.shape], {})
        assert sized is not None
        assert len(routines(kernel, sized)[0].launches) == 2
        check(made(y, feeds), want[..., None], 3e-6)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_arithmetic_on_what_windows_give_is_in_their_kernels(padding: str) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, 7, 6, 4)).astype(np.float32), rng.standard_normal((3, 3, 4, 1)).astype(np.float32)
    bias = rng.standard_normal(4).astype(np.float32)
    with dt.Graph().as_default():
        image, filter, add = feeds = given(x, w, bias)
        convolved = dt.nn.depthwise_conv2d(image, filter, [1, 1, 1, 1], padding)
        plain = dt.nn.max_pool(image, 3, 2, padding)
        for y, alone in ((dt.nn.relu(convolved + add), convolved), (dt.tanh(plain * add), plain)):
            assert len(fused_kernels(y, list(feeds))) == 1
            by_itself = made(alone, feeds)
            want = np.maximum(by_itself + bias, 0) if alone is convolved else np.tanh(by_itself * bias)
            check(made(y, feeds), want, 2e-6)


def test_arithmetic_before_windows_is_computed_at_their_taps() -> None:
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((2, 7, 6, 4)).astype(np.float32), rng.standard_normal((3, 3, 4, 1)).astype(np.float32)
    bias = rng.standard_normal(4).astype(np.float32)
    with dt.Graph().as_default():
        image, filter, add = feeds = given(x, w, bias)
        before = dt.nn.relu(image + add)
        for y in (
            dt.nn.depthwise_conv2d(before, filter, [1, 2, 2, 1], "SAME") * 2.0,
            dt.nn.max_pool(before - 9.0, 3, 2, "SAME"),
            dt.nn.avg_pool(before, 6, 3, "SAME"),
        ):
            assert len(fused_kernels(y, list(feeds), 1000.0)) == 1
            assert len(fused_kernels(y, list(feeds))) == 2
            check(made(y, feeds, operations_per_byte=1000.0), made(y, feeds), 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_compiles(target: Target) -> None:
    window = Window((3, 3), (2, 2), padding="SAME")
    found: list[Routine] = []

    def add(*fetches: Tensor, operations_per_byte: float = 0.0) -> None:
        for tensor in fetches:
            for kernel in fused_kernels(tensor, operations_per_byte=operations_per_byte):
                sized = kernel.sized([t.dims or () for t in kernel.inputs], {})
                assert sized is not None
                found.extend(routines(kernel, sized)[:1])

    for dtype, data_format, shape in (
        (bfloat16, "NHWC", (32, 56, 56, 64)),
        (float32, "NCHW", (32, 64, 56, 56)),
    )[: None if target is SM90 else 1]:  # the texts do not depend on the target
        with dt.Graph().as_default():
            x, w = dt.placeholder(dtype, shape), dt.placeholder(dtype, (3, 3, 64, 1))
            pool = {"ksize": 3, "strides": 2, "padding": "SAME", "data_format": data_format}
            most, mean = dt.nn.max_pool(x, **pool), dt.nn.avg_pool(x, **pool)
            strides = [1, 1, 2, 2] if data_format == "NCHW" else [1, 2, 2, 1]
            convolved = dt.nn.depthwise_conv2d(x, w, strides, "SAME", data_format=data_format)
            slopes = dt.placeholder(dtype, most.dims)
            (of_most,) = dt.gradients(most, [x], slopes)
            (of_mean,) = dt.gradients(mean, [x], slopes)
            again = apply("MaxPoolGradGrad", (x, slopes, x), attrs_of(window, data_format, pooling=True))
            add(most, mean, dt.nn.relu(convolved), of_most, of_mean, again, *dt.gradients(convolved, [x, w], slopes))
            before = dt.nn.relu(dt.nn.bias_add(x, dt.placeholder(dtype, [64]), data_format=data_format))
            at_taps = (
                dt.nn.max_pool(before, **pool),
                dt.nn.depthwise_conv2d(before, w, strides, "SAME", data_format=data_format),
            )
            count = len(found)
            add(*at_taps, operations_per_byte=1000.0)
            assert len(found) == count + 2  # nothing before the windows is a kernel of its own
    with dt.Graph().as_default():
        add(dt.nn.avg_pool(dt.placeholder(bfloat16, (32, 7, 7, 2048)), 7, 1, "VALID"))
    for routine in found:
        compiles(routine, [target], stack=16)
