"""`strict_driver.cpp`, compiled and loaded in the place of CUDA's driver, and what it calls back: binaries are read, kernels interpreted.

NVIDIA's own bindings call it, and it loads the binaries that Triton makes: parameters, registers and kind of GPU are read from them.
What runs is the kernel that a binary was made from, in Triton's interpreter, whose loads and stores are checked one by one. A test
that is about something else saves the second that compiling takes: `stand_in` makes an image that only names its kernel.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from triton_interpreter import run_kernel

from dovetail.codegen.gpu.ir import Binary, Parameter, TritonKernel, layout
from dovetail.codegen.gpu.toolchain.compile import facts_of
from dovetail.codegen.target import Target

SOURCE = Path(__file__).with_suffix(".cpp")
MACHINE = SOURCE.with_name("strict_machine.h")  # which it includes
BUILT = Path(__file__).resolve().parents[2] / "build" / "strict_driver"
_UNPACK = {"i32": "i", "i64": "q"}
_INVALID_IMAGE, _NO_BINARY, _ILLEGAL_ADDRESS, _MISALIGNED, _FAILED = 200, 209, 700, 716, 719

Known = tuple[TritonKernel, Binary]
Touch = Callable[[int, int, bool], None]
"""Tells that bytes are read or written: address, size, whether they are written."""


@functools.cache
def missing() -> str:
    """Why there is no strict driver here; empty: there is."""
    if sys.platform != "linux":
        return "the strict driver is a shared library for Linux"
    try:
        _library()
    except (OSError, subprocess.SubprocessError) as e:
        return f"the strict driver cannot be compiled: {e}"
    return ""


@functools.cache
def _library() -> ctypes.CDLL:
    """The library, compiled once per text. As it has the driver's name, NVIDIA's bindings find it loaded."""
    file = BUILT / hashlib.sha256(SOURCE.read_bytes() + MACHINE.read_bytes()).hexdigest()[:16] / "libcuda.so.1"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as own:
            made = Path(own) / file.name
            options = [
                "-O1",
                "-std=c++17",
                "-shared",
                "-fPIC",
                f"-Wl,-soname,{file.name}",
                "-o",
                str(made),
                str(SOURCE),
                "-ldl",
            ]
            subprocess.run([os.environ.get("CXX", "g++"), *options], check=True, capture_output=True, timeout=120)
            made.replace(file)
    library = ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    address, number = ctypes.c_uint64, ctypes.c_int
    library.strict_reset.argtypes = [number, address]
    library.strict_memory.argtypes = [address]
    library.strict_function.argtypes = [address, number, ctypes.c_void_p, ctypes.c_void_p, number]
    library.strict_bytes_at.argtypes, library.strict_bytes_at.restype = [address, ctypes.c_void_p], address
    library.strict_access.argtypes = [address, address, address, number]
    library.strict_name.argtypes = [address, ctypes.c_char_p]
    library.strict_queue.argtypes = [address, number]
    library.strict_queued.argtypes, library.strict_queued.restype = [address], ctypes.c_long
    library.strict_run.argtypes = [address, address]
    library.strict_allocations.argtypes = [ctypes.c_void_p] * 3 + [number] * 2
    return library


class OutOfBoundsError(Exception):
    """A kernel touches memory that none of its arguments leads to."""


class StrictGpus:
    """The GPUs of the strict driver. There is one at a time.

    Args:
        gpus: how many.
        memory: bytes that each of them has.

    Attributes:
        refused: what broke a rule: code and reason.
        kernels: what each image was made from.
        ran: kernels that have run, with their grids.
        interprets: whether kernels run; else they are only noted.
    """

    def __init__(self, gpus: int, memory: int) -> None:
        self.refused: list[tuple[int, str]] = []
        self.kernels: dict[bytes, Known] = {}
        self.ran: list[tuple[str, tuple[int, int, int]]] = []
        self.interprets = True
        self._images: list[bytes] = []
        self._functions: list[tuple[str, Known | None]] = []
        self._work: list[Callable[[Touch], bool]] = []
        self._stand_ins: dict[tuple[TritonKernel, Target], Binary] = {}
        self._library = _library()
        self._library.strict_reset(gpus, memory)
        kinds = [
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint64, *[ctypes.c_uint] * 5, ctypes.c_void_p),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint64),
        ]
        functions = [self._load, self._find, self._execute, self._on_refused, self._on_work]
        self._callbacks = [kind(function) for kind, function in zip(kinds, functions, strict=True)]
        self._library.strict_callbacks(*self._callbacks)

    def close(self) -> None:
        """There are no GPUs any more."""
        self._library.strict_reset(0, 0)

    # --- for tests -------------------------------------------------------------------------------------------------

    def stand_in(self, kernel: TritonKernel, target: Target, shared: int = 0) -> Binary:
        """In the place of `compile_kernel`: an image that stands for the kernel, and needs no compiler."""
        made = self._stand_ins.get((kernel, target))
        if made is None:
            image = b"stand-in %d" % len(self._stand_ins)
            made = Binary(image, kernel.name, kernel.parameters, kernel.num_warps, shared, 0, 32, 0, target)
            self._stand_ins[kernel, target] = made
            self.kernels[image] = kernel, made
        return made

    def fail(self, code: int) -> None:
        """As if a kernel had failed with this code; 0: as if none had."""
        self._library.strict_fail(code)

    def be_patient(self, times: int | None) -> None:
        """How often the host may ask whether an event has happened before what it waits for runs; None: for ever."""
        self._library.strict_patience(-1 if times is None else times)

    def open_own_handles(self) -> None:
        """A process may open the memory that it lends, as if it were another one."""
        self._library.strict_own_handles(1)

    def set_memory(self, size: int) -> None:
        """Another size of each GPU's memory."""
        self._library.strict_memory(size)

    def allocations(self, opened: bool = False) -> dict[int, tuple[int, int]]:
        """Address -> bytes and GPU of each allocation; or of those of other processes that are open."""
        most = 4096
        at, size, gpu = (ctypes.c_uint64 * most)(), (ctypes.c_uint64 * most)(), (ctypes.c_int * most)()
        count = self._library.strict_allocations(at, size, gpu, most, int(opened))
        return {at[i]: (size[i], gpu[i]) for i in range(count)}

    def queue(self, stream: int, work: Callable[[Touch], bool]) -> None:
        """Put a library's work on a stream. It is called when its turn comes, says what it touches, and whether it is done."""
        self._work.append(work)
        assert not self._library.strict_queue(stream, len(self._work) - 1)

    def queued(self, stream: int) -> int:
        """How many operations a stream has got."""
        return int(self._library.strict_queued(stream))

    def run(self, stream: int, upto: int) -> bool:
        """Let a stream go on to an operation; whether it came so far."""
        return bool(self._library.strict_run(stream, upto))

    # --- what the driver calls -------------------------------------------------------------------------------------

    def _on_refused(self, code: int, why: bytes) -> int:
        self.refused.append((code, why.decode()))
        return 0

    def _on_work(self, number: int, op: int) -> int:
        found = 0

        def touch(address: int, size: int, writes: bool) -> None:
            nonlocal found
            found = found or self._library.strict_access(op, address, size, writes)

        try:
            is_done = self._work[number](touch)
            return found or (0 if is_done else -1)
        except BaseException:
            traceback.print_exc()
            return _FAILED

    def _load(self, address: int) -> int:
        """Read an image, whose size is told by itself alone."""
        head = ctypes.string_at(address, 9)
        if head.startswith(b"\x7fELF"):
            head = ctypes.string_at(address, 64)
            programs, sections, flags = struct.unpack_from("<QQI", head, 32)
            sizes = struct.unpack_from("<4H", head, 54)
            image = ctypes.string_at(address, max(sections + sizes[2] * sizes[3], programs + sizes[0] * sizes[1]))
            if 90 not in (flags & 0xFF, flags >> 8 & 0xFF):
                return -_NO_BINARY
        elif head == b"stand-in ":
            image = ctypes.string_at(address)
        else:
            return -_INVALID_IMAGE
        self._images.append(image)
        return len(self._images) - 1

    def _find(self, number: int, name: bytes, function: int) -> int:
        image = self._images[number]
        known = self.kernels.get(image)
        if image.startswith(b"stand-in "):
            assert known is not None
            if known[1].entry != name.decode():
                return -1
            parameters, registers = layout(known[0].parameters), 32
        else:
            try:
                facts = facts_of(image, name.decode())
            except ValueError:
                return -1
            parameters, registers = facts.parameters, facts.registers
        offsets, sizes = zip(*parameters, strict=True)
        n = len(parameters)
        self._library.strict_function(function, n, (ctypes.c_int * n)(*offsets), (ctypes.c_int * n)(*sizes), registers)
        self._functions.append((name.decode(), known))
        return len(self._functions) - 1

    def _execute(self, number: int, op: int, x: int, y: int, z: int, threads: int, shared: int, arguments: int) -> int:
        name, known = self._functions[number]
        self._library.strict_name(op, name.encode())
        self.ran.append((name, (x, y, z)))
        try:
            if known is None:
                raise LookupError("it is not known from which kernel the binary was made")
            if not self.interprets:
                return self._left_out(known[0], op, arguments)
            return self._interpreted(name, known, op, (x, y, z), threads, shared, arguments)
        except OutOfBoundsError as e:
            self.refused.append((_ILLEGAL_ADDRESS, f"{name} {e}"))
            return _ILLEGAL_ADDRESS
        except BaseException as e:
            traceback.print_exc()
            self.refused.append((_FAILED, f"{name}: {type(e).__name__}: {e}"))
            return _FAILED

    def _left_out(self, kernel: TritonKernel, op: int, at: int) -> int:
        """What it would write counts as written."""
        seen = _Accesses(self._library)
        for p, (offset, _) in zip(kernel.parameters, layout(kernel.parameters), strict=False):
            if p.is_address and p.name.startswith("out"):
                address = _value(p, at + offset)
                seen.note(np.array([address], np.uint64), len(seen.array(address)), False, True)
        return seen.told(op)

    def _interpreted(
        self, name: str, known: Known, op: int, grid: tuple[int, int, int], threads: int, shared: int, at: int
    ) -> int:
        kernel, binary = known
        assert (threads, shared) == (binary.threads, binary.shared_bytes), f"{threads} threads, {shared} bytes shared"
        values: dict[str, Any] = {}
        seen = _Accesses(self._library)
        for p, (offset, _) in zip(kernel.parameters, layout(kernel.parameters), strict=False):
            values[p.name] = value = _value(p, at + offset)
            if not p.is_address:
                assert not (p.divisible and value % 16), f"{p.name} is promised to be a multiple of 16, and is {value}"
            elif p.divisible and value % 16:
                self.refused.append((_MISALIGNED, f"{name}: the address {p.name} is promised to be a multiple of 16"))
                return _MISALIGNED
            else:
                values[p.name] = seen.array(value)
        need, (offset, _) = binary.global_scratch, layout(kernel.parameters)[-2]
        (address,) = struct.unpack("<Q", ctypes.string_at(at + offset, 8))
        blocks = grid[0] * grid[1] * grid[2]
        if need and (not address or len(seen.array(address)) < need * blocks or address % 128):
            raise OutOfBoundsError(f"has too little scratch memory for {blocks} blocks of {need} bytes")
        run_kernel(kernel, grid, values, seen.note)
        return seen.told(op)


