"""Decompositions of matrices: what is fixed of the result is checked, not the signs."""

from __future__ import annotations

import numpy as np
import pytest
from op_table import ScriptCase
from reference_interpreter import Interpreter

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.linalg.matrix_functions import qr


def _qr() -> None:
    rng = np.random.default_rng(0)
    for shape in ((5, 3), (3, 5), (2, 4, 4), (2, 3, 4, 2)):
        for full in (False, True):
            for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-13)):
                x = rng.normal(size=shape).astype(dtype)
                result = qr(x, full_matrices=full)
                q, r = Interpreter(get_default_graph(), check=True).run(list(result))
                assert (q.shape, r.shape) == (result.q.dims, result.r.dims)
                inner = shape[-2] if full else min(shape[-2:])
                assert q.shape == (*shape[:-1], inner)
                np.testing.assert_allclose(q @ r, x, atol=tolerance)
                np.testing.assert_allclose(
                    np.swapaxes(q, -1, -2) @ q,
                    np.broadcast_to(np.eye(inner), (*shape[:-2], inner, inner)),
                    atol=tolerance,
                )
                np.testing.assert_array_equal(np.tril(r, -1), np.zeros_like(r))


def _qr_limits() -> None:
    unknown = qr(placeholder("float32", [None, 3]))
    assert (unknown.q.dims, unknown.r.dims) == ((None, None), (None, 3))
    assert qr(placeholder("float32")).q.dims is None
    x = constant([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(NotImplementedError, match="gradient of Qr"):
        gradients(qr(x).r, [x])
    with pytest.raises(ValueError, match="at least rank 2"):
        qr([1.0])
    with pytest.raises(TypeError, match="float16 is not supported"):
        qr(constant([[1.0]], "float16"))


CASES = [ScriptCase(("Qr",), _qr, "qr"), ScriptCase(("Qr",), _qr_limits, "qr limits")]
