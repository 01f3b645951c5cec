"""Rows for picking elements by index and putting them back."""

from __future__ import annotations

import array_ops as a
import numpy as np
from op_table import OpCase, ScriptCase, index, real, whole
from reference_interpreter import Interpreter

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.tensors.indexed_slices import IndexedSlices


def run(fetches, feeds=None):
    first = fetches[0] if isinstance(fetches, (list, tuple)) else fetches
    return Interpreter(first.graph, check=True).run(fetches, feeds)


def _batched(params, indices, axis):
    return np.stack([np.take(p, i, axis - 1) for p, i in zip(params, indices, strict=True)])


def _hot(ids, depth, on, off):
    out = np.full((*ids.shape, depth), off, np.float64)
    for at in np.ndindex(ids.shape):
        if 0 <= ids[at] < depth:
            out[(*at, ids[at])] = on
    return out


def _scattered(indices, updates, shape):
    out = np.zeros(shape, updates.dtype)
    for at in np.ndindex(indices.shape[:-1]):
        out[tuple(indices[at])] += updates[at]
    return out


def _updated(x, indices, updates, change):
    x = x.copy()
    for at in np.ndindex(indices.shape[:-1]):
        place = tuple(indices[at])
        x[place] = change(x[place], updates[at])
    return x


def _sparse_gradient():
    """Along the first axis the gradient holds only the rows that were looked at."""
    table, ids = placeholder("float32", [5, 2]), constant([[1, 3], [1, 0]])
    rows = a.gather(table, ids)
    assert rows.op.name == "GatherV2" and rows.op.inputs[2].op.name == "GatherV2/axis"
    (grad,) = gradients(rows, [table])
    assert isinstance(grad, IndexedSlices)
    assert grad.values.dims == (4, 2) and grad.indices.dims == (4,) and grad.shape == [5, 2]
    dense = run(grad._as_tensor(), {table: np.zeros((5, 2))})
    np.testing.assert_array_equal(dense, [[1, 1], [2, 2], [0, 0], [1, 1], [0, 0]])


PLACES = index([[0, 2], [1, 0], [0, 2]])
DISTINCT = index([[0, 2], [1, 0], [1, 1]])

