"""Helpers of kernels that wait awake for a moment, without Python.

A thread that is woken begins 50 to 100 microseconds later, and then needs Python's lock, as its caller does at the end. The kernels
of a step follow each other faster than that. So a helper that has done its part looks for the next job for a moment
(DOVETAIL_WAIT_US) before it goes to sleep; it looks, and works, in compiled code, and comes back to Python only to sleep. What it is
to do stands on a board: the address of a compiled kernel, and the words that it is called with.

That is for processes which have their cores for themselves. Tasks that share a machine wait asleep (`threads`); so do helpers
that another process's threads have pushed from their core, for a while.
"""

from __future__ import annotations

import queue
import resource
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .threads import FINISHED

# Places on the board. Those that change while helpers look have a line of the cache each.
OPEN = 0  # the number of the job that helpers may enter, or 0
INSIDE = 8  # helpers who are in a job, or looking whether it is still open
PLACES = 16  # how many more may enter
SLEPT = 24  # how often helpers have gone to sleep
FAILED = 32  # calls that ended with an error
# The job: its address, its words, its ranges or 0, and what is counted when all is finished.
FUNCTION, COUNT, RANGES, UNITS = 40, 41, 42, 43
_BOARD = 48
_MOST_RANGES, _MOST_WORDS = 1024, 256
_MEASURED = 2000  # looks, to see how long they take
# Jobs for which a helper hardly waits: for each time that it was pushed from its core, and at most.
_DEAR, _DEAREST = 16, 200
_NAP_S = 50e-6
_ENDING = 4  # times as long a caller looks whether helpers, who are at work, have finished: a nap would cost more
_ARRAY = 7  # words that an array is passed as


class NativeHelpers:
    """A process's helpers that wait awake.

    Args:
        drive, serve: the compiled functions of `helper_loops`.
        count: how many helpers. wait_us: how long each looks for the next job before it sleeps.

    Attributes:
        counters: with what kernels count units that are taken, and finished.
        threads: the helpers.
    """

    def __init__(self, drive: Callable[..., None], serve: Callable[..., None], count: int, wait_us: float) -> None:
        self._drive = drive
        self._board = np.zeros(_BOARD, np.int64)
        self._words = np.zeros(_MOST_WORDS, np.int64)
        self.counters = np.zeros(2 * FINISHED, np.int64)
        self._edges = np.zeros(2 * _MOST_RANGES, np.int64)
        self._shared = self._board, self._words, self.counters, self._edges
        self._own = np.zeros(_MOST_WORDS, np.int64)
        self._busy = threading.Lock()
        self._jobs = 0
        self._rung = 1  # and slept: now
        self._entries: dict[int, tuple[Any, _Entry | None]] = {}
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        began = time.perf_counter()
        serve(*self._shared, self._own, _MEASURED, 0)
        looks = max(1, int(_MEASURED * wait_us * 1e-6 / (time.perf_counter() - began)))
        self._looks = looks
        self._board[SLEPT] += count
        self.threads = [
            threading.Thread(target=self._help_forever, args=(serve, looks), name=f"dovetail-awake-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def share(
        self, function: Any, arguments: Sequence[Any], ranges: Sequence[tuple[int, int]], units: int, threads: int
    ) -> bool:
        """Call a kernel for all ranges on up to so many threads; False: nothing was done, since they are busy, or it cannot be.

        `ranges`: none where the kernel takes units itself, from `counters`, which is then among the arguments.
        """
        known = self._entries.get(id(function))
        if known is None:
            known = self._entries[id(function)] = function, _entry(function)
        entry = known[1]
        if entry is None or len(ranges) > _MOST_RANGES or not self._busy.acquire(blocking=False):
            return False
        try:
            board = self._board
            if board[INSIDE]:
                return False  # one is still about to leave
            words = entry.words(arguments)
            if words is None:
                return False
            self._words[: len(words)] = words
            if ranges:
                self._edges[: 2 * len(ranges)] = [edge for r in ranges for edge in r]
            self.counters[:] = 0
            helpers = min(threads, len(self.threads) + 1, units) - 1
            board[PLACES], board[FAILED] = helpers, 0
            board[FUNCTION : UNITS + 1] = entry.address, len(words), len(ranges), units
            self._jobs += 1
            for _ in range(min(helpers, int(board[SLEPT]) - self._rung)):
                self._rung += 1
                self._bell.put(None)
            try:
                self._drive(*self._shared, self._own, self._jobs, _ENDING * self._looks)
            finally:  # a helper that is at work has the arrays, whatever has happened here
                while board[INSIDE] and self.counters[FINISHED] < units:
                    time.sleep(_NAP_S)
            if board[FAILED]:
                raise MemoryError("There is no memory for what a kernel lays out for itself.")
            return True
        finally:
            self._busy.release()

    def _help_forever(self, serve: Callable[..., None], looks: int) -> None:
        own = np.zeros(_MOST_WORDS, np.int64)
        pushed, patience = _times_pushed(), 0
        while True:
            self._bell.get()
            serve(*self._shared, own, looks // 16 + 1 if patience else looks, 0)
            before, pushed = pushed, _times_pushed()
            patience = min(_DEAREST, max(0, patience - 1 + _DEAR * (pushed - before)))


def _times_pushed() -> int:
    """How often this thread had to leave its core to another one."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class _Entry:
    """How a compiled kernel is called from outside Python.

    Attributes:
        address: of its code.
    """

    def __init__(self, address: int, kinds: Sequence[tuple[np.dtype[Any], bool] | int]) -> None:
        self.address = address
        self._kinds = kinds

    def words(self, arguments: Sequence[Any]) -> list[int] | None:
        """What to call it with; None for arguments that Numba would have to convert, or refuse."""
        if len(self._kinds) - len(arguments) not in (0, 2):
            return None
        words: list[int] = []
        for kind, x in zip(self._kinds, arguments, strict=False):
            if isinstance(kind, int):
                if kind:
                    words += x
                else:
                    words.append(x)
                continue
            if not isinstance(x, np.ndarray) or x.dtype != kind[0] or x.ndim != 1:
                return None
            flags = x.flags
            if not flags.c_contiguous or not (kind[1] or flags.writeable):
                return None
            size, step = x.size, x.itemsize
            words += (0, 0, size, step, x.__array_interface__["data"][0], size, step)
        if len(arguments) < len(self._kinds):
            words += (0, 0)  # the range, which each call has its own of
        return words


def _entry(function: Any) -> _Entry | None:
    """How to call a kernel; None for what is no compiled one, or takes other things than vectors and integers."""
    from numba import types
    from numba.core.registry import CPUDispatcher
    from numba.np.numpy_support import as_dtype

    if not isinstance(function, CPUDispatcher) or len(function.overloads) != 1:
        return None
    compiled: Any = next(iter(function.overloads.values()))
    kinds: list[tuple[np.dtype[Any], bool] | int] = []
    count = 0
    for kind in compiled.signature.args:
        if isinstance(kind, types.Array) and kind.ndim == 1 and kind.layout == "C":
            kinds.append((as_dtype(kind.dtype), not kind.mutable))
            count += _ARRAY
        elif isinstance(kind, types.UniTuple) and kind.dtype == types.intp and kind.count:
            kinds.append(kind.count)
            count += kind.count
        elif kind == types.intp:
            kinds.append(0)
            count += 1
        else:
            return None
    if count > _MOST_WORDS or kinds[-2:] != [0, 0]:
        return None
    return _Entry(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name), kinds)
