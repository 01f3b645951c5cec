"""Attention, forward and backward: its numbers in Triton's interpreter, and what it compiles to."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from kernel_checks import TARGETS, compiles, run

from dovetail.codegen.gpu.templates.attention import attention, attention_sizes
from dovetail.codegen.ir.schedule import GpuProductSchedule
from dovetail.codegen.target import SM80, SM90, Target
from dovetail.graph.core.dtypes import DType, bfloat16, float16, float32, int32

pytest.importorskip("triton")

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_cache")]


SMALL = GpuProductSchedule(16, 32, 0, 4, 2)


@dataclass(frozen=True)
class Case:
    """A problem: sizes, and what is special about it."""

    dtype: DType = float32
    heads: int = 2
    queries: int = 37
    keys: int = 37
    size: int = 16
    causal: bool = False
    mask: tuple[int, ...] | None = None


CASES = {
    "plain": Case(),
    "whole blocks": Case(queries=32, keys=64),
    "causal": Case(causal=True, queries=70, keys=70),
    "causal, more keys": Case(causal=True, queries=20, keys=75),
    "causal, more queries: the first see nothing": Case(causal=True, queries=75, keys=40),
    "mask for all": Case(mask=(1, 1, 1, 37)),
    "mask of each": Case(mask=(2, 2, 37, 37)),
    "mask by head": Case(mask=(1, 2, 37, 37), queries=37),
    "one query": Case(queries=1, keys=70),
    "odd head size": Case(size=24),
    "float16": Case(float16, size=32),
    "bfloat16, masked": Case(bfloat16, size=16, mask=(2, 1, 37, 37)),
}
DIGITS = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}


def oracle(q: Any, k: Any, v: Any, mask: Any, do: Any, scale: float) -> tuple[Any, ...]:
    """Result and gradients in float64, [batch, heads, length, size]."""
    q, k, v, do = (x.astype(np.float64) for x in (q, k, v, do))
    s = np.einsum("bhid,bhjd->bhij", q, k) * scale
    if mask is not None:
        s = s + mask.astype(np.float64)
    largest = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(largest), 0, largest))
    p = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    o = p @ v
    dp = np.einsum("bhid,bhjd->bhij", do, v)
    ds = p * (dp - (do * o).sum(-1, keepdims=True)) * scale
    dk, dv = np.einsum("bhij,bhid->bhjd", ds, q), np.einsum("bhij,bhid->bhjd", p, do)
    return o, ds @ k, dk, dv


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_numbers(case: Case) -> None:
    rng = np.random.default_rng(3)

    def made(heads: int, length: int) -> Any:
        return rng.standard_normal((2, heads, length, case.size)).astype(case.dtype.np)

    q, k, v = made(case.heads, case.queries), made(case.heads, case.keys), made(case.heads, case.keys)
    do = made(case.heads, case.queries)
    mask = None
    if case.mask is not None:
        mask = rng.standard_normal(case.mask).astype(case.dtype.np)
        mask[..., 0, 3:9] = -np.inf
    if case.causal:
        seen = np.arange(case.keys) <= np.arange(case.queries)[:, None] + (case.keys - case.queries)
        mask = np.where(seen, 0, -np.inf).astype(case.dtype.np)[None, None]
    scale = case.size**-0.5
    want = oracle(q, k, v, mask, do, scale)
    given: dict[str, Any] = {"mask": None if mask is None else case.dtype}
    (forward,) = attention(case.dtype, case.size, scale, **given, at=[SMALL])
    (backward,) = attention(case.dtype, case.size, scale, **given, at=[SMALL], backward=True)
    arrays = {"in0": q, "in1": k, "in2": v}
    sizes = attention_sizes(q.shape, k.shape, None if mask is None else mask.shape)
    out = [np.full_like(x, np.nan) for x in (q, q, k, k)]
    lse = np.full((2, case.heads, case.queries), np.nan, np.float32)
    masks = {} if mask is None else {"in3": mask}
    run(forward, {**arrays, **masks, "out0": out[0], "out1": lse}, sizes)
    masks = {} if mask is None else {"in6": mask}
    outs = {"out0": out[1], "out1": out[2], "out2": out[3]}
    run(backward, {**arrays, **masks, "in3": out[0], "in4": lse, "in5": do, **outs}, sizes)
    for name, got, expected in zip(("result", "dq", "dk", "dv"), out, want, strict=True):
        error = np.abs(got.astype(np.float64) - expected).max()
        assert error <= DIGITS[case.dtype.name] * np.abs(expected).max(), f"{name} is off by {error}"


def test_a_query_that_sees_nothing_is_zero() -> None:
    q = np.ones((1, 1, 4, 16), np.float32)
    mask = np.zeros((1, 1, 4, 4), np.float32)
    mask[0, 0, 2] = -np.inf
    (forward,) = attention(float32, 16, 1.0, mask=float32, at=[SMALL])
    out, lse = np.full_like(q, np.nan), np.zeros((1, 1, 4), np.float32)
    run(
        forward,
        {"in0": q, "in1": q, "in2": q, "in3": mask, "out0": out, "out1": lse},
        attention_sizes(q.shape, q.shape, mask.shape),
    )
    np.testing.assert_array_equal(out[0, 0, :, 0], [1, 1, 0, 1])


def test_nan_is_not_hidden() -> None:
    q = np.ones((1, 1, 4, 16), np.float32)
    k = q.copy()
    k[0, 0, 1, 0] = np.nan
    (forward,) = attention(float32, 16, 1.0, at=[SMALL])
    out, lse = np.zeros_like(q), np.zeros((1, 1, 4), np.float32)
    run(forward, {"in0": q, "in1": k, "in2": q, "out0": out, "out1": lse}, attention_sizes(q.shape, q.shape))
    assert np.isnan(out).all()


def test_wrong_shapes() -> None:
    assert attention_sizes((1, 2, 4, 16), (1, 2, 4, 16), (1, 2, 4, 3)) is None
    with pytest.raises(ValueError, match="not in int32"):
        attention(int32, 16, 1.0)


COMPILED = {
    "bfloat16": (bfloat16, 64, None),
    "masked": (bfloat16, 128, bfloat16),
    "float32": (float32, 64, None),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name"), [*((t, "bfloat16") for t in TARGETS), (SM90, "masked"), (SM80, "float32")], ids=str
)
def test_compiles(target: Target, name: str) -> None:
    """Every kernel, with the blocks that it would be launched with first; float32 needs the most shared memory, and SM80 has the least."""
    dtype, size, mask = COMPILED[name]
    forward = attention(dtype, size, 0.125, mask=mask)[0]
    backward = attention(dtype, size, 0.125, mask=mask, backward=True)[0]
    for routine in (forward, backward):
        compiles(routine, [target], stack=64)
