"""Compiled sums over segments and running sums, against the references."""

from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.row_kernels import row_kernel
from dovetail.graph.interpret import Interpreter

pytest.importorskip("numba")

from dovetail.codegen.kernel_cache import compile_now  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")

RNG = np.random.default_rng(0)


def compiled(tensor: Any, threads: int = 2) -> tuple[Any, Any]:
    """A tensor's value by its node's kernel, and by the reference."""
    expected, *inputs = Interpreter(tensor.graph).run([tensor, *tensor.op.inputs], {})
    text, call = row_kernel(tensor.op, threads) or pytest.fail(f"{tensor.op.type} has no kernel")
    got = call(compile_now(text), *inputs)
    assert got is None or (got.dtype, got.shape) == (expected.dtype, expected.shape)
    return got, expected


def values(shape: Any, dtype: str) -> Any:
    return (
        RNG.standard_normal(shape).astype(dtype) if dtype.startswith("f") else RNG.integers(-9, 9, shape).astype(dtype)
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("function", [dt.cumsum, dt.cumprod])
def test_running_sums_have_the_reference_s_bits(function: Any, dtype: str) -> None:
    for shape, axis in [((7,), 0), ((3, 40), 1), ((40, 33), 0), ((2, 5, 17), 1), ((2, 5, 17), -1), ((1, 1), 0)]:
        for reverse in (False, True):
            for exclusive in (False, True):
                with dt.Graph().as_default():
                    got, expected = compiled(function(dt.constant(values(shape, dtype)), axis, exclusive, reverse))
                np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_sums_over_segments(dtype: str) -> None:
    for shape, rows in [((50, 37), 1), ((50,), 1), ((6, 5, 200), 2), ((400, 3, 5), 1)]:
        ids = RNG.integers(-1, 9, shape[:rows])
        for kind in (np.int32, np.int64):
            with dt.Graph().as_default():
                got, expected = compiled(dt.math.unsorted_segment_sum(values(shape, dtype), ids.astype(kind), 11))
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_threads_share_columns_and_change_nothing() -> None:
    with dt.Graph().as_default():
        y = dt.math.unsorted_segment_sum(values((3000, 1000), "float32"), RNG.integers(0, 50, 3000), 50)
        np.testing.assert_array_equal(compiled(y, 1)[0], compiled(y, 3)[0])


def test_what_is_wrong_is_left_to_the_reference() -> None:
    with dt.Graph().as_default():
        ids, data = dt.placeholder(dt.int32, [None]), dt.placeholder(dt.float32, [None, 2])
        y = dt.math.unsorted_segment_sum(data, ids, 4)
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
            assert session.run(y, {ids: [0, 3, 3], data: np.ones((3, 2))}).sum() == 6
            with pytest.raises(dt.errors.InvalidArgumentError, match=r"segment id 4 is not in \[0, 4\)"):
                session.run(y, {ids: [4], data: np.ones((1, 2))})
            assert session.run(y, {ids: [], data: np.ones((0, 2))}).sum() == 0
