"""Shared memory: large tensors between processes of one machine, written once and read in place.

Theory of operation. A process has a `Pool` of blocks. What it makes to be read by others, such as the value of a variable, it
makes in a block (`empty`). To send such a tensor to a process of the same machine, it lends the block: it marks a word as taken
and sends a `Reference`, which names the bytes and the word, instead of the bytes. Any other large tensor is copied into a block first.
The receiver maps the block and makes an array over it; when the last array over it has gone, it writes a zero into the word. So
there is at most one copy, no page fault once the pool is warm, and no message for giving a block back.

A block may be lent to several at once, each loan with a word of its own. It is free when its maker has let go of it and no word
stands for it any more. Nobody writes into a block while it is lent (`may_change`), except for who borrowed it, where it was copied
for him alone (`lend(..., alone=True)`).

A segment of a pool is an anonymous file (`memfd_create`): it has no name that could be left behind, and the kernel frees it
with the last process that maps it, also after `kill -9`. Others open it as `/proc/PID/fd/N`, which the kernel allows to
processes of the same user only. What is found there is trusted as far as it cannot hurt: it must be a memory file of our own
user that can never shrink (a seal says so; reading beyond a file's end would end the process), and it must begin with the
number that the reference names, so that a process number that was used again is noticed.

    segment    page 0: the segment's number, whether it is retired, one word per loan: 0 is free, else who has it
               then the blocks, all of one size

A loan whose holder has died is taken back when the pool looks for a free block. The pool is bounded: if it has no room, `lend` says
so, and the tensor travels in the message.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from sys import getrefcount
from typing import Any, Final, NamedTuple

import numpy as np

from ..graph.process import process_id

SHARE_BYTES: Final = 64 << 10
"""Tensors from this size on are shared. A smaller one is copied faster than a block is found, or mapped."""

_PAGE = 4096
_NUMBER, _RETIRED, _FIRST = 0, 2, 4  # in words of 32 bits: the segment's number takes two
_MOST_LOANS = _PAGE // 4 - _FIRST
_SLAB_BYTES = 4 << 20  # small blocks share a segment of about this size
_IDLE_S = 30.0  # a segment that nobody has used for so long goes
_SEAL, _SHRINK, _GROW = 0x0001, 0x0002, 0x0004
_INTS = [int] * 5
_FREE = 3  # references to a block that only its segment, and the loop that asks, hold


class Reference(NamedTuple):
    """Where a tensor's bytes lie: in the segment that process `pid` has as file `fd`.

    Attributes:
        number: the segment's number; it must be found at the segment's beginning.
        loan: which of the segment's words says that they are lent.
        offset: of the first byte in the segment.
    """

    pid: int
    fd: int
    number: int
    loan: int
    offset: int

    def to_fields(self) -> list[int]:
        """Plain data for a message."""
        return list(self)

    @classmethod
    def from_fields(cls, fields: Any) -> Reference:
        """From a message's plain data.

        Raises:
            ValueError: it is malformed.
        """
        if (
            type(fields) not in (list, tuple)
            or [type(x) for x in fields] != _INTS
            or min(fields) < 0
            or max(fields) >= 1 << 63
        ):
            raise ValueError(f"not a reference to shared memory: {fields!r:.80}")
        return cls(*fields)


@cache
def is_available() -> bool:
    """Whether this system has memory files that can be sealed and opened through /proc."""
    try:
        fd = os.memfd_create("dovetail", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):
        return False
    try:
        return os.access(f"/proc/{os.getpid()}/fd/{fd}", os.R_OK | os.W_OK)
    finally:
        os.close(fd)


# --- lending ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Segment:
    """A memory file and its blocks.

    Attributes:
        count: how many blocks there are room for. blocks: those that have been used. One is this process's own as long as it has an
            array over it, which its references tell.
        loans: word -> the block that is lent, and to which process; some may have been given back meanwhile.
        pid: the process that made it; after a fork it is not the child's to lend or to change.
    """

    fd: int
    number: int
    block_bytes: int
    memory: mmap.mmap
    words: memoryview
    count: int
    blocks: list[_Block] = field(default_factory=list)
    loans: dict[int, tuple[int, int]] = field(default_factory=dict)
    is_retired: bool = False
    pid: int = field(default_factory=process_id)
    used: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return len(self.memory)

    def settle(self) -> None:
        """Forget the loans that have been given back."""
        if self.loans:
            words = self.words
            for loan in [w for w in self.loans if not words[_FIRST + w]]:
                del self.loans[loan]

    def mark(self, block: int, holder: int) -> int:
        """Lend a block to a process: the loan's word; -1 if all are taken."""
        self.settle()
        if len(self.loans) >= _MOST_LOANS:
            return -1
        loan = 0
        while loan in self.loans:
            loan += 1
        self.loans[loan] = block, holder
        self.words[_FIRST + loan] = holder & 0xFFFFFFFF or 1
        return loan

    def take_back(self, loan: int) -> None:
        """End a loan that its holder has no use for."""
        self.words[_FIRST + loan] = 0
        self.settle()

    def reclaim(self) -> bool:
        """Take back what the dead hold; whether there was any."""
        dead = [w for w, (_, holder) in self.loans.items() if self.words[_FIRST + w] and not is_alive(holder)]
        for loan in dead:
            self.words[_FIRST + loan] = 0
        self.settle()
        return bool(dead)

    def free(self) -> _Block | None:
        """A free block, the first: what was used last is in the caches."""
        self.settle()
        lent = {block for block, _ in self.loans.values()}
        for block in self.blocks:
            if getrefcount(block) == _FREE and block.number not in lent:
                return block
        number = len(self.blocks)
        if number == self.count:
            return None
        block = _Block(self.block_bytes, np.uint8, self.memory, _PAGE + number * self.block_bytes)
        block.segment, block.number = self, number
        self.blocks.append(block)
        return block

    def is_idle(self) -> bool:
        """Whether all blocks are free."""
        return not self.loans and all(getrefcount(block) == _FREE for block in self.blocks)

    def is_lent(self, block: int) -> bool:
        """Whether somebody else reads a block."""
        return bool(self.loans) and any(b == block and self.words[_FIRST + w] for w, (b, _) in list(self.loans.items()))


