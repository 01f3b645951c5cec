"""Copies of large tensors on CPUs: reshapes of strided arrays, stacking and concatenation.

NumPy writes the result into fresh memory. From 32 MiB on, its page faults, in which the operating system clears each page, take two to
four times as long as the copy. These kernels write to reused memory of a pool (`buffer_pool`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.graph import Node
from ....graph.resources.buffer_pool import LARGE, buffers
from ...ir.program import Kernel
from ..native.planner import NS_PER_COPIED
from ..native.table import COPY, assistance, is_ready, loops
from ..native.worker_pool import share
from ..work_ranges import ranges_of

Array: TypeAlias = np.ndarray[Any, Any]

OPS = frozenset(("Reshape", "Pack", "ConcatV2"))
FRESH = 32 << 20
"""Results from so many bytes on get fresh memory from the C library. A smaller one gets memory that was used before, which is as fast."""


def copy_kernel(node: Node, reference: Kernel, threads: int) -> Kernel:
    """The reference, but with large results in reused memory."""

    def reshape(x: Any, shape: Any) -> Any:
        return reference(_joined([x], 0, threads) if _bytes_of([x]) >= FRESH and not x.flags.c_contiguous else x, shape)

    def concat(*inputs: Any) -> Any:
        *parts, along = inputs
        rank = np.ndim(parts[0])
        if _bytes_of(parts) < FRESH or not -rank <= int(along) < rank:
            return reference(*inputs)
        axis = int(along) % rank
        rest = {(*x.shape[:axis], *x.shape[axis + 1 :]) if x.ndim == rank else None for x in parts}
        return _joined(parts, axis, threads) if len(rest) == 1 else reference(*inputs)

    if node.type == "Pack":
        return Pack(node.attrs["axis"], reference, threads)
    return reshape if node.type == "Reshape" else concat


@dataclass(frozen=True, slots=True)
class Pack:
    """The kernel that stacks arrays along a new axis."""

    axis: int
    reference: Kernel
    threads: int

    def __call__(self, *parts: Any) -> Any:
        size = _bytes_of(parts)
        if size < LARGE or any(x.shape != parts[0].shape for x in parts):
            return self.reference(*parts)
        axis = self.axis % (parts[0].ndim + 1)
        memory = parts[0].base
        if type(memory) is np.ndarray and all(x.base is memory for x in parts):
            whole = as_they_lie(parts, axis, memory)
            if whole is not None:
                return whole
        if size < FRESH:
            return self.reference(*parts)
        return _joined([np.expand_dims(x, axis) for x in parts], axis, self.threads)


def _bytes_of(parts: Sequence[Any]) -> int:
    """The size of arrays of one type, of numbers; 0 if they are anything else."""
    if not all(type(x) is np.ndarray and x.dtype == parts[0].dtype for x in parts) or parts[0].dtype.hasobject:
        return 0
    return sum(x.nbytes for x in parts)


def as_they_lie(parts: Sequence[Array], axis: int, memory: Array) -> Array | None:
    """Stack parts, which are views of an array, along a new axis without a copy, if they are equally spaced."""
    first = parts[0]
    begin = first.ctypes.data
    apart = parts[-1].ctypes.data - begin
    if apart <= 0 or apart % (len(parts) - 1):
        return None
    apart //= len(parts) - 1
    for i, x in enumerate(parts):
        if x.strides != first.strides or x.ctypes.data - begin != i * apart:
            return None
    shape, strides = ((*a[:axis], n, *a[axis:]) for a, n in ((first.shape, len(parts)), (first.strides, apart)))
    return np.ndarray(shape, first.dtype, memory, begin - memory.ctypes.data, strides)


def _copy(x: Array, into: Array, threads: int) -> None:
    if x.flags.c_contiguous and into.flags.c_contiguous and is_ready():
        words = assistance(COPY, into.ctypes.data, x.ctypes.data)[:-2]
        share(loops()["assist"], words, ranges_of(x.nbytes, x.nbytes * NS_PER_COPIED, threads), threads)
    else:
        np.copyto(into, x)


def _joined(parts: Sequence[Array], axis: int, threads: int) -> Array:
    """The parts concatenated along an axis."""
    first = parts[0]
    length = sum(x.shape[axis] for x in parts)
    out = buffers.empty((*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype)
    begin = 0
    for x in parts:
        end = begin + x.shape[axis]
        _copy(x, out[(*(slice(None),) * axis, slice(begin, end))], threads)
        begin = end
    return out
