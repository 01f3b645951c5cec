"""Compiled convolutions and poolings against the references: every geometry, layout and type."""

import os
from functools import partial
from typing import Any

import numpy as np
import pytest
from planned import by_plan
from reference_interpreter import Interpreter
from window_kernels import kernels_of_node

import dovetail as dt
from dovetail.codegen.cpu.kernels.conv import OPS, conv_kernel
from dovetail.codegen.fusion.window_loops import WINDOW_LOOPS
from dovetail.graph.core.build import apply
from dovetail.graph.core.errors import InternalError

pytest.importorskip("numba")

from dovetail.codegen.cpu.jit import compile_now  # noqa: E402
from dovetail.codegen.cpu.kernels.fused import CpuFusedKernel  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


def compare(graph: Any, tensor: Any, *, tolerance: float = 1e-4) -> Any:
    """Run a tensor's node by its kernel and by the reference; the kernel's result, None where it leaves it to the reference."""
    expected, *inputs = Interpreter(graph).run([tensor, *tensor.op.inputs], {})
    if tensor.op.type in OPS:
        text, call = conv_kernel(tensor.op, 2)
        got = by_plan(partial(call, compile_now(text)), *inputs)
    else:
        got = by_kernels(tensor, dict(zip(tensor.op.inputs, inputs, strict=True)))
    if got is not None:
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True)
    return got


def by_kernels(tensor: Any, values: dict[Any, Any]) -> Any:
    """What the fused kernels of a node give; None where it is left to its reference."""
    for kernel in kernels_of_node(tensor):
        out = CpuFusedKernel(kernel, threads=2, compile_first=True).plans.run([values[t] for t in kernel.inputs], True)
        values |= dict(zip(kernel.outputs, out or (None,), strict=True))
    return values.get(tensor)


def in_layout(n: int, h: int, w: int, c: int, data_format: str) -> tuple[int, ...]:
    return (n, h, w, c) if data_format == "NHWC" else (n, c, h, w)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_arithmetic_on_what_windows_give_is_in_their_kernels(padding: str) -> None:
    """On images of unknown sizes, too, and from the largest pixel's gradient on."""
    rng = np.random.default_rng(0)
    value, filters, bias = (rng.standard_normal(s).astype(np.float32) for s in ((2, 9, 8, 5), (3, 3, 5, 1), (5,)))
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, None, None, 5])
        convolved = dt.nn.relu(dt.nn.bias_add(dt.nn.depthwise_conv2d(x, filters, [1, 1, 1, 1], padding), bias))
        y = dt.tanh(dt.nn.max_pool(convolved, 2, 2, padding) * 0.5)
        (of_x,) = dt.gradients(y, [x])
        kernels = dt.place(dt.get_default_graph(), fetches=y).kernels("cpu:0")
        assert [len(k.nodes) for k in kernels] == [3, 3]
        found = []
        for backend in ("numpy", "numba"):
            with dt.Session(config=dt.ConfigProto(kernel_backend=backend)) as session:
                found.append([session.run([y, of_x], {x: value[:, :high]}) for high in (9, 4)])
    for mine, theirs in zip(*found, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_images_that_do_not_fit_are_left_to_the_reference() -> None:
    """It says what is wrong, as without kernels."""
    with dt.Graph().as_default():
        x, slopes = dt.placeholder(dt.float32, [None, None, None, 3]), dt.placeholder(dt.float32, [None, None, None, 3])
        pool = {
            "ksize": (1, 2, 2, 1),
            "strides": (1, 2, 2, 1),
            "padding": "VALID",
            "explicit_paddings": (),
            "data_format": "NHWC",
        }
        of_x = apply("MaxPoolGrad", (x, slopes, slopes), pool)
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
            image, small = np.ones((2, 6, 6, 3), np.float32), np.ones((2, 2, 3, 3), np.float32)
            with pytest.raises(dt.errors.OpError, match="another shape than the pooled image"):
                session.run(of_x, {x: image, slopes: small})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int32"])
def test_poolings_of_other_types(dtype: str) -> None:
    rng = np.random.default_rng(0)
    with dt.Graph().as_default() as graph:
        x = dt.constant(rng.integers(-9, 9, (2, 7, 6, 5)).astype(dt.as_dtype(dtype).np))
        y = dt.nn.max_pool(x, 3, 2, "SAME")
        assert compare(graph, y) is not None
        if dtype.endswith("16"):
            mean = dt.nn.avg_pool(x, 3, 2, "SAME")
            for tensor in (mean, *dt.gradients([y, mean], [x])):
                if tensor.op.type != "AddN":
                    assert compare(graph, tensor, tolerance=1e-2) is not None


WINDOWS: list[tuple[tuple[int, int], Any, Any, Any]] = [  # taps, strides, dilations, padding (NHWC)
    ((3, 3), 1, 1, "SAME"), ((3, 3), 2, 1, "SAME"), ((5, 4), 1, 1, "VALID"), ((5, 5), (2, 3), 1, "SAME"),
    ((1, 1), 1, 1, "VALID"), ((1, 1), 2, 1, "SAME"), ((2, 2), 3, 1, "VALID"), ((3, 3), 1, 2, "SAME"),
    ((3, 2), 1, (2, 3), "VALID"), ((3, 3), 2, 1, [[0, 0], [2, 1], [1, 0], [0, 0]]),
]  # fmt: skip
SIZES = [(9, 11, 3, 6), (12, 7, 1, 35), (10, 10, 9, 16)]  # height, width, channels in and out


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=lambda t: t.name)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_convolution_and_its_gradients(window: Any, dtype: Any, data_format: str) -> None:
    taps, strides, dilations, padding = window
    if data_format == "NCHW" and isinstance(padding, list):
        padding = [padding[i] for i in (0, 3, 1, 2)]
    rng = np.random.default_rng(0)
    for height, width, inner, outer in SIZES:
        with dt.Graph().as_default() as graph:
            x = dt.constant(rng.standard_normal(in_layout(3, height, width, inner, data_format)).astype(dtype.np))
            w = dt.constant(rng.standard_normal((*taps, inner, outer)).astype(dtype.np))
            y = dt.nn.conv2d(x, w, strides, padding, data_format=data_format, dilations=dilations)
            gradient = dt.constant(rng.standard_normal(y.dims).astype(dtype.np))
            for tensor in (y, *dt.gradients(y, [x, w], gradient)):
                assert compare(graph, tensor) is not None


