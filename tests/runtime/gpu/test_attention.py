"""Attention that is spelled out in a program, on a GPU (a stand-in): masks, gradients, and what is not recognised."""

from typing import Any

import numpy as np
import pytest
from gpu_backends import RecordedDriver
from gpu_programs import Build, agree

import dovetail as dt

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("launch_by_launch")]

FORWARD, BACKWARD = ["attention"], ["attention_delta", "attention_keys", "attention_queries"]
EXACT_FORWARD, EXACT_BACKWARD = ["attention_turned", *FORWARD], [*["attention_turned"] * 4, *BACKWARD]  # of float32


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def launched(fake: RecordedDriver, build: Build, rtol: float = 1e-4) -> list[str]:
    """Run a program on a CPU and a GPU, compare, and give the names of the attention kernels that the GPU launched."""
    agree(build, rtol=rtol, atol=rtol)
    return [x[1] for x in fake.launches() if x[1].startswith("attention")]


def attention(q: Any, k: Any, v: Any, mask: Any = None, scale: Any = 0.25) -> Any:
    scores = dt.matmul(q, k, transpose_b=True) * scale
    return dt.matmul(dt.nn.softmax(scores if mask is None else scores + mask), v)


def operands(*dims: int | None, dtype: Any = dt.float32) -> tuple[list[Any], dict[Any, Any]]:
    given = [dt.placeholder(dtype, dims) for _ in range(3)]
    values = [
        numbers(*(d or s for d, s in zip(dims, (2, 3, 20, 16)[-len(dims) :], strict=True)), i + 1)[..., 0]
        for i in range(3)
    ]
    return given, dict(zip(given, [x.astype(dtype.np) for x in values], strict=True))


