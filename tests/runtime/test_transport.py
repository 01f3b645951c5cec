"""The transport, over real sockets on this machine."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import msgpack
import numpy as np
import pytest
import zmq

from dovetail.graph.errors import ResourceExhaustedError
from dovetail.runtime import backlog as backlog_module, connections, sharing, sockets, transport
from dovetail.runtime.address import is_loopback, split_address
from dovetail.runtime.backlog import Backlog
from dovetail.runtime.connections import Connection, Connections
from dovetail.runtime.sockets import AddressInUse
from dovetail.runtime.transport import Endpoint
from dovetail.runtime.wire import VERSION, Message, WireError, decode, encode

WAIT_S = 60.0  # far beyond what anything here takes; only a failure waits so long


def ping(seq: int = 1) -> Message:
    return Message("ping", {"seq": seq})


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.005)


@pytest.fixture
def echo() -> Iterator[Endpoint]:
    with Endpoint("localhost:0", lambda peer, message: endpoint.reply(peer, message)) as endpoint:
        yield endpoint


@pytest.fixture
def client(echo: Endpoint) -> Iterator[Connection]:
    with Connection(echo.address) as connection:
        yield connection


# Messages arrive.


def test_echo(echo: Endpoint, client: Connection) -> None:
    for seq in range(200):
        client.send(ping(seq))
        answer = client.recv(WAIT_S)
        assert answer is not None and answer.fields == {"seq": seq}
    assert echo.counters.received == 200 <= echo.counters.sent  # a greeting or two may be among these


def test_messages_keep_their_order(client: Connection) -> None:
    for seq in range(3_000):  # more than the high-water mark: the client waits instead of losing any
        client.send(ping(seq))
        if seq >= 500:
            answer = client.recv(WAIT_S)
            assert answer is not None and answer.fields["seq"] == seq - 500


def test_nothing_to_receive_is_none(client: Connection) -> None:
    start = time.monotonic()
    assert client.recv(0) is None
    assert client.recv(0.05) is None
    assert 0.04 < time.monotonic() - start < 2


def test_a_tensor_of_64_mib(client: Connection) -> None:
    sent = np.random.default_rng(0).integers(0, 2**63, 8 << 20)
    client.send(
        Message(
            "tensors", {"step": 1, "channels": ["big"], "without": []}, (sent, np.float32(3), np.array([b"s"], object))
        )
    )
    answer = client.recv(WAIT_S)
    assert answer is not None
    np.testing.assert_array_equal(answer.tensors[0], sent)
    assert answer.tensors[1] == 3 and answer.tensors[2].tolist() == [b"s"]
    assert not answer.tensors[0].flags.writeable


def test_received_tensors_outlive_everything(echo: Endpoint) -> None:
    sent = np.arange(1 << 20)
    with Connection(echo.address) as connection:
        connection.send(Message("tensors", {"step": 1, "channels": [1], "without": []}, (sent,)))
        answer = connection.recv(WAIT_S)
    echo.close()
    assert answer is not None
    np.testing.assert_array_equal(answer.tensors[0], sent)


def test_what_comes_while_an_answer_is_looked_out_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The I/O thread does not sleep then, but takes messages, does what others ask of it, and ends when it is told to."""
    monkeypatch.setattr(transport, "WATCH_S", 2 * WAIT_S)
    monkeypatch.setattr(transport, "CROWDED_S", WAIT_S)
    offered = threading.Event()
    monkeypatch.setattr(os, "sched_yield", offered.set, raising=False)
    done = threading.Event()

    def take(peer: bytes, message: Message) -> None:
        endpoint.reply(peer, message)
        endpoint.expect()

    with Endpoint("localhost:0", take) as endpoint, Connection(endpoint.address) as client:
        for seq in range(3):
            client.send(ping(seq))
            answer = client.recv(WAIT_S)
            assert answer is not None and answer.fields == {"seq": seq}
            assert offered.wait(WAIT_S)  # it has come to the end of its work, and looks out
        assert endpoint.call_soon(done.set)
        assert done.wait(WAIT_S)
        endpoint.expect()  # another thread has nothing to look out for
        client.send(ping())
        assert client.recv(WAIT_S) is not None
    assert not endpoint._thread.is_alive()


