"""Shared memory for collectives (`runtime/collectives/shared_buffer.py`), and waiting on a word of it.

A buffer is a segment like the pool's (`segment.py`): a sealed memfd, which other processes of the same user open through /proc,
and which is freed with the last process that maps it. Threads wait on a word with the kernel's futex, by a direct system call. On
machines for which its number is not known here, they poll every 50 µs.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ...graph.core.settings import setting
from .segment import PAGE, MappingError, Reference, is_available, map_segment, new_segment

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # number of the system call
_WAIT, _WAKE = 0, 1
_AGAIN_S = 50e-6

_made = 0  # bytes of this process's live buffers
_lock = threading.RLock()  # reentrant: a mapping may be freed at any time, also during counting


class CollectiveMemory:
    """Memory that the processes of a machine share, and waiting on its words.

    Args:
        may_sleep: whether the calling thread may block for a moment.
    """

    def __init__(self, may_sleep: Callable[[], bool]) -> None:
        self.may_sleep = may_sleep

    def make(self, size: int) -> tuple[Sequence[int], memoryview] | None:
        """Numbers by which others open the memory, and the memory: `size` bytes, all zero.

        None: there is no room; the limit is DOVETAIL_SHARED_MEMORY_MB, separate from the pool's.
        """
        if not is_available() or not _take(size):
            return None
        try:
            segment = new_segment(-(-size // PAGE) * PAGE, 1)
        except OSError:  # no descriptors or no memory left
            _take(-size)
            return None
        whole = memoryview(segment.memory)
        weakref.finalize(segment.memory, _take, -size)
        # Other processes open the file during the handshake. It stays open until the mapping is freed.
        weakref.finalize(segment.memory, os.close, segment.fd)
        reference = Reference(os.getpid(), segment.fd, segment.number, 0, PAGE)
        return reference, whole[PAGE : PAGE + size]

    def open(self, place: Sequence[int], size: int) -> memoryview | None:
        """The memory that another process made. None: this process cannot or must not map it."""
        if setting("DOVETAIL_SHARED_MEMORY_MB") <= 0:
            return None
        try:
            memory = map_segment(Reference(*place))
        except (MappingError, TypeError):
            return None
        return memoryview(memory)[PAGE : PAGE + size] if len(memory) >= PAGE + size else None

    def sleep(self, word: memoryview, value: int, seconds: float) -> None:
        """Block while the word has this value, for up to `seconds`. It may return earlier."""
        futex = _futex()
        if futex is None:
            time.sleep(min(_AGAIN_S, seconds))
        else:
            futex(word, _WAIT, value, seconds)

    def wake(self, word: memoryview) -> None:
        """Wake a thread that sleeps on the word."""
        futex = _futex()
        if futex is not None:
            futex(word, _WAKE, 1, None)


def _take(size: int) -> bool:
    """Add to the buffers' size. False: it would exceed the limit."""
    global _made
    with _lock:
        if size > 0 and _made + size > int(setting("DOVETAIL_SHARED_MEMORY_MB")) << 20:
            return False
        _made += size
        return True


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


@cache
def _futex() -> Callable[[memoryview, int, int, float | None], Any] | None:
    """futex(word, operation, value, seconds); None where its system call number is not known."""
    number = _FUTEX.get(platform.machine())
    if number is None:
        return None
    call = ctypes.CDLL(None).syscall  # ctypes releases the GIL during the call

    def futex(word: memoryview, operation: int, value: int, seconds: float | None) -> None:
        limit = None
        if seconds is not None:
            limit = ctypes.byref(_Timespec(int(seconds), int(seconds % 1 * 1e9)))
        call(ctypes.c_long(number), ctypes.byref(ctypes.c_uint32.from_buffer(word)), operation, value, limit, None, 0)

    return futex
