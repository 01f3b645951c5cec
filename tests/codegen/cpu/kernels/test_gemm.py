"""Compiled matrix products against NumPy's: shapes around the blocks' edges, both orders of both operands, batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.cpu.kernels.gemm import ProductKernel

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")


def operands(shape: Sequence[int], flips: Sequence[bool], dtype: Any, batch: Sequence[int] = ()) -> tuple[Any, Any]:
    m, k, n = shape
    rng = np.random.default_rng(m * n)
    a = rng.standard_normal((*batch, k, m) if flips[0] else (*batch, m, k)).astype(dtype)
    return a, rng.standard_normal((*batch, n, k) if flips[1] else (*batch, k, n)).astype(dtype)


def product(a: Any, b: Any, flips: Sequence[bool], threads: int = 2) -> Any:
    with dt.Graph().as_default():
        y = dt.matmul(dt.placeholder(a.dtype, a.shape), dt.placeholder(b.dtype, b.shape), *flips)
        kernel = ProductKernel(y.op, left_to_blas, threads, False)
    kernel.compile()
    return kernel(a, b)


def left_to_blas(a: Any, b: Any) -> None:
    """The reference: there is no result."""


def exact(a: Any, b: Any, flips: Sequence[bool]) -> Any:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a.swapaxes(-1, -2) if flips[0] else a) @ (b.swapaxes(-1, -2) if flips[1] else b)


FLIPS = [(False, False), (True, False), (False, True), (True, True)]
SHAPES = [(64, 400, 120), (97, 257, 33), (6, 1000, 101), (1, 700, 640), (1, 300, 2001), (1, 70, 9001), (1501, 300, 1),
          (192, 64, 96), (700, 3, 500), (20, 600, 200), (2101, 150, 70), (5, 700, 128),
          (1, 1100, 1001), (300, 520, 300)]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("flips", FLIPS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product(shape: Sequence[int], flips: Sequence[bool], dtype: Any) -> None:
    a, b = operands(shape, flips, dtype)
    got = product(a, b, flips)
    assert got.dtype == dtype
    # Each sum of k products errs by at most about sqrt(k) roundings of its largest part.
    np.testing.assert_allclose(got, exact(a, b, flips), atol=float(np.finfo(dtype).eps) * 40 * shape[1] ** 0.5)


@pytest.mark.parametrize("flips", FLIPS, ids=str)
def test_a_batch_of_products(flips: Sequence[bool]) -> None:
    a, b = operands((70, 65, 66), flips, np.float32, (2, 3))
    np.testing.assert_allclose(product(a, b, flips), exact(a, b, flips), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flips", FLIPS, ids=str)
@pytest.mark.parametrize("shape", [(1, 700, 900), (900, 700, 1)], ids=str)
def test_a_row_and_a_column_are_read_as_they_lie(shape: Sequence[int], flips: Sequence[bool]) -> None:
    for stack in ((), (3,), (2, 3)):
        a, b = operands(shape, flips, np.float32, stack)
        np.testing.assert_allclose(product(a, b, flips), exact(a, b, flips), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(64, 256, 512), (17, 1030, 301), (3, 2049, 1000)], ids=str)
@pytest.mark.parametrize("flip", [False, True])
def test_few_rows_by_a_transposed_matrix_have_the_bits_of_the_product_by_its_copy(
    shape: Sequence[int], flip: bool
) -> None:
    """Each sum is in the same order."""
    a, b = operands(shape, (flip, True), np.float32)
    other = np.ascontiguousarray(b.T)
    np.testing.assert_array_equal(product(a, b, (flip, True)), product(a, other, (flip, False)))
    a, b = operands(shape, (flip, True), np.float64, (2, 2))
    np.testing.assert_allclose(product(a, b, (flip, True)), exact(a, b, (flip, True)), rtol=1e-9, atol=1e-9)


def test_products_of_few_rows_in_plans() -> None:
    """As they lie, and transposed."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((40, 600)).astype(np.float32), rng.standard_normal((600, 500)).astype(np.float32)
    with dt.Graph().as_default():
        given, weights = dt.placeholder(dt.float32, [40, 600]), dt.placeholder(dt.float32, [600, 500])
        y = dt.matmul(dt.nn.relu(dt.matmul(given, weights)), weights, transpose_b=True)
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba", intra_op_parallelism_threads=2)) as session:
            session.warmup(y, [given, weights])
            found = [session.run(y, {given: x, weights: w}) for _ in range(6)]
    np.testing.assert_allclose(found[0], np.maximum(x @ w, 0) @ w.T, rtol=1e-4, atol=1e-3)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("shape", [(300, 400, 500), (1, 1000, 4500), (4500, 1000, 1), (16, 2000, 1100)], ids=str)
