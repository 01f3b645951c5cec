"""The transport, over real sockets on this machine: what is sent arrives."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from echoing import WAIT_S, Connection, ping, until

import dovetail as dt
from dovetail.runtime.transport.client import Connections
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.stream import Stream
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.wire.schema import WireError

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


def test_no_answer_of_the_io_thread_overtakes_one_of_another_thread() -> None:
    """Else a pong could say that nothing is owed while the answer waits behind it."""

    def take(peer: bytes, message: Message) -> None:
        other = threading.Thread(target=server.reply, args=(peer, ping(1)))  # its answer waits for this thread
        other.start()
        other.join()
        for seq in (2, 3):
            server.reply(peer, ping(seq))

    with Endpoint("localhost:0", take) as server, Connection(server.address) as connection:
        connection.send(ping())  # before there is a stream
        answers = [connection.recv(WAIT_S) for _ in range(3)]
        assert [answer.fields["seq"] for answer in answers if answer is not None] == [1, 2, 3]


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
    # All three calls are only queued for the I/O thread; a server must not come before it is done.
    echo.call_soon(settled.set)
    assert settled.wait(WAIT_S)
    # ZeroMQ closes a socket in a thread of its own, and does not say when it has: until then it may connect.
    time.sleep(1.0)
    arrived: list[int] = []
    with Endpoint(address, lambda peer, message: arrived.append(message.fields["seq"])):
        until(lambda: bool(arrived), "the new server got its message")
        assert arrived == [2]


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


def test_tensors_that_do_not_go_with_their_channels_are_refused() -> None:
    with dt.LocalCluster({"a": 1}) as cluster, Connection(cluster.cluster_spec.task_address("a", 0)) as connection:
        for channels, tensors in ((["a"], ()), ([], (np.zeros(2),)), (["a", "b"], (np.zeros(2),))):
            connection.send(Message("tensors", {"step": 9, "channels": channels, "without": []}, tensors))
            failure = connection.recv(WAIT_S)
            assert failure is not None and failure.fields["code"] == "INVALID_ARGUMENT"
            assert "its channels are not those of its tensors" in failure.fields["message"]


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
        assert connections.peer(servers[0].address) is connections.peer(servers[0].address)
        connections.forget(servers[0].address)
        connections.send(servers[0].address, ping(11))  # opens a new one
        ((address, message),) = connections.poll(WAIT_S)
        assert address == servers[0].address and message.fields["seq"] == 11
    for server in servers:
        server.close()


def test_garbage_from_one_server_does_not_hide_what_others_sent(echo: Endpoint) -> None:
    def rude(peer: bytes, message: Message) -> None:
        server._peers.post(server._peers.get(peer), [b"garbage"])

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


class _AlarmError(Exception):
    """What a program's signal handler may raise."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, _AlarmError])
def test_connections_recover_from_an_interrupt(
    echo: Endpoint, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def interrupted(*_: object) -> None:
        raise kind

    with Connections() as connections:
        for what in ("post", "attend"):  # in the middle of a message that is sent, or received
            before = connections.peer(echo.address)
            while before.stream is None or not before.stream.is_open:
                connections.send(echo.address, ping(0))
                assert connections.poll(WAIT_S)
            with monkeypatch.context() as now:
                now.setattr(connections._peers, what, interrupted)
                with pytest.raises(kind):
                    connections.send(echo.address, ping(0))
                    connections.poll(WAIT_S, echo.address)
                    connections.poll(WAIT_S, echo.address)
            assert connections.peer(echo.address) is not before
        assert connections.poll(0) == []
        connections.send(echo.address, ping(1))
        assert connections.poll(WAIT_S)[0][1].fields == {"seq": 1}


def test_an_interrupt_while_a_connection_is_made_leaves_none_behind(
    echo: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: bytes) -> None:
        raise KeyboardInterrupt

    with Connections() as connections:
        links = connections._peers.links
        with monkeypatch.context() as now:
            now.setattr(links, "_dialled", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connections.send(echo.address, ping(0))
        assert not links._peers
        connections.send(echo.address, ping(1))
        assert connections.poll(WAIT_S)[0][1].fields == {"seq": 1}


def test_a_stream_that_comes_while_the_connections_are_closed_is_closed(echo: Endpoint) -> None:
    here, there = socket.socketpair()
    with Connections() as connections, there:
        peer = connections.peer(echo.address)
        stream = Stream(here, 8, 1 << 20)
        assert connections._io.call_soon(lambda: connections._peers._upgrade(peer, stream))
        connections.close()
        assert here.fileno() == -1
        assert not connections._io.call_soon(lambda: None)


def test_a_process_that_ends_sends_what_it_owes() -> None:
    program = (
        "import threading, time\n"
        "from dovetail.runtime.transport.endpoint import Endpoint\n"
        "ends = threading.Event()\n"
        "def answer(peer, message):\n"
        "    ends.set()\n"
        "    time.sleep(0.3)\n"
        "    endpoint.reply(peer, message)\n"
        "endpoint = Endpoint('localhost:0', answer)\n"
        "print(endpoint.address, flush=True)\n"
        "ends.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        with Connection(server.stdout.readline().strip()) as connection:
            connection.send(ping(7))
            answer = connection.recv(WAIT_S)
    assert answer is not None and answer.fields == {"seq": 7}
