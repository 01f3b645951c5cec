"""Normalizations by mean and variance, or by neighboring channels."""

from __future__ import annotations

from ....graph.core.build import make
from ....graph.core.dtypes import float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.shapes import reshape, transpose
from ....graph.ops.math.arithmetic import absolute, add, div_no_nan, multiply, rsqrt, sqrt, square, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.reduce import reduce_sum
from ....graph.ops.nn.normalization import (
    batch_normalization,
    layer_norm,
    local_response_normalization,
    moments,
)
from ..registry import Call, UnsupportedError, imports, normalize_axis


def _channels(v: Tensor, rank: int) -> Tensor:
    """Reshapes one number per channel for broadcasting."""
    return reshape(v, [1, -1, *[1] * (rank - 2)])


@imports("BatchNormalization")
def batch_norm(
    call: Call, x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor
) -> Tensor | tuple[Tensor, ...]:
    """Imports batch normalization with running statistics, or with those of the batch in `training_mode`."""
    rank, epsilon = len(call.dims(x)), call.attr("epsilon", 1e-5)
    learns = call.attr("training_mode", 0)
    if call.opset < 14 and (call.is_used(1) or call.is_used(2)) and len(call.wanted) > 1:
        raise UnsupportedError("training mode of an opset before 14")
    if learns:
        axes = [i for i in range(rank) if i != 1]
        m, v = moments(x, axes)
        keep = call.attr("momentum", 0.9)
        own = [_channels(t, rank) for t in (m, v, shift, scale)]
        y = batch_normalization(x, own[0], own[1], own[2], own[3], epsilon)
        return y, *(add(multiply(old, keep), multiply(new, 1 - keep)) for old, new in ((mean, m), (variance, v)))
    if rank == 4 and all(t.dtype.base is float32 for t in (x, scale, mean)):
        # The node is created directly, because `fused_batch_norm` raises small values of epsilon, as cuDNN does.
        how = {"epsilon": float(epsilon), "data_format": "NCHW", "is_training": False, "exponential_avg_factor": 1.0}
        return make("FusedBatchNormV3", (x, scale, shift, mean, variance), how).outputs[0]
    if rank < 2:
        m, v, shift, scale = mean, variance, shift, scale
    else:
        m, v, shift, scale = (_channels(t, rank) for t in (mean, variance, shift, scale))
    if scale.dtype.base is x.dtype.base and m.dtype.base is x.dtype.base:
        return batch_normalization(x, m, v, shift, scale, epsilon)
    wide = [t if t.dtype.base is float32 else cast(t, float32) for t in (x, m, v, shift, scale)]
    made: Tensor = cast(batch_normalization(wide[0], wide[1], wide[2], wide[3], wide[4], epsilon), x.dtype.base)
    return made


@imports("LayerNormalization")
def layer_normalization(
    call: Call, x: Tensor, scale: Tensor, shift: Tensor | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Imports a normalization of each example by its mean and variance over the axes from `axis` on."""
    rank, epsilon = len(call.dims(x)), call.attr("epsilon", 1e-5)
    axes = list(range(normalize_axis(call.attr("axis", -1), rank), rank))
    if not call.is_used(1) and not call.is_used(2):
        return layer_norm(x, scale, shift, axes, epsilon)
    mean, variance = moments(x if x.dtype.base is float32 else cast(x, float32), axes, keepdims=True)
    inverse = rsqrt(add(variance, epsilon))
    y = multiply(cast(multiply(subtract(cast(x, float32), mean), inverse), x.dtype.base), scale)
    return y if shift is None else add(y, shift), mean, inverse


@imports("InstanceNormalization")
def instance_norm(call: Call, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Imports a normalization of each channel of each image by its mean and variance."""
    rank = len(call.dims(x))
    mean, variance = moments(x, list(range(2, rank)), keepdims=True)
    epsilon = call.attr("epsilon", 1e-5)
    return batch_normalization(x, mean, variance, _channels(shift, rank), _channels(scale, rank), epsilon)


@imports("LpNormalization")
def lp_normalization(call: Call, x: Tensor) -> Tensor:
    """Imports a division by the norm along an axis. The result is 0 if the norm is 0."""
    axis, p = call.attr("axis", -1), call.choice("p", 2, 1)
    norm = sqrt(reduce_sum(square(x), axis, True)) if p == 2 else reduce_sum(absolute(x), axis, True)
    return div_no_nan(x, norm)


@imports("LRN")
def lrn(call: Call, x: Tensor) -> Tensor:
    """Imports a normalization over neighboring channels."""
    size = call.attr("size")
    if size % 2 == 0 or len(call.dims(x)) != 4:
        raise UnsupportedError("an even size, or a tensor that is not an image with two spatial axes")
    alpha, beta, bias = call.attr("alpha", 1e-4), call.attr("beta", 0.75), call.attr("bias", 1.0)
    made = local_response_normalization(transpose(x, [0, 2, 3, 1]), size // 2, bias, alpha / size, beta)
    return transpose(made, [0, 3, 1, 2])
