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
from ....graph.resources.buffer_pool import buffers
from ...ir.program import Kernel

Array: TypeAlias = np.ndarray[Any, Any]

OPS = frozenset(("Reshape", "Pack", "ConcatV2"))
FRESH = 32 << 20
"""Results from so many bytes on get fresh memory from the C library. A smaller one gets memory that was used before, which is as fast."""


def copy_kernel(node: Node, reference: Kernel) -> Kernel:
    """The reference, but with large results in reused memory."""

    def reshape(x: Any, shape: Any) -> Any:
        return reference(_joined([x], 0) if _bytes_of([x]) >= FRESH and not x.flags.c_contiguous else x, shape)

    def concat(*inputs: Any) -> Any:
        *parts, along = inputs
        rank = np.ndim(parts[0])
        if _bytes_of(parts) < FRESH or not -rank <= int(along) < rank:
            return reference(*inputs)
        axis = int(along) % rank
        rest = {(*x.shape[:axis], *x.shape[axis + 1 :]) if x.ndim == rank else None for x in parts}
        return _joined(parts, axis) if len(rest) == 1 else reference(*inputs)

    if node.type == "Pack":
        return Pack(node.attrs["axis"], reference)
    return reshape if node.type == "Reshape" else concat


@dataclass(frozen=True, slots=True)
class Pack:
    """The kernel that stacks arrays along a new axis."""

    axis: int
    reference: Kernel

    def __call__(self, *parts: Any) -> Any:
        if _bytes_of(parts) < FRESH or any(x.shape != parts[0].shape for x in parts):
            return self.reference(*parts)
        axis = self.axis % (parts[0].ndim + 1)
        return _joined([np.expand_dims(x, axis) for x in parts], axis)


def _bytes_of(parts: Sequence[Any]) -> int:
    """The size of arrays of one type, of numbers; 0 if they are anything else."""
    if not all(type(x) is np.ndarray and x.dtype == parts[0].dtype for x in parts) or parts[0].dtype.hasobject:
        return 0
    return sum(x.nbytes for x in parts)


def _joined(parts: Sequence[Array], axis: int) -> Array:
    """The parts concatenated along an axis."""
    first, length = parts[0], sum(x.shape[axis] for x in parts)
    out = buffers.empty((*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype)
    return np.concatenate(parts, axis, out)
