"""A server's table of handlers, against the protocol's table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pairs import PS, WORKER, Pair

import dovetail as dt
from dovetail.runtime.rpc.dispatch import Responder
from dovetail.runtime.session import cluster_backend
from dovetail.runtime.transport.event_loop import EventLoop
from dovetail.runtime.transport.peer import HANDSHAKE
from dovetail.runtime.wire.messages import Message
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


def test_replies_take_the_connections_that_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers go back to the peer that has asked, all else to the address of a task."""
    kinds: dict[str, set[str]] = {"reply": set(), "send": set(), "notify": set()}

    def note(name: str) -> Callable[..., None]:
        method = getattr(Responder, name)

        def noted(self: Responder, to: Any, message: Message) -> None:
            kinds[name].add(message.kind)
            method(self, to, message)

        return noted

    for name in kinds:
        monkeypatch.setattr(Responder, name, note(name))
    # As if the client were another process.
    monkeypatch.setattr(cluster_backend, "find_colocated", lambda address, incarnation: None)
    monkeypatch.setenv("DOVETAIL_ONE_SIDED_READS", "0")
    pair = Pair()
    try:
        with dt.Graph().as_default():
            with dt.device(PS):
                v = dt.get_variable("v", [2], initializer=dt.ones_initializer())
            with dt.device(WORKER):
                y = v + 1.0
            with pair.session() as session:
                session.run(dt.global_variables_initializer())
                assert session.run(y).tolist() == [2.0, 2.0]
    finally:
        pair.close()
    assert {"devices", "session_created", "registered", "done"} <= kinds["reply"]
    assert kinds["send"] | kinds["notify"] >= {"tensors", "forget_session"}
    assert all(KINDS[kind].is_back for kind in kinds["reply"])
    assert not any(KINDS[kind].is_back for kind in kinds["send"] | kinds["notify"])


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
