"""Native plans: the launches of a region for one set of shapes, as a table that runs without Python in between.

All addresses are known up to where the arrays of a run begin: the inputs, the outputs (arrays of their own, since others will hold
them), and the *arena*, one piece of memory for everything else. `planner` makes plans.

A launch with work for several threads is part of the plan too, between two native parts. The threads of the worker pool
share it (`worker_pool`), which stay for the whole plan; while another plan holds these, `thread_pool` shares it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....graph.resources.buffer_pool import LARGE, buffers
from ....graph.resources.shared_storage import is_shared, to_send
from ..thread_pool import Ranges, share, share_units
from . import vm
from .worker_pool import WorkerPool, ranges_array, worker_pool

Array: TypeAlias = np.ndarray[Any, Any]


_NO_MEMORY = "a kernel found no memory for its scratch arrays"


@dataclass(frozen=True, slots=True)
class Part:
    """Records that one native call runs; or one record that threads share: by ranges, or by units taken from counters.

    `is_light`: only threads that stay together share it.
    """

    first: int
    last: int
    ranges: Ranges = ()
    units: int = 0
    threads: int = 1
    counters: int = -1  # the word with their address
    is_light: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """Where an output is: an input, an array that the plan made, or a view of one of them; or its value is known."""

    given: int = -1
    made: int = -1
    known: Any = None
    view: tuple[int, tuple[int, ...], tuple[int, ...] | None] | None = None  # offset, shape, strides: elements

    def take(self, arrays: Sequence[Array], made: Sequence[Array]) -> Any:
        """The output, given the inputs and the arrays that the plan made."""
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
        looked_at: (number, value) of each input for whose value the plan is specialized.
        taken: shape and type of each input; None: not checked.
        arena_bytes: the memory in bytes that a run needs besides its outputs.
    """

    def __init__(
        self,
        table: Array,
        expected: Array,
        parts: tuple[Part, ...],
        made: tuple[tuple[tuple[int, ...], np.dtype[Any], bool], ...],
        arena_bytes: int,
        outputs: tuple[Output, ...],
        looked_at: tuple[tuple[int, Array], ...],
        held: tuple[Array, ...],
        taken: tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...],
    ) -> None:
        self.looked_at = tuple((i, value.tobytes()) for i, value in looked_at)
        self.taken = taken
        self.arena_bytes = arena_bytes
        self._table = table
        self._expected = expected
        self._at = begin_of(expected)
        parts = parts or (Part(len(table), len(table)),)
        native = not (parts[0].ranges or parts[0].units)
        self._first, self._last = (parts[0].first, parts[0].last) if native else (parts[0].first,) * 2
        self._parts = parts[1:] if native else parts
        self._made = tuple((s, d, math.prod(s) * d.itemsize >= LARGE, sent) for s, d, sent in made)
        self._sent = tuple(i for i, (_, _, large, sent) in enumerate(self._made) if large and sent)
        self._outputs = outputs
        self._plain = all(o.made == i and o.view is None for i, o in enumerate(outputs)) and len(outputs) == len(made)
        self._held = held
        self._threads = max([p.threads for p in parts if p.ranges or p.units], default=1)
        self._ranges = {p.first: ranges_array(p.ranges) for p in self._parts if p.ranges}
        self._tables: list[tuple[Array, int]] = []  # copies that no thread runs now
        self._arena = (max(1, arena_bytes),), np.dtype(np.uint8), arena_bytes >= LARGE

    def run(self, inputs: tuple[Any, ...], goes_on: bool = False) -> list[Any] | None:
        """Run it and return its outputs. `goes_on`: as for `launch`.

        None: the arrays do not fit the plan, or a kernel failed. Then there is no visible effect.
        """
        for i, value in self.looked_at:
            if inputs[i].tobytes() != value:
                return None
        made = [_memory(*x) for x in self._made]
        if self.launch((*inputs, *made, self.arena()), goes_on):
            return None
        for i in self._sent:
            if is_shared(made[i]):
                made[i].flags.writeable = False
        return made if self._plain else [o.take(inputs, made) for o in self._outputs]

    def arena(self) -> Array:
        """Memory for the intermediate values of a run."""
        return _memory(*self._arena)

    def launch(self, arrays: tuple[Any, ...], goes_on: bool = False) -> int:
        """Run it on the inputs, the output arrays and the arena. Returns the status of `native_calls.begin`.

        `goes_on`: another plan with work for several threads follows immediately.
        """
        try:
            table, at = self._tables.pop()
        except IndexError:
            table = self._table.copy()
            at = begin_of(table)
        together = worker_pool() if self._threads > 1 else None
        if together is not None and not together.begin(self._threads):
            together = None
        try:
            status = vm.begin(at, self._at, arrays, self._first, self._last)
            if not status and self._parts:
                status = self._others(table, at, together)
        finally:
            if together is not None:
                together.end(goes_on)
        self._tables.append((table, at))
        return status

    def _others(self, table: Array, at: int, together: WorkerPool | None) -> int:
        """The parts after the first native one."""
        for part in self._parts:
            is_shared = part.units or part.ranges
            if is_shared and together is not None and self._by_pool(part, at, together):
                continue
            if is_shared and not part.is_light:
                _by_others(part, table)
            else:
                status = vm.run(at, part.first, part.last)
                if status:
                    return status
        return 0

    def _by_pool(self, part: Part, at: int, together: WorkerPool) -> bool:
        """Have a part done by the worker pool; False: it has no time."""
        record, words = at + vm.WORD * part.first, part.last - part.first
        if part.units:
            status = together.launch_units(record, words, part.counters - part.first, part.units, part.threads)
        else:
            status = together.launch_ranges(record, words, self._ranges[part.first], part.threads)
        if status:
            raise MemoryError(_NO_MEMORY)
        return status is not None


def _by_others(part: Part, table: Array) -> None:
    """Share a part through `thread_pool`."""
    if part.units:
        share_units(_Units(part, table), (), (), part.units, part.threads)
    else:
        share(_Ranges(part, table), (), part.ranges, part.threads)


def _memory(shape: tuple[int, ...], dtype: np.dtype[Any], large: bool, sent: bool = False) -> Array:
    if not large:
        return np.empty(shape, dtype)
    shared = to_send(shape, dtype) if sent else None
    return buffers.empty(shape, dtype) if shared is None else shared


class _Ranges:
    """A record as a function of ranges, for threads that share them.

    Each call has its own copy of the record: a late thread must not read the table of the next run.
    """

    def __init__(self, part: Part, table: Array) -> None:
        self._record = table[part.first : part.last].copy()

    def __call__(self, lo: int, hi: int) -> None:
        mine = self._record.copy()
        mine[-2:] = lo, hi
        _run_alone(mine)


class _Units(_Ranges):
    """The same for threads that count their units. The counters are a separate array: a late thread still reads them."""

    def __init__(self, part: Part, table: Array) -> None:
        super().__init__(part, table)
        self._counters = part.counters - part.first

    def __call__(self, counters: Array, thread: int, units: int) -> None:  # type: ignore[override]
        mine = self._record.copy()
        mine[self._counters] = begin_of(counters)
        mine[-2:] = thread, units
        _run_alone(mine)


def _run_alone(record: Array) -> None:
    if vm.run(begin_of(record), 0, len(record)):
        raise MemoryError(_NO_MEMORY)


def begin_of(array: Array) -> int:
    """Where an array's memory begins."""
    address: int = array.__array_interface__["data"][0]
    return address
