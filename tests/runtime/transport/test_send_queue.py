"""What waits for peers that are slow, or never read."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from echoing import WAIT_S, Connection, ping, streams_of, until

from dovetail.graph.core.errors import ResourceExhaustedError
from dovetail.runtime.shared_memory import pool as memory_pool
from dovetail.runtime.transport import peer as peer_module, peers
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.peer import Peer
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.wire.tensors import Frame


def test_a_slow_client_loses_nothing() -> None:
    """It gets far more than ZeroMQ's queues hold; meanwhile another client is served."""
    count = 6_000

    def answer(peer: bytes, message: Message) -> None:
        for seq in range(message.fields["seq"]):
            server.reply(peer, Message("tensors", {"step": seq, "channels": [0], "without": []}, (np.zeros(1_000),)))

    with Endpoint("localhost:0", answer) as server, Connection(server.address) as slow:
        slow.send(ping(count))
        until(lambda: server.waiting() > 0, "the server has to keep messages for the slow client")
        with Connection(server.address) as quick:
            quick.send(ping(1))
            assert quick.recv(WAIT_S) is not None
        steps = []
        while len(steps) < count:
            message = slow.recv(WAIT_S)
            assert message is not None
            steps.append(message.fields["step"])
        assert steps == list(range(count))
        assert server.counters.dropped == 0
        until(lambda: not server.waiting(), "the backlog is gone")


def test_a_client_that_never_reads_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (peer_module, peers):
        monkeypatch.setattr(module, "MAX_BACKLOG", 50)

    def answer(peer: bytes, message: Message) -> None:
        for seq in range(1_000):
            server.reply(peer, Message("tensors", {"step": seq, "channels": [0], "without": []}, (np.zeros(4_000),)))

    with Endpoint("localhost:0", answer) as server, Connection(server.address) as deaf:
        for _ in range(20):
            deaf.send(ping())
        until(lambda: server.counters.dropped > 0, "messages are dropped")
        assert server.waiting() <= 50  # fewer where the kernel has just taken some


@pytest.mark.parametrize("shared", ["0", "64"])  # a stream over TCP; a Unix stream, whose shared memory is soon full
def test_what_waits_for_a_client_that_never_reads_is_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    monkeypatch.setenv("DOVETAIL_SEND_QUEUE_MB", "32")
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_MB", shared)
    monkeypatch.setattr(memory_pool, "_pools", {})
    peers: list[bytes] = []

    def note(peer: bytes, message: Message) -> None:
        peers[:] = [peer]
        server.reply(peer, message)

    with Endpoint("localhost:0", note) as server, Connection(server.address) as deaf:
        while not streams_of(server):  # what ZeroMQ holds is not counted
            deaf.send(ping())
            assert deaf.recv(WAIT_S) is not None
        sent = []

        def fill() -> None:
            while True:
                tensor = np.zeros(8 << 20, np.uint8)
                server.reply(peers[0], Message("tensors", {"step": 1, "channels": [0], "without": []}, (tensor,)))
                sent.append(weakref.ref(tensor))

        with pytest.raises(ResourceExhaustedError, match="DOVETAIL_SEND_QUEUE_MB"):
            fill()
        held = [one for one in sent if one() is not None]
        assert len(held) <= 5
        server.reply(peers[0], Message("pong", {"seq": 1, "incarnation": 1}))  # what is small still goes
        taken = 0
        while (message := deaf.recv(WAIT_S)) is not None and message.kind == "tensors":
            taken += 1
        assert message is not None and message.kind == "pong"
        assert taken == len(sent)
        server.reply(peers[0], Message("pong", {"seq": 2, "incarnation": 1}))
        assert deaf.recv(WAIT_S) is not None


def test_a_message_larger_than_the_limit_goes_when_nothing_waits() -> None:
    has_room = [True]
    peer = Peer(b"a", "localhost:1", lambda frames: has_room[0], takes_tcp=False, most_bytes_waiting=1 << 20)
    large: list[Frame] = [b"header", bytes(4 << 20)]
    peer.check_room("a", large)
    has_room[0] = False
    assert peer.post(large)
    with pytest.raises(ResourceExhaustedError, match=r"cannot be sent to a: 419\d{4} bytes wait"):
        peer.check_room("a", [bytes(1 << 20)])
    peer.check_room("a", [b"small"])
    has_room[0] = True
    peer.pump()
    assert not peer.unsent
    peer.check_room("a", large)
    peer.queued_bytes = 1
    with pytest.raises(ResourceExhaustedError):
        peer.check_room("a", large)


def test_without_a_limit_anything_goes() -> None:
    peer = Peer(b"a", "localhost:1", lambda frames: False, takes_tcp=False)
    for _ in range(3):
        peer.check_room("a", [bytes(1 << 20)])
        assert peer.post([bytes(1 << 20)])
    assert peer.waiting() == 3
