"""Graphs that are saved: every op of the table of op tests, by the package's own evaluator and loaded again; names, weights, errors."""

from __future__ import annotations

import importlib
import math
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_table import OpCase
from reference_interpreter import Interpreter

import dovetail as dt
from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.core.source_location import SourceLine
from dovetail.onnx import exporters as _exporters  # noqa: F401  (registers them)
from dovetail.onnx.writing import EXPORTERS

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")

TABLE = Path(__file__).parents[3] / "graph" / "ops"
ROWS = [
    row
    for path in sorted(TABLE.glob("cases_*.py"))
    for row in importlib.import_module(path.stem).CASES
    if isinstance(row, OpCase) and row.op in EXPORTERS
]

# Ops, and rows of ops, that the package's evaluator takes for something else, each with what it does.
OTHERWISE = {
    "MaxPool": "SAME_UPPER with strides gives it another size",
    "GatherNd": "it cannot reshape what is empty",
    "OneHot": "it has no booleans there",
    "Mean": "its sums of float16 overflow",
    "Range, counted in float32": "it counts in float64",
}


def _typed(row: OpCase, array: Any) -> Any:
    """An input in the type under test: float32 where the op has it."""
    dtype = as_dtype("float32" if "float32" in row.dtypes else row.dtypes[0])
    return array.astype(dtype.np) if array.dtype == np.float64 else array


