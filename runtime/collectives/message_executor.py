"""Runs collectives by messages: sends each member's parts, and passes received parts to its algorithm.

A member brings a `MessageAlgorithm`, which decides what to send and how to combine what arrives. Parts for ranks of this task
are not sent. A part that arrives before its member is kept. The caller of all methods holds the coordinator's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...graph.core.errors import OpError, invalid
from .algorithms import Array, Part
from .device_link import LinkAgreement
from .membership import MAX_EARLY_PARTS, CollectiveRequest, Key, Membership, MessageRequest
from .membership_service import MembershipService, PeerMessenger, too_far_ahead_error


class MessageExecutor:
    """Runs the members of one task that exchange parts by messages.

    Args:
        perform: runs a function under the coordinator's lock, for device links, whose results come on other threads.
    """

    def __init__(
        self, messenger: PeerMessenger, service: MembershipService, perform: Callable[[Callable[[], None]], None]
    ) -> None:
        self._messenger, self._service, self._perform = messenger, service, perform

    def begin(self, request: MessageRequest) -> None:
        """Start a member's algorithm."""
        membership = request.membership
        membership.by_message[request.key] = request
        if isinstance(request.algorithm, LinkAgreement):
            request.algorithm.tell = lambda result: self._perform(lambda: self._link_ended(request, result))
        self._route(request, request.algorithm.begin())
        for sender, tag, signature, array in membership.early.pop(request.key, ()):
            self._receive(request, sender, tag, signature, array)

    def arrive(self, membership: Membership, key: Key, sender: int, tag: int, signature: str, array: Array) -> None:
        """Handle a part of rank `sender` for a member of this task."""
        request = membership.by_message.get(key)
        in_memory = membership.in_memory.get(key)
        if in_memory is not None and in_memory.signature != signature:
            self._service.fail(membership, _mismatch_error(in_memory, sender, signature))
        elif request is None:
            membership.early.setdefault(key, []).append((sender, tag, signature, array))
            if len(membership.early) > MAX_EARLY_PARTS:
                self._service.fail(membership, too_far_ahead_error(membership.task_of[sender]))
        else:
            self._receive(request, sender, tag, signature, array)

    def _receive(self, request: MessageRequest, sender: int, tag: int, signature: str, array: Array) -> None:
        if signature != request.signature:
            self._service.fail(request.membership, _mismatch_error(request, sender, signature))
        elif request.key in request.membership.by_message:
            self._route(request, request.algorithm.receive(sender, tag, array))

    def _route(self, request: MessageRequest, parts: Sequence[Part]) -> None:
        """Send parts to their ranks, in this task or another."""
        membership, (instance, run, rank) = request.membership, request.key
        local: list[Part] = []
        for to, tag, array in parts:
            task = membership.task_of[to]
            if task == self._service.task:
                local.append((to, tag, array))
            else:
                fields: dict[str, Any] = {
                    "instance": instance, "run": run, "sender": rank, "to": to, "tag": tag, "what": request.signature,
                }  # fmt: skip
                self._messenger.send(task, "part", membership, (array,), **fields)
        if request.algorithm.is_done and request.key in membership.by_message:
            del membership.by_message[request.key]
            request.answer(request.algorithm.result)
        for to, tag, array in local:
            self.arrive(membership, (instance, run, to), rank, tag, request.signature, array)

    def _link_ended(self, request: MessageRequest, result: Any) -> None:
        """Handle the end of a run on a device link, with its result or an error."""
        membership = request.membership
        if membership.by_message.get(request.key) is not request:
            return  # the step has ended
        if isinstance(result, OpError):
            self._service.fail(membership, type(result)(None, None, f"{request.what}: {result.message}"))
            return
        assert isinstance(request.algorithm, LinkAgreement)
        request.algorithm.ended(result)
        self._route(request, ())
        self._service.check_left(membership)


def _mismatch_error(request: CollectiveRequest, sender: int, signature: str) -> OpError:
    text = (
        f"{request.what}: member {request.key[2]} brings {request.signature}, but member {sender} {signature}; "
        "all members must run the same program"
    )
    return invalid(text)