def test_it_sleeps_when_others_want_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WATCH_S", 2 * WAIT_S)
    monkeypatch.setattr(transport, "CROWDED_S", -1.0)
    offers: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: offers.append(None), raising=False)

    def take(peer: bytes, message: Message) -> None:
        endpoint.expect()
        endpoint.reply(peer, message)

    with Endpoint("localhost:0", take) as endpoint, Connection(endpoint.address) as client:
        for seq in range(5):
            client.send(ping(seq))
            assert client.recv(WAIT_S) is not None
    assert len(offers) <= 5  # once after each message, at most


def test_many_clients_at_once(echo: Endpoint) -> None:
    failures: list[str] = []

    def work(n: int) -> None:
        with Connection(echo.address) as connection:
            for seq in range(50):
                connection.send(
                    Message("tensors", {"step": seq, "channels": [n], "without": []}, (np.full(100, n * seq),))
                )
                answer = connection.recv(WAIT_S)
                if answer is None or answer.fields["channels"] != [n] or (answer.tensors[0] != n * seq).any():
                    failures.append(f"client {n}, message {seq}: {answer}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert echo.counters.received == 32 * 50


def test_endpoints_talk_to_each_other(echo: Endpoint) -> None:
    arrived: list[tuple[bytes, int]] = []
    with Endpoint("localhost:0", lambda peer, message: arrived.append((peer, message.fields["seq"]))) as other:
        for seq in range(100):
            other.send(echo.address, ping(seq))
        until(lambda: len(arrived) == 100, "all answers are there")
        assert [seq for _, seq in arrived] == list(range(100))
        other.reply(arrived[0][0], ping(100))  # the name of a peer that was dialled is good for replies, too
        until(lambda: len(arrived) == 101, "the reply to an answer came back")


def test_any_thread_may_send_and_reply() -> None:
    """Answers from 8 threads, none lost, each thread's in order."""
    peers: list[bytes] = []
    with Endpoint("localhost:0", lambda peer, message: peers.append(peer)) as server:
        with Connection(server.address) as connection:
            connection.send(ping())
            until(lambda: bool(peers), "the server knows the client")

            def work(n: int) -> None:
                for seq in range(500):
                    server.reply(peers[0], Message("pong", {"seq": seq, "incarnation": n}))

            threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            seen: dict[int, list[int]] = {n: [] for n in range(8)}
            for _ in range(8 * 500):
                answer = connection.recv(WAIT_S)
                assert answer is not None
                seen[answer.fields["incarnation"]].append(answer.fields["seq"])
            for thread in threads:
                thread.join()
        assert all(numbers == list(range(500)) for numbers in seen.values())


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
    monkeypatch.setattr(transport, "MAX_BACKLOG", 50)

    def answer(peer: bytes, message: Message) -> None:
        for seq in range(1_000):
            server.reply(peer, Message("tensors", {"step": seq, "channels": [0], "without": []}, (np.zeros(4_000),)))

    with Endpoint("localhost:0", answer) as server, Connection(server.address) as deaf:
        for _ in range(20):
            deaf.send(ping())
        until(lambda: server.counters.dropped > 0, "messages are dropped")
        assert server.waiting() <= 50  # fewer where the kernel has just taken some


@pytest.mark.parametrize("shared", ["0", "64"])  # a lane over TCP; a Unix stream, whose shared memory is soon full
def test_what_waits_for_a_client_that_never_reads_is_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    monkeypatch.setenv("DOVETAIL_BACKLOG_MB", "32")
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY", shared)
    monkeypatch.setattr(sharing, "_pools", {})
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

        with pytest.raises(ResourceExhaustedError, match="DOVETAIL_BACKLOG_MB"):
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
    backlog = Backlog(1 << 20)
    large = [memoryview(bytes(4 << 20))]
    backlog.enter(b"a", "a", large)
    with pytest.raises(ResourceExhaustedError, match="cannot be sent to a: 4194304 bytes wait"):
        backlog.enter(b"a", "a", [memoryview(bytes(1 << 20))])
    backlog.enter(b"b", "b", large)
    with pytest.raises(ResourceExhaustedError):
        backlog.enter(b"c", "c", large, ahead=1)
    assert backlog.waiting(b"a") == 4 << 20
    backlog.enter(b"a", "a", [b"header", bytes(2 << 20)])  # not frames of tensors
    large.clear()
    assert backlog.waiting(b"a") == 0
    backlog.tidy()
    assert not backlog._waiting
    Backlog(0).enter(b"a", "a", [memoryview(bytes(1 << 20))], ahead=1 << 40)


def test_a_backlog_tells_how_much_has_left_whether_or_not_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "MOST_IDLE", 1)
    for most in (0, 1 << 30):
        backlog = Backlog(most)
        assert backlog.left(b"a") == 0
        frames = [memoryview(bytes(1 << 20)), memoryview(bytes(2 << 20))]
        backlog.enter(b"a", "a", frames)
        assert backlog.left(b"a") == 0
        del frames[0]
        assert backlog.left(b"a") == 1 << 20
        backlog.enter(b"b", "b", [memoryview(bytes(4 << 20))])
        assert backlog.left(b"b") == 4 << 20
        backlog.tidy()
        assert (backlog.left(b"a"), backlog.left(b"b")) == (1 << 20, 0)  # of whom nothing waits, it is forgotten
        backlog.forget(b"a")
        assert backlog.left(b"a") == 0


