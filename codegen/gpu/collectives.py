"""Collectives between GPUs by NCCL, from GPU memory to GPU memory, if all members have it.

Each kernel has a job for the member's link (`driver/nccl.py`), and falls back to the collective over messages if there is no link. A
reduction of several tensors is one run of NCCL: its calls are grouped, and no tensors are concatenated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.core.graph import Node
from ...graph.ops.state.collectives import are_gpus, collective_call
from ...graph.resources.resource_manager import Context
from ..ir.program import Kernel
from .context import GpuContext
from .driver import nccl
from .driver.api import bindings, check
from .driver.array import DeviceArray
from .driver.device import Device
from .driver.nccl import BYTES, REDUCTIONS, TYPES
from .driver.streams import Event

_Call = Callable[[Any, Any, int, Sequence[int]], Any]


class _Job:
    """A `Job` of `driver/nccl.py`. It holds all memory that the run reads or writes."""

    def __init__(self, ready: Event, arrays: Sequence[DeviceArray], call: _Call) -> None:
        self.ready, self.arrays, self.call = ready, arrays, call


def collective_kernel(gpu: GpuContext, node: Node, context: Context) -> Kernel | None:
    """The kernel of a collective whose members are GPUs; None: of any other node."""
    kinds: dict[str, type[_Collective]] = {
        "CollectiveReduce": _Reduce,
        "CollectiveGather": _Gather,
        "CollectiveReduceScatter": _ReduceScatter,
        "CollectiveBroadcast": _Broadcast,
    }
    kind = kinds.get(node.type)
    if kind is None or not are_gpus(node.attrs["members"]) or node.attrs.get("way", "auto") not in ("auto", "nccl"):
        return None
    return kind(gpu, node, context)


class _Collective(ABC):
    """A collective as a member's GPU runs it."""

    what = ""
    returns_at_once = True  # and belongs between the kernels that were launched before it and after it

    def __init__(self, gpu: GpuContext, node: Node, context: Context) -> None:
        self.device: Device = gpu.device
        self.attrs: dict[str, Any] = dict(node.attrs)
        self.context, self.label = context, node.name

    def __call__(self, *values: Any) -> Any:
        call = collective_call(self.what, self.context, values, self.attrs)
        link = nccl.link_of(self.context.session, self.device, self.attrs["members"], self.attrs["rank"])
        usable = link if link.identity.version and self.is_possible(values[0].dtype) else None
        return self.context.resources.collectives.run_on_link(
            call, usable, lambda: self.job([self._brought(v) for v in values])
        )

    def _brought(self, value: Any) -> DeviceArray:
        if type(value) is DeviceArray:  # which may be on this GPU already
            return self.device.from_peer(value, self.label)
        return self.device.from_host(value, self.label)

    def ready(self, arrays: Sequence[DeviceArray], call: _Call) -> _Job:
        """A job whose operands, and the room for whose results, are there when the kernels launched so far have run."""
        with self.device.entered():
            return _Job(self.device.compute.record(), arrays, call)

    def is_possible(self, dtype: np.dtype[Any]) -> bool:
        """Whether NCCL supports this type; all members agree."""
        if "reduction" in self.attrs:
            return reducible(dtype, self.attrs["reduction"])
        return dtype.kind in "fiubcV" and not dtype.hasobject

    @abstractmethod
    def job(self, arrays: Sequence[DeviceArray]) -> _Job:
        """The job for the link."""


class _Reduce(_Collective):
    what = "all_reduce"

    def job(self, arrays: Sequence[DeviceArray]) -> _Job:
        outputs = [self.device.empty(a.shape, a.dtype, self.label) for a in arrays]
        reduction = REDUCTIONS[self.attrs["reduction"]]

        def call(nccl: Any, communicator: Any, stream: int, rows: Sequence[int]) -> Any:
            nccl.group_start()
            for a, out in zip(arrays, outputs, strict=True):
                kind, count = counted(a.dtype, a.size)
                if count:
                    nccl.all_reduce(a.pointer, out.pointer, count, kind, reduction, communicator, stream)
            nccl.group_end()
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        return self.ready([*arrays, *outputs], call)


class _ReduceScatter(_Collective):
    what = "reduce_scatter"

    def job(self, arrays: Sequence[DeviceArray]) -> _Job:
        (a,) = arrays
        out = self.device.empty((len(a) // len(self.attrs["members"]), *a.shape[1:]), a.dtype, self.label)
        reduction = REDUCTIONS[self.attrs["reduction"]]

        def call(nccl: Any, communicator: Any, stream: int, rows: Sequence[int]) -> Any:
            kind, count = counted(out.dtype, out.size)
            if count:
                nccl.reduce_scatter(a.pointer, out.pointer, count, kind, reduction, communicator, stream)
            return out

        return self.ready([a, out], call)


class _Broadcast(_Collective):
    what = "broadcast"

    def job(self, arrays: Sequence[DeviceArray]) -> _Job:
        (a,) = arrays
        out, root = self.device.empty(a.shape, a.dtype, self.label), self.attrs["root"]

        def call(nccl: Any, communicator: Any, stream: int, rows: Sequence[int]) -> Any:
            if a.nbytes:
                nccl.broadcast(a.pointer, out.pointer, a.nbytes, BYTES, root, communicator, stream)
            return out

        return self.ready([a, out], call)


class _Gather(_Collective):
    """Its result has the rows of all members, whose number is known when it starts."""

    what = "all_gather"

    def job(self, arrays: Sequence[DeviceArray]) -> _Job:
        (a,) = arrays
        device, rank, row = self.device, self.attrs["rank"], math.prod(a.shape[1:]) * a.dtype.itemsize
        job: _Job

        def call(nccl: Any, communicator: Any, stream: int, rows: Sequence[int]) -> Any:
            with device.entered():
                out = device.empty((sum(rows), *a.shape[1:]), a.dtype, self.label)
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

        job = self.ready([a], call)
        return job


def reducible(dtype: np.dtype[Any], reduction: str) -> bool:
    """Whether NCCL reduces values of a type: complex ones only where their parts can be taken for themselves."""
    return dtype.name in TYPES or (dtype.kind == "c" and reduction in ("sum", "mean"))


def counted(dtype: np.dtype[Any], count: int) -> tuple[int, int]:
    """ncclDataType_t, and how many elements of it so many of a type are."""
    if dtype.kind == "c":
        return TYPES[f"float{dtype.itemsize * 4}"], 2 * count
    return TYPES[dtype.name], count
