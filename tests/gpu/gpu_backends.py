"""The GPUs that tests run on: the strict driver's, or, with DOVETAIL_TEST_GPU=1, those of this machine.

`make test-gpu` sets the variable. The driver that a process has loaded is the one that it keeps, so no process tests both.
DOVETAIL_TEST_GPU=strict rehearses it: all is done as on a real GPU, with the binaries that Triton makes, and the driver is the strict one.

On both, NVIDIA's bindings are called, and what is called is noted; so a test says the same of either: which kernels were launched, what
was copied. What only a stand-in can do (another size of memory, a GPU that fails) skips the test on a real one.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from strict_driver import StrictGpus, Touch, arguments_at, missing

from dovetail.codegen.gpu.driver import api
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.gpu.ir import Binary, TritonKernel
from dovetail.codegen.gpu.toolchain import compile
from dovetail.codegen.target import Target

_ASKED = os.environ.get("DOVETAIL_TEST_GPU", "0")
ON_DEVICE = _ASKED != "0"
IS_REAL = _ASKED == "1"
_REHEARSED = StrictGpus(1, 8 << 30) if _ASKED == "strict" else None
_compile_kernel = compile.compile_kernel


class RecordedDriver:
    """NVIDIA's bindings, and a log of what was called. The functions that are not here are the bindings' own.

    Attributes:
        strict: the driver, where it is the strict one; None: a real one.
        log: what was called, with the arguments that matter: ("launch", entry, grid, block, arguments, stream).
        kernels: image -> what it was made from.
        shared: the bytes of shared memory that a stand-in for a kernel asks for.
        refuses: (function of the driver, kernel) -> the code with which it refuses; 0: it does not.
        most_shared: kernel -> the bytes of shared memory that were asked for beyond what every kernel may have.
    """

    def __init__(self, strict: StrictGpus | None) -> None:
        from cuda.bindings import driver  # it looks for the driver's library when it is first called

        self._driver = driver
        self._strict = strict
        self.log: list[tuple[Any, ...]] = []
        self.kernels = {} if strict is None else strict.kernels
        self._loaded: dict[int, bytes] = {}
        self._functions: dict[int, tuple[str, bytes]] = {}
        self.shared: Callable[[TritonKernel], int] = lambda kernel: 0
        self.refuses: Callable[[str, TritonKernel], int] = lambda function, kernel: 0
        self.most_shared: dict[str, int] = {}
        self._contexts: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._driver, name)

    # --- for tests -------------------------------------------------------------------------------------------------

    @property
    def strict(self) -> StrictGpus:
        """The strict driver. The test is skipped where there is a real one."""
        if self._strict is None:
            pytest.skip("no real GPU can be asked to do that")
        return self._strict

    def compile_kernel(self, kernel: TritonKernel, target: Target) -> Binary:
        """A kernel's binary: on a stand-in, one that stands for it."""
        if self._strict is not None:
            return self._strict.stand_in(kernel, target, self.shared(kernel))
        return self.compiled(kernel, target)

    def compiled(self, kernel: TritonKernel, target: Target) -> Binary:
        """A kernel's binary, by Triton."""
        binary = _compile_kernel(kernel, target)
        self.kernels[binary.image] = kernel, binary
        if _REHEARSED is not None:
            _REHEARSED.kernels[binary.image] = kernel, binary
        return binary

    def launches(self) -> list[tuple[Any, ...]]:
        """What was launched, in order."""
        return [x for x in self.log if x[0] in ("launch", "graph launch")]

    def copies(self) -> list[tuple[Any, ...]]:
        """Copies between host and device, in order."""
        return [x for x in self.log if x[0] in ("to device", "to host", "peer")]

    def leave(self, size: int) -> None:
        """Let the first GPU's pool have so many more bytes only, as DOVETAIL_GPU_MEMORY does before a process uses the GPU."""
        pool = device(0).pool
        pool.trim()
        pool.limit = pool.reserved + size

    def queue(self, stream: int, work: Callable[[Touch], bool]) -> None:
        """Queue what a stand-in for a library does, also where the strict driver rehearses a real one."""
        (self._strict or _REHEARSED or self.strict).queue(stream, work)

    @property
    def ran(self) -> list[tuple[str, tuple[int, int, int]]]:
        """What has run."""
        return self.strict.ran

    @property
    def allocated(self) -> dict[int, tuple[int, int]]:
        """Address -> bytes and GPU of each allocation."""
        return self.strict.allocations()

    @property
    def in_use(self) -> int:
        """Bytes of device memory."""
        return sum(size for size, _ in self.allocated.values())

    # --- what is noted ---------------------------------------------------------------------------------------------

    def cuDevicePrimaryCtxRetain(self, dev: Any) -> Any:
        made = self._driver.cuDevicePrimaryCtxRetain(dev)
        self._contexts[int(made[1])] = int(dev)
        return made

    def cuCtxEnablePeerAccess(self, peerContext: Any, Flags: int) -> Any:
        mine = self._contexts[int(self._driver.cuCtxGetCurrent()[1])]
        self.log.append(("peer access", mine, self._contexts[int(peerContext)]))
        return self._driver.cuCtxEnablePeerAccess(peerContext, Flags)

    def cuMemAlloc(self, bytesize: int) -> Any:
        made = self._driver.cuMemAlloc(bytesize)
        if not int(made[0]):
            self.log.append(("allocate", bytesize))
        return made

    def cuMemFree(self, dptr: int) -> Any:
        self.log.append(("free",))
        return self._driver.cuMemFree(dptr)

    def cuIpcGetMemHandle(self, dptr: int) -> Any:
        self.log.append(("handle",))
        return self._driver.cuIpcGetMemHandle(dptr)

    def cuIpcOpenMemHandle(self, handle: Any, Flags: int) -> Any:
        self.log.append(("open",))
        return self._driver.cuIpcOpenMemHandle(handle, Flags)

    def cuIpcCloseMemHandle(self, dptr: int) -> Any:
        self.log.append(("close",))
        return self._driver.cuIpcCloseMemHandle(dptr)

    def cuMemcpyHtoDAsync(self, dstDevice: int, srcHost: int, ByteCount: int, hStream: Any) -> Any:
        self.log.append(("to device", ByteCount))
        return self._driver.cuMemcpyHtoDAsync(dstDevice, srcHost, ByteCount, hStream)

    def cuMemcpyDtoHAsync(self, dstHost: int, srcDevice: int, ByteCount: int, hStream: Any) -> Any:
        self.log.append(("to host", ByteCount))
        return self._driver.cuMemcpyDtoHAsync(dstHost, srcDevice, ByteCount, hStream)

    def cuMemcpyDtoDAsync(self, dstDevice: int, srcDevice: int, ByteCount: int, hStream: Any) -> Any:
        self.log.append(("copy", ByteCount))
        return self._driver.cuMemcpyDtoDAsync(dstDevice, srcDevice, ByteCount, hStream)

    def cuMemcpyPeerAsync(
        self, dstDevice: int, dstContext: Any, srcDevice: int, srcContext: Any, ByteCount: int, hStream: Any
    ) -> Any:
        self.log.append(("peer", self._contexts[int(srcContext)], self._contexts[int(dstContext)], ByteCount))
        return self._driver.cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream)

    def cuEventCreate(self, Flags: int) -> Any:
        self.log.append(("create event", Flags))
        return self._driver.cuEventCreate(Flags)

    def cuEventDestroy(self, hEvent: Any) -> Any:
        self.log.append(("destroy event",))
        return self._driver.cuEventDestroy(hEvent)

    def cuStreamWaitEvent(self, hStream: Any, hEvent: Any, Flags: int) -> Any:
        self.log.append(("wait", int(hStream)))
        return self._driver.cuStreamWaitEvent(hStream, hEvent, Flags)

    def _refusal(self, function: str, image: bytes) -> int:
        return self.refuses(function, self.kernels[image][0]) if image in self.kernels else 0

    def cuModuleLoadData(self, image: bytes) -> Any:
        if code := self._refusal("cuModuleLoadData", image):
            return self._driver.CUresult(code), None
        made = self._driver.cuModuleLoadData(image)
        self._loaded[int(made[1] or 0)] = image
        return made

    def cuModuleGetFunction(self, hmod: Any, name: bytes) -> Any:
        made = self._driver.cuModuleGetFunction(hmod, name)
        self._functions[int(made[1] or 0)] = name.decode(), self._loaded[int(hmod)]
        return made

    def cuFuncSetAttribute(self, hfunc: Any, attrib: Any, value: int) -> Any:
        self.most_shared[self._functions[int(hfunc)][0]] = value
        return self._driver.cuFuncSetAttribute(hfunc, attrib, value)

    def cuLaunchKernel(
        self, f: Any, gridDimX: int, gridDimY: int, gridDimZ: int, blockDimX: int, blockDimY: int, blockDimZ: int,
        sharedMemBytes: int, hStream: Any, kernelParams: int, extra: int,
    ) -> Any:  # fmt: skip
        if code := self._refusal("cuLaunchKernel", self._functions[int(f)][1]):
            return (self._driver.CUresult(code),)
        self._note_launch(f, (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ), hStream, kernelParams)
        return self._driver.cuLaunchKernel(
            f,
            gridDimX,
            gridDimY,
            gridDimZ,
            blockDimX,
            blockDimY,
            blockDimZ,
            sharedMemBytes,
            hStream,
            kernelParams,
            extra,
        )

    def _note_launch(self, f: Any, grid: tuple[int, ...], block: tuple[int, ...], stream: Any, at: int) -> None:
        entry, image = self._functions[int(f)]
        known = self.kernels.get(image)
        values = arguments_at(at, known[1].parameters) if known else None
        self.log.append(("launch", entry, grid, block, values, int(stream)))

    def cuStreamBeginCapture(self, hStream: Any, mode: Any) -> Any:
        self.log.append(("begin capture", int(hStream)))
        return self._driver.cuStreamBeginCapture(hStream, mode)

    def cuStreamEndCapture(self, hStream: Any) -> Any:
        self.log.append(("end capture", int(hStream)))
        return self._driver.cuStreamEndCapture(hStream)

    def cuGraphExecDestroy(self, hGraphExec: Any) -> Any:
        self.log.append(("destroy graph",))
        return self._driver.cuGraphExecDestroy(hGraphExec)

    def cuGraphLaunch(self, hGraphExec: Any, hStream: Any) -> Any:
        self.log.append(("graph launch",))
        return self._driver.cuGraphLaunch(hGraphExec, hStream)


