"""The memory of a large message during its reception, on a stream or in chunks.

A few bytes can announce gigabytes. They cost no memory: a frame gets its address space when its first byte is due, and the kernel gives
it pages as bytes arrive. Where an earlier message or result has released memory (`buffers`), it is used again.

A message that is larger than the limit, or than the free memory, is refused, also while it arrives: others may arrive at once. Its
header is kept, since it names the request that gets the error. Its other bytes are read and dropped, so the connection continues with
the next message.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ...graph.core.settings import setting
from ...graph.resources.buffer_pool import buffers
from .messages import MAX_HEADER, glimpse
from .schema import WireError
from .tensors import Frame

SETTING: Final = "DOVETAIL_MAX_MESSAGE_MB"
_LOOK_BYTES: Final = 64 << 20  # larger messages are compared with the free memory whenever so much of them has come
MOST_BUFFERS: Final = 512  # per system call; the kernel's limit is 1024
_BYTE: Final = np.dtype(np.uint8)
_dropped: Final = memoryview(bytearray(512 << 10))  # receives the bytes of refused messages; never read


class TooLargeError(WireError):
    """A message is larger than the limit, or than the free memory.

    Args:
        why: what is too large. header: its first frame, if known.

    Attributes:
        kind: its kind; empty if its header is not known.
        step: the step that it belongs to, or 0.
    """

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, why: str, header: Frame) -> None:
        self.kind, numbers = glimpse(header)
        self.step = numbers.get("step", 0)
        super().__init__(f"a message cannot be taken: {why}", numbers.get("request", 0))


def most_bytes() -> int:
    """The largest message that this process accepts, in bytes."""
    return int(setting(SETTING)) << 20 or 1 << 62


def memory_left() -> int:
    """How many bytes this process can still get, according to the machine and its control group."""
    found = [1 << 62]
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (line.split(":") for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        table = {name: int(text.split()[0]) << 10 for name, text in lines}
        found.append(table["MemAvailable"] + table["SwapFree"])
    with contextlib.suppress(OSError, ValueError, IndexError):
        name = Path("/proc/self/cgroup").read_text("utf-8").partition("0::/")[2].splitlines()[0]
        group = Path("/sys/fs/cgroup", name)
        most = int((group / "memory.max").read_text("ascii"))  # ValueError: "max"
        lines = (line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        cached = {name: int(text) for name, text in lines}.get("inactive_file", 0)
        found.append(most - int((group / "memory.current").read_text("ascii")) + cached)
    return max(0, min(found))


class PartialMessage:
    """The frames of one message during its reception. Used by one thread.

    Args:
        sizes: the frame sizes, as the peer announces them.
        most: the largest accepted message, in bytes.

    Attributes:
        left: how many bytes are missing.

    >>> message = PartialMessage([6, 3], 1 << 20)
    >>> message.put(b"headerabc")
    >>> [bytes(frame) for frame in message.frames]
    [b'header', b'abc']
    """

    __slots__ = ("_made", "_next_look", "_reported", "_sizes", "_total", "_why", "frames", "left")

    def __init__(self, sizes: Sequence[int], most: int) -> None:
        self.left = self._total = sum(sizes)
        self.frames: list[Frame] = []
        self._sizes = sizes
        self._made: deque[memoryview] = deque()  # empty memory for the next bytes
        self._next_look = self._total  # the free memory is looked at when no more than this is missing
        self._why = ""  # why the message is refused
        self._reported = False
        if self._total > most:
            self._refuse(f"it has {self._total} bytes; the limit is {most} ({SETTING} of the receiver)")
        self._look()

    def room(self, most: int) -> list[memoryview]:
        """Memory for the next bytes, `most` bytes at most. The caller releases it before the next call."""
        if not self._made:
            try:
                self._make(most)
            except MemoryError:
                self._refuse(f"there is no memory for its {self._total} bytes")
        return first_bytes(self._made, most) or [_dropped[: min(most, self.left)]]

    def filled(self, count: int) -> None:
        """Record that `count` bytes were written into `room`'s memory."""
        self.left -= count
        made = self._made
        while made and count >= len(made[0]):
            count -= len(made.popleft())
        if made and count:
            made[0] = made[0][count:]
        if not self._why:
            self._look()
            if not self.left:
                self.frames += [b""] * (len(self._sizes) - len(self.frames))

    def put(self, data: Frame) -> None:
        """Add received bytes, no more than are missing."""
        at = 0
        view = memoryview(data)
        while at < len(view):
            begin = at
            for room in self.room(len(view) - at):
                room[:] = view[at : at + len(room)]
                at += len(room)
            del room
            self.filled(at - begin)

    def refusal(self) -> TooLargeError | None:
        """The error of a refused message, once, as soon as its header is complete; None if it is not refused."""
        if not self._why or self._reported or (self._has_header() and self._total - self.left < self._sizes[0]):
            return None
        self._reported = True
        return TooLargeError(self._why, self.frames[0] if self._has_header() and self.frames else b"")

    def is_whole(self) -> bool:
        """Whether all bytes have arrived, and the message is not refused."""
        return not self.left and not self._why

    def _has_header(self) -> bool:
        """Whether the first frame is short enough to be kept when the message is refused."""
        return self._sizes[0] <= MAX_HEADER

    def _make(self, most: int) -> None:
        """Get memory for the header, then for the next frames, `most` bytes or more; of a refused message for the header alone."""
        if self._why and (self.left < self._total or not self._has_header()):
            return
        room, most = 0, most if self.frames else 1
        while room < most and len(self.frames) < len(self._sizes):
            memory = buffers.empty((self._sizes[len(self.frames)],), _BYTE).data
            self.frames.append(memory)
            if len(memory):
                self._made.append(memory)
                room += len(memory)

    def _look(self) -> None:
        """Compare what is missing with the free memory, if it is time."""
        if self.left <= self._next_look and self.left and self._total >= _LOOK_BYTES and not self._why:
            self._next_look = self.left - _LOOK_BYTES
            there = memory_left()
            if self.left > there:
                self._refuse(
                    f"it has {self._total} bytes, and there are only {there} bytes of memory for what is missing"
                )

    def _refuse(self, why: str) -> None:
        self._why = why
        self._made.clear()
        del self.frames[1:]


def first_bytes(views: Iterable[memoryview], most: int, most_buffers: int = MOST_BUFFERS) -> list[memoryview]:
    """The first bytes of some buffers: `most` of them, in `most_buffers` parts at most."""
    found: list[memoryview] = []
    for view in views:
        found.append(view[:most])
        most -= len(view)
        if most <= 0 or len(found) == most_buffers:
            break
    return found


def remaining(buffers: list[memoryview], sent: int) -> list[memoryview]:
    """The remaining buffers after `sent` bytes."""
    for i, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [buffer[sent:], *buffers[i + 1 :]]
        sent -= len(buffer)
    return []
