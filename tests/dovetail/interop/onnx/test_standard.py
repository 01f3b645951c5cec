"""The standard's own tests of its ops, which the package onnx carries: each is a model of one node, or of what defines it."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
from reference_interpreter import Interpreter

import dovetail as dt
from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.core.errors import InvalidArgumentError, UnimplementedError

onnx = pytest.importorskip("onnx")

FEWEST = 900
"""So many pass at least, whichever version of the package carries them; of 1.23 some 1500 do."""

# Relative error allowed by type; others have the case's own.
COARSE = {"float16": 2e-3, "bfloat16": 2e-2}


def _array(value: Any) -> Any:
    """A value of a case as an array; None for what is no tensor."""
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if isinstance(value, (list, tuple, dict)) or value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind in "UO":
        text = np.empty(array.size, object)
        text[:] = [v.encode() if isinstance(v, str) else v for v in array.ravel().tolist()]
        return text.reshape(array.shape)
    return array


def _known(array: Any) -> bool:
    """Whether the graph has such values."""
    try:
        return array is not None and as_dtype(array.dtype) is not None
    except TypeError:
        return False


def _check(case: Any) -> None:
    """Compare the outputs with those that the case gives."""
    inputs, outputs = ([_array(v) for v in values] for values in case.data_sets[0])
    if not all(map(_known, inputs)):
        raise UnimplementedError(None, None, "a type that the graph does not have")
    with dt.Graph().as_default() as graph:
        names = [i.name for i in case.model.graph.input]
        model = dt.onnx.load(case.model, {n: dt.constant(v) for n, v in zip(names, inputs, strict=True)})
        results = Interpreter(graph).run([model.outputs[o.name] for o in case.model.graph.output])
    for result, wanted in zip(results, outputs, strict=True):
        if wanted is None:
            continue
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype == object:
            assert result.tolist() == wanted.tolist()
        else:
            rtol = max(case.rtol, COARSE.get(wanted.dtype.name, 0.0))
            wide = np.float64 if as_dtype(wanted.dtype).is_floating else wanted.dtype
            np.testing.assert_allclose(result.astype(wide), wanted.astype(wide), rtol=rtol, atol=max(case.atol, 1e-7))


@pytest.mark.slow
def test_all_that_are_supported_pass() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own, while it works out what must come out
        cases = importlib.import_module("onnx.backend.test.case.node").collect_testcases(None)
        told: Counter[str] = Counter()
        wrong: dict[str, str] = {}
        for case in cases:
            if "bernoulli" in case.name:  # random numbers, which are others here
                continue
            try:
                _check(case)
                told["passed"] += 1
            except (UnimplementedError, InvalidArgumentError) as e:
                assert "import" in str(e) or "opset" in str(e) or "type" in str(e), case.name
                told["refused"] += 1
            except Exception as e:
                wrong[case.name] = f"{type(e).__name__}: {str(e).strip()[:300]}"
    assert not wrong, f"{told}; wrong: {wrong}"
    assert told["passed"] >= FEWEST, told
