"""Parcels: large messages over ZeroMQ, in pieces.

Theory of operation. ZeroMQ sends and receives a frame as a whole, and while one is on its way nothing else passes: neither its own
signs of life, so that a frame which takes longer than `HEARTBEAT_TIMEOUT_MS` (`zmq_sockets.py`) breaks the connection, nor any message of
another step. So a message of more than `CHUNK_BYTES` bytes is cut: it goes as a *parcel*, a row of small messages.

    a piece    the label, then bytes of the message: those of its frames, one frame after the other
    a label    0x95, version, what it is, 0 (a byte each), its place in the row (4 bytes), the parcel's number (8 bytes);
               that of the first piece goes on with the size of each frame of the message (8 bytes each)
    a sign     a label alone: pieces are arriving

Who sends keeps no more than `WINDOW_BYTES` bytes of pieces with ZeroMQ, and gives it the next one when one has left:
`ChunkedSender`. In between go small messages of other steps, and those that are true whenever they come. All others keep their
order, so a peer gets one parcel at a time.

Who receives makes memory for the frames as pieces come, and fills it (`reassembly.py`): `Reassembler`. A piece without a parcel, out of its
place, empty, or longer than what is left, is refused, as any broken message is, and ends its parcel; what else comes of that one is
passed over. A parcel that is begun while another one is open ends that one: its connection broke. So a peer holds the memory of one
message at most, of which it has sent the bytes (the system gives memory when it is first written), and until its connection ends.

The last megabytes of a message wait in the system's own buffers, where nobody sees them leave. So whoever receives pieces says so with
a sign, now and then: it is as good as any other sign of life.

This module knows neither sockets nor clocks.
"""

from __future__ import annotations

import itertools
import struct
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from .messages import VERSION, Frame
from .reassembly import PartialMessage
from .schema import WireError, kind_of, numbers_of

CHUNK_BYTES: Final = 512 << 10
"""Bytes of a piece. A link of 128 KiB/s still takes one within `HEARTBEAT_TIMEOUT_MS`, and it stays in the processors' caches."""
WINDOW_BYTES: Final = (
    4 << 20
)  # bytes of pieces that ZeroMQ has at a time: enough to keep it busy until the next ones come
ACK_EVERY_S: Final = 0.25  # seconds, at least, between two signs

_FIRST: Final = 0x95  # no message begins so (`messages.py`)
_PIECE, _SIGN = 0, 1
_LABEL: Final = struct.Struct("<BBBxIQ")
_MOST_BUFFERS: Final = 64  # parts of frames in one piece
_numbers = itertools.count(1)

PROGRESS_ACK: Final = _LABEL.pack(_FIRST, VERSION, _SIGN, 0, 0)


def is_large(frames: Sequence[Frame]) -> bool:
    """Whether a message goes in pieces."""
    return len(frames[0]) > CHUNK_BYTES if len(frames) == 1 else sum(map(len, frames)) > CHUNK_BYTES


def is_chunk(frame: Frame) -> bool:
    """Whether a message that begins so is a piece, or a sign."""
    return len(frame) > 0 and frame[0] == _FIRST


# --- out -------------------------------------------------------------------------------------------------------------

_URGENT: Final = frozenset({"missing", "coming", "abort", "touch"})  # true whenever they come
_OF_STEPS: Final = frozenset({"tensors", "accounted", "want", "denied"})  # in order within a step


