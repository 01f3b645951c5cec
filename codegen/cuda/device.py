"""One GPU of this process: its streams, its memory, and the copies between it, the host and other GPUs.

Three streams. Kernels run on `compute`, in the order in which they are launched, so kernels need no events between them. Large
copies run on `copy_in` and `copy_out`, beside the kernels: a copy out waits (on the device) for the kernels launched before it,
and the kernels launched after a copy in wait for it. Small ones go along with the kernels: a detour would cost more than it saves.

Large copies go through pinned memory in pieces, so that one piece is copied by the host while the GPU moves another. What a program
sends is on its way (`Coming`) while the next kernels are launched, and run.

One thread at a time talks to a device, under `lock`: launches then need no buffers of their own, and a graph that is captured
holds one thread's kernels only. Nobody waits for the GPU under the lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.settings import setting
from ..gpu_kernel import Target
from .driver import NOT_READY, OUT_OF_MEMORY, PEER_ENABLED, CudaError, bindings, check, gpu_count
from .memory import COPY_IN, Pool

if TYPE_CHECKING:
    from .array import DeviceArray

SMALL_COPY = 64 << 10  # bytes; up to here the driver itself copies what comes from pageable memory before it returns
PIECE = 4 << 20  # bytes of a staging buffer: long enough that starting a copy does not show
PIECES = 4  # in each direction
_NON_BLOCKING, _NO_TIMING, _PORTABLE, _RELAXED = 1, 2, 1, 2  # CU_STREAM_, CU_EVENT_, CU_MEMHOSTALLOC_, capture mode


class Stream:
    """A queue of work of one device."""

    __slots__ = ("device", "handle", "name")

    def __init__(self, device: Device, name: str) -> None:
        self.device = device
        self.name = name
        self.handle = check(bindings().cuStreamCreate(_NON_BLOCKING))

    def record(self, event: Event | None = None) -> Event:
        """An event that has happened when all work queued so far is done."""
        event = event or self.device.event()
        check(bindings().cuEventRecord(event.handle, self.handle))
        return event

    def wait(self, event: Event) -> None:
        """Let what is queued from now on start after the event; the caller goes on."""
        check(bindings().cuStreamWaitEvent(self.handle, event.handle, 0))

    def synchronize(self) -> None:
        """Wait until all work queued so far is done. CudaError when a kernel failed."""
        check(bindings().cuStreamSynchronize(self.handle))


class Event:
    """A point in a stream. Events without timing are used again when nobody holds them."""

    __slots__ = ("handle", "returned")

    def __init__(self, handle: Any, returned: deque[Any] | None) -> None:
        self.handle = handle
        self.returned = returned

    def __del__(self) -> None:
        if self.returned is not None:
            self.returned.append(self.handle)

    @property
    def is_done(self) -> bool:
        """Whether it has happened."""
        code = int(bindings().cuEventQuery(self.handle)[0])
        if code not in (0, NOT_READY):
            check((code,))
        return code == 0

    def synchronize(self) -> None:
        """Wait until it has happened."""
        check(bindings().cuEventSynchronize(self.handle))

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two events that were made with `timing=True`."""
        return float(check(bindings().cuEventElapsedTime(earlier.handle, self.handle)))


class NotCapturableError(Exception):
    """What was to be captured cannot be: it needs the host."""


class _Staging:
    """Pinned buffers that pieces of copies go through, in turn."""

    def __init__(self) -> None:
        self.buffers: deque[tuple[int, Event | None]] = deque()

    def take(self) -> int:
        """The address of a buffer that nothing is copied through any more."""
        if len(self.buffers) < PIECES:
            return int(check(bindings().cuMemHostAlloc(PIECE, _PORTABLE)))
        address, event = self.buffers.popleft()
        if event is not None:
            event.synchronize()
        return address

    def put(self, address: int, event: Event | None) -> None:
        """The buffer may be used again after the event."""
        self.buffers.append((address, event))


