"""Quantized ops.

A quantized tensor x represents the values (x - zero point) * scale.
"""

from __future__ import annotations

from typing import Any

from ....graph.core.build import constant
from ....graph.core.dtypes import DType, float32, float64, int32, uint8
from ....graph.core.graph import Tensor
from ....graph.ops.array.sequences import repeat
from ....graph.ops.array.shapes import reshape
from ....graph.ops.math.arithmetic import add, divide, maximum, minimum, multiply, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.elementwise import round
from ....graph.ops.math.reduce import reduce_max, reduce_min
from ..messages import element_type
from ..registry import Call, UnsupportedError, imports, normalize_axis
from .convolutions import conv
from .reductions import matmul_integer


def _spread(call: Call, x: Tensor, scale: Tensor) -> Any:
    """Returns a function that reshapes a scale or a zero point for broadcasting: per tensor, per axis, or per block."""
    rank, own = len(call.dims(x)), len(call.dims(scale, "the scale"))
    if own == 0 or call.dims(scale) == (1,):
        return lambda v: reshape(v, [])
    axis, block = normalize_axis(call.attr("axis", 1), rank), call.attr("block_size", 0)
    if not block:
        return lambda v: reshape(v, [-1 if i == axis else 1 for i in range(rank)])
    whole = call.dims(x)[axis]
    if whole is None:
        raise UnsupportedError("blocks along an axis whose size is known only when the graph runs")
    return lambda v: repeat(v, block, axis=axis)[
        tuple(slice(0, whole) if i == axis else slice(None) for i in range(rank))
    ]


def quantized(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """Rounds, and clips to the range of the type."""
    if not dtype.is_integer:
        raise UnsupportedError(f"quantization to {dtype.name}")
    values = round(divide(x, scale))
    wide = cast(values, float32)
    if zero is not None:
        wide = add(wide, cast(zero, float32))
    kept: Tensor = cast(minimum(maximum(wide, float(dtype.min)), float(dtype.max)), dtype)
    return kept


@imports("QuantizeLinear")
def quantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Imports a quantization to the zero point's type, to `output_dtype`, or else to uint8."""
    given = call.attr("output_dtype", 0)
    dtype = zero.dtype.base if zero is not None else element_type(given) if given else uint8
    spread = _spread(call, x, scale)
    source = x if x.dtype.base is scale.dtype.base else cast(x, scale.dtype.base)
    return quantized(source, spread(scale), None if zero is None else spread(zero), dtype)


@imports("DequantizeLinear")
def dequantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Imports a dequantization to the scale's type."""
    spread = _spread(call, x, scale)
    if x.dtype.base.is_floating:
        values: Tensor = cast(x, scale.dtype.base)
        return multiply(values, spread(scale))
    wide: Any = cast(x, int32)
    if zero is not None:
        wide = subtract(wide, cast(spread(zero), int32))
    return multiply(cast(wide, scale.dtype.base), spread(scale))


@imports("DynamicQuantizeLinear")
def dynamic_quantize(call: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Imports a quantization to uint8, with a scale and a zero point computed from the tensor."""
    least, most = minimum(reduce_min(x), 0.0), maximum(reduce_max(x), 0.0)
    scale = divide(subtract(most, least), 255.0)
    zero = round(minimum(maximum(divide(subtract(0.0, least), scale), 0.0), 255.0))
    return quantized(x, scale, cast(zero, uint8), uint8), scale, cast(zero, uint8)


def _around_zero(x: Tensor, zero: Tensor | None, axes: int = 0) -> Tensor:
    """Subtracts the zero point in float64, so that sums of small integers are exact."""
    wide: Tensor = cast(x, float64)
    if zero is None:
        return wide
    offset: Tensor = cast(zero, float64)
    return subtract(wide, reshape(offset, [-1, *[1] * axes]) if offset.dims != () else offset)


@imports("ConvInteger")
def conv_integer(
    call: Call, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    """Imports a convolution of integers minus their zero points, with an int32 result."""
    made: Tensor = cast(conv(call, _around_zero(x, x_zero), _around_zero(w, w_zero, len(call.dims(w)) - 1)), int32)
    return made


@imports("QLinearConv")
def quantized_conv(
    call: Call, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor, scale: Tensor,
    zero: Tensor, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Imports a convolution of quantized tensors with a quantized result. A filter may have a scale per output channel."""
    axes = len(call.dims(w)) - 1
    summed: Any = conv(
        call, _around_zero(x, x_zero), _around_zero(w, w_zero, axes), None if bias is None else cast(bias, float64)
    )
    by = divide(multiply(x_scale, w_scale), scale)
    by = reshape(by, [-1, *[1] * (axes - 1)]) if by.dims != () else by
    return quantized(multiply(cast(summed, float32), by), constant(1.0), zero, zero.dtype.base)


@imports("QLinearMatMul")
def quantized_product(
    call: Call, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, scale: Tensor,
    zero: Tensor,
) -> Tensor:  # fmt: skip
    """Imports a matrix product of quantized tensors with a quantized result."""
    summed = cast(matmul_integer(call, a, b, a_zero, b_zero), float32)
    factor = divide(multiply(cast(a_scale, float32), cast(b_scale, float32)), cast(scale, float32))
    return quantized(multiply(summed, factor), constant(1.0), zero, zero.dtype.base)
