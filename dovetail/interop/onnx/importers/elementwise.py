"""Ops that work element by element: arithmetic, activations, comparisons, logic, casts."""

from __future__ import annotations

from functools import reduce
from typing import Any

from ....graph.core.dtypes import DType, bool_, float64
from ....graph.core.graph import Tensor
from ....graph.ops.array.creation import ones_like, zeros_like
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.math.arithmetic import (
    absolute,
    add,
    divide,
    floormod,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    reciprocal,
    sign,
    sqrt,
    subtract,
    truncatediv,
    truncatemod,
)
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, greater, greater_equal, less, less_equal, where_v2
from ....graph.ops.math.elementwise import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    ceil,
    cos,
    cosh,
    erf,
    exp,
    floor,
    is_inf,
    is_nan,
    log,
    round,
    sigmoid,
    sin,
    sinh,
    tan,
    tanh,
    trunc,
)
from ....graph.ops.math.logic import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    invert,
    left_shift,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    right_shift,
)
from ....graph.ops.nn.activations import elu, gelu, leaky_relu, relu, softplus, softsign
from ..messages import element_type
from ..registry import Call, UnsupportedError, imports, imports_as

for _function, _op in (
    (absolute, "Abs"), (acos, "Acos"), (acosh, "Acosh"), (asin, "Asin"), (asinh, "Asinh"), (atan, "Atan"), (atanh, "Atanh"),
    (ceil, "Ceil"), (cos, "Cos"), (cosh, "Cosh"), (erf, "Erf"), (exp, "Exp"), (floor, "Floor"), (identity, "Identity"),
    (is_nan, "IsNaN"), (log, "Log"), (negative, "Neg"), (logical_not, "Not"), (reciprocal, "Reciprocal"), (relu, "Relu"),
    (round, "Round"), (sigmoid, "Sigmoid"), (sign, "Sign"), (sin, "Sin"), (sinh, "Sinh"), (softplus, "Softplus"),
    (softsign, "Softsign"), (sqrt, "Sqrt"), (tan, "Tan"), (tanh, "Tanh"), (invert, "BitwiseNot"),
    (add, "Add"), (subtract, "Sub"), (multiply, "Mul"), (logical_and, "And"), (logical_or, "Or"), (logical_xor, "Xor"),
    (equal, "Equal"), (less, "Less"), (less_equal, "LessOrEqual"), (greater, "Greater"), (greater_equal, "GreaterOrEqual"),
    (bitwise_and, "BitwiseAnd"), (bitwise_or, "BitwiseOr"), (bitwise_xor, "BitwiseXor"), (where_v2, "Where"),
):  # fmt: skip
    imports_as(_function, _op)


