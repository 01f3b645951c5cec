"""Comparisons, selection by a condition, Boolean logic and bitwise operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, convert_pair
from ...core.dtypes import INTEGERS, NUMBERS, bool_, int64, string
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, Trait, define
from ...core.operators import operators
from ...core.scalar_math import reference_of
from ...core.shape import Dims, broadcast, compatible, merge, text
from ..array.creation import zeros_like
from .broadcasting import unbroadcast
from .common import BinaryFunction, define_binary, define_unary, same_type

_EQUATABLE = (*NUMBERS, bool_, string)


def _define_equality(op: str, text: str, compare: Callable[..., Any]) -> BinaryFunction:
    reference = reference_of(compare)

    def typed(x: Any, y: Any) -> Any:
        # NumPy compares strings as Python objects, and gives an array of objects.
        return np.asarray(reference(x, y), np.bool_) if x.dtype == object else reference(x, y)

    return define_binary(op, text, compare, _EQUATABLE, result=bool_, reference=typed, traits=Trait.COMMUTATIVE)


equal = _define_equality(
    "Equal", "Bool: x == y. (The operator `==` on tensors compares the tensors themselves, as in TensorFlow 1.)",
    lambda m, x, y: x == y,
)  # fmt: skip
not_equal = _define_equality("NotEqual", "Bool: x != y.", lambda m, x, y: x != y)
less = define_binary("Less", "Bool: x < y.", lambda m, x, y: x < y, NUMBERS, result=bool_)
less_equal = define_binary("LessEqual", "Bool: x <= y.", lambda m, x, y: x <= y, NUMBERS, result=bool_)
greater = define_binary("Greater", "Bool: x > y.", lambda m, x, y: x > y, NUMBERS, result=bool_)
greater_equal = define_binary("GreaterEqual", "Bool: x >= y.", lambda m, x, y: x >= y, NUMBERS, result=bool_)


operators.update({"lt": less, "le": less_equal, "gt": greater, "ge": greater_equal})


# --- selection ----------------------------------------------------------------------------------------------


def _need_bool(condition: Tensor) -> None:
    if condition.dtype.base is not bool_:
        raise TypeError(f"the condition must be bool, not {condition.dtype.base.name}")


def _select_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    condition, x, y = inputs
    _need_bool(condition)
    dtype = same_type((x, y))
    dims = merge(x.dims, y.dims)
    c: Dims = condition.dims
    fits = (
        c == ()
        or compatible(c, dims)
        or (c is not None and len(c) == 1 and dims is not None and compatible(c, dims[:1]))
    )
    if not fits:
        raise ValueError(
            f"the condition must be a scalar, a vector over the first axis, or of shape {text(dims)}, not {text(c)}"
        )
    if c and dims is not None:  # the leading dimensions have the condition's sizes
        dims = (*(merge(dims[: len(c)], c) or ()), *dims[len(c) :])
    elif c and len(c) > 1:
        dims = c
    return [(dtype, dims)]


def _select_reference(condition: Any, x: Any, y: Any) -> Any:
    if condition.ndim and condition.shape not in (x.shape, x.shape[:1]):
        raise ValueError("the condition fits neither the values nor their first axis")
    if condition.ndim == 1 and x.ndim > 1:
        condition = np.reshape(condition, (-1,) + (1,) * (x.ndim - 1))
    if x.shape != y.shape:
        raise ValueError("the values must have one shape")
    return np.where(condition, x, y)


def _select_gradient(node: Node, grad: Tensor) -> list[Tensor | None]:
    condition = node.inputs[0]
    zeros = zeros_like(node.inputs[1])
    return [None, apply("Select", (condition, grad, zeros)), apply("Select", (condition, zeros, grad))]


def _select_v2_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    condition, x, y = inputs
    _need_bool(condition)
    return [(same_type((x, y)), broadcast(condition.dims, broadcast(x.dims, y.dims)))]


def _select_v2_gradient(node: Node, grad: Tensor) -> list[Tensor | None]:
    condition, x, y = node.inputs
    z = node.outputs[0]
    grad_x, grad_y = where_v2(condition, grad, 0), where_v2(condition, 0, grad)
    # Both gradients have the shape of the result, so each is summed down from that.
    return [None, unbroadcast(x, z, grad_x, None)[0], unbroadcast(y, z, grad_y, None)[0]]


define("Select", _select_rule, _select_reference, gradient=_select_gradient)
define(
    "SelectV2",
    _select_v2_rule,
    np.where,
    scalar=lambda m, condition, x, y: m.where(condition, x, y),
    gradient=_select_v2_gradient,
)


def _where_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (condition,) = inputs
    if condition.dims == ():
        raise ValueError("the condition must have at least one axis")
    return [(int64, (None, None if condition.dims is None else len(condition.dims)))]


define("Where", _where_rule, lambda condition: np.argwhere(condition).astype(np.int64))


def where(condition: TensorLike, x: TensorLike = None, y: TensorLike = None, name: str | None = None) -> Tensor:
    """Elements of x where a condition is true and of y elsewhere. Without x and y, the coordinates where the condition is true.

    Args:
        condition: bool. It has the shape of x, or is a vector that selects rows, or a scalar.
        x: the values where the condition is true.
        y: the values where it is false, of the shape and type of x.
        name: name of the node.

    Returns:
        A tensor of the shape and type of x. Without x and y: coordinates in row-major order, int64 `[number of true elements, rank]`.

    Raises:
        ValueError: only one of x and y is given, or the shapes do not fit (`where_v2` broadcasts).

    >>> where([True, False], [1, 2], [3, 4])   # evaluates to [1, 4]
    """
    return _where("Select", condition, x, y, name)


def where_v2(condition: TensorLike, x: TensorLike = None, y: TensorLike = None, name: str | None = None) -> Tensor:
    """`where` whose condition, x and y broadcast as in NumPy (`tf.where` of TensorFlow 2)."""
    return _where("SelectV2", condition, x, y, name)


def _where(op: str, condition: TensorLike, x: TensorLike, y: TensorLike, name: str | None) -> Tensor:
    # As in TensorFlow, an array of numbers is true where it is not 0. A list of numbers is refused.
    is_array = isinstance(condition, np.ndarray) and condition.dtype.kind in "iuf"
    c = convert(condition != 0 if is_array else condition, name="condition")
    if x is None and y is None:
        return apply("Where", (c,), None, name)
    if x is None or y is None:
        raise ValueError("x and y must both be given, or neither")
    a, b, node_name = convert_pair(x, y, name or op)
    return apply(op, (c, a, b), None, node_name)


# --- logic and bits ---------------------------------------------------------------------------------------------------


_BOOL, _COMMUTES = (bool_,), Trait.COMMUTATIVE

logical_and = define_binary(
    "LogicalAnd", "x and y, of bools.", lambda m, x, y: m.logical_and(x, y), _BOOL, traits=_COMMUTES
)
logical_or = define_binary(
    "LogicalOr", "x or y, of bools.", lambda m, x, y: m.logical_or(x, y), _BOOL, traits=_COMMUTES
)
logical_not = define_unary("LogicalNot", "not x, of bools.", lambda m, x: m.logical_not(x), _BOOL)

bitwise_and = define_binary(
    "BitwiseAnd", "x & y, of integers (`tf.bitwise.bitwise_and`).", lambda m, x, y: x & y, INTEGERS, traits=_COMMUTES
)
bitwise_or = define_binary(
    "BitwiseOr", "x | y, of integers (`tf.bitwise.bitwise_or`).", lambda m, x, y: x | y, INTEGERS, traits=_COMMUTES
)
bitwise_xor = define_binary(
    "BitwiseXor", "x ^ y, of integers (`tf.bitwise.bitwise_xor`).", lambda m, x, y: x ^ y, INTEGERS, traits=_COMMUTES
)
invert = define_unary("Invert", "~x: all bits inverted (`tf.bitwise.invert`).", lambda m, x: ~x, INTEGERS)
left_shift = define_binary(
    "LeftShift", "x << y (`tf.bitwise.left_shift`). Unspecified unless 0 <= y < number of bits.",
    lambda m, x, y: x << y, INTEGERS,
)  # fmt: skip
right_shift = define_binary(
    "RightShift", "x >> y, an arithmetic shift for signed types (`tf.bitwise.right_shift`).",
    lambda m, x, y: x >> y, INTEGERS,
)  # fmt: skip


def logical_xor(x: TensorLike, y: TensorLike, name: str = "LogicalXor") -> Tensor:
    """Whether exactly one of x and y is true, of bools."""
    a, b = convert(x, name="x"), convert(y, name="y")
    return logical_and(logical_or(a, b), logical_not(logical_and(a, b)), name)


def _bits_or_truth(bits: Callable[..., Tensor], truth: Callable[..., Tensor], name: str, x: Any, y: Any) -> Tensor:
    """An operator that is logical for bools and bitwise for integers."""
    tensor = convert(x if isinstance(x, Tensor) or hasattr(x, "_as_tensor") else y)
    return (bits if tensor.dtype.is_integer else truth)(x, y, name)


operators.update(
    {
        "and": partial(_bits_or_truth, bitwise_and, logical_and, "and"),
        "or": partial(_bits_or_truth, bitwise_or, logical_or, "or"),
        "xor": partial(_bits_or_truth, bitwise_xor, logical_xor, "xor"),
        "invert": lambda x: invert(x) if convert(x).dtype.is_integer else logical_not(x),
    }
)
