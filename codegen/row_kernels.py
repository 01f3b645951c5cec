"""Sums over segments, compiled for CPUs.

NumPy sorts the rows of a sum over segments to bring equal ids together; here each row is added where it belongs, and threads share the
columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ..graph.dtypes import float32, float64, int32, int64
from ..graph.node import Node
from .buffers import buffers
from .loop_text import source_of
from .threads import ranges_of, share

Array: TypeAlias = np.ndarray[Any, Any]

_TYPES = (float32, float64, int32, int64)
_NS_PER_SUM = 0.3  # one core, for a number
_LINE = 64  # columns that a thread takes at least: two would else write to one line of the cache

OPS = frozenset(("UnsortedSegmentSum",))


def row_kernel(node: Node, threads: int) -> tuple[str, Callable[..., Array | None]] | None:
    """For a node that has a kernel here: its source text, and what is to be called with the compiled function and the inputs.

    That gives None where the reference must do the work, and say what is wrong.
    """
    if node.type not in OPS or node.outputs[0].dtype.base not in _TYPES:
        return None
    name = node.outputs[0].dtype.base.name

    def sums(function: Any, data: Array, ids: Array, count: Array) -> Array | None:
        return _segment_sum(function, data, ids, int(count), threads)

    return source_of("row_loops", {"segment_sum": ("rnw", (2,))}, name), sums


def _segment_sum(function: Any, data: Array, ids: Array, count: int, threads: int) -> Array | None:
    if data.shape[: ids.ndim] != ids.shape or count <= 0 or not ids.size or ids.max() >= count:
        return None
    inner = data.shape[ids.ndim :]
    columns = math.prod(inner)
    out = buffers.empty((count, *inner), data.dtype)
    out[...] = 0
    lines = ranges_of(-(-columns // _LINE), data.size * _NS_PER_SUM, threads)
    ranges = tuple((lo * _LINE, min(hi * _LINE, columns)) for lo, hi in lines)
    flat = np.ascontiguousarray(ids, np.int64).ravel()
    share(function, (data.ravel(), flat, out.reshape(-1), (ids.size, columns)), ranges, threads)
    return out
