"""A framed stream socket between two processes, Unix or TCP, used together with the ZeroMQ connection over which they met.

Theory of operation. A message over ZeroMQ passes four threads: the sender's, ZeroMQ's on either side, and the receiver's. Between
processes of one machine, most of its time goes into waking them. A stream needs none of ZeroMQ's threads: any thread writes into it, and
the kernel wakes the reader. A round trip takes a sixth of the time and of the processor time. Large messages are read from the socket
into reused memory, without ZeroMQ's extra copy.

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

from ..wire.messages import MAX_FRAMES
from ..wire.reassembly import MOST_BUFFERS, PartialMessage, TooLargeError, first_bytes, most_bytes, remaining
from ..wire.schema import WireError
from ..wire.tensors import Frame

_CHUNK: Final = 1 << 16  # bytes per read; a longer message gets its own memory
_ONE: Final = struct.Struct("<IQ")  # the prefix of a message with one frame, the most common kind
_ONE_BYTES: Final = _ONE.size
_COUNT: Final = struct.Struct("<I")
# A message of one frame, up to this size, is copied behind its header: one buffer is sent faster than two.
_JOINED: Final = 16 << 10
_MOST_READ: Final = 4 << 20  # bytes of a long message that are read before other streams are served
_GATHERED: Final = 4 << 20  # a message with so much to come has a low-water mark; a shorter one is slower with it
_PIECE: Final = 512 << 10
"""Bytes of a long message per kernel call, for reads and writes. During a call the kernel locks its half of the socket: arriving
data and acknowledgements wait for the end of the call. With unbounded calls the two ends would alternate instead of overlapping, and
the data would pass through memory instead of the caches. Over TCP it is also the low-water mark that wakes a reader while so much is to
come. Otherwise each packet would wake it, and the two ends would contend for the socket."""
_NOW: Final = socket.MSG_DONTWAIT
_QUIET: Final = int(_NOW | getattr(socket, "MSG_NOSIGNAL", 0))
_TIMEVAL: Final = struct.Struct("@ll")

# `socket.send` releases the GIL; this call does not.
_send_keeping_gil = ctypes.PyDLL(None, use_errno=True).send
_send_keeping_gil.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send_keeping_gil.restype = ctypes.c_ssize_t


class Stream:
    """One end of a stream. `send` may be called from any thread, the rest by its owner.

    Args:
        sock: a connected stream socket; the stream owns it from now on.
        most_frames, most: the largest accepted message; None: `most_bytes()`.

    Attributes:
        waiting_bytes: bytes of sent messages that the kernel has not accepted yet.
        keeps_gil: whether a thread keeps the GIL while it sends a small message; the call never blocks. With many threads this
            is faster than waiting for the GIL afterwards; with few it delays the others.
        is_open: whether the other end has sent its last message on the ZeroMQ connection, so that the stream may be read.
        refused: the error of a message that was too large, until the owner has reported it to the sender.

    >>> a, b = (Stream(s, 8, 1 << 20) for s in socket.socketpair())
    >>> a.send([b"head", b"tensor"])
    0
    >>> b.receive()
    [[b'head', b'tensor']]
    """

    def __init__(self, sock: socket.socket, most_frames: int = MAX_FRAMES, most: int | None = None) -> None:
        sock.setblocking(True)  # no call blocks, except in `receive_within`
        self._socket = sock
        self._patience_s = -1.0
        self.fd = sock.fileno()
        self.keeps_gil = False
        self.is_open = False
        self._is_tcp = sock.family != socket.AF_UNIX
        self._gathers = False  # whether a low-water mark delays wake-ups (SO_RCVLOWAT)
        self._most_frames = most_frames
        self._most_bytes = most_bytes() if most is None else most
        self._lock = threading.Lock()
        self._waiting: deque[list[memoryview]] = deque()  # messages; the first may be partly sent
        self.waiting_bytes = 0  # bytes in `_waiting`
        self._taken = 0  # bytes that the kernel has accepted
        self._part = b""  # the start of an incomplete message
        self._message: PartialMessage | None = None  # a long message that is being received
        self.refused: TooLargeError | None = None

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, frames: Sequence[Frame], most_waiting: int | None = None) -> int:
        """Write a message, or queue it until `flush`. Returns how many messages wait now.

        Frames must not change until they have left. With `most_waiting`, a message is dropped if that many wait already, and the
        result is -1.

        Raises:
            ConnectionError: the other end is gone, or this end is closed.
        """
        size = len(frames[0])
        if len(frames) == 1 and size <= _JOINED:
            buffers: list[Frame] = [_ONE.pack(1, size) + frames[0]]
            size += _ONE_BYTES
        else:
            buffers = [struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames)), *frames]
            size = sum(map(len, buffers))
        sent = 0
        with self._lock:
            waiting = len(self._waiting)
            if not waiting and size <= _PIECE:
                sent = self._write(buffers)
                if sent == size:
                    return 0
            elif most_waiting is not None and waiting >= most_waiting:
                return -1
            self._waiting.append(remaining([memoryview(b) for b in buffers], sent))
            self.waiting_bytes += size - sent
            if not waiting and size > _PIECE:
                self._write_waiting()
            return len(self._waiting)

    def _write(self, buffers: Sequence[Frame]) -> int:
        """How many bytes the kernel takes; 0: it has no room."""
        try:
            if len(buffers) > 1:
                sent = self._socket.sendmsg(buffers[:MOST_BUFFERS], (), _NOW)
            elif self.keeps_gil and isinstance(buffers[0], bytes):
                sent = self._send_keeping_gil(buffers[0])
            else:
                sent = self._socket.send(buffers[0], _NOW)
        except BlockingIOError:
            return 0
        except OSError as e:  # in any case: half a message may have left
            raise ConnectionError(e.errno, f"the stream is closed: {e.strerror}") from None
        self._taken += sent
        return sent

    def _send_keeping_gil(self, data: bytes) -> int:
        sent: int = _send_keeping_gil(self._socket.fileno(), data, len(data), _QUIET)
        if sent < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))  # of its right class
        return sent

    def flush(self) -> int:
        """Write queued messages, as far as the kernel accepts them. Returns how many still wait. Raises as `send` does."""
        with self._lock:
            self._write_waiting()
        return len(self._waiting)

    def _write_waiting(self) -> None:
        while self._waiting:
            left = self._waiting[0]
            while left:
                sent = self._write(first_bytes(left, _PIECE))
                if not sent:
                    return
                self.waiting_bytes -= sent
                left[:] = remaining(left, sent)
            self._waiting.popleft()

    def waiting(self) -> int:
        """How many messages wait for the other end."""
        return len(self._waiting)

    def bytes_left(self) -> int:
        """Bytes that the other end has acknowledged. Where the kernel has no exact count: a number that grows with progress."""
        unacknowledged = bytearray(4)
        with contextlib.suppress(OSError):  # it is closed
            fcntl.ioctl(self.fd, termios.TIOCOUTQ, unacknowledged)
        return self._taken - int.from_bytes(unacknowledged, sys.byteorder, signed=True)

    def events(self) -> int:
        return (select.POLLIN if self.is_open else 0) | (select.POLLOUT if self._waiting else 0)

    # --- receiving -------------------------------------------------------------------------------------------------

    def receive_within(self, seconds: float) -> list[list[Frame]]:
        """As `receive`, but waits up to `seconds`. One kernel call instead of two, for a caller that waits on this stream alone."""
        if seconds != self._patience_s:
            whole, part = divmod(max(seconds, 1e-3), 1.0)  # 0 would mean no timeout
            patience = _TIMEVAL.pack(int(whole), int(part * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
            self._patience_s = seconds
        return self.receive(0)

    def receive(self, flags: int = _NOW) -> list[list[Frame]]:
        """Receive the complete messages without waiting. Frames are `bytes`, or byte arrays that the caller alone owns.

        Raises:
            ConnectionError: the other end is gone, or this end is closed.
            WireError: the data is malformed; the stream is unusable.
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
        if end > _ONE_BYTES:  # the common case: one message of one frame
            count, size = _ONE.unpack_from(data)
            if count == 1 and size + _ONE_BYTES == end and size <= self._most_bytes:
                return [[data[_ONE_BYTES:]]]
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
        """The frame sizes of the message at `at`; None while some of them are missing."""
        if len(data) - at < 4:
            return None
        (count,) = _COUNT.unpack_from(data, at)
        if not 0 < count <= self._most_frames:
            raise WireError(f"a message of {count} frames on a stream; it may have {self._most_frames}")
        if len(data) - at < 4 + 8 * count:
            return None
        return struct.unpack_from(f"<{count}Q", data, at + 4)

    def _begin(self, sizes: Sequence[int], data: memoryview) -> None:
        """Start to receive a long message, of which `data` has arrived."""
        self._message = message = PartialMessage(sizes, self._most_bytes)
        message.put(data)
        self.refused = self.refused or message.refusal()
        if self._is_tcp and message.left >= _GATHERED:
            self._gather(_PIECE)

    def _gather(self, least: int) -> None:
        """Set the low-water mark: the kernel reports data when at least this many bytes have arrived."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
        self._gathers = least > 1

    def _fill(self, flags: int, message: PartialMessage) -> list[list[Frame]]:
        """Read more of a long message. With `flags` that block, wait for the first part."""
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
        """Close this end. Data that the kernel has accepted still arrives."""
        with self._lock:  # another thread must not write to a descriptor that is another file's by then
            self._socket.close()
