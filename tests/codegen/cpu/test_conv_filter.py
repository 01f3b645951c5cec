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
from dovetail.codegen.cpu.kernels.conv import OPS, Cuts, cuts_of, filter_gradient  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


def made(window: Window, sizes: Sizes, threads: int, dtype: str = "float32") -> tuple[Any, Any, Cuts]:
    """The gradient, what it should be, and how its work was cut."""
    n, height, width, inner, channels = sizes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, height, width, inner)).astype(dtype)
    seen = patches(x, window)
    y = rng.standard_normal((*seen.shape[:3], channels)).astype(dtype)
    function = compile_now(text_of("kernels/conv_filter_source", OPS["Conv2DBackpropFilter"][2], dtype))
    got = by_plan(lambda planner, *xy: filter_gradient(planner, function, threads, window, *xy), x, y)
    expected = np.tensordot(seen.astype(np.float64), y.astype(np.float64), ((0, 1, 2), (0, 1, 2))).transpose(1, 2, 0, 3)
    return got, expected, cuts_of(y.shape, inner, window, x.itemsize)


def check(window: Window, sizes: Sizes, dtype: str = "float32") -> Cuts:
    """The gradient is right, and the same for any number of threads."""
    got, expected, cuts = made(window, sizes, 1, dtype)
    near = 1e-5 if dtype == "float32" else 1e-13
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= near * np.abs(expected).max()
    for threads in (2, 3):
        np.testing.assert_array_equal(made(window, sizes, threads, dtype)[0], got)
    return cuts


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


def test_how_pixels_are_cut() -> None:
    parts = check(window_of((3, 3)), (1, 2, 1009, 2, 5))  # a row is longer than a box
    assert parts.box[0] == parts.box[1] == 1
    assert parts.boxes[2] > 1
    bands = check(window_of((3, 3)), (2, 53, 47, 3, 5))  # a box is a part of an image
    assert bands.boxes[1] > 1
    assert bands.box[1] > 1
    whole = check(window_of((3, 3), (2, 2)), (37, 7, 5, 3, 5))  # a box is several images
    assert whole.box[0] > 1
    assert whole.boxes[0] > 1
    chunks = check(window_of((3, 3)), (19, 31, 29, 3, 5))
    assert chunks.chunks > 1
    dilated = check(window_of((9, 9), (1, 1), (31, 31)), (1, 40, 300, 9, 3))  # a box sees much
    assert math.prod(dilated.box) < 256


def test_how_channels_are_cut() -> None:
    cuts = check(window_of((7, 7)), (1, 5, 6, 43, 331))
    assert cuts.inner < 43
    assert cuts.columns < 331
    check(window_of((1, 1)), (1, 3, 5, 1031, 2))
    check(window_of((1, 1)), (1, 3, 5, 2, 1031))
    check(window_of((3, 3)), (2, 37, 41, 121, 130))
    check(window_of((2, 3)), (5, 23, 19, 3, 32))  # one panel, as it lies, with the next box asked for


@pytest.mark.parametrize("result", [(1, 1, 1, 1), (8, 56, 56, 64), (3, 7, 1000, 5), (1000, 1, 1, 10), (2, 300, 300, 3)])
def test_boxes_cover_the_result(result: tuple[int, int, int, int]) -> None:
    cuts = cuts_of(result, 16, window_of((3, 3)), 4)
    for length, own, count in zip(result, cuts.box, cuts.boxes, strict=False):
        assert own * (count - 1) < length <= own * count
    assert cuts.chunks <= math.prod(cuts.boxes)


def test_parts_of_a_large_filter_take_little_memory() -> None:
    cuts = cuts_of((64, 64, 64, 32), 32, window_of((40, 40)), 4)
    assert cuts.chunks * 40 * 40 * 32 * 32 * 4 <= 1 << 24
    assert cuts_of((64, 64, 64, 32), 32, window_of((4, 4)), 4).chunks > 1