CASES = [
    ScriptCase(("GatherV2",), _sparse_gradient, label="sparse-gradient"),
    OpCase(
        "GatherV2",
        a.gather,
        [real(4, 3), index(3, 0, 3)],
        lambda x, i: x[i],
        ("float32", "bfloat16", "int8"),
        True,
    ),
    OpCase("GatherV2", a.gather, [real(4, 3), index(2)], lambda x, i: x[i], grad=True, label="one"),
    OpCase(
        "GatherV2",
        lambda x, i: a.gather(x, i, axis=1),
        [real(2, 4, 3), index([[0, 3], [3, 3]])],
        lambda x, i: x[:, i],
        grad=True,
        unknown=("dims",),
        label="axis-1",
    ),
    OpCase(
        "GatherV2",
        lambda x, i: a.gather(x, i, axis=-1),
        [real(2, 4), index(1, 1)],
        lambda x, i: x[:, i],
        grad=True,
        unknown=("dims",),
        label="last",
    ),
    OpCase(
        "GatherV2",
        lambda x, i: a.gather(x, i, batch_dims=1),
        [real(2, 4, 3), index([[0, 3, 0], [1, 1, 2]])],
        lambda x, i: _batched(x, i, 1),
        grad=True,
        unknown=("dims",),
        label="batch",
    ),
    OpCase(
        "GatherV2",
        lambda x, i: a.gather(x, i, axis=2, batch_dims=1),
        [real(2, 3, 4, 2), index([[[0, 3], [1, 0]], [[1, 1], [2, 3]]])],
        lambda x, i: _batched(x, i, 2),
        grad=True,
        unknown=("dims",),
        label="batch-between",
    ),
    OpCase(
        "GatherV2",
        lambda x, i, d: a.gather(x, i, axis=d),
        [real(3, 3), index(0, 0), index(1)],
        lambda x, i, d: x[:, i],
        dynamic=True,
        label="computed",
    ),
    OpCase(
        "GatherNd",
        a.gather_nd,
        [real(2, 3), PLACES],
        lambda x, i: x[i[:, 0], i[:, 1]],
        ("float32", "bfloat16", "int64"),
        True,
    ),
    OpCase(
        "GatherNd",
        a.gather_nd,
        [real(2, 3), index([[1], [0], [1]])],
        lambda x, i: x[i[:, 0]],
        grad=True,
        label="rows",
    ),
    OpCase(
        "GatherNd",
        a.gather_nd,
        [real(2, 3), np.zeros((2, 0), np.int32)],
        lambda x, i: np.stack([x, x]),
        grad=True,
        label="whole",
    ),
    OpCase(
        "GatherNd",
        lambda x, i: a.gather_nd(x, i, batch_dims=constant(1)),
        [real(2, 3), index([[2], [0]])],
        lambda x, i: x[[0, 1], [2, 0]],
        grad=True,
        unknown=("dims",),
        label="batch",
    ),
    OpCase(
        "ScatterNd",
        lambda i, u: a.scatter_nd(i, u, [2, 3]),
        [PLACES, real(3)],
        lambda i, u: _scattered(i, u, (2, 3)),
        ("float32", "bfloat16", "float16", "int32"),
        True,
    ),
    OpCase(
        "ScatterNd",
        lambda i, u: a.scatter_nd(i, u, [4, 2]),
        [index([[1], [3], [1]]), real(3, 2)],
        lambda i, u: _scattered(i, u, (4, 2)),
        grad=True,
        label="rows",
    ),
    OpCase(
        "ScatterNd",
        a.scatter_nd,
        [index([[1], [3]]), real(2), index([4])],
        lambda i, u, s: _scattered(i, u, (4,)),
        grad=True,
        dynamic=True,
        label="computed",
    ),
    OpCase(
        "TensorScatterUpdate",
        a.tensor_scatter_nd_update,
        [real(2, 3), DISTINCT, real(3)],
        lambda x, i, u: _updated(x, i, u, lambda o, n: n),
        ("float32", "bfloat16"),
        True,
    ),
    OpCase(
        "TensorScatterUpdate",
        a.tensor_scatter_nd_update,
        [whole(4), index([[1], [1]]), whole(2, seed=3)],
        lambda x, i, u: _updated(x, i, u, lambda o, n: n),
        ("int32",),
        label="last-wins",
    ),
    OpCase(
        "TensorScatterAdd",
        a.tensor_scatter_nd_add,
        [real(2, 3), PLACES, real(3)],
        lambda x, i, u: _updated(x, i, u, np.add),
        ("float32", "bfloat16", "float16", "int16"),
        True,
    ),
    OpCase(
        "TensorScatterSub",
        a.tensor_scatter_nd_sub,
        [real(2, 3), PLACES, real(3)],
        lambda x, i, u: _updated(x, i, u, np.subtract),
        grad=True,
    ),
    OpCase(
        "TensorScatterMin",
        a.tensor_scatter_nd_min,
        [real(2, 3), PLACES, real(3)],
        lambda x, i, u: _updated(x, i, u, np.minimum),
        ("float32", "bfloat16"),
        True,
    ),
    OpCase(
        "TensorScatterMax",
        a.tensor_scatter_nd_max,
        [real(2, 3), PLACES, real(3)],
        lambda x, i, u: _updated(x, i, u, np.maximum),
        grad=True,
    ),
    OpCase("OneHot", lambda i: a.one_hot(i, 3), [index([[0, 2], [-1, 5]])], lambda i: _hot(i, 3, 1, 0)),
    OpCase(
        "OneHot",
        lambda i: a.one_hot(i, 3, on_value=5, off_value=-1, axis=0),
        [index(0, 2)],
        lambda i: _hot(i, 3, 5, -1).T,
        label="axis-0",
    ),
    OpCase(
        "OneHot",
        lambda i: a.one_hot(i, 4, dtype="bfloat16"),
        [index(0, 2)],
        lambda i: _hot(i, 4, 1, 0),
        label="bfloat16",
    ),
    OpCase(
        "OneHot",
        lambda i: a.one_hot(i, 2, True, False),
        [np.array([1, 0], np.uint8)],
        lambda i: _hot(i, 2, 1, 0).astype(bool),
        label="bool",
    ),
    OpCase(
        "ReverseV2",
        lambda x: a.reverse(x, [0, -1]),
        [real(2, 3, 2)],
        lambda x: x[::-1, :, ::-1],
        ("float32", "bfloat16", "int8"),
        True,
    ),
    OpCase("ReverseV2", a.reverse, [real(2, 3), index([1])], lambda x, d: x[:, ::-1], grad=True, label="computed"),
]