def _same(got: Any, wanted: Any) -> None:
    for a, b in zip(map(np.asarray, got), map(np.asarray, wanted), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.dtype == object:
            assert a.tolist() == b.tolist()
        else:
            np.testing.assert_allclose(a.astype(b.dtype), b, rtol=1e-3, atol=1e-5)


def _row(row: OpCase, known: bool) -> str:
    """Save the row's graph, and run the model in two ways."""
    arrays = [_typed(row, np.asarray(a)) for a in row.inputs]
    dims = [a.shape if known else (None,) * a.ndim for a in arrays]
    with dt.Graph().as_default() as graph:
        inputs = [dt.placeholder(as_dtype(a.dtype), d) for a, d in zip(arrays, dims, strict=True)]
        made = row.build(*inputs)
        outputs = [dt.identity(o) for o in (made if isinstance(made, (list, tuple)) else [made])]
        wanted = Interpreter(graph).run(outputs, dict(zip(inputs, arrays, strict=True)))
        try:
            model = dt.onnx.export(
                {f"o{i}": o for i, o in enumerate(outputs)}, {f"i{i}": x for i, x in enumerate(inputs)}
            )
        except dt.errors.UnimplementedError:
            return "refused"
    feeds = {f"i{i}": a for i, a in enumerate(arrays)}
    with dt.Graph().as_default() as graph:
        loaded = dt.onnx.load(model, {f"i{i}": dt.placeholder(as_dtype(a.dtype), d)
                                      for i, (a, d) in enumerate(zip(arrays, dims, strict=True))})  # fmt: skip
        again = Interpreter(graph).run(list(loaded.outputs.values()), {loaded.inputs[k]: v for k, v in feeds.items()})
    _same(again, wanted)
    if OTHERWISE.keys().isdisjoint((row.op, f"{row.op}, {row.label}")) and not any(a.dtype == object for a in arrays):
        try:
            theirs = reference.ReferenceEvaluator(model).run(None, feeds)
        except (NotImplementedError, RuntimeError):  # its own limits
            return "not run"
        _same(theirs, wanted)
    return "right"


@pytest.mark.slow
def test_every_row_of_the_table_of_ops() -> None:
    told: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    right: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what overflows, in the package's evaluator and in ours
        for row in ROWS:
            for known in (True, False) if "dims" in row.unknown else (True,):
                try:
                    result = _row(row, known)
                    told[result] += 1
                    if result == "right":
                        right.add(row.op)
                except Exception as e:
                    wrong[f"{row.op}-{row.label}-{known}"] = f"{type(e).__name__}: {str(e).strip()[:300]}"
    assert not wrong, f"{told}; wrong: {wrong}"
    never = {r.op for r in ROWS} - right
    assert never <= {"PlaceholderWithDefault"}, f"never right: {never}"


@pytest.fixture(autouse=True)
def graph() -> Any:
    with dt.Graph().as_default() as made:
        yield made


def _network(x: Any, resource: bool) -> Any:
    """A small network of pictures with channels last."""
    w = dt.Variable(np.random.default_rng(0).normal(size=(3, 3, 2, 4)).astype(np.float32), use_resource=resource)
    h = dt.nn.relu(dt.nn.bias_add(dt.nn.conv2d(x, w, 2, "SAME"), [0.1, 0.2, 0.3, 0.4]))
    h = dt.reshape(dt.nn.max_pool(h, 2, 2, "VALID"), [-1, 16])
    v = dt.Variable(np.random.default_rng(1).normal(size=(16, 3)).astype(np.float32), use_resource=resource)
    return dt.nn.softmax(dt.matmul(h, v)), w, v


@pytest.mark.parametrize("resource", [False, True])
def test_variables_are_saved_as_they_stand_and_load_as_variables(tmp_path: Path, resource: bool) -> None:
    x = dt.placeholder("float32", [None, 8, 8, 2], name="pictures")
    y, w, v = _network(x, resource)
    pictures = np.random.default_rng(2).normal(size=(5, 8, 8, 2)).astype(np.float32)
    path = tmp_path / "net.onnx"
    with dt.Session() as session:
        session.run(dt.global_variables_initializer())
        session.run(dt.assign_add(v, dt.ones([16, 3])) if not resource else v.assign_add(dt.ones([16, 3])))
        wanted = session.run(y, {x: pictures})
        dt.onnx.save(path, {"y": y}, {"x": x}, session)
    message = onnx.load(path)
    onnx.checker.check_model(message, full_check=True)
    assert [d.dim_param or d.dim_value for d in message.graph.input[0].type.tensor_type.shape.dim] == ["batch", 8, 8, 2]
    assert len(message.graph.initializer) == 2
    (theirs,) = reference.ReferenceEvaluator(message).run(None, {"x": pictures})
    np.testing.assert_allclose(theirs, wanted, rtol=1e-4, atol=1e-6)
    with dt.Graph().as_default():
        loaded = dt.onnx.load(path)
        with dt.Session() as session:
            session.run(dt.global_variables_initializer())
            again = session.run(loaded.outputs["y"], {loaded.inputs["x"]: pictures})
        assert len(loaded.variables) == 2
    np.testing.assert_allclose(again, wanted, rtol=1e-4, atol=1e-6)


def test_the_placeholders_are_the_inputs_unless_others_are_given() -> None:
    x = dt.placeholder("float32", [2], name="x")
    h = dt.exp(x, name="h")
    y = dt.negative(h, name="y")
    assert [i.name for i in dt.onnx.export([y]).graph.input] == ["x"]
    model = dt.onnx.export([y], [h])
    assert [i.name for i in model.graph.input] == ["h"]
    assert {n.op_type for n in model.graph.node} == {"Neg", "Identity"}
    with pytest.raises(ValueError, match="not among the inputs"):
        dt.onnx.export([y], [])
    with pytest.raises(ValueError, match="Two tensors have one name"):
        dt.onnx.export([y, y])


_WHOLE = np.array([-(2**31), 2**31 - 1, -7, 7, -6], np.int32), np.array([3, -5, 2, -2, 3], np.int32)
_REAL = np.array([-1.0, 1.0, -7.5, 7e6, 6.0], np.float32), np.array([np.inf, -np.inf, 2.0, 0.1, -3.0], np.float32)
_FAR = np.array([-np.inf, -3.0, -0.5, 0.0, 1e-9, 0.5, 1.0, 3.0, 6.5, 9.0, 11.0, np.inf])
_SMALL = np.array([1e-9, -3e-8, 1e-4, -0.75, 3.0, 1e30, np.inf], np.float32)


@pytest.mark.parametrize(
    ("function", "inputs", "wanted"),
    [
        (dt.floordiv, _WHOLE, _WHOLE[0] // _WHOLE[1]),
        (dt.floormod, _REAL, np.mod(*_REAL)),
        (dt.truncatemod, _REAL, np.fmod(*_REAL)),
        (dt.math.log1p, [_SMALL], np.log1p(_SMALL.astype(float))),
        (dt.math.expm1, [-_SMALL], np.expm1(-_SMALL.astype(float))),
        (dt.math.expm1, [_SMALL[:-2]], np.expm1(_SMALL[:-2].astype(float))),
        (dt.math.erfc, [_FAR.astype(np.float32)], np.vectorize(math.erfc)(_FAR)),
        (dt.math.erfc, [_FAR * 2], np.vectorize(math.erfc)(_FAR * 2)),
        (dt.math.erfc, [_FAR.astype(np.float16)], np.vectorize(math.erfc)(_FAR)),
        (lambda x: dt.reduce_any(x, 0), [np.zeros((0, 2), bool)], np.zeros(2, bool)),
        (lambda x: dt.reduce_all(x, 0), [np.zeros((0, 2), bool)], np.ones(2, bool)),
        (lambda x: dt.one_hot(x, 3), [np.array(1)], np.array([0, 1, 0], np.float32)),
    ],
)
def test_limits_of_the_numbers_are_written_as_computed(function: Any, inputs: Any, wanted: Any) -> None:
    places = [dt.placeholder(as_dtype(a.dtype), a.shape, name=f"i{i}") for i, a in enumerate(inputs)]
    model = dt.onnx.export({"y": function(*places)}, places)
    feeds = {f"i{i}": a for i, a in enumerate(inputs)}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of infinities, in the package's evaluator
        (theirs,) = reference.ReferenceEvaluator(model).run(None, feeds)
        loaded = dt.onnx.load(model, {k: dt.constant(a) for k, a in feeds.items()})
        again = Interpreter(dt.get_default_graph()).run(loaded.outputs["y"])
    for got in (np.asarray(theirs), again):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted.astype(got.dtype), rtol=1e-5)


def test_all_nodes_without_a_counterpart_are_named_with_their_lines() -> None:
    x = dt.placeholder("float32", [2, 2])
    y = dt.matrix_inverse(dt.atan2(x, x, name="angle") + 1.0)
    z = dt.lgamma(x, name="gamma")
    with pytest.raises(dt.errors.UnimplementedError) as e:
        dt.onnx.export([y, z])
    assert "'angle' (Atan2): Atan2 has no counterpart in ONNX" in str(e.value)
    assert "'gamma' (Lgamma)" in str(e.value)
    assert f"created at {str(SourceLine(__file__, 1)).removesuffix('1')}" in str(e.value)
    assert "MatrixInverse" not in str(e.value)  # what follows from another problem is none


def test_element_types_that_the_standard_does_not_have_there() -> None:
    x = dt.placeholder("int8", [2])
    with pytest.raises(dt.errors.UnimplementedError, match=r"\(Sum\): ReduceSum of int8"):
        dt.onnx.export([dt.reduce_sum(x)])


def test_variables_need_a_session_that_has_their_values() -> None:
    v = dt.Variable([1.0, 2.0])
    with pytest.raises(dt.errors.FailedPreconditionError, match="is in a session"):
        dt.onnx.export([v + 1.0])
    with dt.Session() as session, pytest.raises(dt.errors.FailedPreconditionError, match="uninitialized"):
        dt.onnx.export([v + 1.0], session=session)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: dt.onnx.load("no-such-file.onnx"), "There is no file 'no-such-file.onnx'"),
        (lambda: dt.onnx.save("model.onnx", dt.compile(abs)), "outputs of a model must be a tensor"),
        (lambda: dt.onnx.save(dt.constant(1.0), "model.onnx"), r"must be a path.*save\('model.onnx', outputs\)"),
        (lambda: dt.onnx.export(dt.matrix_inverse(np.eye(2))), "MatrixInverse"),
    ],
)
def test_errors_show_the_frames_of_the_program_alone(call: Any, said: str) -> None:
    with dt.Graph().as_default(), pytest.raises((TypeError, OSError, dt.errors.OpError), match=said) as e:
        call()
    own = Path(dt.__file__).parent
    assert not [f for f in traceback.extract_tb(e.value.__traceback__) if Path(f.filename).is_relative_to(own)]
