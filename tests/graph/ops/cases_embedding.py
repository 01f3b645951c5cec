"""Lookups in whole and sharded tables: rows, gradients by shard, devices, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_table import OpCase, ScriptCase, index, real
from reference_interpreter import Interpreter

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.array.embedding import embedding_lookup
from dovetail.graph.tensors.indexed_slices import IndexedSlices
from dovetail.graph.variables.store import global_variables_initializer
from dovetail.graph.variables.variable import Variable


def _table(shards: Any, strategy: str) -> Any:
    """The whole table that the shards hold."""
    rows = sum(len(s) for s in shards)
    if strategy == "div":
        return np.concatenate(shards)
    return np.stack([shards[r % len(shards)][r // len(shards)] for r in range(rows)])


def _sharded(strategy: str, max_norm: float | None = None) -> Any:
    return lambda *inputs: embedding_lookup(list(inputs[:-1]), inputs[-1], strategy, max_norm=max_norm)


def _oracle(strategy: str) -> Any:
    return lambda *inputs: _table(inputs[:-1], strategy)[inputs[-1]]


def _clip(rows: Any, limit: float) -> Any:
    norms = np.sqrt((rows**2).sum(-1, keepdims=True))
    return np.where(norms > limit, rows * limit / norms, rows)


IDS = index([[0, 6, 3], [3, 1, 2]])
SHARDS = [real(3, 2), real(2, 2, seed=1), real(2, 2, seed=2)]  # seven rows: one shard is longer

ROWS = [
    OpCase("GatherV2", embedding_lookup, [real(7, 2), IDS], lambda t, i: t[i], grad=True, label="embedding"),
    *(
        OpCase(
            "ParallelDynamicStitch",
            _sharded(strategy),
            [*SHARDS, ids],
            _oracle(strategy),
            ("float32", "float64"),
            grad=True,
            label=f"embedding {strategy} {label}",
        )
        for strategy in ("mod", "div")
        for label, ids in (
            ("matrix", IDS),
            ("one id", np.array(5, np.int64)),
            ("none", np.zeros((0,), np.int32)),
        )
    ),
    OpCase(
        "ParallelDynamicStitch",
        _sharded("div"),
        [real(1, 2), real(1, 2, seed=1), real(0, 2), index(1, 0, 1)],
        lambda a, b, c, i: np.concatenate([a, b])[i],
        grad=(0, 1),
        label="embedding fewer rows than shards",
    ),
    OpCase(
        "ParallelDynamicStitch",
        _sharded("mod"),
        [real(2, 2, 3), real(2, 2, 3, seed=1), index(3, 0)],
        _oracle("mod"),
        grad=True,
        label="embedding of matrices",
    ),
    OpCase(
        "GatherV2",
        lambda t, i: embedding_lookup(t, i, max_norm=1.5),
        [real(7, 2), IDS],
        lambda t, i: _clip(t[i], 1.5),
        grad=True,
        label="embedding clipped",
    ),
    OpCase(
        "ParallelDynamicStitch",
        _sharded("mod", 1.5),
        [*SHARDS, IDS],
        lambda *a: _clip(_oracle("mod")(*a), 1.5),
        grad=True,
        label="embedding sharded clipped",
    ),
]


def _run(fetches: Any, feeds: Any = None) -> Any:
    interpreter = Interpreter(get_default_graph(), check=True)
    interpreter.run(global_variables_initializer())
    return interpreter.run(fetches, feeds)


def _gradients_of_variables() -> None:
    """Only the rows that were looked up come back, for either kind of variable, as often as they were."""
    for use_resource in (False, True):
        table = Variable(np.arange(10.0).reshape(5, 2), use_resource=use_resource)
        rows = embedding_lookup(table, [4, 1, 4])
        (grad,) = gradients(rows * [[1.0], [10.0], [100.0]], [table])
        assert isinstance(grad, IndexedSlices)
        value, indices, values, dense = _run([rows, grad.indices, grad.values, grad._as_tensor()])
        np.testing.assert_array_equal(value, [[8, 9], [2, 3], [8, 9]])
        assert indices.tolist() == [4, 1, 4]
        np.testing.assert_array_equal(values, [[1, 1], [10, 10], [100, 100]])
        np.testing.assert_array_equal(dense, [[0, 0], [10, 10], [0, 0], [0, 0], [101, 101]])


def _devices() -> None:
    """Each shard's rows are gathered where the shard is; the result is free to be anywhere."""
    graph = get_default_graph()
    shards = []
    for task in range(2):
        with graph.device(f"/job:ps/task:{task}"):
            shards.append(Variable(np.ones((3, 2)), use_resource=bool(task)))
    with graph.device("/job:worker"):
        result = embedding_lookup(shards, [0, 1, 2])
        single = embedding_lookup(shards[0], [0])
    gathers = [n for n in graph.nodes if n.type in ("GatherV2", "ResourceGather")]
    assert [n.device for n in gathers] == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert result.device == "/job:worker"
    assert (single.device, single.op.type) == ("/job:worker", "Identity")
    assert single.op.colocation == ()


def _unknown_sizes() -> None:
    a, b = placeholder("float32", [None, None]), placeholder("float32", [None, None])
    feeds = {a: np.arange(6.0).reshape(3, 2), b: np.arange(6.0, 10.0).reshape(2, 2)}
    found = embedding_lookup([a, b], constant([4, 0, 3], "int64"), "div", max_norm=7.0)
    ranks = embedding_lookup([a, b], placeholder("int32"), "mod", max_norm=1e9)
    assert found.dims == (3, None)
    whole = np.arange(10.0).reshape(5, 2)
    np.testing.assert_allclose(_run(found, feeds), _clip(whole[[4, 0, 3]], 7.0), rtol=1e-6)
    ids = next(n for n in get_default_graph().nodes if n.type == "Placeholder" and n.outputs[0].dtype == "int32")
    np.testing.assert_array_equal(_run(ranks, {**feeds, ids.outputs[0]: [[1]]}), [[[6, 7]]])


def _errors() -> None:
    table = constant(np.ones((4, 2), np.float32))
    ids = placeholder("int32", [None])
    with pytest.raises(ValueError, match="partition_strategy must be 'mod' or 'div', not 'hash'"):
        embedding_lookup(table, [0], "hash")
    for nothing in ([], None, [None]):
        with pytest.raises(ValueError, match="Need at least one param"):
            embedding_lookup(nothing, [0])
    with pytest.raises(TypeError, match="must be int32 or int64"):
        embedding_lookup(table, [0.5])
    for rows in (
        embedding_lookup(table, ids),
        embedding_lookup([table, table], ids, "mod"),
        embedding_lookup([table, table], ids, "div"),
    ):
        for bad in (8, -1):
            with pytest.raises(InvalidArgumentError):
                _run(rows, {ids: [0, bad]})


CASES = [
    *ROWS,
    ScriptCase(("GatherV2",), _gradients_of_variables, "embedding gradients of variables"),
    ScriptCase(("GatherV2",), _devices, "embedding devices"),
    ScriptCase(("GatherV2",), _unknown_sizes, "embedding unknown sizes"),
    ScriptCase((), _errors, "embedding errors"),
]
