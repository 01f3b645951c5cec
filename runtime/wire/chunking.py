"""Large messages over ZeroMQ, in chunks.

Theory of operation. ZeroMQ sends and receives a frame as a whole, and blocks the connection meanwhile (head-of-line blocking). Its
own heartbeats wait, so a frame that takes longer than `HEARTBEAT_TIMEOUT_MS` breaks the connection. So a message of
`LARGE_BYTES` or more is sent as a row of small messages:

    a chunk    a label, then bytes of the message: its frames, one after the other
    a label    0x95, version, 0, 0 (1 byte each), the chunk's index (4 bytes), the large message's number (8 bytes); the label of
               the first chunk also has the size of each frame of the message (8 bytes each)
    a progress acknowledgement    a label alone, with the number 0: chunks are arriving

Messages keep their order, as on a stream, so a peer receives one large message at a time.

The receiver (`Reassembler`) allocates memory as chunks arrive (`reassembly.py`). It refuses a chunk that is empty, out of order, too
long, or of an unknown message, and drops the rest of that message. A new large message ends an incomplete one, whose connection
broke. So a peer occupies the memory of at most one message, and only for bytes that it has sent.

The sender does not see what arrives. So the receiver regularly sends progress acknowledgements, which also count as signs of life.

This module knows neither sockets nor clocks.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from .messages import VERSION
from .reassembly import PartialMessage, first_bytes, remaining
from .schema import WireError
from .tensors import Frame

CHUNK_BYTES: Final = 512 << 10
"""Bytes of a chunk. A link of 128 KiB/s still sends one within `HEARTBEAT_TIMEOUT_MS`, and it fits into the processors' caches."""
LARGE_BYTES: Final = 64 << 10
"""A message of so many bytes is sent in chunks, perhaps in one: their arrival is acknowledged."""
ACK_EVERY_S: Final = 0.25  # least interval of acknowledgements, in seconds

_FIRST: Final = 0x95  # no other message starts with this byte (`messages.py`)
_LABEL: Final = struct.Struct("<BBxxIQ")
_MOST_BUFFERS: Final = 64  # frame parts per chunk
_numbers = itertools.count(1)

PROGRESS_ACK: Final = _LABEL.pack(_FIRST, VERSION, 0, 0)


def is_chunk(frame: Frame) -> bool:
    """Whether a message with this first frame is a chunk or a progress acknowledgement."""
    return len(frame) > 0 and frame[0] == _FIRST


def in_chunks(frames: list[Frame]) -> Iterator[list[Frame]]:
    """What to give to ZeroMQ for a message: its chunks, or the message itself if it is not large.

    >>> [[len(frame) for frame in chunk] for chunk in in_chunks([b"header", bytes(1_200_000)])]
    [[32, 6, 524282], [16, 524288], [16, 151430]]
    """
    if sum(map(len, frames)) < LARGE_BYTES:
        yield frames
        return
    label, number, place = struct.pack(f"<{len(frames)}Q", *map(len, frames)), next(_numbers), 0
    left = [memoryview(frame) for frame in frames if len(frame)]
    while left:
        parts = first_bytes(left, CHUNK_BYTES, _MOST_BUFFERS)
        left = remaining(left, sum(map(len, parts)))
        yield [_LABEL.pack(_FIRST, VERSION, place, number) + label, *parts]
        label, place = b"", place + 1


# --- receiving -------------------------------------------------------------------------------------------------------


class Reassembler:
    """Reassembles the large messages of one connection.

    Args:
        most_frames, most_bytes: the largest accepted message.

    Attributes:
        received: how many chunks and progress acknowledgements have arrived.
        received_before: `received` at the owner's last check.
        next_ack: when the owner sends the next progress acknowledgement.

    >>> reassembler, message = Reassembler(8, 1 << 21), [b"header", bytes(1_200_000)]
    >>> came = [reassembler.take(chunk) for chunk in in_chunks(message)]
    >>> came[:2], came[2] == message
    ([None, None], True)
    """

    def __init__(self, most_frames: int, most_bytes: int) -> None:
        self.received = self.received_before = 0
        self.next_ack = 0.0
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        self._number = 0  # number of the open message, or 0
        self._over = 0  # number of the last refused message
        self._place = 0  # index of the next chunk
        self._message: PartialMessage | None = None

    def is_open(self) -> bool:
        """Whether chunks are missing."""
        return self._message is not None

    def take(self, frames: Sequence[Frame]) -> list[Frame] | None:
        """Take a chunk or a progress acknowledgement; returns the message when it is complete.

        Raises:
            WireError: it is malformed or out of order. The large message is dropped.
            TooLargeError: there is no room for the message. Its remaining chunks are dropped.
        """
        self.received += 1
        label, parts = bytes(frames[0]), frames[1:]
        if label == PROGRESS_ACK and not parts:
            return None
        if len(label) < _LABEL.size:
            raise self._refused(0, "its label is cut off")
        _, version, place, number = _LABEL.unpack_from(label)
        if version != VERSION or not number:
            raise self._refused(number, f"version {version}, message {number}; this process speaks version {VERSION}")
        if place == 0:
            self._begin(number, label)
        elif number == self._over:
            return None  # the rest of a refused message
        elif (number, place, len(label)) != (self._number, self._place, _LABEL.size):
            raise self._refused(
                number,
                f"it is chunk {place} of message {number}, and chunk {self._place} of message {self._number} is the next: "
                "the connection broke, or the message has ended already",
            )
        message, size = self._message, sum(map(len, parts))
        assert message is not None
        if not 0 < size <= message.left:
            raise self._refused(number, f"it has {size} bytes, and {message.left} of its message are missing")
        for part in parts:
            message.put(part)
        self._place += 1
        refused = message.refusal()
        if refused is not None:
            self.drop()
            self._over = number
            raise refused
        if message.left:
            return None
        self.drop()
        return message.frames

    def _begin(self, number: int, label: bytes) -> None:
        count, rest = divmod(len(label) - _LABEL.size, 8)
        if rest or not 0 < count <= self._most_frames:
            raise self._refused(number, f"its message has {count} frames, and may have {self._most_frames}")
        sizes = struct.unpack_from(f"<{count}Q", label, _LABEL.size)
        if not any(sizes):
            raise self._refused(number, "its message is empty")
        self._number, self._place = number, 0
        self._message = PartialMessage(sizes, self._most_bytes)

    def drop(self) -> None:
        """Drop what has come of an incomplete message."""
        self._number = 0
        self._message = None

    def _refused(self, number: int, why: str) -> WireError:
        self.drop()
        self._over = number
        return WireError(f"a chunk of a large message is refused: {why}")
