"""Segments: shared memory of one process, with blocks that it lends to other processes of the same machine and user.

A segment is an anonymous file (`memfd_create`). It has no name to clean up, and the kernel frees it with the last process that maps it,
also after `kill -9`. Others open it as `/proc/PID/fd/N`, which the kernel allows only to processes of the same user. The reader checks
two things before it uses the memory. The file must be a memfd of the same user, sealed against shrinking, since reading beyond the end of
a file kills the process. Its first words must be the number in the reference, which detects a reused process number.

    segment    page 0: the segment's number, whether it is retired, one word per loan (0 is free, else the holder's process)
               then the blocks, all of one size

`Segment` is the lender's side. `Mapper` maps other processes' segments, and returns a block when the last array over it is freed.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from sys import getrefcount
from typing import Any, Final, NamedTuple

import numpy as np

from ...graph.core.interpreter_state import process_id
from ...graph.core.reference_counts import ONLY_ITEM

PAGE: Final = 4096
NUMBER, RETIRED, FIRST = 0, 2, 4  # in 32-bit words: the segment's number takes two
MOST_LOANS: Final = PAGE // 4 - FIRST
_SEAL, SHRINK, _GROW = 0x0001, 0x0002, 0x0004


class Reference(NamedTuple):
    """A reference to a tensor's bytes in the segment that process `pid` has open as descriptor `fd`. In a message it is a list.

    Attributes:
        number: the segment's number; the segment starts with it.
        loan: index of the loan's word in the segment.
        offset: of the first byte in the segment.
    """

    pid: int
    fd: int
    number: int
    loan: int
    offset: int


@cache
def is_available() -> bool:
    """Whether memfds can be opened through /proc here."""
    try:
        fd = os.memfd_create("dovetail", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return False
    try:
        return os.access(f"/proc/{os.getpid()}/fd/{fd}", os.R_OK | os.W_OK)
    finally:
        os.close(fd)


@dataclass(slots=True, eq=False)
class Segment:
    """A memory file and its blocks.

    Attributes:
        count: the number of blocks.
        blocks: those that have been used. A block is in use in this process as long as an array lies over it (its reference count).
        loans: word -> the lent block and the borrowing process; some may have been returned meanwhile.
        pid: the process that made it. A forked child must neither lend nor change it.
    """

    fd: int
    number: int
    block_bytes: int
    memory: mmap.mmap
    words: memoryview
    count: int
    blocks: list[Block] = field(default_factory=list)
    loans: dict[int, tuple[int, int]] = field(default_factory=dict)
    is_retired: bool = False
    pid: int = field(default_factory=process_id)
    used: float = field(default_factory=time.monotonic)

    def settle(self) -> None:
        """Forget the loans that were returned."""
        if self.loans:
            words = self.words
            for loan in [w for w in self.loans if not words[FIRST + w]]:
                del self.loans[loan]

    def mark(self, block: int, holder: int) -> int:
        """Lend a block to a process. Returns the loan's word; -1 if all words are taken."""
        self.settle()
        loan = next((i for i in range(MOST_LOANS) if i not in self.loans), -1)
        if loan >= 0:
            self.loans[loan] = block, holder
            self.words[FIRST + loan] = holder & 0xFFFFFFFF or 1
        return loan

    def take_back(self, loan: int) -> None:
        """End a loan that its borrower refused."""
        self.words[FIRST + loan] = 0
        self.settle()

    def reclaim(self) -> None:
        """Reclaim the loans of dead processes."""
        for loan, (_, holder) in self.loans.items():
            if self.words[FIRST + loan] and not is_alive(holder):
                self.words[FIRST + loan] = 0
        self.settle()

    def free(self) -> Block | None:
        """The first free block: the last used ones are in the caches."""
        self.settle()
        lent = {block for block, _ in self.loans.values()}
        for number in range(len(self.blocks)):
            if getrefcount(self.blocks[number]) == ONLY_ITEM and number not in lent:
                return self.blocks[number]
        number = len(self.blocks)
        if number == self.count:
            return None
        block = Block(self.block_bytes, np.uint8, self.memory, PAGE + number * self.block_bytes)
        block.segment, block.number = self, number
        self.blocks.append(block)
        return block

    def is_idle(self) -> bool:
        """Whether all blocks are free."""
        return not self.loans and all(getrefcount(self.blocks[i]) == ONLY_ITEM for i in range(len(self.blocks)))

    def is_lent(self, block: int) -> bool:
        return bool(self.loans) and any(b == block and self.words[FIRST + w] for w, (b, _) in list(self.loans.items()))


class Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a block: the base of the arrays that this process makes there, one at a time.

    A class of its own, as `_Lent` is: NumPy sets the base of a view to the first array of another class.
    """

    segment: Segment | None = None  # None in views of it
    number: int = 0


def new_segment(block_bytes: int, blocks: int) -> Segment:
    """A memfd: a page for its number and words, then the blocks. OSError: no memory or descriptor is left."""
    size = PAGE + blocks * block_bytes
    fd = os.memfd_create("dovetail", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEAL | SHRINK | _GROW)
        memory = mmap.mmap(fd, size)
    except OSError:
        os.close(fd)
        raise
    words = words_of(memory)
    number = secrets.randbits(62)
    words[NUMBER], words[NUMBER + 1] = number & 0xFFFFFFFF, number >> 32
    return Segment(fd, number, block_bytes, memory, words, blocks)


def words_of(memory: mmap.mmap) -> memoryview:
    """The words in a segment's first page. (Reading a word through an array takes several times as long.)"""
    return memoryview(memory)[:PAGE].cast("I")


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state != b"Z"  # a zombie: ended, but not waited for yet
    return True


class MappingError(ValueError):  # noqa: N818  (the name says it)
    """A reference to memory that this process cannot or should not read."""


class _Lent(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a borrowed block. Every array over the block refers to this object, whose end returns the block.

    A class of its own, directly over the mapping: NumPy sets the base of a view of a view to the first array of another class, or to
    the memory itself.
    """

    word: memoryview | None = None  # None in views (slices) of it

    def __del__(self) -> None:
        if self.word is not None:
            self.word[0] = 0


def make_own(array: Any) -> None:
    """Make an array writable if it was lent for this process alone (`lend(..., alone=True)`). Others stay as they are."""
    if isinstance(array, np.ndarray) and isinstance(array.base, _Lent):
        array.flags.writeable = True


@dataclass(slots=True, eq=False)
class _Mapping:
    """Another process's segment."""

    memory: mmap.mmap
    words: memoryview


class Mapper:
    """Maps other processes' blocks. Thread-safe without a lock: the garbage collector may end a session, which calls `let_go`, anywhere."""

    _MOST = 256  # unused segments that stay mapped

    def __init__(self) -> None:
        self._mappings: dict[tuple[int, int, int], _Mapping] = {}  # oldest first; these are unmapped first

    def borrow(self, reference: Sequence[int], size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """`size` bytes of a block; the caller must not write to them.

        Args:
            reference: a `Reference`, or its numbers.

        Raises:
            MappingError: this process cannot or should not read the memory.
        """
        pid, fd, number, loan, offset = reference
        found = self._mappings.get((pid, fd, number)) or self.map(Reference(*reference))
        if offset < PAGE or offset + size > len(found.memory) or not 0 <= loan < MOST_LOANS:
            raise MappingError("a reference beyond its segment")
        lent = _Lent(size, np.uint8, found.memory, offset)
        lent.word = found.words[FIRST + loan : FIRST + loan + 1]
        return lent

    def map(self, reference: Reference) -> _Mapping:
        """The whole segment of a reference. MappingError: as `borrow`."""
        key = (reference.pid, reference.fd, reference.number)
        found = self._mappings.get(key)
        if found is None:
            found = self._mappings.setdefault(key, map_segment(reference))
            self.let_go()
            for old in list(self._mappings)[: -self._MOST]:
                self._mappings.pop(old, None)
        return found

    def let_go(self) -> None:
        """Unmap segments that their owner has retired, or whose owner is gone; otherwise their memory would never be freed."""
        for key, mapping in self._mappings.copy().items():
            if mapping.words[RETIRED] or not is_alive(key[0]):
                self._mappings.pop(key, None)  # arrays over it keep it mapped

    def __len__(self) -> int:
        return len(self._mappings)


def open_memory(pid: int, fd: int) -> tuple[str, int]:
    """The path of another process's open file, and a descriptor of this process for it. MappingError: it cannot be opened."""
    path = f"/proc/{pid}/fd/{fd}"
    try:
        return path, os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as e:
        raise MappingError(f"{path}: {e.strerror}") from None


def map_segment(reference: Reference) -> _Mapping:
    """The whole segment of another process's reference. MappingError: this process cannot or should not read it."""
    path, fd = open_memory(reference.pid, reference.fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size <= PAGE:
            raise MappingError(f"{path} is no memory of this user's processes")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SHRINK:
            raise MappingError(f"{path} could be cut short")
        memory = mmap.mmap(fd, status.st_size)
    except (OSError, ValueError) as e:
        raise e if isinstance(e, MappingError) else MappingError(f"{path}: {e}") from None
    finally:
        os.close(fd)
    words = words_of(memory)
    if words[NUMBER] | words[NUMBER + 1] << 32 != reference.number:
        raise MappingError(f"{path} is another segment than the one meant")
    return _Mapping(memory, words)
