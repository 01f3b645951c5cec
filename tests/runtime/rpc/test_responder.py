"""What a server says when it cannot send the answer to a request."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from dovetail.graph.core.errors import ResourceExhaustedError
from dovetail.runtime.rpc.dispatch import RequestExecutor, Responder
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.wire.schema import WireError


class Full:
    """An endpoint that cannot send answers, but can send errors."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.sent: list[Message] = []

    def reply(self, peer: bytes, message: Message) -> None:
        if message.kind != "error":
            raise self.error
        self.sent.append(message)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (WireError("too long"), "INTERNAL", "WireError: too long"),
        (MemoryError(), "INTERNAL", "The answer cannot travel: MemoryError"),
        (ResourceExhaustedError.of("1 byte waits"), "RESOURCE_EXHAUSTED", "1 byte waits"),
    ],
)
def test_an_answer_that_cannot_be_sent_becomes_an_error(error: Exception, code: str, text: str) -> None:
    responder = Responder("/job:worker/replica:0/task:0")
    full = Full(error)
    responder.endpoint = cast(Endpoint, full)
    responder.reply(b"client", Message("done", {"request": 7, "fetches": []}))
    (said,) = full.sent
    assert (said.fields["request"], said.fields["code"]) == (7, code) and text in said.fields["message"]


def test_what_cannot_even_be_refused_is_no_longer_worked_on() -> None:
    """A client waits as long as pongs say that its request is worked on."""

    class Broken(Responder):
        def reply(self, peer: bytes, message: Message) -> None:
            raise ValueError("broken")

    executor = RequestExecutor(Broken("/job:worker/replica:0/task:0"))
    request, began = Message("status", {"request": 7}), threading.Event()
    executor.answer(executor.worker, b"client", request, lambda message: began.wait(20.0) and message)  # type: ignore[arg-type,return-value]
    assert executor.works_on(b"client", 7)
    began.set()
    executor.worker.shutdown(wait=True)
    assert not executor.works_on(b"client", 7)
    executor.close()