MASKS = [(2, 3, 20, 20), (2, 1, 20, 20), (1, 1, 20, 20), (20, 20), (2, 1, 1, 20), (20,)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(fake, shape):
    def build():
        given, feeds = operands(2, 3, 20, 16)
        mask = dt.placeholder(dt.float32, shape)
        return [attention(*given, mask)], {**feeds, mask: np.where(numbers(*shape) > 1, -1e9, 0.0).astype(np.float32)}

    assert launched(fake, build) == EXACT_FORWARD


@pytest.mark.parametrize("shape", [(2, 3, 20, 1), (20, 1)], ids=str)
def test_a_mask_that_no_kernel_takes_runs_on_the_host(fake, shape):
    def build():
        given, feeds = operands(2, 3, None, 16)
        mask = dt.placeholder(dt.float32, shape)
        return [attention(*given, mask)], {**feeds, mask: numbers(*shape)}

    assert launched(fake, build) == []


def trained(given: list[Any], y: Any) -> list[Any]:
    return [y, *dt.gradients(dt.reduce_sum(dt.square(y)), given)]


@pytest.mark.parametrize("dims", [(2, 3, 20, 16), (None, 3, None, 16), (None, None, 16)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_programs_that_are_trained(fake, dims, masked):
    def build():
        given, feeds = operands(*dims)
        mask = dt.placeholder(dt.float32, [20, 20])
        return trained(given, attention(*given, mask if masked else None)), {
            **feeds,
            mask: np.triu(np.full((20, 20), -1e9, np.float32), 1),
        }

    assert launched(fake, build) == EXACT_FORWARD + EXACT_BACKWARD


@pytest.mark.parametrize(
    "variant",
    [
        lambda q, k, v: dt.matmul(dt.nn.softmax(dt.matmul(q, k, transpose_b=True) / dt.sqrt(16.0)), v),
        lambda q, k, v: dt.matmul(dt.nn.softmax(dt.matmul(q * 0.25, k, transpose_b=True)), v),
        lambda q, k, v: dt.matmul(dt.nn.softmax(0.25 * dt.matmul(q, k, transpose_b=True)), v),
    ],
    ids=["divided", "scaled queries", "scaled first"],
)
def test_spellings(fake, variant):
    def build():
        given, feeds = operands(2, 3, 20, 16)
        return trained(given, variant(*given)), feeds

    assert launched(fake, build) == EXACT_FORWARD + EXACT_BACKWARD


def test_two_layers(fake):
    def build():
        (q, k, v), feeds = operands(2, 3, 20, 16)
        return trained([q, k, v], attention(attention(q, k, v), k, v)), feeds

    assert sorted(launched(fake, build, 1e-3)) == sorted(2 * (EXACT_FORWARD + EXACT_BACKWARD))


def test_narrow_floats(fake):
    def build():
        given, feeds = operands(2, 3, 20, 16, dtype=dt.bfloat16)
        return trained(given, attention(*given)), feeds

    assert launched(fake, build, 5e-2) == FORWARD + BACKWARD


@pytest.mark.parametrize(
    "case", ["probabilities are fetched", "mask is trained", "only one gradient", "rewriting is off"]
)
def test_what_is_left_as_it_was_written(fake, case, monkeypatch):
    if case == "rewriting is off":
        monkeypatch.setenv("DOVETAIL_REWRITE", "0")

    def build():
        (q, k, v), feeds = operands(2, 3, 20, 16)
        mask = dt.placeholder(dt.float32, [20, 20])
        p = dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * 0.25 + mask)
        y = dt.matmul(p, v)
        expected = {"mask is trained": [q, k, v, mask], "only one gradient": [v]}.get(case, [q, k, v])
        return [*trained(expected, y), *([p] if case.startswith("prob") else [])], {**feeds, mask: numbers(20, 20)}

    assert launched(fake, build) == []


def test_a_stack_that_turns_out_to_be_broadcast_has_the_right_gradients(fake):
    def build():
        given, feeds = operands(None, None, 16)
        q, k, v = given
        values = {q: numbers(4, 5, 16), k: numbers(4, 6, 16), v: numbers(4, 6, 16)}
        return trained(given, attention(*given)), values

    assert launched(fake, build) == EXACT_FORWARD + EXACT_BACKWARD


def test_plans_tell_of_it(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        given, _ = operands(2, 3, 20, 16)
        fetches = trained(given, attention(*given))
        with dt.Session(graph=graph) as session:
            kernels = session.plan(fetches).kernels("gpu:0")
    assert "attention and its gradient (1)" in str(kernels)
    assert [n.type for n in kernels.calls if "Attention" in n.type] == ["AttentionWithSums", "AttentionGrad"]


# --- sums over what a broadcast repeated -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (1, 1)], ids=str)
def test_the_gradient_of_a_broadcast_that_only_the_running_graph_knows(fake, shape):
    def build():
        x, w = dt.placeholder(dt.float32, [None, None]), dt.placeholder(dt.float32, [None, None])
        y = dt.cumsum(x, 1) * w
        return [*dt.gradients(dt.reduce_sum(dt.cumsum(y, 0)), [x, w])], {x: numbers(5, 7), w: numbers(*shape)}

    launched(fake, build)
    if shape == (5, 7):
        assert [c[0] for c in fake.copies()].count("to host") == 2  # none of it on the host


@pytest.mark.parametrize("axes", [[0], [1, 2], [0, 2], [0, 1, 2], []], ids=str)
@pytest.mark.parametrize("reduce", [dt.reduce_sum, dt.reduce_max, dt.reduce_mean])
def test_reductions_over_axes_that_are_computed(fake, reduce, axes):
    def build():
        x, over = dt.placeholder(dt.float32, [None, 3, 4]), dt.placeholder(dt.int32, [None])
        return [reduce(x, over), reduce(x, over, keepdims=True)], {x: numbers(5, 3, 4), over: np.array(axes, np.int32)}

    launched(fake, build)
    assert [c[0] for c in fake.copies()].count("to host") == 2  # none of it on the host
