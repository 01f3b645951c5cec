"""Elementwise arithmetic: sums, products, quotients, powers, roots, signs, minimum and maximum.

Two operands broadcast as in NumPy and have one element type. A Python number takes the other operand's type. Integer arithmetic wraps
around. Dividing an integer by zero is an error when the graph runs, as in TensorFlow on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, convert_pair, make
from ...core.constant_value import static_value
from ...core.dtypes import FLOATS, INTEGERS, NUMBERS, Array, DType, as_dtype, float32, float64, string
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, Trait, default_cost, define as define_op
from ...core.operators import operators
from ...core.scalar_math import reference_of
from ...core.shape import merge, text
from ...tensors.indexed_slices import IndexedSlices
from ...tensors.sparse_tensor import SparseTensor
from ..array.creation import zeros_like
from ..strings import split_join as _split_join  # noqa: F401  (defines StringJoin)
from .broadcasting import unbroadcast
from .cast import cast
from .common import (
    BinaryFunction,
    UnaryFunction,
    allowed,
    binary,
    define_binary,
    define_elementwise,
    define_unary,
    same_type,
    unary,
)
from .compare import equal, greater, greater_equal, less_equal, logical_and, where_v2

Pair = tuple[Tensor | None, Tensor | None]


# --- sum, difference, product -------------------------------------------------------------------------------


def _define(
    op: str,
    text: str,
    scalar: Any,
    types: tuple[DType, ...],
    vjp: Callable[..., Pair],
    called: str = "",
    **definition: Any,
) -> BinaryFunction:
    """`define_binary` with a gradient: `vjp(grad, x, y)` gives those of x and y in the shape that both broadcast to."""

    def gradient(node: Node, grad: Tensor) -> Pair:
        x, y = node.inputs
        return unbroadcast(x, y, *vjp(grad, x, y))

    return define_binary(op, text, scalar, types, called, gradient=gradient, **definition)


_COMMUTES = Trait.COMMUTATIVE
subtract: BinaryFunction = _define(
    "Sub", "x - y.", lambda m, x, y: x - y, NUMBERS, lambda g, x, y: (g, negative(g)), "subtract"
)
multiply: BinaryFunction = _define(
    "Mul", "x * y, element by element.", lambda m, x, y: x * y, NUMBERS,
    lambda g, x, y: (multiply(g, y), multiply(x, g)), "multiply", traits=_COMMUTES,
)  # fmt: skip
_define("AddV2", "", lambda m, x, y: x + y, NUMBERS, lambda g, x, y: (g, g), traits=_COMMUTES)


def add(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x + y, element by element. The operands broadcast. Strings are concatenated."""
    a, b, scope = convert_pair(x, y, name or "Add")
    if a.dtype.base is string:
        return make("StringJoin", (a, b), {"separator": ""}, scope).outputs[0]
    return apply("AddV2", (a, b), None, scope)


def scalar_mul(scalar: TensorLike, x: TensorLike, name: str | None = None) -> Any:
    """A scalar times a tensor, or times the values of `IndexedSlices`.

    Raises:
        ValueError: `scalar` has a rank other than 0.
    """
    values = x.values if isinstance(x, IndexedSlices) else convert(x)
    factor = convert(scalar, dtype=values.dtype.base, name="scalar")
    if factor.dims not in (None, ()):
        raise ValueError(f"Only a scalar can scale a tensor, not {factor!r}")
    product = multiply(factor, values, name)
    return IndexedSlices(product, x.indices, x.dense_shape) if isinstance(x, IndexedSlices) else product


def _add_n_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not inputs:
        raise ValueError("needs at least one input")
    dtype = allowed(same_type(inputs), NUMBERS)
    dims = inputs[0].dims
    for t in inputs[1:]:
        dims = merge(dims, t.dims)
    return [(dtype, dims)]


def _add_n_scalar(m: Any, *values: Any) -> Any:
    total = values[0]
    for v in values[1:]:
        total = total + v
    return total


_sum_of = reference_of(_add_n_scalar)


def _add_n_reference(*values: Any) -> Any:
    if any(v.shape != values[0].shape for v in values):
        shapes = ", ".join(dict.fromkeys(text(v.shape) for v in values))
        raise invalid(f"Inputs to operation AddN must have the same shape, not {shapes}")
    return _sum_of(*values)


