"""Compiled sums over segments, running sums, bands and ranks as parts of kernels, against the references."""

from typing import Any

import numpy as np
import pytest
from reference_interpreter import Interpreter

import dovetail as dt

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")

RNG = np.random.default_rng(0)


def values(shape: Any, dtype: str) -> Any:
    return (
        RNG.standard_normal(shape).astype(dtype) if dtype.startswith("f") else RNG.integers(-9, 9, shape).astype(dtype)
    )


def by_one_kernel(fetches: Any, feeds: Any) -> list[tuple[Any, Any]]:
    """Each value, by one kernel, and by the references."""
    wanted = Interpreter(fetches[0].graph).run(fetches, feeds)
    with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as session:
        assert len(session.plan(fetches, feeds).kernels("cpu:0")) == 1
        got = session.run(fetches, feeds)
    for mine, theirs in zip(got, wanted, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
    return list(zip(got, wanted, strict=True))


@pytest.mark.parametrize(("axis", "dtype"), [(0, "float32"), (0, "int64"), (1, "float64"), (1, "int32")])
def test_running_sums_have_the_reference_s_bits(axis: int, dtype: str) -> None:
    for reverse in (False, True):
        with dt.Graph().as_default():
            x = dt.placeholder(dtype, [None, None])
            made = [f(x, axis, exclusive, reverse) for f in (dt.cumsum, dt.cumprod) for exclusive in (False, True)]
            for shape in [(7, 1), (1, 7), (40, 33), (3, 9001), (0, 3), (3, 0)]:
                for mine, theirs in by_one_kernel(made, {x: values(shape, dtype)}):
                    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums_are_part_of_what_is_around_them(axis: int) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 5000])
        first = dt.cumsum(dt.tanh(x) * 0.5, axis, reverse=True)
        second = dt.cumsum(first - dt.reduce_max(first, axis, keepdims=True), axis, exclusive=True, reverse=True)
        fetches = [first, second * 2.0, dt.reduce_sum(second, axis)]
        for mine, theirs in by_one_kernel(fetches, {x: values((6, 5000), "float32")}):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def test_running_sums_of_narrow_floats_are_rounded_once() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.bfloat16, [None, 300])
        ((mine, theirs),) = by_one_kernel([dt.cumsum(x, 1)], {x: np.full((20, 300), 0.01, dt.bfloat16.np)})
        np.testing.assert_array_equal(mine, theirs)


def test_what_goes_both_ways_or_along_two_axes_is_two_kernels() -> None:
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [300, 400])
        forward, back, down = dt.cumsum(x, 1), dt.cumsum(x, 1, reverse=True), dt.cumsum(x, 0)
        both = dt.place(graph, fetches=[forward + 1.0, back + 1.0, down + 1.0, dt.reduce_sum(forward)])
        assert len(both.kernels("cpu:0")) == 4


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_sums_over_segments(dtype: str) -> None:
    for shape, rows in [((50, 37), 1), ((50,), 1), ((6, 5, 200), 2), ((400, 3, 5), 1)]:
        given = RNG.integers(-1, 9, shape[:rows])
        kind = np.int32 if dtype.endswith("32") else np.int64
        with dt.Graph().as_default():
            data, ids = dt.placeholder(dtype, shape), dt.placeholder(kind, given.shape)
            y = dt.math.unsorted_segment_sum(data, ids, 11)
            ((mine, theirs),) = by_one_kernel([y], {data: values(shape, dtype), ids: given.astype(kind)})
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_threads_share_columns_and_change_nothing() -> None:
    with dt.Graph().as_default():
        data, ids = dt.placeholder(dt.float32, [3000, 1000]), dt.placeholder(dt.int32, [3000])
        y = dt.math.unsorted_segment_sum(data, ids, 50)
        feeds = {data: values((3000, 1000), "float32"), ids: RNG.integers(0, 50, 3000)}
        made = []
        for threads in (1, 3):
            config = dt.ConfigProto(kernel_backend="numba", intra_op_parallelism_threads=threads)
            with dt.Session(config=config) as session:
                made.append(session.run(y, feeds))
        np.testing.assert_array_equal(*made)


