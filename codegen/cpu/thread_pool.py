"""The helper threads of a process, and how work is divided into ranges for them. `native.worker_pool` has them share it.

Work is split into more ranges than there are threads, and each thread takes the next one when it is free.

Helpers are kept off the core of the caller. A scheduler that saves energy, or that expects a thread to sleep once it has woken another,
puts the woken thread on the same core and moves it only after it has waited there; by then the kernel is over. On such a
machine (a virtual one with two cores), 0.4 ms of work took 0.4 ms on two threads. With helpers on other cores it takes 0.23 ms.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Callable
from functools import cache
from typing import Protocol, TypeAlias

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
