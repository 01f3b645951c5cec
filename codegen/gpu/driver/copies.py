"""Copies between host memory and a GPU's memory, all through pinned memory.

With memory that is not pinned, the driver may block the calling thread. So all copies go through pinned buffers, filled or emptied
by the CPU on one side and by the GPU on the other.

    small, to the device       a ring; along with the kernels, on their stream: it takes the GPU as long as to wait for a copy elsewhere
    small, to the host         a slot of its own, on the same stream
    large                      pieces in turn, on a stream of their own, so that one is copied by the host while the GPU moves another

A large copy to the device starts when its target memory is free, a large copy to the host when the kernels launched before are done.
A sent tensor is copied (`HostCopy`) while the next kernels are launched and run.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...target import GPU_COPY_PIECE, GPU_SMALL_DOWNLOAD, GPU_SMALL_UPLOAD
from .allocator import COPY_IN
from .api import Event, bindings, check
from .array import ArrayDevice, DeviceArray

PIECES = 4  # in each direction
_HALF = 2 << 20  # bytes of one half of the ring: a second one is taken while the first is copied
_ALIGNED = 64
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE


class Transfers:
    """The copies between the host and one device. Safe to use from several threads."""

    def __init__(self, device: ArrayDevice) -> None:
        self.device = device
        self.pieces_out = _Buffers(GPU_COPY_PIECE, PIECES)
        self.slots_out = _Buffers(GPU_SMALL_DOWNLOAD, 1)
        self._pieces_in = _Buffers(GPU_COPY_PIECE, PIECES)
        self._halves = _Buffers(_HALF, 1)  # of the ring
        self._half: _Buffer | None = None
        self._at = _HALF
        self._in_lock = threading.Lock()  # large copies follow one another

    # --- to the device -----------------------------------------------------------------------------------------------

    def to_device(self, value: np.ndarray[Any, Any], label: str) -> DeviceArray:
        """A copy on the device; kernels launched later see it. The value is contiguous, and may change afterwards."""
        device, size = self.device, value.nbytes
        if size <= GPU_SMALL_UPLOAD:
            with device.entered():
                block, _ = device.pool.allocate(size, label, filled=True)
                self._small_to_device(block.pointer, value)
            return DeviceArray(device, value.shape, value.dtype, block.pointer, block)
        with device.entered():
            block, event = device.pool.allocate(size, label, COPY_IN)
        with self._in_lock:
            if event is not None:
                device.copy_in.wait(event)
            source = value.ctypes.data
            for at in range(0, size, GPU_COPY_PIECE):
                count = min(GPU_COPY_PIECE, size - at)
                buffer = self._pieces_in.take()
                ctypes.memmove(buffer.address, source + at, count)
                check(bindings().cuMemcpyHtoDAsync(block.pointer + at, buffer.address, count, device.copy_in.handle))
                buffer.event = device.copy_in.record()
        with device.entered():
            device.main.wait(device.copy_in.record())
        return DeviceArray(device, value.shape, value.dtype, block.pointer, block)

    def refill(self, target: DeviceArray, value: np.ndarray[Any, Any]) -> None:
        """Copy a contiguous host array over one of as many bytes that CUDA graphs read. Kernels launched later see it.

        A large one is copied to other memory first, in parallel to kernels that still read the old value.
        """
        device = self.device
        if value.nbytes == 0:
            return
        if value.nbytes <= GPU_SMALL_UPLOAD:
            with device.entered():
                self._small_to_device(target.pointer, value)
            return
        there = self.to_device(value, "a fed or received tensor")
        with device.entered():
            device.copy_into(target, there)
            there._owner.used = device.main.record()  # the next one may be copied there while the graph runs

    def _small_to_device(self, pointer: int, value: np.ndarray[Any, Any]) -> None:
        """Copy along with the kernels, through the ring; the device is entered.

        An event behind the last copy out of a half of the ring says when it may be used again; by the time that the other is full, that
        has mostly happened.
        """
        size = value.nbytes
        if self._half is None or self._at + size > _HALF:
            if self._half is not None:
                self._half.event = self.device.main.record()
            self._half, self._at = self._halves.take(), 0
        place = self._half.address + self._at
        self._at += -(-size // _ALIGNED) * _ALIGNED
        ctypes.memmove(place, value.ctypes.data, size)
        check(bindings().cuMemcpyHtoDAsync(pointer, place, size, self.device.main.handle))


class HostCopy:
    """A copy to host memory in progress. It keeps the array alive and unchanged until the copy is complete.

    For a large array, only the first pieces are copied before the result is requested, and then one more for each that has come.
    """

    __slots__ = ("_begun", "_stream", "array", "pieces", "transfers")

    def __init__(self, transfers: Transfers, array: DeviceArray) -> None:
        self.transfers = transfers
        self.array: DeviceArray | None = array
        # Each with its event, and where it lies in the array.
        self.pieces: deque[tuple[_Buffer, Event, int, int]] = deque()
        self._begun, device = 0, transfers.device
        with device.entered():
            device.must_run("a copy to the host")
            self._stream = device.compute
            if array.nbytes > GPU_SMALL_DOWNLOAD:
                self._stream = device.copy_out
                self._stream.wait(device.compute.record())
            for _ in range(PIECES):
                self._begin(array)

    def _begin(self, array: DeviceArray) -> None:
        """Begin the next piece, if there is one."""
        if self._begun < array.nbytes:
            at, count = self._begun, min(GPU_COPY_PIECE, array.nbytes - self._begun)
            of = self.transfers
            buffer = (of.slots_out if array.nbytes <= GPU_SMALL_DOWNLOAD else of.pieces_out).take()
            check(bindings().cuMemcpyDtoHAsync(buffer.address, array.pointer + at, count, self._stream.handle))
            self.pieces.append((buffer, self._stream.record(), at, count))
            self._begun += count

    def result(self) -> np.ndarray[Any, Any]:
        """The copy, once. Waits for it, but not for later launches."""
        array = self.array
        assert array is not None
        out = np.empty(array.shape, array.dtype)
        self.transfers.device.make_current()
        while self.pieces:
            buffer, event, at, count = self.pieces[0]
            event.synchronize()
            ctypes.memmove(out.ctypes.data + at, buffer.address, count)
            self.pieces.popleft()
            del buffer  # the next piece may take it
            self._begin(array)
        self.array = None
        return out

    def __del__(self) -> None:
        if self.pieces:  # the result was not requested: memory and buffers must stay until the copy is over
            self.transfers.device.hold_until(self.pieces[-1][1], (self.array, self.pieces))


# --- pinned memory ---------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Buffers:
    """Pinned buffers of one size, at least `least` of them. Returned buffers are reused in order."""

    size: int
    least: int
    free: deque[tuple[int, Event | None]] = field(default_factory=deque)

    def take(self) -> _Buffer:
        """An idle buffer; it returns to the pool with its last reference."""
        while True:
            if len(self.free) < self.least:
                begin = int(check(bindings().cuMemHostAlloc(GPU_COPY_PIECE, _PORTABLE)))  # it stays
                self.free.extendleft((begin + at, None) for at in range(0, GPU_COPY_PIECE, self.size))
            try:
                address, event = self.free.popleft()
            except IndexError:  # another thread was faster
                continue
            if event is not None:
                event.synchronize()
            return _Buffer(address, self.free)


@dataclass(eq=False, slots=True)
class _Buffer:
    """A piece of pinned memory. `event`: its next user waits for it."""

    address: int
    returned: deque[tuple[int, Event | None]]
    event: Event | None = None

    def __del__(self) -> None:
        self.returned.append((self.address, self.event))
