"""The streams of a server's endpoint: the server and its peers upgrade from ZeroMQ connections to streams, and fall back.

`connection_upgrade.py` has the messages. Any thread may write into a stream; the rest belongs to the I/O thread.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Any

from ..wire.codec import encode
from ..wire.messages import Frame, Message, WireError
from ..wire.reassembly import most_bytes
from .connection_upgrade import MemoryNegotiation, first_hello
from .event_loop import EventLoop
from .keys import Keys
from .stream import Stream
from .stream_listener import OFFERS, StreamListener, connect_stream
from .zmq_router import MAX_BACKLOG, Counters, ZmqRouter, address_of, is_dialled
from .zmq_sockets import MAX_FRAMES, dialled_host


class ServerStreams:
    """The streams of an endpoint.

    Args:
        io: the event loop that watches them.
        router: the ZeroMQ connections.
        ip: the address of the listener for streams over TCP.
        keys: if there are any, there are no streams over TCP.
        counters: the endpoint's counters.
        sharing: which peers can map whose memory.
        post: sends a message to a peer over its stream or ZeroMQ.
        take: takes whole messages, each with the name of its sender.
        refuse: takes malformed messages in the same way.

    Attributes:
        by_peer: the streams that are used for sending.
    """

    def __init__(
        self,
        io: EventLoop,
        router: ZmqRouter,
        *,
        ip: str,
        keys: Keys | None,
        counters: Counters,
        sharing: MemoryNegotiation,
        post: Callable[[bytes, list[Frame]], None],
        take: Callable[[bytes, list[Frame]], None],
        refuse: Callable[[bytes, WireError], None],
    ) -> None:
        self._io = io
        self._router = router
        self._keys = keys
        self._counters = counters
        self._sharing = sharing
        self._post = post
        self._take = take
        self._refuse = refuse
        self._limits = MAX_FRAMES, most_bytes()
        self._listeners = [StreamListener(io, *self._limits)]  # Unix, and TCP
        if keys is None:
            self._listeners.append(StreamListener(io, *self._limits, ip))
        self.by_peer: dict[bytes, Stream] = {}
        # streams to use once the last ZeroMQ messages have left
        self._coming: dict[bytes, tuple[Stream, list[str]]] = {}

    # --- upgrading -------------------------------------------------------------------------------------------------

    def greet(self, peer: bytes, hello: Message) -> None:
        """Handle one step of the handshake: see `connection_upgrade.py`, then `stream_listener.py`."""
        answer = self._sharing.heard(peer, hello)
        said = hello.fields.get("stream") or [""]
        if is_dialled(peer):
            if said[0] == "open" and peer in self.by_peer:
                self.by_peer[peer].is_open = True
                self._await(peer, self.by_peer[peer])
            elif said[0] in OFFERS and not self._has(peer) and (said[0] == "unix" or self._keys is None):
                # in a thread: it may take a second
                threading.Thread(target=self._connect_stream, args=(peer, said), daemon=True).start()
        elif said[0] == "connected":
            for listener in self._listeners:
                stream = listener.claim(peer, said[-1])
                if stream is not None:
                    self._change_over(peer, stream, ["open"])
                    break
        elif said[0] in ("", "request"):
            offer = None
            if answer is not None and answer.fields["readable"]:
                offer = self._listeners[0].offer(peer)
            elif said[0] and len(self._listeners) > 1:
                offer = self._listeners[1].offer(peer)
            if offer is not None:
                answer = answer or Message("hello", {"memory": None, "readable": False})
                answer.fields["stream"] = offer
        if answer is not None:
            self._post(peer, encode(answer))

    def _connect_stream(self, peer: bytes, offer: list[Any]) -> None:
        stream = connect_stream(offer, dialled_host(address_of(peer)), *self._limits)
        if stream is None:
            return

        def take() -> None:
            if not self._router.has_dialled(peer) or self._has(peer):
                stream.close()
            else:
                self._change_over(peer, stream, ["connected", offer[-1]])

        if not self._io.call_soon(take):
            stream.close()

    def _has(self, peer: bytes) -> bool:
        return peer in self.by_peer or peer in self._coming

    def _change_over(self, peer: bytes, stream: Stream, words: list[str]) -> None:
        """Send the last message on the ZeroMQ connection. Switch to the stream as soon as the ZeroMQ queue is empty."""
        stream.is_open = words == ["open"]
        self._io.watch(stream.fd, lambda event: self._attend(peer, stream, event), stream.events())
        self._coming[peer] = stream, words
        self.go_on(peer)

    def go_on(self, peer: bytes) -> None:
        """Called after a message left a peer's ZeroMQ queue. If the queue is empty, switch to the stream that waits for it."""
        coming = self._coming.get(peer)
        if coming is None or self._router.waits(peer):
            return
        stream, words = coming
        last = Message("hello", {"memory": None, "readable": self._sharing.reads(peer), "stream": words})
        if self._router.give(peer, encode(last)):
            del self._coming[peer]
            self.by_peer[peer] = stream

    # --- using them ------------------------------------------------------------------------------------------------

    def write(self, peer: bytes, stream: Stream, frames: list[Frame]) -> bool:
        """Whether the stream accepted the message (or had to drop it). Any thread may call this."""
        try:
            waiting = stream.send(frames, MAX_BACKLOG)
        except ConnectionError:
            self._io.call_soon(lambda: self._leave(peer, stream))
            return False
        if waiting < 0:
            self._router.drop(peer, MAX_BACKLOG)
        elif waiting == 1:
            self._io.call_soon(lambda: self._await(peer, stream))
        self._counters.sent += 1
        return True

    def _await(self, peer: bytes, stream: Stream) -> None:
        if self.by_peer.get(peer) is stream:
            self._io.watch_for(stream.fd, stream.events())

    def _attend(self, peer: bytes, stream: Stream, event: int) -> None:
        """Handle an event of a stream."""
        try:
            if event & select.POLLOUT and not stream.flush():
                self._await(peer, stream)
            if event & ~select.POLLOUT:
                take = self._take
                for frames in stream.receive():
                    take(peer, frames)
                if stream.refused is not None:
                    error, stream.refused = stream.refused, None
                    self._refuse(peer, error)
        except ConnectionError:
            self._leave(peer, stream)
        except WireError as error:
            self._leave(peer, stream)
            self._refuse(peer, error)

    # --- falling back ----------------------------------------------------------------------------------------------

    def _leave(self, peer: bytes, stream: Stream) -> None:
        """Fall back to the ZeroMQ connection: the stream has ended."""
        if self.by_peer.get(peer) is stream:
            del self.by_peer[peer]
        elif peer in self._coming and self._coming[peer][0] is stream:
            del self._coming[peer]
        else:
            return
        self._io.unwatch(stream.fd)
        stream.close()
        self._sharing.forget(peer)
        if self._router.has_dialled(peer):
            hello = first_hello(self._sharing, peer, self._keys)
            if hello is not None:
                self._post(peer, encode(hello))

    def listen(self, on: bool) -> None:
        """Start or stop accepting streams from other machines."""
        for listener in self._listeners[1:]:
            listener.is_full = not on

    def tidy(self, is_gone: Callable[[bytes], bool]) -> None:
        """End the streams of peers that are gone while messages wait for them. Drop accepted streams that no peer claimed.

        `is_gone` asks ZeroMQ, whose heartbeats show it. The call is not cheap: once a second is enough.
        """
        for peer in list(self._coming):
            self.go_on(peer)
        for peer, stream in list(self.by_peer.items()):
            if stream.waiting() and not is_dialled(peer) and is_gone(peer):
                self._leave(peer, stream)
        for listener in self._listeners:
            listener.tidy()

    def hang_up(self, peer: bytes) -> None:
        """End the stream of a peer whose connection is closed."""
        for stream in (self.by_peer.get(peer), self._coming.get(peer, (None,))[0]):
            if stream is not None:
                self._leave(peer, stream)

    def waiting(self) -> int:
        """How many messages wait for slow peers."""
        return sum(stream.waiting() for stream in list(self.by_peer.values()))

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        for peer, stream in list(self.by_peer.items()):
            try:
                stream.flush()
            except ConnectionError:
                del self.by_peer[peer]
                stream.close()

    def close(self) -> None:
        """Close all; what the kernel has taken still arrives."""
        for stream in (*self.by_peer.values(), *(stream for stream, _ in self._coming.values())):
            stream.close()
        for listener in self._listeners:
            listener.close()
