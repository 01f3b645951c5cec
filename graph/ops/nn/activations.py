"""Activation functions.

An activation that is an op in TensorFlow is an op here, and so is its gradient (`ReluGrad`), which has a gradient itself. The others (gelu,
swish, log_sigmoid, crelu) are composed of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...core.build import Derivative, Grads, TensorLike, apply, convert
from ...core.dtypes import FLOATS, NUMBERS
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, default_cost, define, typed_attr
from ...core.scalar_math import reference_of
from ..array.concat_stack import concat
from ..math.arithmetic import absolute, add, multiply, negative, reciprocal, sign
from ..math.cast import to_float
from ..math.common import broadcast_rule, define_elementwise, unary, unary_rule
from ..math.compare import less, where_v2
from ..math.elementwise import erf, sigmoid, tanh
from ..math.static_operands import op_scope

_EXP = 10.0  # flops that one exp counts as

# Klambauer et al., "Self-Normalizing Neural Networks" (2017): mean 0 and variance 1 are a fixed point of layers with these.
_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_ALPHA = 1.6732632423543772848170429916717


def _second(op: str, node: Node, grad: Tensor) -> Tensor:
    """The gradient of a gradient op with respect to its first input, in which it is linear: the op itself."""
    return apply(op, (grad, node.inputs[1]), dict(node.attrs))


# --- piecewise linear -------------------------------------------------------------------------------------------------


def _with_gradient_op(op: str) -> Any:
    """Gradient rule: `op(gradient, input)`, with the node's attrs."""
    return lambda node, grad: [apply(op, (grad, node.inputs[0]), dict(node.attrs))]


def _from_output(op: str) -> Any:
    """Gradient rule: `op(gradient, output)`. The derivative is a function of the output, so that the input can be freed."""
    return lambda node, grad: [apply(op, (grad, node.outputs[0]), dict(node.attrs))]


def _linear_pieces(op: str) -> Any:
    """Gradient rule of the gradient op of a piecewise linear function. Its derivative with respect to x is 0."""
    return lambda node, grad: [_second(op, node, grad), Derivative.ZERO]


define_elementwise("Relu", lambda m, x: m.maximum(x, 0), NUMBERS, gradient=_from_output("ReluGrad"))
define_elementwise(
    "ReluGrad", lambda m, g, x: m.where(x > 0, g, 0), NUMBERS, arity=2, gradient=_linear_pieces("ReluGrad")
)
define_elementwise(
    "Relu6",
    lambda m, x: m.minimum(m.maximum(x, 0), 6),
    NUMBERS,
    gradient=_from_output("Relu6Grad"),
    flops=2,
)
define_elementwise(
    "Relu6Grad",
    lambda m, g, x: m.where(m.logical_and(x > 0, x < 6), g, 0),
    NUMBERS,
    arity=2,
    gradient=_linear_pieces("Relu6Grad"),
    flops=3,
)


def _define_leaky(name: str, scalar: Any, arity: int, gradient: Any) -> None:
    rule = unary_rule(FLOATS) if arity == 1 else broadcast_rule(FLOATS)

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        typed_attr(attrs, "alpha", float)
        return rule(inputs, attrs)

    define(name, infer, reference_of(scalar), scalar=scalar, gradient=gradient, cost=lambda node: default_cost(node, 2))


_define_leaky("LeakyRelu", lambda m, x, alpha: m.where(x > 0, x, x * alpha), 1, _with_gradient_op("LeakyReluGrad"))
_define_leaky("LeakyReluGrad", lambda m, g, x, alpha: m.where(x > 0, g, g * alpha), 2, _linear_pieces("LeakyReluGrad"))


def relu(features: TensorLike, name: str | None = None) -> Tensor:
    """max(x, 0). NaN gives NaN. The gradient at 0 is 0."""
    return unary("Relu", features, name)


def relu6(features: TensorLike, name: str | None = None) -> Tensor:
    """min(max(x, 0), 6)."""
    return unary("Relu6", features, name)


