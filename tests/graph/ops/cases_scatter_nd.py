"""Changing elements and slices of variables by coordinates, in either kind of variable."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from op_table import ScriptCase, index, real
from reference_interpreter import Interpreter

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.ops.state.scatter_state import scatter_nd_add, scatter_nd_sub, scatter_nd_update
from dovetail.graph.ops.state.variables import assign
from dovetail.graph.variables.store import global_variables_initializer
from dovetail.graph.variables.variable import Variable

START = real(3, 4).astype(np.float32)
KINDS = {
    "Update": (scatter_nd_update, lambda old, new: new),
    "Add": (scatter_nd_add, lambda old, new: old + new),
    "Sub": (scatter_nd_sub, lambda old, new: old - new),
}
TARGETS = {
    "elements": index([[0, 1], [2, 3], [0, 1]]),
    "rows": index([[2], [0]]),
    "grid": index([[[1], [1]], [[0], [2]]]),
    "whole": np.zeros((2, 0), np.int32),
    "int64": np.array([[1, 1]], np.int64),
    "none": np.zeros((0, 2), np.int32),
}


def _expected(indices, updates, change):
    out = START.copy()
    for at in np.ndindex(indices.shape[:-1]):
        where = tuple(indices[at])
        out[where] = change(out[where], updates[at])
    return out


def _changes(kind, use_resource):
    function, change = KINDS[kind]
    for name, indices in TARGETS.items():
        updates = real(*indices.shape[:-1], *START.shape[indices.shape[-1] :], seed=3).astype(np.float32)
        v = Variable(START, name=name, use_resource=use_resource)
        changed = function(v, indices, updates)
        run = Interpreter(get_default_graph(), check=True)
        run.run(global_variables_initializer())
        before = run.run(v.read_value())
        after = run.run(changed)  # what stands for the variable after the change
        np.testing.assert_allclose(after, _expected(indices, updates, change), rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(run.run(v.read_value()), after)
        np.testing.assert_array_equal(before, START)  # a value once read stays


def _slices(use_resource):
    v = Variable(START, use_resource=use_resource)
    run = Interpreter(get_default_graph(), check=True)
    expected, row = START.copy(), placeholder("int32", [])
    slices = [
        (np.s_[1], 4),
        (np.s_[1:, ::-2], (2, 2)),
        (np.s_[..., 0], 3),
        (np.s_[0, None, 2:], (1, 2)),
        (np.s_[2, 3], ()),
    ]
    run.run(global_variables_initializer())
    for at, dims in slices:
        value = np.full(dims, 7.0, np.float32) + np.arange(np.prod(dims), dtype=np.float32).reshape(dims)
        expected[at] = value
        np.testing.assert_array_equal(run.run(v[at].assign(value)), expected)
        np.testing.assert_array_equal(run.run(assign(v[at], -value))[at], -value)
        np.testing.assert_array_equal(run.run(assign(v[at], value)), expected)
    before, expected[1] = run.run(v.read_value()), 1.0
    np.testing.assert_array_equal(run.run(v[row].assign([1.0] * 4), {row: 1}), expected)
    assert before[1, 0] != 1.0  # a value once read stays
    with pytest.raises(ValueError, match="the slice has shape"):
        v[1].assign([1.0])
    with pytest.raises(AttributeError, match="only variables and slices of variables can be assigned to"):
        (v * 2.0)[1].assign([1.0] * 4)
    assert not hasattr(constant(START), "assign")


def _errors(use_resource):
    v = Variable(START, use_resource=use_resource)
    unknown = Variable(START, validate_shape=False, name="unknown", use_resource=use_resource)
    indices = placeholder("int32", [None, None])
    updates = placeholder("float32")
    run = Interpreter(get_default_graph(), check=True)
    run.run(global_variables_initializer())
    for at in ([[0, 4]], [[0, 0], [-1, 0]]):
        with pytest.raises(InvalidArgumentError, match=r"does not index into shape \(3, 4\)"):
            run.run(scatter_nd_add(v, indices, updates), {indices: at, updates: np.ones(len(at))})
    with pytest.raises(InvalidArgumentError, match=r"updates must have shape \(1,\)"):
        run.run(scatter_nd_add(unknown, indices, updates), {indices: [[0, 1]], updates: np.ones((1, 4))})
    np.testing.assert_array_equal(run.run(v.read_value()), START)
    with pytest.raises(ValueError, match="updates must have shape"):
        scatter_nd_update(v, [[0]], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="cannot address a tensor of rank 2"):
        scatter_nd_update(v, [[0, 0, 0]], [1.0])
    with pytest.raises(TypeError, match="the variable holds float32, the updates is int32"):
        scatter_nd_update(v, [[0, 0]], constant([1]))
    with pytest.raises(TypeError, match="Expected a variable"):
        scatter_nd_update(constant(START), [[0, 0]], [1.0])


CASES = [
    *(
        ScriptCase((f"{'Resource' * r}ScatterNd{kind}",), partial(_changes, kind, r), f"{kind} {r}")
        for kind in KINDS
        for r in (False, True)
    ),
    *(
        ScriptCase((f"{'Resource' * r}ScatterNdAdd",), partial(_errors, r), f"scatter_nd errors {r}")
        for r in (False, True)
    ),
    *(ScriptCase((f"{'Resource' * r}StridedSliceAssign",), partial(_slices, r), f"slices {r}") for r in (False, True)),
]
