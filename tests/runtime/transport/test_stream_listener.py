"""Listeners of streams; streams over TCP, between processes that cannot read each other's memory."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from echoing import WAIT_S, Connection, ping, streams_of, until

from dovetail.runtime.transport import peer, peers as peers_module
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.event_loop import EventLoop
from dovetail.runtime.transport.peer import Connect, Peer
from dovetail.runtime.transport.stream_listener import StreamListener, connect_stream
from dovetail.runtime.wire.messages import Message

TOKEN = "5a" * 16


def sent_back(connection: Connection, message: Message) -> Message:
    connection.send(message)
    answer = connection.recv(WAIT_S)
    assert answer is not None
    return answer


def warm(connection: Connection) -> None:
    """Exchange messages until both have gone over."""
    deadline = time.monotonic() + WAIT_S
    while connection.peer.stream is None or not connection.peer.stream.is_open:
        assert sent_back(connection, ping(-1)).fields["seq"] == -1
        assert time.monotonic() < deadline
    assert sent_back(connection, ping(-2)).fields["seq"] == -2  # so the server has it in its books, too


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "pool_of_process", lambda: None)


def test_client_and_server_go_over_and_keep_the_order(echo: Endpoint) -> None:
    with Connection(echo.address) as connection:
        for seq in range(60):
            connection.send(ping(seq))
            if seq >= 20:
                answer = connection.recv(WAIT_S)
                assert answer is not None and answer.fields["seq"] == seq - 20
        for seq in range(40, 60):
            answer = connection.recv(WAIT_S)
            assert answer is not None and answer.fields["seq"] == seq
        warm(connection)
        (stream,) = streams_of(echo)
        assert stream._socket.family in (socket.AF_INET, socket.AF_INET6)


def test_a_busy_server_is_waited_for() -> None:
    """A kernel may hold its interpreter for a while, and a stream that is not connected is not offered again."""
    name = f"dovetail-{TOKEN}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                assert sock.recv(64) == bytes.fromhex(TOKEN)
                time.sleep(1.5)
                sock.send(b"\1")

        server = threading.Thread(target=serve)
        server.start()
        stream = connect_stream(Connect("unix", name, TOKEN), "")
        server.join()
        assert stream is not None
        stream.close()


def test_large_tensors_travel_whole(echo: Endpoint) -> None:
    with Connection(echo.address) as connection:
        warm(connection)
        for size in (1, 70_000, 3_000_000):
            values = np.arange(size, dtype=np.float32)
            answer = sent_back(connection, Message("done", {"request": 1, "fetches": ["a", "b"]}, (values, values[:1])))
            np.testing.assert_array_equal(answer.tensors[0], values)
            np.testing.assert_array_equal(answer.tensors[1], values[:1])


def test_endpoints_go_over_too(echo: Endpoint) -> None:
    arrived: list[int] = []
    with Endpoint("localhost:0", lambda peer, message: arrived.append(message.fields["seq"])) as other:
        other.send(echo.address, ping(0))
        until(lambda: len(streams_of(other)) == 1 == len(streams_of(echo)), "both have gone over")
        for seq in range(1, 200):
            other.send(echo.address, ping(seq))
        until(lambda: len(arrived) == 200, "all answers are there")
        assert arrived == list(range(200))
        assert not other.reader_of(echo.address)
        other.forget(echo.address)
        until(lambda: not streams_of(other) and not streams_of(echo), "the stream is closed on both sides")


def test_an_end_of_the_stream_leads_back_to_zeromq(echo: Endpoint) -> None:
    with Connection(echo.address) as connection:
        warm(connection)
        (stream,) = streams_of(echo)
        echo.call_soon(lambda: stream._socket.shutdown(socket.SHUT_RDWR))
        until(lambda: not streams_of(echo), "the server has noticed")
        until(lambda: connection.recv(0.0) is None and connection.peer.stream is None, "the client has, too")
        assert sent_back(connection, ping(1)).fields["seq"] == 1
        warm(connection)  # there is another stream


def test_where_no_stream_can_be_zeromq_goes_on(monkeypatch: pytest.MonkeyPatch, echo: Endpoint) -> None:
    monkeypatch.setattr(peers_module, "connect_stream", lambda *_: None)
    with Connection(echo.address) as connection:
        for seq in range(50):
            assert sent_back(connection, ping(seq)).fields["seq"] == seq
        assert connection.peer.stream is None


# --- meeting ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[None, "127.0.0.1"], ids=["unix", "tcp"])
def met(request: pytest.FixtureRequest) -> Iterator[tuple[StreamListener, Peer]]:
    """A listener on an I/O thread, and the peer that may connect to it with the token `TOKEN`."""
    io, anna = EventLoop(), Peer(b"anna", "", lambda frames: True, takes_tcp=True)
    anna.token = TOKEN
    made = StreamListener(io, lambda token: anna if token == anna.token else None, request.param)
    io.patience = lambda: 0.05
    io.start("test", lambda: None, made.close)
    yield made, anna
    io.close()
    if anna.accepted is not None:
        anna.accepted.close()


def test_a_stream_is_made_of_an_offer(met: tuple[StreamListener, Peer]) -> None:
    listener, anna = met
    offer = listener.offer(TOKEN)
    assert offer is not None
    stream = connect_stream(offer, "127.0.0.1")
    assert stream is not None
    until(lambda: anna.accepted is not None, "the peer has its stream")
    assert connect_stream(offer, "127.0.0.1") is None  # the token is good for once
    other = anna.accepted
    assert other is not None
    stream.send([b"head", b"tensor"])
    assert other.receive_within(WAIT_S) == [[b"head", b"tensor"]]
    assert other.receive_within(0.01) == []
    stream.close()
    other.close()


def test_strangers_are_sent_away(met: tuple[StreamListener, Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    listener, anna = met
    offer = listener.offer(TOKEN)
    assert offer is not None
    assert connect_stream(Connect(offer.way, offer.name, "00" * 16), "127.0.0.1") is None
    silent, rude = (socket.socket(socket.AF_UNIX if offer.way == "unix" else socket.AF_INET) for _ in range(2))
    for stranger in (silent, rude):
        stranger.settimeout(WAIT_S)
        stranger.connect(f"\0{offer.name}" if offer.way == "unix" else ("127.0.0.1", int(offer.name)))
    rude.send(b"short")
    assert rude.recv(1) == b""
    until(lambda: bool(listener._silent), "it is accepted")
    for _ in range(2):
        listener._io.call_soon(listener.tidy)
    assert silent.recv(1) == b""
    silent.close()
    rude.close()
    if offer.way == "unix":  # processes of another user are not talked to
        monkeypatch.setattr(os, "geteuid", lambda: 123_456)
        assert connect_stream(offer, "") is None
        monkeypatch.undo()
    stream = connect_stream(offer, "127.0.0.1")
    assert stream is not None
    until(lambda: anna.accepted is not None, "the peer has its stream")
    stream.close()


def test_few_descriptors_are_kept_for_the_server_itself(met: tuple[StreamListener, Peer]) -> None:
    listener, _ = met
    offer = listener.offer(TOKEN)
    assert offer is not None
    listener.is_full = True
    assert connect_stream(offer, "127.0.0.1") is None
    listener.is_full = False
    stream = connect_stream(offer, "127.0.0.1")
    assert stream is not None
    stream.close()


@pytest.mark.parametrize("port, token", [("x", "00" * 16), ("1", "00"), ("99999999", "00" * 16), ("1", "zz" * 16)])
def test_what_is_no_offer_is_refused(port: str, token: str) -> None:
    assert connect_stream(Connect("tcp", port, token), "127.0.0.1") is None


def test_a_large_message_that_comes_first_does_not_keep_them_on_zeromq() -> None:
    """It goes in pieces, so it is on its way still when the two agree to go over."""
    arrived: list[int] = []
    with (
        Endpoint("localhost:0", lambda peer, message: arrived.append(message.fields["step"])) as server,
        Endpoint("localhost:0", lambda peer, message: None) as other,
    ):
        for step in range(8):
            values = np.zeros(8 << 20, np.uint8)
            other.send(server.address, Message("tensors", {"step": step, "channels": [0], "without": []}, (values,)))
        until(lambda: len(streams_of(other)) == 1 == len(streams_of(server)), "both have gone over")
        other.send(server.address, Message("tensors", {"step": 8, "channels": [], "without": []}))
        until(lambda: len(arrived) == 9, "all have come")
        assert arrived == list(range(9))
