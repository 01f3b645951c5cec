"""The planner: makes native plans from the calls of kernels (`plan` runs them).

A `Planner` traces the calls once, with placeholder arrays for all tensors: the inputs, and arrays without contents for the outputs of
launches. Each kernel records its launches and returns its outputs. The ops' own references make views (reshape, transpose, slice) of
the placeholders, so their addresses give the offsets. Values that depend only on shapes are computed at once and are constants.

Tensors that neither enter nor leave share the arena (`memory.plan`): two that are needed at the same time do not overlap, others
may.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, TypeAlias

import numpy as np

from ....graph.resources.buffer_pool import LARGE
from ...memory.plan import Piece, places
from ..emit.instantiate import text_of
from ..jit import compiled
from ..work_ranges import LINE, PARALLEL_NS, TOGETHER_NS, Ranges, ranges_of
from . import table as launches
from .plan import Output, Plan, begin_of
from .worker_pool import most_threads

Array: TypeAlias = np.ndarray[Any, Any]

KNOWN = 1 << 12  # bytes of what is known while a plan is made: shapes, and what is computed of them
MOST_DIMENSIONS = 5  # of what is copied along strides
LEAST = -(1 << 63)  # of all int64
NS_PER_COPIED = 0.1  # one core, for a byte that is copied along strides


class NotPlannableError(Exception):
    """These calls, with arrays of these shapes, must be run one by one."""


class NotCompiledError(Exception):
    """A kernel that is not compiled yet: its source text is the argument."""


@dataclass(eq=False, slots=True)
class Memory:
    """A piece of memory of a plan.

    Attributes:
        array: its placeholder. kind: whether it is an input, a constant, or made by a launch.
        number: its number among the inputs.
        first, last: its live range, in launches. leaves: whether it is live after the plan. is_sent: whether another task uses it.
    """

    array: Array
    kind: str
    number: int = -1
    first: int = -1
    last: int = -1
    leaves: bool = False
    is_sent: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of a plan: a view of a placeholder; or a known value, which has no memory."""

    array: Any
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """An address in a record: the start of a memory, and an offset in bytes."""

    memory: Memory
    offset: int


@dataclass(frozen=True, slots=True)
class _Record:
    """A launch: a function (None: that of the table itself), its arguments, and how threads share it: by ranges, or units.

    `counters`: the argument with the counters' address. `is_light`: it is only shared where others are, since that is not worth waking
    threads.
    """

    function: Any
    arguments: Sequence[Any]
    threads: int = 1
    ranges: Ranges = ()
    units: int = 0
    counters: int = 0
    is_light: bool = False