def test_what_is_wrong_is_left_to_the_reference() -> None:
    with dt.Graph().as_default():
        ids, data = dt.placeholder(dt.int32, [None]), dt.placeholder(dt.float32, [None, 2])
        y = dt.math.unsorted_segment_sum(data, ids, 4)
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
            assert session.run(y, {ids: [0, 3, 3], data: np.ones((3, 2))}).sum() == 6
            with pytest.raises(dt.errors.InvalidArgumentError, match=r"segment_ids\[0\] = 4 is not in \[0, 4\)"):
                session.run(y, {ids: [4], data: np.ones((1, 2))})
            assert session.run(y, {ids: [], data: np.ones((0, 2))}).sum() == 0


def test_what_makes_rows_is_part_of_the_kernel_that_adds_them() -> None:
    with dt.Graph().as_default() as graph:
        x, ids = dt.placeholder(dt.float32, [None, 70]), dt.placeholder(dt.int64, [None])
        rows = dt.tanh(x) * 2.0
        y = dt.math.unsorted_segment_sum(rows, ids, 40)
        for i in ([0, 39, 39, 3], [-1, 5, -1, 5], [2] * 3000):
            ((mine, theirs),) = by_one_kernel([y], {x: values((len(i), 70), "float32"), ids: i})
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-3)
        # Rows that somebody else takes are made before.
        assert len(dt.place(graph, fetches=[y, rows + 1.0]).kernels("cpu:0")) == 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_bands_are_part_of_what_is_around_them(dtype: str, index: str) -> None:
    with dt.Graph().as_default():
        x, lower, upper = dt.placeholder(dtype, [None, None, None]), *(dt.placeholder(index, []) for _ in range(2))
        y = dt.matrix_band_part(dt.zeros_like(x) if dtype == "bool" else x + x, lower, upper)
        for shape in [(1, 7, 9), (3, 9, 7), (2, 40, 33)]:
            value = (RNG.standard_normal(shape) * 9).astype(dtype)
            if dtype.startswith("f"):
                value[:, 0, -3:], value[:, -1, :2] = [np.nan, np.inf, -np.inf], -0.0
            for low, high in [(0, 0), (-1, 0), (0, -1), (2, 3), (-1, -1), (-5, 30), (2**31 - 1, 1)]:
                ((mine, theirs),) = by_one_kernel([y], {x: value, lower: low, upper: high})
                assert mine.tobytes() == theirs.tobytes()
                row, column = np.ogrid[: shape[1], : shape[2]]
                inside = (low < 0) | (row - low <= column), (high < 0) | (column <= row + high)
                twice = np.zeros_like(value) if dtype == "bool" else value + value
                np.testing.assert_array_equal(mine, np.where(inside[0] & inside[1], twice, np.zeros((), dtype)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_labels_among_the_largest(dtype: str) -> None:
    """With numbers that are equal, not finite, or denormal, and labels out of range."""
    with dt.Graph().as_default():
        x, labels, k = dt.placeholder(dtype, [None, 33]), dt.placeholder("int32", [None]), dt.placeholder("int32", [])
        y = dt.nn.in_top_k(x * 0.5, labels, k)
        value = (RNG.integers(-4, 5, (200, 33)) * np.finfo(dtype).tiny).astype(dtype)
        value[100:] = RNG.standard_normal((100, 33))
        value[::9, 5], value[::11, 7], value[::13, 9], value[::3, 1] = np.nan, np.inf, -np.inf, -0.0
        wanted = RNG.integers(-2, 36, 200).astype(np.int32)
        half = value * np.asarray(0.5, dtype)
        for limit in (0, 1, 3, 33):
            ((mine, theirs),) = by_one_kernel([y], {x: value, labels: wanted, k: limit})
            ranks = [
                (r > r[i]).sum() if 0 <= i < 33 and np.isfinite(r).all() else 99
                for r, i in zip(half, wanted, strict=True)
            ]
            np.testing.assert_array_equal(mine, theirs)
            np.testing.assert_array_equal(mine, np.array(ranks) < limit)
