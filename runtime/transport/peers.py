"""The peers of an endpoint or of a client: their ZeroMQ connections and streams, and which of the two a message takes.

`peer.py` has the states of a connection; this module does what they ask for. Any thread may write into a stream (`write`); the rest
belongs to the thread of the event loop.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from select import POLLIN, POLLOUT

from ..shared_memory.pool import mapper
from ..wire.chunking import PROGRESS_ACK
from ..wire.messages import Message, UnmappedTensorError, decode, encode
from ..wire.reassembly import TooLargeError
from ..wire.schema import WireError
from ..wire.tensors import Frame
from .access_control import AccessControl
from .event_loop import EventLoop
from .fault_injection import LinkFaults, link_faults
from .keys import Keys
from .peer import HANDSHAKE, MAX_BACKLOG, STOP_LENDING, Command, Connect, Offer, Peer
from .stream import Stream
from .stream_listener import TOKEN_BYTES, StreamListener, connect_stream
from .zmq_links import Counters, ZmqLinks, address_of, dialled_name, is_dialled, name_of
from .zmq_sockets import LINGER_MS, RETRY_MS, Context, dialled_host

logger = logging.getLogger(__name__)

MOST_PEERS = 4_096  # a reconnecting peer has a new name: of idle ones, only the latest are kept


class Peers:
    """The peers of one end, by name.

    Args:
        keys: what proves this end to others, and names them. With keys there are no streams over TCP.
        most_bytes_waiting: see `Peer.check_room`.
        take: takes messages, each with its sender.
        refuse: takes the errors of malformed messages in the same way.
        patience_s: see `ZmqLinks`. keeps_gil: see `Stream`.

    Attributes:
        faults: what is injected between peers; None outside tests.
        counters: what has been counted so far.
        links: the ZeroMQ sockets.
        listeners: accept streams, at a server.
    """

    def __init__(
        self, io: EventLoop, context: Context, *, keys: Keys | None,
        take: Callable[[Peer, Message], None], refuse: Callable[[Peer, WireError], None], most_bytes_waiting: int = 0,
        patience_s: float | None = None, keeps_gil: bool = False,
    ) -> None:  # fmt: skip
        self._io = io
        self._takes_tcp = keys is None
        self.counters = counters = Counters()
        self._most_bytes_waiting = most_bytes_waiting
        self._take = take
        self._refuse = refuse
        self.faults = link_faults()
        self._came = self.handle if self.faults is None else partial(self._came_through, self.faults)
        self._keeps_gil = keeps_gil
        self.links = ZmqLinks(io, context, keys, patience_s, counters, self.received, self._greet)
        self.listeners: dict[str, StreamListener] = {}
        self.by_name: dict[bytes, Peer] = {}
        self._sending: dict[Peer, None] = {}  # those for which messages wait outside ZeroMQ
        io.settle, io.patience = self._settle, self._patience

    def listen(
        self, address: str, ip: str, port: int, access: AccessControl | None, expel: Callable[[list[bytes]], None]
    ) -> int:
        """Listen for clients and for their streams. As `ZmqLinks.bind`."""
        port = self.links.bind(address, ip, port, access, expel)
        self.listeners["unix"] = StreamListener(self._io, self._offered)
        if self._takes_tcp:
            self.listeners["tcp"] = StreamListener(self._io, self._offered, ip)
        return port

    def get(self, name: bytes) -> Peer:
        """The peer of a name. Any thread may call this."""
        peer = self.by_name.get(name)
        if peer is None:
            give = partial(self.links.give, name)
            made = Peer(
                name, address_of(name) if is_dialled(name) else "", give, self._takes_tcp, self._most_bytes_waiting
            )
            peer = self.by_name.setdefault(name, made)
        return peer

    # --- the event loop ----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Receive messages over ZeroMQ, and send waiting ones."""
        self.links.settle()
        if self._sending:
            self.send_waiting()

    def _patience(self) -> float:
        """Seconds that the next iteration may wait for an event; -1: without limit."""
        return 0.0 if self.links.unsettled else RETRY_MS / 1000 if self._sending else -1.0

    # --- what comes --------------------------------------------------------------------------------------------------

    def received(self, name: bytes, frames: list[Frame] | WireError) -> None:
        """Handle what came over ZeroMQ: a message, a chunk, or an error."""
        peer = self.get(name)
        if peer.is_ignored:
            self.counters.ignored += 1
            return
        try:
            if isinstance(frames, WireError):
                raise frames
            whole = peer.whole(frames)
        except WireError as error:
            self._refuse(peer, error)
            return
        if whole is not frames and peer.owes_ack(time.monotonic()):
            self.links.give(name, [PROGRESS_ACK])
        if whole is not None:
            self._came(peer, whole)

    def _came_through(self, faults: LinkFaults, peer: Peer, frames: list[Frame]) -> None:
        """Handle one message, unless fault injection drops or delays it."""
        faults.carry(("from", peer.name), frames, lambda: self._io.call_soon(lambda: self.handle(peer, frames)))

    def handle(self, peer: Peer, frames: list[Frame]) -> None:
        """Decode one message. Those of the handshake are handled here."""
        if peer.strikes and peer.is_ignored:
            self.counters.ignored += 1
            return
        try:
            message = decode(frames, mapper.borrow)
        except WireError as error:
            if isinstance(error, UnmappedTensorError):
                self.do(peer, [STOP_LENDING])
            self._refuse(peer, error)
        except (MemoryError, OSError) as error:
            why = f"there is no memory for what it holds: {error or type(error).__name__}"
            self._refuse(peer, TooLargeError(why, frames[0]))
        else:
            if message.kind in HANDSHAKE:
                self.do(peer, peer.heard(message))
                if peer.stream is not None:  # it may be open now
                    self._watch(peer, peer.stream)
            else:
                self._take(peer, message)

    def attend(self, peer: Peer, stream: Stream, event: int, seconds: float = 0.0) -> None:
        """Handle an event of a stream. With `seconds`, wait so long for the message of a `POLLIN`."""
        try:
            if event & POLLOUT and not stream.flush():
                self._watch(peer, stream)
            if event & ~POLLOUT:
                for frames in stream.receive_within(seconds) if seconds else stream.receive():
                    self._came(peer, frames)
                if stream.refused is not None:
                    error, stream.refused = stream.refused, None
                    self._refuse(peer, error)
        except ConnectionError:
            self._leave(peer, stream)
        except WireError as error:
            self._leave(peer, stream)
            self._refuse(peer, error)

    def wait_on_stream(self, peer: Peer, seconds: float) -> bool:
        """Wait up to `seconds` on the stream of one peer alone; False: it has none, or the event loop has something to do."""
        stream = peer.stream
        if stream is None or not stream.is_open or stream.waiting_bytes:
            return False
        if self.links.unsettled or self._sending or self._io.queue:
            return False
        self.attend(peer, stream, POLLIN, seconds)
        return True

    # --- what leaves -------------------------------------------------------------------------------------------------

    def post(self, peer: Peer, frames: list[Frame]) -> None:
        """Pass one message to the peer's stream or to ZeroMQ, or keep it."""
        stream = peer.stream
        if stream is not None and self.write(peer, stream, frames):
            return
        if not peer.post(frames):
            self._drop(peer)
        self._note_waiting(peer)

    def write(self, peer: Peer, stream: Stream, frames: list[Frame]) -> bool:
        """Whether the stream accepted the message (or had to drop it). Any thread may call this."""
        try:
            waiting = stream.send(frames, MAX_BACKLOG)
        except ConnectionError:
            self._io.call_soon(lambda: self._leave(peer, stream))
            return False
        if waiting < 0:
            self._drop(peer)
        elif waiting == 1:
            self._io.call_soon(lambda: self._watch(peer, stream))
        self.counters.sent += 1
        return True

    def _drop(self, peer: Peer) -> None:
        """Count a dropped message."""
        if not self.counters.dropped:
            logger.error("%s: %s takes no messages, %d wait: dropping", self._io.name, name_of(peer.name), MAX_BACKLOG)
        self.counters.dropped += 1

    def send_waiting(self) -> None:
        for peer in list(self._sending):
            peer.pump()
            if not peer.unsent:
                del self._sending[peer]

    def _note_waiting(self, peer: Peer) -> None:
        if peer.unsent:
            self._sending[peer] = None

    # --- the handshake -----------------------------------------------------------------------------------------------

    def _greet(self, name: bytes) -> None:
        """A connection to a peer was made. Its first message leaves before the one for which it was made."""
        for message in self.get(name).greeting():
            self.links.give(name, encode(message))

    def do(self, peer: Peer, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Message):
                self.post(peer, encode(command))
            elif isinstance(command, Offer):
                offer = self.listeners[command.way].offer(secrets.token_hex(TOKEN_BYTES))
                if offer is not None:
                    peer.token = offer.token
                    self.post(peer, encode(Message("stream_offer", offer._asdict())))
            elif isinstance(command, Connect):  # in a thread: it may take a second
                threading.Thread(target=self._connect, args=(peer, command), daemon=True).start()
            else:
                self._upgrade(peer, command)

    def _offered(self, token: str) -> Peer | None:
        """The peer that was offered a stream with this token."""
        return next((peer for peer in self.by_name.values() if peer.token == token), None) if token else None

    def _connect(self, peer: Peer, offer: Connect) -> None:
        stream = connect_stream(offer, dialled_host(peer.address))
        if stream is not None and not self._io.call_soon(lambda: self._upgrade(peer, stream)):
            stream.close()

    def _upgrade(self, peer: Peer, stream: Stream) -> None:
        if self.by_name.get(peer.name) is not peer or not peer.upgrade(stream):
            stream.close()
            return
        self._note_waiting(peer)
        stream.keeps_gil = self._keeps_gil
        self._io.watch(stream.fd, partial(self.attend, peer, stream), stream.events())

    def _watch(self, peer: Peer, stream: Stream) -> None:
        if peer.stream is stream:
            self._io.watch_for(stream.fd, stream.events())

    def _leave(self, peer: Peer, stream: Stream) -> None:
        """Fall back to the ZeroMQ connection: the stream has ended."""
        if peer.stream is not stream:
            return
        self._io.unwatch(stream.fd)
        stream.close()
        peer.stream_ended()
        self.do(peer, peer.greeting())

    # --- the end of peers --------------------------------------------------------------------------------------------

    def accept(self, on: bool) -> bool:
        """Start or stop accepting connections and streams. Whether that succeeded."""
        if not self.links.accept(on):
            return False
        for listener in self.listeners.values():
            listener.is_full = not on
        return True

    def tidy(self) -> None:
        """Drop what waits for peers that are gone, and what they have half sent. Once a second is enough: it asks ZeroMQ."""
        self.links.tidy()
        for peer in list(self.by_name.values()):
            if peer.look() and self.is_gone(peer):
                peer.reassembler.drop()
                if peer.stream is not None:
                    self._leave(peer, peer.stream)
                peer.close_streams()
        for listener in self.listeners.values():
            listener.tidy()
        if len(self.by_name) > MOST_PEERS:
            idle = [peer.name for peer in list(self.by_name.values()) if peer.is_idle()]
            for name in idle[: len(self.by_name) - MOST_PEERS]:
                del self.by_name[name]

    def lives(self, address: str, since: float) -> bool:
        """Whether the process at an address that this end connected to has run since then; see `zmq_sockets.py`."""
        link = self.links.link(dialled_name(address))
        is_cut = self.faults is not None and self.faults.cuts(address)
        return link is not None and link.was_up_since(since) and not is_cut

    def is_gone(self, peer: Peer) -> bool:
        """Whether a client has closed its connection, or has died: ZeroMQ says so when something is sent."""
        gone = self.counters.gone
        self.links.give(peer.name, encode(Message("probe")))
        return self.counters.gone > gone

    def hang_up(self, name: bytes) -> None:
        """Close the connection to a peer, and drop its waiting messages."""
        self.links.hang_up(name)
        peer = self.by_name.pop(name, None)
        if peer is not None:
            self._sending.pop(peer, None)
            if peer.stream is not None:
                self._io.unwatch(peer.stream.fd)
            peer.close_streams()

    def waiting(self) -> int:
        """How many messages wait for slow peers."""
        return sum(peer.waiting() for peer in list(self.by_name.values()))

    def close(self) -> None:
        """Send what waits, for up to `LINGER_MS`, and close all; what the kernel and ZeroMQ have taken still arrives."""
        deadline = time.monotonic() + LINGER_MS / 1000
        while self.waiting() and time.monotonic() < deadline:
            self.send_waiting()
            for peer in list(self.by_name.values()):
                if peer.stream is not None:
                    try:
                        peer.stream.flush()
                    except ConnectionError:
                        peer.close_streams()
            time.sleep(RETRY_MS / 1000)
        for peer in list(self.by_name.values()):
            peer.close_streams()
        for listener in self.listeners.values():
            listener.close()
        self.links.close()
