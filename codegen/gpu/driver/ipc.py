"""CUDA IPC: tensors in a GPU's memory that another process of the machine reads where they lie.

The driver gives a handle for an allocation, some bytes that another process opens; it sees the same memory then. Here the allocations
are the pool's blocks. A tensor that leaves is an `Outgoing`: the array, kept as it is, and its block's handle. One that arrives is an
`Incoming`: an address in the opened block, from which `taken` copies it on the GPU's copy stream.

Only what is there is lent: the sender waits for the kernels that make a tensor before it speaks of it, as it does for a copy to the
host. (An event of the driver could be sent along instead, for the reader's stream to wait for. But a stream whose event belongs to a
process that was killed waits for ever, and nothing can end that.)

Who lends what to whom, and when it may be used again, is told in `runtime/shared_memory/cuda_ipc.py`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .allocator import COPY_IN, Block
from .api import bindings, check
from .array import ArrayDevice, DeviceArray
from .streams import Event

LEAST_BYTES = 256 << 10  # a smaller tensor is through the host's memory sooner than a loan is made and given back
HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
_LAZY_PEERS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


class Outgoing:
    """A tensor that leaves for a GPU of another process, where it lies.

    Attributes:
        array: it keeps the memory, and keeps others from changing it.
        destination: the GPU that it is for, by its name.
        block: what the memory is part of. offset: of the first byte in it.
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
        """Itself, when its tensor is there."""
        self._event.synchronize()
        return self

    def on_host(self) -> np.ndarray[Any, Any]:
        """A copy in the host's memory, for who cannot read it here."""
        return self.array.device.to_host(self.array)


def outgoing(array: DeviceArray, destination: str) -> Outgoing | None:
    """The array, to be lent; None where it is small, or lies in memory that is not the pool's."""
    block = array._owner
    return Outgoing(array, block, destination) if type(block) is Block and array.nbytes >= LEAST_BYTES else None


def handle_of(device: ArrayDevice, pointer: int) -> bytes:
    """The handle of a block. CudaError where this GPU, or this system, has none."""
    device.make_current()
    made = check(bindings().cuIpcGetMemHandle(pointer))
    return ctypes.string_at(int(made.getPtr()), HANDLE_BYTES)


def opened(device: ArrayDevice, handle: bytes, size: int) -> int:
    """The address at which a GPU sees another process's block of so many bytes.

    Raises:
        CudaError: it cannot. ValueError: it is no handle, or of less memory.
    """
    if len(handle) != HANDLE_BYTES:
        raise ValueError("not a handle of a GPU's memory")
    driver = bindings()
    given = driver.CUipcMemHandle()
    ctypes.memmove(int(given.getPtr()), handle, HANDLE_BYTES)
    device.make_current()  # without its lock: whoever hears of the loan must not wait for kernels that are tried
    pointer = int(check(driver.cuIpcOpenMemHandle(given, _LAZY_PEERS)))
    code, _, there = (*driver.cuMemGetAddressRange(pointer), 0, 0)[:3]
    if not int(code) and int(there) < size:  # where the driver tells
        check(driver.cuIpcCloseMemHandle(pointer))
        raise ValueError(f"a block of {size} bytes is said to lie in {int(there)} bytes of memory")
    return pointer


def closed(device: ArrayDevice, pointer: int) -> None:
    """Let an opened block go. What was copied from it must be over."""
    device.make_current()
    check(bindings().cuIpcCloseMemHandle(pointer))


class Incoming:
    """A tensor in memory that another process lends.

    Attributes:
        device: the GPU that it is for, and that has opened the memory.
        loan: gives it back when nobody holds it any more.
    """

    __slots__ = ("device", "dtype", "loan", "pointer", "shape")

    def __init__(
        self, device: ArrayDevice, shape: tuple[int, ...], dtype: np.dtype[Any], pointer: int, loan: Any
    ) -> None:
        self.device, self.shape, self.dtype, self.pointer, self.loan = device, shape, dtype, pointer, loan

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def taken(self, label: str = "") -> DeviceArray:
        """A copy in this process's memory. Returns before it is there; kernels launched later see it."""
        device = self.device
        with device.entered():
            block, event = device.pool.allocate(self.nbytes, label, COPY_IN)
            if event is not None:
                device.copy_in.wait(event)
            check(
                bindings().cuMemcpyDtoDAsync(block.pointer, self.pointer, self.nbytes, device.copy_in.handle)
            )  # one address space for all GPUs
            done = device.copy_in.record()
            device.compute.wait(done)
            device.hold_until(done, self.loan)
            self.loan = None
            return DeviceArray(device, self.shape, self.dtype, block.pointer, block)


Lends = Callable[[str], bool]
"""Whether a GPU of another task, by its name, reads this process's GPU memory."""
