"""Element-wise ops: arithmetic, activations, comparisons, logic, casts."""

from __future__ import annotations

from functools import reduce
from typing import Any

from ....api.ops import math, nn
from ....graph.core.dtypes import DType, bool_, float64
from ....graph.core.graph import Tensor
from ....graph.ops.array.creation import ones_like, zeros_like
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.math.arithmetic import truncatediv, truncatemod
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import left_shift, right_shift, where_v2
from ..messages import element_type
from ..registry import Call, UnsupportedError, imports, imports_by


def elu(x: Tensor, alpha: float) -> Tensor:
    """Returns x if it is positive, or else `alpha * (exp(x) - 1)`."""
    made: Tensor = nn.elu(x)
    return made if alpha == 1 else where_v2(math.greater(x, 0), x, math.multiply(made, alpha))


def thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    """Returns x if it is greater than `alpha`, or else 0."""
    return where_v2(math.greater(x, alpha), x, zeros_like(x))


def celu(x: Tensor, alpha: float) -> Tensor:
    """Returns `max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`. The standard's function is defined only for float32."""
    below = math.minimum(math.multiply(math.expm1(math.divide(x, alpha)), alpha), 0)
    return math.add(math.maximum(x, 0), below)


def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    """Returns `alpha * x + beta`, clipped to [0, 1]."""
    return math.maximum(math.minimum(math.add(math.multiply(x, alpha), beta), 1), 0)


imports_by(
    Celu=lambda call, x: celu(x, call.attr("alpha", 1.0)),
    CastLike=lambda call, x, like: _cast(call, x, like.dtype.base),
    Cast=lambda call, x: _cast(call, x, element_type(call.attr("to"))),
    Elu=lambda call, x: elu(x, call.attr("alpha", 1.0)),
    Gelu=lambda call, x: nn.gelu(x, call.choice("approximate", "none", "tanh") == "tanh"),
    HardSigmoid=lambda call, x: hard_sigmoid(x, call.attr("alpha", 0.2), call.attr("beta", 0.5)),
    HardSwish=lambda call, x: math.multiply(x, hard_sigmoid(x, 1 / 6, 0.5)),
    LeakyRelu=lambda call, x: nn.leaky_relu(x, call.attr("alpha", 0.01)),
    Mish=lambda call, x: math.multiply(x, math.tanh(math.softplus(x))),
    PRelu=lambda call, x, slope: where_v2(math.less(x, 0), math.multiply(x, slope), x),
    Swish=lambda call, x: math.multiply(x, math.sigmoid(math.multiply(x, call.attr("alpha", 1.0)))),
    ThresholdedRelu=lambda call, x: thresholded_relu(x, call.attr("alpha", 1.0)),
)


@imports("Div")
def div(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Imports a division. Integers are truncated toward zero."""
    return truncatediv(x, y) if x.dtype.base.is_integer else math.divide(x, y)


@imports("Mod")
def mod(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Imports a remainder that has the divisor's sign or, with `fmod`, the dividend's sign."""
    return truncatemod(x, y) if call.attr("fmod", 0) else math.floormod(x, y)


@imports("Pow")
def pow_(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Imports a power. The result has the base's type."""
    base = x.dtype.base
    if y.dtype.base is base:
        return math.pow(x, y)
    if base.is_floating:
        return math.pow(x, cast(y, base))
    raised: Tensor = cast(math.pow(cast(x, float64), cast(y, float64)), base)
    return raised


@imports("BitShift")
def bit_shift(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return left_shift(x, y) if call.choice("direction", "LEFT", "RIGHT") == "LEFT" else right_shift(x, y)


@imports("Max", "Min", "Sum", "Mean")
def variadic(call: Call, *xs: Tensor) -> Tensor:
    """Imports an element-wise reduction over all inputs."""
    function: Any = {"Max": math.maximum, "Min": math.minimum}.get(call.op, math.add)
    result: Tensor = reduce(function, xs) if len(xs) > 1 else identity(xs[0])
    return math.divide(result, float(len(xs))) if call.op == "Mean" and len(xs) > 1 else result


@imports("Clip")
def clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Imports clipping. The limits are inputs, or attributes in older models. Each of them is optional."""
    least, most = (low if low is not None else call.attr("min")), (high if high is not None else call.attr("max"))
    if least is not None:
        x = math.maximum(x, least)
    return math.minimum(x, most) if most is not None else identity(x)


@imports("Selu")
def selu_(call: Call, x: Tensor) -> Tensor:
    """Returns `gamma * elu(x)`, with the negative half scaled by `alpha`."""
    alpha, gamma = call.attr("alpha", 1.6732632423543772), call.attr("gamma", 1.0507009873554805)
    return math.multiply(elu(x, alpha), gamma)


@imports("IsInf")
def is_inf_(call: Call, x: Tensor) -> Tensor:
    """Imports a test for infinity of either sign, or of one."""
    above, below = call.attr("detect_positive", 1), call.attr("detect_negative", 1)
    if above and below:
        return math.is_inf(x)
    if not above and not below:
        return zeros_like(x, bool_)
    return math.logical_and(math.is_inf(x), math.greater(x, 0) if above else math.less(x, 0))


def _cast(call: Call, x: Tensor, to: DType) -> Tensor:
    """Builds a cast between numbers. Casts to float8 are not supported, because ONNX's saturates and the graph's does not."""
    source = x.dtype.base
    if to is source:
        same: Tensor = identity(x)
        return same
    numbers = all(t.is_bool or t.is_integer or t.is_floating for t in (source, to))
    if not numbers or to.name.startswith("float8"):
        raise UnsupportedError(f"a cast from {source.name} to {to.name}")
    made: Tensor = cast(x, to)
    return made


@imports("Dropout", static=(2,))
def dropout_(
    call: Call, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Imports dropout as the identity, because an imported model runs inference."""
    learns = call.static(training, "training_mode")
    if learns is not None and bool(learns) and not _is_zero(call, ratio):
        raise UnsupportedError("training_mode=True is not supported. Use dt.nn.dropout")
    return identity(x), ones_like(x, bool_)


def _is_zero(call: Call, ratio: Tensor | None) -> bool:
    value = call.static(ratio, "ratio")
    return value is not None and float(value) == 0.0
