"""What kernels of rows leave out: the upper half of an exponential, NaN in a maximum, and waiting for the next row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from dovetail.codegen.cpu.emit.module import source_of  # noqa: E402
from dovetail.codegen.cpu.jit import compile_now  # noqa: E402
from dovetail.codegen.cpu.native.launches import share  # noqa: E402
from dovetail.codegen.cpu.schedule import schedule_of  # noqa: E402
from dovetail.codegen.fusion.range_analysis import is_below_zero, passes_over_nan  # noqa: E402
from dovetail.codegen.ir.loop_nest import LoopNest, LoopNestBuilder  # noqa: E402
from dovetail.graph.core.dtypes import float32  # noqa: E402

Made = Callable[[LoopNestBuilder, int, int], int]


def rows(made: Made) -> tuple[LoopNest, int]:
    """Loops that store what `made` makes of a row and its maximum, and which value the maximum is."""
    b = LoopNestBuilder([False, True])
    x = b.load(0, float32, [0, 1])
    most = b.reduce("max", x)
    value = made(b, x, most)
    b.store(value, [0, 1])
    loops, _ = b.finish()
    return loops, next(i for i, v in enumerate(loops.values) if v.op == "reduce" and v.data == "max")


def softmax(b: LoopNestBuilder, x: int, most: int) -> int:
    e = b.apply("exp", b.apply("sub", x, most))
    return b.apply("div", e, b.reduce("sum", e))


def log_softmax(b: LoopNestBuilder, x: int, most: int) -> int:
    d = b.apply("sub", x, most)
    return b.apply("sub", d, b.apply("log", b.reduce("sum", b.apply("exp", d))))


def exponentials(b: LoopNestBuilder, x: int, most: int) -> int:
    return b.apply("exp", b.apply("sub", x, most))


def chosen(b: LoopNestBuilder, x: int, most: int) -> int:
    total = b.reduce("sum", b.apply("exp", b.apply("sub", x, most)))
    return b.apply("select", b.apply("gt", total, x), x, most)


def other_way(b: LoopNestBuilder, x: int, most: int) -> int:
    e = b.apply("exp", b.apply("sub", most, x))
    return b.apply("div", e, b.reduce("sum", e))


CASES: list[tuple[Made, bool, bool]] = [
    (softmax, True, True),
    (log_softmax, True, True),
    (exponentials, False, True),
    (chosen, False, True),
    (other_way, True, False),
]


@pytest.mark.parametrize(("made", "over", "below"), CASES)
def test_what_is_known(made: Made, over: bool, below: bool) -> None:
    loops, most = rows(made)
    assert passes_over_nan(loops, most) == over
    (power,) = (v for v in loops.values if v.op == "exp")
    assert is_below_zero(loops, power.args[0]) == below


@pytest.mark.parametrize("length", [1, 7, 128, 515, 4096 + 513])
@pytest.mark.parametrize("made", [softmax, log_softmax, exponentials])
def test_rows_with_nan_and_infinities(made: Made, length: int) -> None:
    rng = np.random.default_rng(length)
    x = (rng.standard_normal((9, length)) * 20).astype(np.float32)
    x[2, length // 2], x[3, -1], x[4, 0], x[5] = np.nan, -np.nan, np.inf, -np.inf
    x[6, length // 3] = -np.inf
    loops, _ = rows(made)
    out = np.empty_like(x)
    share(compile_now(source_of(loops, schedule_of(loops)).text), (x.ravel(), out.ravel(), *x.shape), len(x), 1, 1)
    with np.errstate(all="ignore"):
        d: Any = x.astype(np.float64)
        d -= d.max(-1, keepdims=True)
        e = np.exp(d)
        want = {softmax: e / e.sum(-1, keepdims=True), log_softmax: d - np.log(e.sum(-1, keepdims=True))}.get(made, e)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
