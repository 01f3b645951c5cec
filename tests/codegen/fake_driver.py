"""A stand-in for `cuda.bindings.driver`: GPUs without a GPU.

It has the functions that the device layer uses, with the bindings' arguments and results. Device memory is host memory. It is the
worst GPU that the rules allow: *nothing that is queued runs before somebody waits for it*. So a copy that nobody ordered behind
the kernel that makes its source, or a staging buffer that is used again too early, gives wrong numbers here every time, while on
a real GPU it would now and then. Memory is filled with 0xAA when it is given out and with 0xBB when it is given back.

Kernels whose image was made by `FakeDriver.compile_kernel` run in Triton's interpreter; others are only recorded.

    log       what was called, with the arguments that matter: ("launch", entry, grid, block, arguments)
    ran       what has run, in that order
"""

import contextlib
import ctypes
import gc
import itertools
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from triton_interpreter import run_kernel

from dovetail.codegen.gpu.driver import api
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.gpu.ir import Binary, Parameter, Target, TritonKernel

_UNPACK = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
           "fp16": "e", "fp32": "f", "fp64": "d"}  # fmt: skip


class Result(int):
    """CUresult."""


@dataclass(eq=False)
class Stream:
    """Queued work, and how much of it has run."""

    number: int
    queue: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0
    captured: list[Callable[[], None]] | None = None

    def __int__(self) -> int:
        return self.number


@dataclass(eq=False)
class Event:
    """A place in a stream; none before it is recorded."""

    stream: Stream | None = None
    at: int = 0
    asked: int = 0


class IpcHandle:
    """CUipcMemHandle: 64 bytes."""

    def __init__(self) -> None:
        self._bytes = (ctypes.c_ubyte * 64)()

    def getPtr(self) -> int:
        return ctypes.addressof(self._bytes)


@dataclass(eq=False)
class Module:
    """A loaded image."""

    image: bytes


@dataclass(eq=False)
class Function:
    """A kernel in it; `shared` is what was asked for."""

    module: Module
    entry: str
    shared: int = 48 << 10


class NotYet(Exception):  # noqa: N818  (no error)
    """Work that waits for another GPU: its stream comes back to it."""


class _Mapped:
    """A file of memory, mapped."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        self._memory = mmap.mmap(fd, size)
        self._view = (ctypes.c_ubyte * size).from_buffer(self._memory)
        self.address = ctypes.addressof(self._view)

    def close(self) -> None:
        """Unmap it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            del self._view
            self._memory.close()

    def __del__(self) -> None:
        self.close()


