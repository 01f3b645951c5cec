"""Transposition: which axes are joined, and that the elements arrive, in Triton's interpreter."""

import numpy as np
import pytest
from kernel_runner import run_routine

from dovetail.codegen.gpu.ir import SM80, SM90, SM100
from dovetail.codegen.gpu.templates.transpose import transposition, transposition_sizes
from dovetail.codegen.gpu.toolchain.compile import compile_kernel
from dovetail.graph.core.dtypes import as_dtype

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("shape", "order", "axes"),
    [
        ((4, 5), (1, 0), 2),
        ((2, 3, 4, 5), (0, 2, 1, 3), 4),
        ((2, 3, 4, 5), (2, 3, 0, 1), 2),
        ((2, 3, 4), (1, 2, 0), 2),
        ((1, 7, 1, 3), (3, 0, 2, 1), 2),
        ((6, 1, 7), (1, 0, 2), 0),
        ((3, 4), (0, 1), 0),
    ],
)
def test_axes_that_stay_together_are_one(shape, order, axes):
    sizes = transposition_sizes(shape, order)
    assert len(sizes) == 3 * axes


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "int64"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((5, 70), (1, 0)),
        ((2, 3, 33, 17), (0, 2, 1, 3)),
        ((2, 3, 4, 16), (3, 1, 2, 0)),
        ((48, 2, 32), (1, 0, 2)),
        ((3, 4, 5, 6, 7), (4, 2, 0, 3, 1)),
    ],
)
def test_elements_arrive(dtype, shape, order):
    numpy_type = as_dtype(dtype).np
    x = (np.arange(np.prod(shape)).reshape(shape) % 251).astype(numpy_type)
    expected = np.ascontiguousarray(np.transpose(x, order))
    sizes = transposition_sizes(shape, order)
    for routine in transposition(as_dtype(dtype), sizes)[::3]:
        out = np.zeros(expected.shape, numpy_type)
        run_routine(routine, {"in0": x.ravel(), "out0": out.reshape(-1), **sizes})
        np.testing.assert_array_equal(out, expected)


@pytest.mark.slow
@pytest.mark.parametrize("target", [SM80, SM90, SM100], ids=str)
def test_compiles_without_spills(target):
    for routine in transposition(as_dtype("float32"), transposition_sizes((2, 3, 64, 48), (0, 2, 1, 3))):
        assert compile_kernel(routine.launches[0].kernel, target).spills == 0
