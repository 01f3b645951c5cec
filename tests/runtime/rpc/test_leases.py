"""Sessions whose clients have vanished end; those of clients that live do not, however idle they are."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

import dovetail as tf
from dovetail.runtime.rpc.failure_detection import Leases


def test_a_session_ends_when_nobody_mentions_it_and_its_client_is_gone() -> None:
    leases = Leases(10.0)
    leases.seen("s", b"1", 0.0)
    leases.seen("t", b"2", 4.0)
    gone = {b"1", b"2"}
    assert leases.look(9.0, ["s", "t"], gone.__contains__) == []
    assert leases.look(10.0, ["s", "t"], gone.__contains__) == ["s"]
    assert leases.look(20.0, ["t"], gone.__contains__) == ["t"]
    assert leases.look(99.0, [], gone.__contains__) == []


def test_a_client_that_lives_may_be_silent_for_ever_and_one_that_comes_back_is_welcome() -> None:
    leases = Leases(10.0)
    leases.seen("s", b"1", 0.0)
    for now in range(0, 1000, 7):
        assert leases.look(float(now), ["s"], lambda client: False) == []
    leases.seen("s", b"2", 1000.0)  # a new connection
    assert leases.look(1005.0, ["s"], lambda client: client == b"1") == []
    assert leases.look(1010.0, ["s"], lambda client: client == b"1") == []


def test_what_does_not_exist_is_not_remembered() -> None:
    leases = Leases(10.0)
    for i in range(100):
        leases.seen(f"nobody {i}", b"1", 0.0)
    leases.look(0.0, [], lambda client: True)
    assert not leases._seen


CLIENT = """
import sys, dovetail as tf
x = tf.constant(1.0) + 1.0
session = tf.Session(sys.argv[1])
print(session.run(x), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_the_session_of_a_killed_client_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.runtime.timeouts.LEASE_S", 1.5)
    with tf.train.Server.create_local_server() as server, tf.Session(server.target) as session:
        x = tf.constant(2.0) + 1.0
        assert session.run(x) == 3.0
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT, server.target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"2.0\n"
            time.sleep(4.0)
            assert len(server._master.handles()) == 2  # both are idle, and live
            client.kill()
        deadline = time.monotonic() + 15.0
        while len(server._master.handles()) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert len(server._worker._sessions) == 1
        assert session.run(x) == 3.0