def test_a_client_may_come_before_its_server() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    with Connection(address) as connection:
        connection.send(ping(9))
        assert connection.recv(0.05) is None
        made = threading.Event()  # the message may come before the endpoint has its name here

        def answer_it(peer: bytes, message: Message) -> None:
            assert made.wait(WAIT_S)
            server.reply(peer, message)

        with Endpoint(address, answer_it) as server:
            made.set()
            answer = connection.recv(WAIT_S)
    assert answer is not None and answer.fields == {"seq": 9}


def test_a_server_may_come_back(echo: Endpoint, client: Connection) -> None:
    client.send(ping(1))
    assert client.recv(WAIT_S) is not None
    echo.close()
    with Endpoint(echo.address, lambda peer, message: again.reply(peer, message)) as again:
        deadline = time.monotonic() + WAIT_S
        while (answer := client.recv(0.2)) is None:
            client.send(ping(2))  # what was sent into the gap may be lost: it is for the layer above to repeat it
            assert time.monotonic() < deadline
        assert answer.fields == {"seq": 2}


def test_forget_drops_what_waits_for_a_dead_peer(echo: Endpoint) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    echo.send(address, ping(1))
    echo.forget(address)
    echo.send(address, ping(2))
    settled = threading.Event()
    echo.call_soon(
        settled.set
    )  # all three calls are only queued for the I/O thread; a server must not come before it is done
    assert settled.wait(WAIT_S)
    arrived: list[int] = []
    with Endpoint(address, lambda peer, message: arrived.append(message.fields["seq"])):
        until(lambda: bool(arrived), "the new server got its message")
        assert arrived == [2]


# The I/O thread.


def test_calls_and_ticks_run_on_the_io_thread() -> None:
    seen: list[str] = []
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(time.monotonic())
        seen.append(threading.current_thread().name)
        if len(ticks) == 2:
            raise RuntimeError("a tick that fails does not end the ticking")

    logging.getLogger("dovetail.runtime.transport").disabled = True
    try:
        with Endpoint("localhost:0", lambda peer, message: None, on_tick=tick) as endpoint:
            assert not endpoint.on_io_thread()
            ran = threading.Event()
            assert endpoint.call_soon(lambda: (seen.append(threading.current_thread().name), ran.set()))
            assert ran.wait(WAIT_S)
            until(lambda: len(ticks) >= 4, "there are four ticks")
    finally:
        logging.getLogger("dovetail.runtime.transport").disabled = False
    assert set(seen) == {f"dovetail-io-{endpoint.address}"}
    assert 0.2 < (ticks[3] - ticks[0]) / 3 < 20
    assert not endpoint.call_soon(lambda: None)


def test_a_handler_that_raises_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def handle(peer: bytes, message: Message) -> None:
        if message.kind == "status":
            raise KeyError("no such thing")
        server.reply(peer, message)

    with Endpoint("localhost:0", handle) as server, Connection(server.address) as connection:
        connection.send(Message("status", {"request": 77}))
        failure = connection.recv(WAIT_S)
        assert failure is not None and failure.kind == "error"
        assert failure.fields["request"] == 77 and failure.fields["code"] == "INTERNAL"
        assert "'status' failed: KeyError" in failure.fields["message"]
        connection.send(ping())
        assert connection.recv(WAIT_S) is not None
    assert "Traceback" in caplog.text


