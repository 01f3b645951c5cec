"""Bias and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.dtypes import NUMBERS, Array, bfloat16, float16, float32, widened
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define
from ...core.shape import Dims, as_dims, merge, text
from ..array.creation import zeros_like
from ..array.shapes import shape
from ..math.arithmetic import divide, multiply, subtract
from ..math.cast import cast
from ..math.common import allowed, input_cost, layout_of, same_type
from ..math.compare import greater_equal, where_v2
from ..math.static_operands import need_rank, need_rank_at_least, op_scope
from ..random.random import random_uniform

# --- bias -------------------------------------------------------------------------------------------------------------


def _bias_axis(attrs: Attrs) -> int:
    """The axis of the channels: the second for NCHW, the last for NHWC."""
    return 1 if layout_of(attrs.get("data_format")) == "NCHW" else -1


def _bias_add_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    axis = _bias_axis(attrs)
    value, bias = inputs
    dtype = allowed(same_type(inputs), NUMBERS)
    need_rank_at_least(value.dims, 2, "value")
    need_rank(bias.dims, 1, "bias")
    if value.dims is None or bias.dims is None:
        return [(dtype, value.dims)]
    (channels,) = merge((value.dims[axis],), bias.dims) or ()
    at = axis % len(value.dims)
    return [(dtype, (*value.dims[:at], channels, *value.dims[at + 1 :]))]


def _bias_add(value: Array, bias: Array, *, data_format: str) -> Array:
    channels = value.shape[1 if data_format == "NCHW" else -1] if value.ndim > 1 else None
    if bias.shape != (channels,):
        raise invalid(
            f"A value of shape {text(value.shape)} ({data_format}) takes one bias for each channel, not {text(bias.shape)}"
        )
    if data_format == "NCHW":
        return np.asarray(value + bias.reshape(-1, *(1,) * (value.ndim - 2)))
    return np.asarray(value + bias)


def _bias_grad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    axis = _bias_axis(attrs)
    (grad,) = inputs
    need_rank_at_least(grad.dims, 2, "out_backprop")
    dims: Dims = (None if grad.dims is None else grad.dims[axis],)
    return [(allowed(grad.dtype.base, NUMBERS), dims)]


def _bias_grad(grad: Array, *, data_format: str) -> Array:
    axis = 1 if data_format == "NCHW" else grad.ndim - 1
    work = widened(grad)
    total = np.sum(work, tuple(i for i in range(grad.ndim) if i != axis), dtype=work.dtype)
    return np.asarray(total, grad.dtype)


def _bias_add_gradient(node: Node, grad: Tensor) -> list[Tensor]:
    return [grad, apply("BiasAddGrad", (grad,), dict(node.attrs))]


define("BiasAdd", _bias_add_rule, _bias_add, gradient=_bias_add_gradient)
define(
    "BiasAddGrad",
    _bias_grad_rule,
    _bias_grad,
    gradient=lambda node, grad: [apply("BiasAdd", (zeros_like(node.inputs[0]), grad), dict(node.attrs))],
    cost=input_cost(1.0),
)


def bias_add(value: TensorLike, bias: TensorLike, data_format: str | None = None, name: str | None = None) -> Tensor:
    """Add a bias to each channel.

    Args:
        value: numbers of rank 2 or more.
        bias: a vector with one number per channel.
        data_format: "N...C" or None if the channels are the last axis, "NC..." if they are the second.
        name: name of the node.

    Raises:
        ValueError: the size of `bias` is not the number of channels, or `data_format` is unknown.

    >>> bias_add([[1.0, 2.0]], [10.0, 20.0])   # evaluates to [[11, 22]]
    """
    if data_format is not None and data_format.startswith("NC"):
        layout = "NCHW"
    elif data_format is None or (data_format.startswith("N") and data_format.endswith("C")):
        layout = "NHWC"
    else:
        raise ValueError(f"data_format must be of the form 'N...C' or 'NC...', not {data_format!r}")
    attrs = {"data_format": layout}
    if isinstance(value, Tensor) and isinstance(bias, Tensor):
        return apply("BiasAdd", (value, bias), attrs, name)
    with op_scope(name, "BiasAdd", value, bias) as scope:
        x = convert(value, name="input")
        return apply("BiasAdd", (x, convert(bias, x.dtype, name="bias")), attrs, scope)


# --- dropout ----------------------------------------------------------------------------------------------------------


def dropout(
    x: TensorLike,
    keep_prob: TensorLike = None,
    noise_shape: Any = None,
    seed: int | None = None,
    name: str | None = None,
    rate: TensorLike = None,
) -> Tensor:
    """Set elements to 0 at random, and scale the others by 1 / (1 - rate), so that the expected value stays the same.

    Args:
        x: floats.
        keep_prob: 1 - rate, in (0, 1]. The old form of `rate`.
        noise_shape: the shape of the random choices, which broadcasts to that of x. With size 1, one choice applies to a whole axis. None,
            for the shape or one of its sizes, means that of x.
        seed: seed of the choices (see `get_seed`).
        name: name of the result's node.
        rate: the probability that an element is set to 0, in [0, 1).

    Raises:
        ValueError: not exactly one of keep_prob and rate is given, it is out of range or not a scalar, x is not of a floating type, or
            `noise_shape` does not broadcast to the shape of x.

    >>> dropout(x, rate=0.25, noise_shape=[None, 1])   # drops whole rows
    """
    if rate is not None and keep_prob is not None:
        raise ValueError("Cannot specify both 'rate' and 'keep_prob': rate is 1 - keep_prob")
    if rate is None and keep_prob is None:
        raise ValueError("You must provide a rate to dropout.")
    if isinstance(keep_prob, (int, float)) and not 0 < keep_prob <= 1:
        raise ValueError(f"keep_prob must be a scalar tensor or a float in the range (0, 1], got {keep_prob}")
    if isinstance(rate, (int, float)) and not 0 <= rate < 1:
        raise ValueError(f"rate must be a scalar tensor or a float in the range [0, 1), got {rate}")
    with op_scope(name, "dropout", x, keep_prob, rate) as scope:
        values = convert(x, name="x")
        if not values.dtype.is_floating:
            raise ValueError(
                "x has to be a floating point tensor since it's going to be scaled. "
                f"Got a {values.dtype.name} tensor instead."
            )
        given = keep_prob if rate is None else rate
        if not isinstance(given, (int, float)):
            given = convert(given, name="rate")
            if given.shape.ndims:
                raise ValueError(f"The rate, or keep_prob, is one number for all elements, not {given!r}")
        drop = 1 - given if rate is None else given
        if isinstance(drop, (int, float)) and drop == 0:
            return values
        # A half-precision type has too few numbers in [0, 1) to represent the rate exactly enough.
        dtype = float32 if values.dtype.base in (float16, bfloat16) else values.dtype.base
        drop = cast(drop, dtype) if isinstance(drop, Tensor) else convert(drop, dtype, name="rate")
        noise = random_uniform(_noise_shape(values, noise_shape), seed=seed, dtype=dtype)
        keep = greater_equal(noise, drop)
        scale = cast(divide(1.0, subtract(1.0, drop)), values.dtype)
        dropped = where_v2(keep, multiply(values, scale), 0, name=scope)
        dropped.set_shape(values.shape)  # a rate of unknown shape is a scalar
        return dropped


def _noise_shape(x: Tensor, wanted: Any) -> Any:
    if wanted is None:
        return shape(x)
    if isinstance(wanted, Tensor):
        return wanted
    sizes = list(as_dims(wanted) or ())
    if x.dims is not None and len(sizes) != len(x.dims):
        if None in sizes:
            raise ValueError(
                f"noise_shape {sizes} must have one size for each of the {len(x.dims)} dimensions of {x!r}"
            )
        return sizes
    own: Any = x.dims or (None,) * len(sizes)
    known = [o if s is None else s for s, o in zip(sizes, own, strict=True)]
    return [shape(x)[i] if d is None else d for i, d in enumerate(known)]
