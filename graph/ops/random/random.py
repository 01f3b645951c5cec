"""Random numbers: tensors drawn from Philox (`graph/core/philox.py`), with TensorFlow 1's rules for seeds.

The key is made when the graph is built from a seed (of the op, or set with `set_random_seed`). Without a seed it is made from the
session's own seed and the node's name. The counter is the node's run number in the session. So with a seed two sessions give the
same series of numbers, each step of a session gives new ones, and neither depends on where the node runs.

The forms that take the seed as a tensor are in `stateless_random`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.dtypes import NUMBERS, Array, DType, as_dtype, int32, int64
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, Trait, default_cost, define
from ...core.philox import Stream
from ...resources.resource_manager import Context
from ..array.shapes import shape as shape_of
from ..array.slicing import slice as slice_of
from ..math.arithmetic import add, floormod, subtract
from ..math.common import allowed, unary
from ..math.static_operands import index_operand, index_type_attr, need_rank, op_scope, static_int
from .random_common import (
    WORD_FLOPS,
    Draw,
    bounds,
    bounds_rule,
    check_seeds,
    drawing_cost,
    float_attr,
    gaussian,
    interval,
    scaled,
    seed_attrs,
    shape_operand,
    sizes_of,
    stream_of,
)


def _define_draw(name: str, draw: str) -> None:
    """An op that draws floats of a given shape: `Stream.<draw>`."""
    function: Draw = getattr(Stream, draw)

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        check_seeds(attrs)
        return [(float_attr(attrs), shape_operand(inputs[0]))]

    def reference(context: Context, shape: Array, *, dtype: DType, seed: int, seed2: int) -> Array:
        return function(stream_of(context, seed, seed2), sizes_of(shape), dtype.np)

    define(name, infer, reference, cost=drawing_cost(draw), traits=Trait.STATEFUL)


def _uniform_int_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    return [(bounds_rule(inputs[1:]), shape_operand(inputs[0]))]


def _uniform_int(context: Context, shape: Array, low: Array, high: Array, *, seed: int, seed2: int) -> Array:
    stream, sizes = stream_of(context, seed, seed2), sizes_of(shape)
    a, b = bounds(low, high, int(np.prod(sizes)))
    return stream.integers(sizes, a, b, low.dtype)


def _shuffle_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    return [(inputs[0].dtype.base, inputs[0].dims)]


def _shuffle(context: Context, value: Array, *, seed: int, seed2: int) -> Array:
    stream = stream_of(context, seed, seed2)
    return value if np.ndim(value) == 0 else value[stream.permutation(len(value))]


def _multinomial_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    logits, num_samples = inputs
    allowed(logits.dtype.base, NUMBERS)
    need_rank(logits.dims, 2, "logits")
    if num_samples.dtype.base is not int32:
        raise TypeError(f"num_samples must be int32, not {num_samples.dtype.base.name}")
    need_rank(num_samples.dims, 0, "num_samples")
    dtype = index_type_attr(attrs, "output_dtype")
    rows = logits.dims[0] if logits.dims is not None else None
    return [(dtype, (rows, static_int(num_samples)))]


def _multinomial(
    context: Context, logits: Array, num_samples: Array, *, seed: int, seed2: int, output_dtype: DType
) -> Array:
    rows, classes = logits.shape
    count = int(num_samples)
    if count < 0:
        raise ValueError(f"num_samples cannot be negative: {count}")
    if not classes and rows and count:
        raise ValueError("there must be at least one class to draw from")
    u = stream_of(context, seed, seed2).uniform((rows, count), np.dtype(np.float64))
    out = np.empty((rows, count), output_dtype.np)
    for row, x in enumerate(logits.astype(np.float64)):
        edges = np.cumsum(np.exp(x - x.max()))  # the class whose interval of the cumulative sums contains the number
        last = np.flatnonzero(np.diff(edges, prepend=0.0))[-1]  # a class of probability 0 is never drawn
        out[row] = np.minimum(np.searchsorted(edges, u[row] * edges[-1], side="right"), last)
    return out


_define_draw("RandomUniform", "uniform")
_define_draw("RandomStandardNormal", "normal")
_define_draw("TruncatedNormal", "truncated_normal")
define("RandomUniformInt", _uniform_int_rule, _uniform_int, cost=drawing_cost("integers"), traits=Trait.STATEFUL)
define("RandomShuffle", _shuffle_rule, _shuffle, cost=drawing_cost("integers"), traits=Trait.STATEFUL)
define(
    "Multinomial",
    _multinomial_rule,
    _multinomial,
    cost=lambda node: default_cost(node, 2 * WORD_FLOPS + 20),
    traits=Trait.STATEFUL,
)


def random_uniform(
    shape: TensorLike,
    minval: TensorLike = 0,
    maxval: TensorLike = None,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers evenly spread over [minval, maxval), new ones in each step.

    Args:
        shape: shape of the result.
        minval: the lower end, included; a scalar (floats: or anything that broadcasts).
        maxval: the upper end, not included; None: 1. Integers need it.
        dtype: element type, a floating type or int32, int64, uint32, uint64.
        seed: seed of this op; see `get_seed`.
        name: name of the result's node.

    Raises:
        ValueError: integers without maxval, or a bad shape.
        TypeError: no such element type.

    >>> random_uniform([2, 3], minval=-1, seed=7)
    """
    dtype = as_dtype(dtype).base
    with op_scope(name, "random_uniform", shape, minval, maxval) as scope:
        sizes = index_operand(shape, "shape")
        low, high = interval(minval, maxval, dtype)
        seeds = seed_attrs(seed)
        if dtype.is_integer:
            return apply("RandomUniformInt", (sizes, low, high), seeds, scope)
        drawn = apply("RandomUniform", (sizes,), {"dtype": dtype, **seeds})
        return scaled(drawn, subtract(high, low, name="sub"), low, scope)