@contextlib.contextmanager
def gpus_for_tests(count: int = 1, memory: int = 1 << 30) -> Iterator[RecordedDriver]:
    """A machine with so many GPUs, as long as this lasts. At its end, no rule of the strict driver may have been broken."""
    pytest.importorskip("cuda.bindings.driver", reason="the package cuda-bindings is not installed")
    if ON_DEVICE:
        with _real(count) as made:
            yield made
        return
    if missing():
        pytest.skip(missing())
    made = RecordedDriver(StrictGpus(count, memory))
    before = api.use(made)
    device.cache_clear()
    try:
        yield made
        assert not made.strict.refused, made.strict.refused
    finally:
        device.cache_clear()
        gc.collect()  # what still holds graphs and events lets them go while their driver is there
        made.strict.close()
        api.use(before)


@contextlib.contextmanager
def _real(count: int) -> Iterator[RecordedDriver]:
    """Its devices stay from test to test, since their streams and pinned memory do; what a test has made on them goes."""
    made = RecordedDriver(None)
    before = api.use(made)
    compile.compile_kernel = made.compiled
    try:
        if api.gpu_count() < count:
            pytest.skip(f"{count} GPUs are needed, and there are {api.gpu_count()}")
        yield made
        assert _REHEARSED is None or not _REHEARSED.refused, str(_REHEARSED.refused)  # the list is cleared below
    finally:
        compile.compile_kernel = _compile_kernel
        if _REHEARSED is not None:
            _REHEARSED.refused.clear()
            _REHEARSED.fail(0)
        for index in range(api.gpu_count()):
            device(index).loaded.clear()
        gc.collect()
        for index in range(api.gpu_count()):
            device(index).synchronize()
            device(index).pool.trim()
            device(index).pool.limit = device(index).memory_bytes
        api.use(before)