def test_a_message_that_cannot_travel_fails_where_it_is_sent(echo: Endpoint, client: Connection) -> None:
    with pytest.raises(WireError):
        client.send(Message("ping", {}))
    with pytest.raises(WireError):
        echo.send("localhost:1", Message("ping", {}))
    with pytest.raises(ValueError, match="host:port"):
        echo.send("nowhere", ping())
    client.send(ping(3))
    answer = client.recv(WAIT_S)
    assert answer is not None and answer.fields == {"seq": 3}


# Garbage.


def dealer(echo: Endpoint, name: bytes | None = None) -> zmq.Socket[bytes]:
    """A peer that is not held to the wire's rules."""
    sock = sockets.shared_context().socket(zmq.DEALER)
    if name is not None:
        sock.set(zmq.ROUTING_ID, name)
    sock.linger = 0
    sock.rcvtimeo = int(WAIT_S * 1000)
    host, port = split_address(echo.address)
    sock.connect(f"tcp://127.0.0.1:{port}")
    return sock


def test_garbage_is_answered_and_hurts_nobody(echo: Endpoint, client: Connection) -> None:
    rude = dealer(echo)
    try:
        for i, frames in enumerate([[b""], [b"garbage"], [b"", b"", b""], [os.urandom(100)] * 5], 1):
            rude.send_multipart(frames)
            answer = decode([rude.recv()])
            assert answer.kind == "error" and answer.fields["code"] == "INVALID_ARGUMENT"
            assert echo.address in answer.fields["message"]
            client.send(ping(i))
            assert (reply := client.recv(WAIT_S)) is not None and reply.fields == {"seq": i}
            assert echo.counters.malformed == i
    finally:
        rude.close()


def test_the_answer_to_garbage_names_its_request(echo: Endpoint) -> None:
    rude = dealer(echo)
    try:
        description = msgpack.packb(["status", {"odd": 0}, []])
        rude.send(struct.pack("<BBBxIq", 0x94, VERSION, 1, len(description), 12) + description)
        fields = decode([rude.recv()]).fields
        assert fields["request"] == 12 and "no field 'odd'" in fields["message"]
    finally:
        rude.close()


def test_a_peer_that_sends_only_garbage_is_no_longer_heard(echo: Endpoint, client: Connection) -> None:
    rude = dealer(echo)
    try:
        for _ in range(transport.MAX_STRIKES + 20):
            rude.send(b"garbage")
        answers = [rude.recv() for _ in range(transport.MAX_STRIKES)]
        assert b"no more are read" in answers[-1] and b"no more are read" not in answers[-2]
        until(lambda: echo.counters.ignored == 20, "the rest was ignored")
        assert rude.poll(50) == 0
        client.send(ping())
        assert client.recv(WAIT_S) is not None
    finally:
        rude.close()


def test_a_message_of_too_many_frames_is_refused(echo: Endpoint, client: Connection) -> None:
    rude = dealer(echo)
    try:
        rude.send_multipart([b"x"] * (sockets.MAX_FRAMES + 100))
        assert b"frames" in rude.recv()
        client.send(ping())
        assert client.recv(WAIT_S) is not None
    finally:
        rude.close()


def test_bytes_that_are_not_zeromq_hurt_nobody(echo: Endpoint, client: Connection) -> None:
    port = split_address(echo.address)[1]
    for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5_000), b"\xff" + bytes(8) + b"\x7f", b""):
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(data)
    client.send(ping())
    assert client.recv(WAIT_S) is not None