class _Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a block: the base of the arrays that this process makes there, one after the other.

    A class of its own, as `_Lent` is: NumPy has a view refer to the first array of another class than its own.
    """

    segment: _Segment | None = None  # views of it have none
    number: int = 0


def block_of(array: np.ndarray[Any, Any]) -> _Block | None:
    """The block of a pool of this process that a contiguous array lies in."""
    base: Any = array.base
    while type(base) is np.ndarray:
        base = base.base
    return base if type(base) is _Block and base.segment is not None and array.flags.c_contiguous else None


class Pool:
    """The memory that a process lends. Safe to use from several threads.

    Args:
        limit: most bytes of all segments together.

    Attributes:
        bytes: of all segments. is_read: whether another process has said that it can read this one's memory.

    >>> pool = Pool(1 << 30)
    >>> reference = pool.lend(np.ones(1 << 20, np.float32), os.getpid())
    >>> Borrower().borrow(reference, 4 << 20).view(np.float32)[:2]
    array([1., 1.], dtype=float32)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.is_read = False
        self._pid = process_id()
        self._segments: dict[int, list[_Segment]] = {}  # by size of block
        self._page: Reference | None = None
        self._tidied = time.monotonic()
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], small: bool = False) -> np.ndarray[Any, Any] | None:
        """An array of undefined content in a block of its own, which `lend` need not copy.

        None: it is smaller than `SHARE_BYTES`, unless it may be `small`; or would need more than half of the pool together with what
        is there, so that there is room to lend other things.
        """
        size = math.prod(shape) * dtype.itemsize
        if size < (1 if small else SHARE_BYTES) or dtype.kind == "O" or self._pid != process_id():
            return None
        return self._empty(size, shape, dtype, self.limit // 2)

    def _empty(
        self, size: int, shape: tuple[int, ...], dtype: np.dtype[Any], limit: int
    ) -> np.ndarray[Any, Any] | None:
        """An array in a free block, made if all of them may then have `limit` bytes."""
        block_bytes = _block_bytes(size)
        with self._lock:
            segments = self._segments.get(block_bytes)
            block = self._free(segments) if segments else None
            if block is None:
                made = self._make(block_bytes, limit)
                if made is None:
                    return None
                self._segments.setdefault(block_bytes, []).append(made)
                block = made.free()
            return np.ndarray(shape, dtype, block)  # from now on it is not free

    def holds(self, value: np.ndarray[Any, Any]) -> bool:
        """Whether a contiguous array lies in a block of this process."""
        return self._pid == process_id() and block_of(value) is not None

    def may_change(self, base: Any) -> bool:
        """Whether `base` is that of an array which `empty` has made, and nobody else reads it now."""
        return (
            type(base) is _Block
            and base.segment is not None
            and base.segment.pid == process_id()
            and not base.segment.is_lent(base.number)
        )

    def lend(self, array: np.ndarray[Any, Any], holder: int, alone: bool = False) -> Reference | None:
        """Let process `holder` read an array: where it is, if it lies in a block, else a copy; None if there is no room.

        Args:
            alone: nobody else shall see the block, so that the holder may write into it: it is a copy in any case.
        """
        now = time.monotonic()
        if now - self._tidied > _IDLE_S:
            self.tidy()
        block = None if alone else block_of(array)
        if block is None or block.segment is None or block.segment.is_retired or block.segment.pid != self._pid:
            made = self._empty(array.nbytes, array.shape, array.dtype, self.limit)
            if made is None:
                return None
            np.copyto(made, array)  # outside of the lock: it may take long
            array, block = made, block_of(made)
            assert block is not None
        segment = block.segment
        assert segment is not None
        with self._lock:
            if segment.is_retired:
                return None
            loan = segment.mark(block.number, holder)
            if loan < 0:
                return None
            segment.used = now
        return Reference(self._pid, segment.fd, segment.number, loan, _offset(array, block))

    def page(self) -> Reference:
        """A page that is there for others to try whether they can read this process's memory. It is never given back."""
        with self._lock:
            if self._page is None:
                made = _new_segment(_PAGE, 1)
                self._page = Reference(self._pid, made.fd, made.number, 0, _PAGE)
            return self._page

    def lent(self) -> int:
        """How many loans there are."""
        with self._lock:
            every = [s for segments in self._segments.values() for s in segments]
            for s in every:
                s.settle()
            return sum(len(s.loans) for s in every)

    def tidy(self) -> None:
        """Take back what the dead hold; let segments go that nobody has used for long."""
        now = self._tidied = time.monotonic()
        with self._lock:
            for segments in self._segments.values():
                for s in list(segments):
                    s.reclaim()
                    if now - s.used > _IDLE_S and s.is_idle():
                        segments.remove(s)
                        self._drop(s)

    def close(self) -> None:
        """Let go of everything; who still reads a block keeps its memory."""
        with self._lock:
            for segments in self._segments.values():
                for s in segments:
                    self._drop(s)
            self._segments.clear()

    @staticmethod
    def _free(segments: Sequence[_Segment]) -> _Block | None:
        """A free block; what the dead hold is taken back if there is no other."""
        for attempt in range(2):
            for s in segments:
                block = s.free()
                if block is not None:
                    s.used = time.monotonic()
                    return block
            if attempt == 0 and not sum(s.reclaim() for s in segments):
                break
        return None

    def _make(self, block_bytes: int, limit: int) -> _Segment | None:
        blocks = max(1, _SLAB_BYTES // block_bytes)
        size = _PAGE + blocks * block_bytes
        if self.bytes + size > limit:
            self._make_room(size, limit)
            if self.bytes + size > limit:
                return None
        try:
            made = _new_segment(block_bytes, blocks)
        except OSError:  # no descriptors or no memory left: the tensor travels in its message
            return None
        self.bytes += made.size
        return made

    def _make_room(self, size: int, limit: int) -> None:
        """Drop segments that nobody uses, the one that was used longest ago first."""
        every = sorted((s for segments in self._segments.values() for s in segments), key=lambda s: s.used)
        for s in every:
            if self.bytes + size <= limit:
                return
            s.reclaim()
            if s.is_idle():
                self._segments[s.block_bytes].remove(s)
                self._drop(s)

    def _drop(self, segment: _Segment) -> None:
        segment.words[_RETIRED] = 1
        segment.is_retired = True
        segment.blocks.clear()
        os.close(segment.fd)
        self.bytes -= segment.size


def _new_segment(block_bytes: int, blocks: int) -> _Segment:
    size = _PAGE + blocks * block_bytes
    fd = os.memfd_create("dovetail", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEAL | _SHRINK | _GROW)
        memory = mmap.mmap(fd, size)
    except OSError:
        os.close(fd)
        raise
    words = _words(memory)
    number = secrets.randbits(62)
    words[_NUMBER], words[_NUMBER + 1] = number & 0xFFFFFFFF, number >> 32
    return _Segment(fd, number, block_bytes, memory, words, blocks)


def _words(memory: mmap.mmap) -> memoryview:
    """A segment's first page. (Reading a word of an array takes several times as long.)"""
    return memoryview(memory)[:_PAGE].cast("I")


def where(array: np.ndarray[Any, Any]) -> tuple[int, int, int] | None:
    """Where others find a contiguous array of this process: descriptor and number of its segment, and the offset in it.

    None: it does not lie in a pool, or that of another process. It holds until the array is let go of.
    """
    block = block_of(array)
    if block is None or block.segment is None or block.segment.is_retired or block.segment.pid != process_id():
        return None
    return block.segment.fd, block.segment.number, _offset(array, block)


def _offset(array: np.ndarray[Any, Any], block: _Block) -> int:
    """Where an array that lies in a block begins, in the segment."""
    assert block.segment is not None
    offset = _PAGE + block.number * block.segment.block_bytes
    return offset if array.base is block else offset + _address(array) - _address(block)


def new_segment(block_bytes: int, blocks: int) -> _Segment:
    """A segment of no pool: a page for its number, then the blocks. Raises OSError when there is no memory or descriptor."""
    return _new_segment(block_bytes, blocks)


def map_segment(reference: Reference) -> mmap.mmap:
    """The whole segment that another process's reference names.

    Raises:
        Unreadable: this process cannot or should not read it.
    """
    return _map(reference).memory


@lru_cache(4096)
def _block_bytes(size: int) -> int:
    """The size of block for so many bytes: eighths of powers of two, so that at most an eighth is wasted."""
    step = max(_PAGE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def _address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


def is_alive(pid: int) -> bool:
    """Whether a process is there, and has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state != b"Z"  # which has ended, and was not waited for yet
    return True


# --- borrowing -------------------------------------------------------------------------------------------------------


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
        if offset < _PAGE or offset + size > len(found.memory) or not 0 <= loan < _MOST_LOANS:
            raise Unreadable("a reference beyond its segment")
        lent = _Lent(size, np.uint8, found.memory, offset)
        lent.word = found.words[_FIRST + loan : _FIRST + loan + 1]
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
        for old in [k for k, m in self._mappings.items() if m.words[_RETIRED] or not _is_there(k[0])]:
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
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size <= _PAGE:
            raise Unreadable(f"{path} is no memory of this user's processes")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SHRINK:
            raise Unreadable(f"{path} could be cut short")
        memory = mmap.mmap(fd, status.st_size)
    except (OSError, ValueError) as e:
        raise e if isinstance(e, Unreadable) else Unreadable(f"{path}: {e}") from None
    finally:
        os.close(fd)
    words = _words(memory)
    if words[_NUMBER] | words[_NUMBER + 1] << 32 != reference.number:
        raise Unreadable(f"{path} is another segment than the one meant")
    return _Mapping(memory, words)
