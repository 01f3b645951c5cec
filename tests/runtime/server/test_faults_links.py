"""Faults of connections that are asked for: what is lost, late or the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from echoing import Connection

from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.wire.messages import Message


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is written there are the faults of what a test makes."""
    path = tmp_path / "faults"
    path.touch()
    monkeypatch.setenv("DOVETAIL_FAULTS", f"from:{path}")
    return path


@pytest.fixture
def echo(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Endpoint, Connection]]:
    """An endpoint that has the faults, and a connection that has not."""
    with Endpoint("localhost:0", lambda peer, message: endpoint.reply(peer, message)) as endpoint:
        monkeypatch.delenv("DOVETAIL_FAULTS")
        with Connection(endpoint.address) as connection:
            peer = connection.peer
            while peer.stream is None or not peer.stream.is_open:  # the faults are not those of the handshake
                connection.send(Message("ping", {"seq": 0}))
                assert connection.recv(5.0) is not None
            monkeypatch.setenv("DOVETAIL_FAULTS", f"from:{file}")
            yield endpoint, connection


def says(file: Path, text: str) -> None:
    time.sleep(0.02)  # the file's time must differ
    file.write_text(text)


def answers(connection: Connection, first: int, count: int, timeout_s: float) -> list[int]:
    """The numbers that come back of so many that are sent."""
    for seq in range(first, first + count):
        connection.send(Message("ping", {"seq": seq}))
    came = []
    deadline = time.monotonic() + timeout_s
    while len(came) < count and (m := connection.recv(max(0.0, deadline - time.monotonic()))) is not None:
        came.append(m.fields["seq"])
    return came


def test_a_cut_loses_everything_and_what_comes_afterwards_arrives(
    echo: tuple[Endpoint, Connection], file: Path
) -> None:
    _, connection = echo
    says(file, "cut:all")
    assert answers(connection, 1, 3, 0.3) == []
    says(file, "")
    assert answers(connection, 4, 3, 5.0) == [4, 5, 6]


def test_every_nth_message_is_lost(echo: tuple[Endpoint, Connection], file: Path) -> None:
    _, connection = echo
    says(file, "lose:7")
    first, second = answers(connection, 0, 35, 1.0), answers(connection, 35, 35, 1.0)
    assert 0 < len(first) < 35 and 0 < len(second) < 35
    assert sorted(first + second) == first + second


def test_late_messages_stay_in_order(echo: tuple[Endpoint, Connection], file: Path) -> None:
    _, connection = echo
    says(file, "delay:100")
    began = time.monotonic()
    assert answers(connection, 0, 20, 5.0) == list(range(20))
    assert time.monotonic() - began >= 0.2  # there and back
    says(file, "")
    assert answers(connection, 20, 20, 5.0) == list(range(20, 40))


def test_a_narrow_link_takes_its_time(file: Path) -> None:
    says(file, "rate:1")
    got: list[float] = []
    with (
        Endpoint("localhost:0", lambda peer, message: got.append(time.monotonic())) as endpoint,
        Connection(endpoint.address) as connection,
    ):
        began = time.monotonic()
        connection.send(Message("extend", {"request": 1, "session": "s", "from_version": 0, "graph": bytes(400_000)}))
        while not got and time.monotonic() < began + 5.0:
            time.sleep(0.01)
    assert got and got[0] - began >= 0.3


def test_a_process_ends_at_the_message_that_was_named(tmp_path: Path) -> None:
    program = """
import os
os.environ["DOVETAIL_FAULTS"] = "kill:ping:2"
from dovetail.runtime.transport.client import Connections
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.wire.messages import Message
with Endpoint("localhost:0", lambda peer, message: endpoint.reply(peer, message)) as endpoint:
    with Connections() as connections:
        for seq in 1, 2:
            connections.send(endpoint.address, Message("ping", {"seq": seq}))
            print(connections.poll(5.0)[0][1].fields["seq"], flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-9, "1\n"), done.stderr