def random_normal(
    shape: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers, new ones in each step.

    `mean` and `stddev` broadcast against the result; `shape`, `dtype`, `seed`, `name` as for `random_uniform`.
    """
    seeds = partial(seed_attrs, seed)
    return gaussian("RandomStandardNormal", "random_normal", {"shape": shape}, mean, stddev, dtype, seeds, name)


def truncated_normal(
    shape: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers no further than two standard deviations from the mean, new ones in each step.

    Arguments as for `random_normal`; `stddev` is that of the whole normal distribution.
    """
    seeds = partial(seed_attrs, seed)
    return gaussian("TruncatedNormal", "truncated_normal", {"shape": shape}, mean, stddev, dtype, seeds, name)


def random_shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """The rows of `value` (along its first axis) in random order, another one in each step."""
    return unary("RandomShuffle", value, name, seed_attrs(seed))


def random_crop(value: TensorLike, size: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """A slice of `value` of the given size, at a random offset, which differs in each step.

    Args:
        value: any tensor.
        size: sizes along each axis, none above value's.
    """
    with op_scope(name, "random_crop", value, size) as scope:
        tensor = convert(value, name="value")
        wanted = index_operand(size, "size")
        room = subtract(add(shape_of(tensor, out_type=wanted.dtype), 1), wanted)
        anywhere = random_uniform(shape_of(wanted), dtype=wanted.dtype, maxval=wanted.dtype.max, seed=seed)
        return slice_of(tensor, floormod(anywhere, room, name="offset"), wanted, name=scope)


def multinomial(
    logits: TensorLike,
    num_samples: TensorLike,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: Any = None,
) -> Tensor:
    """Classes drawn from unnormalised log probabilities, new ones in each step.

    Args:
        logits: `[rows, classes]`; a row's probabilities are softmax(logits).
        num_samples: how many to draw of each row, with replacement.
        seed: seed of this op.
        name: scope of the nodes.
        output_dtype: int64 (also when None) or int32.

    Returns:
        `[rows, num_samples]`.
    """
    return _draw_classes("multinomial", logits, num_samples, output_dtype, seed, name)


def categorical(
    logits: TensorLike,
    num_samples: TensorLike,
    dtype: Any = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`multinomial` under its newer name and order of arguments (`tf.random.categorical`)."""
    return _draw_classes("categorical", logits, num_samples, dtype, seed, name)


def _draw_classes(
    default: str, logits: TensorLike, num_samples: TensorLike, dtype: Any, seed: int | None, name: str | None
) -> Tensor:
    with op_scope(name, default, logits):
        inputs = convert(logits, name="logits"), convert(num_samples, int32, name="num_samples")
        attrs = {**seed_attrs(seed), "output_dtype": int64 if dtype is None else as_dtype(dtype)}
        return apply("Multinomial", inputs, attrs)
