"""Rows for ops that pass values on, order nodes, check, print, or call Python."""

from __future__ import annotations

import gc
import io
import zlib
from contextlib import redirect_stderr

import array_ops as a
import numpy as np
import pytest
from op_table import OpCase, ScriptCase, real
from reference_interpreter import Interpreter

from dovetail.graph.core.build import apply, constant, placeholder
from dovetail.graph.core.errors import InternalError, InvalidArgumentError
from dovetail.graph.core.graph import Graph
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.control import python_function
from dovetail.graph.ops.state import collectives as c


def run(fetches, feeds=None):
    first = fetches[0] if isinstance(fetches, (list, tuple)) else fetches
    return Interpreter(first.graph, check=True).run(fetches, feeds)


def _gates():
    x = placeholder("float32", [2])
    assert gradients(a.stop_gradient(x) * x, [x]) is not None
    stopped = a.stop_gradient(x) * x
    (grad,) = gradients(stopped, [x])
    np.testing.assert_array_equal(run([stopped, grad], {x: [3, 4]}), [[9, 16], [3, 4]])
    with pytest.raises(LookupError, match="no second derivative"):
        gradients(a.prevent_gradient(x, "no second derivative") ** 2, [x])


def _default_or_fed():
    x = placeholder("float32", [2])
    y = a.placeholder_with_default(x * 2, [None])
    assert y.dims == (None,)
    np.testing.assert_array_equal(run(y, {x: [1, 2]}), [2, 4])
    np.testing.assert_array_equal(run(y, {y: [1, 2, 3]}), [1, 2, 3])
    (grad,) = gradients(y, [x])
    np.testing.assert_array_equal(run(grad, {x: [1, 2]}), [2, 2])
    with pytest.raises(ValueError, match="does not fit"):
        a.placeholder_with_default(x, [3])


def _groups():
    x, y = constant(1.0, name="x"), constant(2.0, name="y")
    both = a.group(x, [y.op])
    assert both.name == "group_deps" and both.control_inputs == [x.op, y.op] and both.type == "NoOp"
    with both.graph.device("/job:ps/task:1"):
        z = constant(3.0, name="z")
    spread = a.group(x, z, name="all")
    assert [(n.name, n.device) for n in spread.control_inputs] == [
        ("all/NoOp", ""),
        ("all/NoOp_1", "/job:ps/task:1"),
    ]
    assert [n.control_inputs for n in spread.control_inputs] == [[x.op], [z.op]]
    assert spread.device == "" and a.group().control_inputs == []
    with both.graph.device("/job:ps"):
        v = constant(4.0, name="v")
    with both.graph.device("/job:worker/task:1"):
        alone, beside = a.group(v), a.group(v, z, name="beside")
    assert alone.device == "/job:ps" and {n.device for n in beside.control_inputs} == {"/job:ps", "/job:ps/task:1"}
    first, none, second = a.tuple([x, None, y])
    assert none is None and {n.name for n in first.op.control_inputs} == {"tuple/group_deps"} == {
        n.name for n in second.op.control_inputs
    }
    assert run([first, second]) == [1.0, 2.0]
    with pytest.raises(TypeError, match="group takes nodes"):
        a.group(3)


def _prints():
    x = placeholder("float32", [4])
    shown = a.Print(x, [x, constant("text"), constant([True])], "values: ", first_n=2)
    assert gradients(shown, [x])[0] is not None
    told = io.StringIO()
    session = Interpreter(x.graph)
    with redirect_stderr(told):
        for _ in range(3):
            np.testing.assert_array_equal(session.run(shown, {x: [1, 2, 3, 4]}), [1, 2, 3, 4])
    assert told.getvalue() == "values: [1.0 2.0 3.0...][text][1]\n" * 2


def _asserts():
    x = placeholder("float32", [])
    check = a.Assert(x > 0, [x, constant("is not positive")])
    session = Interpreter(x.graph)
    assert session.run(check, {x: 1.0}) is None
    with pytest.raises(InvalidArgumentError, match=r"assertion failed: \[-1.0\] \[is not positive\]"):
        session.run(check, {x: -1.0})
    with pytest.raises(TypeError):
        a.Assert(x, [x])


