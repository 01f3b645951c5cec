"""The I/O thread of an endpoint: what runs on it, and when it sleeps."""

from __future__ import annotations

import logging
import os
import threading
import time

import pytest
from echoing import WAIT_S, ping, until

from dovetail.runtime.transport import event_loop
from dovetail.runtime.transport.client import Connection
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.wire.messages import Message


def test_calls_and_ticks_run_on_the_io_thread() -> None:
    seen: list[str] = []
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(time.monotonic())
        seen.append(threading.current_thread().name)
        if len(ticks) == 2:
            raise RuntimeError("a tick that fails does not end the ticking")

    logging.getLogger("dovetail.runtime.transport.event_loop").disabled = True
    try:
        with Endpoint("localhost:0", lambda peer, message: None, on_tick=tick) as endpoint:
            assert not endpoint.on_io_thread()
            ran = threading.Event()
            assert endpoint.call_soon(lambda: (seen.append(threading.current_thread().name), ran.set()))
            assert ran.wait(WAIT_S)
            until(lambda: len(ticks) >= 4, "there are four ticks")
    finally:
        logging.getLogger("dovetail.runtime.transport.event_loop").disabled = False
    assert set(seen) == {f"dovetail-io-{endpoint.address}"}
    assert 0.2 < (ticks[3] - ticks[0]) / 3 < 20
    assert not endpoint.call_soon(lambda: None)


def test_what_comes_while_an_answer_is_looked_out_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The I/O thread does not sleep then, but takes messages, does what others ask of it, and ends when it is told to."""
    monkeypatch.setattr(event_loop, "BUSY_POLL_S", 2 * WAIT_S)
    monkeypatch.setattr(event_loop, "CROWDED_S", WAIT_S)
    offered = threading.Event()
    monkeypatch.setattr(os, "sched_yield", offered.set, raising=False)
    done = threading.Event()

    def take(peer: bytes, message: Message) -> None:
        endpoint.reply(peer, message)
        endpoint.busy_poll_hint()

    with Endpoint("localhost:0", take) as endpoint, Connection(endpoint.address) as client:
        for seq in range(3):
            client.send(ping(seq))
            answer = client.recv(WAIT_S)
            assert answer is not None and answer.fields == {"seq": seq}
            assert offered.wait(WAIT_S)  # it has come to the end of its work, and looks out
        assert endpoint.call_soon(done.set)
        assert done.wait(WAIT_S)
        endpoint.busy_poll_hint()  # another thread has nothing to look out for
        client.send(ping())
        assert client.recv(WAIT_S) is not None
    assert not endpoint._io.is_alive()


def test_it_sleeps_when_others_want_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "BUSY_POLL_S", 2 * WAIT_S)
    monkeypatch.setattr(event_loop, "CROWDED_S", -1.0)
    offers: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: offers.append(None), raising=False)

    def take(peer: bytes, message: Message) -> None:
        endpoint.busy_poll_hint()
        endpoint.reply(peer, message)

    with Endpoint("localhost:0", take) as endpoint, Connection(endpoint.address) as client:
        for seq in range(5):
            client.send(ping(seq))
            assert client.recv(WAIT_S) is not None
    assert len(offers) <= 5  # once after each message, at most
