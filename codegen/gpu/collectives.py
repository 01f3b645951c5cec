"""Collectives between GPUs by NCCL, from GPU memory to GPU memory, if all members have it.

Each kernel has a job for the member's link (`driver/nccl.py`), and falls back to the collective over messages if there is no link. A
reduction of several tensors is one run of NCCL: its calls are grouped, and no tensors are concatenated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.core.graph import Node
from ...graph.ops.state.collectives import are_gpus, collective_call
from ...graph.resources.resource_manager import Context
from ..ir.program import one_or_all
from .driver import nccl
from .driver.api import bindings, check
from .driver.array import DeviceArray
from .driver.device import Device
from .driver.nccl import BYTES, REDUCTIONS, TYPES, Job
from .residency import brought


def is_between_gpus(node: Node) -> bool:
    """Whether a node is a collective whose members are GPUs."""
    return node.type in _KINDS and are_gpus(node.attrs["members"]) and node.attrs.get("way", "auto") in ("auto", "nccl")


class CollectiveKernel:
    """A collective as a member's GPU runs it."""

    returns_at_once = True  # and belongs between the kernels that were launched before it and after it

    def __init__(self, device: Device, node: Node, context: Context) -> None:
        self.device = device
        self.what, self.make = _KINDS[node.type]
        self.attrs: dict[str, Any] = dict(node.attrs)
        self.context, self.label = context, node.name

    def __call__(self, *values: Any) -> Any:
        call = collective_call(self.what, self.context, values, self.attrs)
        link = nccl.link_of(self.context.session, self.device, self.attrs["members"], self.attrs["rank"])
        usable = link if link.identity.version and self.is_possible(values[0].dtype) else None
        return self.context.resources.collectives.run_on_link(
            call, usable, lambda: self.make(self, [brought(self.device, v, self.label) for v in values])
        )

    def ready(self, arrays: Sequence[DeviceArray], call: Callable[..., Any]) -> Job:
        """A job whose operands, and the room for whose results, are there when the kernels launched so far have run."""
        with self.device.entered():
            return Job(self.device.compute.record(), arrays, call)

    def is_possible(self, dtype: np.dtype[Any]) -> bool:
        """Whether NCCL supports this type; all members agree."""
        if "reduction" in self.attrs:  # complex values only where their parts can be taken for themselves
            return dtype.name in TYPES or (dtype.kind == "c" and self.attrs["reduction"] in ("sum", "mean"))
        return dtype.kind in "fiubcV" and not dtype.hasobject


_Make = Callable[[CollectiveKernel, Sequence[DeviceArray]], Job]


def _reduced(of: CollectiveKernel, arrays: Sequence[DeviceArray]) -> Job:
    """Of one array or several, all of the reduction, or (reduce_scatter) a member's part of its rows."""
    members = len(of.attrs["members"]) if of.what == "reduce_scatter" else 0
    shapes = [(len(a) // members, *a.shape[1:]) if members else a.shape for a in arrays]
    outputs = [of.device.empty(shape, a.dtype, of.label) for shape, a in zip(shapes, arrays, strict=True)]
    reduction = REDUCTIONS[of.attrs["reduction"]]

    def call(nccl: Any, communicator: Any, stream: int, rows: Sequence[int]) -> Any:
        nccl.group_start()
        for a, out in zip(arrays, outputs, strict=True):
            parts = 2 if out.dtype.kind == "c" else 1
            kind = TYPES[f"float{out.dtype.itemsize * 4}" if parts == 2 else out.dtype.name]
            if out.size:
                getattr(nccl, of.what)(a.pointer, out.pointer, parts * out.size, kind, reduction, communicator, stream)
        nccl.group_end()
        return one_or_all(outputs)

    return of.ready([*arrays, *outputs], call)


def _broadcast(of: CollectiveKernel, arrays: Sequence[DeviceArray]) -> Job:
    (a,) = arrays
    out, root = of.device.empty(a.shape, a.dtype, of.label), of.attrs["root"]

    def call(nccl: Any, communicator: Any, stream: int, rows: Sequence[int]) -> Any:
        if a.nbytes:
            nccl.broadcast(a.pointer, out.pointer, a.nbytes, BYTES, root, communicator, stream)
        return out

    return of.ready([a, out], call)


def _gathered(of: CollectiveKernel, arrays: Sequence[DeviceArray]) -> Job:
    """The result has the rows of all members, whose number is known when it starts."""
    (a,) = arrays
    device, rank, row = of.device, of.attrs["rank"], math.prod(a.shape[1:]) * a.dtype.itemsize
    job: Job

    def call(nccl: Any, communicator: Any, stream: int, rows: Sequence[int]) -> Any:
        with device.entered():
            out = device.empty((sum(rows), *a.shape[1:]), a.dtype, of.label)
            room = device.compute.record()  # kernels may be queued that still use that memory
            check(bindings().cuStreamWaitEvent(stream, room.handle, 0))
        job.arrays = [a, out]
        sizes = [n * row for n in rows]
        if len(set(sizes)) == 1:
            if sizes[0]:
                nccl.all_gather(a.pointer, out.pointer, sizes[0], BYTES, communicator, stream)
            return out
        nccl.group_start()
        at = out.pointer
        for root, size in enumerate(sizes):
            if size:
                nccl.broadcast(a.pointer if root == rank else at, at, size, BYTES, root, communicator, stream)
            at += size
        nccl.group_end()
        return out

    job = of.ready([a], call)
    return job


_KINDS: dict[str, tuple[str, _Make]] = {
    "CollectiveReduce": ("all_reduce", _reduced),
    "CollectiveReduceScatter": ("reduce_scatter", _reduced),
    "CollectiveGather": ("all_gather", _gathered),
    "CollectiveBroadcast": ("broadcast", _broadcast),
}
