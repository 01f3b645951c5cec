"""Kernels over rows: sums of rows with equal ids, for sparse updates, and the k largest numbers of each row.

Sums: NumPy would sort the rows to bring equal ids together. Here each row is added to its segment, in the order of the rows. Threads
share the segments, and each thread scans all ids.

`TopKV2`: NumPy would sort whole rows. `topk_source` keeps the k largest in order while it scans, as an insertion into a short list.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....graph.core.dtypes import Array
from ....graph.core.graph import Node
from ....graph.resources.buffer_pool import buffers
from ...target import NS_PER_COMPARED, NS_PER_FOUND, NS_PER_SUM
from ..emit.instantiate import text_of
from ..native.planner import Planner
from ..native.worker_pool import share
from ..work_ranges import Ranges, ranges_of

TOP = frozenset(("TopKV2",))
MOST = 256  # the largest k: each insertion moves some of the numbers found so far

_WIDE = 8  # elements of a row from which on skipping a row is cheap compared with adding it


def add_rows(function: Any, data: Array, ids: Array, count: int, threads: int) -> Array:
    """The sums of the rows of `data` by their ids, which are below `count`. `function`: `table_loops.added`, compiled."""
    inner = data.shape[ids.ndim :]
    out = buffers.empty((count, *inner), data.dtype)
    width = math.prod(inner)
    ranges = ranges_of_rows(count, width, data.size * NS_PER_SUM, threads)
    share(function, (data.ravel(), ids.ravel(), out.reshape(-1), ids.size, width), ranges, threads)
    return out


def ranges_of_rows(count: int, width: int, nanoseconds: float, threads: int) -> Ranges:
    """How the rows of a table are shared by threads that add to them: one range for each, since each scans all added elements."""
    if width < _WIDE or len(ranges_of(count, nanoseconds, threads)) == 1:
        return ((0, count),)
    parts = min(threads, count)
    edges = [count * i // parts for i in range(parts + 1)]
    return tuple(zip(edges[:-1], edges[1:], strict=True))


def top_kernel(node: Node, threads: int) -> tuple[str, Callable[..., tuple[Array, Array] | None]]:
    """The source text for a node, and the `call` of its `NodeKernel`. The reference does the work if k is too large."""

    def top(function: Any, planner: Planner, x: Array, k: Array) -> tuple[Array, Array] | None:
        count, length = int(planner.known(k)), x.shape[-1]
        if not 0 < count <= min(length, MOST) or not x.size:
            return None
        rows, shape = x.size // length, (*x.shape[:-1], count)
        values, places = planner.empty(shape, x.dtype), planner.empty(shape, np.dtype(np.int32))
        time = x.size * NS_PER_COMPARED + rows * count * NS_PER_FOUND
        arrays = planner.ordered(x).reshape(-1), values.reshape(-1), places.reshape(-1)
        planner.share(function, (*arrays, (length, count)), ranges_of(rows, time, threads), threads)
        return values, places

    return text_of("kernels/topk_source", {"top": ("rwp", (2,))}, node.outputs[0].dtype.name), top
