"""Launch tables: calls of compiled kernels, which compiled loops (`launch_source`) run without Python in between; and the helper threads.

A kernel that Numba has compiled is a function with an address. A wrapper through which Python could call it would inspect each argument,
which takes microseconds, longer than a small kernel; so kernels have none (`vecmath.launched`). A table is a sequence of records:

    [words of the record, kernel, threads, parts, length, arguments ...]

An argument is an integer, or the address and the number of elements of a vector. A kernel reads its arguments from the record: it is called
with their address and a range. A record for more than one thread is shared with helper threads: its `length` is divided into parts, and
each thread takes the next one when it is free. Alone, a thread has all of it.

Waking a thread takes about 70 microseconds, of which the caller spends 15. So a helper that has worked looks for the next launch, on
shared memory and without Python, for some time, and a caller wakes only those that it needs besides. In a task of a cluster a helper is
less patient: others may need the core (docs/concepts/kernels-cpu.md has the numbers). One thread at a time runs a table with helpers;
another one does its work alone.

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
from ..emit.instantiate import text_with
from ..jit import compile_now
from ..work_parts import LINE

KERNEL, THREADS, PARTS, LENGTH, HEAD = range(1, 6)  # words of a record: see above; HEAD: where its arguments begin

# Looks of a caller, some 400 microseconds, after which it sleeps while helpers finish: a unit of work of theirs takes less. A sleep takes
# 120 microseconds. Meanwhile the helpers fall asleep, too, and come late to the next launch, for which the caller would sleep again.
WAITS = 1 << 18

# Words of the memory of a worker pool: see `launch_source`. Each has a line of the cache.
HELPERS, SLEEPING, BYTE, READ_END, WRITE_END, LOOKS, ORDER, INSIDE, TAKEN, FAILED, LAST, RECORD, POOL_WORDS = (
    LINE * i for i in range(13)
)

PATIENCE = 200  # looks for the next launch, some 50 microseconds, before a helper sleeps ...
TASK_PATIENCE = 12  # ... and in a task of a cluster
MOST_THREADS = 64
_NONE = np.zeros(0, np.int64)


def begin_of(array: Array) -> int:
    """Where an array's memory begins."""
    address: int = array.__array_interface__["data"][0]
    return address


def record(
    function: Any,
    arguments: Sequence[Any],
    address: Callable[[Array], Any],
    length: int,
    threads: int = 1,
    parts: int = 1,
) -> list[Any]:
    """The words of a record.

    Args:
        function: a compiled kernel; None: it is not compiled, and the record will not run.
        arguments: vectors, integers and tuples of integers. address: gives the word for a vector.
        length: of the range. threads: how many may share it. parts: into how many ranges they divide it.
    """
    flat = [y for x in arguments for y in (x if isinstance(x, tuple) else (x,))]
    words = [word for x in flat for word in ((address(x), x.size) if isinstance(x, np.ndarray) else (x,))]
    return [HEAD + len(words), 0 if function is None else _code_of(function), threads, parts, length, *words]


def _code_of(function: Any) -> int:
    """Where the machine code of a compiled kernel begins."""
    (result,) = function.overloads.values()
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


_LOOPS = ("run", "serve", "clear")


@cache
def loops_text() -> str:
    """The source text of the loops of `launch_source`."""
    return text_with("native/launch_source", _LOOPS)


@cache
def loops() -> dict[str, Callable[..., Any]]:
    """The compiled loops of `launch_source`, by name."""
    functions: Any = compile_now(loops_text())
    return dict(zip(_LOOPS, functions, strict=True))


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
        self.memory = np.zeros(POOL_WORDS, np.int64)
        self.memory[READ_END], self.memory[WRITE_END] = os.pipe()
        self.memory[HELPERS] = self.threads - 1
        self.memory[LOOKS] = TASK_PATIENCE if has_neighbours() else PATIENCE
        serve = loops()["serve"]
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


def run(table: Array, threads: int = 1, arrays: tuple[Any, ...] = (), patches: Array = _NONE) -> bool:
    """Run a launch table.

    Args:
        table: the records. threads: the most that any of them is for, the caller among them.
        arrays, patches: whose addresses are written into the table before, and where: see `launch_source.run`.

    Returns:
        Whether it is done. Else a kernel has failed; or one of `arrays` is no array, and nothing has run.
    """
    helpers = pool(os.getpid()) if threads > 1 else None
    if helpers is None or not helpers.lock.acquire(blocking=False):
        return not loops()["run"](id(arrays), patches, table, _NONE)
    try:
        helpers.leave_core_of_caller()
        return not loops()["run"](id(arrays), patches, table, helpers.memory)
    finally:
        helpers.lock.release()


def share(function: Callable[..., Any], arguments: Sequence[Any], length: int, parts: int, threads: int) -> None:
    """Call a compiled `function(*arguments, lo, hi)` for all parts of `0..length`, on up to `threads` threads.

    For kernels whose sizes are seldom the same twice; others run by plans. Arrays are contiguous vectors.
    """
    assert all(x.flags.c_contiguous for x in arguments if isinstance(x, np.ndarray))
    words = record(function, arguments, begin_of, length, threads, parts)
    if not run(np.array(words, np.int64), min(threads, parts)):
        raise MemoryError("a kernel found no memory for its scratch arrays")
