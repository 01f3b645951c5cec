"""Endpoints and connections, opened and closed, and the processes around them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from echoing import WAIT_S, Connection, ping, until

from dovetail.runtime.transport import peer as peer_module, zmq_links, zmq_sockets
from dovetail.runtime.transport.address import is_loopback, split_address
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.zmq_links import AddressInUse
from dovetail.runtime.transport.zmq_sockets import HIGH_WATER
from dovetail.runtime.wire.messages import Message


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
    assert not server._io._thread.is_alive()


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
    assert time.monotonic() - start < 2 * zmq_sockets.LINGER_MS / 1000 + 10
    Endpoint(server.address, lambda peer, message: None).close()  # the port is free again


def test_close_does_not_wait_for_a_peer_that_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a cluster end together, and each may have last words for the others."""
    heard = threading.Event()
    here = Endpoint("localhost:0", lambda peer, message: None)
    there = Endpoint("localhost:0", lambda peer, message: heard.set())
    here.send(there.address, ping())
    assert heard.wait(WAIT_S)
    monkeypatch.setattr(zmq_links, "LINGER_MS", 3_600_000)  # it would wait for an hour
    there.close()
    here.send(there.address, ping())
    here.close()


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
    assert connection.all.closed
    with pytest.raises(ConnectionError, match=f"to {echo.address} is closed"):
        connection.send(ping())
    with pytest.raises(ConnectionError, match="are closed"):
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


def test_what_a_server_does_not_take_waits_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "MAX_BACKLOG", 50)
    with Connection("localhost:1") as connection:
        for seq in range(HIGH_WATER + 60):
            connection.send(ping(seq))
        peers = connection.all._peers
        assert peers.waiting() == 50 and peers.counters.dropped >= 5  # the rest waits in ZeroMQ
        connection.socket.linger = 0


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
            "from dovetail.runtime.transport.client import Connections\n"
            "from dovetail.runtime.wire.messages import Message\n"
            "with Connections() as connections:\n"
            "    for seq in range(500): connections.send(sys.argv[1], Message('ping', {'seq': seq}))\n"
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
        "from dovetail.runtime.transport.client import Connections\n"
        "from dovetail.runtime.wire.messages import Message\n"
        "connections = Connections()\n"
        "connections.send(sys.argv[1], Message('ping', {'seq': 1}))\n"
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
