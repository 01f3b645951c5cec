"""One GPU of this process: its streams, its memory, and the copies between it, the host and other GPUs.

Three streams. Kernels run on `compute`, in the order in which they are launched, so kernels need no events between them. Large
copies run on `copy_in` and `copy_out`, in parallel to the kernels: a copy out waits (on the device) for the kernels launched before it,
and the kernels launched after a copy in wait for it. Small ones go along with the kernels: a detour would cost more than it saves.

One thread at a time uses a device, under `lock`: launches then need no buffers of their own, and a captured graph holds only one
thread's kernels. No thread waits for the GPU under the lock.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np

from ....graph.core.settings import setting
from ...target import Target
from .allocator import GraphMemory, Pool
from .api import PEER_ENABLED, Event, Stream, architecture_of, bindings, check, error, gpu_count, product_of
from .array import ArrayDevice, DeviceArray
from .copies import HostCopy, Transfers

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


class NotCapturableError(Exception):
    """A launch sequence cannot be captured, because it needs the host."""


class Device(AbstractContextManager[None]):
    """A GPU. There is one object for each: `device(index)`.

    Attributes:
        index: its number among those that the process sees.
        name: the product's name.
        memory_bytes: its memory.
        target: what kernels are compiled for.
        l2_bytes: the size of its L2 cache.
        block_shared_bytes: the most shared memory that a block may ask for.
        compute: the stream of kernels; while a graph is captured, the `recorder`.
        main: the stream of kernels, also during a capture.
        recorder: the stream that records launches (`capture`).
        pool: its memory.
    """

    def __init__(self, index: int) -> None:
        driver = bindings()
        check(driver.cuInit(0))
        self.index = index
        self.ordinal = check(driver.cuDeviceGet(index))
        self.name = product_of(self.ordinal)
        self.memory_bytes = int(check(driver.cuDeviceTotalMem(self.ordinal)))
        ask = driver.CUdevice_attribute
        self.target = Target(architecture_of(self.ordinal))
        self.l2_bytes = self._attribute(ask.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
        self.block_shared_bytes = self._attribute(ask.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.ordinal))
        self.lock = threading.RLock()
        self.updates: list[Any] | None = None  # while a graph is captured: the variables that it changes
        self.loaded: dict[Any, Any] = {}  # kernels that were loaded for it, by what they were made from
        self._events: deque[Any] = deque()
        self._retained: deque[tuple[Event, Any]] = deque()
        self._peers: set[int] = set()
        with self.entered():
            self.compute = Stream(self.context, self.event)
            self.copy_in = Stream(self.context, self.event)
            self.copy_out = Stream(self.context, self.event)
            self.recorder = Stream(self.context, self.event)
        self.main = self.compute
        self.transfers = Transfers(self)
        limit = int(setting("DOVETAIL_GPU_MEMORY")) or self.memory_bytes
        self.pool = Pool(f"GPU:{index} ({self.name})", self.context, self._mark, limit)

    def _attribute(self, which: Any) -> int:
        return int(check(bindings().cuDeviceGetAttribute(which, self.ordinal)))

    def entered(self) -> AbstractContextManager[None]:
        """A context manager that holds this device's lock, with its context current in this thread."""
        return self

    def __enter__(self) -> None:  # a generator would take three times as long, and each launch enters
        self.lock.acquire()
        try:
            self.make_current()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def make_current(self) -> None:
        """Make its context this thread's. Others (PyTorch, CuPy) use the same, primary one."""
        check(bindings().cuCtxSetCurrent(self.context))

    def event(self, *, timing: bool = False) -> Event:
        """A new event."""
        if timing:
            driver = bindings()
            return Event(check(driver.cuEventCreate(0)), self.context, driver.cuEventDestroy)
        try:
            handle = self._events.popleft()
        except IndexError:
            handle = check(bindings().cuEventCreate(_NO_TIMING))
        return Event(handle, self.context, self._events.append)

    def synchronize(self) -> None:
        """Wait until everything queued so far is done.

        Raises:
            CudaError: a kernel failed (an address out of bounds...). The device cannot be used by this process any more then.
        """
        self.make_current()
        for stream in (self.copy_in, self.main, self.copy_out):
            stream.synchronize()
        self.release_held()

    # --- memory ----------------------------------------------------------------------------------------------------

    def _mark(self) -> Event:
        self.make_current()
        return self.main.record()

    def hold_until(self, event: Event, what: Any) -> None:
        """Keep something alive until an event has happened: another stream uses its memory."""
        self._retained.append((event, what))
        self.release_held()

    def release_held(self) -> None:
        """Release what was held until events that have happened by now."""
        while self._retained:
            try:
                entry = self._retained.popleft()
            except IndexError:
                return
            if not entry[0].is_done:
                self._retained.appendleft(entry)
                return

    # --- copies ----------------------------------------------------------------------------------------------------

    def from_host(self, value: Any, label: str = "") -> DeviceArray:
        """A copy of a host array on this device. Returns before it is there; kernels launched later see it.

        While a graph is captured it is copied now, once, and not by each run of the graph.

        Raises:
            ResourceExhaustedError: no room.
        """
        array = np.asarray(value)
        if array.nbytes == 0:
            return self.empty(array.shape, array.dtype)
        return self.transfers.to_device(array if array.flags.c_contiguous else np.ascontiguousarray(array), label)

    def to_host(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        """A copy of an array in host memory. Waits for the kernels that make it, not for later ones."""
        return HostCopy(self.transfers, array).result() if array.nbytes else np.empty(array.shape, array.dtype)

    def coming_to_host(self, array: DeviceArray) -> HostCopy:
        """Begin to copy an array to host memory: what is launched from now on runs beside the copy."""
        return HostCopy(self.transfers, array)

    def from_peer(self, array: DeviceArray, label: str = "") -> DeviceArray:
        """A copy of another GPU's array on this one, straight from memory to memory where the machine can do that."""
        source = array.device
        if source is self:
            return array
        if array.nbytes == 0:
            return self.empty(array.shape, array.dtype)
        with source.entered():
            made = source.compute.record()
        with self.entered():
            self._reach(source)
            copy = self.empty(array.shape, array.dtype, label)
            self.compute.wait(made)
            where = copy.pointer, self.context, array.pointer, source.context
            check(bindings().cuMemcpyPeerAsync(*where, array.nbytes, self.compute.handle))
            source.hold_until(self.compute.record(), array)
            return copy

    def _reach(self, other: ArrayDevice) -> None:
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
        size = math.prod(shape) * dtype.itemsize
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
            with self.entered():
                where = target.pointer, source.pointer
                check(bindings().cuMemcpyDtoDAsync(*where, source.nbytes, self.compute.handle))

    def clear(self, array: DeviceArray) -> None:
        """Set all bytes to 0."""
        if array.nbytes:
            with self.entered():
                check(bindings().cuMemsetD8Async(array.pointer, 0, array.nbytes, self.compute.handle))

    # --- graphs ----------------------------------------------------------------------------------------------------

    @property
    def captures_here(self) -> bool:
        """Whether this thread captures a graph."""
        graph_memory = self.pool.graph_memory
        return graph_memory is not None and graph_memory.thread == threading.get_ident()

    def must_run(self, what: str) -> None:
        """Raise NotCapturableError if this thread captures a graph: `what` cannot be part of one."""
        if self.captures_here:
            raise NotCapturableError(f"{what} cannot be part of a graph")

    def __repr__(self) -> str:
        return f"<GPU:{self.index} {self.name}>"


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


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Graph:
    """Launches of one device, in order.

    Attributes:
        device: where they run.
        memory: what was allocated while it was captured.
        executable: the driver's; None until the capture has ended.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory = GraphMemory()
        self.executable: Any = None
        driver = bindings()
        self._start = driver.cuGraphLaunch
        self._destroy = driver.cuGraphExecDestroy  # kept here: when Python ends, modules may be gone before this

    def launch(self) -> None:
        """Queue the graph on the compute stream; the device is entered. RuntimeError if nothing was captured."""
        if self.executable is None:
            raise RuntimeError("the graph was not captured to its end")
        code = self._start(self.executable, self.device.main.handle)[0]
        if code:
            raise error(int(code))

    def __del__(self) -> None:
        # A graph that still runs is destroyed by the driver when it has ended; its memory is used again behind it on the stream.
        if self.executable is not None:
            self._destroy(self.executable)


@contextmanager
def capture(device: Device) -> Iterator[Graph]:
    """Record this thread's launches with their arguments, instead of running them. If the body fails, there is no graph.

    So the addresses are fixed: the graph keeps the memory that was allocated meanwhile, and the caller must keep all other memory that it
    uses at the same address. The driver starts a run of a graph when the previous one is done, so no two runs use its memory at once.
    """
    graph, driver, stream = Graph(device), bindings(), device.recorder
    with device.entered():
        if device.compute is not device.main:
            raise RuntimeError("a graph is being captured already")
        check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(_RELAXED)))
        device.compute, device.pool.graph_memory = stream, graph.memory
        try:
            yield graph
        except BaseException:
            driver.cuStreamEndCapture(stream.handle)  # whatever it says: the stream is done with this
            raise
        finally:
            device.compute, device.pool.graph_memory = device.main, None
        captured = check(driver.cuStreamEndCapture(stream.handle))
        graph.executable = check(driver.cuGraphInstantiate(captured, 0))
        check(driver.cuGraphDestroy(captured))
