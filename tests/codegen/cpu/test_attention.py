"""Attention and its gradient on CPUs: the compiled kernels against the ops' references, and where programs get them."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from planned import by_plan

pytest.importorskip("numba")

import dovetail as dt  # noqa: E402
from dovetail.codegen.cpu.jit import compile_now  # noqa: E402
from dovetail.codegen.cpu.kernels.attention import attention_kernel  # noqa: E402
from dovetail.graph.core.graph import Node  # noqa: E402
from dovetail.graph.core.opdef import opdef  # noqa: E402
from dovetail.graph.ops.nn import attention as _attention  # noqa: E402, F401  the ops

# stack, queries, keys, depth, the values' depth
SHAPES = [
    ((3,), 8, 8, 4, 4),
    ((2, 3), 128, 128, 64, 64),
    ((1,), 300, 70, 16, 40),  # parts of a gradient
    ((2, 1, 2), 33, 129, 65, 7),
    ((9,), 1, 600, 8, 3),
    ((1,), 5, 1, 1, 1),
]
MASKS = [None, "keys", "queries and keys", "whole"]


def node_of(op: str, inputs: list[Any], scale: float) -> Node:
    node = Node()
    node.opdef = opdef(op)
    node.attrs = {"scale": scale}
    with dt.Graph().as_default():
        node.inputs = tuple(dt.placeholder(dt.float32, x.shape) for x in inputs)
    return node


def run(op: str, inputs: list[Any], scale: float, threads: int = 2) -> Any:
    node = node_of(op, inputs, scale)
    found = attention_kernel(node, threads)
    assert found is not None
    text, call = found
    return by_plan(partial(call, compile_now(text)), *inputs)


def operands(shape: Any, heads_last: bool = False) -> list[Any]:
    """Queries, keys and values; `heads_last`: with the axis before the last two inside the next one, as layers make them."""
    stack, queries, keys, depth, deep = shape
    rng = np.random.default_rng(queries)
    made = []
    for n, d in ((queries, depth), (keys, depth), (keys, deep)):
        x = rng.standard_normal((*stack, n, d), dtype=np.float32)
        if heads_last:
            x = np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3)
        made.append(x)
    return made


def mask_of(kind: str | None, shape: Any) -> list[Any]:
    stack, queries, keys, *_ = shape
    rng = np.random.default_rng(1)
    sizes = {"keys": (keys,), "queries and keys": (queries, keys), "whole": (*stack, queries, keys)}
    if kind is None:
        return []
    mask = np.where(rng.random(sizes[kind]) < 0.3, -np.inf, rng.standard_normal(sizes[kind])).astype(np.float32)
    mask[..., 0] = 0.5  # no query without a key
    return [mask]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_give_what_the_references_do(shape: Any, mask: str | None) -> None:
    q, k, v = operands(shape, heads_last=mask == "keys")
    over, scale = mask_of(mask, shape), 0.3
    y, sums = run("AttentionWithSums", [q, k, v, *over], scale)
    want_y, want_sums = opdef("AttentionWithSums").reference(q, k, v, *over, scale=scale)
    np.testing.assert_allclose(y, want_y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sums, want_sums, rtol=1e-5, atol=1e-5)
    grad = np.random.default_rng(2).standard_normal(y.shape, dtype=np.float32)
    inputs = [q, k, v, y, sums, grad, *over]
    for got, want in zip(
        run("AttentionGrad", inputs, scale), opdef("AttentionGrad").reference(*inputs, scale=scale), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_one_array_may_be_queries_keys_and_values() -> None:
    x = operands(((1,), 300, 300, 16, 16))[0]  # the gradient is made in parts
    y, sums = run("AttentionWithSums", [x, x, x], 0.3)
    grad = np.random.default_rng(2).standard_normal(y.shape, dtype=np.float32)
    made = run("AttentionGrad", [x, x, x, y, sums, grad], 0.3)
    wanted = opdef("AttentionGrad").reference(x, x, x, y, sums, grad, scale=0.3)
    for mine, theirs in zip(made, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    inputs = operands(((4,), 130, 130, 32, 32))
    results = []
    for threads in (1, 3):
        y, sums = run("AttentionWithSums", inputs, 0.2, threads)
        results.append([y, sums, *run("AttentionGrad", [*inputs, y, sums, y * 0.5], 0.2, threads)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_nan_and_infinities_come_through() -> None:
    q, k, v = operands(((2,), 6, 40, 8, 8))
    q[0, 2, 3], v[1, 4, 5] = np.nan, np.inf
    mask = np.zeros((6, 40), np.float32)
    mask[5] = -np.inf
    y, _ = run("AttentionWithSums", [q, k, v, mask], 0.3)
    with np.errstate(all="ignore"):
        want, _ = opdef("AttentionWithSums").reference(q, k, v, mask, scale=0.3)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_left_to_the_references() -> None:
    q, k, v = operands(((2,), 4, 4, 4, 4))
    assert run("AttentionWithSums", [q, k[:1], v], 1.0) is None
    assert run("AttentionWithSums", [q, k[:, :0], v[:, :0]], 1.0) is None
    assert run("AttentionWithSums", [q, k, v, np.zeros((3, 1, 4, 4), np.float32)], 1.0) is None


def test_results_lie_as_what_they_belong_to() -> None:
    """Heads of one array of a plan give gradients that lie in one array, so that joining them copies nothing."""
    sequences, tokens, heads, depth = 2, 16, 3, 8
    whole = np.random.default_rng(3).standard_normal((sequences, tokens, 3, heads, depth), dtype=np.float32)
    q, k, v = whole.transpose(2, 0, 3, 1, 4)
    forward, backward = (
        partial(call, compile_now(text))
        for text, call in (
            attention_kernel(node_of(op, [q] * n, 0.3), 2) or pytest.fail("there is no kernel")
            for op, n in (("AttentionWithSums", 3), ("AttentionGrad", 6))
        )
    )

    def both(recorder: Any, whole: Any) -> Any:
        heads = whole.transpose(2, 0, 3, 1, 4)
        y, sums = forward(recorder, *heads)
        return y, *backward(recorder, *heads, y, sums, y)

    y, *made = by_plan(both, whole)
    assert y.transpose(0, 2, 1, 3).flags.c_contiguous
    assert made[0].base is made[1].base is made[2].base
    assert made[1].ctypes.data - made[0].ctypes.data == k.ctypes.data - q.ctypes.data
    assert all(x.strides == q.strides for x in made)
    x = np.arange(60, dtype=np.float32).reshape(1, 10, 6)
    windows = [x[:, i : i + 6, :4] for i in range(3)]  # these lie over one another: their gradients must not
    y, sums = run("AttentionWithSums", windows, 0.01)
    inputs = [*windows, y, sums, np.ones_like(y)]
    for got, want in zip(
        run("AttentionGrad", inputs, 0.01), opdef("AttentionGrad").reference(*inputs, scale=0.01), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)


def block(tokens: Any, width: int, heads: int, weights: list[Any], mask: Any = None) -> Any:
    sequences, length, _ = tokens.shape.as_list()
    parts = dt.reshape(
        dt.matmul(dt.reshape(tokens, [-1, width]), weights[0]), [sequences, length, 3, heads, width // heads]
    )
    q, k, v = dt.unstack(dt.transpose(parts, [2, 0, 3, 1, 4]), axis=0)
    scores = dt.matmul(q, k, transpose_b=True) * (1 / np.sqrt(width // heads))
    if mask is not None:
        scores += mask
    mixed = dt.matmul(dt.nn.softmax(scores), v)
    return dt.matmul(dt.reshape(dt.transpose(mixed, [0, 2, 1, 3]), [-1, width]), weights[1])


@pytest.mark.parametrize("masked", [False, True])
def test_a_program_that_is_trained_has_two_kernels(masked: bool) -> None:
    rng = np.random.default_rng(4)
    data = rng.standard_normal((2, 12, 16), dtype=np.float32)
    with dt.Graph().as_default() as graph:
        tokens = dt.placeholder(dt.float32, data.shape)
        weights = [dt.constant(rng.standard_normal(s, dtype=np.float32) / 4) for s in ((16, 48), (16, 16))]
        mask = dt.constant(np.triu(np.full((12, 12), -1e9, np.float32), 1)) if masked else None
        loss = dt.reduce_sum(dt.square(block(tokens, 16, 2, weights, mask)))
        fetches = [loss, *dt.gradients(loss, [tokens, *weights])]
    results = {}
    for backend in ("numba", "numpy"):
        config = dt.ConfigProto(kernel_backend=backend, kernel_check=2 if backend == "numba" else 0)
        with dt.Session(graph=graph, config=config) as session:
            results[backend] = session.run(fetches, {tokens: data})
            if backend == "numba":
                kernels = session.plan(fetches).kernels("cpu:0")
                own = [op for k in kernels.own for op in k.ops]
                assert "AttentionWithSums" in own
                assert "AttentionGrad" in own
                assert "attention and its gradient" in str(kernels)
    for mine, theirs in zip(results["numba"], results["numpy"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)
