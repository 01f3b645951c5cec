"""Streams: framing, waiting, going over from ZeroMQ and back."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time

import numpy as np
import pytest
from echoing import WAIT_S, Connection, ping, streams_of, until
from hypothesis import given, strategies as st

from dovetail.runtime.transport import endpoint, peer, peers as peers_module
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.peer import Connect
from dovetail.runtime.transport.stream import Stream
from dovetail.runtime.transport.stream_listener import connect_stream
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.wire.schema import WireError

LIMITS = 64, 1 << 24

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="needs Linux")


def pair() -> tuple[Stream, Stream]:
    a, b = socket.socketpair()
    return Stream(a, *LIMITS), Stream(b, *LIMITS)


def exchange(a: Stream, b: Stream, messages: list[list[bytes]]) -> list[list[bytes]]:
    """What comes out at one end when all these are sent at the other."""
    out: list[list[bytes]] = []
    for message in messages:
        a.send(message)
    while len(out) < len(messages):
        a.flush()
        out += [[bytes(f) for f in m] for m in b.receive()]
    assert b.receive() == [] and a.waiting() == 0
    return out


# --- messages ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=5), max_size=20))
def test_messages_come_out_as_they_went_in(messages: list[list[bytes]]) -> None:
    a, b = pair()
    assert exchange(a, b, messages) == messages
    a.close()
    b.close()


@pytest.mark.parametrize(
    "sizes", [[0], [0, 0], [65_535], [65_536], [65_537, 0, 1], [1, 3_000_000, 7], [300] * 64, [90_000] * 64]
)
def test_long_messages(sizes: list[int]) -> None:
    a, b = pair()
    rng = np.random.default_rng(0)
    messages = [[rng.bytes(n) for n in sizes], [b"after"], [rng.bytes(n) for n in reversed(sizes)]]
    assert exchange(a, b, messages) == messages
    a.close()
    b.close()


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4), st.integers(1, 9))
def test_messages_may_come_in_any_pieces(frames: list[bytes], piece: int) -> None:
    raw, other = socket.socketpair()
    b = Stream(other, *LIMITS)
    data = struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames)) + b"".join(frames)
    out = []
    for at in range(0, len(data), piece):
        assert not out
        raw.send(data[at : at + piece])
        out += b.receive()
    assert out == [frames]
    raw.close()
    b.close()


@pytest.mark.parametrize("data", [struct.pack("<I", 0), struct.pack("<I", 65), b"\xff" * 40])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    raw, other = socket.socketpair()
    b = Stream(other, *LIMITS)
    raw.send(data)
    with pytest.raises(WireError, match="it may have"):
        b.receive()
    raw.close()
    b.close()


def test_a_stream_whose_other_end_has_gone_says_so() -> None:
    a, b = pair()
    a.send([b"last words"])
    a.close()
    assert b.receive() == [[b"last words"]]
    with pytest.raises(ConnectionError, match="has gone"):
        b.receive()
    with pytest.raises(ConnectionError):
        b.send([b"x"])
    b.close()
    with pytest.raises(ConnectionError):
        b.receive()


def test_what_the_kernel_does_not_take_waits_and_is_bounded() -> None:
    a, b = pair()
    large = bytes(1 << 20)
    assert a.send([large]) == 1
    assert a.events() & select.POLLOUT
    assert a.send([b"2"], 3) == 2
    assert a.send([b"3"], 3) == 3
    assert a.send([b"4"], 3) == -1
    out = []
    while a.flush() or len(out) < 3:
        out += b.receive()
    assert [bytes(m[0]) for m in out] == [large, b"2", b"3"]
    assert not a.events() & select.POLLOUT
    a.close()
    b.close()


def test_threads_may_send_at_once() -> None:
    a, b = pair()

    def work(n: int) -> None:
        for i in range(200):
            a.send([bytes([n]), i.to_bytes(2, "little") * 500])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    seen: dict[int, list[int]] = {n: [] for n in range(4)}
    while sum(map(len, seen.values())) < 800:
        a.flush()
        for who, what in b.receive():
            assert bytes(what) == bytes(what[:2]) * 500
            seen[who[0]].append(int.from_bytes(what[:2], "little"))
    for t in threads:
        t.join()
    assert all(numbers == list(range(200)) for numbers in seen.values())
    a.close()
    b.close()


def test_a_stream_is_not_closed_while_a_thread_writes() -> None:
    """The kernel could give the descriptor to another file meanwhile."""
    began, may_end, closed = (threading.Event() for _ in range(3))

    class Slow:
        def send(self, data: bytes, flags: int) -> int:
            began.set()
            may_end.wait()
            return len(data)

        def close(self) -> None:
            closed.set()

    a, b = pair()
    a.close()
    a._socket = Slow()  # type: ignore[assignment]
    threads = [threading.Thread(target=a.send, args=([b"x"],)), threading.Thread(target=a.close)]
    threads[0].start()
    began.wait()
    threads[1].start()
    assert not closed.wait(0.2)
    may_end.set()
    for t in threads:
        t.join()
    assert closed.is_set()
    b.close()


# --- meeting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "x", "/tmp/.X11-unix/X0", "dovetail-" + "g" * 32, "dovetail-" + "0" * 32 + "\n"])
def test_no_other_socket_is_connected_to(name: str) -> None:
    assert connect_stream(Connect("unix", name, "00" * 16), "") is None


def test_where_nobody_listens_there_is_no_stream() -> None:
    assert connect_stream(Connect("unix", "dovetail-" + "0" * 32, "00" * 16), "") is None


# --- over the transport ------------------------------------------------------------------------------------------------


def warm(connection: Connection) -> None:
    """Exchange messages until both have gone over."""
    deadline = time.monotonic() + WAIT_S
    while connection.peer.stream is None or not connection.peer.stream.is_open:
        connection.send(ping(-1))
        answer = connection.recv(WAIT_S)
        assert answer is not None and answer.fields == {"seq": -1}
        assert time.monotonic() < deadline
    connection.send(ping(-2))
    assert connection.recv(WAIT_S) is not None  # so the server has it in its books, too


def test_messages_keep_their_order_while_both_go_over(echo: Endpoint) -> None:
    for _ in range(20):
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


def test_replies_of_threads_keep_their_order_while_both_go_over() -> None:
    def handle(peer: bytes, message: Message) -> None:
        def work() -> None:
            for seq in range(100):
                server.reply(peer, ping(seq))

        threading.Thread(target=work).start()

    with Endpoint("localhost:0", handle) as server:
        for _ in range(20):
            with Connection(server.address) as connection:
                connection.send(ping(0))
                for seq in range(100):
                    answer = connection.recv(WAIT_S)
                    assert answer is not None and answer.fields["seq"] == seq


def test_endpoints_go_over_too(echo: Endpoint) -> None:
    arrived: list[int] = []
    with Endpoint("localhost:0", lambda peer, message: arrived.append(message.fields["seq"])) as other:
        for seq in range(500):
            other.send(echo.address, ping(seq))
            if seq % 50 == 0:
                time.sleep(0.01)
        until(lambda: len(arrived) == 500, "all answers are there")
        assert arrived == list(range(500))
        assert len(streams_of(other)) == 1 == len(streams_of(echo))
        other.forget(echo.address)
        until(lambda: not streams_of(other) and not streams_of(echo), "the stream is closed on both sides")
        other.send(echo.address, ping(500))
        until(lambda: arrived[-1] == 500, "a new connection was made")


def test_a_server_that_takes_no_streams_is_spoken_to_over_zeromq(
    monkeypatch: pytest.MonkeyPatch, echo: Endpoint
) -> None:
    monkeypatch.setattr(peers_module, "connect_stream", lambda *_: None)
    with Connection(echo.address) as connection:
        for seq in range(50):
            connection.send(ping(seq))
            answer = connection.recv(WAIT_S)
            assert answer is not None and answer.fields["seq"] == seq
        assert connection.peer.stream is None


def test_an_end_of_the_stream_leads_back_to_zeromq_and_to_another_one(echo: Endpoint) -> None:
    """Whichever side ends it: what is sent afterwards arrives."""
    with Connection(echo.address) as connection:
        warm(connection)
        (stream,) = streams_of(echo)
        echo.call_soon(lambda: stream._socket.shutdown(socket.SHUT_RDWR))
        until(lambda: not streams_of(echo), "the server has noticed")
        connection.send(ping(1))
        answer = connection.recv(WAIT_S)
        assert answer is not None and answer.fields["seq"] == 1 and connection.peer.stream is None
        warm(connection)  # there is another stream
    with Connection(echo.address) as connection:
        warm(connection)
        assert connection.peer.stream is not None
        connection.peer.stream._socket.shutdown(socket.SHUT_RDWR)
        connection.send(ping(2))
        answer = connection.recv(WAIT_S)
        assert answer is not None and answer.fields["seq"] == 2 and connection.peer.stream is None
        warm(connection)


def test_garbage_on_a_lane_costs_the_stream_and_hurts_nobody(echo: Endpoint) -> None:
    with Connection(echo.address) as rude, Connection(echo.address) as other:
        warm(rude)
        warm(other)
        assert rude.peer.stream is not None
        rude.peer.stream._socket.send(b"\xff" * 100)
        until(lambda: echo.counters.malformed == 1 and len(streams_of(echo)) == 1, "the stream is closed")
        rude.send(ping(1))
        kinds = []
        while "ping" not in kinds:
            answer = rude.recv(WAIT_S)
            assert answer is not None
            kinds.append(answer.kind)
        other.send(ping(2))
        assert other.recv(WAIT_S) is not None


def test_messages_that_are_refused_on_a_stream_count(echo: Endpoint) -> None:
    with Connection(echo.address) as rude:
        warm(rude)
        assert rude.peer.stream is not None
        for _ in range(peer.MAX_STRIKES + 4):
            rude.peer.stream.send([b"garbage"])
        for _ in range(peer.MAX_STRIKES):
            answer = rude.recv(WAIT_S)
            assert answer is not None and answer.kind == "error"
        until(lambda: echo.counters.ignored == 4, "the rest was ignored")


def test_a_closed_client_leaves_nothing_at_the_server(echo: Endpoint) -> None:
    with Connection(echo.address) as connection:
        warm(connection)
        assert len(streams_of(echo)) == 1
    until(lambda: not streams_of(echo), "the stream is gone")


def test_what_waits_for_a_client_that_has_gone_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has stopped reading, and ZeroMQ finds it gone: nothing waits for it for ever."""
    monkeypatch.setattr(endpoint, "LOOK_S", 0.1)

    def handle(peer: bytes, message: Message) -> None:
        for seq in range(message.fields["seq"]):
            server.reply(peer, Message("tensors", {"step": seq, "channels": [0], "without": []}, (np.zeros(4_000),)))

    with Endpoint("localhost:0", handle) as server, Connection(server.address) as deaf:

        def has_gone_over() -> bool:  # a client takes the next step of it when it looks for messages
            deaf.send(ping(1))
            assert deaf.recv(WAIT_S) is not None
            return bool(streams_of(server))

        until(has_gone_over, "they have gone over")
        deaf.send(ping(100))
        until(lambda: server.waiting() > 0, "messages wait")
        time.sleep(0.5)
        assert server.waiting() > 0  # it is only slow
        deaf.socket.close(linger=0)  # as when its process was stopped
        until(lambda: not streams_of(server) and not server.waiting(), "it is given up")