class ChunkedSender:
    """What waits for one connection, from a large message on. Used by one thread.

    Args:
        left: called by any thread when a piece has left, to have `pump` called.

    Attributes:
        is_refused: whether there was no room for what was given last: nobody tells when there is.

    >>> sender = Outbox(lambda: None)
    >>> sender.put([b"header", bytes(1_200_000)])
    >>> sender.pump(lambda frames: print([len(frame) for frame in frames]) is None)
    [32, 6, 524282]
    [16, 524288]
    [16, 151430]
    """

    __slots__ = (
        "_ahead", "_bytes_left", "_given", "_held", "_key", "_label", "_left", "_number", "_parts", "_place", "_ready", "_under_way",
        "_whole", "is_refused",
    )  # fmt: skip

    def __init__(self, left: Callable[[], None]) -> None:
        self.is_refused = False
        self._left = left
        self._ahead: deque[list[Frame]] = deque()  # what may overtake the parcel
        self._ready: deque[tuple[int | None, list[Frame]]] = deque()  # what may not, each with its step
        self._held: Counter[int | None] = Counter()  # their steps
        self._whole: list[Frame] = []  # the message that is being cut ...
        self._key: int | None = None  # ... its step ...
        self._parts: deque[memoryview] = deque()  # ... what is left of it ...
        self._number = self._place = 0  # ... which parcel it is, and which piece is next
        self._label = b""
        self._given: deque[tuple[weakref.ref[memoryview], int, list[Frame]]] = deque()  # the pieces that ZeroMQ has
        self._under_way = 0  # bytes of those
        self._bytes_left = 0

    def put(self, frames: list[Frame]) -> None:
        """Take one message."""
        if not self._parts and not self._ready:
            self._hold(_step_of(frames) if is_large(frames) else None, frames)
            return
        kind, step = kind_of(frames[0]), _step_of(frames)
        is_apart = step is not None and step != self._key and self._key is not None
        if kind in _URGENT or (is_apart and not (self._held[None] or self._held[step] or is_large(frames))):
            self._ahead.append(frames)
        else:
            self._hold(step, frames)

    def _hold(self, step: int | None, frames: list[Frame]) -> None:
        self._ready.append((step, frames))
        self._held[step] += 1

    def __len__(self) -> int:
        """How many messages ZeroMQ has not been given completely."""
        return len(self._ahead) + len(self._ready) + bool(self._parts)

    def is_done(self) -> bool:
        """Whether nothing waits, and all pieces have left."""
        self._settle()
        return not len(self) and not self._given

    def bytes_left(self) -> int:
        """How many bytes of pieces have left; a number that grows."""
        self._settle()
        return self._bytes_left

    def pump(self, give: Callable[[list[Frame]], bool], window: int = WINDOW_BYTES) -> None:
        """Give what may go now; `give` says whether there was room."""
        while True:
            self.is_refused = False
            if self._ahead:
                frames = self._ahead[0]
            elif self._parts:
                self._settle()
                if self._under_way >= window:
                    return
                frames = self._piece()
            elif not self._ready:
                return
            elif is_large(self._ready[0][1]):
                self._begin(*self._ready[0])
                self._forget_first()
                continue
            else:
                frames = self._ready[0][1]
            if not give(frames):
                self.is_refused = True
                return
            if self._ahead:
                self._ahead.popleft()
            elif self._parts:
                self._note(frames)
            else:
                self._forget_first()

    def _forget_first(self) -> None:
        step, _ = self._ready.popleft()
        self._held[step] -= 1
        if not self._held[step]:
            del self._held[step]

    def _begin(self, step: int | None, frames: list[Frame]) -> None:
        self._whole, self._key = frames, step
        self._parts.extend(memoryview(frame) for frame in frames if len(frame))
        self._number, self._place = next(_numbers), 0
        self._label = struct.pack(f"<{len(frames)}Q", *map(len, frames))

    def _piece(self) -> list[Frame]:
        label = _LABEL.pack(_FIRST, VERSION, _PIECE, self._place, self._number)
        piece: list[Frame] = [label if self._place else label + self._label]
        room = CHUNK_BYTES
        for part in self._parts:
            piece.append(part[:room])
            room -= len(piece[-1])
            if not room or len(piece) > _MOST_BUFFERS:
                break
        return piece

    def _note(self, piece: list[Frame]) -> None:
        """A piece has been given to ZeroMQ."""
        self._place += 1
        for part in piece[1:]:
            first = self._parts.popleft()
            if len(part) < len(first):
                self._parts.appendleft(first[len(part) :])
            assert isinstance(part, memoryview)
            self._given.append((weakref.ref(part, self._has_left), len(part), self._whole))
            self._under_way += len(part)
        if not self._parts:
            self._whole = []

    def _has_left(self, _: object) -> None:
        self._left()

    def _settle(self) -> None:
        """See what has left."""
        given = self._given
        while given and given[0][0]() is None:
            _, size, _ = given.popleft()
            self._under_way -= size
            self._bytes_left += size


def _step_of(frames: list[Frame]) -> int | None:
    """The step whose messages a message must not overtake; None: no message at all."""
    kind, numbers = numbers_of(frames[0])
    return numbers.get("step") if kind in _OF_STEPS else None


