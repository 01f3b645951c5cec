"""Waiting for answers, over connections that a test plays."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import cast

import pytest

from dovetail.graph.core.errors import AbortedError, DeadlineExceededError, ResourceExhaustedError, UnavailableError
from dovetail.runtime.rpc import pending_call
from dovetail.runtime.rpc.pending_call import ConnectionPool, Inquiry, PendingReplies, Server
from dovetail.runtime.timeouts import AGAIN_S, PING_S
from dovetail.runtime.transport.client import Connections
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.wire.reassembly import TooLargeError
from dovetail.runtime.wire.schema import WireError

ADDRESS = "localhost:1"


class Played:
    """Connections that give what the test has put there, and remember what was sent."""

    def __init__(self) -> None:
        self.coming: deque[Message] = deque()
        self.sent: list[Message] = []
        self.pieces = 0

    def send(self, address: str, message: Message) -> None:
        self.sent.append(message)

    def poll(self, timeout_s: float | None, only: str | None = None) -> list[tuple[str, Message]]:
        return [(ADDRESS, self.coming.popleft())] if self.coming else []

    def lives(self, address: str, since: float) -> bool:
        return False

    def moved(self, address: str) -> int:
        return self.pieces

    def awaits_admission(self, address: str) -> bool:
        return False

    def why_silent(self, address: str) -> None:
        return None

    def forget(self, address: str) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that have been; the last one is now."""
    times = [100.0]
    monkeypatch.setattr(pending_call, "time", SimpleNamespace(monotonic=lambda: times[-1]))
    return times


def pong(ping: Message, working: bool | None) -> Message:
    return Message("pong", {"seq": ping.fields["seq"], "incarnation": 1, "working": working})


def pinged(wait: PendingReplies, played: Played, clock: list[float], count: int) -> list[Message]:
    """The pings of the next waits, which nobody has answered yet."""
    before = len(played.sent)
    while len(played.sent) < before + count:
        clock.append(clock[-1] + PING_S)
        assert wait.messages(played) == []  # type: ignore[arg-type]
    return played.sent[before:]