@pytest.mark.parametrize("flip", [False, True])
def test_the_result_does_not_depend_on_the_number_of_threads(shape: Sequence[int], flip: bool) -> None:
    a, b = operands(shape, (flip, False), np.float32)
    first, *others = [product(a, b, (flip, False), threads) for threads in (1, 2, 3)]
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("flip", [False, True])
def test_products_of_few_rows(flip: bool) -> None:
    """Each number of rows around that of a tile."""
    for rows in range(1, 18):
        a, b = operands((rows, 300, 1000), (flip, False), np.float32)
        np.testing.assert_allclose(product(a, b, (flip, False)), exact(a, b, (flip, False)), rtol=1e-4, atol=1e-4)


def test_nan_and_infinities_stay_in_their_rows_and_columns() -> None:
    a, b = operands((100, 64, 70), (False, False), np.float32)
    a[98, 3], b[5, 69] = np.nan, np.inf
    got = product(a, b, (False, False))
    assert np.isnan(got[98]).all()
    assert not np.isfinite(got[:, 69]).any()
    assert np.isfinite(np.delete(got, 98, 0)[:, :69]).all()


def test_operands_that_are_views() -> None:
    a, b = operands((128, 130, 140), (False, False), np.float32)
    wide = np.ascontiguousarray(np.concatenate([a, a], 1))
    np.testing.assert_array_equal(product(wide[:, :130], b, (False, False)), product(a, b, (False, False)))
    np.testing.assert_array_equal(product(np.asfortranarray(a), b, (False, False)), product(a, b, (False, False)))


@pytest.mark.parametrize(
    "shapes", [((3, 5), (5, 4)), ((0, 5), (5, 4)), ((2000, 1000), (1000, 1000)), ((70, 64), (65, 70))], ids=str
)
def test_what_is_left_to_blas(shapes: Any) -> None:
    with dt.Graph().as_default():
        y = dt.matmul(dt.placeholder(dt.float32, [None, None]), dt.placeholder(dt.float32, [None, None]))
        kernel = ProductKernel(y.op, left_to_blas, 2, False)
    kernel.compile()
    assert kernel(*(np.ones(s, np.float32) for s in shapes)) is None


def test_batches_that_broadcast() -> None:
    a, b = operands((64, 80, 70), (False, False), np.float32, (3, 1))
    b = np.stack([b[0, 0], b[1, 0]])
    np.testing.assert_allclose(product(a, b, (False, False)), exact(a, b, (False, False)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [(2, 3), (2, 1, 2)], ids=str)
def test_stacks_of_views_are_taken_as_they_lie(batch: Sequence[int]) -> None:
    """Heads of an attention: the axes of a stack are anywhere, with rows or columns contiguous."""
    a, b = operands((70, 66, 65), (False, True), np.float32, batch)
    spread = np.moveaxis(np.ascontiguousarray(np.moveaxis(a, -2, 0)), 0, -2)
    turned = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    assert not spread.flags.c_contiguous
    want = product(a, b, (False, True))
    np.testing.assert_array_equal(product(spread, b, (False, True)), want)
    np.testing.assert_array_equal(product(a, turned, (False, True)), want)
    np.testing.assert_array_equal(product(a[..., ::-1, :], b, (False, True)), want[..., ::-1, :])
    np.testing.assert_array_equal(product(np.repeat(a, 2, -1)[..., ::2], b, (False, True)), want)