# --- in --------------------------------------------------------------------------------------------------------------


class Reassembler:
    """The parcel that comes on one connection.

    Args:
        most_frames, most_bytes: the largest message that is taken.

    Attributes:
        taken: how many pieces have come, signs too.
        signs: how many of those were signs.
        seen: how many had come when its owner looked last.
        next_ack: when its owner says again that they come.

    >>> sender, reassembler, message = Outbox(lambda: None), Inbox(8, 1 << 21), [b"header", bytes(1_200_000)]
    >>> sender.put(message)
    >>> came = []
    >>> sender.pump(lambda frames: came.append(reassembler.take(frames)) is None)
    >>> came[:2], came[2] == message
    ([None, None], True)
    """

    __slots__ = (
        "_message",
        "_most_bytes",
        "_most_frames",
        "_number",
        "_over",
        "_place",
        "next_ack",
        "received_before",
        "acks",
        "received",
    )

    def __init__(self, most_frames: int, most_bytes: int) -> None:
        self.received = self.acks = self.received_before = 0
        self.next_ack = 0.0
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        self._number = 0  # of the parcel that is open, or 0
        self._over = 0  # of the last one that was refused
        self._place = 0  # of the piece that comes next
        self._message: PartialMessage | None = None

    def is_open(self) -> bool:
        """Whether pieces are missing."""
        return self._number != 0

    def take(self, frames: Sequence[Frame]) -> list[Frame] | None:
        """Take a piece, or a sign; gives the message when that is complete.

        Raises:
            WireError: it is no such thing, or has no place here. The parcel has ended.
            TooLargeError: there is no room for the message. What else comes of it is passed over.
        """
        self.received += 1
        label = bytes(frames[0])
        if len(label) < _LABEL.size:
            raise self._refused(0, "its label is cut off")
        _, version, what, place, number = _LABEL.unpack_from(label)
        if version != VERSION or what not in (_PIECE, _SIGN):
            raise self._refused(
                number, f"it is of kind {what}, version {version}; this process speaks version {VERSION}"
            )
        if what == _SIGN:
            if len(frames) > 1 or label != PROGRESS_ACK:
                raise self._refused(number, "it is a sign, and more")
            self.acks += 1
            return None
        if number == 0:
            raise self._refused(0, "its parcel has no number")
        if place == 0:
            self._begin(number, label)
        elif number != self._number:
            if number == self._over:
                return None  # what a parcel that was refused has left over
            raise self._refused(number, "its parcel has not begun here: the connection broke, or it has ended already")
        elif place != self._place or len(label) != _LABEL.size:
            raise self._refused(
                number, f"it says that it is number {place} of its parcel, which comes to {self._place}"
            )
        assert self._message is not None
        message = self._fill(number, frames[1:], self._message)
        self._place += 1
        refused = message.refusal()
        if refused is not None:
            self._end()
            self._over = number
            raise refused
        if message.left:
            return None
        self._end()
        return message.frames

    def _begin(self, number: int, label: bytes) -> None:
        """A message begins."""
        count, rest = divmod(len(label) - _LABEL.size, 8)
        if rest or not 0 < count <= self._most_frames:
            raise self._refused(number, f"its message has {count} frames, and may have {self._most_frames}")
        sizes = struct.unpack_from(f"<{count}Q", label, _LABEL.size)
        if not any(sizes):
            raise self._refused(number, "its message is empty")
        self._number, self._place = number, 0
        self._message = PartialMessage(sizes, self._most_bytes)

    def _fill(self, number: int, parts: Sequence[Frame], message: PartialMessage) -> PartialMessage:
        if not any(map(len, parts)):
            raise self._refused(number, "it is empty")
        if sum(map(len, parts)) > message.left:
            raise self._refused(number, "it is longer than what is left of its message")
        for part in parts:
            message.put(part)
        return message

    def _end(self) -> None:
        self._number = 0
        self._message = None

    def _refused(self, number: int, why: str) -> WireError:
        self._end()
        self._over = number
        return WireError(f"a piece of a large message cannot be taken: {why}")


__all__ = [
    "CHUNK_BYTES",
    "PROGRESS_ACK",
    "ACK_EVERY_S",
    "WINDOW_BYTES",
    "Reassembler",
    "ChunkedSender",
    "is_large",
    "is_chunk",
]
