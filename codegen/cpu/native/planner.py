"""The planner: records the launches of kernels, of which `plans` makes native plans.

A `Planner` traces the calls once, with placeholder arrays for all tensors: the inputs, and arrays without contents for the outputs of
launches. Each kernel records its launches and returns its outputs. Views (reshape, transpose, slice) of placeholders are made by the
ops' own references, so the address of a view tells to which placeholder it belongs, and its offset there. Values that depend only on
shapes are computed at once: constants, which belong to no placeholder.

A hand-written kernel is more than one compiled function: it allocates, makes arrays contiguous, adds padding and shares its work among
threads. It does so by the same methods.

Tensors that neither enter nor leave share the arena (`memory.plan`): two that are needed at the same time do not overlap, others
may.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from operator import attrgetter
from typing import Any

import numpy as np

from ....graph.core.dtypes import Array
from ....graph.resources.buffer_pool import LARGE
from ...ir.schedule import CpuProductSchedule
from ..emit.instantiate import text_of
from ..jit import compiled
from . import launches

KNOWN = 1 << 12  # bytes of what is known while a plan is made: shapes, and what is computed of them
MOST_DIMENSIONS = 5  # of what is copied along strides
LEAST = -(1 << 63)  # of all int64
_begin = attrgetter("begin")


class NotPlannableError(Exception):
    """These calls, with arrays of these shapes, must be run one by one."""


class NotCompiledError(Exception):
    """A kernel is not compiled yet. The argument is its source text."""


@dataclass(eq=False, slots=True)
class Memory:
    """A piece of memory of a plan.

    Attributes:
        array: its placeholder. begin: the placeholder's address. kind: whether it is an input, a constant, or made by a launch.
        number: its number among the inputs.
        first, last: its live range, in launches.
    """

    begin: int
    array: Array
    kind: str
    number: int = -1
    first: int = -1
    last: int = -1


@dataclass(eq=False, slots=True)
class Planner:
    """Records the launches of calls, and makes a plan of them.

    Attributes:
        is_dry: only the memory is laid out, so no kernel needs to be compiled, and the inputs have no values.
        looked_at: input number -> its value, for each input that a kernel has read: the plan is for these values alone.
        schedules: of the recorded products and convolutions.
        memories: of all tensors.
        words: of all records; an address in memory of a run is a memory, and an offset in bytes.
        threads: the most that share a launch.
        launches: how many there are.
    """

    is_dry: bool = False
    looked_at: dict[int, Array] = field(default_factory=dict)
    schedules: list[CpuProductSchedule] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    words: list[Any] = field(default_factory=list)
    threads: int = 1
    launches: int = 0
    _by_address: list[Memory] = field(default_factory=list)

    # --- tensors ---------------------------------------------------------------------------------------------------

    def given(self, number: int, array: Array) -> Array:
        """An input of the plan, for which this array stands."""
        return self._placed(array, "given", number)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """A tensor that launches fill, in memory that may have been used before."""
        if 0 in shape:
            raise NotPlannableError("a tensor without elements")
        return self._placed(stand_in(tuple(shape), dtype), "made")

    def _placed(self, array: Array, kind: str, number: int = -1) -> Array:
        if array.dtype.hasobject or not array.flags.c_contiguous:
            raise NotPlannableError("an array that kernels do not take")
        self.memories.append(Memory(launches.begin_of(array), array, kind, number))
        if array.size:
            bisect.insort(self._by_address, self.memories[-1], key=_begin)
        return array

    def memory_of(self, x: Any) -> Memory | None:
        """The memory that a tensor is in; None: its value is known."""
        if not isinstance(x, np.ndarray) or not x.size:
            return None
        low, high = np.lib.array_utils.byte_bounds(x)
        at = bisect.bisect(self._by_address, low, key=_begin) - 1
        found = self._by_address[at] if at >= 0 else None
        return found if found is not None and high <= found.begin + found.array.nbytes else None

    def is_known(self, x: Any) -> bool:
        """Whether a tensor's value is known, in memory or not."""
        memory = self.memory_of(x)
        return memory is None or memory.kind == "fixed"

    def known(self, x: Any) -> Any:
        """The value of a tensor. To read that of an input specializes the plan for it.

        Raises:
            NotPlannableError: it is made by a launch.
        """
        memory = self.memory_of(x)
        if memory is None or memory.kind == "fixed":
            return x
        if self.is_dry:
            raise NotPlannableError("what a kernel needs to know is not known before the step")
        if memory.kind != "given" or x is not memory.array or x.nbytes > KNOWN:
            raise NotPlannableError("a kernel needs to know a value beforehand that another one makes")
        self.looked_at[memory.number] = x.copy()
        return self.looked_at[memory.number]

    def in_memory(self, x: Any) -> Array:
        """The tensor where kernels can read it: itself, or a constant's copy in memory of the plan."""
        if isinstance(x, np.ndarray) and self.memory_of(x) is not None:
            return x
        return self._placed(np.ascontiguousarray(x).reshape(np.shape(x)), "fixed")

    def ordered(self, x: Array) -> Array:
        """A tensor in memory itself if it is contiguous, else a contiguous copy."""
        if x.flags.c_contiguous:
            return x
        out = self.empty(x.shape, x.dtype)
        self.copy(x, out)
        return out

    # --- functions -------------------------------------------------------------------------------------------------

    def compiled(self, text: str) -> Any:
        """The function of a source. NotCompiledError: it is not there yet."""
        function = compiled(text)
        if function is None and not self.is_dry:
            raise NotCompiledError(text)
        return function

    def trace(self, call: Callable[..., Any], inputs: Sequence[Any]) -> Sequence[Array]:
        """The outputs of a hand-written kernel, which asks for its launches.

        `call(planner, *arrays)` returns an array or several, or None for unsupported arrays. It asks `known` for values that it reads.
        """
        made = call(self, *map(self.in_memory, inputs))
        if made is None:
            raise NotPlannableError("sizes that the kernel does not take")
        outputs = made if isinstance(made, tuple) else (made,)
        if any(self.memory_of(x) is None for x in outputs):
            raise NotPlannableError("an array that NumPy has copied")
        return outputs

    # --- launches --------------------------------------------------------------------------------------------------

    def _at(self, x: Array) -> tuple[Memory, int] | int:
        """Where a tensor is that the next launch uses, as a word of its record."""
        memory = self.memory_of(x)
        if memory is None:
            raise NotPlannableError("an array that NumPy has copied" if x.size else "a tensor without elements")
        memory.last = self.launches
        if memory.first < 0:
            memory.first = self.launches
        begin = launches.begin_of(x)
        return begin if memory.kind == "fixed" else (memory, begin - memory.begin)

    def share(self, function: Any, arguments: Sequence[Any], length: int, parts: int = 1, threads: int = 1) -> None:
        """Have a compiled `function(*arguments, lo, hi)` called for all parts of `0..length`, on up to `threads` threads."""
        threads = min(threads, parts)
        self.words += launches.record(function, arguments, self._at, length, threads, parts)
        self.threads = max(self.threads, threads)
        self.launches += 1

    def clear(self, x: Array) -> None:
        """Fill a contiguous tensor with zeros."""
        self.share(None if self.is_dry else launches.loops()["clear"], (_bytes(x),), x.nbytes)

    def check(self, x: Array, limit: int, least: int = 0) -> None:
        """Fail the run unless all numbers of a contiguous tensor are at least `least`, and below a limit."""
        self.share(self.compiled(check_source(x.itemsize)), (x, least, limit), x.size)

    def copy(self, x: Array, out: Array) -> None:
        """Copy a tensor in memory, also a strided one."""
        if x.flags.c_contiguous and out.flags.c_contiguous:
            x, out = _bytes(x), _bytes(out)
        sizes, jumps, out_jumps = joined_axes(x, out)
        self.share(self.compiled(copy_source(x.itemsize)), (x, out, sizes, jumps, out_jumps), sizes[0])


