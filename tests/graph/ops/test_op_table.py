"""The table finds what it is there to find: wrong values, shapes, types, gradients, rows without their op."""

from __future__ import annotations

import numpy as np
import pytest
from op_table import OpCase, check_gradient, check_values, real

from dovetail.graph.core import opdef
from dovetail.graph.core.build import apply
from dovetail.graph.core.errors import InternalError
from dovetail.graph.core.opdef import define


@pytest.fixture
def faulty():
    """Makes an op that doubles, with one part replaced by a wrong one."""
    made = []

    def make(**wrong):
        parts = {
            "infer": lambda inputs, attrs: [(inputs[0].dtype, inputs[0].dims)],
            "reference": lambda x: x + x,
            "gradient": lambda node, grad: [grad + grad],
        }
        made.append(define("Doubling", **{**parts, **wrong}))
        return OpCase("Doubling", lambda x: apply("Doubling", (x,)), [real(2, 3)], lambda x: 2 * x, grad=True)

    yield make
    del opdef._REGISTRY["Doubling"]


def test_a_right_op_passes(faulty):
    case = faulty()
    for knowledge in ("all", "dims", "rank"):
        check_values(case, "float32", knowledge)
        check_gradient(case, knowledge)


@pytest.mark.parametrize(
    ("wrong", "error", "complaint"),
    [
        ({"reference": lambda x: x + x * 1.001}, AssertionError, "Mismatched elements"),
        ({"reference": lambda x: (x + x).astype(np.float64)}, InternalError, "its rule says float32"),
        ({"reference": lambda x: x[:1] * 2}, InternalError, "gave shape"),
        ({"infer": lambda inputs, attrs: [(inputs[0].dtype, None)]}, AssertionError, "could know"),
    ],
)
def test_wrong_forward_parts_are_found(faulty, wrong, error, complaint):
    case = faulty(**wrong)
    with pytest.raises(error, match=complaint):
        check_values(case, "float32", "all")


@pytest.mark.parametrize(
    ("gradient", "complaint"),
    [
        (lambda node, grad: [grad], "gradient of input 0"),
        (lambda node, grad: [grad * 2.001], "gradient of input 0"),
        (lambda node, grad: [None], "no gradient reaches input 0"),
        (None, "no gradient reaches input 0"),
    ],
)
def test_wrong_gradients_are_found(faulty, gradient, complaint):
    case = faulty(gradient=gradient)
    with pytest.raises(AssertionError, match=complaint):
        check_gradient(case, "all")


def test_a_row_that_misses_its_op_is_found():
    case = OpCase("Sub", lambda x: x + x, [real(2)], lambda x: 2 * x)
    with pytest.raises(AssertionError, match="no Sub was built"):
        check_values(case, "float32", "all")