@dataclass(eq=False, slots=True)
class Planner:
    """Goes through calls, and writes their plan.

    `is_dry`: only memory is laid out, so no kernel needs to be compiled, and the inputs have no values.
    """

    is_dry: bool = False
    looked_at: dict[int, Array] = field(default_factory=dict)
    _records: list[_Record] = field(default_factory=list)
    _launches: int = 0
    _memories: list[Memory] = field(default_factory=list)

    # --- tensors ---------------------------------------------------------------------------------------------------

    def given(self, number: int, array: Array) -> Value:
        """An input of the plan."""
        return Value(array, self._memory(array, "given", number))

    def made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Value:
        """An output of a launch."""
        if 0 in shape:
            raise NotPlannableError("a tensor without elements")
        array = stand_in(shape, dtype)
        return Value(array, self._memory(array, "made"))

    def _memory(self, array: Array, kind: str, number: int = -1) -> Memory:
        if array.dtype.hasobject or not is_dense(array):
            raise NotPlannableError("an array that kernels do not take")
        self._memories.append(Memory(array, kind, number))
        return self._memories[-1]

    def known(self, value: Value) -> Any:
        """The content of a tensor. Reading an input specializes the plan for its current value.

        Raises:
            NotPlannableError: it is made by a launch.
        """
        if value.memory is None:
            return value.array
        memory = value.memory
        if self.is_dry:
            raise NotPlannableError("what a kernel needs to know is not known before the step")
        if memory.kind != "given" or value.array is not memory.array or value.array.nbytes > KNOWN:
            raise NotPlannableError("a kernel needs to know a value beforehand that another one makes")
        self.looked_at[memory.number] = value.array.copy()
        return self.looked_at[memory.number]

    def in_memory(self, value: Value) -> Value:
        """The same value in memory, where kernels can read it."""
        if value.memory is not None:
            return value
        array = np.ascontiguousarray(value.array).reshape(np.shape(value.array))
        return Value(array, self._memory(array, "fixed"))

    def in_order(self, value: Value) -> Value:
        """The same value in contiguous memory."""
        value = self.in_memory(value)
        if value.array.flags.c_contiguous:
            return value
        out = self.made(value.array.shape, value.array.dtype)
        self.copy(value, out)
        return out

    def view(self, array: Any, of: Value) -> Value | None:
        """What a reference made of a value without writing anything; None: it is in memory of its own."""
        if of.memory is None or not isinstance(array, np.ndarray) or not array.size or array.dtype != of.array.dtype:
            return None
        (low, high), (begin, end) = map(np.lib.array_utils.byte_bounds, (array, of.memory.array))
        return Value(array, of.memory) if begin <= low and high <= end else None

    # --- functions -------------------------------------------------------------------------------------------------

    def compiled(self, text: str) -> Any:
        """The function of a source. NotCompiledError: it is not there yet."""
        function = compiled(text)
        if function is None and not self.is_dry:
            raise NotCompiledError(text)
        return function

    # --- launches --------------------------------------------------------------------------------------------------

    def vector(self, value: Value, elements: int | None = None) -> list[Any]:
        """A tensor's memory as a kernel's argument; `elements`: not all of them, or more, as far as jumps lead."""
        count, size = value.array.size if elements is None else elements, value.array.itemsize
        words: list[Any] = list(launches.vector(count, size))
        words[launches.ADDRESS] = self.at(value)
        return words

    def at(self, value: Value) -> Address:
        """Where a tensor begins."""
        assert value.memory is not None
        if not value.array.size:
            raise NotPlannableError("a tensor without elements")
        return Address(value.memory, begin_of(value.array) - begin_of(value.memory.array))

    def launch(self, function: Any, words: Sequence[Any], ranges: Ranges, threads: int, together: Ranges = ()) -> None:
        """A kernel's launch for ranges of its work, the last two arguments.

        `together`: those for threads that stay together, where there is one range for others.
        """
        is_light = len(ranges) == 1 and len(together) > 1
        whole = ranges[0][0], ranges[-1][1]
        ranges = together if is_light else ranges
        threads = min(threads, len(ranges), most_threads())
        self._record(function, [*words, *whole], threads=threads, ranges=ranges, is_light=is_light)

    def launch_units(
        self, function: Any, before: Sequence[Any], behind: Sequence[Any], units: int, threads: int
    ) -> None:
        """Launch a kernel whose threads take units of work (`share_units`). `before`, `behind`: arguments around the counters."""
        threads = max(1, min(threads, units, most_threads()))
        counters = self.made(((threads + 1) * LINE,), np.dtype(np.int64))
        self.fill(counters)
        words = [*before, *self.vector(counters), *behind, 0, units]
        self._record(function, words, threads=threads, units=units, counters=len(before) + launches.ADDRESS)

    def fill(self, value: Value, byte: int = 0) -> None:
        """Fill a contiguous tensor with a byte."""
        self._record(None, launches.assistance(launches.FILL, self.at(value), byte, value.array.nbytes))

    def check(self, value: Value, limit: int, least: int = 0) -> None:
        """Fail the run unless all numbers are at least `least`, and below a limit."""
        value = self.in_order(value)
        x = value.array
        self._record(None, launches.assistance(launches.CHECK, self.at(value), x.size, x.itemsize, least, limit))

    def copy(self, value: Value, into: Value, threads: int = 1) -> None:
        """Copy a tensor, also a strided one. `threads`: the most threads that may share it."""
        value = self.in_memory(value)
        x, out = value.array, into.array
        if x.flags.c_contiguous and out.flags.c_contiguous:
            function, length = None, x.nbytes
            words = launches.assistance(launches.COPY, self.at(into), self.at(value))[:-2]
        else:
            sizes, jumps, out_jumps = joined_axes(x, out)
            try:
                function, length = self.compiled(copy_source(x.itemsize)), sizes[0]
            except ValueError as e:
                raise NotPlannableError(str(e)) from None
            words = [*self.vector(value, _span(sizes, jumps)), *self.vector(into, _span(sizes, out_jumps))]
            words += launches.flat((sizes, jumps, out_jumps))
        time = x.nbytes * NS_PER_COPIED
        ranges, together = (ranges_of(length, time, threads, 1, worth) for worth in (PARALLEL_NS, TOGETHER_NS))
        self.launch(function, words, ranges, threads, together)

    def _record(self, function: Any, arguments: Sequence[Any], **named: Any) -> None:
        """Add a launch: the fields of a `_Record`."""
        if len(arguments) > launches.MOST_ARGUMENTS:
            named["threads"] = 1
        self._use([w for w in arguments if type(w) is Address])
        self._records.append(_Record(function, arguments, **named))

    def _use(self, addresses: Sequence[Address]) -> None:
        for at in addresses:
            if at.memory.first < 0:
                at.memory.first = self._launches
            at.memory.last = self._launches
        self._launches += 1

    # --- the end ---------------------------------------------------------------------------------------------------

    def arena_bytes(self, outputs: Sequence[Value], largest: int | None = None) -> int:
        """The size of the arena of the recorded launches; `largest`: as for `finish`."""
        return self._laid_out(outputs, (), largest)[-1]

    def finish(
        self, given: int, outputs: Sequence[Value], sent: Collection[int] = (), largest: int | None = None
    ) -> Plan:
        """The plan of the recorded launches, with `given` inputs.

        `sent`: the outputs that go to other tasks. `largest`: the most bytes of the arena and of what leaves, if there is a limit.
        """
        leaving, staying, offsets, size = self._laid_out(outputs, sent, largest)
        assist = launches.loops()["assist"]
        count = given + len(leaving) + 1
        where = {id(m): (given + i, 0) for i, m in enumerate(leaving)}
        where |= {id(m): (count - 1, offset) for m, offset in zip(staying, offsets, strict=True)}
        where |= {id(m): (m.number, 0) for m in self._memories if m.kind == "given"}
        is_shared = any(r.threads > 1 and not r.is_light for r in self._records)
        held = [m.array for m in self._memories if m.kind == "fixed"]
        table: list[int] = []
        patches: list[tuple[int, int, int]] = []
        for r in self._records:
            threads = r.threads if is_shared or not r.is_light else 1
            ranges = np.array(r.ranges, np.int64)
            held.append(ranges)
            sharing = threads, len(r.ranges) or r.units, begin_of(ranges) if r.ranges else 0, launches.HEAD + r.counters
            table += launches.head(r.function or assist, len(r.arguments), *sharing)
            for word in r.arguments:
                if type(word) is Address and word.memory.kind == "fixed":
                    word = begin_of(word.memory.array) + word.offset
                elif type(word) is Address:
                    number, offset = where[id(word.memory)]
                    patches.append((len(table), number, offset + word.offset))
                    word = 0
                table.append(int(word))
        arrays = {m.number: m.array for m in self._memories if m.kind == "given"}
        numbers = {id(m): i for i, m in enumerate(leaving)}
        return Plan(
            np.array(table, np.int64),
            patches,
            [arrays[i] for i in range(given)],
            tuple((m.array.shape, m.array.dtype, m.is_sent) for m in leaving),
            size,
            tuple(_output(v, numbers) for v in outputs),
            tuple(self.looked_at.items()),
            tuple(held),
            max((r.threads for r in self._records if is_shared), default=1),
        )

    def _laid_out(
        self, outputs: Sequence[Value], sent: Collection[int], largest: int | None
    ) -> tuple[list[Memory], list[Memory], tuple[int, ...], int]:
        """(memories of the outputs, memories in the arena, their offsets in it, the size of the arena)."""
        for i, value in enumerate(outputs):
            if value.memory is not None and value.memory.kind == "made":
                value.memory.leaves = True
                value.memory.is_sent |= i in sent
        made = [m for m in self._memories if m.kind == "made" and m.first >= 0]
        leaving = [m for m in made if m.leaves]
        staying = [m for m in made if not m.leaves]
        offsets, size = places([Piece(m.array.nbytes, m.first, m.last) for m in staying])
        if largest is not None and size + sum(m.array.nbytes for m in leaving) > largest:
            raise NotPlannableError("its tensors are large")
        return leaving, staying, offsets, size


