"""Sessions whose clients have vanished end; those of clients that live do not, however idle they are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

import dovetail as tf
from dovetail.runtime.master.handlers import MasterHandlers
from dovetail.runtime.wire.messages import Message


class TestLeases:
    """One session "s" of a master, and its lease of 10 s."""

    @pytest.fixture(autouse=True)
    def setup(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dovetail.runtime.timeouts.LEASE_S", 10.0)
        self.gone: set[bytes] = set()
        self.closed: list[str] = []
        session = SimpleNamespace(handle="s", client="", heard=(b"1", 0.0))
        self.session = session
        master: Any = SimpleNamespace(
            sessions=lambda: [session], find=lambda handle: session if handle == "s" else None,
            close_session=self.closed.append,
        )  # fmt: skip
        executor: Any = SimpleNamespace(master=SimpleNamespace(submit=lambda work, *of: work(*of)))
        responder: Any = SimpleNamespace(task="t", endpoint=SimpleNamespace(is_gone=lambda client: client in self.gone))
        self.handlers = MasterHandlers(master, executor, responder, tf.ConfigProto())

    def ended(self, now: float) -> list[str]:
        self.closed.clear()
        self.handlers.tidy(now)
        return self.closed

    def test_a_session_ends_when_nobody_mentions_it_and_its_client_is_gone(self) -> None:
        self.gone = {b"1"}
        assert self.ended(9.0) == []
        assert self.ended(10.0) == ["s"]

    def test_a_client_that_lives_may_be_silent_for_ever_and_one_that_comes_back_is_welcome(self) -> None:
        for now in range(0, 1000, 7):
            assert self.ended(float(now)) == []
        self.handlers.on_touch(b"2", Message("touch", {"session": "s"}))  # a new connection
        self.handlers.on_touch(b"3", Message("touch", {"session": "nobody"}))
        assert self.session.heard[0] == b"2"
        self.gone = {b"1"}
        assert self.ended(self.session.heard[1] + 11.0) == []


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
            assert len(server._master.sessions()) == 2  # both are idle, and live
            client.kill()
        deadline = time.monotonic() + 15.0
        while len(server._master.sessions()) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert len(server._worker._sessions) == 1
        assert session.run(x) == 3.0
