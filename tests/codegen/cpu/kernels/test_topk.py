"""The largest numbers of rows, compiled, against the reference: ties, what is no number, blocks' edges, threads, plans."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from planned import by_plan

import dovetail as dt
from dovetail.codegen.cpu.kernels.families import MOST_K, top_kernel
from dovetail.graph.ops.array.sorting import _top_k

pytest.importorskip("numba")

from dovetail.codegen.cpu.jit import compile_now  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_the_largest_numbers_of_rows(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    with dt.Graph().as_default():
        node = dt.nn.top_k(dt.placeholder(dtype, [None, None]), dt.placeholder(dt.int32, [])).values.op
        text, call = top_kernel(node, 2)
    top = partial(by_plan, partial(call, compile_now(text)))
    for rows, length, count in ((1, 1, 1), (3, 64, 64), (5, 65, 1), (7, 300, 5), (2, 1000, MOST_K), (40, 20_000, 10)):
        x = rng.integers(-50, 50, (rows, length)).astype(dtype)  # of which many are equal
        if x.dtype.kind == "f":
            x[rng.random(x.shape) < 0.01] = np.nan
            x[rng.random(x.shape) < 0.01] = -np.inf
        made, wanted = top(x, np.int32(count)), _top_k(x, np.int32(count), sorted=True)
        assert made is not None
        for mine, theirs in zip(made, wanted, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
    assert top(np.zeros((2, 3), dtype), np.int32(4)) is None
    assert top(np.zeros((2, 1000), dtype), np.int32(MOST_K + 1)) is None
    assert top(np.zeros((0, 3), dtype), np.int32(2)) is None


def test_in_a_plan() -> None:
    x = np.random.default_rng(1).standard_normal((16, 200)).astype(np.float32)
    with dt.Graph().as_default():
        given = dt.placeholder(dt.float32, [None, 200])
        logits = dt.matmul(dt.nn.softmax(given), dt.ones([200, 200]) * 0.5) + given
        found = dt.nn.top_k(logits, 3)
        with dt.Session() as session:
            wanted = session.run([logits, found.values, found.indices], {given: x})
            session.warmup([found.values, found.indices], [given])
            for _ in range(5):
                values, places = session.run([found.values, found.indices], {given: x})
                np.testing.assert_allclose(values, wanted[1], rtol=1e-6)
                np.testing.assert_array_equal(places, wanted[2])
