"""Threads that share the launches of a table: they go from one to the next without Python and without being woken.

Waking a thread takes about 70 microseconds, and both threads need the GIL for it. The launches of a table follow each other immediately.
So helper threads of the thread pool that have joined the first launch spin on shared memory (`launch_source`), which holds the number
and record of the next launch. They spin for `PATIENCE_NS`, yield the core now and then, and leave as soon as the table is done, unless
another one is known to follow.

A pool is such a piece of shared memory; each run takes one, so several threads may run tables at once. All use the same helpers. The
caller never waits for a helper that has not started: on a machine whose other cores are busy it does everything itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from ..thread_pool import LINE, Ranges, helpers
from . import table as launches

Array: TypeAlias = np.ndarray[Any, Any]

PATIENCE_NS = 50_000  # for which helpers look for the next launch


class WorkerPool:
    """What the threads of one run share.

    Attributes:
        threads: the most that may share a launch, the caller among them.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._memory = np.zeros(launches.MINE + threads * launches.LONGEST + (threads + 1) * LINE, np.int64)
        self._loops = launches.loops()

    def run(self, table: Array, threads: int, goes_on: bool) -> bool:
        """Run a table, of whose launches each is for at most `threads`. `goes_on`: another one follows at once. False: a kernel failed."""
        self._memory[launches.RUNNING] = 1
        at = 0
        while 0 <= at < len(table):  # it stops before a launch whose helpers have left
            self._call(threads)
            at = self._loops["run"](table, at, self._memory, _looks())
        self._memory[launches.RUNNING] = int(goes_on)
        return at >= 0

    def _call(self, threads: int) -> None:
        """Wake the helpers that are missing. A helper that arrives after the launch takes no work."""
        all_helpers = helpers(os.getpid())
        all_helpers.leave_core_of_caller()
        for _ in range(threads - 1 - int(self._memory[launches.MEMBERS])):
            self._loops["join"](self._memory)
            all_helpers.put(self)

    def help(self) -> None:
        """Run as a helper: take shares of launches until the table is done, or no launch has arrived for a while."""
        self._loops["serve"](self._memory, _looks())


def run(table: Array, threads: int = 1, goes_on: bool = False) -> bool:
    """Run a launch table. False: a kernel failed.

    Args:
        table: its records. threads: the most that any of them is for, the caller among them.
        goes_on: another table for several threads follows at once: helpers go on to spin for its launches.
    """
    if threads <= 1:
        return bool(launches.loops()["run"](table, 0, _NO_POOL, 0) >= 0)
    idle = _idle(os.getpid())
    try:
        pool = idle.pop()
    except IndexError:
        pool = WorkerPool(threads)
    if pool.threads < threads:
        pool = WorkerPool(threads)
    done = pool.run(table, threads, goes_on)
    idle.append(pool)
    return done


def share(function: Callable[..., Any], arguments: Sequence[Any], ranges: Ranges, threads: int) -> None:
    """Call a compiled `function(*arguments, lo, hi)` for all ranges, on up to `threads` threads."""
    threads = min(threads, len(ranges))
    if threads <= 1 or not launches.is_ready():
        function(*arguments, ranges[0][0], ranges[-1][1])
        return
    held = np.array(ranges, np.int64)
    words = [*_words(arguments, _dtypes(function)), ranges[0][0], ranges[-1][1]]
    _run([*launches.head(function, len(words), threads, len(ranges), held.ctypes.data), *words], threads)


def share_units(
    function: Callable[..., Any], arrays: Sequence[Any], numbers: Sequence[Any], units: int, threads: int
) -> None:
    """Call a compiled `function(*arrays, counters, *numbers, thread, units)` on up to `threads` threads.

    Each takes units until none is left. `thread` is the number of the thread; the caller's is 0. The threads count taken and finished
    units in `counters`, without the GIL. So units can be small, and the caller continues as soon as the last one is finished.
    """
    threads = max(1, min(threads, units))
    is_shared = threads > 1 and launches.is_ready()
    counters = np.zeros((threads + 1) * LINE, np.int64)
    if not is_shared:
        function(*arrays, counters, *numbers, 0, units)
        return
    dtypes = _dtypes(function)
    before = _words(arrays, dtypes)
    words = [*before, *_words((counters, *numbers), dtypes[len(arrays) :]), 0, units]
    counted = launches.HEAD + len(before) + launches.ADDRESS
    _run([*launches.head(function, len(words), threads, units, counted=counted), *words], threads)


@cache
def _dtypes(function: Any) -> tuple[Any, ...]:
    """The element type of each argument of a compiled function; None: no array."""
    from numba.np.numpy_support import as_dtype  # loads numba

    (kinds,) = function.overloads
    return tuple(as_dtype(kind.dtype) if hasattr(kind, "layout") else None for kind in kinds)


def _words(arguments: Sequence[Any], dtypes: Sequence[Any]) -> list[int]:
    words: list[int] = []
    for x, dtype in zip(arguments, dtypes, strict=False):
        if dtype is None:
            words += launches.flat([x])
        elif x.dtype == dtype and x.flags.c_contiguous:
            words += launches.vector(x.size, x.itemsize, x.ctypes.data)
        else:
            raise TypeError(
                f"a kernel takes a contiguous vector of {dtype}, and not {x.dtype} with strides {x.strides}"
            )
    return words


def _run(record: list[int], threads: int) -> None:
    if not run(np.array(record, np.int64), threads):
        raise MemoryError("a kernel found no memory for its scratch arrays")


_NO_POOL = np.zeros(1, np.int64)


@cache
def _idle(process: int) -> list[WorkerPool]:
    """The pools of this process that no thread uses now."""
    return []


@cache
def _looks() -> int:
    """How many looks take as long as helpers are patient, on this machine."""
    some, fastest, look = 2000, float("inf"), launches.loops()["look"]
    for _ in range(3):
        began = time.perf_counter_ns()
        look(some)
        fastest = min(fastest, time.perf_counter_ns() - began)
    return max(100, int(PATIENCE_NS * some / fastest))
