"""One end of a connection between two processes. A client and a server use it alike (`peers.py`).

It has no sockets and no clock. Its owner passes what arrives, and the time; it answers with what to do: a `Message` to send, or one of
the commands below. So its states can be tested by scripts and random interleavings of events.

**Shared memory.** Each process tries to map the other's memory. The connecting peer names a page of its shared memory in a `hello`.
The other maps it, and answers whether that worked (`readable`), with a page of its own. The first peer does the same with that page.
Large tensors to a peer that mapped our page are then lent instead of sent. A peer on another machine, of another user, or in another
container cannot map it, and gets its tensors in messages. If a peer later cannot map a reference (another machine took over the
address), it sends `hello` with `readable` false, and tensors to it are sent again.

**Stream.** Both ends meet over ZeroMQ, and upgrade to a stream:

    called end    stream_offer        connect to this Unix socket (if I mapped your memory), or to this TCP port, and send this token
    caller        stream_connected    I have; this is my last message here, the next ones come on the stream
    called end    stream_open         this is my last message here as well

Each end reads the stream only after the other's last ZeroMQ message, so no message overtakes another. When the stream ends, both
ends fall back to ZeroMQ, whose connection stays open beside it. The caller says `hello` again, and is offered another stream; after
`MOST_STREAMS` of them it stays with ZeroMQ.

**What waits.** ZeroMQ's bounded queue comes first, then `post`'s. Large messages are cut into chunks.

**Malformed messages** are strikes. The messages of a peer with `MAX_STRIKES` are ignored.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ...graph.core.errors import ResourceExhaustedError
from ...graph.core.interpreter_state import process_id
from ..shared_memory.pool import mapper, pool_of_process
from ..shared_memory.segment import MappingError, Reference
from ..wire.chunking import ACK_EVERY_S, LARGE_BYTES, Reassembler, in_chunks, is_chunk
from ..wire.messages import MAX_FRAMES, Lend, Message, encode
from ..wire.reassembly import most_bytes
from ..wire.tensors import Frame
from .stream import Stream

MAX_STRIKES = 16  # malformed messages after which a peer is ignored
MAX_BACKLOG = 10_000  # messages to one peer that wait, in addition to `HIGH_WATER` in ZeroMQ
MOST_STREAMS = 8  # of one connection, one after the other: something on the way ends them
SETTING = "DOVETAIL_SEND_QUEUE_MB"

HANDSHAKE: Final = frozenset(("hello", "probe", "stream_offer", "stream_connected", "stream_open"))
"""The kinds that `Peer.heard` handles. A `probe` says nothing: ZeroMQ reports whether its receiver is still connected."""

STOP_LENDING = Message("hello", {"memory": None, "readable": False})
"""The answer to a peer whose reference we cannot map."""


class Connect(NamedTuple):
    """Connect a stream to what the other end offers, and call `Peer.upgrade` if that succeeds."""

    way: str  # unix or tcp
    name: str  # of the Unix socket, or the port
    token: str


class Offer(NamedTuple):
    """Send the other end a `stream_offer`, if there is a listener of this way."""

    way: str


Command: TypeAlias = Message | Connect | Offer | Stream
"""What the owner of a peer has to do. A message: send it. A stream: call `Peer.upgrade`."""


class Peer:
    """The other process of a connection, as this one sees it. One thread uses it at a time, except for `check_room`.

    Args:
        address: of the server that this end has called; '' at the other end.
        give: passes one message to ZeroMQ, and returns whether there was room.
        takes_tcp: whether streams over TCP may be used: not with keys.
        most_bytes_waiting: see `check_room`; 0: no limit.

    Attributes:
        stream: the stream that messages are sent on; None: they are sent on ZeroMQ.
        token: what the peer was told to send on its stream, until that has come: then it is `accepted`, until `stream_connected`.
        lend: lends tensors to the peer; None if it cannot map our memory.
        unsent: the messages that ZeroMQ has not taken yet, in chunks. reassembler: has the one that is being received in chunks.
        pid: the peer's process, if its memory can be mapped; else 0.
        queued: messages in the queue of the owner's thread: later ones must not overtake them. queued_bytes: their bytes.
    """

    def __init__(
        self, name: bytes, address: str, give: Callable[[list[Frame]], bool], takes_tcp: bool,
        most_bytes_waiting: int = 0,
    ) -> None:  # fmt: skip
        self.name = name
        self.address = address
        self.is_caller = bool(address)  # whether this end made the connection
        self._pool = pool_of_process()
        self._give = give
        self._takes_tcp = takes_tcp
        self.stream: Stream | None = None
        self.token = ""
        self.accepted: Stream | None = None
        self._may_offer = not address  # a greeting gets one offer
        self._streams_left = MOST_STREAMS
        self.lend: Lend | None = None
        self.unsent: deque[deque[list[Frame]]] = deque()
        self._unsent_bytes = 0
        self.reassembler = Reassembler(MAX_FRAMES, most_bytes())
        self._most_bytes_waiting = most_bytes_waiting
        self.queued = self.queued_bytes = self.strikes = 0
        self.pid = 0
        self._told = False  # whether it was told our page

    # --- the handshake -----------------------------------------------------------------------------------------------

    def greeting(self) -> list[Message]:
        """What the end that made the connection says first: its shared-memory page, and whether it takes a stream over TCP."""
        if not self.is_caller or (self._pool is None and not self._takes_tcp):
            return []
        return [Message("hello", {"memory": self._page(), "readable": False, "stream": self._takes_tcp})]

    def _page(self) -> list[int] | None:
        """Our page for the peer, once."""
        if self._pool is None or self._told:
            return None
        self._told = True
        return list(self._pool.page())

    def heard(self, message: Message) -> list[Command]:
        kind, fields = message.kind, message.fields
        if kind == "hello":
            return self._met(fields.get("memory"), fields["readable"], bool(fields.get("stream")))
        if kind == "stream_offer" and self.is_caller and self.stream is None:
            return [Connect(**fields)] if fields["way"] == "unix" or self._takes_tcp else []
        if kind == "stream_connected" and self.accepted is not None:
            accepted, self.accepted = self.accepted, None
            return [accepted]
        if kind == "stream_open" and self.is_caller and self.stream is not None:
            self.stream.is_open = True
        return []

    def _met(self, page: Any, reads_ours: bool, takes_tcp: bool) -> list[Command]:
        """Try to map the peer's page, and answer."""
        out: list[Command] = []
        readable = False
        if self._pool is not None:
            if page is not None:
                with contextlib.suppress(MappingError):
                    mapper.borrow(page, 1)
                    readable, self.pid = True, Reference(*page).pid
                out.append(Message("hello", {"memory": self._page(), "readable": readable}))
            pool, pid = self._pool, self.pid
            self.lend = (lambda array, alone: pool.lend(array, pid, alone)) if reads_ours and pid > 0 else None
            if self.lend is not None and self.pid != process_id():
                self._pool.is_read = True
        if self._may_offer and (readable or (takes_tcp and self._takes_tcp)):
            self._may_offer = False
            out.append(Offer("unix" if readable else "tcp"))
        return out

    def upgrade(self, stream: Stream) -> bool:
        """Send on a stream from now on. The last message on ZeroMQ is posted (`post`); False: it could not be."""
        last = Message("stream_connected" if self.is_caller else "stream_open")
        if self.stream is not None or not self.post(encode(last)):
            return False
        stream.is_open = not self.is_caller
        self.stream = stream
        return True

    def stream_ended(self) -> None:
        """Fall back to ZeroMQ. The end that made the connection says `greeting` again."""
        self.stream = self.lend = None
        self.pid, self._told = 0, False
        self._streams_left -= 1
        self._may_offer = not self.is_caller and self._streams_left > 0

    def close_streams(self) -> None:
        for stream in (self.stream, self.accepted):
            if stream is not None:
                stream.close()
        self.stream = self.accepted = None

    # --- what leaves over ZeroMQ ---------------------------------------------------------------------------------------

    def post(self, frames: list[Frame]) -> bool:
        """Pass one message to ZeroMQ, or keep it until `pump`. False: it is dropped, since `MAX_BACKLOG` messages wait."""
        chunks = deque(in_chunks(frames))
        if not self.unsent:
            self._pass(chunks)
        if chunks:
            if len(self.unsent) >= MAX_BACKLOG:
                return False
            self.unsent.append(chunks)
            self._unsent_bytes += sum(map(_size, chunks))
        return True

    def _pass(self, chunks: deque[list[Frame]]) -> int:
        """Pass a message to ZeroMQ, as far as there is room; the bytes that it took."""
        taken = 0
        while chunks and self._give(chunks[0]):
            taken += _size(chunks.popleft())
        return taken

    def check_room(self, name: str, frames: Sequence[Frame]) -> None:
        """ResourceExhaustedError: too many bytes wait for the peer of this name. Any thread may call this.

        A message that is small, or before which nothing waits, goes in any case.
        """
        size, stream = _size(frames), self.stream
        waiting = self.queued_bytes + self._unsent_bytes + (0 if stream is None else stream.waiting_bytes)
        most = self._most_bytes_waiting
        if most and waiting and size >= LARGE_BYTES and waiting + size > most:
            raise ResourceExhaustedError.of(
                f"{size} bytes cannot be sent to {name}: {waiting} bytes wait for it already, and more would be over the limit of "
                f"{most} ({SETTING} of this process). It takes nothing, or too slowly for what it is sent: see whether it "
                "runs, send less at once, or raise the limit"
            )

    def pump(self) -> None:
        """Pass what waits to ZeroMQ, as far as there is room."""
        while self.unsent:
            self._unsent_bytes -= self._pass(self.unsent[0])
            if self.unsent[0]:
                return
            self.unsent.popleft()

    def waiting(self) -> int:
        return len(self.unsent) + (0 if self.stream is None else self.stream.waiting())

    def moved(self) -> int:
        """A number that changes while large messages arrive in chunks, or the peer acknowledges them."""
        return self.reassembler.received

    # --- what comes over ZeroMQ ----------------------------------------------------------------------------------------

    def whole(self, frames: list[Frame]) -> list[Frame] | None:
        """The message that these frames are or complete; None: they are a chunk, and more are to come.

        Raises:
            WireError: the chunk is malformed or out of order.
        """
        return self.reassembler.take(frames) if is_chunk(frames[0]) else frames

    def owes_ack(self, now: float) -> bool:
        """Whether a progress acknowledgement of the chunk that has come is due."""
        part = self.reassembler
        if self.is_caller or now < part.next_ack:
            return False
        part.next_ack = now + ACK_EVERY_S
        return True

    @property
    def is_ignored(self) -> bool:
        """Whether the peer has sent too many malformed messages."""
        return self.strikes >= MAX_STRIKES

    # --- liveness ------------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """To be called about once a second: whether to ask if the peer is gone. Messages wait for it, or half of one has come."""
        if self.is_caller:
            return False
        part = self.reassembler
        stalls = part.is_open() and part.received == part.received_before
        part.received_before = part.received
        return stalls or self.accepted is not None or (self.stream is not None and self.stream.waiting() > 0)

    def is_idle(self) -> bool:
        """Whether nothing is lost when this peer is forgotten."""
        is_used = self.stream or self.accepted or self.queued or self.unsent or self.reassembler.is_open()
        return not (self.is_caller or is_used)


def _size(frames: Sequence[Frame]) -> int:
    return sum(map(len, frames))
