"""Compiled kernels on a device, and launches that cost little.

What a launch needs is fixed beforehand: the function, the block, and a piece of memory with the arguments at the offsets that the
function wants, together with an array of their addresses. A launch then writes all arguments with one `pack_into` and makes one
call into the driver. `LoadedRoutine` goes a step further: for one set of sizes, it knows each launch's grid and which of a
routine's addresses and sizes each argument is, so that a run of it looks up nothing by name.

A device's lock is held around each launch: one launch's arguments lie in the kernel's one piece of memory.
"""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....graph.core.errors import InternalError, ResourceExhaustedError, UnimplementedError
from ..ir import Binary, Parameter, Routine
from .api import CudaError, bindings, check, error
from .device import Device

_WITHOUT_ASKING = 48 << 10  # bytes of dynamic shared memory that every kernel may have
_LETTERS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "?", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
            "fp16": "e", "fp32": "f", "fp64": "d"}  # fmt: skip
_HIDDEN = 2  # Triton's own two addresses, behind the parameters


class Arguments:
    """The memory that a kernel's arguments are passed in.

    Attributes:
        offsets: of each argument, Triton's own two addresses included.
        address: of the array of the arguments' addresses: what a launch takes.
    """

    __slots__ = ("_pack", "_pointers", "_values", "address", "offsets")

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        letters, end = "=", 0
        offsets = []
        for size, letter in [(p.size, _letter(p)) for p in parameters] + [(8, "Q")] * _HIDDEN:
            start = -(-end // size) * size
            letters += "x" * (start - end) + letter
            offsets.append(start)
            end = start + size
        self.offsets = tuple(offsets)
        self._values = ctypes.create_string_buffer(end)
        base = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * len(offsets))(*[base + o for o in offsets])
        self.address = ctypes.addressof(self._pointers)
        self._pack = struct.Struct(letters).pack_into

    def write(self, values: Sequence[Any]) -> None:
        """Set all arguments but the last two, which become 0. struct.error when a number does not fit its type."""
        self._pack(self._values, 0, *values, 0, 0)

    def write_all(self, values: Sequence[Any]) -> None:
        """Set all arguments."""
        self._pack(self._values, 0, *values)

    def __bytes__(self) -> bytes:
        return bytes(self._values)


def _letter(parameter: Parameter) -> str:
    if parameter.is_address:
        return "Q"
    letter = _LETTERS.get(parameter.type)
    if letter is None:
        raise UnimplementedError.of(f"A kernel's number {parameter.name} cannot be a {parameter.type}: pass fp32")
    return letter


class LoadedKernel:
    """A binary that a device has loaded.

    Raises:
        UnimplementedError: it wants clusters of blocks, or an argument that cannot be passed.
        NotSuitableError: it wants more shared memory than a block may have.
        CudaError: the device does not take it.
    """

    def __init__(self, device: Device, binary: Binary) -> None:
        if binary.shared_bytes > device.block_shared_bytes:
            raise NotSuitableError(
                f"{binary.entry} wants {binary.shared_bytes} bytes of shared memory, and a block of {device.name} may have "
                f"{device.block_shared_bytes}"
            )
        if binary.num_ctas != 1:
            raise UnimplementedError.of(f"{binary.entry} wants clusters of {binary.num_ctas} blocks")
        self.device = device
        self.binary = binary
        self.arguments = Arguments(binary.parameters)
        driver = bindings()
        with device.entered():
            self.module = check(driver.cuModuleLoadData(binary.image))
            self.function = check(driver.cuModuleGetFunction(self.module, binary.entry.encode()))
            if binary.shared_bytes > _WITHOUT_ASKING:
                which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                check(driver.cuFuncSetAttribute(self.function, which, binary.shared_bytes))
        self._call: Callable[..., tuple[Any]] = driver.cuLaunchKernel
        if binary.cooperative:
            self._call = lambda *facts: driver.cuLaunchCooperativeKernel(*facts[:-1])
        self._threads = binary.threads
        self._shared = binary.shared_bytes
        self._scratch = binary.global_scratch, binary.profile_scratch
        self._plain = not any(self._scratch)

    def launch(self, grid: tuple[int, int, int], values: Sequence[Any]) -> None:
        """Queue one run. The device is entered; no number of the grid is 0.

        Args:
            grid: blocks along x, y and z.
            values: the arguments, in the order of the binary's parameters.
        """
        arguments = self.arguments
        x, y, z = grid
        if self._plain:
            arguments.write(values)
        else:
            name, pool = self.binary.entry, self.device.pool
            blocks = [pool.allocate(max(s * x * y * z, 1), name)[0] if s else None for s in self._scratch]
            arguments.write_all([*values, *(b.pointer if b else 0 for b in blocks)])
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
        inputs, outputs: how many addresses it takes and gives.
        sizes: the axes, by name (`n0`).
        names: of the addresses, where they are not in0..., out0...

    Raises:
        NotSuitableError: a kernel promises what these sizes do not hold.
    """

    __slots__ = ("_launches", "_scratch", "_sizes", "device", "launched")

    def __init__(
        self,
        device: Device,
        routine: Routine,
        binaries: Sequence[LoadedKernel],
        inputs: int,
        outputs: int,
        sizes: Mapping[str, int],
        names: Sequence[str] | None = None,
    ) -> None:
        self.device = device
        names = list(names or [f"in{i}" for i in range(inputs)] + [f"out{i}" for i in range(outputs)])
        names += [s.name for s in routine.scratch]
        names += sizes
        at = {name: i for i, name in enumerate(names)}
        self._sizes = tuple(sizes.values())
        self._scratch = tuple(max(s.bytes(sizes), 1) for s in routine.scratch)
        launches = []
        for launch, kernel in zip(routine.launches, binaries, strict=True):
            grid = launch.grid.of(sizes)
            for p in kernel.binary.parameters:
                if p.divisible and not p.is_address and sizes[p.name] % 16:
                    raise NotSuitableError(
                        f"{kernel.binary.entry} wants a multiple of 16 for {p.name}, not {sizes[p.name]}"
                    )
            if all(grid):
                launches.append((kernel, grid, _picker([at[p.name] for p in kernel.binary.parameters])))
        self._launches = tuple(launches)
        self.launched = len(launches)

    def __call__(self, addresses: Sequence[int], label: str = "") -> None:
        """Queue a run.

        Args:
            addresses: of the inputs, then of the outputs. All are multiples of 16.
            label: owner of the scratch memory, for errors.
        """
        if not self._scratch:
            values = (*addresses, *self._sizes)
            for kernel, grid, pick in self._launches:
                kernel.launch(grid, pick(values))
            return
        blocks = [self.device.pool.allocate(size, label)[0] for size in self._scratch]
        values = (*addresses, *[b.pointer for b in blocks], *self._sizes)
        for kernel, grid, pick in self._launches:
            kernel.launch(grid, pick(values))


class NotSuitableError(Exception):
    """A kernel is not for these sizes, or not for this device; another candidate must do."""


def leaves_others(failure: Exception) -> bool:
    """Whether a candidate that cannot be compiled, loaded or launched for this reason may be left out for another one.

    Not so when the GPU itself has failed: nothing runs any more then.
    """
    if isinstance(failure, CudaError):
        return not failure.is_final
    return isinstance(failure, (NotSuitableError, InternalError, UnimplementedError, ResourceExhaustedError))


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(positions) == 1:
        (only,) = positions
        return lambda values: (values[only],)
    if not positions:
        return lambda values: ()
    return operator.itemgetter(*positions)