def stand_in(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Array:
    """An array that is never filled: a large one has addresses, but no memory. `strides`: of a dense array in another order."""
    size = math.prod(shape) * dtype.itemsize
    memory: Any = np.empty(size, np.uint8) if size < LARGE else mmap(-1, size)
    return np.ndarray(shape, dtype, memory, 0, strides)


def is_dense(x: Array) -> bool:
    """Whether an array fills its memory, with its axes in any order."""
    if x.flags.c_contiguous:
        return True
    expected = x.itemsize
    for stride, size in sorted((s, n) for n, s in zip(x.shape, x.strides, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def copy_source(itemsize: int) -> str:
    """The text of a kernel for strided copies of elements of `size` bytes. ValueError: there is none for that size."""
    if itemsize not in (1, 2, 4, 8):
        raise ValueError(f"elements of {itemsize} bytes")
    return text_of("native/copy_source", {"copy": ("rw", (5, 5, 5))}, f"uint{8 * itemsize}")


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
    axes[1:1] = [[1, 0, 0]] * (MOST_DIMENSIONS - len(axes))  # after the first, which threads share
    sizes, jumps, out_jumps = (tuple(axis[i] for axis in axes) for i in range(3))
    return sizes, jumps, out_jumps


def _span(sizes: Sequence[int], jumps: Sequence[int]) -> int:
    return 1 + sum((n - 1) * max(0, j) for n, j in zip(sizes, jumps, strict=True))


def _output(value: Value, numbers: dict[int, int]) -> Output:
    """Where an output is; `numbers`: of the memories that leave."""
    if value.memory is None:
        return Output(known=value.array)
    memory, x = value.memory, value.array
    view = None
    # Strides of axes of one element do not matter.
    is_ordered = x.flags.c_contiguous and memory.array.flags.c_contiguous
    if x.shape != memory.array.shape or x.strides != memory.array.strides and not is_ordered:
        size = x.itemsize
        offset = (begin_of(x) - begin_of(memory.array)) // size
        view = offset, x.shape, None if x.flags.c_contiguous else tuple(s // size for s in x.strides)
    if memory.kind == "fixed":
        return Output(known=x)
    return Output(memory.number, view=view) if memory.kind == "given" else Output(made=numbers[id(memory)], view=view)
