"""What is known before the graph runs: values, and shapes of which a part is known."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.constant_value import static_dims, static_value
from dovetail.graph.core.graph import Graph
from dovetail.graph.ops.array.concat_stack import concat, stack
from dovetail.graph.ops.array.creation import fill, ones_like
from dovetail.graph.ops.array.gather import gather
from dovetail.graph.ops.array.identity_and_placeholders import identity, placeholder_with_default
from dovetail.graph.ops.array.ranges import range as range_
from dovetail.graph.ops.array.shapes import expand_dims, rank, reshape, shape, size
from dovetail.graph.ops.math import arithmetic as a
from dovetail.graph.ops.math.cast import cast
from dovetail.graph.ops.math.compare import where_v2
from dovetail.graph.ops.math.reduce import reduce_prod
from dovetail.graph.ops.random.random import random_uniform
from dovetail.graph.variables.variable import Variable


@pytest.fixture(autouse=True)
def _graph():
    with Graph().as_default():
        yield


def known():
    return placeholder("float32", [2, 3])


def partly():
    return placeholder("float32", [None, 3, 4])


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: constant([1, 2]), [1, 2]),
        (lambda: shape(known()), [2, 3]),
        (lambda: size(known()), 6),
        (lambda: rank(partly()), 3),
        (lambda: shape(known())[0] * 2 + 1, 5),
        (lambda: shape(partly())[1], 3),
        (lambda: shape(partly())[1:], [3, 4]),
        (lambda: shape(partly())[-1] * shape(partly())[1], 12),
        (lambda: reduce_prod(shape(known())), 6),
        (lambda: range_(rank(partly())), [0, 1, 2]),
        (lambda: stack([shape(partly())[2], 7]), [4, 7]),
        (lambda: concat([shape(known()), [9]], 0), [2, 3, 9]),
        (lambda: cast(shape(known()), "int64"), [2, 3]),
        (lambda: identity(constant(3)), 3),
        (lambda: gather(shape(partly()), [2, 1]), [4, 3]),
        (lambda: fill([2], 5), [5, 5]),
        (lambda: ones_like(constant([1, 2])), [1, 1]),
        (lambda: a.maximum(shape(partly()), 1)[1], 3),
    ],
)
def test_known_values(build, expected):
    found = static_value(build())
    assert found is not None
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda: placeholder("int32", []),
        lambda: placeholder_with_default(3, []),
        lambda: shape(placeholder("float32")),
        lambda: shape(partly()),
        lambda: shape(partly())[0],
        lambda: size(partly()),
        lambda: rank(placeholder("float32")),
        lambda: random_uniform([2]),
        lambda: Variable(3).value(),
        lambda: reduce_prod(shape(partly())),
        lambda: a.floordiv(constant(1), constant(0)),
        lambda: reshape(constant([1, 2]), constant([2])) + placeholder("int32", [2]),
    ],
)
def test_unknown_values(build):
    assert static_value(build()) is None


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: constant([2, -1]), (2, None)),
        (lambda: shape(partly()), (None, 3, 4)),
        (lambda: shape(partly())[:2], (None, 3)),
        (lambda: shape(partly())[::-1], (4, 3, None)),
        (lambda: stack([shape(partly())[0], 10]), (None, 10)),
        (lambda: stack([placeholder("int32", []), 10]), (None, 10)),
        (lambda: stack([-1, shape(partly())[2] * 3]), (None, 12)),
        (lambda: concat([shape(partly())[:1], [5, 6]], 0), (None, 5, 6)),
        (lambda: concat([expand_dims(shape(partly())[0], 0), [5]], 0), (None, 5)),
        (lambda: cast(shape(partly()), "int64"), (None, 3, 4)),
        (lambda: identity(shape(partly())), (None, 3, 4)),
        (lambda: shape(partly()) * [1, 2, 1], (None, 6, 4)),
        (lambda: where_v2([True, False, True], shape(partly()), [7, 8, 9]), (None, 8, 4)),
        (lambda: gather(shape(partly()), [2, 0]), (4, None)),
        (lambda: placeholder("int32", [3]), (None, None, None)),
        (lambda: placeholder("int32", [None]), None),
        (lambda: placeholder("int32"), None),
        (lambda: constant(np.zeros(0, np.int32)), ()),
    ],
)
def test_partly_known_shapes(build, expected):
    assert static_dims(build()) == expected


def test_shared_subexpressions_are_looked_at_once():
    y = shape(placeholder("float32", [1]))[0]
    for _ in range(30):
        y = y + y  # 2 ** 30 paths
    started = time.perf_counter()
    found = static_value(y)
    assert time.perf_counter() - started < 1
    assert found == 2**30


def test_long_chains_and_large_values_are_not_worked_out():
    y = shape(known())[0]
    for _ in range(1000):
        y = y + 1
    assert static_value(y) is None
    assert static_value(fill([1000, 1000], 1.0)) is None
    assert static_value(constant(np.zeros((200, 200)))) is not None