def _checksums():
    x, y = placeholder("float32", [2]), placeholder("int8", [3])
    sums = c.checksum([x, y], every=2)
    check = c.check_same(
        a.stack([sums, [zlib.crc32(np.float32([1, 2])), zlib.crc32(b"abc")]]), ["x", "y"], ["/cpu:0", "/cpu:1"]
    )
    session = Interpreter(x.graph)
    fed = {x: [1, 2], y: [97, 98, 99]}
    assert session.run(sums, fed).tolist() == [0, 0]  # not its turn
    assert session.run([sums, check], fed)[0].tolist() == [zlib.crc32(np.float32([1, 2])), zlib.crc32(b"abc")]
    other = {x: [1, 2], y: [97, 98, 100]}
    session.run(check, other)
    with pytest.raises(
        InternalError, match="variable 'y' differ after 3 updates.* /cpu:0 has [0-9a-f]{8}, /cpu:1 has 352441c2"
    ):
        session.run(check, other)
    for wrong, error in (
        (lambda: c.checksum([x], every=0), ValueError),
        (lambda: c.checksum([constant("a")]), TypeError),
    ):
        with pytest.raises(error):
            wrong()
    with pytest.raises(ValueError, match="a row for each replica"):
        c.check_same(sums, ["x", "y"], ["/cpu:0", "/cpu:1"])


PASSING = [
    OpCase("Identity", a.identity, [real(2, 3)], lambda x: x, ("float32", "bfloat16", "bool", "int8"), True),
    ScriptCase(("StopGradient", "PreventGradient"), _gates),
    ScriptCase(("PlaceholderWithDefault",), _default_or_fed),
    ScriptCase(("NoOp",), _groups),
    ScriptCase(("Print",), _prints),
    ScriptCase(("Assert",), _asserts),
    ScriptCase(("Checksum", "SameChecksums"), _checksums),
]


def _python_functions():
    x = placeholder("float32", [2])

    def twice(v):
        v *= 2  # its own copy
        return v

    y = a.py_func(twice, [x], "float32")
    session = Interpreter(x.graph)
    fed = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(session.run(y, {x: fed}), [2, 4])
    np.testing.assert_array_equal(fed, [1, 2])
    total, count = a.numpy_function(lambda v: (v.sum(), 2), [x], ["float32", "int64"], stateful=False)
    assert session.run([total, count], {x: fed}) == [3, 2]
    eager = a.py_function(lambda v: v.numpy().max(), [x], "float32")
    assert session.run(eager, {x: fed}) == 2
    with pytest.raises(LookupError, match="has no gradient"):
        gradients(eager, [x])
    seen = []
    effect = a.py_func(seen.append, [x], [])
    session.run(effect, {x: fed})
    assert len(seen) == 1
    listed = a.py_func(lambda v: [v.tolist()], [x], "float32")  # one value, in a list of values
    assert session.run(listed, {x: fed}).shape == fed.shape
    zeros = a.py_func(lambda v: [b"a\0", "b\0"], [x], "string")  # bytes of 0 at the end stay
    assert session.run(zeros, {x: fed}).tolist() == [b"a\0", b"b\0"]
    for value, text in ((2.5, "the fraction of 2.5 would be lost"), (2**40, "does not fit into int32")):
        lossy = a.py_func(lambda v, value=value: value, [x], "int32")
        with pytest.raises(InvalidArgumentError, match=f"0-th value returned by the Python function: .*{text}"):
            session.run(lossy, {x: fed})
    wrong = a.py_func(lambda v: v.astype(np.float64), [x], "float32")
    with pytest.raises(
        InvalidArgumentError,
        match="0-th value returned by the Python function is float64, but expects float32",
    ):
        session.run(wrong, {x: fed})


def _functions_stay_at_home():
    x = placeholder("float32", [2])
    y = a.py_func(lambda v: v, [x], "float32")
    attrs = {**y.op.attrs, "process": "another"}
    stranger = apply(y.op.type, (x,), attrs)
    with pytest.raises(InvalidArgumentError, match="only in the client's own process"):
        run(stranger, {x: [1, 2]})


def _functions_die_with_their_graph():
    def build():
        with Graph().as_default():
            x = placeholder("float32", [2])
            y = a.py_func(lambda v: x.dims, [x], "float32")  # the function refers to its own graph
            return y.op.attrs["token"]

    token = build()
    gc.collect()
    assert token not in python_function._functions


PYTHON = [
    ScriptCase(("PyFunc", "PyFuncStateless", "EagerPyFunc"), _python_functions),
    ScriptCase(("PyFunc",), _functions_stay_at_home, label="PyFunc-elsewhere"),
    ScriptCase((), _functions_die_with_their_graph, label="PyFunc-lifetime"),
]

CASES = [*PASSING, *PYTHON]