def test_a_client_cannot_take_the_name_of_a_dialled_peer(echo: Endpoint, client: Connection) -> None:
    """ZeroMQ's clients refuse such names, so this one speaks ZMTP by hand. No reply may go there."""
    with socket.create_server(("127.0.0.1", 0)) as victim:
        forged = transport._DIALLED + b"127.0.0.1:%d" % victim.getsockname()[1]
        port = split_address(echo.address)[1]
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            raw.settimeout(WAIT_S)
            greeting = b""
            while len(greeting) < 64:
                greeting += raw.recv(64 - len(greeting))
            properties = b"".join(
                bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
                for name, value in [(b"Socket-Type", b"DEALER"), (b"Identity", forged)]
            )
            command = b"\x05READY" + properties
            raw.sendall(bytes([4, len(command)]) + command)
            (message,) = encode(ping())
            raw.sendall(bytes([0, len(message)]) + message)
            until(lambda: echo.counters.ignored == 1, "the forger is ignored")
        client.send(ping())
        assert client.recv(WAIT_S) is not None
        victim.settimeout(0.1)
        with pytest.raises(TimeoutError):
            victim.accept()


def test_two_endpoints_do_not_argue_for_ever() -> None:
    """Garbage from a peer that was dialled is not answered: the answer might be garbage to it again."""

    def handle(peer: bytes, message: Message) -> None:
        rude._post(peer, [b"garbage"])

    with Endpoint("localhost:0", handle) as rude, Endpoint("localhost:0", handle) as other:
        other.send(rude.address, ping())
        until(lambda: other.counters.malformed == 1, "the garbage arrived")
        time.sleep(0.05)
        assert rude.counters.received == 1 and rude.counters.malformed == 0
        assert other.counters.received == 0


# Opening and closing.


def test_a_port_in_use_is_told(echo: Endpoint) -> None:
    port = split_address(echo.address)[1]
    with pytest.raises(AddressInUse, match=rf"cannot listen on localhost:{port}.*port 0"):
        Endpoint(f"localhost:{port}", lambda peer, message: None)
    assert issubclass(AddressInUse, OSError)


@pytest.mark.parametrize(
    ("address", "error", "says"),
    [
        ("nonsense", ValueError, "host:port"),
        ("localhost:70000", ValueError, "host:port"),
        ("localhost:-1", ValueError, "host:port"),
        ("a;b:1", ValueError, "host:port"),
        ("::1:22", ValueError, "host:port"),
        ("0.0.0.0:0", PermissionError, "insecure=True"),
        ("*:0", PermissionError, "there are no keys"),
        ("[::]:0", PermissionError, "insecure=True"),
        ("192.0.2.1:0", PermissionError, "insecure=True"),
        ("no-such-host.invalid:1", OSError, "does not resolve"),
    ],
)
def test_addresses_that_no_server_gets(address: str, error: type[Exception], says: str) -> None:
    before = threading.active_count()
    with pytest.raises(error, match=says):
        Endpoint(address, lambda peer, message: None)
    assert threading.active_count() == before


def test_an_address_of_another_machine() -> None:
    with pytest.raises(OSError, match="address of this machine"):
        Endpoint("192.0.2.1:0", lambda peer, message: None, insecure=True)


def test_insecure_is_possible_when_said() -> None:
    def handle(peer: bytes, message: Message) -> None:
        server.reply(peer, message)

    with Endpoint("0.0.0.0:0", handle, insecure=True) as server:
        assert server.address.startswith("0.0.0.0:")
        with Connection(f"localhost:{split_address(server.address)[1]}") as connection:
            connection.send(ping())
            assert connection.recv(WAIT_S) is not None


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("localhost:1", True), ("127.0.0.1:1", True), ("127.3.2.1:1", True), ("[::1]:1", True),
        ("0.0.0.0:1", False), ("*:1", False), ("10.0.0.1:1", False), ("[::]:1", False),
        ("[2001:db8::1]:1", False), ("nobody.invalid:1", False),
    ],
)  # fmt: skip
def test_is_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="this machine has no IPv6")  # noqa: PTH110
def test_ipv6() -> None:
    with Endpoint("[::1]:0", lambda peer, message: server.reply(peer, message)) as server:
        assert server.address.startswith("[::1]:")
        with Connection(server.address) as connection:
            connection.send(ping())
            assert connection.recv(WAIT_S) is not None


