"""Random tensors by Philox (`graph/core/philox.py`), with TensorFlow 1's rules for seeds.

The key of a node is made from the seed of the op or of the graph (`set_random_seed`). Without one, the session makes it from its own seed
and the node's name. The counter is the node's run number in the session. So each step draws new numbers. With a seed, every session draws
the same series. The numbers do not depend on the device.

The ops that take the seed as a tensor are in `stateless_random`.
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
    seed_attrs,
    shape_operand,
    sizes_of,
    stream_of,
    uniform,
)


def _define_draw(name: str, draw: str) -> None:
    """Define an op that draws floats of a given shape by `Stream.<draw>`."""
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
        edges = np.cumsum(np.exp(x - x.max()))  # draw the class in whose interval of cumulative sums the number lies
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
    """Uniformly distributed numbers in [minval, maxval), new ones in each step.

    Args:
        shape: shape of the result.
        minval: the lower bound, included. A scalar, or for floats anything that broadcasts to `shape`.
        maxval: the upper bound, excluded. None means 1. Required for integers.
        dtype: element type: a floating type, int32, int64, uint32 or uint64.
        seed: seed of this op (see `get_seed`).
        name: name of the result's node.

    Raises:
        ValueError: `maxval` is missing for integers, or the shape is invalid.
        TypeError: the element type is not supported.

    >>> random_uniform([2, 3], minval=-1, seed=7)
    """
    seeds = partial(seed_attrs, seed)
    return uniform("RandomUniform", "random_uniform", {"shape": shape}, minval, maxval, dtype, seeds, name)


def random_normal(
    shape: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers, new ones in each step.

    `mean` and `stddev` broadcast to the result's shape. Other arguments as for `random_uniform`.
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
    """Numbers from a normal distribution, truncated at two standard deviations from the mean, new ones in each step.

    Arguments as for `random_normal`. `stddev` is the standard deviation before truncation.
    """
    seeds = partial(seed_attrs, seed)
    return gaussian("TruncatedNormal", "truncated_normal", {"shape": shape}, mean, stddev, dtype, seeds, name)


def random_shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """The slices of `value` along its first axis in random order, a new one in each step."""
    return unary("RandomShuffle", value, name, seed_attrs(seed))


def random_crop(value: TensorLike, size: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """A slice of `value` at a random offset, a new one in each step.

    Args:
        value: any tensor.
        size: the shape of the slice, not larger than that of `value`.
        seed: seed of this op (see `get_seed`).
        name: name of the result's node.
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
    """Classes drawn from unnormalized log probabilities, new ones in each step.

    Args:
        logits: `[rows, classes]`. The probabilities of a row are softmax(logits).
        num_samples: the number of classes drawn per row, with replacement.
        seed: seed of this op (see `get_seed`).
        name: name scope of the nodes.
        output_dtype: int64 or int32. None means int64.

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
    """`multinomial` with its newer name and order of arguments (`tf.random.categorical`)."""
    return _draw_classes("categorical", logits, num_samples, dtype, seed, name)


def _draw_classes(
    default: str, logits: TensorLike, num_samples: TensorLike, dtype: Any, seed: int | None, name: str | None
) -> Tensor:
    with op_scope(name, default, logits):
        inputs = convert(logits, name="logits"), convert(num_samples, int32, name="num_samples")
        attrs = {**seed_attrs(seed), "output_dtype": int64 if dtype is None else as_dtype(dtype)}
        return apply("Multinomial", inputs, attrs)
