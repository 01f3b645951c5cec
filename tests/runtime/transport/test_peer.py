"""Two ends of a connection without sockets: scripts of events, and random interleavings of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dovetail.runtime.transport import peer as peer_module
from dovetail.runtime.transport.peer import HANDSHAKE, Command, Connect, Offer, Peer
from dovetail.runtime.wire.chunking import CHUNK_BYTES, PROGRESS_ACK
from dovetail.runtime.wire.messages import Message, decode, encode
from dovetail.runtime.wire.schema import WireError
from dovetail.runtime.wire.tensors import Frame

ROOM = 2  # messages that the link takes before it is full
MOST = 50


def message_of(number: int, size: int) -> Message:
    """One that overtakes no other."""
    fields = {"request": number, "step": 0, "program": "", "feeds": ["0"]}
    return Message("run", fields, (np.zeros(size, np.uint8),))


class FakeStream:
    """One end of a stream: what is sent arrives in `inbox` of the other end."""

    def __init__(self) -> None:
        self.is_open = False
        self.inbox: deque[list[Frame]] = deque()
        self.other: FakeStream | None = None

    def waiting(self) -> int:
        return 0


class End:
    """The owner of one peer: a link to the other end, a stream perhaps, and the numbers of the messages that came."""

    def __init__(self, is_caller: bool) -> None:
        self.peer = Peer(b"peer", "localhost:1" if is_caller else "", self.give, takes_tcp=True)
        self.inbox: deque[list[Frame]] = deque()
        self.link: deque[list[Frame]] = deque()  # what the link has taken
        self.other: End
        self.wanted: list[Any] = []  # commands that take time: to connect, or to upgrade to a stream
        self.came: list[int] = []
        self.offered = 0

    def give(self, frames: list[Frame]) -> bool:
        if len(self.link) >= ROOM:
            return False
        self.link.append([bytes(frame) for frame in frames])
        return True

    def send(self, number: int, size: int = 0) -> None:
        self._post(encode(message_of(number, size)))

    def _post(self, frames: list[Frame]) -> None:
        stream: Any = self.peer.stream
        if stream is not None and stream.other is not None:
            stream.other.inbox.append([bytes(frame) for frame in frames])
        else:
            assert self.peer.post(frames)

    def do(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Message):
                self._post(encode(command))
            elif isinstance(command, Offer):
                self.offered += 1
                self._post(encode(Message("stream_offer", {"way": command.way, "name": "n", "token": "t"})))
            else:
                self.wanted.append(command)

    def take(self, frames: list[Frame]) -> None:
        whole = self.peer.whole(frames)
        if whole is None:
            return
        message = decode(whole)
        if message.kind in HANDSHAKE:
            self.do(self.peer.heard(message))
        else:
            self.came.append(message.fields["request"])


class Pair:
    """Two ends, and the events that may happen next."""

    def __init__(self) -> None:
        self.ends = End(True), End(False)
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        self.ends[0].do(self.ends[0].peer.greeting())

    def carry(self, end: End) -> bool:
        """The link carries one message from this end."""
        if not end.link:
            return False
        end.other.inbox.append(end.link.popleft())
        end.peer.pump()
        return True

    def hear(self, end: End) -> bool:
        """One message over the link is handled."""
        if not end.inbox:
            return False
        end.take(end.inbox.popleft())
        return True

    def read(self, end: End) -> bool:
        """One message on the stream is handled."""
        stream: Any = end.peer.stream
        if stream is None or not stream.is_open or not stream.inbox:
            return False
        end.take(stream.inbox.popleft())
        return True

    def settle(self, end: End) -> bool:
        """A stream is connected, or upgraded to."""
        if not end.wanted:
            return False
        command = end.wanted.pop(0)
        if isinstance(command, Connect):
            near: Any = FakeStream()
            far: Any = FakeStream()
            near.other, far.other = far, near
            end.other.peer.accepted = far
            end.peer.upgrade(near)
        else:
            assert end.peer.upgrade(command)
        return True

    def cut(self, end: End) -> bool:
        """The stream breaks: both ends notice at once, and what was on it is lost."""
        if any(e.peer.stream is None for e in self.ends):
            return False
        for e in self.ends:
            e.peer.stream_ended()
            e.do(e.peer.greeting())
        return True

    def finish(self) -> None:
        """Let everything happen that can."""
        while any(event(end) for end in self.ends for event in (self.carry, self.hear, self.read, self.settle)):
            pass


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "pool_of_process", lambda: None)


def test_they_upgrade_and_nothing_overtakes() -> None:
    pair = Pair()
    caller, called = pair.ends
    caller.send(1)
    called.send(1)
    pair.carry(caller)
    pair.hear(called)  # hello: it offers a stream
    pair.carry(called)
    pair.carry(called)
    called.send(2)
    pair.hear(caller)
    pair.hear(caller)  # the offer
    pair.settle(caller)  # it is connected: what follows goes there
    caller.send(2)
    assert not pair.read(called) and caller.came == [1] and called.came == []
    pair.finish()
    assert caller.came == called.came == [1, 2]
    assert caller.peer.stream is not None and caller.peer.stream.is_open and called.peer.stream is not None


def test_after_a_stream_has_ended_there_is_another_one_but_not_without_end() -> None:
    pair = Pair()
    caller, called = pair.ends
    pair.finish()
    for number in range(peer_module.MOST_STREAMS):
        assert called.offered == number + 1
        assert caller.peer.stream is not None and caller.peer.stream.is_open and called.peer.stream is not None
        assert pair.cut(caller)
        for end in pair.ends:  # what is sent before there is another stream does not come behind what is sent on it
            end.send(2 * number)
        pair.finish()
        for end in pair.ends:
            end.send(2 * number + 1)
        pair.finish()
    assert called.offered == peer_module.MOST_STREAMS and caller.peer.stream is None and called.peer.stream is None
    assert caller.came == called.came == list(range(2 * peer_module.MOST_STREAMS))


def test_an_end_that_notices_later_that_the_stream_has_ended_is_offered_the_next_one() -> None:
    pair = Pair()
    caller, called = pair.ends
    pair.finish()
    called.peer.stream_ended()
    called.do(called.peer.greeting())
    pair.finish()
    assert called.offered == 1  # the caller says when it is ready
    caller.peer.stream_ended()
    caller.do(caller.peer.greeting())
    pair.finish()
    assert called.offered == 2 and caller.peer.stream is not None and caller.peer.stream.is_open


def test_a_stream_is_not_used_when_its_last_word_on_the_link_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the other end would never read it."""
    monkeypatch.setattr(peer_module, "MAX_BACKLOG", MOST)
    caller = End(True)
    for number in range(MOST + ROOM):
        caller.send(number)
    stream: Any = FakeStream()
    assert not caller.peer.upgrade(stream)
    assert caller.peer.stream is None and caller.peer.waiting() == MOST


