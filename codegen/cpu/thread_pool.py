"""The threads that share a kernel's work, and work sharing whose helpers may come late or not at all.

Work is split into more ranges than there are threads, and each thread takes the next one when it is free. The caller works too: on a
machine whose other cores are busy it does everything itself. It never waits for a helper that has not started. No thread spins here.
`native.worker_pool` runs on the same threads: it keeps them between the launches of one plan.

A late helper finds no work and no arrays: finished work must not hold memory that has been reused.

Helpers are kept off the core of the caller. A scheduler that saves energy, or that expects a thread to sleep once it has woken another,
puts the woken thread on the same core and moves it only after it has waited there; by then the kernel is over. On such a
machine (a virtual one with two cores), 0.4 ms of work took 0.4 ms on two threads. With helpers on other cores it takes 0.23 ms.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..target import cores

PARALLEL_NS = 300_000.0  # work that takes longer is shared: handing some to a thread costs about 50,000 ns
TOGETHER_NS = 40_000.0  # the same where threads stay together (`native.worker_pool`), which costs some 3,000 ns
LINE = 8  # counters of units in a line of the cache; each has one
FINISHED = 0  # index of the counter of finished units; after it, one counter per thread of the units taken from its part
_PER_THREAD = 4  # ranges; more even the load out better, and cost a call each

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"


def ranges_of(length: int, nanoseconds: float, threads: int, least: int = 1, worth_help: float = PARALLEL_NS) -> Ranges:
    """Ranges that make up `0..length`, for work that one thread would need so long for.

    Args:
        length: of what is cut. nanoseconds: that one thread needs.
        threads: that share them.
        least: how long a range should be, as long as there is one for each thread.
        worth_help: nanoseconds of work that is shared.
    """
    if threads <= 1 or nanoseconds < worth_help:
        return ((0, length),)
    parts = max(1, min(_PER_THREAD * threads, length, max(threads, length // least), int(2 * nanoseconds / worth_help)))
    if threads < parts < 2 * threads:
        parts = threads  # else one of them would have two, and others wait
    edges = [length * i // parts for i in range(parts + 1)]
    return tuple(zip(edges[:-1], edges[1:], strict=True))


class _Work:
    """The ranges of one call. A thread that is free takes the next one."""

    __slots__ = ("_arguments", "_closed", "_error", "_function", "_inside", "_lock", "_ranges", "_empty")

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any], ranges: Ranges) -> None:
        self._function: Callable[..., Any] | None = function
        self._arguments: Sequence[Any] = arguments
        self._ranges = deque(ranges)
        self._lock = threading.Lock()
        self._inside = 0  # helpers
        self._closed = False  # to helpers that have not started
        self._empty: threading.Lock | None = None  # what the caller waits for
        self._error: BaseException | None = None

    def take(self, is_helper: bool = False) -> None:
        """Do ranges until none is left.

        The caller takes the first ones, and helpers the last: what one core wrote in the kernel before is still in its caches.
        """
        function, arguments, ranges = self._function, self._arguments, self._ranges
        if function is None:
            return  # the work was over before this helper had a look at it
        following = ranges.pop if is_helper else ranges.popleft
        while ranges:
            try:
                mine = following()
            except IndexError:  # another one has just taken it
                return
            function(*arguments, *mine)

    def help(self) -> None:
        """What a helper does."""
        with self._lock:
            if self._closed:
                return
            self._inside += 1
        try:
            self.take(is_helper=True)
        except BaseException as e:
            self._error = e
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._empty is not None:
                self._empty.release()

    def close(self, is_finished: bool = False) -> None:
        """Let no more helpers start, wait for those that have started, and drop the arrays. Raises a helper's error.

        `is_finished`: all work is done, though some helpers may not have returned.
        """
        with self._lock:
            self._closed = True
            if self._inside and not is_finished:
                self._empty = threading.Lock()
                self._empty.acquire()
        if self._empty is not None:
            self._empty.acquire()
        self._function, self._arguments = None, ()
        if self._error is not None:
            raise self._error


def share(function: Callable[..., Any], arguments: Sequence[Any], ranges: Ranges, threads: int) -> None:
    """Call `function(*arguments, lo, hi)` for all ranges, on up to `threads` threads. It must release the GIL."""
    if len(ranges) == 1:
        function(*arguments, *ranges[0])
        return
    most = min(threads, len(ranges)) - 1
    work = _Work(function, arguments, ranges)
    if most > 0:
        all_helpers = helpers(os.getpid())
        all_helpers.leave_core_of_caller()
        for _ in range(most):
            all_helpers.put(work)
    try:
        work.take()
    finally:
        work.close()


def share_units(
    function: Callable[..., Any], arrays: Sequence[Any], numbers: Sequence[Any], units: int, threads: int
) -> None:
    """Call `function(*arrays, counters, *numbers, thread, units)` on up to `threads` threads. Each takes units until none is left.

    `thread` is the number of the thread; the caller's is 0. The threads count taken and finished units in `counters`, without the
    GIL. So units can be small, and the caller continues as soon as the last one is finished, without a sleep and a wake-up.
    """
    threads = max(1, min(threads, units))
    counters = np.zeros((threads + 1) * LINE, np.int64)
    arguments = (*arrays, counters, *numbers)
    if threads <= 1:
        function(*arguments, 0, units)
        return
    work = _Work(function, arguments, tuple((thread, units) for thread in range(1, threads)))
    all_helpers = helpers(os.getpid())
    all_helpers.leave_core_of_caller()
    for _ in range(threads - 1):
        all_helpers.put(work)
    try:
        function(*arguments, 0, units)
    finally:
        work.close(counters[FINISHED] >= units)


class Helpful(Protocol):
    """What helpers are given to do."""

    def help(self) -> None:
        """Do a part of it."""


class _Helpers:
    """A process's helpers, and where they take their work from.

    Attributes:
        put: hand work to the next free helper.
    """

    def __init__(self) -> None:
        todo: queue.SimpleQueue[Helpful] = queue.SimpleQueue()
        self.put = todo.put
        self._threads = [
            threading.Thread(target=_help_forever, args=(todo,), name=f"dovetail-kernel-{i}", daemon=True)
            for i in range(cores())
        ]
        for thread in self._threads:
            thread.start()
        self._core_of = _core_of_caller()
        self._allowed = os.sched_getaffinity(0) if self._core_of is not None else set()
        self._left = -1  # the core that they are kept away from

    def __len__(self) -> int:
        return len(self._threads)

    def leave_core_of_caller(self) -> None:
        """Let helpers run anywhere but on the core of this thread."""
        if self._core_of is None or (core := self._core_of()) == self._left:
            return
        self._left = core
        elsewhere = self._allowed - {core}
        for thread in self._threads:
            try:
                if elsewhere and thread.native_id is not None:
                    os.sched_setaffinity(thread.native_id, elsewhere)
            except OSError:  # these cores have been taken away from the process: the scheduler knows better
                self._core_of = None


def _core_of_caller() -> Callable[[], int] | None:
    """A function that returns the number of the core that calls it, where the system has one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        tell = ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return None
    tell.argtypes, tell.restype = (), ctypes.c_int
    return tell


@cache
def helpers(process: int) -> _Helpers:
    """Those of this process; a forked process has its own."""
    return _Helpers()


def _help_forever(todo: queue.SimpleQueue[Helpful]) -> None:
    while True:
        todo.get().help()
