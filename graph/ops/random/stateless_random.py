"""Stateless random numbers, which are a function of a seed tensor. Also the ops that the compiler splits random ops into.

A random node is stateful because it counts its runs. Its numbers depend only on their position and on its *stream*, a key and a draw number
(`graph/core/philox.py`). So the compiler splits a random op in two (`codegen/passes/decompose.py`). The first op gives the stream as two
numbers. The second one computes random numbers from them. It is a pure function, and can be part of a fused kernel.

    key    the key's two words, the first in the lower half        draw    the upper half of the counter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike
from ...core.dtypes import Array, DType, uint64
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, Trait, define
from ...core.philox import Stream
from ..math.static_operands import need_index, need_rank
from .random_common import (
    Draw,
    bounds,
    bounds_rule,
    check_seeds,
    drawing_cost,
    float_attr,
    gaussian,
    shape_operand,
    sizes_of,
    stream_of,
    uniform,
)


def seeded_stream(seed: Array) -> Stream:
    """The stream of a seed of two 64-bit numbers. Their lower words are the key, their upper words the draw number."""
    a, b = (int(s) % (1 << 64) for s in seed)
    low = 0xFFFFFFFF
    return Stream((a & low, b & low), (a >> 32) | (b >> 32) << 32)


def check_seed_operand(seed: Tensor) -> None:
    """TypeError or ValueError unless a tensor can be the seed of a stateless op."""
    need_index(seed, "the seed", 1)
    if seed.dims is not None and seed.dims[0] not in (None, 2):
        raise ValueError(f"the seed must hold two numbers, not {seed.dims[0]}")


def _define_stateless(name: str, draw: str) -> None:
    function: Draw = getattr(Stream, draw)

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        check_seed_operand(inputs[1])
        return [(float_attr(attrs), shape_operand(inputs[0]))]

    def reference(shape: Array, seed: Array, *, dtype: DType) -> Array:
        return function(seeded_stream(seed), sizes_of(shape), dtype.np)

    define(name, infer, reference, cost=drawing_cost(draw))


def _stateless_int_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seed_operand(inputs[1])
    return [(bounds_rule(inputs[2:]), shape_operand(inputs[0]))]


def _stateless_int(shape: Array, seed: Array, low: Array, high: Array) -> Array:
    sizes = sizes_of(shape)
    a, b = bounds(low, high, int(np.prod(sizes)))
    return seeded_stream(seed).integers(sizes, a, b, low.dtype)


_define_stateless("StatelessRandomUniform", "uniform")
_define_stateless("StatelessRandomNormal", "normal")
_define_stateless("StatelessTruncatedNormal", "truncated_normal")
define("StatelessRandomUniformInt", _stateless_int_rule, _stateless_int, cost=drawing_cost("integers"))


def stateless_random_uniform(
    shape: TensorLike,
    seed: TensorLike,
    minval: TensorLike = 0,
    maxval: TensorLike = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> Tensor:
    """Uniformly distributed numbers in [minval, maxval), a function of shape and seed. Other arguments as for `random_uniform`.

    Args:
        shape: shape of the result.
        seed: two ints (int32 or int64), which may be a tensor.

    >>> stateless_random_uniform([2], seed=[1, 2])   # the same two numbers in every step, session and process
    """
    operands = {"shape": shape, "seed": seed}
    return uniform("StatelessRandomUniform", "stateless_random_uniform", operands, minval, maxval, dtype, dict, name)


def stateless_random_normal(
    shape: TensorLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers, a function of shape and seed (see `stateless_random_uniform`)."""
    operands = {"shape": shape, "seed": seed}
    return gaussian("StatelessRandomNormal", "stateless_random_normal", operands, mean, stddev, dtype, dict, name)


def stateless_truncated_normal(
    shape: TensorLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    name: str | None = None,
) -> Tensor:
    """`truncated_normal` as a function of shape and seed (see `stateless_random_uniform`)."""
    operands = {"shape": shape, "seed": seed}
    return gaussian("StatelessTruncatedNormal", "stateless_truncated_normal", operands, mean, stddev, dtype, dict, name)


_SCALARS: Sequence[Output] = ((uint64, ()), (uint64, ()))


def _numbers(stream: Stream) -> tuple[Any, Any]:
    low, high = stream.key
    return np.asarray(low | high << 32, np.uint64), np.asarray(stream.draw, np.uint64)


def _stream_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    return _SCALARS


def _seeded_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seed_operand(inputs[0])
    return _SCALARS


define(
    "RandomStream",
    infer=_stream_rule,
    # Its inputs are those of the random op that was split: if that is dead, this node is dead, too.
    reference=lambda context, *_, seed, seed2: _numbers(stream_of(context, seed, seed2)),
    traits=Trait.STATEFUL,
)
define("SeededStream", _seeded_rule, lambda seed: _numbers(seeded_stream(seed)))


def _draw_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    shape, key, draw = inputs
    for t, name in ((key, "the key"), (draw, "the draw")):
        need_rank(t.dims, 0, name)
        if t.dtype.base is not uint64:
            raise TypeError(f"{name} must be uint64, not {t.dtype.base.name}")
    return [(float_attr(attrs), shape_operand(shape))]


def _define_numbers(name: str, draw_of: Draw, cost: Callable[..., Any]) -> None:
    """Define an op that computes random numbers from a shape, a key and a draw number."""

    def reference(shape: Array, key: Array, draw: Array, *, dtype: Any) -> Array:
        both = int(key)
        return draw_of(Stream((both & 0xFFFFFFFF, both >> 32), int(draw)), sizes_of(shape), dtype.np)

    define(name, _draw_rule, reference, cost=cost)


_define_numbers("UniformOfStream", Stream.uniform, drawing_cost("uniform"))
_define_numbers("NormalOfStream", Stream.normal, drawing_cost("normal"))
