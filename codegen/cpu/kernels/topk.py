"""The largest numbers along the last axis, compiled for CPUs: NumPy would sort all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.dtypes import float32, float64, int32, int64
from ....graph.core.graph import Node
from ..emit.instantiate import source_of
from ..native.recorder import AT_ONCE, Doer
from ..thread_pool import ranges_of

Array: TypeAlias = np.ndarray[Any, Any]

OPS = frozenset(("TopKV2",))
TOLD = {"TopKV2": 1}
"""Which input is looked at: how many numbers."""
MOST = 256  # numbers of a row: each that is found moves some of those before it
_NS_PER_NUMBER, _NS_PER_FOUND = 0.15, 10.0  # one core

_TYPES = (float32, float64, int32, int64)


def top_kernel(node: Node, threads: int) -> tuple[str, Callable[..., tuple[Array, Array] | None]] | None:
    """For a node that has a kernel here: its source text, and what is to be called with the compiled function and the inputs.

    That gives None where the reference must do the work: too many numbers are asked for, or more than there are.
    """
    if node.type not in OPS or node.outputs[0].dtype.base not in _TYPES:
        return None

    def top(function: Any, x: Array, k: Array, doer: Doer = AT_ONCE) -> tuple[Array, Array] | None:
        count, length = int(k), x.shape[-1]
        if not 0 < count <= min(length, MOST) or not x.size:
            return None
        rows, shape = x.size // length, (*x.shape[:-1], count)
        values, places = doer.empty(shape, x.dtype), doer.empty(shape, np.dtype(np.int32))
        time = x.size * _NS_PER_NUMBER + rows * count * _NS_PER_FOUND
        arrays = doer.ordered(x).reshape(-1), values.reshape(-1), places.reshape(-1)
        doer.share(function, (*arrays, (length, count)), ranges_of(rows, time, threads), threads)
        return values, places

    return source_of("topk_source", {"top": ("rwp", (2,))}, node.outputs[0].dtype.name), top