def leaky_relu(features: TensorLike, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """x where x > 0, and `alpha * x` elsewhere. Integers are cast to float32."""
    with op_scope(name, "LeakyRelu", features) as scope:
        x = convert(features, name="features")
        if x.dtype.is_integer:
            x = to_float(x)
        return apply("LeakyRelu", (x,), {"alpha": float(alpha)}, scope)


def crelu(features: TensorLike, name: str | None = None, axis: int = -1) -> Tensor:
    """relu(x) and relu(-x), concatenated along `axis`."""
    with op_scope(name, "CRelu", features) as scope:
        x = convert(features, name="features")
        return relu(concat([x, negative(x)], axis), name=scope)


# --- with an exponential ----------------------------------------------------------------------------------------------


def _curved_below_zero(op: str) -> Any:
    """Gradient rule of a gradient op that is `g * (y + constant)` for y < 0, and does not depend on y elsewhere."""

    def gradient(node: Node, grad: Tensor) -> Grads:
        g, y = node.inputs
        return [_second(op, node, grad), where_v2(less(y, 0), multiply(grad, g), 0)]

    return gradient


define_elementwise(
    "Elu", lambda m, x: m.where(x < 0, m.expm1(x), x), FLOATS, gradient=_from_output("EluGrad"), flops=_EXP + 2
)
define_elementwise(
    "EluGrad",
    lambda m, g, y: m.where(y < 0, g * (y + 1), g),
    FLOATS,
    arity=2,
    gradient=_curved_below_zero("EluGrad"),
    flops=4,
)
define_elementwise(
    "Selu",
    lambda m, x: m.where(x < 0, m.expm1(x) * (_SELU_SCALE * _SELU_ALPHA), x * _SELU_SCALE),
    FLOATS,
    gradient=_from_output("SeluGrad"),
    flops=_EXP + 4,
)
define_elementwise(
    "SeluGrad",
    lambda m, g, y: m.where(y < 0, g * (y + _SELU_SCALE * _SELU_ALPHA), g * _SELU_SCALE),
    FLOATS,
    arity=2,
    gradient=_curved_below_zero("SeluGrad"),
    flops=5,
)


def _softplus_grad_gradient(node: Node, grad: Tensor) -> Grads:
    g, x = node.inputs
    y = sigmoid(x)
    return [_second("SoftplusGrad", node, grad), multiply(multiply(grad, g), multiply(y, sigmoid(negative(x))))]


define_elementwise(
    "Softplus",
    # log(1 + exp(x)), written so that exp cannot overflow
    lambda m, x: m.maximum(x, 0) + m.log1p(m.exp(-m.abs(x))),
    FLOATS,
    gradient=_with_gradient_op("SoftplusGrad"),
    flops=2 * _EXP + 4,
)
define_elementwise(
    "SoftplusGrad",
    lambda m, g, x: g / (1 + m.exp(-x)),
    FLOATS,
    arity=2,
    gradient=_softplus_grad_gradient,
    flops=_EXP + 3,
)


def _softsign_grad_gradient(node: Node, grad: Tensor) -> Grads:
    g, x = node.inputs
    slope = multiply(-2, multiply(sign(x), reciprocal(add(absolute(x), 1))))
    return [_second("SoftsignGrad", node, grad), multiply(grad, multiply(node.outputs[0], slope))]


define_elementwise(
    "Softsign", lambda m, x: x / (1 + m.abs(x)), FLOATS, gradient=_with_gradient_op("SoftsignGrad"), flops=3
)
define_elementwise(
    "SoftsignGrad",
    lambda m, g, x: g / ((1 + m.abs(x)) * (1 + m.abs(x))),
    FLOATS,
    arity=2,
    gradient=_softsign_grad_gradient,
    flops=5,
)


def elu(features: TensorLike, name: str | None = None) -> Tensor:
    """x where x > 0, and exp(x) - 1 elsewhere."""
    return unary("Elu", features, name)


def selu(features: TensorLike, name: str | None = None) -> Tensor:
    """elu, scaled so that layers with it keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    return unary("Selu", features, name)


def softplus(features: TensorLike, name: str | None = None) -> Tensor:
    """log(1 + exp(x)), a smooth relu."""
    return unary("Softplus", features, name)


def softsign(features: TensorLike, name: str | None = None) -> Tensor:
    """x / (1 + |x|)."""
    return unary("Softsign", features, name)


# --- composed of other ops --------------------------------------------------------------------------------------------


def _floating(features: TensorLike) -> Tensor:
    x = convert(features, name="features")
    if not x.dtype.is_floating:
        raise TypeError(f"The input must be of a floating type, not {x.dtype.name}: {x!r}; use dt.cast")
    return x


def gelu(features: TensorLike, approximate: bool = False, name: str | None = None) -> Tensor:
    """x * P(X <= x) for a standard normal X (Hendrycks and Gimpel, 2016).

    Args:
        features: of any floating type.
        approximate: compute `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, which differs by less than 5e-4.
        name: name scope of the nodes.
    """
    with op_scope(name, "Gelu", features) as scope:
        x = _floating(features)
        if approximate:
            # x * x * x, because power(x, 3) costs ten times as much
            inner = multiply(add(x, multiply(0.044715, multiply(x, multiply(x, x)))), math.sqrt(2 / math.pi))
            step = tanh(inner)
        else:
            step = erf(multiply(x, math.sqrt(0.5)))
        return multiply(multiply(0.5, x), add(1, step), name=scope)


def swish(features: TensorLike, beta: TensorLike = 1.0, name: str | None = None) -> Tensor:
    """x * sigmoid(beta * x) (Ramachandran, Zoph and Le, 2017); with beta 1 also called silu."""
    with op_scope(name, "swish", features) as scope:
        x = _floating(features)
        inner = x if isinstance(beta, (int, float)) and beta == 1 else multiply(x, beta)
        return multiply(x, sigmoid(inner), name=scope)


silu = swish


def log_sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """log(1 / (1 + exp(-x))), without overflow."""
    with op_scope(name, "LogSigmoid", x) as scope:
        return negative(softplus(negative(_floating(x))), name=scope)
