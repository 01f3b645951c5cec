"""What waits for peers that are slow, or never read."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from echoing import WAIT_S, Connection, ping, until

from dovetail.graph.core.errors import ResourceExhaustedError
from dovetail.runtime.shared_memory import pool as memory_pool
from dovetail.runtime.transport import peer as peer_module, peers
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.peer import SendQueueBytes
from dovetail.runtime.wire.messages import Message


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
        for _ in range(3):  # the first message may leave before the two know each other
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
    queue = SendQueueBytes(1 << 20)
    large = [memoryview(bytes(4 << 20))]
    queue.enter("a", large)
    with pytest.raises(ResourceExhaustedError, match="cannot be sent to a: 4194304 bytes wait"):
        queue.enter("a", [memoryview(bytes(1 << 20))])
    SendQueueBytes(1 << 20).enter("b", large)
    with pytest.raises(ResourceExhaustedError):
        SendQueueBytes(1 << 20).enter("c", large, ahead=1)
    assert queue.waiting() == 4 << 20
    queue.enter("a", [b"header", bytes(2 << 20)])  # not frames of tensors
    large.clear()
    assert queue.waiting() == 0
    SendQueueBytes(0).enter("a", [memoryview(bytes(1 << 20))], ahead=1 << 40)


@pytest.mark.parametrize("most", [0, 1 << 30])
def test_a_queue_tells_how_much_has_left_whether_or_not_there_is_a_limit(most: int) -> None:
    queue = SendQueueBytes(most)
    assert queue.left() == 0
    frames = [memoryview(bytes(1 << 20)), memoryview(bytes(2 << 20))]
    queue.enter("a", frames)
    assert queue.left() == 0
    del frames[0]
    assert queue.left() == 1 << 20
    frames.clear()
    assert queue.left() == 3 << 20