def test_closing_sends_what_is_pending(client: Connection, echo: Endpoint) -> None:
    """A server that answers and closes at once: all answers arrive, the large one included."""
    large = np.arange(4 << 20)

    def handle(peer: bytes, message: Message) -> None:
        for seq in range(1_500):
            server.reply(peer, ping(seq))
        server.reply(peer, Message("tensors", {"step": 0, "channels": [0], "without": []}, (large,)))
        server.close()  # from the I/O thread itself

    server = Endpoint("localhost:0", handle)
    with Connection(server.address) as connection:
        connection.send(ping())
        for seq in range(1_500):
            answer = connection.recv(WAIT_S)
            assert answer is not None and answer.fields == {"seq": seq}
        answer = connection.recv(WAIT_S)
        assert answer is not None and (answer.tensors[0] == large).all()
    server.close()
    assert not server._thread.is_alive()


def test_replies_queued_by_other_threads_before_close_leave() -> None:
    peers: list[bytes] = []
    server = Endpoint("localhost:0", lambda peer, message: peers.append(peer))
    with Connection(server.address) as connection:
        connection.send(ping())
        until(lambda: bool(peers), "the server knows the client")
        for seq in range(300):
            server.reply(peers[0], ping(seq))
        server.close()
        server.reply(peers[0], ping(300))  # too late, and no error
        arrived = [connection.recv(WAIT_S) for _ in range(300)]
        assert [message and message.fields["seq"] for message in arrived] == list(range(300))
        assert connection.recv(0.05) is None


def test_close_is_quick_and_idempotent_even_with_messages_for_nobody() -> None:
    server = Endpoint("localhost:0", lambda peer, message: None)
    server.send("localhost:1", ping())  # nobody listens on port 1
    start = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - start < 2 * sockets.LINGER_MS / 1000 + 10
    Endpoint(server.address, lambda peer, message: None).close()  # the port is free again


def test_nothing_is_left_behind() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def round_trip() -> None:
        def handle(peer: bytes, message: Message) -> None:
            server.reply(peer, message)

        with Endpoint("localhost:0", handle) as server, Connection(server.address) as connection:
            connection.send(ping())
            assert connection.recv(WAIT_S) is not None

    if not os.path.exists("/proc/self/fd"):  # noqa: PTH110
        pytest.skip("needs /proc")
    round_trip()  # makes the shared context, which stays
    time.sleep(0.05)
    files, threads = descriptors(), threading.active_count()
    for _ in range(20):
        round_trip()
    until(lambda: descriptors() <= files and threading.active_count() <= threads, "all is given back")


def test_a_closed_connection_says_so(echo: Endpoint) -> None:
    connection = Connection(echo.address)
    connection.close()
    connection.close()
    assert connection.closed
    with pytest.raises(ConnectionError, match=f"to {echo.address} is closed"):
        connection.send(ping())
    with pytest.raises(ConnectionError, match="is closed"):
        connection.recv(1.0)


