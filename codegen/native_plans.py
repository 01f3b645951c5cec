"""Plans of native stretches: what a run of launches is for one set of shapes, as a table that is run without Python between them.

A plan is made by a `Planner`. It goes through the calls once, with stand-ins for all tensors: what comes in, arrays that nobody
fills for what is made. Each kernel puts its launches into the plan, and says what it makes. Views (a reshape, a transposition, a
slice) are made of the stand-ins by the ops' own references, so their address tells where they begin. What depends on
shapes alone is computed at once, and known from then on.

Then all places are known but for where the arrays of a run begin: what comes in, what leaves (arrays of their own, since others will
hold them), and the *arena*, one piece of memory for everything else (`codegen/memory.py`: two that are needed at the same time do
not overlap, others share). A kernel may write where its input was if that is needed no more.

A kernel that has work for several threads is launched by the plan, too, but between two native parts, by those who share work
(`codegen/threads.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, TypeAlias

import numpy as np

from ..graph.memory import is_shared, to_send
from . import native_calls
from .buffers import LARGE, buffers
from .copies import copy_source
from .kernel_cache import compiled
from .memory import Piece, places
from .threads import LINE, Ranges, share, share_units

Array: TypeAlias = np.ndarray[Any, Any]

LARGEST = (
    1 << 26
)  # bytes of an arena and of what leaves; where tensors are larger, what Python does between launches is no matter
KNOWN = 1 << 12  # bytes of what is known while a plan is made: shapes, and what is computed of them
MOST_DIMENSIONS = 5  # of what is copied along strides


class NotPlannableError(Exception):
    """These calls, with arrays of these shapes, must be run one by one."""


class NotCompiledError(Exception):
    """A kernel that is not compiled yet: its source text is the argument."""


@dataclass(eq=False, slots=True)
class Memory:
    """A piece of memory of a plan.

    Attributes:
        array: a stand-in for it. kind: whether it comes from outside, never changes, or is made.
        number: which of those that come from outside.
        first, last: the launches between which it is used. leaves: whether it is used afterwards, too. is_sent: by another task.
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
    """A tensor of a plan: an array that lies in a stand-in; or one that is known, and has no memory."""

    array: Any
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class At:
    """An address in a record: where a memory begins, and how many bytes behind that."""

    memory: Memory
    offset: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Records that one native call runs; or the one that threads share: by ranges, or by units of which counters tell."""

    first: int
    last: int
    ranges: Ranges = ()
    units: int = 0
    threads: int = 1
    counters: int = -1  # the word with their address


@dataclass(eq=False, slots=True)
class Planner:
    """Goes through calls, and writes their plan."""

    looked_at: dict[int, Array] = field(default_factory=dict)
    _words: list[Any] = field(default_factory=list)
    _parts: list[_Part] = field(default_factory=list)
    _launches: int = 0
    _memories: list[Memory] = field(default_factory=list)

    # --- tensors ---------------------------------------------------------------------------------------------------

    def given(self, number: int, array: Array) -> Value:
        """What comes from outside."""
        return Value(array, self._memory(array, "given", number))

    def made(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Value:
        """What a launch makes."""
        if 0 in shape:
            raise NotPlannableError("a tensor without elements")
        array = stand_in(shape, dtype)
        return Value(array, self._memory(array, "made"))

    def _memory(self, array: Array, kind: str, number: int = -1) -> Memory:
        if not array.flags.c_contiguous or not array.size or array.dtype.hasobject:
            raise NotPlannableError("an array that kernels do not take")
        self._memories.append(Memory(array, kind, number))
        return self._memories[-1]

    def known(self, value: Value) -> Any:
        """A value itself: of what comes from outside, that of this time, which is part of what the plan is for.

        Raises:
            NotPlannableError: it is made by a launch.
        """
        if value.memory is None:
            return value.array
        memory = value.memory
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
        self.put(value, out)
        return out

    @staticmethod
    def may_overwrite(value: Value) -> bool:
        """Whether what needs a value no more may be written where it is: it was made here, and fills its memory."""
        memory = value.memory
        return memory is not None and memory.kind == "made" and value.array.size == memory.array.size

    def view(self, array: Any, of: Value) -> Value | None:
        """What a reference made of a value without writing anything; None: it is in memory of its own."""
        if of.memory is None or not isinstance(array, np.ndarray) or not array.size or array.dtype != of.array.dtype:
            return None
        (low, high), (begin, end) = map(np.lib.array_utils.byte_bounds, (array, of.memory.array))
        return Value(array, of.memory) if begin <= low and high <= end else None

    # --- launches --------------------------------------------------------------------------------------------------

    def vector(self, value: Value, elements: int | None = None) -> list[Any]:
        """A tensor's memory as a kernel's argument; `elements`: not all of them, or more, as far as jumps lead."""
        count, size = value.array.size if elements is None else elements, value.array.itemsize
        words: list[Any] = list(native_calls.vector(count, size))
        words[native_calls.ADDRESS] = self.at(value)
        return words

    def at(self, value: Value) -> At:
        """Where a tensor begins."""
        assert value.memory is not None
        return At(value.memory, _address(value.array) - _address(value.memory.array))

    def launch(self, function: Any, words: Sequence[Any], ranges: Ranges, threads: int) -> None:
        """A kernel's launch for ranges of its work, the last two arguments."""
        at = self._record(native_calls.record(native_calls.address_of(function), [*words, *ranges[0]]))
        self._parts.append(_Part(at, len(self._words), ranges if len(ranges) > 1 else (), threads=threads))

    def launch_units(
        self, function: Any, before: Sequence[Any], behind: Sequence[Any], units: int, threads: int
    ) -> None:
        """A kernel's launch whose threads take units of work, as `share_units` does: `before` and `behind` the counters."""
        threads = max(1, min(threads, units))
        counters = self.made(((threads + 1) * LINE,), np.dtype(np.int64))
        if threads == 1:
            self.fill(counters, 0)
        at = self._record(
            native_calls.record(native_calls.address_of(function), [*before, *self.vector(counters), *behind, 0, units])
        )
        where = at + native_calls.HEAD + len(before) + native_calls.ADDRESS
        self._parts.append(_Part(at, len(self._words), (), units if threads > 1 else 0, threads, where))

    def fill(self, value: Value, number: int) -> None:
        """Fill a vector of int64."""
        self._plain([*native_calls.fill(value.array.size), number], [self.at(value)])

    def within(self, value: Value, limit: int) -> None:
        """Fail the run unless all numbers are from 0 to below a limit."""
        value = self.in_order(value)
        self._plain(native_calls.within(value.array.itemsize, value.array.size, limit), [self.at(value)])

    def put(self, value: Value, into: Value) -> None:
        """Copy a tensor; it may lie along strides."""
        value = self.in_memory(value)
        x, out = value.array, into.array
        if x.flags.c_contiguous and out.flags.c_contiguous:
            self._plain(native_calls.copy(x.nbytes), [self.at(into), self.at(value)])
            return
        sizes, jumps, out_jumps = _joined(x, out)
        try:
            function = _function(copy_source(x.itemsize))
        except ValueError as e:
            raise NotPlannableError(str(e)) from None
        words = [*self.vector(value, _span(sizes, jumps)), *self.vector(into, _span(sizes, out_jumps))]
        words += native_calls.flat((sizes, jumps, out_jumps))
        self.launch(function, words, ((0, sizes[0]),), 1)

    def _plain(self, words: list[int], addresses: Sequence[At]) -> None:
        self._words += words  # of which the first arguments are addresses
        first = len(self._words) - len(words)
        for i, at in enumerate(addresses):
            self._words[first + native_calls.HEAD + i] = at
        self._use(addresses)
        self._parts.append(_Part(first, len(self._words)))

    def _record(self, words: Sequence[Any]) -> int:
        self._use([w for w in words if type(w) is At])
        self._words += words
        return len(self._words) - len(words)

    def _use(self, addresses: Sequence[At]) -> None:
        for at in addresses:
            if at.memory.first < 0:
                at.memory.first = self._launches
            at.memory.last = self._launches
        self._launches += 1

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self, given: int, outputs: Sequence[Value], sent: Collection[int] = ()) -> Plan:
        """The plan of what has been launched, for so many arrays from outside; `sent`: which outputs go to other tasks."""
        for i, value in enumerate(outputs):
            if value.memory is not None and value.memory.kind == "made":
                value.memory.leaves = True
                value.memory.is_sent |= i in sent
        made = [m for m in self._memories if m.kind == "made" and m.first >= 0]
        leaving = [m for m in made if m.leaves]
        staying = [m for m in made if not m.leaves]
        offsets, size = places([Piece(m.array.nbytes, m.first, m.last) for m in staying])
        if size + sum(m.array.nbytes for m in leaving) > LARGEST:
            raise NotPlannableError("its tensors are large")
        count = given + len(leaving) + 1
        where = {id(m): (given + i, 0) for i, m in enumerate(leaving)}
        where |= {id(m): (count - 1, offset) for m, offset in zip(staying, offsets, strict=True)}
        where |= {id(m): (m.number, 0) for m in self._memories if m.kind == "given"}
        table, patches = [0] * count, []
        for word in self._words:
            if type(word) is At and word.memory.kind == "fixed":
                word = _address(word.memory.array) + word.offset
            elif type(word) is At:
                number, offset = where[id(word.memory)]
                patches.append((len(table), number, offset + word.offset))
                word = 0
            table.append(int(word))
        arrays: list[Array | None] = [None] * count
        for m in self._memories:
            if m.kind == "given":
                arrays[m.number] = m.array
        numbers = {id(m): i for i, m in enumerate(leaving)}
        return Plan(
            np.array(table, np.int64),
            native_calls.expected(arrays, patches),
            _shifted(self._parts, count),
            tuple((m.array.shape, m.array.dtype, m.is_sent) for m in leaving),
            size,
            tuple(_Output.of(v, numbers) for v in outputs),
            tuple(self.looked_at.items()),
            tuple(m.array for m in self._memories if m.kind == "fixed"),
            tuple(None if x is None else (x.shape, x.dtype) for x in arrays[:given]),
        )