def stand_in(dims: Sequence[int | None] | None, dtype: np.dtype[Any]) -> Array:
    """A placeholder: a large one has addresses, but no memory. NotPlannableError: a size is not known."""
    if dims is None or None in dims or dtype.hasobject:
        raise NotPlannableError("a size is not known before the step, or elements are Python objects")
    shape = tuple([int(d or 0) for d in dims])
    size = math.prod(shape) * dtype.itemsize
    memory: Any = np.empty(size, np.uint8) if size < LARGE else mmap(-1, size)
    return np.ndarray(shape, dtype, memory)


def copy_source(itemsize: int) -> str:
    """The text of a kernel for strided copies of elements of `itemsize` bytes. NotPlannableError: there is none for that size."""
    if itemsize not in (1, 2, 4, 8):
        raise NotPlannableError(f"elements of {itemsize} bytes")
    return text_of("native/moves_source", {"copy": ("aa", (5, 5, 5))}, f"uint{8 * itemsize}")


def check_source(itemsize: int) -> str:
    """The text of a kernel that checks integers of `itemsize` bytes."""
    return text_of("native/moves_source", {"check": ("aii", ())}, f"int{8 * itemsize}")


def joined_axes(x: Array, out: Array) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The sizes and both strides along five axes, with adjacent axes merged where possible."""
    size = x.itemsize
    axes: list[list[int]] = []
    for n, a, b in zip(x.shape, x.strides, out.strides, strict=True):
        if n == 1:
            continue
        if a % size or b % size:
            raise NotPlannableError("a view of parts of elements")
        a, b = a // size, b // size
        if axes and axes[-1][1] == n * a and axes[-1][2] == n * b:
            axes[-1] = [axes[-1][0] * n, a, b]
        else:
            axes.append([n, a, b])
    if len(axes) > MOST_DIMENSIONS:
        raise NotPlannableError("a view of many dimensions")
    axes[-1:-1] = [[1, 0, 0]] * (MOST_DIMENSIONS - len(axes))  # before the last, whose loop is the innermost
    sizes, jumps, out_jumps = (tuple(axis[i] for axis in axes) for i in range(3))
    return sizes, jumps, out_jumps


def _bytes(x: Array) -> Array:
    """The bytes of a contiguous tensor."""
    return x.reshape(-1).view(np.uint8)