class Coming:
    """An array on its way to host memory, by pinned buffers. It keeps the array as it is until it has come.

    Of a large one only the first pieces are on their way before somebody asks for the result.
    """

    __slots__ = ("array", "device", "pieces")

    def __init__(self, device: Device, array: DeviceArray) -> None:
        self.device = device
        self.array: DeviceArray | None = array
        self.pieces: list[tuple[int, int, int, Event]] = []  # offset, bytes, address of the buffer, when it is there
        stream = device.compute if array.nbytes <= SMALL_COPY else device.copy_out
        with device.entered():
            device.must_run("a copy to the host")
            if stream is not device.compute:
                stream.wait(device.compute.record())
            for at in range(0, min(array.nbytes, PIECES * PIECE), PIECE):
                count = min(PIECE, array.nbytes - at)
                buffer = device._staging_out.take()
                check(bindings().cuMemcpyDtoHAsync(buffer, array.pointer + at, count, stream.handle))
                self.pieces.append((at, count, buffer, stream.record()))

    def result(self) -> np.ndarray[Any, Any]:
        """The copy, once. Waits for it, and for nothing that was launched after it."""
        array = self.array
        assert array is not None
        out = np.empty(array.shape, array.dtype)
        begun = sum(count for _, count, _, _ in self.pieces)
        pieces, self.pieces = self.pieces, []
        for piece in pieces:
            self.device._arrived(out.ctypes.data, *piece)
        if begun < array.nbytes:
            rest = type(array)(
                self.device, (array.nbytes - begun,), np.dtype(np.uint8), array.pointer + begun, array._owner
            )
            out.reshape(-1).view(np.uint8)[begun:] = self.device.to_host(rest)
        self.array = None
        return out

    def __del__(self) -> None:
        if self.pieces:  # nobody asked: the memory must stay until the copy is over, and the buffers with it
            self.device.hold_until(self.pieces[-1][3], (self.array, self.pieces))