class _Accesses:
    """Which bytes of its arguments' memory a kernel reads and writes: from the first to the last one of each allocation."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._memory: dict[int, int] = {}  # base -> end
        self._read: dict[int, tuple[int, int]] = {}
        self._written: dict[int, tuple[int, int]] = {}

    def array(self, address: int) -> np.ndarray[Any, Any]:
        """The memory from an address to the end of its allocation; empty where there is none."""
        base = ctypes.c_uint64()
        size = int(self._library.strict_bytes_at(address, ctypes.byref(base)))
        if not size:
            return np.empty(0, np.uint8)
        self._memory[base.value] = address + size
        return np.frombuffer((ctypes.c_ubyte * size).from_address(address), np.uint8)

    def note(self, addresses: np.ndarray[Any, Any], size: int, reads: bool, writes: bool) -> None:
        """A load or store of so many bytes at each address."""
        low, high = int(addresses.min()), int(addresses.max()) + size
        base = next((b for b, end in self._memory.items() if b <= low < end), None)
        if base is None or high > self._memory[base]:
            raise OutOfBoundsError(f"touches bytes {low:#x} to {high:#x}, which are in no argument's memory")
        if reads and base not in self._written:
            self._read[base] = _hull(self._read.get(base), low, high)
        if writes:
            self._written[base] = _hull(self._written.get(base), low, high)

    def told(self, op: int) -> int:
        """Tell the driver, which answers with a code."""
        for seen, writes in ((self._read, 0), (self._written, 1)):
            for low, high in seen.values():
                code = self._library.strict_access(op, low, high - low, writes)
                if code:
                    return int(code)
        return 0


def _hull(known: tuple[int, int] | None, low: int, high: int) -> tuple[int, int]:
    return (low, high) if known is None else (min(low, known[0]), max(high, known[1]))


def _value(parameter: Parameter, address: int) -> Any:
    letter = "Q" if parameter.is_address else _UNPACK[parameter.type]
    return struct.unpack(f"<{letter}", ctypes.string_at(address, struct.calcsize(letter)))[0]


def arguments_at(address: int, parameters: tuple[Parameter, ...]) -> tuple[Any, ...]:
    """The arguments that an array of addresses leads to."""
    return tuple(
        [
            _value(p, at)
            for p, at in zip(parameters, (ctypes.c_void_p * len(parameters)).from_address(address), strict=True)
        ]
    )
