"""Borrowing: reading what other processes of the machine lend (`shared_memory.py`), where it lies."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .segments import FIRST, MOST_LOANS, NUMBER, PAGE, RETIRED, SHRINK, Reference, words_of


class Unreadable(ValueError):  # noqa: N818  (the name says it)
    """A reference to memory that this process cannot read, or should not."""


class _Lent(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a block. Every array over the block refers to this one; its end gives the block back.

    A class of its own, made right over the mapping: a view of a view refers to the first array of its own class or to the
    memory itself, past all that lies between.
    """

    word: memoryview | None = None  # views of it (slices of this class) have none

    def __del__(self) -> None:
        if self.word is not None:
            self.word[0] = 0


def make_own(array: Any) -> None:
    """Let the one who got an array that was lent to him `alone` write into it. Other arrays stay as they are."""
    if isinstance(array, np.ndarray) and isinstance(array.base, _Lent):
        array.flags.writeable = True


@dataclass(slots=True, eq=False)
class _Mapping:
    """Another process's segment."""

    memory: mmap.mmap
    words: memoryview


class Borrower:
    """Reads other processes' blocks. Safe to use from several threads."""

    _MOST = 256  # segments that stay mapped though nothing of them is in use

    def __init__(self) -> None:
        self._mappings: OrderedDict[tuple[int, int, int], _Mapping] = (
            OrderedDict()
        )  # those made first are let go of first
        self._lock = threading.Lock()

    def borrow(self, reference: Sequence[int], size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """`size` bytes of a block, read-only in effect: who takes them must not write.

        Args:
            reference: a `Reference`, or its numbers.

        Raises:
            Unreadable: this process cannot or should not read what the reference names.
        """
        pid, fd, number, loan, offset = reference
        found = self._mappings.get((pid, fd, number)) or self._mapping(Reference(*reference))
        if offset < PAGE or offset + size > len(found.memory) or not 0 <= loan < MOST_LOANS:
            raise Unreadable("a reference beyond its segment")
        lent = _Lent(size, np.uint8, found.memory, offset)
        lent.word = found.words[FIRST + loan : FIRST + loan + 1]
        return lent

    def map(self, reference: Reference) -> mmap.mmap:
        """The whole segment that a reference names. Unreadable: as `borrow`."""
        return self._mapping(reference).memory

    def _mapping(self, reference: Reference) -> _Mapping:
        key = (reference.pid, reference.fd, reference.number)
        with self._lock:
            found = self._mappings.get(key)
            if found is not None:
                return found
            found = self._mappings[key] = _map(reference)
            self._let_go()
            while len(self._mappings) > self._MOST:
                self._mappings.popitem(last=False)
            return found

    def let_go(self) -> None:
        """Keep nothing mapped that its owner has given up, or whose owner has gone: else its memory would never be free."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        for old in [k for k, m in self._mappings.items() if m.words[RETIRED] or not _is_there(k[0])]:
            del self._mappings[old]  # arrays over it keep it mapped as long as they live

    def __len__(self) -> int:
        return len(self._mappings)


def _is_there(pid: int) -> bool:
    """Whether there is such a process; the memory of one that was killed goes when nobody maps it any more."""
    return Path(f"/proc/{pid}").exists()


def _map(reference: Reference) -> _Mapping:
    path = f"/proc/{reference.pid}/fd/{reference.fd}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as e:
        raise Unreadable(f"{path}: {e.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size <= PAGE:
            raise Unreadable(f"{path} is no memory of this user's processes")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SHRINK:
            raise Unreadable(f"{path} could be cut short")
        memory = mmap.mmap(fd, status.st_size)
    except (OSError, ValueError) as e:
        raise e if isinstance(e, Unreadable) else Unreadable(f"{path}: {e}") from None
    finally:
        os.close(fd)
    words = words_of(memory)
    if words[NUMBER] | words[NUMBER + 1] << 32 != reference.number:
        raise Unreadable(f"{path} is another segment than the one meant")
    return _Mapping(memory, words)


def map_segment(reference: Reference) -> mmap.mmap:
    """The whole segment that another process's reference names.

    Raises:
        Unreadable: this process cannot or should not read it.
    """
    return _map(reference).memory


__all__ = ["Borrower", "Unreadable", "make_own", "map_segment"]
