"""Convolutions and their gradients by the image: against sums over windows, with every way in which their work is cut."""

import math
from typing import Any

import numpy as np
import pytest
from image_windows import ONE_PIXEL, WINDOWS, Sizes, name_of, window_of
from planned import by_plan

from dovetail.graph.ops.nn.conv_geometry import Window, overlay, patches

pytest.importorskip("numba")

from dovetail.codegen.cpu.emit.instantiate import text_of  # noqa: E402
from dovetail.codegen.cpu.jit import compile_now  # noqa: E402
from dovetail.codegen.cpu.kernels.conv import conv_input, convolve, phases_of  # noqa: E402
from dovetail.codegen.cpu.kernels.gemm import FUNCTIONS  # noqa: E402
from dovetail.codegen.cpu.kernels.microkernel import NR  # noqa: E402
from dovetail.codegen.cpu.schedule import boxes_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


def function(dtype: str) -> Any:
    return compile_now(text_of("kernels/contraction_source", {"contract": FUNCTIONS["contract"]}, dtype))


def check(window: Window, sizes: Sizes, dtype: str = "float32") -> None:
    """The convolution and its gradient are right, and the same for any number of threads."""
    n, height, width, inner, channels = sizes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, height, width, inner)).astype(dtype)
    w = rng.standard_normal((*window.taps, inner, channels)).astype(dtype)
    seen = patches(x, window).astype(np.float64)
    y = rng.standard_normal((*seen.shape[:3], channels)).astype(dtype)
    same(forward, (window, x, w), np.einsum("nrciab,abio->nrco", seen, w.astype(np.float64), optimize=True), dtype)
    if window.strides == (1, 1) or window.dilations == (1, 1):
        parts = np.einsum("nrco,abio->nrciab", y.astype(np.float64), w.astype(np.float64), optimize=True)
        same(by_image, (window, y, w, (height, width)), overlay(parts, height, width, window), dtype)


def same(call: Any, arguments: Any, expected: Any, dtype: str) -> None:
    got = call(*arguments, threads=1)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= (1e-5 if dtype == "float32" else 1e-13) * max(1.0, np.abs(expected).max())
    for threads in (2, 3):
        np.testing.assert_array_equal(call(*arguments, threads=threads), got)


def forward(window: Window, x: Any, w: Any, threads: int) -> Any:
    count = tuple(window.positions(i, x.shape[1 + i]) or 0 for i in range(2))
    begin = tuple(-window.pads(i, x.shape[1 + i])[0] for i in range(2))

    def call(planner: Any, x: Any, w: Any) -> Any:
        y = planner.empty((x.shape[0], *count, w.shape[3]), x.dtype)
        planner.copy(np.broadcast_to(planner.in_memory(np.full(1, np.nan, x.dtype)), y.shape), y)
        convolve(
            planner, function(x.dtype.name), threads, x, w, y, count,  # type: ignore[arg-type]
            taps=w, strides=window.strides, dilations=window.dilations, begin=begin,  # type: ignore[arg-type]
        )  # fmt: skip
        return y

    return by_plan(call, x, w)


def by_image(window: Window, y: Any, w: Any, size: tuple[int, int], threads: int) -> Any:
    """By way of phases, however few channels the image has."""

    def call(planner: Any, y: Any, w: Any) -> Any:
        x = planner.empty((y.shape[0], *size, w.shape[2]), y.dtype)
        planner.clear(x)  # zeros where no tap meets a pixel
        turned = w.transpose(0, 1, 3, 2)
        for p in phases_of(window, size):
            to = x[:, p.to[0] :: window.strides[0], p.to[1] :: window.strides[1]]
            if to.size:
                planner.copy(np.broadcast_to(planner.in_memory(np.full(1, np.nan, y.dtype)), to.shape), to)
            convolve(
                planner, function(y.dtype.name), threads, y, w, x, p.count,
                taps=turned[p.taps], dilations=window.dilations, begin=p.begin, to=p.to, apart=window.strides,
            )  # fmt: skip
        return x

    return by_plan(call, y, w)


@pytest.mark.parametrize(
    ("channels", "dtype"),
    [
        *((n, "float32") for n in (1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 48, 65)),
        *((n, "float64") for n in (1, 7, 8, 9, 17)),
    ],
)
def test_columns_of_all_widths(channels: int, dtype: str) -> None:
    check(window_of((3, 2)), (2, 6, 5, 3, channels), dtype)