class Device:
    """A GPU. There is one object for each: `device(index)`.

    Attributes:
        index: its number among those that the process sees.
        name: the product's name.
        memory_bytes: its memory.
        target: what kernels are compiled for.
        multiprocessors: how many blocks run at the same time, at least.
        pool: its memory.
    """

    def __init__(self, index: int) -> None:
        driver = bindings()
        check(driver.cuInit(0))
        self.index = index
        self.ordinal = check(driver.cuDeviceGet(index))
        self.name = _text(check(driver.cuDeviceGetName(256, self.ordinal)))
        self.memory_bytes = int(check(driver.cuDeviceTotalMem(self.ordinal)))
        ask = driver.CUdevice_attribute
        major = self._attribute(ask.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self._attribute(ask.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.target = Target("cuda", 10 * major + minor, 32)
        self.multiprocessors = self._attribute(ask.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.ordinal))
        self.lock = threading.RLock()
        self.updates: list[Any] | None = None  # while a graph is captured: the variables that it changes
        self.loaded: dict[Any, Any] = {}  # kernels that were loaded for it, by what they were made from
        self._events: deque[Any] = deque()
        self._held: deque[tuple[Event, Any]] = deque()
        self._peers: set[int] = set()
        with self.entered():
            self.compute = Stream(self, "compute")
            self.copy_in = Stream(self, "copy in")
            self.copy_out = Stream(self, "copy out")
            self._capture = Stream(self, "capture")
        self._main = self.compute
        self._staging_in, self._staging_out = _Staging(), _Staging()
        self._out_lock = threading.Lock()
        limit = int(setting("DOVETAIL_GPU_MEMORY")) or self.memory_bytes
        self.pool = Pool(f"GPU:{index} ({self.name})", self._get, self._give_back, self._mark, limit)

    def _attribute(self, which: Any) -> int:
        return int(check(bindings().cuDeviceGetAttribute(which, self.ordinal)))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Talk to this device: under its lock, with its context current in this thread."""
        with self.lock:
            self.make_current()
            yield

    def make_current(self) -> None:
        """Make its context this thread's. Others (PyTorch, CuPy) use the same, primary one."""
        check(bindings().cuCtxSetCurrent(self.context))

    def event(self, *, timing: bool = False) -> Event:
        """A new event."""
        if timing:
            return Event(check(bindings().cuEventCreate(0)), None)
        try:
            handle = self._events.popleft()
        except IndexError:
            handle = check(bindings().cuEventCreate(_NO_TIMING))
        return Event(handle, self._events)

    def synchronize(self) -> None:
        """Wait until everything queued so far is done.

        Raises:
            CudaError: a kernel failed (an address out of bounds...). The device cannot be used by this process any more then.
        """
        self.make_current()
        for stream in (self.copy_in, self._main, self.copy_out):
            stream.synchronize()
        self.let_go()

    # --- memory ----------------------------------------------------------------------------------------------------

    def _get(self, size: int) -> int:
        self.make_current()
        try:
            return int(check(bindings().cuMemAlloc(size)))
        except CudaError as e:
            if e.code == OUT_OF_MEMORY:
                raise MemoryError from e
            raise

    def _give_back(self, pointer: int) -> None:
        self.make_current()
        check(bindings().cuMemFree(pointer))

    def _mark(self) -> Event:
        self.make_current()
        return self._main.record()

    def hold_until(self, event: Event, what: Any) -> None:
        """Keep something alive until an event has happened: another stream uses its memory."""
        self._held.append((event, what))
        self.let_go()

    def let_go(self) -> None:
        """Let go of what was kept until events that have happened."""
        while self._held:
            try:
                entry = self._held.popleft()
            except IndexError:
                return
            if not entry[0].is_done:
                self._held.appendleft(entry)
                return

    # --- copies ----------------------------------------------------------------------------------------------------

    def from_host(self, value: Any, label: str = "") -> DeviceArray:
        """A copy of a host array on this device. Returns before it is there; kernels launched later see it.

        While a graph is captured it is copied now, once, and not by each run of the graph.

        Raises:
            ResourceExhaustedError: no room.
        """
        from .array import DeviceArray

        array = np.asarray(value)
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        source, size = array.ctypes.data, array.nbytes
        if size == 0:
            return DeviceArray(self, array.shape, array.dtype, 0, None)
        with self.entered():
            driver = bindings()
            if size <= SMALL_COPY:
                block, _ = self.pool.allocate(size, label)
                check(driver.cuMemcpyHtoDAsync(block.pointer, source, size, self._main.handle))
                return DeviceArray(self, array.shape, array.dtype, block.pointer, block)
            block, event = self.pool.allocate(size, label, COPY_IN)
            if event is not None:
                self.copy_in.wait(event)
            for at in range(0, size, PIECE):
                count = min(PIECE, size - at)
                buffer = self._staging_in.take()
                ctypes.memmove(buffer, source + at, count)
                check(driver.cuMemcpyHtoDAsync(block.pointer + at, buffer, count, self.copy_in.handle))
                self._staging_in.put(buffer, self.copy_in.record())
            self._main.wait(self.copy_in.record())
            return DeviceArray(self, array.shape, array.dtype, block.pointer, block)

    def to_host(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        """A copy of an array in host memory. Waits for the kernels that make it, and for no later ones."""
        out = np.empty(array.shape, array.dtype)
        size = out.nbytes
        if size == 0:
            return out
        target = out.ctypes.data
        driver = bindings()
        if size <= SMALL_COPY:
            with self.entered():
                self._not_recording()
                check(driver.cuMemcpyDtoHAsync(target, array.pointer, size, self.compute.handle))
                done = self.compute.record()
            done.synchronize()
            return out
        with self.entered():
            self._not_recording()
            made = self.compute.record()
        with self._out_lock:  # a large copy out has the stream and its staging for itself
            self.copy_out.wait(made)
            coming: deque[tuple[int, int, int, Event]] = deque()
            for at in range(0, size, PIECE):
                if len(coming) == PIECES:
                    self._arrived(target, *coming.popleft())
                count = min(PIECE, size - at)
                buffer = self._staging_out.take()
                check(driver.cuMemcpyDtoHAsync(buffer, array.pointer + at, count, self.copy_out.handle))
                coming.append((at, count, buffer, self.copy_out.record()))
            while coming:
                self._arrived(target, *coming.popleft())
        return out

    def coming_to_host(self, array: DeviceArray) -> Coming:
        """Begin to copy an array to host memory: what is launched from now on runs beside the copy."""
        return Coming(self, array)

    def _arrived(self, target: int, at: int, count: int, buffer: int, event: Event) -> None:
        event.synchronize()
        ctypes.memmove(target + at, buffer, count)
        self._staging_out.put(buffer, None)

    def from_peer(self, array: DeviceArray, label: str = "") -> DeviceArray:
        """A copy of another GPU's array on this one, straight from memory to memory where the machine can do that."""
        from .array import DeviceArray

        source = array.device
        if source is self:
            return array
        if array.nbytes == 0:
            return DeviceArray(self, array.shape, array.dtype, 0, None)
        with source.entered():
            made = source.compute.record()
        with self.entered():
            self._reach(source)
            block, _ = self.pool.allocate(array.nbytes, label)
            self.compute.wait(made)
            check(
                bindings().cuMemcpyPeerAsync(
                    block.pointer, self.context, array.pointer, source.context, array.nbytes, self.compute.handle
                )
            )
            source.hold_until(self.compute.record(), array)
            return DeviceArray(self, array.shape, array.dtype, block.pointer, block)

    def _reach(self, other: Device) -> None:
        """Let this device read the other's memory directly, if the machine can; otherwise the driver goes through the host."""
        if other.index in self._peers:
            return
        self._peers.add(other.index)
        driver = bindings()
        if int(check(driver.cuDeviceCanAccessPeer(self.ordinal, other.ordinal))):
            code = int(driver.cuCtxEnablePeerAccess(other.context, 0)[0])
            if code != PEER_ENABLED:
                check((code,))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], label: str = "") -> DeviceArray:
        """An array whose content is undefined."""
        from .array import DeviceArray

        size = dtype.itemsize
        for d in shape:
            size *= d
        if size == 0:
            return DeviceArray(self, shape, dtype, 0, None)
        block, _ = self.pool.allocate(size, label)
        return DeviceArray(self, shape, dtype, block.pointer, block)

    def copy(self, array: DeviceArray, label: str = "") -> DeviceArray:
        """A copy of an array of this device."""
        made = self.empty(array.shape, array.dtype, label)
        self.copy_into(made, array)
        return made

    def copy_into(self, target: DeviceArray, source: DeviceArray) -> None:
        """Copy an array of this device over another of as many bytes."""
        if source.nbytes:
            self.copy_bytes(target.pointer, source.pointer, source.nbytes)

    def copy_bytes(self, target: int, source: int, count: int) -> None:
        """Copy from one address of this device to another."""
        with self.entered():
            check(bindings().cuMemcpyDtoDAsync(target, source, count, self.compute.handle))

    def clear(self, array: DeviceArray) -> None:
        """Set all bytes to 0."""
        if array.nbytes:
            with self.entered():
                check(bindings().cuMemsetD8Async(array.pointer, 0, array.nbytes, self.compute.handle))

    # --- graphs ----------------------------------------------------------------------------------------------------

    def must_run(self, what: str) -> None:
        """NotCapturableError while a graph is captured: this cannot be part of one."""
        if self.compute is not self._main:
            raise NotCapturableError(f"{what} cannot be part of a graph")

    def _not_recording(self) -> None:
        self.must_run("a copy to the host")

    @contextmanager
    def recording(self) -> Iterator[Any]:
        """While this lasts, `compute` is a stream on which nothing runs and everything is written down; see `graphs`."""
        driver = bindings()
        with self.entered():
            if self.compute is not self._main:
                raise RuntimeError("a graph is being captured already")
            self.compute = self._capture
            mode = driver.CUstreamCaptureMode(_RELAXED)
            try:
                check(driver.cuStreamBeginCapture(self._capture.handle, mode))
                yield self._capture
            finally:
                self.compute = self._main

    def __repr__(self) -> str:
        return f"<GPU:{self.index} {self.name}>"


def _text(name: Any) -> str:
    return (name if isinstance(name, str) else bytes(name).split(b"\0")[0].decode()).strip()


@cache
def device(index: int) -> Device:
    """The GPU of that number.

    Raises:
        IndexError: there are fewer.
        ImportError: the bindings are missing.
        CudaError: it cannot be used.
    """
    if index >= gpu_count():
        raise IndexError(f"GPU:{index} is asked for, and this process sees {gpu_count()}")
    return Device(index)