def stand_in(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that nobody fills: of a large one there are addresses, but no memory."""
    size = math.prod(shape) * dtype.itemsize
    return np.empty(shape, dtype) if size < LARGE else np.frombuffer(mmap(-1, size), dtype).reshape(shape)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _function(text: str) -> Any:
    function = compiled(text)
    if function is None:
        raise NotCompiledError(text)
    return function


def _joined(x: Array, out: Array) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sizes and the jumps of both along five axes, of which neighbours have been joined where that can be."""
    size = x.itemsize
    axes: list[list[int]] = []
    for n, a, b in zip(x.shape, x.strides, out.strides, strict=True):
        if n == 1:
            continue
        if a % size or b % size or a < 0 or b < 0:
            raise NotPlannableError("a view that goes backwards")
        a, b = a // size, b // size
        if axes and axes[-1][1] == n * a and axes[-1][2] == n * b:
            axes[-1] = [axes[-1][0] * n, a, b]
        else:
            axes.append([n, a, b])
    if len(axes) > MOST_DIMENSIONS:
        raise NotPlannableError("a view of many dimensions")
    axes = [[1, 0, 0]] * (MOST_DIMENSIONS - len(axes)) + axes
    sizes, jumps, out_jumps = (tuple(axis[i] for axis in axes) for i in range(3))
    return sizes, jumps, out_jumps


def _span(sizes: Sequence[int], jumps: Sequence[int]) -> int:
    return 1 + sum((n - 1) * j for n, j in zip(sizes, jumps, strict=True))


def _shifted(parts: Sequence[_Part], by: int) -> tuple[_Part, ...]:
    """The parts with those joined that one native call can run, at their places in the table."""
    out: list[_Part] = []
    for p in parts:
        p = _Part(p.first + by, p.last + by, p.ranges, p.units, p.threads, p.counters + by)
        alone = p.ranges or p.units
        if out and not alone and not (out[-1].ranges or out[-1].units):
            out[-1] = _Part(out[-1].first, p.last)
        else:
            out.append(p)
    return tuple(out)


# --- running it ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Output:
    """Where an output is: (array, view): a number of what came in, or behind these of what was made; or it is known."""

    given: int = -1
    made: int = -1
    known: Any = None
    view: tuple[int, tuple[int, ...], tuple[int, ...] | None] | None = None  # offset, shape, strides: elements

    @classmethod
    def of(cls, value: Value, numbers: dict[int, int]) -> _Output:
        if value.memory is None:
            return cls(known=value.array)
        memory, x = value.memory, value.array
        view = None
        if x.shape != memory.array.shape or not x.flags.c_contiguous:
            size = x.itemsize
            offset = (_address(x) - _address(memory.array)) // size
            view = offset, x.shape, None if x.flags.c_contiguous else tuple(s // size for s in x.strides)
        if memory.kind == "fixed":
            return cls(known=x)
        return cls(memory.number, view=view) if memory.kind == "given" else cls(made=numbers[id(memory)], view=view)

    def take(self, arrays: Sequence[Array], made: Sequence[Array]) -> Any:
        if self.known is not None:
            return self.known.copy() if isinstance(self.known, np.ndarray) else self.known
        x = made[self.made] if self.given < 0 else arrays[self.given]
        if self.view is None:
            return x
        offset, shape, strides = self.view
        if strides is None:
            return x.reshape(-1)[offset : offset + math.prod(shape)].reshape(shape)
        jumps = tuple(s * x.itemsize for s in strides)
        return np.lib.stride_tricks.as_strided(x.reshape(-1)[offset:], shape, jumps, writeable=False)


class Plan:
    """A run of launches for arrays of certain shapes. Several threads may run it at once.

    Attributes:
        looked_at: (number, value) of what comes in whose value the plan is for.
        taken: shape and type of what comes in; None: it is not looked at.
        arena_bytes: how much memory a run needs beside what leaves it.
    """

    def __init__(
        self,
        table: Array,
        expected: Array,
        parts: tuple[_Part, ...],
        made: tuple[tuple[tuple[int, ...], np.dtype[Any], bool], ...],
        arena_bytes: int,
        outputs: tuple[_Output, ...],
        looked_at: tuple[tuple[int, Array], ...],
        held: tuple[Array, ...],
        taken: tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...],
    ) -> None:
        self.looked_at = tuple((i, value.tobytes()) for i, value in looked_at)
        self.taken = taken
        self.arena_bytes = arena_bytes
        self._table = table
        self._expected = expected
        self._at = _address(expected)
        parts = parts or (_Part(len(table), len(table)),)
        native = not (parts[0].ranges or parts[0].units)
        self._first, self._last = (parts[0].first, parts[0].last) if native else (parts[0].first,) * 2
        self._parts = parts[1:] if native else parts
        self._made = tuple((s, d, math.prod(s) * d.itemsize >= LARGE, sent) for s, d, sent in made)
        self._sent = tuple(i for i, (_, _, large, sent) in enumerate(self._made) if large and sent)
        self._outputs = outputs
        self._plain = all(o.made == i and o.view is None for i, o in enumerate(outputs)) and len(outputs) == len(made)
        self._held = held
        self._tables: list[tuple[Array, int]] = []  # that nobody runs now
        self._arena = (max(1, arena_bytes),), np.dtype(np.uint8), arena_bytes >= LARGE

    def run(self, inputs: tuple[Any, ...]) -> list[Any] | None:
        """Run it; what it gives. None: the arrays are not such as it was made for, or a kernel failed: nobody saw anything of it."""
        for i, value in self.looked_at:
            if inputs[i].tobytes() != value:
                return None
        made = [_memory(*x) for x in self._made]
        if self.launch((*inputs, *made, self.arena())):
            return None
        for i in self._sent:
            if is_shared(made[i]):
                made[i].flags.writeable = False
        return made if self._plain else [o.take(inputs, made) for o in self._outputs]

    def arena(self) -> Array:
        """Memory for what a run does not show to anybody."""
        return _memory(*self._arena)

    def launch(self, arrays: tuple[Any, ...]) -> int:
        """Run it on what comes in, what is made, and the arena; gives what `native_calls.begin` gives."""
        try:
            table, at = self._tables.pop()
        except IndexError:
            table = self._table.copy()
            at = _address(table)
        status = native_calls.begin(at, self._at, arrays, self._first, self._last)
        if not status and self._parts:
            status = self._others(table, at)
        self._tables.append((table, at))
        return status

    def _others(self, table: Array, at: int) -> int:
        """The parts behind the first native one."""
        for part in self._parts:
            if part.units:
                share_units(_Units(part, table), (), (), part.units, part.threads)
            elif part.ranges:
                share(_Ranges(part, table), (), part.ranges, part.threads)
            else:
                status = native_calls.run(at, part.first, part.last)
                if status:
                    return status
        return 0


def _memory(shape: tuple[int, ...], dtype: np.dtype[Any], large: bool, sent: bool = False) -> Array:
    if not large:
        return np.empty(shape, dtype)
    shared = to_send(shape, dtype) if sent else None
    return buffers.empty(shape, dtype) if shared is None else shared


class _Ranges:
    """A record as a function of ranges, for threads that share them.

    Each call has a record of its own: one that comes late must not find the table with what is run next.
    """

    def __init__(self, part: _Part, table: Array) -> None:
        self._record = table[part.first : part.last].copy()

    def __call__(self, lo: int, hi: int) -> None:
        mine = self._record.copy()
        mine[-2:] = lo, hi
        _run_alone(mine)


class _Units(_Ranges):
    """The same for threads that count their units. The counters are an array of its own: one that comes late still looks at them."""

    def __init__(self, part: _Part, table: Array) -> None:
        super().__init__(part, table)
        self._counters = part.counters - part.first

    def __call__(self, counters: Array, who: int, units: int) -> None:  # type: ignore[override]
        mine = self._record.copy()
        mine[self._counters] = _address(counters)
        mine[-2:] = who, units
        _run_alone(mine)


def _run_alone(record: Array) -> None:
    if native_calls.run(_address(record), 0, len(record)):
        raise MemoryError("a kernel found no memory for what it puts aside")
