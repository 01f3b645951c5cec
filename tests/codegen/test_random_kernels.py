"""Compiled random numbers: the bits of the reference, for all counts and numbers of threads."""

from typing import Any

import numpy as np
import pytest

import dovetail as dt

pytest.importorskip("numba")

from dovetail.codegen.backends.random_kernels import RandomKernel, random_kernel  # noqa: E402
from dovetail.graph.philox import Stream  # noqa: E402
from dovetail.graph.state import Context, Resources, SessionState  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


def kernel(draw: Any, dtype: str, threads: int = 2) -> RandomKernel:
    with dt.Graph().as_default():
        node = draw([3], dtype=dtype, seed=12)
        while node.op.type not in ("RandomUniform", "RandomStandardNormal"):
            node = node.op.inputs[0]
    context = Context("x", "", Resources(), SessionState(), ((3,),))
    found = random_kernel(node.op, lambda shape: pytest.fail("the reference ran"), context, threads, True)
    assert found is not None
    found.compile()
    return found


@pytest.mark.parametrize(
    ("draw", "dtype"),
    [(dt.random_uniform, "float32"), (dt.random_uniform, "float64"), (dt.random_normal, "float32")],
    ids=["uniform", "uniform of doubles", "normal"],
)
def test_the_bits_are_the_reference_s(draw: Any, dtype: str) -> None:
    one = kernel(draw, dtype)
    name = {dt.random_uniform: "uniform", dt.random_normal: "normal"}[draw]
    for run, shape in enumerate([(1,), (2,), (3,), (4,), (5,), (7, 13), (0,), (3, 0), (), (300, 1001)]):
        stream = Stream(one._seeds, run)
        want = getattr(stream, name)(shape, np.dtype(dtype))
        got = one(np.array(shape, np.int32))
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_it_does_not_matter_how_many_draw() -> None:
    made = [kernel(dt.random_normal, "float32", threads)(np.array([1 << 18])) for threads in (1, 3)]
    np.testing.assert_array_equal(*made)


def test_a_session_draws_new_numbers_in_each_step() -> None:
    with dt.Graph().as_default():
        x = dt.random_uniform([5000])
        y = dt.nn.dropout(x, rate=0.25)
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as session:
            (first, kept), (second, _) = session.run([x, y]), session.run([x, y])
    assert 0 <= first.min() < first.max() < 1
    assert not np.array_equal(first, second)
    assert 0.7 < np.count_nonzero(kept) / 5000 < 0.8