class FakeDriver:
    """The driver. `memory`: bytes that each of its GPUs has.

    Attributes:
        shared: the bytes of shared memory that a kernel is said to need.
        refuses: (function of the driver, kernel) -> the code with which it refuses; 0: it does not.
        patience: how often somebody may ask whether an event has happened before what it waits for runs; None: for ever.
    """

    def __init__(self, gpus: int = 1, memory: int = 1 << 30) -> None:
        self.gpus = gpus
        self.memory = memory
        self.shared: Callable[[TritonKernel], int] = lambda kernel: 0
        self.refuses: Callable[[str, TritonKernel], int] = lambda function, kernel: 0
        self.patience: int | None = None
        self._running = threading.RLock()
        self.log: list[tuple[Any, ...]] = []
        self.ran: list[tuple[Any, ...]] = []
        self.kernels: dict[bytes, tuple[TritonKernel, Binary]] = {}
        self.allocated: dict[int, tuple[Any, int, int]] = {}  # address -> memory, bytes, GPU
        self.pinned: dict[int, Any] = {}
        self.streams = [Stream(0)]
        self._numbers = itertools.count(16)  # 1 is the default stream's address
        self._current = threading.local()
        attribute = "CU_DEVICE_ATTRIBUTE_"
        self.CUdevice_attribute = SimpleNamespace(
            **{
                f"{attribute}COMPUTE_CAPABILITY_MAJOR": 75,
                f"{attribute}COMPUTE_CAPABILITY_MINOR": 76,
                f"{attribute}MULTIPROCESSOR_COUNT": 16,
                f"{attribute}L2_CACHE_SIZE": 38,
                f"{attribute}MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97,
            }
        )
        self.CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
        self.CUstreamCaptureMode = int
        self.CUipcMemHandle = IpcHandle
        self.opened: dict[int, Any] = {}  # address -> mapping of another process's memory
        self.CUresult = Result
        self.failed: int | None = (
            None  # the error that everything gives which waits or launches, after a kernel has failed
        )

    # --- for tests -------------------------------------------------------------------------------------------------

    def compile_kernel(self, kernel: TritonKernel, target: Target) -> Binary:
        """In the place of `triton_compile.compile_kernel`: an image that stands for the kernel."""
        image = b"fake" + repr((kernel, target)).encode()
        shared = self.shared(kernel)
        binary = Binary(image, kernel.name, kernel.parameters, kernel.num_warps, shared, 0, 0, 1, False, 32, 0, target)
        self.kernels[image] = (kernel, binary)
        return binary

    def launches(self) -> list[tuple[Any, ...]]:
        """What was launched, in order."""
        return [x for x in self.log if x[0] in ("launch", "graph launch")]

    def copies(self) -> list[tuple[Any, ...]]:
        """Copies between host and device, in order."""
        return [x for x in self.log if x[0] in ("to device", "to host", "peer")]

    @property
    def in_use(self) -> int:
        """Bytes of device memory."""
        return sum(size for _, size, _ in self.allocated.values())

    # --- running ---------------------------------------------------------------------------------------------------

    def _queue(self, stream: Stream, work: Callable[[], None]) -> None:
        self._context()
        (stream.queue if stream.captured is None else stream.captured).append(work)

    def _run(self, stream: Stream, upto: int) -> None:
        with self._running:
            while stream.done < upto:
                work = stream.queue[stream.done]
                stream.done += 1
                try:
                    work()
                except NotYet:
                    stream.done -= 1
                    return

    def _reach(self, stream: Stream, at: int) -> None:
        """Run a stream up to there, or wait for it."""
        self._run(stream, at)
        if stream.done < at:
            raise NotYet

    def _run_all(self) -> None:
        for stream in self.streams:
            self._run(stream, len(stream.queue))

    def _stream(self, which: Stream | int) -> Stream:
        return (
            which
            if isinstance(which, Stream)
            else next((s for s in self.streams if s.number == which), self.streams[0])
        )

    def _context(self) -> int:
        index = getattr(self._current, "index", None)
        assert index is not None, "no context is current in this thread"
        return index

    # --- the driver: devices ---------------------------------------------------------------------------------------

    def cuInit(self, Flags: int) -> tuple[Any, ...]:
        return (Result(0),)

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return Result(0), self.gpus

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return Result(0), ordinal

    def cuDeviceGetName(self, length: int, dev: int) -> tuple[Any, ...]:
        return Result(0), b"Fake GPU\0\0"

    def cuDeviceGetUuid(self, dev: int) -> tuple[Any, ...]:
        return Result(0), SimpleNamespace(bytes=b"a fake GPU    " + dev.to_bytes(2, "little"))

    def cuDeviceTotalMem(self, dev: int) -> tuple[Any, ...]:
        return Result(0), self.memory

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return Result(0), 13000

    def cuDeviceGetAttribute(self, attrib: int, dev: int) -> tuple[Any, ...]:
        return Result(0), {75: 9, 76: 0, 16: 132, 38: 1 << 16, 97: 232448}[attrib]

    def cuDevicePrimaryCtxRetain(self, dev: int) -> tuple[Any, ...]:
        return Result(0), ("context", dev)

    def cuCtxSetCurrent(self, ctx: Any) -> tuple[Any, ...]:
        self._current.index = ctx[1]
        return (Result(0),)

    def cuDeviceCanAccessPeer(self, dev: int, peerDev: int) -> tuple[Any, ...]:
        return Result(0), 1

    def cuCtxEnablePeerAccess(self, peerContext: Any, Flags: int) -> tuple[Any, ...]:
        self.log.append(("peer access", self._context(), peerContext[1]))
        return (Result(0),)

    def cuGetErrorName(self, error: int) -> tuple[Any, ...]:
        return Result(0), f"CUDA_ERROR_{int(error)}".encode()

    def cuGetErrorString(self, error: int) -> tuple[Any, ...]:
        return Result(0), b"a fake error"

    # --- memory ----------------------------------------------------------------------------------------------------

    def cuMemAlloc(self, bytesize: int) -> tuple[Any, ...]:
        index = self._context()
        if sum(size for _, size, gpu in self.allocated.values() if gpu == index) + bytesize > self.memory:
            return Result(2), None
        # In a file, so that other processes can open it: that is what this driver's handles are about.
        fd = os.memfd_create("fake GPU")
        os.ftruncate(fd, bytesize)
        memory = _Mapped(fd, bytesize)
        address = memory.address
        ctypes.memset(address, 0xAA, bytesize)
        self.allocated[address] = (memory, bytesize, index)
        self.log.append(("allocate", bytesize))
        return Result(0), address

    def cuMemFree(self, dptr: int) -> tuple[Any, ...]:
        self._run_all()
        memory, size, _ = self.allocated.pop(dptr)
        ctypes.memset(dptr, 0xBB, size)
        memory.close()
        self.log.append(("free", size))
        return (Result(0),)

    def cuMemGetAddressRange(self, dptr: int) -> tuple[Any, ...]:
        memory = self.opened.get(dptr) or self.allocated[dptr][0]
        return Result(0), dptr, memory.size

    # --- memory of other processes ---------------------------------------------------------------------------------

    def cuIpcGetMemHandle(self, dptr: int) -> tuple[Any, ...]:
        self._context()
        memory, size, _ = self.allocated[dptr]
        handle = IpcHandle()
        data = struct.pack("=QQQ", os.getpid(), memory.fd, size)
        ctypes.memmove(handle.getPtr(), data, len(data))
        self.log.append(("handle", size))
        return Result(0), handle

    def cuIpcOpenMemHandle(self, handle: IpcHandle, Flags: int) -> tuple[Any, ...]:
        self._context()
        assert Flags == 1
        pid, fd, size = struct.unpack("=QQQ", ctypes.string_at(handle.getPtr(), 24))
        try:
            other = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        except OSError:
            return Result(1), None
        memory = _Mapped(other, size)
        self.opened[memory.address] = memory
        self.log.append(("open", size))
        return Result(0), memory.address

    def cuIpcCloseMemHandle(self, dptr: int) -> tuple[Any, ...]:
        self._run_all()
        memory = self.opened.pop(dptr)
        memory.close()
        self.log.append(("close", memory.size))
        return (Result(0),)

    def cuMemHostAlloc(self, bytesize: int, Flags: int) -> tuple[Any, ...]:
        memory = (ctypes.c_ubyte * bytesize)()
        self.pinned[ctypes.addressof(memory)] = memory
        return Result(0), ctypes.addressof(memory)

    def _is_pinned(self, address: int, count: int) -> bool:
        return any(begin <= address and address + count <= begin + len(m) for begin, m in self.pinned.items())

    def cuMemcpyHtoDAsync(self, dstDevice: int, srcHost: int, ByteCount: int, hStream: Stream) -> tuple[Any, ...]:
        assert hStream.captured is None
        self.log.append(("to device", ByteCount))
        assert self._is_pinned(srcHost, ByteCount), "a driver may make the thread wait for the GPU here"
        self._queue(hStream, lambda: ctypes.memmove(dstDevice, srcHost, ByteCount) and None)
        return (Result(0),)

    def cuMemcpyDtoHAsync(self, dstHost: int, srcDevice: int, ByteCount: int, hStream: Stream) -> tuple[Any, ...]:
        assert hStream.captured is None
        assert self._is_pinned(dstHost, ByteCount), "a driver may make the thread wait for the GPU here"
        self.log.append(("to host", ByteCount))
        self._queue(hStream, lambda: ctypes.memmove(dstHost, srcDevice, ByteCount) and None)
        return (Result(0),)

    def cuMemcpyDtoDAsync(self, dstDevice: int, srcDevice: int, ByteCount: int, hStream: Stream) -> tuple[Any, ...]:
        self.log.append(("copy", ByteCount))
        self._queue(hStream, lambda: ctypes.memmove(dstDevice, srcDevice, ByteCount) and None)
        return (Result(0),)

    def cuMemcpyPeerAsync(
        self, dstDevice: int, dstContext: Any, srcDevice: int, srcContext: Any, ByteCount: int, hStream: Stream
    ) -> tuple[Any, ...]:
        self.log.append(("peer", srcContext[1], dstContext[1], ByteCount))
        self._queue(hStream, lambda: ctypes.memmove(dstDevice, srcDevice, ByteCount) and None)
        return (Result(0),)

    def cuMemsetD8Async(self, dstDevice: int, uc: int, N: int, hStream: Stream) -> tuple[Any, ...]:
        self._queue(hStream, lambda: ctypes.memset(dstDevice, uc, N) and None)
        return (Result(0),)

    # --- streams, events -------------------------------------------------------------------------------------------

    def cuStreamCreate(self, Flags: int) -> tuple[Any, ...]:
        self._context()
        self.streams.append(Stream(next(self._numbers)))
        return Result(0), self.streams[-1]

    def cuStreamSynchronize(self, hStream: Stream) -> tuple[Any, ...]:
        if self.failed is not None:
            return (Result(self.failed),)
        self._run(hStream, len(hStream.queue))
        return (Result(0),)

    def cuStreamWaitEvent(self, hStream: Stream | int, hEvent: Event, Flags: int) -> tuple[Any, ...]:
        stream, at = hEvent.stream, hEvent.at
        waiting = self._stream(hStream)
        if stream is not None:
            self._queue(waiting, lambda: self._reach(stream, at))
        self.log.append(("wait", waiting.number, stream.number if stream else None))
        return (Result(0),)

    def cuEventCreate(self, Flags: int) -> tuple[Any, ...]:
        return Result(0), Event()

    def cuEventRecord(self, hEvent: Event, hStream: Stream | int) -> tuple[Any, ...]:
        hEvent.stream = self._stream(hStream)
        hEvent.at, hEvent.asked = len(hEvent.stream.queue), 0
        return (Result(0),)

    def cuEventSynchronize(self, hEvent: Event) -> tuple[Any, ...]:
        if self.failed is not None:
            return (Result(self.failed),)
        if hEvent.stream is not None:
            self._run(hEvent.stream, hEvent.at)
        return (Result(0),)

    def cuEventQuery(self, hEvent: Event) -> tuple[Any, ...]:
        if self.failed is not None:
            return (Result(self.failed),)
        if self.patience is not None and hEvent.stream is not None:
            hEvent.asked += 1
            if hEvent.asked > self.patience:
                self._run(hEvent.stream, hEvent.at)
        return (Result(0 if hEvent.stream is None or hEvent.stream.done >= hEvent.at else 600),)

    def cuEventElapsedTime(self, hStart: Event, hEnd: Event) -> tuple[Any, ...]:
        return Result(0), 0.5 * (hEnd.at - hStart.at)

    # --- kernels ---------------------------------------------------------------------------------------------------

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        self._context()
        if image in self.kernels and (code := self.refuses("cuModuleLoadData", self.kernels[image][0])):
            return Result(code), None
        return Result(0), Module(image)

    def cuModuleGetFunction(self, hmod: Module, name: bytes) -> tuple[Any, ...]:
        return Result(0), Function(hmod, name.decode())

    def cuFuncSetAttribute(self, hfunc: Function, attrib: int, value: int) -> tuple[Any, ...]:
        assert attrib == 8
        if value > 232448:
            return (Result(1),)
        hfunc.shared = value
        return (Result(0),)

    def cuLaunchKernel(
        self, f: Function, gridDimX: int, gridDimY: int, gridDimZ: int, blockDimX: int, blockDimY: int, blockDimZ: int,
        sharedMemBytes: int, hStream: Stream, kernelParams: int, extra: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        if self.failed is not None:
            return (Result(self.failed),)
        grid, block = (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ)
        assert all(grid) and sharedMemBytes <= f.shared
        known = self.kernels.get(f.module.image)
        if known and (code := self.refuses("cuLaunchKernel", known[0])):
            return (Result(code),)
        values = arguments_at(kernelParams, known[1].parameters) if known else None
        self.log.append(("launch", f.entry, grid, block, values, hStream.number))
        self._queue(hStream, lambda: self._execute(f, known, grid, values))
        return (Result(0),)

    def cuLaunchCooperativeKernel(self, f: Function, *rest: Any) -> tuple[Any, ...]:
        self.log.append(("cooperative", f.entry))
        return self.cuLaunchKernel(f, *rest, 0)

    def _execute(self, f: Function, known: Any, grid: tuple[int, int, int], values: Any) -> None:
        self.ran.append((f.entry, grid))
        if known is None:
            return
        kernel: TritonKernel = known[0]
        at_hand = {}
        for p, value in zip(kernel.parameters, values, strict=True):
            at_hand[p.name] = self._array(value, p) if p.is_address else value
        run_kernel(kernel, grid, at_hand)

    def _array(self, address: int, p: Parameter) -> np.ndarray:
        """What lies at an address, as far as its allocation goes: raw bytes."""
        if address == 0:
            return np.empty(0, np.uint8)
        for start, (_, size, _gpu) in self.allocated.items():
            if start <= address < start + size:
                return np.frombuffer((ctypes.c_ubyte * (start + size - address)).from_address(address), np.uint8)
        raise AssertionError(f"{p.name} is no address of this device's memory")

    # --- graphs ----------------------------------------------------------------------------------------------------

    def cuStreamBeginCapture(self, hStream: Stream, mode: Any) -> tuple[Any, ...]:
        assert hStream.captured is None
        hStream.captured = []
        self.log.append(("begin capture", hStream.number))
        return (Result(0),)

    def cuStreamEndCapture(self, hStream: Stream) -> tuple[Any, ...]:
        graph, hStream.captured = hStream.captured, None
        self.log.append(("end capture", hStream.number))
        return Result(0), graph

    def cuGraphInstantiate(self, hGraph: Any, flags: int) -> tuple[Any, ...]:
        return Result(0), list(hGraph)

    def cuGraphDestroy(self, hGraph: Any) -> tuple[Any, ...]:
        return (Result(0),)

    def cuGraphExecDestroy(self, hGraphExec: Any) -> tuple[Any, ...]:
        self.log.append(("destroy graph",))
        return (Result(0),)

    def cuGraphLaunch(self, hGraphExec: Sequence[Callable[[], None]], hStream: Stream) -> tuple[Any, ...]:
        if self.failed is not None:
            return (Result(self.failed),)
        self.log.append(("graph launch", len(hGraphExec)))
        for work in hGraphExec:
            self._queue(hStream, work)
        return (Result(0),)


def arguments_at(address: int, parameters: Sequence[Parameter]) -> tuple[Any, ...]:
    """The arguments that an array of addresses leads to, and behind them two that are 0."""
    pointers = (ctypes.c_void_p * (len(parameters) + 2)).from_address(address)
    letters = ["Q" if p.is_address else _UNPACK[p.type] for p in parameters] + ["Q", "Q"]
    values = [
        struct.unpack(f"={letter}", ctypes.string_at(at, struct.calcsize(f"={letter}")))[0]
        for at, letter in zip(pointers, letters, strict=True)
    ]
    return tuple(values[:-2])


@contextlib.contextmanager
def fake_gpus(gpus: int = 1, memory: int = 1 << 30) -> Iterator[FakeDriver]:
    """A machine with such GPUs, as long as this lasts."""
    fake = FakeDriver(gpus, memory)
    before = api.use(fake)
    device.cache_clear()
    try:
        yield fake
    finally:
        device.cache_clear()
        gc.collect()  # what still holds graphs and events lets them go while their driver is there
        api.use(before)
