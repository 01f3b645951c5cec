"""Random ops: they draw what Philox says from the right stream; seeds, steps, sessions, names; bad arguments.

The distributions themselves are tested in test_philox.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from op_table import ScriptCase
from reference_interpreter import Interpreter
from scipy import stats

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.default_graph import get_default_graph, set_random_seed
from dovetail.graph.core.dtypes import FLOATS
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.graph import Graph, Node, Tensor
from dovetail.graph.core.philox import Stream, key_from
from dovetail.graph.ops.random import random, stateless_random
from dovetail.graph.ops.random.random_common import get_seed
from dovetail.graph.resources.resource_manager import SessionState


def _session(seed: int | None = None) -> Callable[..., Any]:
    return Interpreter(get_default_graph(), session_state=SessionState(seed), check=True).run


def _drawing(scaled: Tensor) -> Node:
    """The node behind `drawn * factor + offset`."""
    return scaled.op.inputs[0].op.inputs[0].op


def _floats() -> None:
    methods = ("uniform", "normal", "truncated_normal")
    for op, method in zip(("RandomUniform", "RandomStandardNormal", "TruncatedNormal"), methods, strict=True):
        for dtype in FLOATS:
            node = get_default_graph().create(
                op, (constant([3, 5]),), {"dtype": dtype, "seed": 7, "seed2": 8}, name=f"{op}_{dtype.name}"
            )
            run = _session()
            for step in range(3):
                expected = getattr(Stream((7, 8), step), method)((3, 5), dtype.np)
                np.testing.assert_array_equal(run(node.outputs[0]), expected)


def _scaling() -> None:
    set_random_seed(5)
    low = random.random_uniform([20_000], -3.0, 5.0)
    normal = random.random_normal([20_000], mean=[2.0], stddev=3.0, dtype="float64")
    cut = random.truncated_normal([20_000], 10.0, 0.5)
    values = _session()([low, normal, cut])
    assert stats.kstest(values[0], stats.uniform(-3, 8).cdf).pvalue > 1e-3
    assert stats.kstest(values[1], stats.norm(2, 3).cdf).pvalue > 1e-3
    assert stats.kstest(values[2], stats.truncnorm(-2, 2, 10, 0.5).cdf).pvalue > 1e-3


def _names() -> None:
    random.random_uniform([2, 3], -1.0, name="u")
    random.random_normal([2])
    random.truncated_normal([2])
    random.random_uniform([2], maxval=5, dtype="int32")
    names = [(n.name, n.type) for n in get_default_graph().nodes]
    assert names == [
        ("u/shape", "Const"),
        ("u/min", "Const"),
        ("u/max", "Const"),
        ("u/RandomUniform", "RandomUniform"),
        ("u/sub", "Sub"),
        ("u/mul", "Mul"),
        ("u", "AddV2"),
        ("random_normal/shape", "Const"),
        ("random_normal/mean", "Const"),
        ("random_normal/stddev", "Const"),
        ("random_normal/RandomStandardNormal", "RandomStandardNormal"),
        ("random_normal/mul", "Mul"),
        ("random_normal", "AddV2"),
        ("truncated_normal/shape", "Const"),
        ("truncated_normal/mean", "Const"),
        ("truncated_normal/stddev", "Const"),
        ("truncated_normal/TruncatedNormal", "TruncatedNormal"),
        ("truncated_normal/mul", "Mul"),
        ("truncated_normal", "AddV2"),
        ("random_uniform/shape", "Const"),
        ("random_uniform/min", "Const"),
        ("random_uniform/max", "Const"),
        ("random_uniform", "RandomUniformInt"),
    ]


def _integers() -> None:
    for dtype in ("int32", "int64", "uint32", "uint64"):
        x = random.random_uniform([7000], 3, 10, dtype=dtype, seed=1)
        value = _session()(x)
        assert value.dtype == np.dtype(dtype)
        counts = np.bincount(value.astype(np.int64))
        assert counts[:3].sum() == 0
        assert stats.chisquare(counts[3:]).pvalue > 1e-3
        assert len(counts) == 10
    with pytest.raises(InvalidArgumentError, match="minval must be less than maxval: 4 >= 4"):
        _session()(random.random_uniform([2], 4, 4, dtype="int32"))
    assert _session()(random.random_uniform([0], 4, 4, dtype="int32")).shape == (0,)


def _shuffle() -> None:
    x = random.random_shuffle(np.arange(20).reshape(10, 2), seed=3)
    run = _session()
    first, second = run(x), run(x)
    assert sorted(map(tuple, first)) == [(2 * i, 2 * i + 1) for i in range(10)]
    assert (first != second).any()
    np.testing.assert_array_equal(first, _session()(x))
    assert _session()(random.random_shuffle(5.0)) == 5.0


def _multinomial() -> None:
    p = np.array([[0.1, 0.0, 0.6, 0.3], [0.25, 0.25, 0.5, 0.0]])
    with np.errstate(divide="ignore"):
        logits = np.log(p) + np.array([[3.0], [-700.0]])
    for dtype in (None, "int32"):
        x = random.categorical(logits, 8000, dtype=dtype, seed=9)
        assert x.dims == (2, 8000)
        value = _session()(x)
        for row in range(2):
            counts = np.bincount(value[row], minlength=4)
            assert counts[p[row] == 0].sum() == 0
            assert stats.chisquare(counts[p[row] > 0], 8000 * p[row][p[row] > 0]).pvalue > 1e-3
    assert random.multinomial(constant(logits), placeholder("int32", [])).dims == (2, None)


def _crop() -> None:
    image = np.arange(30).reshape(5, 6)
    x = random.random_crop(image, [2, 3], seed=2)
    assert x.dims == (2, 3)
    run = _session()
    seen = set()
    for _ in range(200):
        part = run(x)
        r, c = divmod(int(part[0, 0]), 6)
        np.testing.assert_array_equal(part, image[r : r + 2, c : c + 3])
        seen.add((r, c))
    assert len(seen) == 16  # every place comes up


def _sessions_and_steps() -> None:
    seeded = random.random_uniform([4], seed=1)
    free = random.random_uniform([4])
    other = random.random_uniform([4])
    one, two = _session(10), _session(11)
    a, b = one([seeded, free, other]), two([seeded, free, other])
    np.testing.assert_array_equal(a[0], b[0])
    assert (a[1] != b[1]).any()
    assert (a[1] != a[2]).any()  # the name is in the key
    again = one([seeded, free])
    assert (again[0] != a[0]).any()
    assert (again[1] != a[1]).any()
    np.testing.assert_array_equal(two(seeded), again[0])
    # A node that does not run does not draw: its series does not depend on its neighbours.
    replay = _session(10)
    np.testing.assert_array_equal(replay(free), a[1])
    np.testing.assert_array_equal(replay([free, other, seeded])[0], again[1])
    key = key_from(10, _drawing(free).name)
    np.testing.assert_array_equal(a[1], Stream(key, 0).uniform((4,), np.dtype(np.float32)))


def _seed_rules() -> None:
    largest = 2**31 - 1
    graph = get_default_graph()
    assert get_seed(None) == (None, None)
    assert get_seed(5) == (87654321, 5)
    assert get_seed(2**31) == (87654321, 1)
    set_random_seed(0)
    assert get_seed(0) == (0, largest)
    assert get_seed(3) == (0, 3)
    set_random_seed(12)
    assert get_seed(-1) == (12, largest - 1)
    assert get_seed(None) == (12, graph.version)
    x = random.random_uniform([2])
    y = random.random_uniform([2])
    a, b = _drawing(x).attrs, _drawing(y).attrs
    assert a["seed"] == b["seed"] == 12
    assert a["seed2"] == 3  # shape, min and max were there
    assert b["seed2"] == 10
    with Graph().as_default():  # the same program gives the same seeds
        set_random_seed(12)
        assert _drawing(random.random_uniform([2])).attrs["seed2"] == 3


def _shapes() -> None:
    known = random.random_normal(constant([2, 3]), seed=1)
    assert known.dims == (2, 3)
    size = placeholder("int32", [2])
    later = random.random_normal(size, seed=1)
    assert later.dims == (None, None)
    assert random.random_normal(placeholder("int64")).dims is None
    assert random.random_normal([]).dims == ()
    run = _session()
    np.testing.assert_array_equal(run(later, {size: [2, 3]}), run(known))
    with pytest.raises(InvalidArgumentError, match="a size cannot be negative"):
        run(later, {size: [2, -3]})


def _errors() -> None:
    graph = get_default_graph()
    with pytest.raises(ValueError, match="Must specify maxval for integer dtype int32"):
        random.random_uniform([2], dtype="int32")
    with pytest.raises(TypeError, match="int8 is not supported"):
        random.random_uniform([2], maxval=3, dtype="int8")
    with pytest.raises(ValueError, match="a size cannot be negative: \\[-2\\]"):
        random.random_normal([-2])
    with pytest.raises(ValueError, match="unknown size"):
        random.random_normal([None, 2])
    with pytest.raises(TypeError, match="the shape must be int32 or int64, not float32"):
        random.random_normal([1.5])
    with pytest.raises(ValueError, match="attr seed must be an int of 32 bits"):
        graph.create("RandomUniform", (constant([2]),), {"dtype": FLOATS[0], "seed": 2**40, "seed2": 0})
    with pytest.raises(ValueError, match="logits: Shape must be rank 2 but is rank 1"):
        random.multinomial([0.5, 0.5], 3)
    with pytest.raises(ValueError, match="the seed must hold two numbers, not 3"):
        stateless_random.stateless_random_normal([2], [1, 2, 3])
    with pytest.raises(InvalidArgumentError, match="num_samples cannot be negative"):
        count = placeholder("int32", [])
        _session()(random.multinomial([[0.5, 0.5]], count), {count: -1})


def _stateless() -> None:
    seed = placeholder("int64", [2])
    shape = [50]
    draws = [
        stateless_random.stateless_random_uniform(shape, seed, dtype="float64"),
        stateless_random.stateless_random_normal(shape, seed, dtype="float64"),
        stateless_random.stateless_truncated_normal(shape, seed, dtype="float64"),
        stateless_random.stateless_random_uniform(shape, seed, -100, 100, dtype="int64"),
    ]
    run = _session()
    seeds = [[1, 2], [2, 1], [1 + 2**32, 2], [1, 2 + 2**32], [-1, 2], [1, -2]]
    results = [run(draws, {seed: s}) for s in seeds]
    for s, result in zip(seeds, results, strict=True):
        for a, b in zip(result, run(draws, {seed: s}), strict=True):
            np.testing.assert_array_equal(a, b)
    for kind in range(4):
        assert len({r[kind].tobytes() for r in results}) == len(seeds)
    float64 = np.dtype(np.float64)
    np.testing.assert_array_equal(results[0][1], Stream((1, 2)).normal((50,), float64))
    np.testing.assert_array_equal(results[2][0], Stream((1, 2), 1).uniform((50,), float64))
    np.testing.assert_array_equal(results[3][0], Stream((1, 2), 1 << 32).uniform((50,), float64))


CASES = [
    ScriptCase(("RandomUniform", "RandomStandardNormal", "TruncatedNormal"), _floats, "random floats"),
    ScriptCase(("RandomUniform",), _scaling, "random scaling"),
    ScriptCase(("RandomUniform",), _names, "random names"),
    ScriptCase(("RandomUniformInt",), _integers, "random integers"),
    ScriptCase(("RandomShuffle",), _shuffle, "random shuffle"),
    ScriptCase(("Multinomial",), _multinomial, "multinomial"),
    ScriptCase(("RandomUniformInt",), _crop, "random crop"),
    ScriptCase(("RandomUniform",), _sessions_and_steps, "random sessions and steps"),
    ScriptCase(("RandomUniform",), _seed_rules, "random seed rules"),
    ScriptCase(("RandomStandardNormal",), _shapes, "random shapes"),
    ScriptCase((), _errors, "random errors"),
    ScriptCase(
        (
            "StatelessRandomUniform",
            "StatelessRandomNormal",
            "StatelessTruncatedNormal",
            "StatelessRandomUniformInt",
        ),
        _stateless,
        "stateless draws",
    ),
]
