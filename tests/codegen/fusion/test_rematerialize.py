"""Values computed again: which, that nobody misses what is not written any more, and that the numbers are those of NumPy."""

from collections.abc import Sequence

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.fusion import fuse as fusing
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.ir.fused_kernel import FusedKernel
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.target import OPERATIONS_PER_BYTE
from dovetail.graph.core.graph import Tensor

SHAPE = (200, 100)


def kernels_of(
    fetches: Sequence[Tensor], feeds: Sequence[Tensor], *, again: bool = True, rewritten: bool = False
) -> list[FusedKernel]:
    partition = PartitionGraph(
        "/device:CPU:0", tuple(fetches[0].op.graph.nodes), tuple((t.name, t) for t in feeds), tuple((t.name, t) for t in fetches)
    )  # fmt: skip
    return fuse(partition, operations_per_byte=OPERATIONS_PER_BYTE * again, copies_scalars=again).kernels


def both(fetches: Sequence[Tensor], values: dict[Tensor, np.ndarray]) -> None:
    """What compiled kernels and NumPy give is the same."""
    results = []
    for backend in ("numba", "numpy"):
        config = dt.ConfigProto(kernel_backend=backend, kernel_check=2 if backend == "numba" else 0)
        with dt.Session(graph=fetches[0].op.graph, config=config) as session:
            results.append(session.run(list(fetches), values))
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6 * max(1.0, float(np.abs(theirs).max())))


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + dt.tanh(0.8 * (x + 0.04 * x * x * x)))


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def test_a_gradient_computes_again_what_its_activation_had() -> None:
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, SHAPE), dt.placeholder(dt.float32, (100, 100))
        h = dt.matmul(x, w)
        y = dt.matmul(gelu(h), w)
        fetches = [dt.reduce_sum(y), *dt.gradients(y, [x, w])]
    before, after = ([k for k in kernels_of(fetches, [x, w], again=a) if h in k.inputs] for a in (False, True))
    assert len(before[0].outputs) >= 4
    forward, backward = after
    assert len(forward.outputs) == 1
    assert len(backward.inputs) == 2  # the product, and what comes from behind
    assert set(forward.nodes) & set(backward.nodes)
    both(fetches, {x: numbers(0), w: numbers(1)[:100] / 10})


@pytest.mark.parametrize("rows", [3, 200])
def test_rows_that_only_the_running_graph_knows_count_as_a_batch(rows: int) -> None:
    with dt.Graph().as_default():
        x, w, bias = (dt.placeholder(dt.float32, s) for s in ((None, 20), (20, 300), (300,)))
        h = dt.matmul(x, w)
        y = dt.matmul(gelu(h + bias), w, transpose_b=True)
        fetches = [dt.reduce_sum(y), *dt.gradients(y, [x, w, bias])]
    forward, backward = (k for k in kernels_of(fetches, [x, w, bias]) if h in k.inputs)
    assert set(forward.nodes) & set(backward.nodes)
    (behind,) = [t for t in backward.inputs if t not in forward.inputs]
    assert behind.op.type == "MatMul"  # the gradient that comes from behind; all else the forward pass read, too
    random = np.random.default_rng(10)
    both(
        fetches,
        {
            t: random.standard_normal(s).astype(np.float32) / 4
            for t, s in ((x, (rows, 20)), (w, (20, 300)), (bias, 300))
        },
    )


def test_what_somebody_else_takes_is_still_there() -> None:
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, SHAPE), dt.placeholder(dt.float32, (100, 100))
        h = dt.matmul(x, w)
        t = dt.tanh(h * 2.0)
        y = dt.matmul(h * t * t, w)
        fetches = [t, dt.reduce_mean(t, 0), *dt.gradients(y, [w])]
    both(fetches, {x: numbers(2), w: numbers(3)[:100] / 10})


def test_a_chain_of_groups() -> None:
    """Copies of copies: the second group reads what the first has copies of, and so on."""
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, SHAPE), dt.placeholder(dt.float32, (100, 100))
        h = dt.matmul(x, w)
        a, b = dt.exp(-h * h), dt.sigmoid(h + 1.0)
        first = dt.matmul(a + b, w)
        c, d = a * b + h, dt.tanh(a - b) * h
        second = dt.matmul(first + c * d, w)
        fetches = [second + c + d * a, dt.reduce_sum(c - d, -1), *dt.gradients(second, [x, w])]
    both(fetches, {x: numbers(4), w: numbers(5)[:100] / 10})


def test_sums_of_rows_are_read() -> None:
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, SHAPE), dt.placeholder(dt.float32, (100, 100))
        h = dt.matmul(x, w)
        centred = h - dt.reduce_mean(h, -1, keepdims=True)
        scaled = centred * dt.rsqrt(dt.reduce_mean(dt.square(centred), -1, keepdims=True) + 1e-3)
        y = dt.matmul(dt.tanh(scaled) * centred, w)
        fetches = [y, *dt.gradients(y, [x, w])]
    both(fetches, {x: numbers(6), w: numbers(7)[:100] / 10})


def test_what_costs_more_than_it_saves_is_read() -> None:
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, SHAPE), dt.placeholder(dt.float32, (100, 100))
        h = dt.nn.relu(dt.matmul(x, w) + 1.0)
        y = dt.matmul(h, w)
        fetches = [y, *dt.gradients(y, [x, w])]
    mine = [k.nodes for k in kernels_of(fetches, [x, w])]
    assert mine == [k.nodes for k in kernels_of(fetches, [x, w], again=False)]


def test_all_is_undone_when_a_kernel_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, SHAPE), dt.placeholder(dt.float32, (100, 100))
        h = dt.matmul(x, w)
        y = dt.matmul(gelu(h), w)
        fetches = [*dt.gradients(y, [x, w])]
    (copies,) = [k for k in kernels_of(fetches, [x, w]) if h in k.inputs][1:]
    written = fusing.write_kernel

    def refuse(nodes, *rest):
        if set(nodes) == set(copies.nodes):
            raise fusing.NotFusibleError("of this test")
        return written(nodes, *rest)

    monkeypatch.setattr(fusing, "write_kernel", refuse)
    plain = [k.nodes for k in kernels_of(fetches, [x, w], again=False)]
    assert [k.nodes for k in kernels_of(fetches, [x, w])] == plain


def test_a_variable_is_read_where_its_turn_comes() -> None:
    with dt.Graph().as_default():
        v = dt.Variable(numbers(8))
        w = dt.Variable(numbers(9)[:100] / 10)
        y = dt.matmul(gelu(v), w)
        loss = dt.reduce_mean(dt.square(y))
        step = dt.train.GradientDescentOptimizer(0.1).minimize(loss)
        start = dt.global_variables_initializer()
        graph = y.op.graph
    results = []
    for backend in ("numba", "numpy"):
        with dt.Session(graph=graph, config=dt.ConfigProto(kernel_backend=backend)) as session:
            session.run(start)
            results.append([session.run([loss, step])[0] for _ in range(4)] + [session.run(v)])
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6 * max(1.0, float(np.abs(theirs).max())))
