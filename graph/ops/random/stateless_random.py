"""Stateless random numbers: the seed is a tensor, and gives the same numbers every time; and draws in two steps.

A random node has state: it counts its runs. But its numbers are a function of its *stream* alone, a key and the number of the draw
(`graph/core/philox.py`), and of the position. So compilers split a draw (`codegen/passes/decompose.py`): the stream is two numbers, made
where the node was, and the numbers are as pure as a sum and can be part of a fused kernel. Programs are built with the whole ops
(`random.py`).

    key    the key's two words, the first in the lower half        draw    the upper half of the counter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply
from ...core.dtypes import Array, DType, as_dtype, uint64
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, Trait, define
from ...core.philox import Stream
from ..math.arithmetic import subtract
from ..math.static_operands import index_operand, need_index, need_rank, op_scope
from .random_common import (
    Draw,
    bounds,
    bounds_rule,
    check_seeds,
    drawing_cost,
    float_attr,
    gaussian,
    interval,
    scaled,
    shape_operand,
    sizes_of,
    stream_of,
)


def seeded_stream(seed: Array) -> Stream:
    """Two numbers of 64 bits fill the key (their lower words) and the upper half of the counter (their upper words)."""
    a, b = (int(s) % (1 << 64) for s in seed)
    low = 0xFFFFFFFF
    return Stream((a & low, b & low), (a >> 32) | (b >> 32) << 32)


def check_seed_operand(seed: Tensor) -> None:
    """Check that a tensor can be the seed of a stateless op."""
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
    """Numbers evenly spread over [minval, maxval): a function of shape and seed alone.

    Args:
        shape: shape of the result.
        seed: two integers (int32 or int64), which may be computed by the graph.
        minval: as for `random_uniform`.
        maxval: as for `random_uniform`.
        dtype: as for `random_uniform`.

    >>> stateless_random_uniform([2], seed=[1, 2])   # the same two numbers in every step, session and process
    """
    dtype = as_dtype(dtype).base
    with op_scope(name, "stateless_random_uniform", shape, seed, minval, maxval) as scope:
        sizes, two = index_operand(shape, "shape"), index_operand(seed, "seed")
        low, high = interval(minval, maxval, dtype)
        if dtype.is_integer:
            return apply("StatelessRandomUniformInt", (sizes, two, low, high), None, scope)
        drawn = apply("StatelessRandomUniform", (sizes, two), {"dtype": dtype})
        return scaled(drawn, subtract(high, low, name="sub"), low, scope)


def stateless_random_normal(
    shape: TensorLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers: a function of shape and seed alone (see `stateless_random_uniform`)."""
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
    """`truncated_normal` as a function of shape and seed alone (see `stateless_random_uniform`)."""
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
    # Its input is an input of the drawing node: if that is dead, this node is dead, too.
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
    """An op that gives the numbers of a stream: a function of the shape, the key and the draw."""

    def reference(shape: Array, key: Array, draw: Array, *, dtype: Any) -> Array:
        both = int(key)
        return draw_of(Stream((both & 0xFFFFFFFF, both >> 32), int(draw)), sizes_of(shape), dtype.np)

    define(name, _draw_rule, reference, cost=cost)


_define_numbers("UniformOfStream", Stream.uniform, drawing_cost("uniform"))
_define_numbers("NormalOfStream", Stream.normal, drawing_cost("normal"))