define_op(
    "AddN",
    _add_n_rule,
    _add_n_reference,
    scalar=_add_n_scalar,
    gradient=lambda node, grad: [grad] * len(node.inputs),
    cost=lambda node: default_cost(node, len(node.inputs) - 1),
    traits=Trait.COMMUTATIVE,
)


def add_n(inputs: Sequence[TensorLike], name: str | None = None) -> Tensor:
    """The sum of several tensors of the same shape and type. They do not broadcast.

    Raises:
        ValueError: `inputs` is empty, or the shapes differ.
    """
    if not isinstance(inputs, Sequence) or not inputs:
        raise ValueError("add_n needs a list of at least one tensor")
    tensors = [convert(t) for t in inputs]
    if len(tensors) == 1 and name is None:
        return tensors[0]
    return apply("AddN", tensors, None, name)


def accumulate_n(
    inputs: Sequence[TensorLike], shape: Any = None, tensor_dtype: Any = None, name: str | None = None
) -> Tensor:
    """`add_n` that also checks the shape and the element type of its result. None checks nothing.

    Raises:
        ValueError: `inputs` is empty, or a shape differs from the others or from `shape`.
        TypeError: the element type is not `tensor_dtype`.
    """
    total = add_n(inputs, name)
    if tensor_dtype is not None and total.dtype.base is not as_dtype(tensor_dtype).base:
        raise TypeError(f"tensor_dtype is {as_dtype(tensor_dtype).name}, but input is of type {total.dtype.base.name}")
    total.set_shape(shape)
    return total


# --- quotients and remainders -------------------------------------------------------------------------------


