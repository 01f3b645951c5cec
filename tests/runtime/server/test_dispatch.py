"""A server's table of handlers, against the protocol's table."""

from __future__ import annotations

import pytest

import dovetail as dt
from dovetail.runtime.transport.event_loop import EventLoop
from dovetail.runtime.transport.peer import HANDSHAKE
from dovetail.runtime.wire.schema import KINDS


def test_a_server_handles_every_kind_that_is_sent_to_it_but_answers() -> None:
    answers = {row.reply for row in KINDS.values()} | {
        "waiting",
        "trace",
        "error",
        "denied",
        "accounted",
        "collective_alive",
    }
    sent = {kind for kind, row in KINDS.items() if row.receiver != "client" and kind not in answers | HANDSHAKE}
    server = dt.train.Server.create_local_server()
    try:
        handled = server._handlers.keys()
        assert sent - handled == set()
        of_workers = {"tensors", "denied", "coming", "accounted"}
        assert handled - sent == of_workers | {f"collective_{event}" for event in ("join", "counted", "alive")}
    finally:
        server.stop()


def test_a_server_can_answer_the_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The I/O thread may handle one before the thread that starts the server goes on."""
    start, ready = EventLoop.start, []

    def note_and_start(self: EventLoop, *arguments: object) -> None:
        ready.append(server._responder.addresses[server.task] == server._responder.endpoint.address)
        start(self, *arguments)  # type: ignore[arg-type]

    server = dt.train.Server.create_local_server(start=False)
    monkeypatch.setattr(EventLoop, "start", note_and_start)
    with server:
        assert ready == [True]
