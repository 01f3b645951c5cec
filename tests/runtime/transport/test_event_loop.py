"""The I/O thread of an endpoint: what runs on it, and when it sleeps."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from echoing import WAIT_S, Connection, ping, until

from dovetail.runtime.transport import event_loop
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


class Poller:
    """An epoll object that notes how long it was asked to wait."""

    def __init__(self, poller: select.epoll, waits: list[float]) -> None:
        self._poller = poller
        self._waits = waits

    def __getattr__(self, name: str) -> object:
        return getattr(self._poller, name)

    def poll(self, patience: float) -> list[tuple[int, int]]:
        self._waits.append(patience)
        return self._poller.poll(patience)


def exchange(
    monkeypatch: pytest.MonkeyPatch, offer: Callable[[], None], crowded_s: float, enough: Callable[[list[float]], bool]
) -> int:
    """Send messages to an endpoint that expects the next one each time, until its waits for it are `enough`; returns how many."""
    monkeypatch.setattr(event_loop, "BUSY_POLL_S", 2 * WAIT_S)
    monkeypatch.setattr(event_loop, "CROWDED_S", crowded_s)
    monkeypatch.setattr(os, "sched_yield", offer)
    waits: list[float] = []

    def take(peer: bytes, message: Message) -> None:
        waits.clear()
        endpoint._io.expect_event()
        endpoint.reply(peer, message)

    with Endpoint("localhost:0", take) as endpoint, Connection(endpoint.address) as client:
        monkeypatch.setattr(endpoint._io, "_poller", Poller(endpoint._io._poller, waits))
        met = seq = 0
        while met < 5:
            client.send(ping(seq))
            answer = client.recv(WAIT_S)
            assert answer is not None and answer.fields == {"seq": seq}
            seq += 1
            assert seq < 50, "the thread has not polled for the next one"
            deadline = time.monotonic() + 1.0  # another event, such as that of a new stream, may end the polling
            while not enough(waits) and time.monotonic() < deadline:
                time.sleep(0.001)
            met += enough(waits)
        ran = threading.Event()
        assert endpoint.call_soon(ran.set)  # other threads still reach it
        assert ran.wait(WAIT_S)
    assert not endpoint._io._thread.is_alive()
    return seq


def test_a_thread_that_expects_an_event_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange(monkeypatch, lambda: None, WAIT_S, lambda waits: len(waits) > 9 and not any(waits))


def test_it_sleeps_when_another_thread_wants_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    offers: list[None] = []
    sent = exchange(monkeypatch, partial(offers.append, None), -1.0, any)
    assert len(offers) <= sent  # once after each message, at most


@pytest.mark.parametrize("kinds", [["tensors"], ["done", "tensors"], ["tensors", "done"], ["done"]])
def test_it_expects_the_answer_to_tensors_unless_the_part_is_done(kinds: list[str]) -> None:
    fields = {
        "tensors": {"step": 1, "channels": (), "without": ((0, False),)}, "done": {"request": 1, "fetches": ()},
    }  # fmt: skip
    found: list[bool] = []

    def take(peer: bytes, message: Message) -> None:
        for kind in kinds:
            if kind == "done":
                endpoint.reply(peer, Message(kind, fields[kind]))
            else:
                endpoint.send(other.address, Message(kind, fields[kind]))
        found.append(endpoint._io._expects_event)
        endpoint._io.expect_event(False)
        endpoint.reply(peer, message)

    with (
        Endpoint("localhost:0", lambda peer, message: None) as other,
        Endpoint("localhost:0", take) as endpoint,
        Connection(endpoint.address) as client,
    ):
        client.send(ping(0))
        for _ in range(1 + kinds.count("done")):
            assert client.recv(WAIT_S) is not None
    assert found == [kinds[-1] == "tensors"]
