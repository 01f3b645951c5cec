"""The gradient of a convolution by its filter: against sums over windows, with every way in which its work is cut."""

import math
from typing import Any

import numpy as np
import pytest
from image_windows import ONE_PIXEL, WINDOWS, Sizes, name_of, window_of
from planned import by_plan

from dovetail.graph.ops.nn.conv_geometry import Window, patches

pytest.importorskip("numba")

from dovetail.codegen.cpu.emit.instantiate import text_of  # noqa: E402
from dovetail.codegen.cpu.jit import compile_now  # noqa: E402
from dovetail.codegen.cpu.kernels.conv import _parts, conv_filter  # noqa: E402
from dovetail.codegen.cpu.kernels.gemm import FUNCTIONS  # noqa: E402
from dovetail.codegen.cpu.schedule import boxes_of, held_by  # noqa: E402
from dovetail.codegen.target import L2_BYTES  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


def made(window: Window, sizes: Sizes, threads: int, dtype: str = "float32") -> tuple[Any, Any]:
    """The gradient, and what it should be."""
    n, height, width, inner, channels = sizes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, height, width, inner)).astype(dtype)
    seen = patches(x, window)
    y = rng.standard_normal((*seen.shape[:3], channels)).astype(dtype)
    pads = [*window.pads(0, height), *window.pads(1, width)]
    attrs = {
        "data_format": "NHWC", "strides": (1, *window.strides, 1), "dilations": (1, *window.dilations, 1), "padding": "EXPLICIT",
        "explicit_paddings": [0, 0, *pads, 0, 0],
    }  # fmt: skip
    function = compile_now(text_of("kernels/contraction_source", {"contract": FUNCTIONS["contract"]}, dtype))

    def call(planner: Any, x: Any, shape: Any, y: Any) -> Any:
        return conv_filter(planner, {"contract": function}, threads, attrs, x, shape, y)

    got = by_plan(call, x, np.array((*window.taps, inner, channels), np.int32), y)
    expected = np.tensordot(seen.astype(np.float64), y.astype(np.float64), ((0, 1, 2), (0, 1, 2))).transpose(1, 2, 0, 3)
    return got, expected


def check(window: Window, sizes: Sizes, dtype: str = "float32") -> None:
    """The gradient is right, and the same for any number of threads."""
    got, expected = made(window, sizes, 1, dtype)
    near = 1e-5 if dtype == "float32" else 1e-13
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= near * np.abs(expected).max()
    for threads in (2, 3):
        np.testing.assert_array_equal(made(window, sizes, threads, dtype)[0], got)


@pytest.mark.parametrize(
    ("channels", "dtype"),
    [*((n, "float32") for n in (1, 2, 7, 8, 15, 16, 17, 33, 48)), *((n, "float64") for n in (1, 7, 8, 9, 17))],
)
def test_columns_of_all_widths(channels: int, dtype: str) -> None:
    check(window_of((3, 2)), (2, 6, 5, 3, channels), dtype)


@pytest.mark.parametrize("inner", [1, 2, 3, 5, 7, 8, 9, 12, 16, 31], ids="in{}".format)
@pytest.mark.parametrize("window", WINDOWS, ids=name_of)
def test_channels_and_windows(window: Window, inner: int) -> None:
    check(window, (2, 11, 13, inner, 5))


@pytest.mark.parametrize(("window", "sizes"), ONE_PIXEL, ids=str)
def test_one_pixel(window: Window, sizes: Sizes) -> None:
    check(window, sizes)


def held(window: Window, sizes: Sizes) -> tuple[int, int]:
    """How many images and rows are summed at a time."""
    n, height, width, inner, channels = sizes
    box, _ = boxes_of((inner, *window.taps, channels), 1, (1, 1), (1, 1), 4, 1, by_filter=True)
    rows, columns = (window.positions(i, (height, width)[i]) or 0 for i in range(2))
    numbers, found = held_by(box, (n, rows, columns), (*window.dilations, *window.strides, 0, 0), 4)
    assert found[0] == 1 or found[1] == rows
    assert numbers * 4 <= L2_BYTES or found == (1, 1)
    return found


def test_how_pixels_are_cut() -> None:
    bands = window_of((3, 3)), (2, 113, 107, 17, 5)
    assert held(*bands)[0] == 1 < held(*bands)[1] < 113
    several = window_of((3, 3), (2, 2)), (37, 27, 25, 9, 5)
    assert 1 < held(*several)[0] < 37
    lines = window_of((9, 9), (1, 1), (31, 31)), (1, 40, 1009, 9, 3)  # one line is more than the cache should hold
    assert held(*lines) == (1, 1)
    for window, sizes in (bands, several, lines, (window_of((3, 3)), (1, 2, 1009, 2, 5))):
        check(window, sizes)


def test_how_filters_are_cut() -> None:
    assert boxes_of((43, 7, 7, 331), 1, (1, 1), (1, 1), 4, 1, by_filter=True)[0][0] < 43
    assert boxes_of((2, 40, 60, 3), 1, (1, 1), (1, 1), 4, 1, by_filter=True)[0][1] < 40
    check(window_of((7, 7)), (1, 5, 6, 43, 331))
    check(window_of((40, 60)), (2, 9, 7, 2, 3))
    check(window_of((1, 1)), (1, 3, 5, 1031, 2))
    check(window_of((1, 1)), (1, 3, 5, 2, 1031))
    check(window_of((3, 3)), (2, 37, 41, 121, 130))
    check(window_of((2, 3)), (5, 23, 19, 3, 32))


def test_the_sum_in_parts() -> None:
    """As many as divide the images; none so small, or of so large filters, that adding them takes long."""
    assert _parts(20, 20 * 31 * 29, 3 * 3 * 3 * 5) == 5
    assert _parts(19, 19 * 31 * 29, 3 * 3 * 3 * 5) == 1
    assert _parts(64, 64**3, 40 * 40 * 32 * 32) == 1
    assert _parts(64, 64**3, 4 * 4 * 32 * 32) == 16
    check(window_of((3, 3)), (20, 31, 29, 3, 5))
    check(window_of((3, 3)), (20, 31, 29, 9, 1))


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("result", [(1, 1, 1, 1), (64, 3, 3, 64), (3, 7, 7, 5), (1000, 1, 1, 10), (2, 30, 300, 3)])
def test_boxes_cover_the_filter(result: tuple[int, int, int, int], threads: int) -> None:
    box, units = boxes_of(result, 1, (1, 1), (1, 1), 4, threads, by_filter=True)
    blocks = math.prod(-(-length // own) for length, own in zip(result[:3], box[:3], strict=True))
    assert units % blocks == 0
