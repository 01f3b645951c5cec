"""Sizes that only the running graph knows: which are the same, and that steps with them are compiled as those with known sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from reference_interpreter import execution_order
from rewriting import EVERYTHING, evaluate, partition_of

import dovetail as dt
from dovetail.codegen.cpu.backend import NumbaBackend
from dovetail.codegen.ir.fused_kernel import FusedKernel
from dovetail.codegen.ir.symbolic_shape import Product, SymbolicShapes, product, quotient
from dovetail.codegen.passes.rewrite import rewrite
from dovetail.codegen.pipeline import run_graph_passes
from dovetail.graph.core.graph import Tensor
from dovetail.graph.core.opdef import opdef

B = Product(1, (0,))  # the first axis that is asked about, mostly the batch of x


def sizes_of(tensors: Sequence[Tensor]) -> SymbolicShapes:
    """What is known of the sizes of tensors and of all that they are made from."""
    makers: dict[Tensor, Any] = {}
    sizes = SymbolicShapes(makers)
    for node in execution_order([t.op for t in tensors], {}):
        if node.type != "Placeholder":
            makers.update(dict.fromkeys(node.outputs, node))
        sizes.see(node)
    return sizes


def test_products() -> None:
    c = Product(1, (1,))
    assert product([]) == 1
    assert product([2, 3]) == 6
    assert product([c, 2, B, 3]) == Product(6, (0, 1)) == product([B, 6, c])
    assert product([B, 0]) == 0
    assert quotient(Product(6, (0, 1)), Product(2, (1,))) == Product(3, (0,))
    assert quotient(Product(6, (0,)), B) == 6
    assert quotient(Product(6, (0, 0)), B) == Product(6, (0,))
    assert quotient(Product(6, (0,)), 4) is None
    assert quotient(B, c) is None
    assert quotient(B, 0) is None


CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[Any, ...]]] = {
    "elementwise": (lambda x: dt.exp(x) * 2.0 + 1.0, (B, 6)),
    "with a vector": (lambda x: x + np.ones(6, np.float32), (B, 6)),
    "product": (lambda x: dt.matmul(x, np.ones((6, 3), np.float32)), (B, 3)),
    "transposed": (lambda x: dt.transpose(x), (6, B)),
    "sum": (lambda x: dt.reduce_sum(x, 1), (B,)),
    "kept": (lambda x: dt.reduce_sum(x, 1, keepdims=True), (B, 1)),
    "cut apart": (lambda x: dt.reshape(x, [-1, 2, 3]), (B, 2, 3)),
    "put together": (lambda x: dt.reshape(dt.reshape(x, [-1, 2, 3]), [-1, 3]), (Product(2, (0,)), 3)),
    "and apart again": (lambda x: dt.reshape(dt.reshape(x, [-1, 3]), [-1, 6]), (B, 6)),
    "by a computed shape": (lambda x: dt.reshape(x, dt.stack([dt.shape(x)[0], 3, 2])), (B, 3, 2)),
    "by another computed shape": (lambda x: dt.reshape(x, dt.concat([[2], dt.shape(x)[:1], [3]], 0)), (2, B, 3)),
    "all but the batch": (lambda x: dt.reshape(x, dt.stack([dt.shape(x)[0], -1])), (B, 6)),
    "filled": (lambda x: dt.fill(dt.stack([dt.shape(x)[0] * 2, 5]), 1.0), (Product(2, (0,)), 5)),
    "repeated": (lambda x: dt.broadcast_to(dt.reduce_sum(x, 0), dt.shape(x)), (B, 6)),
    "drawn": (lambda x: dt.random_uniform(dt.shape(x)), (B, 6)),
    "looked up": (lambda x: dt.gather(np.ones((7, 4), np.float32), dt.cast(x, dt.int32)), (B, 6, 4)),
    "side by side": (lambda x: dt.concat([x, x], 1), (B, 12)),
    "a column": (lambda x: x[:, 2], (B,)),
    "convolved": (
        lambda x: dt.nn.conv2d(dt.reshape(x, [-1, 3, 2, 1]), np.ones((2, 2, 1, 4), np.float32), [1, 1, 1, 1], "SAME"),
        (B, 3, 2, 4),
    ),
    "lost on labels": (
        lambda x: dt.nn.sparse_softmax_cross_entropy_with_logits(labels=dt.placeholder(dt.int32, [None]), logits=x),
        (B,),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_follow(name: str) -> None:
    build, expected = CASES[name]
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 6])
        y = build(x)
    sizes = sizes_of([x, y])
    assert sizes.dims(x) == (B, 6)
    assert sizes.dims(y) == expected


NOTHING_KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "one more": lambda x: dt.concat([x, np.ones((1, 6), np.float32)], 0),
    "twice": lambda x: dt.concat([x, x], 0),
    "all but one": lambda x: x[1:],
    "half": lambda x: x[::2],
    "the first": lambda x: x[:1],
    "some": lambda x: dt.boolean_mask(x, x[:, 0] > 0),
    "another one": lambda x: dt.placeholder(dt.float32, [None, 6]) * 1.0,
    "as many as another one has": lambda x: x[: dt.shape(dt.placeholder(dt.float32, [None]))[0]],
    "the diagonal": lambda x: dt.linalg.diag_part(dt.matmul(x, dt.placeholder(dt.float32, [6, None]))),
    "by a number that is fed": lambda x: dt.reshape(x, dt.stack([dt.placeholder(dt.int32, []), 6])),
}


@pytest.mark.parametrize("name", NOTHING_KNOWN)
def test_sizes_of_their_own(name: str) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 6])
        y = NOTHING_KNOWN[name](x)
    sizes = sizes_of([x, y])
    first = sizes.dims(y)[0]  # type: ignore[index]
    assert isinstance(first, Product)
    assert first != sizes.dims(x)[0]  # type: ignore[index]


def test_operands_of_two_batches_meet() -> None:
    """Whoever has met is of one size, in whatever order; which of the two, or that neither fits, the running graph knows."""
    with dt.Graph().as_default():
        x, y = dt.placeholder(dt.float32, [None, 6]), dt.placeholder(dt.float32, [None, 6])
        both = [x - y, y * x, (x + y) * x, dt.square(y - x)]
    sizes = sizes_of([x, y, *both])
    met = {sizes.dims(t) for t in both}
    assert len(met) == 1
    assert not met & {sizes.dims(x), sizes.dims(y)}


def test_the_smaller_of_two_sizes_is_either() -> None:
    with dt.Graph().as_default() as graph:
        x, y = dt.placeholder(dt.float32, [None]), dt.placeholder(dt.float32, [None])
        cut = (x + 0.0)[: dt.shape(y)[0]]
        gradient = dt.gradients(dt.reduce_mean(dt.square(cut)), x)[0]
        diagonal = dt.linalg.diag_part(x[:, None] + y)
        with dt.Session(graph=graph) as session:
            for n, m in ((2, 5), (5, 2)):
                a, b = np.ones(n, np.float32), np.ones(m, np.float32)
                of_cut, of_diagonal, size = session.run([gradient, dt.shape(diagonal), dt.size(cut)], {x: a, y: b})
                np.testing.assert_allclose(of_cut, [1.0] * 2 + [0.0] * (n - 2))
                assert (of_diagonal.tolist(), size) == ([2], 2)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0)])
def test_a_missing_size_of_an_empty_tensor_is_what_its_shape_says(shape: tuple[int, int]) -> None:
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [None, None])
        y = dt.reshape(x, dt.stack([dt.shape(x)[0], 1, -1]))
        with dt.Session(graph=graph) as session:
            value, told = session.run([y, dt.shape(y)], {x: np.zeros(shape, np.float32)})
    assert value.shape == tuple(told) == (shape[0], 1, shape[1])


# --- programs ----------------------------------------------------------------------------------------------------------


def dense(x: Tensor, rows: int, columns: int, seed: int) -> Tensor:
    values = np.random.default_rng(seed).standard_normal((rows, columns)) / rows**0.5
    return dt.matmul(x, dt.constant(values.astype(np.float32), name=f"w{seed}"))


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + dt.tanh(0.8 * (x + 0.04 * x * x * x)))


def norm(h: Tensor) -> Tensor:
    mean = dt.reduce_mean(h, -1, keepdims=True)
    variance = dt.reduce_mean(dt.square(h - mean), -1, keepdims=True)
    return (h - mean) * dt.rsqrt(variance + 1e-3)


def heads(x: Tensor) -> Tensor:
    """Attention over the positions of each example."""
    rows, whole = dt.shape(x)[0], dt.reshape(x, [-1, 4, 16])
    q, k, v = (
        dt.transpose(dt.reshape(dense(dt.reshape(whole, [-1, 16]), 16, 16, i), [rows, 4, 2, 8]), [0, 2, 1, 3])
        for i in range(3)
    )
    weights = dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * 0.3)
    return dt.reshape(dt.transpose(dt.matmul(weights, v), [0, 2, 1, 3]), [rows, 64])


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean of squares": lambda x, y: dt.reduce_mean(dt.square(dense(x, 64, 64, 1) - y)),
    "sum of distances": lambda x, y: dt.reduce_sum(dt.abs(dt.tanh(dense(x, 64, 64, 1)) - y)),
    "gelu": lambda x, y: dt.reduce_mean(dt.square(dense(gelu(dense(x, 64, 300, 1)), 300, 64, 2) - y)),
    "layer norm": lambda x, y: dt.reduce_mean(dt.square(dense(norm(dense(norm(x), 64, 64, 1)), 64, 64, 2) - y)),
    "softmax": lambda x, y: dt.reduce_mean(
        dt.nn.softmax_cross_entropy_with_logits(labels=dt.nn.softmax(y), logits=dense(x, 64, 64, 1))
    ),
    "sigmoid": lambda x, y: dt.reduce_mean(
        dt.nn.sigmoid_cross_entropy_with_logits(labels=dt.cast(y > 0, dt.float32), logits=dense(x, 64, 64, 1))
    ),
    "mean over the batch": lambda x, y: dt.reduce_mean(dt.square(x - dt.reduce_mean(x, 0)) * y),
    "sum over each example": lambda x, y: dt.reduce_mean(dt.reduce_sum(dt.square(dense(x, 64, 64, 1)), 1) * y[:, 0]),
    "attention": lambda x, y: dt.reduce_mean(dt.square(heads(x) + x - y)),
    "normalised": lambda x, y: dt.reduce_mean(dt.nn.l2_normalize(dense(x, 64, 64, 1), -1) * y),
}


def program(name: str, rows: int | None) -> tuple[list[Tensor], list[Tensor]]:
    with dt.Graph().as_default():
        x, y = dt.placeholder(dt.float32, [rows, 64], name="x"), dt.placeholder(dt.float32, [rows, 64], name="y")
        loss = PROGRAMS[name](x, y)
        return [loss, *dt.gradients(loss, x)], [x, y]


def bytes_of(tensors: Sequence[Tensor], rows: int) -> int:
    return sum(int(np.prod([rows if d is None else d for d in t.dims or ()])) * t.dtype.size for t in tensors)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_moves_no_more_bytes_than_one_of_known_size(name: str) -> None:
    rows, moved = 256, []
    for given in (rows, None):
        partition = rewrite(partition_of(*program(name, given)), EVERYTHING)[0]
        backend = NumbaBackend(fuse_small=True)
        backend.options = EVERYTHING
        steps = run_graph_passes(partition, backend, lambda node: pytest.fail("no node has state")).steps
        kernels = [s for s in steps if isinstance(s, FusedKernel)]
        moved.append(sum(bytes_of((*k.inputs, *k.outputs), rows) for k in kernels))
    known, unknown = moved
    assert unknown <= known * 1.02


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_gives_the_same_bits_as_one_of_known_size(name: str, rows: int) -> None:
    random = np.random.default_rng(0)
    values = [random.standard_normal((rows, 64)).astype(np.float32) for _ in range(2)]
    known, unknown = (partition_of(*program(name, given)) for given in (rows, None))
    mine, theirs = (evaluate(rewrite(partition, EVERYTHING)[0], values) for partition in (unknown, known))
    for a, b, written in zip(mine, theirs, evaluate(unknown, values), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, written, rtol=2e-4, atol=1e-6)  # there are functions that are recognised


def test_an_empty_batch_is_none() -> None:
    for name in ("layer norm", "gelu", "sum over each example"):
        partition = partition_of(*program(name, None))
        values = [np.zeros((0, 64), np.float32)] * 2
        for mine, theirs in zip(
            evaluate(rewrite(partition, EVERYTHING)[0], values), evaluate(partition, values), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)


# --- what does not fit ---------------------------------------------------------------------------------------------------


def test_operands_that_do_not_fit_are_told_of_in_their_place() -> None:
    with dt.Graph().as_default():
        fetches, (x, y) = program("mean of squares", None)
    with dt.Session(graph=x.graph) as session:
        one, seven = np.ones((5, 64), np.float32), np.ones((7, 64), np.float32)
        session.run(fetches, {x: one, y: one})
        with pytest.raises(dt.errors.InvalidArgumentError, match=r"(?s)5, ?64.*7, ?64.*'sub'.*test_symbolic_shape.py"):
            session.run(fetches, {x: one, y: seven})


@pytest.mark.parametrize("name", ["mean of squares", "layer norm", "sum of distances"])
def test_what_is_repeated_after_all(name: str) -> None:
    """A size that turns out to be 1 meets another one: no kernel was made for that, and the numbers are right all the same."""
    fetches, (x, y) = program(name, None)
    values = {
        x: np.linspace(-1, 1, 320, dtype=np.float32).reshape(5, 64),
        y: np.linspace(-2, 1, 64, dtype=np.float32)[None],
    }
    wanted = evaluate(partition_of(fetches, [x, y]), list(values.values()))
    with dt.Session(graph=x.graph) as session:
        for mine, theirs in zip(session.run(fetches, values), wanted, strict=True):
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_reshape_that_may_fail_stays() -> None:
    with dt.Graph().as_default():
        x, y = dt.placeholder(dt.float32, [None, 4]), dt.placeholder(dt.float32, [None, 4])
        same = dt.abs(dt.reshape(x * 2.0, dt.shape(y)))
        rest = dt.abs(dt.reshape(x * 2.0, dt.stack([dt.shape(x)[0], -1])))
    for fetched in (same, rest):
        left = [n.type for n in rewrite(partition_of([fetched], [x, y]), EVERYTHING)[0].steps]  # type: ignore[union-attr]
        assert "Reshape" in left


SIZES = dt.placeholder(dt.int32, [1_000_000_007])  # as many as the number that stands for a length that is not known
ANY, IMAGES = dt.placeholder(dt.float32, None), dt.placeholder(dt.float32, [1, 3, 3, 1])
IMAGE = {"data_format": "NHWC", "strides": (1, 1, 1, 1), "padding": "SAME", "dilations": (1, 1, 1, 1)}


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Conv2DBackpropInput", (SIZES, ANY, IMAGES), {**IMAGE, "explicit_paddings": ()}),
        ("Fill", (SIZES, ANY), {}),
        ("Pad", (ANY, dt.placeholder(dt.int32, [1_000_000_007, 2])), {}),
        ("Slice", (ANY, SIZES, SIZES), {}),
        ("StridedSlice", (ANY, SIZES, SIZES, SIZES), {}),
        ("Tile", (ANY, SIZES), {}),
        ("Transpose", (ANY, SIZES), {}),
    ],
)
def test_the_length_of_a_vector_of_sizes_is_no_rank(op: str, inputs: Sequence[Tensor], attrs: dict[str, Any]) -> None:
    """A shape rule that takes the number for a rank would fill the memory."""
    try:
        ((_, dims),) = opdef(op).infer(inputs, attrs)
    except ValueError:
        return
    assert dims is None or len(dims) == 4


def test_convolutions_of_images_whose_rank_is_not_known() -> None:
    with dt.Graph().as_default():
        x, factor = dt.placeholder(dt.float32, [None, 8, 8, 1]), dt.placeholder(dt.float32)
        kernel = dt.ones([3, 3, 1, 1])
        y = dt.nn.conv2d(dt.nn.conv2d(x, kernel, 1, "SAME") * factor, kernel, 1, "SAME")
        (gradient,) = dt.gradients(y, x)
        with dt.Session() as session:
            found = session.run(gradient, {x: np.ones([2, 8, 8, 1]), factor: 0.5})
    assert found[0, 4, 4, 0] == 81 * 0.5
