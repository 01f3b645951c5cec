"""Sums of products as one product: which sums change, and the numbers of those that do."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from rewriting import partition_of

import dovetail as dt
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.passes.sums_of_products import merge_summed_products

pytest.importorskip("numba")

Build = Callable[[Sequence[Any]], Any]


def product(x: Any, y: Any, **flags: bool) -> Any:
    return dt.matmul(x, y, **flags)


def sum_of_three(t: Sequence[Any]) -> Any:
    return dt.add_n([product(x, y, transpose_a=True) for x, y in zip(t[:3], t[3:], strict=True)])


def among_others(t: Sequence[Any]) -> Any:
    first, *rest = (product(x, y, transpose_a=True) for x, y in zip(t[:3], t[3:], strict=True))
    return dt.add_n([first, dt.ones([32, 48], first.dtype), *rest])


def each_in_its_order(t: Sequence[Any]) -> Any:
    return dt.add_n([product(dt.transpose(t[0]), t[3]), product(t[1], t[4], transpose_a=True)])


def one_in_its_order(t: Sequence[Any]) -> Any:
    return dt.add_n([product(dt.transpose(t[0]), t[3]), *(product(x, t[4], transpose_a=True) for x in t[1:3])])


def in_two_orders(t: Sequence[Any]) -> Any:
    flipped = [product(dt.transpose(x), y) for x, y in zip(t[:2], t[3:], strict=False)]
    return dt.add_n([*flipped, *(product(x, y, transpose_a=True) for x, y in zip(t[1:3], t[4:], strict=True))])


def fetched_too(t: Sequence[Any]) -> Any:
    terms = [product(x, y, transpose_a=True) for x, y in zip(t[:2], t[3:], strict=False)]
    return [dt.add_n(terms), terms[0]]


def larger_factors(t: Sequence[Any]) -> Any:
    return dt.add_n([product(x, y, transpose_b=True) for x, y in zip(t[3:5], t[4:], strict=True)])


def made(build: Build, batch: int | None = 4) -> tuple[PartitionGraph, PartitionGraph]:
    """The partition of three pairs of factors, and what the pass makes of it."""
    with dt.Graph().as_default():
        tensors = [dt.placeholder(dt.float32, [batch, width]) for width in (32,) * 3 + (48,) * 3]
        outputs = build(tensors)
        graph = partition_of(outputs if isinstance(outputs, list) else [outputs], tensors)
        return graph, merge_summed_products(graph)


def counted(graph: PartitionGraph, op: str) -> int:
    return sum(getattr(s, "type", "") == op for s in graph.steps)


@pytest.mark.parametrize(
    ("build", "products", "sums"),
    [(sum_of_three, 1, 0), (among_others, 1, 1), (in_two_orders, 2, 1), (one_in_its_order, 2, 1)],
)
def test_products_of_a_sum_become_one(build: Build, products: int, sums: int) -> None:
    _, merged = made(build)
    assert (counted(merged, "MatMul"), counted(merged, "AddN")) == (products, sums)


@pytest.mark.parametrize(
    "build", [fetched_too, each_in_its_order, larger_factors, lambda t: product(t[0], t[3], transpose_a=True)]
)
def test_other_sums_stay(build: Build) -> None:
    graph, merged = made(build)
    assert merged is graph


def test_products_of_an_unknown_batch_stay() -> None:
    graph, merged = made(sum_of_three, None)
    assert merged is graph


def test_a_loop_does_not_take_products_from_outside() -> None:
    x, y = np.ones((2, 8), np.float32), np.ones((2, 8), np.float32)

    def body(i: Any, total: Any) -> tuple[Any, Any]:
        inside = product(x * total[0, 0], y, transpose_a=True)
        return i + 1, dt.add_n([outside, inside])

    with dt.Graph().as_default():
        outside = product(x, dt.constant(y) * dt.placeholder_with_default(1.0, []), transpose_a=True)
        _, total = dt.while_loop(lambda i, _: i < 3, body, [0, dt.ones([8, 8])])
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
            np.testing.assert_array_equal(session.run(total), np.full((8, 8), 22.0, np.float32))


@pytest.mark.parametrize("build", [sum_of_three, among_others, in_two_orders, one_in_its_order])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64])
def test_the_sum_is_that_of_the_terms(build: Build, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((4, width)) for width in (32,) * 3 + (48,) * 3]
    results = []
    for config in (dt.ConfigProto(kernel_backend="numba"), dt.ConfigProto(graph_rewrite=0, kernel_backend="numba")):
        with dt.Graph().as_default():
            tensors = [dt.placeholder(dtype, v.shape) for v in values]
            total = build(tensors)
            with dt.Session(config=config) as session:
                results.append(session.run(total, dict(zip(tensors, values, strict=True))))
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)
