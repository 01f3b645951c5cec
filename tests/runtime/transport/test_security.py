"""Security over real sockets: who gets in and who does not, what both are told, sessions with keys, and what one client may have."""

from __future__ import annotations

import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echoing import Connection

import dovetail as tf
from dovetail.graph.core.errors import (
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from dovetail.runtime.master import workers
from dovetail.runtime.master.master import Master, MasterSession
from dovetail.runtime.rpc.dispatch import this_client
from dovetail.runtime.rpc.pending_call import ConnectionPool, call
from dovetail.runtime.session import cluster_backend
from dovetail.runtime.transport import keys as files
from dovetail.runtime.transport.access_control import AccessControl, mechanism_of, why_silent
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.keys import KeyPair, Keys, PublicKey
from dovetail.runtime.transport.zmq_sockets import new_key_pair
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.worker.registration import Registration

WAIT_S = 15.0


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


# Over sockets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def real() -> Iterator[KeyPair]:
        while True:
            yield new_key_pair()

    files.write_cluster(tmp_path / "keys", [("a-0", ""), ("b-0", "h:1")], ["client", "alice"], real())
    return tmp_path / "keys"


@pytest.fixture
def echo(folder: Path) -> Iterator[Endpoint]:
    def answer(peer: bytes, message: Message) -> None:
        is_request = message.kind == "status"
        endpoint.reply(peer, message.reply(devices=[], incarnation=1) if is_request else message)

    with Endpoint("localhost:0", answer, keys=Keys.load(folder, "a-0")) as endpoint:
        yield endpoint


def answers(connection: Connection, within_s: float = WAIT_S) -> bool:
    connection.send(Message("ping", {"seq": 1}))
    return connection.recv(within_s) is not None


def test_who_has_a_key_gets_in(echo: Endpoint, folder: Path) -> None:
    for name in ("client", "b-0"):
        with Connection(echo.address, keys=Keys.load(folder, name)) as connection:
            assert answers(connection)
            assert connection.all.why_silent(connection.address) is None
    assert echo.refused == 0


def test_who_has_none_gets_nothing_and_is_told_why(echo: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with Connection(echo.address) as connection:
        assert not answers(connection, 0.5)
        why = connection.all.why_silent(connection.address)
        assert why is not None and "this process has no keys" in why and "DOVETAIL_KEYS" in why
    until(lambda: echo.refused > 0, "it is refused")
    assert re.search(r"refused a connection from (127\.0\.0\.1|a host that has hung up): it h", caplog.text)
    assert echo.counters.received == 0


@pytest.mark.slow
def test_a_key_that_is_not_allowed_gets_nothing(echo: Endpoint, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    alice = Keys.load(folder, "alice")
    files.revoke(folder, "alice")
    with Connection(echo.address, keys=alice) as connection:
        assert not answers(connection, 0.5)
        why = connection.all.why_silent(connection.address)
        assert why is not None and f"does not let in 'alice' (public key {alice.pair.public[:8]}..." in why
        assert f"the key {alice.pair.public} is not allowed" in caplog.text
        assert echo.counters.received == 0
        # And once it is allowed, the same connection gets through by itself.
        files.allow(folder, PublicKey("alice", alice.pair.public))
        assert connection.recv(WAIT_S) is not None


def test_another_server_than_the_one_that_was_meant(echo: Endpoint, folder: Path) -> None:
    port = echo.address.rpartition(":")[2]
    path = folder / "client" / files.SERVERS / "b-0.pub"
    path.write_text(path.read_text().replace("at: h:1", f"at: localhost:{port}"))
    with Connection(echo.address, keys=Keys.load(folder)) as connection:
        assert not answers(connection, 0.5)
        why = connection.all.why_silent(connection.address)
        assert why is not None and "not the server 'b-0' whose key is expected there" in why
    assert echo.counters.received == 0


def test_a_client_with_keys_talks_to_no_server_without(folder: Path) -> None:
    with Endpoint("localhost:0", lambda peer, message: endpoint.reply(peer, message)) as endpoint:
        with Connection(endpoint.address, keys=Keys.load(folder)) as connection:
            assert not answers(connection, 0.5)
            why = connection.all.why_silent(connection.address)
            assert why is not None and "has no keys" in why
        assert endpoint.counters.received == 0


def test_revoking_ends_connections_and_leaves_others(echo: Endpoint, folder: Path) -> None:
    with (
        Connection(echo.address, keys=Keys.load(folder, "alice")) as alice,
        Connection(echo.address, keys=Keys.load(folder)) as client,
    ):
        assert answers(alice) and answers(client)
        files.revoke(folder, "alice")
        until(lambda: not answers(alice, 0.1), "alice is cut off")
        assert answers(client)
        assert alice.all.why_silent(alice.address) is not None


def test_servers_talk_to_servers(folder: Path) -> None:
    heard: list[Message] = []
    with (
        Endpoint("localhost:0", lambda peer, message: a.reply(peer, message), keys=Keys.load(folder, "a-0")) as a,
        Endpoint("localhost:0", lambda peer, message: heard.append(message), keys=Keys.load(folder, "b-0")) as b,
    ):
        b.send(a.address, Message("ping", {"seq": 3}))
        until(lambda: bool(heard), "the answer has come")
    assert heard[0].fields == {"seq": 3}


def test_keys_open_addresses_that_others_can_reach(folder: Path) -> None:
    with pytest.raises(PermissionError, match="refusing to listen on 0.0.0.0:0.*dovetail keys new.*insecure=True"):
        Endpoint("0.0.0.0:0", lambda peer, message: None)
    with Endpoint("0.0.0.0:0", lambda peer, message: None, keys=Keys.load(folder, "a-0")) as endpoint:
        assert mechanism_of(endpoint.address, 1.0) == "CURVE"


@pytest.mark.parametrize("given", [{}, {"limit_s": 30.0}])
def test_a_call_without_a_key_says_what_to_do(echo: Endpoint, given: dict[str, float]) -> None:
    pool = ConnectionPool()
    with pool.borrow() as connections, pytest.raises(PermissionDeniedError, match="no keys: name a folder"):
        call(
            connections,
            echo.address,
            Message("status"),
            0.5,
            given.get("limit_s"),
        )
    pool.close()


def test_a_busy_server_has_time_to_check_a_key(echo: Endpoint, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = AccessControl.answer

    def check_late(self: AccessControl, request: list[bytes]) -> list[bytes]:
        time.sleep(1.0)
        return check(self, request)

    monkeypatch.setattr(AccessControl, "answer", check_late)
    pool = ConnectionPool(Keys.load(folder))
    with pool.borrow() as connections:
        asked = Message("status")
        assert call(connections, echo.address, asked, 0.2, None).kind == "devices"
    pool.close()


def test_a_key_that_is_not_allowed_is_refused_after_a_while(echo: Endpoint, folder: Path) -> None:
    files.revoke(folder, "alice")
    pool = ConnectionPool(Keys.load(folder, "alice"))
    with pool.borrow() as connections, pytest.raises(PermissionDeniedError, match="does not let in 'alice'"):
        call(connections, echo.address, Message("status"), 0.2, None)
    pool.close()


def test_silence_that_has_nothing_to_do_with_keys_is_called_silence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert mechanism_of(address, 0.05) == ""
        assert why_silent(address, None, False) is None
        pool = ConnectionPool()
        with pool.borrow() as connections, pytest.raises(UnavailableError, match="has not answered"):
            call(connections, address, Message("status"), 0.5, None)
        pool.close()


# Servers and sessions


def test_a_session_with_a_key_runs_and_one_without_is_told(folder: Path) -> None:
    with tf.train.Server({"a": ["localhost:0"]}, keys=folder) as server:
        config = tf.ConfigProto(keys=str(folder), peer_timeout_s=1.0)
        with tf.Graph().as_default(), tf.Session(server.target, config=config) as session:
            assert session.run(tf.constant(2.0) * 3.0) == 6.0
            tf.Session.reset(server.target, config=config)
            with pytest.raises(tf.errors.AbortedError):
                session.run(tf.constant(1.0) + 1.0)


def test_a_client_beside_a_server_is_who_that_server_is(folder: Path) -> None:
    with (
        tf.train.Server({"a": ["localhost:0"]}, keys=folder) as server,
        tf.Graph().as_default(),
        tf.Session(server.target) as session,
    ):
        assert session.run(tf.constant(2.0) + 1.0) == 3.0
    assert files.client_keys() is None


@pytest.mark.slow
def test_a_process_without_keys_is_refused_by_a_cluster_with(tmp_path: Path) -> None:
    files.write_keys(tmp_path / "keys", "all", new_key_pair())
    with tf.LocalCluster({"ps": 1, "worker": 1}, keys=tmp_path / "keys") as cluster:
        with tf.device("/job:ps"):
            v = tf.Variable(np.arange(50_000, dtype=np.float32), name="v")  # large enough for shared memory
        with tf.device("/job:worker"):
            total = tf.reduce_sum(v * 2.0)
        assert len(cluster.list_devices()) == 2
        target = cluster.target("worker")
        with tf.Session(target, config=tf.ConfigProto(keys=str(tmp_path / "keys"))) as session:
            session.run(v.initializer)
            assert session.run(total) == pytest.approx(50_000 * 49_999)
        with pytest.raises(tf.errors.PermissionDeniedError, match="no keys: name a folder"):
            tf.Session(target, config=tf.ConfigProto(peer_timeout_s=1.0))


def test_the_keys_of_all_peers_must_be_known_at_the_start(folder: Path) -> None:
    cluster = {"a": ["localhost:0"], "b": ["h:1"], "c": ["h:2", "h:3"]}
    (folder / "a-0" / files.SERVERS / "a-0.pub").unlink()
    with pytest.raises(PermissionError, match="Which key must the server at h:2 have"):
        tf.train.Server(cluster, "a", 0, keys=folder)


def test_where_keys_lie_does_not_travel() -> None:
    config = tf.ConfigProto(keys="/home/me/keys")
    assert "keys" not in config.to_fields()
    assert tf.ConfigProto.from_fields({"keys": "/etc", "peer_timeout_s": 2.0}).keys == ""


# What one client may have


def test_sessions_of_a_client_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CLIENT_SESSIONS", "2")
    with tf.train.Server.create_local_server() as server, tf.Graph().as_default():
        first = tf.Session(server.target)
        with tf.Session(server.target), pytest.raises(ResourceExhaustedError, match="2 sessions open .* Close some"):
            tf.Session(server.target)
        first.close()
        with tf.Session(server.target) as again, tf.Session(server.target):
            assert again.run(tf.constant(1) + 1) == 2


def test_sessions_that_are_being_opened_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CLIENT_SESSIONS", "2")
    begun, go_on = threading.Barrier(3), threading.Event()
    opening = Master.create_session

    def slow(self: Master, *args: Any, **options: Any) -> MasterSession:
        begun.wait(10)
        go_on.wait(10)
        return opening(self, *args, **options)

    with tf.train.Server.create_local_server() as server, tf.Graph().as_default():
        with monkeypatch.context() as patched, ThreadPoolExecutor(2) as pool:
            patched.setattr(Master, "create_session", slow)
            sessions = [pool.submit(tf.Session, server.target) for _ in range(2)]
            begun.wait(10)
            with pytest.raises(ResourceExhaustedError, match="2 sessions open"):
                tf.Session(server.target)
            go_on.set()
            for session in sessions:
                session.result(10).close()
        tf.Session(server.target).close()


def test_steps_are_counted_by_process_whatever_thread_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CLIENT_STEPS", "2")
    # As if the server were another process.
    monkeypatch.setattr(cluster_backend, "find_colocated", lambda address, incarnation: None)
    refused: queue.SimpleQueue[ResourceExhaustedError] = queue.SimpleQueue()
    with tf.train.Server.create_local_server() as server, tf.Graph().as_default():
        q = tf.FIFOQueue(1, tf.float32, [[]])
        put, taken = q.enqueue([1.0]), q.dequeue()
        session = tf.Session(server.target)
        session.run(put)
        assert session.run(taken) == 1.0  # from now on no thread needs to have it prepared

        def run() -> None:
            try:
                session.run(taken)
            except ResourceExhaustedError as e:
                refused.put(e)
            except tf.errors.OpError:  # the session is closed
                pass

        threads = [threading.Thread(target=run) for _ in range(5)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            assert "2 running steps" in refused.get(timeout=60).message
        assert len(server._worker.running()) == 2
        monkeypatch.setattr(cluster_backend, "this_client", lambda: "another process")
        with tf.Session(server.target) as other:
            other.run(tf.constant(1.0) + 1.0)
        session.close()
        for thread in threads:
            thread.join(60)
        assert refused.empty()
    until(lambda: not server._step_handlers.running, "no step runs")


def test_a_forked_child_is_another_client(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = this_client()
    assert mine == this_client()
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: -1)
        assert this_client() != mine
    assert this_client() == mine


def test_a_registration_says_whose_it_is() -> None:
    told = Registration("p", "s", (), seed=1, client="someone").to_fields()
    assert Registration.from_fields(told).client == "someone"
    told["client"] = "x" * 100
    assert Registration.from_fields(told).client == "x" * 64


@pytest.mark.slow
def test_steps_and_feeds_of_a_client_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CLIENT_MB", "1")
    with tf.LocalCluster({"a": 1}) as cluster, tf.Session(cluster.target("a")) as session:
        x = tf.placeholder(tf.float32, [None])
        total = tf.reduce_sum(x)
        assert session.run(total, {x: np.ones(1000, np.float32)}) == 1000
        with pytest.raises(ResourceExhaustedError, match="bytes fed to running steps .*DOVETAIL_CLIENT_MB"):
            session.run(total, {x: np.ones(1 << 20, np.float32)})
        assert session.run(total, {x: np.ones(1000, np.float32)}) == 1000  # nothing was kept


def test_who_waits_for_a_cluster_is_told_for_whom(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "TELL_MISSING_S", 0.2)
    cluster = {"a": ["localhost:0"], "b": ["localhost:9"]}
    with tf.train.Server(cluster, "a", 0) as server, pytest.raises(UnavailableError, match="Waited"):
        tf.Session(server.target, graph=tf.Graph(), config=tf.ConfigProto(wait_for_cluster_s=1.0))
    said = [r.getMessage() for r in caplog.records if r.name == "dovetail.runtime.session.cluster_backend"]
    assert said and said[0] == "Waiting for /job:b/replica:0/task:0 at localhost:9"


def test_a_python_function_never_runs_on_another_task() -> None:
    ran: list[int] = []
    with tf.LocalCluster({"a": 1}) as cluster, tf.Session(cluster.target("a")) as session:
        called = tf.py_func(lambda: ran.append(1) or np.float32(1), [], tf.float32)
        with pytest.raises((tf.errors.OpError, ValueError, TypeError), match="(?i)function"):
            session.run(called)
    assert ran == []