@pytest.mark.parametrize("inner", [1, 2, 3, 5, 8, 9, 16, 31], ids="in{}".format)
@pytest.mark.parametrize("window", WINDOWS, ids=name_of)
def test_channels_and_windows(window: Window, inner: int) -> None:
    check(window, (2, 11, 13, inner, 5))


@pytest.mark.parametrize(("window", "sizes"), ONE_PIXEL, ids=str)
def test_one_pixel(window: Window, sizes: Sizes) -> None:
    check(window, sizes)


def test_long_sums_are_cut() -> None:
    check(window_of((3, 3)), (2, 7, 7, 131, 67))
    check(window_of((1, 1)), (3, 5, 7, 1031, 5))
    check(window_of((13, 11)), (1, 17, 19, 7, 6))


@pytest.mark.parametrize(
    "sizes",
    [(1, 2, 5003, 3, 35), (3, 53, 59, 17, 40), (37, 11, 13, 9, 33), (1, 61, 67, 19, 160)],
    ids=["a part of a row", "rows", "images", "batch 1"],
)
def test_boxes(sizes: Sizes) -> None:
    check(window_of((3, 3)), sizes)


def cut(result: tuple[int, int, int, int], inner: int = 64, threads: int = 2, itemsize: int = 4) -> Any:
    """The box, and the number of units."""
    return boxes_of(result, inner, (1, 1), (3, 3), itemsize, threads)


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize(
    "result",
    [
        (1, 1, 1, 1),
        (8, 56, 56, 64),
        (3, 7, 1000, 5),
        (1000, 1, 1, 10),
        (2, 300, 300, 3),
        (8, 7, 7, 512),
        (1, 1, 10**6, 64),
    ],
    ids=str,
)
def test_boxes_cover_the_result(result: tuple[int, int, int, int], threads: int) -> None:
    box, units = cut(result, threads=threads)
    assert math.prod(box[:3]) <= 2048
    assert units == math.prod(
        -(-a // b) for a, b in zip((*result[:3], -(-result[3] // NR["float32"])), box, strict=True)
    )


def test_boxes_are_as_the_caches_want_them() -> None:
    assert cut((8, 56, 56, 64))[0][:3] == (1, 28, 56)
    assert cut((8, 14, 14, 256), 256)[0][:3] == (2, 14, 14)
    deep, units = cut((8, 7, 7, 512), 512)  # all pixels: few of them for many taps
    assert deep[:3] == (8, 7, 7)
    assert units >= 8
    assert cut((8, 56, 56, 64), 4096)[0][1] == 1  # what many channels see would leave the cache
    for threads in (2, 3):  # no thread has a unit more than the others
        assert boxes_of((1, 1, 8 * 56 * 56, 64), 256, (1, 1), (1, 1), 4, threads)[1] % threads == 0


def test_units_are_small_where_a_panel_has_all_taps() -> None:
    """A thread packs the taps once then, and the last unit of one thread does not keep the others waiting."""
    first = (4, 56, 56, 64), 3, (2, 2), (7, 7), 4, 2
    assert boxes_of(*first)[1] == 16
    assert boxes_of(*first, is_one_panel=True)[1] == 76
    wide = (8, 14, 14, 256), 8, (1, 1), (3, 3), 4, 2  # other units have other channels: taps are packed for each
    assert boxes_of(*wide, is_one_panel=True) == boxes_of(*wide)


def test_an_image_that_may_not_be_written() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("f") for s in ((2, 5, 5, 3), (1, 1, 3, 4)))
    for array in (x, w):
        array.flags.writeable = False
    np.testing.assert_allclose(forward(window_of((1, 1)), x, w, 1), x @ w[0, 0], rtol=1e-5)


def test_zeros_where_no_tap_meets_a_pixel() -> None:
    attrs = {"data_format": "NHWC", "strides": (1, 3, 3, 1), "padding": "VALID", "dilations": (1, 1, 1, 1)}
    rng = np.random.default_rng(0)
    w, y = rng.standard_normal((2, 2, 9, 4)).astype("f"), rng.standard_normal((1, 3, 3, 4)).astype("f")

    def call(planner: Any, sizes: Any, w: Any, y: Any) -> Any:
        return conv_input(planner, {"contract": function("float32")}, 1, attrs, sizes, w, y)

    x = by_plan(call, np.array([1, 9, 9, 9]), w, y)
    assert x is not None
    assert not x[:, 2::3].any()
    assert not x[:, :, 2::3].any()
    assert x[:, :2, :2].all()
