"""Compiled kernels on a device, and cheap launches of them.

Each kernel has one piece of memory with its arguments at the offsets that the function wants, and an array of their addresses. A launch
writes all arguments with one `pack_into` and makes one call of the driver. A `LoadedRoutine` has the grids and the positions of all
arguments for one set of sizes, so its runs look up nothing by name. The device's lock is held around each launch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....graph.core.errors import InternalError, ResourceExhaustedError
from ...target import GPU_DEFAULT_SHARED_BYTES
from ..ir import Binary, Parameter, Routine, layout
from .api import CudaError, bindings, check, error
from .device import Device


class Arguments:
    """The memory of a kernel's arguments.

    Attributes:
        address: of the array of the arguments' addresses: what a launch takes.
    """

    __slots__ = ("_pack", "_pointers", "_values", "address")

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        places = layout(parameters)
        letters = [{"i32": "i", "i64": "q"}.get(p.type, "Q") for p in parameters]
        self._pack = struct.Struct("".join(letters) + "QQ").pack_into  # aligned as C does
        self._values = ctypes.create_string_buffer(sum(places[-1]))
        base = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * len(places))(*[base + offset for offset, _ in places])
        self.address = ctypes.addressof(self._pointers)

    def write(self, values: Sequence[Any], scratch: int = 0) -> None:
        """Set all arguments. struct.error when a number does not fit its type. `scratch`: address of Triton's own memory."""
        self._pack(self._values, 0, *values, scratch, 0)


class LoadedKernel:
    """A binary that a device has loaded.

    Raises:
        NotSuitableError: it wants more shared memory than a block may have.
        CudaError: the device does not take it.
    """

    def __init__(self, device: Device, binary: Binary) -> None:
        if binary.shared_bytes > device.block_shared_bytes:
            raise NotSuitableError(
                f"{binary.entry} wants {binary.shared_bytes} bytes of shared memory, and a block of {device.name} may have "
                f"{device.block_shared_bytes}"
            )
        self.device = device
        self.binary = binary
        self.arguments = Arguments(binary.parameters)
        driver = bindings()
        with device.entered():
            self.module = check(driver.cuModuleLoadData(binary.image))
            self.function = check(driver.cuModuleGetFunction(self.module, binary.entry.encode()))
            if binary.shared_bytes > GPU_DEFAULT_SHARED_BYTES:
                which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                check(driver.cuFuncSetAttribute(self.function, which, binary.shared_bytes))
        self._call: Callable[..., tuple[Any]] = driver.cuLaunchKernel
        self._threads = binary.threads
        self._shared = binary.shared_bytes
        self._scratch = binary.global_scratch

    def launch(self, grid: tuple[int, int, int], values: Sequence[Any]) -> None:
        """Queue one run. The device is entered; no number of the grid is 0.

        Args:
            grid: blocks along x, y and z.
            values: the arguments, in the order of the binary's parameters.
        """
        arguments = self.arguments
        x, y, z = grid
        if self._scratch:
            block, _ = self.device.pool.allocate(self._scratch * x * y * z, self.binary.entry)
            arguments.write(values, block.pointer)
        else:
            arguments.write(values)
        stream = self.device.compute.handle
        code = self._call(self.function, x, y, z, self._threads, 1, 1, self._shared, stream, arguments.address, 0)[0]
        if code:
            raise error(int(code))


class LoadedRoutine:
    """A routine for one set of sizes: one call launches all of its kernels.

    Args:
        device: where.
        routine: what.
        binaries: one per launch.
        names: of the addresses that it takes: in0..., out0...
        sizes: the axes, by name (`n0`).

    Raises:
        NotSuitableError: a kernel promises what these sizes do not hold.
    """

    __slots__ = ("_launches", "_scratch", "_sizes", "device")

    def __init__(
        self,
        device: Device,
        routine: Routine,
        binaries: Sequence[LoadedKernel],
        names: Sequence[str],
        sizes: Mapping[str, int],
    ) -> None:
        self.device = device
        at = {name: i for i, name in enumerate([*names, *(s.name for s in routine.scratch), *sizes])}
        self._sizes = tuple(sizes.values())
        self._scratch = tuple(max(s.bytes(sizes), 1) for s in routine.scratch)
        launches = []
        for launch, kernel in zip(routine.launches, binaries, strict=True):
            grid = launch.grid.of(sizes)
            for p in kernel.binary.parameters:
                if p.divisible and not p.is_address and sizes[p.name] % 16:
                    text = f"{kernel.binary.entry} wants a multiple of 16 for {p.name}, not {sizes[p.name]}"
                    raise NotSuitableError(text)
            if all(grid):
                launches.append((kernel, grid, [at[p.name] for p in kernel.binary.parameters]))
        self._launches = tuple(launches)

    def __call__(self, addresses: Sequence[int], label: str = "") -> None:
        """Queue a run.

        Args:
            addresses: of the inputs, then of the outputs. All are multiples of 16.
            label: owner of the scratch memory, for errors.
        """
        blocks = [self.device.pool.allocate(size, label)[0] for size in self._scratch]
        values = (*addresses, *[b.pointer for b in blocks], *self._sizes)
        for kernel, grid, positions in self._launches:
            kernel.launch(grid, [values[i] for i in positions])


class NotSuitableError(Exception):
    """A kernel cannot run for these sizes, or on this device. Another candidate must."""


def leaves_others(failure: Exception) -> bool:
    """Whether another candidate may run after one has failed to compile, load or launch; not if the GPU itself has failed."""
    if isinstance(failure, CudaError):
        return not failure.is_final
    return isinstance(failure, (NotSuitableError, InternalError, ResourceExhaustedError))
