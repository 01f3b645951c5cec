"""`dt.keras.activations`: functions of one tensor, by name."""

from __future__ import annotations

from typing import Any

from ....graph.core.build import convert
from ....graph.core.graph import Tensor
from ....graph.ops.math.arithmetic import minimum
from ....graph.ops.math.clip import clip_by_value
from ....graph.ops.math.elementwise import exp, sigmoid, tanh
from ....graph.ops.nn.activations import elu, gelu, leaky_relu, relu as _relu, selu, silu, softplus, softsign
from ....graph.ops.nn.softmax import log_softmax, softmax as _softmax
from .registry import Registry


def linear(x: Any) -> Tensor:
    """x itself."""
    return convert(x)


def relu(x: Any, negative_slope: float = 0.0, max_value: float | None = None) -> Tensor:
    """max(x, 0), or a slope below zero; no more than `max_value`."""
    y = leaky_relu(x, negative_slope) if negative_slope else _relu(x)
    return y if max_value is None else minimum(y, max_value)


def softmax(x: Any, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis."""
    return _softmax(x, axis=axis)


def exponential(x: Any) -> Tensor:
    """exp(x)."""
    return exp(x)


def hard_sigmoid(x: Any) -> Tensor:
    """x / 6 + 0.5, cut at 0 and 1."""
    found: Tensor = clip_by_value(convert(x) * (1.0 / 6.0) + 0.5, 0.0, 1.0)
    return found


swish = silu
_registry = Registry(
    "activation",
    linear, relu, softmax, exponential, hard_sigmoid, elu, gelu, selu, silu, softplus, softsign, sigmoid, tanh, log_softmax,
    leaky_relu, swish=silu,
)  # fmt: skip
serialize, deserialize = _registry.serialize, _registry.deserialize


def get(identifier: Any) -> Any:
    """The function that is meant: by name, or as it is; None is `linear`."""
    return linear if identifier is None else _registry.get(identifier)


__all__ = [
    "deserialize",
    "elu",
    "exponential",
    "gelu",
    "get",
    "hard_sigmoid",
    "leaky_relu",
    "linear",
    "log_softmax",
    "relu",
    "selu",
    "serialize",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "swish",
    "tanh",
]
