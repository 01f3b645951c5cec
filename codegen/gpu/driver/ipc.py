"""CUDA IPC: lends tensors in a GPU's memory to another process of the same machine, without a copy through the host.

The driver gives a handle for an allocation; another process opens it and sees the same memory. A sent tensor is an `Outgoing`: the array,
kept unchanged, and the handle of its block of the pool. A received one is an `Incoming`: an address in the opened block, from which
`taken` copies it on the GPU's copy stream. The driver cuts smaller allocations out of larger ones, and a handle leads to the whole, with
other tensors in it. So only blocks of whole granules are lent; a tensor in another block is copied to such a one first.

The sender waits for the kernels that make a tensor before it sends the handle, as for a copy to the host. (The reader's stream could
wait for a driver event instead, but the event of a killed process never comes.) `runtime/shared_memory/cuda_ipc.py` manages the leases:
which process borrows which block, and when it may be reused.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....graph.core.errors import ResourceExhaustedError
from ...target import GPU_SMALLEST_LEASE
from .allocator import COPY_IN, Block
from .api import Event, bindings, check
from .array import ArrayDevice, DeviceArray

GRANULE = 2 << 20  # bytes that the driver gets at once: an allocation of whole granules shares them with no other
HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
_LAZY_PEERS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


class Outgoing:
    """A tensor that is lent to a GPU of another process.

    Attributes:
        array: the array; this reference keeps the memory alive and unchanged.
        destination: name of the receiving GPU.
        block: the memory block of the array.
        offset: offset of the array in the block, in bytes.
    """

    __slots__ = ("_event", "array", "block", "destination", "offset")

    def __init__(self, array: DeviceArray, block: Block, destination: str) -> None:
        device = array.device
        self.destination = destination
        self.array, self.block, self.offset = array, block, array.pointer - block.pointer
        with device.entered():
            device.must_run("a tensor that leaves")
            self._event: Event = device.compute.record()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.array.nbytes

    def wait(self) -> Outgoing:
        """Waits until the tensor is complete; returns itself."""
        self._event.synchronize()
        return self

    def on_host(self) -> np.ndarray[Any, Any]:
        """A copy in host memory, for receivers that cannot read GPU memory."""
        return self.array.device.to_host(self.array)


def outgoing(array: DeviceArray, destination: str) -> Outgoing | None:
    """The array as an `Outgoing`; None if it is small, or its memory is not the pool's, or there is no room for a copy to lend."""
    block = array._owner
    if type(block) is not Block or array.nbytes < GPU_SMALLEST_LEASE:
        return None
    if block.size % GRANULE:
        device = array.device
        with device.entered(), suppress(ResourceExhaustedError):
            device.must_run("a tensor that leaves")
            whole, _ = device.pool.allocate(-(-array.nbytes // GRANULE) * GRANULE, "a tensor that is lent")
            copy = DeviceArray(device, array.shape, array.dtype, whole.pointer, whole)
            device.copy_into(copy, array)
            return Outgoing(copy, whole, destination) if type(whole) is Block else None
        return None
    return Outgoing(array, block, destination)


def handle_of(device: ArrayDevice, pointer: int) -> bytes:
    """The handle of a block. CudaError where this GPU, or this system, has none."""
    device.make_current()
    made = check(bindings().cuIpcGetMemHandle(pointer))
    return ctypes.string_at(int(made.getPtr()), HANDLE_BYTES)


def opened(device: ArrayDevice, handle: bytes, size: int) -> int:
    """The address at which a GPU sees another process's block of this size in bytes.

    Raises:
        CudaError: the GPU cannot open it.
        ValueError: it is not a handle, or of a smaller block.
    """
    if len(handle) != HANDLE_BYTES:
        raise ValueError("not a handle of a GPU's memory")
    driver = bindings()
    given = driver.CUipcMemHandle()
    ctypes.memmove(int(given.getPtr()), handle, HANDLE_BYTES)
    device.make_current()  # without its lock: the receiver of the lease must not wait for autotuning
    pointer = int(check(driver.cuIpcOpenMemHandle(given, _LAZY_PEERS)))
    code, _, there = (*driver.cuMemGetAddressRange(pointer), 0, 0)[:3]
    if not int(code) and int(there) < size:  # where the driver tells
        check(driver.cuIpcCloseMemHandle(pointer))
        raise ValueError(f"a block of {size} bytes is said to lie in {int(there)} bytes of memory")
    return pointer


def closed(device: ArrayDevice, pointer: int) -> None:
    """Close an opened block. Copies from it must be complete."""
    device.make_current()
    check(bindings().cuIpcCloseMemHandle(pointer))


@dataclass(eq=False, slots=True)
class Incoming:
    """A tensor in memory that another process lends.

    Attributes:
        device: the receiving GPU, which has opened the memory.
        loan: the lease; it ends with its last reference.
    """

    device: ArrayDevice
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pointer: int
    loan: Any

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def taken(self, label: str = "") -> DeviceArray:
        """A copy in this process's GPU memory. Returns before it is complete; kernels launched later see it."""
        device = self.device
        with device.entered():
            block, event = device.pool.allocate(self.nbytes, label, COPY_IN)
            if event is not None:
                device.copy_in.wait(event)
            # One address space for all GPUs.
            check(bindings().cuMemcpyDtoDAsync(block.pointer, self.pointer, self.nbytes, device.copy_in.handle))
            done = device.copy_in.record()
            device.compute.wait(done)
            device.hold_until(done, self.loan)
            self.loan = None
            return DeviceArray(device, self.shape, self.dtype, block.pointer, block)


Lends = Callable[[str], bool]
"""Whether a GPU of another task, by its name, reads this process's GPU memory."""