def test_descriptors_are_given_back(echo: Endpoint) -> None:
    def round_trip() -> None:
        with Connection(echo.address) as connection:
            warm(connection)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    round_trip()
    time.sleep(0.05)
    before = descriptors()
    for _ in range(20):
        round_trip()
    until(lambda: descriptors() <= before, "all are closed")


def test_who_connects_and_dies_leaves_no_socket(echo: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client has sent the token, and dies before it says so over ZeroMQ; one that only takes long is waited for."""
    monkeypatch.setattr(endpoint, "LOOK_S", 0.1)
    monkeypatch.setattr(peers_module.Peers, "_upgrade", lambda self, peer, stream: stream.close())
    with Connection(echo.address) as dead:
        accepted = lambda: [peer.accepted for peer in list(echo._peers.by_name.values()) if peer.accepted]  # noqa: E731
        dead.send(ping())
        until(lambda: dead.recv(0.01) is None and bool(accepted()), "its stream is accepted")
        time.sleep(0.5)
        assert accepted()
    until(lambda: not accepted(), "it is given up")


@pytest.mark.parametrize("size", [1 << 20, (5 << 20) + 3, 9 << 20])
def test_long_messages_over_tcp_arrive_whole_and_what_follows_them_is_told_at_once(size: int) -> None:
    """The kernel is asked to keep bytes back until there are many; the end of a message, and the next one, are few."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    a, b = Stream(one, 8, 1 << 30), Stream(other, 8, 1 << 30)
    b.is_open = True
    poll = select.poll()
    poll.register(b.fd, select.POLLIN)
    tensor = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    for frames in (
        [b"one", tensor.data],
        [b"", tensor.data, b"x" * 70_000, b"end"],
        [b"small"],
        [tensor.data],
        [b"small"],
    ):
        waiting = a.send(frames)
        assert a.waiting_bytes == 0 if not waiting else a.waiting_bytes > 0
        got: list[list[bytes | memoryview]] = []
        while not got:
            if waiting:
                waiting = a.flush()
            assert waiting or poll.poll(60_000), "nothing is told"
            got = b.receive()
        assert a.waiting_bytes == 0
        assert [bytes(f) for f in got[0]] == [bytes(f) for f in frames]
    waiting = a.send([tensor.data])
    told = threading.Thread(target=lambda: [a.flush() for _ in iter(a.waiting, 0)])
    told.start()
    while not (whole := b.receive_within(5.0)):
        pass
    told.join()
    assert bytes(whole[0][0]) == tensor.tobytes()
    a.close()
    b.close()


def test_a_stream_over_tcp_tells_how_much_the_other_end_has_acknowledged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    a, b = Stream(one, 8, 1 << 30), Stream(other, 8, 1 << 30)
    assert a.bytes_left() == 0
    assert a.send([b"small"]) == 0
    assert a.send([bytes(64 << 20)])  # more than the kernel keeps
    first, came = a.bytes_left(), 0
    while came < 2:
        a.flush()
        came += len(b.receive())
    assert 0 <= first < a.bytes_left()
    total = 5 + 12 + (64 << 20) + 12
    deadline = time.monotonic() + 60.0
    while a.bytes_left() < total and time.monotonic() < deadline:  # the last acknowledgement may be under way
        time.sleep(0.001)
    assert a.bytes_left() == total
    a.close()
    b.close()


# --- sending without a hand-over ---------------------------------------------------------------------------------------


def test_a_stream_that_holds_the_interpreter_sends_the_same() -> None:
    a, b = pair()
    a.keeps_gil = True
    assert exchange(a, b, [[b"x"], [b"y" * 10_000], [b"", b"z"], [b"large" * 10_000]])[0] == [b"x"]
    sent = 0
    while a.send([b"w" * 1_000]) == 0:  # until the kernel takes no more
        sent += 1
    assert a.waiting() == 1
    got = 0
    while got <= sent:
        got += len(b.receive())
        a.flush()
    b.close()
    with pytest.raises(ConnectionError, match="closed"):
        for _ in range(2):
            a.send([b"v"])
    a.close()
    with pytest.raises(ConnectionError, match="closed"):
        a.send([b"v"])
