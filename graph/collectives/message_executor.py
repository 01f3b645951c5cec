"""Members that send parts to each other: what comes for whom, what is done when all is there, and how one's failure is everybody's.

Theory of operation. A member brings an `Exchange`, which says what to send to which rank, and what to do with what comes. Parts for
ranks of this task stay here. One that comes before its member is kept for it. A request that fails, or is withdrawn, fails its whole
membership, here and in the other tasks: nobody could tell who has applied what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.errors import AbortedError, InvalidArgumentError, OpError, ResourceExhaustedError, UnavailableError
from .algorithms import Array, Part
from .device_link import Linked
from .membership import COUNTED, Key, Member, Membership, Turn
from .shared_buffer import Machine
from .shared_memory_executor import BoardDesk

MAX_EARLY = 4_000
"""Parts of one group that wait for a session of this task to join, or for it to get to their collective."""


SendOut = Callable[[str, dict[str, Any], Sequence[Array]], None]
"""(task, message fields, tensors): sends to another task. KeyError, OSError, OpError: that cannot be."""


class PartDesk(BoardDesk):
    """What a task's members do with parts. A subclass says who they are.

    Args:
        task: the task's name.
        send: sends to another task; None: there are no others.
        machine: what the process has to meet others in memory; None: nothing.
    """

    def __init__(self, task: str, send: SendOut | None, machine: Machine | None) -> None:
        super().__init__(task, machine)
        self._send_out = send
        self._broken: list[tuple[Membership, OpError]] = []  # those of which a message could not be sent

    def _do(self, event: Callable[[], None]) -> None:
        def whole() -> None:
            event()
            while self._broken:
                self._fail(*self._broken.pop())

        super()._do(whole)

    # --- the rules of the desk -------------------------------------------------------------------------------------

    def _admit(self, request: Member | Turn) -> None:
        membership = request.membership
        if membership.error is not None:
            raise type(membership.error)(None, None, membership.error.message)
        if request.key in membership.waiting or request.key in membership.turns:
            raise InvalidArgumentError(None, None, f"{request.what}: member {request.key[2]} takes part twice at once")
        if isinstance(request, Turn):
            self._line_up(request)
        else:
            self._enter(request)
        self._check_left(membership)

    def _enter(self, request: Member) -> None:
        membership = request.membership
        membership.waiting[request.key] = request
        if isinstance(request.exchange, Linked):
            request.exchange.tell = lambda result: self._do(lambda: self._link_ended(request, result))
        self._route(request, request.exchange.begin())
        for sender, tag, signature, array in membership.early.pop(request.key, ()):
            self._receive(request, sender, tag, signature, array)

    def _serve(self) -> None:
        """Nothing: what can be settled is settled where its last part comes in."""

    def _withdraw(self, request: Member | Turn) -> None:
        membership = request.membership
        (membership.turns if isinstance(request, Turn) else membership.waiting).pop(request.key, None)
        if isinstance(request.exchange, Linked):
            request.exchange.stop()
        self._fail(membership, self._ended_early(request))

    def _take_back(self, request: Member | Turn, value: Any) -> None:
        if isinstance(request, Turn):  # it could have gone on; a Member has done its part
            self._fail(request.membership, self._ended_early(request))

    def _link_ended(self, request: Member, result: Any) -> None:
        """A run on a link has ended: with its result, or an error."""
        membership = request.membership
        if membership.waiting.get(request.key) is not request:
            return  # the step is over
        if isinstance(result, OpError):
            self._fail(membership, type(result)(None, None, f"{request.what}: {result.message}"))
            return
        assert isinstance(request.exchange, Linked)
        request.exchange.ended(result)
        self._route(request, ())
        self._check_left(membership)

    # --- parts -----------------------------------------------------------------------------------------------------

    def _route(self, request: Member, parts: Sequence[Part]) -> None:
        """Send parts to their ranks, in this task or another."""
        membership, (instance, run, rank) = request.membership, request.key
        here: list[tuple[int, int, Array]] = []
        for to, tag, array in parts:
            task = membership.task_of[to]
            if task == self.task:
                here.append((to, tag, array))
            else:
                fields = {
                    "instance": instance, "run": run, "sender": rank, "to": to, "tag": tag, "what": request.signature,
                }  # fmt: skip
                self._send(task, "part", membership, (array,), **fields)
        if request.exchange.is_done and request.key in membership.waiting:
            del membership.waiting[request.key]
            request.answer(request.exchange.result)
        for to, tag, array in here:
            self._arrive(membership, (instance, run, to), rank, tag, request.signature, array)

    def _arrive(self, membership: Membership, key: Key, sender: int, tag: int, signature: str, array: Array) -> None:
        request = membership.waiting.get(key)
        turn = membership.turns.get(key)
        if turn is not None and turn.signature != signature:
            self._fail(membership, _differ(turn, sender, signature))
        elif request is None:
            membership.early.setdefault(key, []).append((sender, tag, signature, array))
            if len(membership.early) > MAX_EARLY:
                self._fail(membership, too_far_ahead(membership.task_of[sender]))
        else:
            self._receive(request, sender, tag, signature, array)

    def _receive(self, request: Member, sender: int, tag: int, signature: str, array: Array) -> None:
        if signature != request.signature:
            self._fail(request.membership, _differ(request, sender, signature))
        elif request.key in request.membership.waiting:
            self._route(request, request.exchange.receive(sender, tag, array))

    def _send(
        self, task: str, event: str, membership: Membership, tensors: Sequence[Array] = (), **fields: Any
    ) -> None:
        assert self._send_out is not None
        head = {"event": event, "task": self.task, "group": membership.group, "token": membership.token}
        if event in COUNTED:
            membership.tallies[task].sent += 1
        try:
            self._send_out(task, head | fields, tensors)
        except KeyError:
            text = f"{task} is a member of the group, but no task of the server's cluster"
            self._broken.append((membership, InvalidArgumentError(None, None, text)))
        except (OSError, OpError) as e:  # a host that nobody knows, a server that is stopping
            self._broken.append((membership, UnavailableError(None, None, f"{task} cannot be reached: {e}")))

    # --- failing ---------------------------------------------------------------------------------------------------

    def _check_left(self, membership: Membership) -> None:
        """Fail when something still needs parts of a task that takes part no longer."""
        for request in membership.requests:
            for rank in request.expects():
                task = membership.task_of[rank]
                reason = membership.left.get(task)
                if reason is not None and not (task in membership.closed and _is_under_way(request)):
                    self._fail(membership, AbortedError(None, None, f"{request.what}: {reason}"))
                    return

    def _fail(self, membership: Membership, error: OpError) -> None:
        """All that waits in a membership fails, here and in the other tasks."""
        if membership.error is not None:
            return
        membership.error = error
        for task in membership.peers:
            self._send(task, "end", membership, reason=error.summary, code=error.code)
        requests, membership.waiting, membership.turns = membership.requests, {}, {}
        membership.early.clear()
        membership.tables = {}
        for request in requests:
            if isinstance(request.exchange, Linked):
                request.exchange.stop()
            request.refuse(type(error)(None, None, error.message))


def _is_under_way(request: Member | Turn) -> bool:
    """Whether it runs on a link: who has done his part of that may leave before the others have noticed that they are done."""
    return isinstance(request.exchange, Linked) and request.exchange.is_under_way


def _differ(request: Member | Turn, sender: int, signature: str) -> OpError:
    text = (
        f"{request.what}: member {request.key[2]} brings {request.signature}, but member {sender} {signature}; "
        "all members must run the same program"
    )
    return InvalidArgumentError(None, None, text)


def too_far_ahead(task: str) -> OpError:
    """The error where a task has sent more than is kept."""
    return ResourceExhaustedError(
        None, None,
        f"More than {MAX_EARLY} parts of {task} wait for this task to get to their collectives: {task} runs too far ahead. Let "
        "it take something back from the others, such as an all_reduce or a barrier.",
    )  # fmt: skip


__all__ = ["MAX_EARLY", "PartDesk", "SendOut", "too_far_ahead"]
