"""Boolean logic and bitwise operations."""

from __future__ import annotations

from typing import Any

from ...core.build import TensorLike, convert
from ...core.dtypes import INTEGERS, bool_
from ...core.graph import Tensor
from ...core.opdef import Trait
from ...core.operators import operators
from .common import binary, define_elementwise, unary

_BOOL = (bool_,)

define_elementwise("LogicalAnd", lambda m, x, y: m.logical_and(x, y), _BOOL, arity=2, traits=Trait.COMMUTATIVE)
define_elementwise("LogicalOr", lambda m, x, y: m.logical_or(x, y), _BOOL, arity=2, traits=Trait.COMMUTATIVE)
define_elementwise("LogicalNot", lambda m, x: m.logical_not(x), _BOOL)

define_elementwise("BitwiseAnd", lambda m, x, y: x & y, INTEGERS, arity=2, traits=Trait.COMMUTATIVE)
define_elementwise("BitwiseOr", lambda m, x, y: x | y, INTEGERS, arity=2, traits=Trait.COMMUTATIVE)
define_elementwise("BitwiseXor", lambda m, x, y: x ^ y, INTEGERS, arity=2, traits=Trait.COMMUTATIVE)
define_elementwise("Invert", lambda m, x: ~x, INTEGERS)
define_elementwise("LeftShift", lambda m, x, y: x << y, INTEGERS, arity=2)
define_elementwise("RightShift", lambda m, x, y: x >> y, INTEGERS, arity=2)


def logical_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Bool: both hold."""
    return binary("LogicalAnd", x, y, name or "LogicalAnd")


def logical_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Bool: one of them holds, or both."""
    return binary("LogicalOr", x, y, name or "LogicalOr")


def logical_not(x: TensorLike, name: str | None = None) -> Tensor:
    """Bool: it does not hold."""
    return unary("LogicalNot", x, name)


def logical_xor(x: TensorLike, y: TensorLike, name: str = "LogicalXor") -> Tensor:
    """Bool: exactly one of them holds."""
    a, b = convert(x, name="x"), convert(y, name="y")
    return logical_and(logical_or(a, b), logical_not(logical_and(a, b)), name)


def bitwise_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The bits that both integers have (`tf.bitwise.bitwise_and`)."""
    return binary("BitwiseAnd", x, y, name or "BitwiseAnd")


def bitwise_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The bits that one of the integers has, or both (`tf.bitwise.bitwise_or`)."""
    return binary("BitwiseOr", x, y, name or "BitwiseOr")


def bitwise_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The bits that exactly one of the integers has (`tf.bitwise.bitwise_xor`)."""
    return binary("BitwiseXor", x, y, name or "BitwiseXor")


def invert(x: TensorLike, name: str | None = None) -> Tensor:
    """All bits turned round (`tf.bitwise.invert`)."""
    return unary("Invert", x, name)


def left_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x with its bits moved up by y places (`tf.bitwise.left_shift`). Unspecified unless 0 <= y < number of
    bits.
    """
    return binary("LeftShift", x, y, name or "LeftShift")


def right_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x with its bits moved down by y places, keeping the sign (`tf.bitwise.right_shift`)."""
    return binary("RightShift", x, y, name or "RightShift")


def _on_bits_or_truth(bits: Any, truth: Any) -> Any:
    """The implementation of an operator that is logical for bools and bitwise for integers."""

    def operator(x: Any, y: Any, name: str) -> Tensor:
        tensor = x if isinstance(x, Tensor) or hasattr(x, "_as_tensor") else y
        is_integer = convert(tensor).dtype.is_integer if not isinstance(tensor, Tensor) else tensor.dtype.is_integer
        result: Tensor = (bits if is_integer else truth)(x, y, name)
        return result

    return operator


_and = _on_bits_or_truth(bitwise_and, logical_and)
_or = _on_bits_or_truth(bitwise_or, logical_or)
_xor = _on_bits_or_truth(bitwise_xor, logical_xor)

operators.update(
    {
        "and": lambda x, y: _and(x, y, "and"),
        "or": lambda x, y: _or(x, y, "or"),
        "xor": lambda x, y: _xor(x, y, "xor"),
        "invert": lambda x: invert(x) if convert(x).dtype.is_integer else logical_not(x),
    }
)