def test_only_the_called_end_acknowledges_progress_and_not_too_often() -> None:
    caller, called = End(True), End(False)
    big = encode(message_of(1, 3 * CHUNK_BYTES))
    caller.peer.post(big)
    for end, owes in ((called, True), (End(True), False)):
        assert end.peer.whole(list(caller.link[0])) is None
        assert end.peer.owes_ack(10.0) is owes
        assert not end.peer.owes_ack(10.1)
        assert end.peer.owes_ack(11.0) is owes
    moved = caller.peer.moved()
    assert caller.peer.whole([PROGRESS_ACK]) is None and caller.peer.moved() == moved + 1


def test_half_a_message_is_forgotten_when_its_sender_is_gone() -> None:
    caller, called = End(True), End(False)
    big = encode(message_of(1, 3 * CHUNK_BYTES))
    caller.peer.post(big)
    called.peer.whole(list(caller.link.popleft()))
    assert not called.peer.look()  # something has come since the last look
    assert called.peer.look() and not called.peer.is_idle()
    called.peer.reassembler.drop()  # what its owner does if the caller is gone
    assert not called.peer.look() and called.peer.is_idle()
    assert not caller.peer.look()


def test_too_many_malformed_messages() -> None:
    peer = End(False).peer
    for _ in range(peer_module.MAX_STRIKES):
        assert not peer.is_ignored
        with pytest.raises(WireError):
            peer.whole([PROGRESS_ACK[:4]])
        peer.strikes += 1
    assert peer.is_ignored


EVENTS = ("send", "large", "carry", "carry", "hear", "hear", "read", "settle")


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(EVENTS)), max_size=80))
def test_no_interleaving_loses_or_reorders(events: list[tuple[int, str]]) -> None:
    pair = Pair()
    sent = [0, 0]
    for which, event in events:
        end = pair.ends[which]
        if event in ("send", "large"):
            end.send(sent[which], 3 * CHUNK_BYTES if event == "large" else 0)
            sent[which] += 1
        else:
            getattr(pair, event)(end)
    pair.finish()
    for which, end in enumerate(pair.ends):
        assert end.other.came == list(range(sent[which]))
        assert end.peer.stream is not None and end.peer.stream.is_open and end.peer.waiting() == 0


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from((*EVENTS, "cut"))), max_size=120))
def test_a_stream_that_breaks_loses_only_what_was_on_it(events: list[tuple[int, str]]) -> None:
    pair = Pair()
    sent = [0, 0]
    for which, event in events:
        end = pair.ends[which]
        if event in ("send", "large"):
            end.send(sent[which])
            sent[which] += 1
        else:
            getattr(pair, event)(end)
    pair.finish()
    for end in pair.ends:
        assert end.other.came == sorted(set(end.other.came))
    if pair.ends[0].peer.stream is not None:
        pair.cut(pair.ends[0])
        pair.finish()
    for which, end in enumerate(pair.ends):
        end.send(sent[which])
    pair.finish()
    for which, end in enumerate(pair.ends):
        assert end.other.came[-1] == sent[which]  # it is heard again
