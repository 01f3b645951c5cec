"""Waiting for answers, over connections that a test plays."""

from __future__ import annotations

from collections import deque

import pytest

from dovetail.graph.errors import UnavailableError
from dovetail.runtime.waiting import Wait
from dovetail.runtime.wire import Message

ADDRESS = "localhost:1"


class Played:
    """Connections that give what the test has put there, and remember what was sent."""

    def __init__(self) -> None:
        self.coming: deque[Message] = deque()
        self.sent: list[Message] = []

    def send(self, address: str, message: Message) -> None:
        self.sent.append(message)

    def poll(self, timeout_s: float | None, only: str | None = None) -> list[tuple[str, Message]]:
        return [(ADDRESS, self.coming.popleft())] if self.coming else []


def pong(request: int, working: bool | None) -> Message:
    return Message("pong", {"seq": request, "incarnation": 1, "working": working})


def test_a_server_that_forgot_the_request_ends_the_wait() -> None:
    played = Played()
    wait = Wait({ADDRESS: "the server"}, 5.0, None, "call", request=7)
    for _ in range(2):
        played.coming.append(pong(7, False))
    wait.messages(played)  # type: ignore[arg-type]  # it may have been overtaken by the answer
    with pytest.raises(UnavailableError, match="does not work on this call"):
        wait.messages(played)  # type: ignore[arg-type]


def test_what_was_said_about_an_earlier_request_means_nothing() -> None:
    played = Played()
    wait = Wait({ADDRESS: "the server"}, 5.0, None, "call", request=7)
    for _ in range(9):
        played.coming.append(pong(6, False))  # late answers to pings of the call before
    played.coming.append(Message("closed", {"request": 7}))
    found = []
    for _ in range(10):
        found += wait.messages(played)  # type: ignore[arg-type]
    assert [message.kind for _, message in found] == ["closed"]
