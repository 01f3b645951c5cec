"""Values that are made: constants, sizes, ranges, random numbers."""

from __future__ import annotations

import numpy as np

from ....graph.core.build import constant
from ....graph.core.dtypes import float32, int64
from ....graph.core.graph import Tensor
from ....graph.ops.array.creation import fill
from ....graph.ops.array.diagonal import eye
from ....graph.ops.array.ranges import range as range_
from ....graph.ops.array.shapes import reshape, shape, size
from ....graph.ops.math.cast import cast
from ....graph.ops.random.random import random_normal, random_uniform
from ..messages import element_type
from ..registry import Call, UnsupportedError, imports

_VALUES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


@imports("Constant")
def constant_(call: Call) -> Tensor:
    """A tensor, a number, text, or a list of those."""
    value = call.attr("value")
    for name, kind in _VALUES.items():
        if name in call.attrs:
            value = np.array(call.attr(name), kind)
    for name in ("value_string", "value_strings"):
        if name in call.attrs:
            given = call.attr(name)
            return constant(given.encode() if isinstance(given, str) else [v.encode() for v in given])
    if value is None:
        raise UnsupportedError("a constant that is no tensor")
    return constant(value)


@imports("ConstantOfShape")
def constant_of_shape(call: Call, dims: Tensor) -> Tensor:
    """One number for all elements of a shape; 0.0 by default."""
    value = call.attr("value", np.zeros(1, np.float32))
    return fill(dims, constant(value.reshape(())))


@imports("Shape")
def shape_(call: Call, x: Tensor) -> Tensor:
    """The sizes from `start` to `end`."""
    sizes = shape(x, out_type=int64)
    start, end = call.attr("start", 0), call.attr("end")
    if start == 0 and end is None:
        return sizes
    rank = len(call.dims(x))
    first, behind, _ = slice(start, end).indices(rank)
    return sizes[first : max(first, behind)]


@imports("Size")
def size_(call: Call, x: Tensor) -> Tensor:
    """The number of elements."""
    return size(x, out_type=int64)


@imports("Range")
def range_of(call: Call, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """Numbers from start up to the limit."""
    return range_(reshape(start, []), reshape(limit, []), reshape(delta, []))


@imports("EyeLike")
def eye_like(call: Call, x: Tensor) -> Tensor:
    """Ones on a diagonal."""
    dtype = element_type(call.attr("dtype")) if "dtype" in call.attrs else x.dtype.base
    rows, columns = call.dims(x)
    k = call.attr("k", 0)
    if rows is None or columns is None:
        if k:
            raise UnsupportedError("a moved diagonal of a matrix of unknown size")
        sizes = shape(x)
        made: Tensor = cast(eye(sizes[0], sizes[1]), dtype)
        return made
    return constant(np.eye(rows, columns, k, dtype.np))


@imports("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def random(call: Call, like: Tensor | None = None) -> Tensor:
    """Random numbers; as everywhere, a seed gives other numbers than other libraries draw."""
    seed = call.attr("seed")
    dims = shape(like) if like is not None else call.attr("shape")
    dtype = (
        element_type(call.attr("dtype")) if "dtype" in call.attrs else like.dtype.base if like is not None else float32
    )
    seed = None if seed is None else int(seed)
    if call.op.startswith("RandomNormal"):
        return random_normal(dims, call.attr("mean", 0.0), call.attr("scale", 1.0), dtype, seed)
    return random_uniform(dims, call.attr("low", 0.0), call.attr("high", 1.0), dtype, seed)