def test_a_wait_that_a_part_in_this_process_ends_looks_at_nobody(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, played = PendingReplies({ADDRESS: Server("the server")}, 5.0, None, "step", request=7), Played()
    looks: list[str] = []
    monkeypatch.setattr(played, "moved", lambda address: looks.append(address) or 0)
    for after, count in ((0.001, 0), (PING_S, 1), (0.001, 1), (PING_S, 2)):
        clock.append(clock[-1] + after)
        assert wait.messages(played) == [] and len(looks) == count  # type: ignore[arg-type]


def test_a_server_that_forgot_the_request_ends_the_wait(clock: list[float]) -> None:
    played = Played()
    wait = PendingReplies({ADDRESS: Server("the server")}, 5.0, None, "call", request=7)
    pings = pinged(wait, played, clock, 3)
    played.coming.extend(pong(ping, False) for ping in pings)
    for _ in pings:  # the server has read all three at once
        assert wait.messages(played) == []  # type: ignore[arg-type]
    (again,) = pinged(wait, played, clock, 1)
    played.coming.append(pong(again, False))
    with pytest.raises(UnavailableError, match="does not work on this call"):
        wait.messages(played)  # type: ignore[arg-type]


def test_an_answer_counts_whatever_comes_with_it(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that did not listen for a while finds the answer, and the pongs from before and behind it."""
    played = Played()
    wait = PendingReplies({ADDRESS: Server("the server")}, 5.0, None, "call", request=7)
    (first,) = pinged(wait, played, clock, 1)
    played.coming.append(pong(first, False))
    wait.messages(played)  # type: ignore[arg-type]
    later = [(ADDRESS, pong(ping, False)) for ping in pinged(wait, played, clock, 2)]
    answer = (ADDRESS, Message("closed", {"request": 7}))
    monkeypatch.setattr(played, "poll", lambda timeout_s, only=None: [answer, *later])
    assert wait.messages(played) == [answer]  # type: ignore[arg-type]


def test_what_was_said_about_an_earlier_request_means_nothing(clock: list[float]) -> None:
    played = Played()
    before = PendingReplies({ADDRESS: Server("the server")}, 5.0, None, "call", request=6)
    late = pinged(before, played, clock, 9)
    wait = PendingReplies({ADDRESS: Server("the server")}, 5.0, None, "call", request=7)
    pinged(wait, played, clock, 1)
    played.coming.extend(pong(ping, False) for ping in late)
    played.coming.append(Message("closed", {"request": 7}))
    found = []
    for _ in range(10):
        found += wait.messages(played)  # type: ignore[arg-type]
        pinged(wait, played, clock, 0 if played.coming else 1)
    assert [message.kind for _, message in found] == ["closed"]


def test_a_late_pong_of_an_ended_process_is_no_restart(clock: list[float]) -> None:
    """It answers a ping of an earlier step, and comes behind that step's answer."""
    played = Played()
    (late,) = pinged(PendingReplies({ADDRESS: Server("the task")}, 5.0, None, "step", request=6), played, clock, 1)
    wait = PendingReplies({ADDRESS: Server("the task", 2)}, 5.0, None, "step", request=7)
    answer = Message("done", {"request": 7, "fetches": []})
    played.coming += [pong(late, True), answer]
    assert wait.messages(played) == [] and wait.messages(played) == [(ADDRESS, answer)]  # type: ignore[arg-type]
    (ping,) = pinged(wait, played, clock, 1)
    played.coming.append(pong(ping, True))
    with pytest.raises(AbortedError, match="was restarted during this step"):
        wait.messages(played)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [WireError, TooLargeError])
def test_a_late_answer_that_cannot_be_read_is_passed_over(
    error: type[WireError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server whose memory it lies in may have ended since."""
    coming: list[object] = []

    def poll(timeout_s: float | None, only: str | None = None) -> list[tuple[str, Message]]:
        found = coming.pop(0)
        if isinstance(found, Exception):
            raise found
        return [(ADDRESS, cast(Message, found))]

    def failed(request: int) -> WireError:
        found = TooLargeError("10 bytes", b"") if error is TooLargeError else WireError("tensor 0 cannot be read")
        found.request = request
        return found

    played = Played()
    monkeypatch.setattr(played, "poll", poll)
    wait = PendingReplies({ADDRESS: Server("the server")}, 5.0, None, "call", request=7)
    answer = Message("closed", {"request": 7})
    coming += [failed(6), answer, failed(7)]
    assert wait.messages(played) == [] and wait.messages(played) == [(ADDRESS, answer)]  # type: ignore[arg-type]
    with pytest.raises((UnavailableError, ResourceExhaustedError)):
        wait.messages(played)  # type: ignore[arg-type]
    inquiry = Inquiry(played, [ADDRESS], "status")  # type: ignore[arg-type]
    coming.append(failed(6_000_000))
    assert inquiry.look(0.0) == {}


def test_pieces_of_a_large_message_are_signs_of_life(clock: list[float]) -> None:
    played = Played()
    wait = PendingReplies({ADDRESS: Server("the server")}, 5.0, None, "call", request=7)
    for _ in range(20):  # on a slow link: its answers stand behind the pieces
        played.pieces += 1
        clock.append(clock[-1] + 3.0)
        assert wait.messages(played) == []  # type: ignore[arg-type]
    clock.append(clock[-1] + 6.0)
    with pytest.raises(UnavailableError, match=r"has not answered for 6\.0 s"):
        wait.messages(played)  # type: ignore[arg-type]


def test_a_step_whose_time_is_over_names_what_each_task_waits_for(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played()
    other, third, here = (
        "localhost:2",
        "localhost:3",
        ("/job:c/task:0", "localhost:4", ["/job:c/task:0/device:CPU:0 waits for c"]),
    )
    owing = {ADDRESS: Server("/job:a/task:0"), other: Server("/job:b/task:0"), third: Server("/job:b/task:1")}
    wait = PendingReplies(owing, 5.0, 0.0, "step", request=7, colocated=lambda: [here])
    answers = [(ADDRESS, ["/job:a/task:0/device:CPU:0 waits for 1 element of FIFOQueue 'q'"], True), (third, [], False)]

    def poll(timeout_s: float | None, only: str | None = None) -> list[tuple[str, Message]]:
        if not played.sent or not answers:
            clock.append(clock[-1] + 2.0)
            return []
        address, waits, working = answers.pop()
        seq = played.sent[-1].fields["seq"]
        return [(address, Message("pong", {"seq": seq, "incarnation": 1, "working": working, "waits": waits}))]

    monkeypatch.setattr(played, "poll", poll)
    with pytest.raises(DeadlineExceededError) as e:
        wait.messages(played)  # type: ignore[arg-type]
    text = str(e.value)
    assert "this step waited 2.0 s for /job:a/task:0 at localhost:1: CPU:0 waits for 1 element of FIFOQueue 'q'" in text
    assert "and for /job:b/task:0 at localhost:2, which has been silent for 4.0 s" in text
    assert text.endswith("and for /job:c/task:0 at localhost:4: CPU:0 waits for c")
    assert "and for /job:b/task:1 at localhost:3, which has not begun, or has just ended" in text


def test_connections_that_come_back_while_their_pool_is_closed_are_closed() -> None:
    pool = ConnectionPool()

    class Idle(list[Connections]):
        def append(self, item: Connections) -> None:
            pool.close()
            super().append(item)

    pool._idle = Idle()
    connections = pool.take()
    pool.give_back(connections)
    assert connections.closed


def test_two_threads_may_close_the_connections_of_a_pool() -> None:
    pool = ConnectionPool()

    class Idle(list[Connections]):
        def pop(self, *at: int) -> Connections:  # type: ignore[override]
            while self:  # another thread is faster
                super().pop().close()
            return super().pop()

    first, second = pool.take(), pool.take()
    pool._idle = Idle([first, second])
    pool.close()
    assert first.closed and second.closed


def test_a_server_that_has_not_answered_is_asked_again(clock: list[float]) -> None:
    played = Played()
    inquiry = Inquiry(played, [ADDRESS], "status")  # type: ignore[arg-type]
    for asked in (1, 1, 2):
        clock.append(clock[-1] + AGAIN_S / 2)
        assert inquiry.look(0.0) == {} and len(played.sent) == asked
    fields = {"devices": [], "incarnation": 1}
    late, reply = (Message("devices", {"request": played.sent[0].fields["request"] + i, **fields}) for i in (1, 0))
    played.coming += [late, reply]
    assert inquiry.look(0.0) == {} and inquiry.look(0.0) == {ADDRESS: reply}


def test_a_server_that_answers_two_questions_at_once_has_answered_once() -> None:
    class Both(Played):
        def poll(self, timeout_s: float | None, only: str | None = None) -> list[tuple[str, Message]]:
            fields = {"devices": [], "incarnation": 1, "request": self.sent[0].fields["request"]}
            return [(ADDRESS, Message("devices", dict(fields))) for _ in range(2)]

    (answer,) = Inquiry(Both(), [ADDRESS], "status").look(0.0).items()  # type: ignore[arg-type]
    assert answer[0] == ADDRESS


def test_a_server_of_another_version_is_unavailable() -> None:
    class Other(Played):
        def poll(self, timeout_s: float | None, only: str | None = None) -> list[tuple[str, Message]]:
            raise WireError("the peer speaks version 7")

    with pytest.raises(UnavailableError, match="no message of this version: the peer speaks version 7"):
        Inquiry(Other(), [ADDRESS], "stats").look(0.0)  # type: ignore[arg-type]
