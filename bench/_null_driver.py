"""A driver for one GPU whose calls return at once, and do nothing: with it, a step takes what it costs the host, less the driver's share.

A call of NVIDIA's bindings takes about 0.4 µs more than one of these, and what the driver itself does comes on top: 1.5 to 2.5 µs for
a launch, 3 µs and more for a graph.
"""

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

from dovetail.codegen.gpu.ir import Binary, TritonKernel
from dovetail.codegen.target import Target

DONE = (0,)
MEMORY = 80 << 30


class _Attributes:
    """What is asked about a GPU is the answer: an H200's."""

    def __getattr__(self, name: str) -> int:
        known = {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "L2_CACHE_SIZE": 60 << 20}
        return known.get(name.removeprefix("CU_DEVICE_ATTRIBUTE_"), 132)  # multiprocessors


class NullDriver:
    """What the device layer calls of `cuda.bindings.driver`."""

    CUstreamCaptureMode = int
    CUresult = int

    def __init__(self) -> None:
        self._addresses = itertools.count(1 << 32, 1 << 30)  # of GPU memory, which is never accessed
        self._handles = itertools.count(16, 16)
        self._pinned: list[Any] = []
        self.CUdevice_attribute = _Attributes()
        self.CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        answer = (
            (0, next(self._handles))
            if name.endswith(("Create", "Instantiate", "EndCapture", "Function", "Data"))
            else DONE
        )
        setattr(self, name, lambda *arguments: answer)
        return getattr(self, name)

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 1

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def cuDeviceGetName(self, length: int, ordinal: int) -> tuple[int, bytes]:
        return 0, b"no GPU\0"

    def cuDeviceTotalMem(self, ordinal: int) -> tuple[int, int]:
        return 0, MEMORY

    def cuDeviceGetAttribute(self, which: int, ordinal: int) -> tuple[int, int]:
        return 0, which  # which holds the answer

    def cuDevicePrimaryCtxRetain(self, ordinal: int) -> tuple[int, int]:
        return 0, 1

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        return 0, next(self._addresses)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[int, int]:
        self._pinned.append(ctypes.create_string_buffer(size))
        return 0, ctypes.addressof(self._pinned[-1])


def compiled(kernel: TritonKernel, target: Target) -> Binary:
    """What stands for a compiled kernel."""
    return Binary(b"", kernel.name, kernel.parameters, kernel.num_warps, 0, 0, 32, 0, target)