def type_and_size(case: int, sizes: list[Any], data_format: str) -> tuple[Any, Any]:
    """One of two types and three sizes: each case has both types, and each layout all sizes in both types. Each is compiled anew."""
    dtype = (dt.float64, dt.float32)[(case + (data_format == "NCHW")) % 2]
    return dtype, sizes[(case + 2 * (dtype == dt.float64) + (data_format == "NCHW")) % len(sizes)]


CHANNELS: list[tuple[tuple[int, int], int, int, str]] = [  # taps, stride, dilation, padding
    ((3, 3), 1, 1, "SAME"), ((3, 3), 2, 1, "SAME"), ((5, 4), 1, 1, "VALID"), ((1, 1), 2, 1, "SAME"),
    ((2, 2), 3, 1, "VALID"), ((3, 2), 1, 2, "VALID"),
]  # fmt: skip


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("case", range(len(CHANNELS)))
def test_each_channel_by_itself(case: int, data_format: str) -> None:
    rng = np.random.default_rng(0)
    taps, stride, dilation, padding = CHANNELS[case]
    strides = in_layout(1, stride, stride, 1, data_format)
    sizes = [(9, 11, 3, 1), (12, 7, 35, 1), (10, 10, 4, 3)]
    dtype, (height, width, channels, times) = type_and_size(case, sizes, data_format)
    with dt.Graph().as_default() as graph:
        image = rng.standard_normal(in_layout(3, height, width, channels, data_format))
        x = dt.constant(image.astype(dtype.np))
        w = dt.constant(rng.standard_normal((*taps, channels, times)).astype(dtype.np))
        y = dt.nn.depthwise_conv2d(x, w, strides, padding, data_format=data_format, dilations=[dilation] * 2)
        gradient = dt.constant(rng.standard_normal(y.dims).astype(dtype.np))
        for tensor in (y, *dt.gradients(y, [x, w], gradient)):
            assert compare(graph, tensor) is not None


