"""A framed stream socket between two processes, Unix or TCP, beside the ZeroMQ connection on which they met.

Theory of operation. A message over ZeroMQ passes four threads: the sender's, ZeroMQ's on either side, and the receiver's. Between
processes of one machine, most of its time goes into waking them. A stream needs none of ZeroMQ's threads: any thread writes into it, and
the kernel wakes the reader. A round trip takes a sixth of the time and of the processor time. Large messages are read from the socket
into memory that was used before, without ZeroMQ's extra copy.

    a message on a stream    the number of frames (4 bytes), the size of each (8 bytes each), the frames

Writing never blocks. What the kernel does not take waits in the stream, and leaves when its owner calls `flush`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import termios
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from ..wire.messages import Frame, WireError
from ..wire.reassembly import PartialMessage, TooLargeError, first_bytes

_CHUNK: Final = 1 << 16  # bytes read at once; a longer message gets memory of its own
_ONE: Final = struct.Struct("<IQ")  # how most messages begin: they have one frame
_COUNT: Final = struct.Struct("<I")
_MOST_BUFFERS: Final = 512  # in one call; the kernel's limit is 1024
_JOINED: Final = (
    16 << 10
)  # a message of one frame and so many bytes is copied behind its size: one buffer is sent faster than two
_MOST_READ: Final = 4 << 20  # bytes of a long message that are read before others have their turn
_PIECE: Final = 512 << 10
"""Bytes of a long message that one call of the kernel reads or writes. During a call the kernel's half of the socket is locked, and
what arrives, or is acknowledged, has to wait for its end: calls without bound let the two ends take turns instead of working at the
same time, and move the bytes through memory instead of through the caches. Over TCP a reader is not woken for less, either, while
so much is to come: else each packet would wake it, and the two would fight for the socket."""
_NOW: Final = socket.MSG_DONTWAIT
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
_TIMEVAL: Final = struct.Struct("@ll")

# `send` of a socket lets other threads have the interpreter meanwhile; this one does not.
_send_keeping_gil = ctypes.PyDLL(None, use_errno=True).send
_send_keeping_gil.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send_keeping_gil.restype = ctypes.c_ssize_t


class Stream:
    """One end of a stream. `send` may be called from any thread, the rest by its owner.

    Args:
        sock: a connected stream socket; it becomes the stream's own.
        most_frames, most_bytes: the largest message that is taken.

    Attributes:
        fd: its descriptor.
        waiting_bytes: how much of what was sent the kernel has not taken yet.
        holds: whether a thread that sends a small message keeps the GIL during the call, which never waits. Where many
            threads take turns, it is shorter than the way to the next turn; where there is one, it costs half a microsecond more.
        is_open: whether the other end has said its last words on ZeroMQ's connection, so that the stream is to be read.
        refused: why a message was refused for its size, until the owner has told its sender.

    >>> a, b = (Stream(s, 8, 1 << 20) for s in socket.socketpair())
    >>> a.send([b"head", b"tensor"])
    0
    >>> b.receive()
    [[b'head', b'tensor']]
    """

    __slots__ = (
        "_gathers", "_is_tcp", "_lock", "_message", "_most_bytes", "_most_frames", "_part", "_patience_s", "_socket", "_taken",
        "_waiting", "fd", "keeps_gil", "is_open", "refused", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, most_frames: int, most_bytes: int) -> None:
        sock.setblocking(True)  # no call waits, except for `receive_within`
        self._socket = sock
        self._patience_s = -1.0
        self.fd = sock.fileno()
        self.keeps_gil = False
        self.is_open = False
        self._is_tcp = sock.family != socket.AF_UNIX
        self._gathers = False  # whether the kernel keeps bytes until there is a piece of them
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._waiting: deque[list[memoryview]] = deque()  # messages, or what is left of the first
        self.waiting_bytes = 0  # what is left of them
        self._taken = 0  # bytes that the kernel has taken
        self._part = b""  # the beginning of a message
        self._message: PartialMessage | None = None  # a long message that is arriving
        self.refused: TooLargeError | None = None

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, frames: Sequence[Frame], most_waiting: int | None = None) -> int:
        """Write a message, or keep it until `flush`; gives how many messages wait now.

        Frames must not change until they have left. With `most_waiting`, the message is dropped if so many wait already, and the
        answer is -1.

        Raises:
            ConnectionError: the other end has gone, or this one is closed.
        """
        if len(frames) == 1:
            size = len(frames[0])
            head = _ONE.pack(1, size)
            if size <= _JOINED:
                head, size, frames = head + frames[0], 0, ()
        else:
            sizes = [len(f) for f in frames]
            size = sum(sizes)
            head = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        total = len(head) + size
        with self._lock:
            sent = 0
            if not self._waiting:
                if size <= _PIECE:
                    try:
                        if frames:
                            sent = self._socket.sendmsg((head, *frames[: _MOST_BUFFERS - 1]), (), _NOW)
                        else:
                            sent = self._send_keeping_gil(head) if self.keeps_gil else self._socket.send(head, _NOW)
                    except BlockingIOError:
                        pass
                    except OSError as e:  # whatever it is, half a message may have left
                        raise ConnectionError(e.errno, f"the stream is closed: {e.strerror}") from None
                    self._taken += sent
                    if sent == total:
                        return 0
            elif most_waiting is not None and len(self._waiting) >= most_waiting:
                return -1
            self._waiting.append(_rest([memoryview(b) for b in (head, *frames)], sent))
            self.waiting_bytes += total - sent
            if size > _PIECE and len(self._waiting) == 1:
                with contextlib.suppress(BlockingIOError):
                    self._write_waiting()
            return len(self._waiting)

    def _send_keeping_gil(self, data: bytes) -> int:
        sent: int = _send_keeping_gil(self._socket.fileno(), data, len(data), _NOW | _NO_SIGNAL)
        if sent < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))  # of its right class
        return sent

    def flush(self) -> int:
        """Write what waits, as far as the kernel takes it; gives how many messages wait still. Raises as `send` does."""
        with self._lock, contextlib.suppress(BlockingIOError):
            self._write_waiting()
        return len(self._waiting)

    def _write_waiting(self) -> None:
        while self._waiting:
            left = self._waiting[0]
            while left:
                sent = self._write(first_bytes(left, _PIECE))
                self.waiting_bytes -= sent
                self._taken += sent
                left[:] = _rest(left, sent)
            self._waiting.popleft()

    def waiting(self) -> int:
        """How many messages wait for the other end to take some."""
        return len(self._waiting)

    def bytes_left(self) -> int:
        """How many bytes have been acknowledged by the other end; a number that grows, where the kernel cannot tell them exactly."""
        held = bytearray(4)
        with contextlib.suppress(OSError):  # a system that cannot tell
            fcntl.ioctl(self.fd, termios.TIOCOUTQ, held)
        return self._taken - int.from_bytes(held, sys.byteorder, signed=True)

    def events(self) -> int:
        """What its owner should `poll` for."""
        return (select.POLLIN if self.is_open else 0) | (select.POLLOUT if self._waiting else 0)

    def _write(self, buffers: Sequence[Frame | memoryview]) -> int:
        try:
            return self._socket.sendmsg(buffers, (), _NOW)
        except BlockingIOError:
            raise
        except OSError as e:  # whatever it is, half a message may have left
            raise ConnectionError(e.errno, f"the stream is closed: {e.strerror}") from None

    # --- receiving -------------------------------------------------------------------------------------------------

    def receive_within(self, seconds: float) -> list[list[Frame]]:
        """As `receive`, but waits so long for something to come: one call of the kernel instead of two, for who waits for nothing else."""
        if seconds != self._patience_s:
            whole, part = divmod(max(seconds, 1e-3), 1.0)  # 0 would be for ever
            patience = _TIMEVAL.pack(int(whole), int(part * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
            self._patience_s = seconds
        return self.receive(0)

    def receive(self, flags: int = _NOW) -> list[list[Frame]]:
        """The messages that have come; waits for none. Frames are `bytes`, or arrays of bytes that nobody else has.

        Raises:
            ConnectionError: the other end has gone, or this one is closed.
            WireError: this is no message; the stream is of no further use.
        """
        if self._message is not None:
            return self._fill(flags, self._message)
        try:
            data = self._socket.recv(_CHUNK, flags)
        except BlockingIOError:
            return []
        except OSError as e:
            raise ConnectionError(e.errno, f"the stream is closed: {e.strerror}") from None
        if not data:
            raise ConnectionResetError("the other end of the stream has gone")
        if self._part:
            data = self._part + data
            self._part = b""
        at, end = 0, len(data)
        if end > _ONE.size:  # mostly it is one message of one frame
            count, size = _ONE.unpack_from(data)
            if count == 1 and size + _ONE.size == end and size <= self._most_bytes:
                return [[data[_ONE.size :]]]
        messages: list[list[Frame]] = []
        while at < end:
            sizes = self._sizes(data, at)
            if sizes is None:
                self._part = data[at:]
                break
            start = at + 4 + 8 * len(sizes)
            total = sum(sizes)
            if start + total > end:
                if total > _CHUNK:
                    self._begin(sizes, memoryview(data)[start:])
                else:
                    self._part = data[at:]
                break
            frames: list[Frame] = []
            for size in sizes:
                frames.append(data[start : start + size])
                start += size
            messages.append(frames)
            at = start
        return messages

    def _sizes(self, data: bytes, at: int) -> Sequence[int] | None:
        """The sizes of the frames of the message that begins there; None if not all of them have come."""
        if len(data) - at < 4:
            return None
        (count,) = _COUNT.unpack_from(data, at)
        if not 0 < count <= self._most_frames:
            raise WireError(f"a message of {count} frames on a stream; it may have {self._most_frames}")
        if len(data) - at < 4 + 8 * count:
            return None
        return struct.unpack_from(f"<{count}Q", data, at + 4)

    def _begin(self, sizes: Sequence[int], data: memoryview) -> None:
        """A long message begins, of which `data` has come."""
        self._message = message = PartialMessage(sizes, self._most_bytes)
        message.put(data)
        self.refused = self.refused or message.refusal()
        if self._is_tcp and message.left >= 2 * _PIECE:
            self._gather(_PIECE)

    def _gather(self, least: int) -> None:
        """Have the kernel tell of what comes when it is so many bytes."""
        with contextlib.suppress(OSError):  # a system that cannot tells of everything
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
        self._gathers = least > 1

    def _fill(self, flags: int, message: PartialMessage) -> list[list[Frame]]:
        """Read more of a long message. With `flags` that wait, the first piece is waited for."""
        read = 0
        while message.left and read < _MOST_READ:
            try:
                got = self._socket.recvmsg_into(message.room(_PIECE), 0, _NOW if read else flags)[0]
            except BlockingIOError:
                break
            except OSError as e:
                raise ConnectionError(e.errno, f"the stream is closed: {e.strerror}") from None
            if not got:
                raise ConnectionResetError("the other end of the stream has gone")
            read += got
            message.filled(got)
            if self._gathers and message.left < _PIECE:
                self._gather(1)
        self.refused = self.refused or message.refusal()
        if message.left:
            return []
        self._message = None
        return [message.frames] if message.is_whole() else []

    def close(self) -> None:
        """Close this end; what the kernel has taken still arrives."""
        self._socket.close()


def _rest(buffers: list[memoryview], sent: int) -> list[memoryview]:
    """What is left of buffers after so many bytes."""
    for i, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [buffer[sent:], *buffers[i + 1 :]]
        sent -= len(buffer)
    return []