def test_an_interrupted_wait_leaves_the_connection_usable(client: Connection) -> None:
    """Ctrl-C while waiting for an answer; the answer of a later request still comes."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            client.recv(WAIT_S)
    finally:
        signal.signal(signal.SIGALRM, old)
    client.send(ping(4))
    answer = client.recv(WAIT_S)
    assert answer is not None and answer.fields == {"seq": 4}


def test_a_server_that_takes_nothing_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SEND_TIMEOUT_S", 0.1)
    with Connection("localhost:1") as connection:
        with pytest.raises(TimeoutError, match="localhost:1 takes no messages"):
            for seq in range(2 * sockets.HIGH_WATER):
                connection.send(ping(seq))
        connection._socket.linger = 0


# Several servers.


def test_connections_gather_from_all_servers() -> None:
    servers = []
    for n in range(3):

        def handle(peer: bytes, message: Message, n: int = n) -> None:
            servers[n].reply(peer, Message("pong", {"seq": message.fields["seq"], "incarnation": n}))

        servers.append(Endpoint("localhost:0", handle))
    with Connections() as connections:
        assert connections.poll(0) == []
        for seq in range(10):
            for server in servers:
                connections.send(server.address, ping(seq))
        seen: dict[str, list[int]] = {server.address: [] for server in servers}
        while sum(map(len, seen.values())) < 30:
            arrived = connections.poll(WAIT_S)
            assert arrived
            for address, message in arrived:
                assert servers[message.fields["incarnation"]].address == address
                seen[address].append(message.fields["seq"])
        assert all(numbers == list(range(10)) for numbers in seen.values())
        assert connections.get(servers[0].address) is connections.get(servers[0].address)
        connections.forget(servers[0].address)
        connections.send(servers[0].address, ping(11))  # opens a new one
        ((address, message),) = connections.poll(WAIT_S)
        assert address == servers[0].address and message.fields["seq"] == 11
    for server in servers:
        server.close()


def test_garbage_from_one_server_does_not_hide_what_others_sent(echo: Endpoint) -> None:
    def rude(peer: bytes, message: Message) -> None:
        server._post(peer, [b"garbage"])

    with Endpoint("localhost:0", rude) as server, Connections() as connections:
        connections.send(server.address, ping(1))
        connections.send(echo.address, ping(2))
        time.sleep(0.3)  # both have answered
        arrived, failures = [], []
        deadline = time.monotonic() + WAIT_S
        while len(arrived) + len(failures) < 2 and time.monotonic() < deadline:
            try:
                arrived += connections.poll(0.2)
            except WireError as error:
                failures.append(str(error))
        assert [(address, message.fields) for address, message in arrived] == [(echo.address, {"seq": 2})]
        assert len(failures) == 1 and failures[0].startswith(server.address)


def test_connections_recover_from_one_that_was_interrupted(echo: Endpoint) -> None:
    with Connections() as connections:
        connections.get(echo.address)._socket.close()  # what an interrupt in the middle of a message does
        assert connections.poll(0) == []
        connections.send(echo.address, ping(1))
        assert connections.poll(WAIT_S)[0][1].fields == {"seq": 1}


# Processes.


def _in_child(address: str, echo: Endpoint, connection: Connection, results: multiprocessing.Queue[str]) -> None:
    connection.close()  # the parent's: must not hang, nor end the parent's connection
    echo.close()
    with Connection(address) as own:
        own.send(ping(5))
        answer = own.recv(WAIT_S)
    results.put(repr(answer))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_sockets_of_its_own(echo: Endpoint, client: Connection) -> None:
    client.send(ping(1))
    assert client.recv(WAIT_S) is not None
    fork = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = fork.Queue()
    child = fork.Process(target=_in_child, args=(echo.address, echo, client, results))
    child.start()
    try:
        assert results.get(timeout=WAIT_S) == "Message('ping', seq=5)"
        child.join(WAIT_S)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
    client.send(ping(2))
    answer = client.recv(WAIT_S)
    assert answer is not None and answer.fields == {"seq": 2}


def test_the_last_words_of_a_process_arrive() -> None:
    """A client that sends, closes and exits at once."""
    arrived: list[int] = []
    with Endpoint("localhost:0", lambda peer, message: arrived.append(message.fields["seq"])) as server:
        program = (
            "import sys\n"
            "from dovetail.runtime.connections import Connection\n"
            "from dovetail.runtime.wire import Message\n"
            "with Connection(sys.argv[1]) as connection:\n"
            "    for seq in range(500): connection.send(Message('ping', {'seq': seq}))\n"
        )
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, "-c", program, server.address], check=True, timeout=30, env=env)
        until(lambda: len(arrived) == 500, "all arrived")
    assert arrived == list(range(500))


@pytest.mark.slow
def test_a_stopped_server_is_noticed_by_the_heartbeat() -> None:
    """SIGSTOP leaves the connection open and silent: after the timeout replies to it find nobody."""
    program = (
        "import sys, time\n"
        "from dovetail.runtime.connections import Connection\n"
        "from dovetail.runtime.wire import Message\n"
        "connection = Connection(sys.argv[1])\n"
        "connection.send(Message('ping', {'seq': 1}))\n"
        "time.sleep(60)\n"
    )
    peers: list[bytes] = []
    with Endpoint("localhost:0", lambda peer, message: peers.append(peer)) as server:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        child = subprocess.Popen([sys.executable, "-c", program, server.address], env=env)
        try:
            until(lambda: bool(peers), "the client is connected")
            server.reply(peers[0], ping())
            until(lambda: server.counters.sent >= 2, "the hello and the reply were taken")
            child.send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + WAIT_S
            while server.counters.gone == 0 and time.monotonic() < deadline:
                server.reply(peers[0], ping())
                time.sleep(0.1)
            assert server.counters.gone > 0
        finally:
            child.kill()
            child.wait()
