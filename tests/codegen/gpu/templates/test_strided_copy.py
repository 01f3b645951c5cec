"""Boxes of elements: which axes are joined, and that the elements arrive, in Triton's interpreter."""

import math

import numpy as np
import pytest
from kernel_runner import run_routine

from dovetail.codegen.gpu.templates.strided_copy import Move, moves
from dovetail.codegen.gpu.toolchain.compile import compile_kernel
from dovetail.codegen.target import SM80, SM90, SM100
from dovetail.graph.core.dtypes import as_dtype

pytestmark = pytest.mark.gpu


def transposed(shape, order):
    made = [shape[a] for a in order]
    return Move(
        0, 0, tuple((shape[a], math.prod(shape[a + 1 :]), math.prod(made[i + 1 :])) for i, a in enumerate(order))
    )


@pytest.mark.parametrize(
    ("shape", "order", "axes"),
    [
        ((4, 5), (1, 0), 2),
        ((2, 3, 4, 5), (0, 2, 1, 3), 4),
        ((2, 3, 4, 5), (2, 3, 0, 1), 2),
        ((2, 3, 4), (1, 2, 0), 2),
        ((1, 7, 1, 3), (3, 0, 2, 1), 2),
        ((6, 1, 7), (1, 0, 2), 1),
        ((3, 4), (0, 1), 1),
    ],
)
def test_axes_that_stay_together_are_one(shape, order, axes):
    assert len(transposed(shape, order).joined().axes) == axes


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
    ways, sizes = moves(as_dtype(dtype), [transposed(shape, order)])
    for routine in (ways[0], ways[-1]):
        out = np.zeros(expected.shape, numpy_type)
        run_routine(routine, {"in0": x.ravel(), "out0": out.reshape(-1), **sizes})
        np.testing.assert_array_equal(out, expected)


@pytest.mark.slow
@pytest.mark.parametrize("target", [SM80, SM90, SM100], ids=str)
def test_compiles_without_spills(target):
    for routine in moves(as_dtype("float32"), [transposed((2, 3, 64, 48), (0, 2, 1, 3))])[0]:
        assert compile_kernel(routine.launches[0].kernel, target).spills == 0


def test_boxes_that_are_turned_around_repeated_or_put_into_zeros():
    x = np.arange(20 * 30, dtype=np.float32).reshape(20, 30)
    turned = Move(
        0, 0, ((20, -30, 1), (30, 1, 22)), 19 * 30, 1
    )  # upside down and transposed, with a column beside on either side
    ways, sizes = moves(as_dtype("float32"), [turned], 30 * 22)
    repeated, more = moves(as_dtype("float32"), [Move(0, 0, ((3, 0, 600), (600, 1, 1)))])
    for way in ways:
        out = np.full((30, 22), 9, np.float32)
        run_routine(way, {"in0": x.ravel(), "out0": out.reshape(-1), **sizes})
        np.testing.assert_array_equal(out, np.pad(x[::-1].T, [(0, 0), (1, 1)]))
    for way in repeated:
        out = np.full((3, 600), 9, np.float32)
        run_routine(way, {"in0": x.ravel(), "out0": out.reshape(-1), **more})
        np.testing.assert_array_equal(out, [x.ravel()] * 3)
