"""Pairs of reductions that one pass can make."""

from typing import Any

import numpy as np
import pytest
from kernel_runner import run_routine

from dovetail.codegen.fusion.range_analysis import SOFTMAX, VARIANCE, pairs_of
from dovetail.codegen.gpu.emit.launches import routines
from dovetail.codegen.gpu.schedule import Specialisation
from dovetail.codegen.ir.loop_nest import LoopNest, LoopNestBuilder
from dovetail.graph.core.dtypes import float32

pytestmark = pytest.mark.gpu

pytest.importorskip("triton")


def softmax(sum_of_what: str = "exp") -> LoopNest:
    b = LoopNestBuilder([False, True])
    x = b.load(0, float32, [0, 1])
    b.store(b.reduce("sum", b.apply(sum_of_what, b.apply("sub", x, b.reduce("max", x)))), [0])
    return b.finish()[0]


def variance(keep_the_sum: bool = False) -> LoopNest:
    b = LoopNestBuilder([False, True])
    x = b.load(0, float32, [0, 1])
    total = b.reduce("sum", x)
    away = b.apply("sub", x, b.apply("div", total, b.count(float32)))
    b.store(b.apply("div", b.reduce("sum", b.apply("mul", away, away)), b.count(float32)), [0])
    if keep_the_sum:
        b.store(total, [0])
    return b.finish()[0]


def test_pairs_are_found() -> None:
    (pair,) = pairs_of(softmax()).values()
    assert (pair.kind, pair.first, pair.second, pair.of) == (SOFTMAX, 1, 4, 0)
    (pair,) = pairs_of(variance()).values()
    assert (pair.kind, pair.first, pair.second, pair.of, pair.mean) == (VARIANCE, 1, 6, 0, 3)


def test_what_is_no_pair() -> None:
    assert not pairs_of(softmax("tanh"))
    assert not pairs_of(variance(keep_the_sum=True))
    b = LoopNestBuilder([False, True])
    x, y = b.load(0, float32, [0, 1]), b.load(1, float32, [0, 1])
    b.store(b.reduce("sum", b.apply("exp", b.apply("sub", x, b.reduce("max", y)))), [0])
    assert not pairs_of(b.finish()[0])


@pytest.mark.parametrize("splits", [1, 8])
@pytest.mark.parametrize("keep_the_sum", [False, True])
def test_a_variance_far_from_zero_is_accurate(splits: int, keep_the_sum: bool) -> None:
    x = (1000 + np.random.default_rng(0).standard_normal((2, 5000))).astype(np.float32)
    loops = variance(keep_the_sum)
    routine = routines(loops, Specialisation((False, False), 0, splits=splits))[0]
    outputs = [np.empty(2, np.float32) for _ in loops.stores]
    arguments: dict[str, Any] = {"in0": x, "n0": 2, "n1": 5000, **{f"out{i}": y for i, y in enumerate(outputs)}}
    run_routine(routine, arguments)
    np.testing.assert_allclose(outputs[0], x.astype(np.float64).var(1), rtol=2e-5)
    if keep_the_sum:
        np.testing.assert_allclose(outputs[1], x.astype(np.float64).sum(1), rtol=1e-6)


@pytest.mark.parametrize("splits", [1, 4])
def test_a_running_maximum_may_rise_late(splits: int) -> None:
    x = np.linspace(-200, 200, 3 * 9000, dtype=np.float32).reshape(3, 9000)
    x[1, :] = -np.inf
    x[2, :8000] = -np.inf
    loops = softmax()
    out = np.empty(3, np.float32)
    routine = routines(loops, Specialisation((False, False), 0, splits=splits))[0]
    run_routine(routine, {"in0": x, "out0": out, "n0": 3, "n1": 9000})
    with np.errstate(invalid="ignore"):
        exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(out, exact, rtol=1e-5)