@imports("Div")
def div(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Whole numbers are cut towards zero."""
    return truncatediv(x, y) if x.dtype.base.is_integer else divide(x, y)


@imports("Mod")
def mod(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The sign is the divisor's, or with `fmod` the dividend's."""
    if not call.attr("fmod", 0):
        return floormod(x, y)
    return truncatemod(x, y) if x.dtype.base.is_integer else subtract(x, multiply(y, trunc(divide(x, y))))


@imports("Pow")
def pow_(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The result has the base's type, whatever the exponent's."""
    base = x.dtype.base
    if y.dtype.base is base:
        return power(x, y)
    if base.is_floating:
        return power(x, cast(y, base))
    raised: Tensor = cast(power(cast(x, float64), cast(y, float64)), base)
    return raised


@imports("BitShift")
def bit_shift(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Left or right."""
    return left_shift(x, y) if call.only("direction", "LEFT", "RIGHT") == "LEFT" else right_shift(x, y)


@imports("Max", "Min", "Sum", "Mean")
def of_many(call: Call, *xs: Tensor) -> Tensor:
    """One number from those of all inputs."""
    function: Any = {"Max": maximum, "Min": minimum}.get(call.op, add)
    result: Tensor = reduce(function, xs) if len(xs) > 1 else identity(xs[0])
    return divide(result, float(len(xs))) if call.op == "Mean" and len(xs) > 1 else result


@imports("Clip")
def clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Limits are inputs, in older models attributes; each may be missing."""
    least, most = (low if low is not None else call.attr("min")), (high if high is not None else call.attr("max"))
    if least is not None:
        x = maximum(x, least)
    return minimum(x, most) if most is not None else identity(x)


@imports("Elu")
def elu_(call: Call, x: Tensor) -> Tensor:
    """With any slope below zero."""
    alpha = call.attr("alpha", 1.0)
    return elu(x) if alpha == 1.0 else where_v2(greater(x, 0), x, multiply(subtract(exp(minimum(x, 0)), 1), alpha))


@imports("Selu")
def selu_(call: Call, x: Tensor) -> Tensor:
    """gamma * elu(x), its lower half times alpha."""
    alpha, gamma = call.attr("alpha", 1.6732632423543772), call.attr("gamma", 1.0507009873554805)
    return multiply(where_v2(greater(x, 0), x, multiply(subtract(exp(minimum(x, 0)), 1), alpha)), gamma)


@imports("LeakyRelu")
def leaky(call: Call, x: Tensor) -> Tensor:
    """A small slope below zero."""
    return leaky_relu(x, call.attr("alpha", 0.01))


@imports("ThresholdedRelu")
def thresholded(call: Call, x: Tensor) -> Tensor:
    """x above alpha, else 0."""
    return where_v2(greater(x, call.attr("alpha", 1.0)), x, zeros_like(x))


@imports("PRelu")
def prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    """A slope below zero that is learnt."""
    return where_v2(less(x, 0), multiply(x, slope), x)


@imports("HardSigmoid")
def hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    """alpha * x + beta within 0 and 1."""
    return maximum(minimum(add(multiply(x, call.attr("alpha", 0.2)), call.attr("beta", 0.5)), 1), 0)


@imports("HardSwish")
def hard_swish(call: Call, x: Tensor) -> Tensor:
    """x times the hard sigmoid of slope 1/6."""
    return multiply(x, maximum(minimum(add(multiply(x, 1 / 6), 0.5), 1), 0))


@imports("Gelu")
def gelu_(call: Call, x: Tensor) -> Tensor:
    """Exact, or by tanh."""
    return gelu(x, call.only("approximate", "none", "tanh") == "tanh")


@imports("Mish")
def mish(call: Call, x: Tensor) -> Tensor:
    """x * tanh(softplus(x))."""
    return multiply(x, tanh(softplus(x)))


@imports("Swish")
def swish_(call: Call, x: Tensor) -> Tensor:
    """x * sigmoid(alpha * x)."""
    return multiply(x, sigmoid(multiply(x, call.attr("alpha", 1.0))))


@imports("IsInf")
def is_inf_(call: Call, x: Tensor) -> Tensor:
    """Of either sign, or of one."""
    above, below = call.attr("detect_positive", 1), call.attr("detect_negative", 1)
    if above and below:
        return is_inf(x)
    if not above and not below:
        return zeros_like(x, bool_)
    return logical_and(is_inf(x), greater(x, 0) if above else less(x, 0))


def _converted(call: Call, x: Tensor, to: DType) -> Tensor:
    """A cast between numbers; one to float8 would saturate, as the graph's does not."""
    source = x.dtype.base
    if to is source:
        same: Tensor = identity(x)
        return same
    numbers = all(t.is_bool or t.is_integer or t.is_floating for t in (source, to))
    if not numbers or to.name.startswith("float8"):
        raise UnsupportedError(f"a cast from {source.name} to {to.name}")
    made: Tensor = cast(x, to)
    return made


@imports("Cast")
def cast_(call: Call, x: Tensor) -> Tensor:
    """To the type `to`."""
    return _converted(call, x, element_type(call.attr("to")))


@imports("CastLike")
def cast_like(call: Call, x: Tensor, like: Tensor) -> Tensor:
    """To another tensor's type."""
    return _converted(call, x, like.dtype.base)


@imports("Dropout", static=(2,))
def dropout_(
    call: Call, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Nothing is dropped: a model that is loaded is one that is used."""
    learns = call.known(training, "training_mode")
    if learns is not None and bool(learns) and not _is_zero(call, ratio):
        raise UnsupportedError("training_mode=True; use dt.nn.dropout")
    return identity(x), ones_like(x, bool_)


def _is_zero(call: Call, ratio: Tensor | None) -> bool:
    value = call.known(ratio, "ratio")
    return value is not None and float(value) == 0.0
