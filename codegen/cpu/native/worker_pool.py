"""The helper threads of a process, and what runs tables with their help.

Waking a thread takes about 70 microseconds, of which the caller spends 15. So a helper that has worked looks for the next launch, on
shared memory and without Python (`launch_source`), for some time, and a caller wakes only those that it needs besides. In a task of a
cluster a helper is less patient: others may need the core (docs/concepts/kernels-cpu.md has the numbers). One thread at a time runs a
table with helpers; another one does its work alone.

Helpers are kept off the core of the caller. Some schedulers put a woken thread on the core of the one that has woken it, and leave it there
for some 20 ms: after a pause, the first convolutions of a program would take up to twice as long.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ....graph.core.dtypes import Array
from ...options import has_neighbours
from ...target import cores
from . import table as launches

PATIENCE = 200  # looks for the next launch, some 50 microseconds, before a helper sleeps ...
TASK_PATIENCE = 12  # ... and in a task of a cluster
MOST_THREADS = 64
_NO_POOL = np.zeros(0, np.int64)


class WorkerPool:
    """Helper threads, and the memory that they share with callers.

    Attributes:
        memory: see `launch_source`.
        threads: the most that may share a launch, the caller among them.
        lock: held by the caller that they help.
    """

    def __init__(self) -> None:
        self.threads = max(2, min(cores(), MOST_THREADS))
        self.lock = threading.Lock()
        self.memory = np.zeros(launches.POOL_WORDS, np.int64)
        self.memory[launches.READ_END], self.memory[launches.WRITE_END] = os.pipe()
        self.memory[launches.HELPERS] = self.threads - 1
        self.memory[launches.LOOKS] = TASK_PATIENCE if has_neighbours() else PATIENCE
        serve = launches.loops()["serve"]
        self._helpers = [
            threading.Thread(target=serve, args=(self.memory,), name=f"dovetail-kernel-{i}", daemon=True)
            for i in range(self.threads - 1)
        ]
        for helper in self._helpers:
            helper.start()
        has_cores = hasattr(os, "sched_setaffinity")
        self._core_of: Callable[[], int] | None = (
            getattr(ctypes.CDLL(None), "sched_getcpu", None) if has_cores else None
        )
        self._allowed = os.sched_getaffinity(0) if has_cores else set()
        self._left = -1  # the core that helpers are kept away from

    def leave_core_of_caller(self) -> None:
        """Let helpers run anywhere but on the core of this thread. The lock is held."""
        if self._core_of is None or (core := self._core_of()) == self._left:
            return
        self._left = core
        elsewhere = self._allowed - {core}
        for helper in self._helpers:
            try:
                if elsewhere and helper.native_id is not None:
                    os.sched_setaffinity(helper.native_id, elsewhere)
            except OSError:  # these cores have been taken away from the process: the scheduler knows better
                self._core_of = None


@cache
def pool(process: int) -> WorkerPool:
    """That of this process; a forked process has its own."""
    return WorkerPool()


def run(table: Array, threads: int = 1) -> bool:
    """Run a launch table. False: a kernel failed. `threads`: the most that any of its records is for, the caller among them."""
    helpers = pool(os.getpid()) if threads > 1 else None
    if helpers is None or not helpers.lock.acquire(blocking=False):
        return not launches.loops()["run"](table, _NO_POOL)
    try:
        helpers.leave_core_of_caller()
        return not launches.loops()["run"](table, helpers.memory)
    finally:
        helpers.lock.release()


def share(function: Callable[..., Any], arguments: Sequence[Any], length: int, parts: int, threads: int) -> None:
    """Call a compiled `function(*arguments, lo, hi)` for all parts of `0..length`, on up to `threads` threads.

    For kernels whose sizes are seldom the same twice; others run by plans. Arrays are contiguous vectors.
    """
    assert all(x.flags.c_contiguous for x in arguments if isinstance(x, np.ndarray))
    record = launches.record(function, arguments, launches.begin_of, length, threads, parts)
    if not run(np.array(record, np.int64), min(threads, parts)):
        raise MemoryError("a kernel found no memory for its scratch arrays")