@pytest.mark.parametrize("channels", [3, 9])
def test_strides_with_dilations_are_left_to_the_reference_where_they_must(channels: int) -> None:
    rng = np.random.default_rng(0)
    with dt.Graph().as_default() as graph:
        x, w = (dt.constant(rng.standard_normal(s)) for s in ((2, 9, 9, channels), (3, 3, channels, 4)))
        y = dt.nn.conv2d(x, w, 2, "SAME", dilations=2)
        of_x, of_w = dt.gradients(dt.reduce_sum(dt.square(y)), [x, w])
        assert compare(graph, y) is not None
        assert compare(graph, of_w) is not None
        assert (compare(graph, of_x) is None) == (channels == 9)  # few channels take another way


POOLS: list[tuple[Any, Any, str]] = [
    (2, 2, "VALID"), (2, 2, "SAME"), (3, 2, "SAME"), (3, 1, "SAME"), ((2, 3), (3, 1), "VALID"), (1, 2, "VALID"),
    (6, 4, "SAME"),
]  # fmt: skip


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("case", range(len(POOLS)))
def test_a_pooling_and_its_gradient(case: int, data_format: str) -> None:
    rng = np.random.default_rng(0)
    dtype, (height, width, channels) = type_and_size(case, [(9, 11, 3), (8, 8, 33), (5, 4, 1)], data_format)
    for special in (None, np.nan, -np.inf):
        with dt.Graph().as_default() as graph:
            # Many pixels are equal: the first largest must be found.
            value = rng.integers(-3, 3, in_layout(3, height, width, channels, data_format)).astype(dtype.np)
            if special is not None:
                value[rng.random(value.shape) < 0.4] = special
                value[0] = special  # no pixel is above padding
            x = dt.constant(value)
            for function in (dt.nn.max_pool, dt.nn.avg_pool) if special is None else (dt.nn.max_pool,):
                y = function(x, *POOLS[case], data_format=data_format)
                gradient = dt.constant(rng.standard_normal(y.dims).astype(dtype.np))
                for tensor in (y, *dt.gradients(y, [x], gradient)):
                    assert compare(graph, tensor) is not None


def test_nothing_is_left_to_the_reference() -> None:
    with dt.Graph().as_default() as graph:
        x, w = dt.constant(np.ones((0, 4, 4, 2), np.float32)), dt.constant(np.ones((3, 3, 2, 5), np.float32))
        y = dt.nn.conv2d(x, w, 1, "SAME")
        for tensor in (y, dt.nn.max_pool(x, 2, 2, "VALID"), *dt.gradients(y, [x, w])):
            assert compare(graph, tensor) is None


def test_a_sum_over_pixels_does_not_depend_on_the_threads() -> None:
    rng = np.random.default_rng(0)
    x, sizes, grad = rng.standard_normal((4, 64, 64, 24)).astype("f"), np.array([3, 3, 24, 32], "i4"), None
    with dt.Graph().as_default():
        a, b = dt.placeholder(dt.float32, x.shape), dt.placeholder(dt.float32, [3, 3, 24, 32])
        y = dt.nn.conv2d(a, b, 1, "SAME")
        grad = rng.standard_normal(y.dims).astype("f")
        (of_b,) = dt.gradients(y, [b])
    results = []
    for threads in (1, 2, 3):
        text, call = conv_kernel(of_b.op, threads)
        results.append(by_plan(partial(call, compile_now(text)), x, sizes, grad))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_the_tile_keeps_its_sums_in_vectors() -> None:
    text, _ = image_kernel_of_a_convolution()
    text += f"\n# compiled for its assembly by process {os.getpid()}\n"  # Numba shows none of what it has loaded
    (assembly,) = compile_now(text).inspect_asm().values()  # type: ignore[attr-defined]
    assert any(word in assembly for word in ("vfmadd", "fmla", "mulps"))


def image_kernel_of_a_convolution() -> Any:
    with dt.Graph().as_default():
        y = dt.nn.conv2d(dt.placeholder(dt.float32, [1, 5, 5, 2]), dt.placeholder(dt.float32, [3, 3, 2, 4]), 1, "SAME")
        return conv_kernel(y.op, 1)


def test_checking_compares_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WINDOW_LOOPS, "MaxPool", WINDOW_LOOPS["AvgPool"])
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [None, 4, 4, 3])
        y = dt.nn.max_pool(x, 2, 2, "VALID", name="pooled")
        config = dt.ConfigProto(kernel_backend="numba", kernel_check=2)
        with dt.Session(graph=graph, config=config) as session, pytest.raises(InternalError, match="'pooled'"):
            session.run(y, {x: np.arange(48, dtype=np.float32).reshape(1, 4, 4, 3)})
