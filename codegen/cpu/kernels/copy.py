"""Copies of large tensors on CPUs: reshapes of strided arrays, stacking and concatenation.

NumPy writes the result into fresh memory. From 32 MiB on, its page faults, in which the operating system clears each page, take two to
four times as long as the copy. These kernels write to reused memory of a pool (`buffer_pool`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....graph.core.dtypes import Array
from ....graph.core.graph import Node
from ....graph.resources.buffer_pool import buffers
from ...ir.program import Kernel
from ...target import FRESH_BYTES
from ..native.planner import NotPlannableError, Planner
from .node import RecordableKernel

OPS = frozenset(("Reshape", "Pack", "ConcatV2"))


def copy_kernel(node: Node, reference: Kernel, threads: int, check: bool) -> Kernel:
    """The reference, but with large results in reused memory. It needs no threads and no check."""

    def reshape(x: Any, shape: Any) -> Any:
        return reference(_joined([x], 0) if _bytes_of([x]) >= FRESH_BYTES and not x.flags.c_contiguous else x, shape)

    return reshape if node.type == "Reshape" else JoinKernel(node.attrs.get("axis"), reference)


class JoinKernel(RecordableKernel):
    """The kernel that concatenates arrays along an axis, which is its last input; or stacks them along a new one, `axis`."""

    def __init__(self, axis: int | None, reference: Kernel) -> None:
        self._axis = axis
        self._reference = reference

    def __call__(self, *inputs: Any) -> Any:
        is_large = _bytes_of(inputs[:-1] if self._axis is None else inputs) >= FRESH_BYTES
        found = self._parts(inputs) if is_large else None
        return self._reference(*inputs) if found is None else _joined(*found)

    def record_into(self, planner: Planner, inputs: Sequence[Any]) -> Sequence[Any]:
        """Record copies into a native plan."""
        found = self._parts((*inputs[:-1], planner.known(inputs[-1])) if self._axis is None else inputs)
        if found is None:
            raise NotPlannableError("parts that do not fit")
        parts, axis = found
        out, begin = planner.empty(_shape(parts, axis), parts[0].dtype), 0
        for x in parts:
            end = begin + x.shape[axis]
            planner.copy(planner.in_memory(x), out[(*(slice(None),) * axis, slice(begin, end))])
            begin = end
        return [out]

    def _parts(self, inputs: Sequence[Any]) -> tuple[list[Any], int] | None:
        """The arrays to concatenate, and the axis; None if they do not fit."""
        parts, axis = list(inputs), self._axis
        if axis is None:
            axis = int(parts.pop())
        else:
            parts = [np.expand_dims(x, axis) for x in parts]
        first = parts[0]
        if not -first.ndim <= axis < first.ndim or any(x.dtype != first.dtype or x.ndim != first.ndim for x in parts):
            return None
        axis %= first.ndim
        return (parts, axis) if len({_shape([x], axis, 0) for x in parts}) == 1 else None


def _bytes_of(parts: Sequence[Any]) -> int:
    """Bytes of arrays of one numeric type; 0 for anything else."""
    if not all(type(x) is np.ndarray and x.dtype == parts[0].dtype for x in parts) or parts[0].dtype.hasobject:
        return 0
    return sum(x.nbytes for x in parts)


def _shape(parts: Sequence[Array], axis: int, length: int | None = None) -> tuple[int, ...]:
    """The shape of parts concatenated along an axis, or with another length there."""
    first, length = parts[0].shape, sum(x.shape[axis] for x in parts) if length is None else length
    return (*first[:axis], length, *first[axis + 1 :])


def _joined(parts: Sequence[Array], axis: int) -> Array:
    return np.concatenate(parts, axis, buffers.empty(_shape(parts, axis), parts[0].dtype))