def _checks_divisor(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the reference of a division: an integer divisor of 0 raises InvalidArgumentError."""

    def checked(x: Any, y: Any) -> Any:
        if x.size and y.dtype.kind in "iu" and not np.all(y):
            raise invalid("Integer division by zero")
        return reference(x, y)

    return checked


def _rounded_down(x: Array, y: Array) -> Any:
    """The floor of x / y.

    For floating types the quotient is rounded to the type first, as in TensorFlow, so float16 and bfloat16 are not computed in float32.
    NumPy's `//` differs: 1.0 // 0.1 is 9, and inf // 2 is NaN.
    """
    return x // y if x.dtype.kind in "iu" else np.floor(x / y)


def _truncated_quotient(x: Array, y: Array) -> Any:
    if x.dtype.kind not in "iu":
        return np.trunc(x / y)
    floor = x // y
    return np.where((floor * y != x) & ((x < 0) != (y < 0)), floor + x.dtype.type(1), floor)


def _quotient_vjp(divided: Callable[..., Tensor]) -> Callable[..., Pair]:
    # -x / y / y rather than -x / (y * y): the square could overflow.
    return lambda g, x, y: (divided(g, y), multiply(g, divided(divided(negative(x), y), y)))


real_divide: BinaryFunction = _define(
    "RealDiv", "x / y for floating types (TensorFlow's `realdiv`).", lambda m, x, y: x / y, FLOATS,
    _quotient_vjp(lambda x, y: real_divide(x, y)), "real_divide",
)  # fmt: skip
div_no_nan: BinaryFunction = _define(
    "DivNoNan", "x / y, and 0 where y is 0.", lambda m, x, y: m.where(y == 0, 0, x / y), FLOATS,
    _quotient_vjp(lambda x, y: div_no_nan(x, y)),
)  # fmt: skip
_define(
    "MulNoNan", "", lambda m, x, y: m.where(y == 0, 0, x * y), FLOATS,
    lambda g, x, y: (multiply_no_nan(g, y), multiply_no_nan(x, g)),
)  # fmt: skip
define_elementwise("FloorDiv", lambda m, x, y: x // y, NUMBERS, arity=2, reference=_checks_divisor(_rounded_down))
floormod = mod = _define(
    "FloorMod", "The remainder of a division that rounds down: it has the sign of y (Python's `%`).",
    lambda m, x, y: x % y, NUMBERS, lambda g, x, y: (g, multiply(g, negative(floordiv(x, y)))), "floormod",
    reference=_checks_divisor(reference_of(lambda m, x, y: x % y)),
)  # fmt: skip
truncatediv = define_binary(
    "TruncateDiv", "x / y rounded towards zero (C's `/` of integers).", None, NUMBERS, "truncatediv",
    reference=_checks_divisor(_truncated_quotient),
)  # fmt: skip
truncatemod: BinaryFunction = _define(
    "TruncateMod", "The remainder of `truncatediv`: it has the sign of x (C's `%` and `fmod`).", None, NUMBERS,
    lambda g, x, y: (g, multiply(g, real_divide(subtract(truncatemod(x, y), x), y))), "truncatemod",
    reference=lambda x, y: np.fmod(x, y) if x.dtype.kind in "fV" else _checks_divisor(np.fmod)(x, y),
)  # fmt: skip


# Integer type -> the floating type in which `truediv` divides, as in TensorFlow.
_true_quotient_types = {t: float32 if t.size < 4 else float64 for t in INTEGERS}


def truediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as in Python 3. Integers of 8 and 16 bits are cast to float32 first, wider ones to float64.

    >>> truediv(constant([1, 2]), 2).dtype.name
    'float64'
    """
    a, b, node_name = convert_pair(x, y, name or "truediv")
    dtype = _true_quotient_types.get(a.dtype.base)
    if dtype is None or a.dtype.base is not b.dtype.base:
        return apply("RealDiv", (a, b), None, node_name)
    with a.graph.op_scope(node_name) as scope:
        return apply("RealDiv", (cast(a, dtype), cast(b, dtype)), None, scope)


def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as in Python 3 (`truediv`)."""
    return truediv(x, y, name)


def div(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as in Python 2: rounded down for integers, not for floating types (TF1's `tf.div`)."""
    a, b, node_name = convert_pair(x, y, name or "div")
    return apply("RealDiv" if a.dtype.is_floating else "FloorDiv", (a, b), None, node_name)


def multiply_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * y, and 0 where y is 0, even if x is infinite or NaN."""
    return binary("MulNoNan", x, y, name or "multiply_no_nan")


def floordiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The floor of x / y.

    Raises:
        InvalidArgumentError: in a step, an integer is divided by zero.
    """
    return binary("FloorDiv", x, y, name or "floordiv")


# --- powers and roots ---------------------------------------------------------------------------------------


def _opposite(gradient: Tensor) -> Pair:
    return gradient, negative(gradient)


def _pow_reference(x: Any, y: Any) -> Any:
    if y.dtype.kind == "i" and np.any(y < 0):
        raise invalid("Integers to negative integer powers are not allowed")
    return _pow(x, y)


_pow = reference_of(lambda m, x, y: m.pow(x, y))


def _pow_gradient(node: Node, grad: Tensor) -> Pair:
    x, y = node.inputs
    z = node.outputs[0]
    # x ** y is not differentiable in y at x <= 0; TensorFlow takes log(x) as 0 there, so that no NaN comes out.
    positive = greater(x, 0)
    log_x = where_v2(positive, unary("Log", where_v2(positive, x, 1), None), 0)
    less = subtract(y, 1)
    exponent = static_value(y)
    if exponent is None or not np.all(exponent):
        # The derivative of x ** 0 is 0 at x = 0, too, where 0 ** -1 would be infinite.
        less = where_v2(logical_and(equal(x, 0), equal(y, 0)), 1, less)
    # grad * y first: y * x ** (y - 1) may overflow a narrow type where the gradient does not.
    return unbroadcast(x, y, multiply(multiply(grad, y), power(x, less)), multiply(multiply(grad, z), log_x))


define_elementwise(
    "Pow",
    lambda m, x, y: m.pow(x, y),
    NUMBERS,
    arity=2,
    reference=_pow_reference,
    gradient=_pow_gradient,
    flops=20,
)
square = define_unary(
    "Square", "x * x.", lambda m, x: x * x, NUMBERS,
    gradient=lambda node, grad: [multiply(grad, multiply(2, node.inputs[0]))],
)  # fmt: skip
squared_difference = _define(
    "SquaredDifference", "(x - y) * (x - y).", lambda m, x, y: (x - y) * (x - y), NUMBERS,
    lambda g, x, y: _opposite(multiply(multiply(2, g), subtract(x, y))), flops=2, traits=_COMMUTES,
)  # fmt: skip
# As in TensorFlow, where the gradient of y is 0, that of x is 0, also if the derivative is infinite or NaN. So an element
# that a loss leaves out, such as the norm of a row of zeros, spoils no sum. TensorFlow's graphs have these as ops.


def sqrt_gradient(y: Tensor, grad: Tensor) -> Tensor:
    return multiply_no_nan(real_divide(0.5, y), grad)


def rsqrt_gradient(y: Tensor, grad: Tensor) -> Tensor:
    return multiply_no_nan(multiply(y, square(y)), multiply(grad, -0.5))


def reciprocal_gradient(y: Tensor, grad: Tensor) -> Tensor:
    return multiply_no_nan(square(y), negative(grad))


sqrt = define_unary(
    "Sqrt", "The square root; NaN below zero.", lambda m, x: m.sqrt(x), FLOATS, flops=4,
    gradient=lambda node, grad: [sqrt_gradient(node.outputs[0], grad)],
)  # fmt: skip
rsqrt = define_unary(
    "Rsqrt", "1 / sqrt(x).", lambda m, x: m.rsqrt(x), FLOATS, flops=5,
    gradient=lambda node, grad: [rsqrt_gradient(node.outputs[0], grad)],
)  # fmt: skip
reciprocal = define_unary(
    "Reciprocal", "1 / x.", lambda m, x: 1 / x, FLOATS,
    gradient=lambda node, grad: [reciprocal_gradient(node.outputs[0], grad)],
)  # fmt: skip


def power(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x ** y (TensorFlow's `pow`).

    Raises:
        InvalidArgumentError: in a step, an integer has a negative integer exponent.
    """
    return binary("Pow", x, y, name or "Pow")


# --- signs, smallest and largest ----------------------------------------------------------------------------


def _selected_vjp(grad: Tensor, is_x: Tensor) -> Pair:
    return where_v2(is_x, grad, 0), where_v2(is_x, 0, grad)


negative: UnaryFunction = define_unary(
    "Neg", "-x.", lambda m, x: -x, NUMBERS, "negative", gradient=lambda node, grad: [negative(grad)]
)
sign = define_unary(
    "Sign", "-1, 0 or 1 (NaN for NaN).", lambda m, x: m.sign(x), NUMBERS,
    gradient=lambda node, grad: [zeros_like(node.inputs[0])],
)  # fmt: skip
absolute = define_unary(
    "Abs", "The absolute value (TensorFlow's `abs`).", lambda m, x: m.abs(x), NUMBERS, "absolute",
    gradient=lambda node, grad: [multiply(grad, sign(node.inputs[0]))],
)  # fmt: skip
minimum = _define(
    "Minimum", "The smaller of x and y. NaN if either is NaN. The gradient goes to x where they are equal.",
    lambda m, x, y: m.minimum(x, y), NUMBERS, lambda g, x, y: _selected_vjp(g, less_equal(x, y)), traits=_COMMUTES,
)  # fmt: skip
maximum = _define(
    "Maximum", "The larger of x and y. NaN if either is NaN. The gradient goes to x where they are equal.",
    lambda m, x, y: m.maximum(x, y), NUMBERS, lambda g, x, y: _selected_vjp(g, greater_equal(x, y)), traits=_COMMUTES,
)  # fmt: skip


# Python's operators make nodes with TensorFlow's names for them: `a + b` is `add`, where `tf.add(a, b)` is `Add`.
def _mul_operator(x: TensorLike, y: TensorLike) -> Any:
    return y * x if isinstance(y, SparseTensor) else binary("Mul", x, y, "mul")


operators.update(
    {
        "add": partial(add, name="add"),
        "sub": partial(binary, "Sub", name="sub"),
        "mul": _mul_operator,
        "truediv": truediv,
        "floordiv": floordiv,
        "mod": partial(binary, "FloorMod", name="mod"),
        "pow": partial(binary, "Pow", name="pow"),
        "neg": negative,
        "abs": absolute,
    }
)
