"""Group membership: which tasks take part in collectives together.

Members of a group may run in sessions of different clients, which know nothing of each other. So before its first collective in a
group, a session says "I take part" (`join`) to the group's other tasks, with a token drawn for this session. A membership is complete
when each task has said so. That is also how workers wait for the last one to start. Each part names its sender's token, so a part of a
session that has ended, or of a process that was restarted, is never taken for one of now.

A membership fails as a whole, here and in the other tasks, and stays failed: no member can know which of them has applied what. A new
session starts a new membership.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ...graph.core.errors import AbortedError, InvalidArgumentError, OpError, ResourceExhaustedError, UnavailableError
from .algorithms import Array
from .device_link import LinkAgreement
from .failure_detector import COUNTED
from .membership import MAX_EARLY_PARTS, AnyRequest, Group, Membership, stop_link

logger = logging.getLogger(__name__)

MAX_GROUPS = 1_000
"""Groups of which only other tasks have spoken."""
MAX_KNOWN_TOKENS = 16
"""Joins of one task that are remembered."""
Send: TypeAlias = Callable[[str, dict[str, Any], Sequence[Array]], None]
"""(task, message fields, tensors): sends to another task. KeyError, OSError, OpError: that is not possible."""


class PeerMessenger:
    """Sends the messages of a task's collectives to other tasks.

    Args:
        task: the task's name.
        send: None: there are no other tasks.

    Attributes:
        unsent: memberships of which a message could not be sent, with the error that they are to fail with.
    """

    def __init__(self, task: str, send: Send | None) -> None:
        self.task = task
        self.has_peers = send is not None
        self.unsent: list[tuple[Membership, OpError]] = []
        self._send = send

    def send(self, task: str, event: str, membership: Membership, tensors: Sequence[Array] = (), **fields: Any) -> None:
        """Send a message of a membership."""
        assert self._send is not None
        head = {"event": event, "task": self.task, "group": membership.group, "token": membership.token}
        if event in COUNTED:
            membership.counters[task].sent += 1
        try:
            self._send(task, head | fields, tensors)
        except KeyError:
            text = f"{task} is a member of the group, but no task of the server's cluster"
            self.unsent.append((membership, InvalidArgumentError(None, None, text)))
        except (OSError, OpError) as e:  # an unknown host, a server that is stopping
            self.unsent.append((membership, UnavailableError(None, None, f"{task} cannot be reached: {e}")))

    def try_to_send(self, task: str, event: str, group: str, token: int, **fields: Any) -> None:
        """Send a message that may be lost."""
        assert self._send is not None
        try:
            self._send(task, {"event": event, "task": self.task, "group": group, "token": token} | fields, ())
        except (KeyError, OSError, OpError) as e:
            logger.info("%s cannot be reached: %s", task, e)


class MembershipService:
    """All groups of one task, and the memberships of its sessions in them. Its methods are called under the coordinator's lock.

    Args:
        messenger: sends to other tasks.
        receive: takes a message that had been kept for a membership: (membership, fields, tensors).
    """

    def __init__(
        self, messenger: PeerMessenger, receive: Callable[[Membership, Mapping[str, Any], Sequence[Array]], None]
    ) -> None:
        self.task = messenger.task
        self.groups: dict[str, Group] = {}
        self._messenger, self._receive = messenger, receive
        self._names: dict[Sequence[str], tuple[str, tuple[str, ...]]] = {}  # members -> the group's name, task of each
        self._sessions: weakref.WeakKeyDictionary[Any, dict[str, Membership]] = weakref.WeakKeyDictionary()
        self._ended: deque[dict[str, Membership]] = deque()  # memberships of sessions that are gone

    def active(self) -> list[Membership]:
        """Memberships that have not failed."""
        return [m for g in self.groups.values() for m in g.memberships if m.error is None]

    def requests(self) -> Iterator[AnyRequest]:
        """All that waits."""
        for group in self.groups.values():
            for membership in group.memberships:
                yield from membership.requests

    # --- this task's sessions --------------------------------------------------------------------------------------

    def name_of(self, members: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """A group's name, and the task of each rank. Needs no lock.

        Raises:
            InvalidArgumentError: a member is in another task, and this process reaches none.
        """
        members = tuple(members)
        found = self._names.get(members)
        if found is None:
            task_of = tuple(
                m.partition("/device:")[0] or self.task for m in members
            )  # a device without a task is this task's
            if not self._messenger.has_peers and set(task_of) != {self.task}:
                others = ", ".join(sorted(set(task_of) - {self.task}))
                text = f"{others}: a session without servers reaches no other task; give the session a server's target"
                raise InvalidArgumentError(None, None, text)
            name = hashlib.blake2s("\n".join(members).encode(), digest_size=12).hexdigest()
            if len(self._names) >= MAX_GROUPS:
                self._names.clear()
            found = self._names[members] = name, task_of
        return found

    def of_session(self, session: Any, name: str, task_of: tuple[str, ...]) -> Membership:
        """The session's membership in a group. At first use the other tasks are told (`join`)."""
        kept = self._sessions.get(session)
        if kept is None:
            kept = self._sessions[session] = {}
            weakref.finalize(
                session, self._ended.append, kept
            )  # in any thread, at any time: the next tick tells the others
        membership = kept.get(name)
        if membership is None:
            membership = kept[name] = Membership(name, task_of, self.task)
            group = self.groups.setdefault(name, Group())
            group.memberships.add(membership)
            for task in membership.peers:
                self._messenger.send(task, "join", membership)
                token = group.unused.pop(task, None)
                if token is not None:
                    self._bind(group, membership, task, token)
        return membership

    def leave_ended(self) -> None:
        """Tell the other tasks of sessions that are gone."""
        while self._ended:
            for membership in self._ended.popleft().values():
                membership.queues = {}
                for task in membership.peers:
                    if membership.error is None and task not in membership.left:
                        self._messenger.send(task, "end", membership, reason="has closed its session", code="")

    # --- other tasks -----------------------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """The group of that name. Where there are too many, groups without a membership here are forgotten."""
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= MAX_GROUPS:
                self.groups = {n: g for n, g in self.groups.items() if g.memberships}
            group = self.groups[name] = Group()
        return group

    def joined(self, group: Group, task: str, token: int) -> None:
        """Another task takes part from now on. One that had joined before has begun anew."""
        before = group.latest.get(task)
        if before == token:
            return
        group.latest[task] = token
        group.known.setdefault(task, deque(maxlen=MAX_KNOWN_TOKENS)).append(token)
        group.drop_early(task, before)
        unbound = None
        for membership in list(group.memberships):
            if membership.error is not None or task not in membership.peers:
                continue
            if membership.peers[task] is None:
                unbound = membership
            else:
                membership.left.setdefault(task, f"{task} has begun anew: it was restarted, or has made a new session")
                self.check_left(membership)
        if unbound is None:
            group.unused[task] = token
        else:
            self._messenger.send(task, "join", unbound)  # it may have started after it was told
            self._bind(group, unbound, task, token)

    def _bind(self, group: Group, membership: Membership, task: str, token: int) -> None:
        """From now on, this membership and that of the other task belong together."""
        membership.peers[task] = token
        early = group.drop_early(task, token)
        if (task, token) in group.lost:
            self.fail(membership, too_far_ahead_error(task))
        for fields, tensors in early:
            self._receive(membership, fields, tensors)

    # --- failing ---------------------------------------------------------------------------------------------------

    def check_left(self, membership: Membership) -> None:
        """Fail when a request still needs parts of a task that takes part no longer."""
        for request in membership.requests:
            for rank in request.expects():
                task = membership.task_of[rank]
                reason = membership.left.get(task)
                if reason is not None and not (task in membership.closed and _is_under_way(request)):
                    self.fail(membership, AbortedError(None, None, f"{request.what}: {reason}"))
                    return

    def fail(self, membership: Membership, error: OpError) -> None:
        """Fail a membership: all that waits in it, here and in the other tasks."""
        if membership.error is not None:
            return
        membership.error = error
        for task in membership.peers:
            self._messenger.send(task, "end", membership, reason=error.summary, code=error.code)
        requests, membership.by_message, membership.in_memory = membership.requests, {}, {}
        membership.early.clear()
        membership.queues = {}
        for request in requests:
            stop_link(request)
            request.refuse(type(error)(None, None, error.message))


def _is_under_way(request: AnyRequest) -> bool:
    """Whether a request runs on a link: members may leave when they are done, before others notice that they are done, too."""
    return isinstance(request.algorithm, LinkAgreement) and request.algorithm.is_under_way


def ended_early_error(task: str, request: AnyRequest) -> OpError:
    """The error where the step of a member ends before its collective."""
    text = f"A step of {task or 'this process'} was ended while it took part in {request.what}"
    return AbortedError(None, None, text)


def too_far_ahead_error(task: str) -> OpError:
    """The error where a task has sent more than is kept."""
    return ResourceExhaustedError(
        None, None,
        f"More than {MAX_EARLY_PARTS} parts of {task} wait for this task to get to their collectives: {task} runs too far ahead. Let "
        "it take something back from the others, such as an all_reduce or a barrier.",
    )  # fmt: skip


__all__ = ["MembershipService", "PeerMessenger", "Send", "ended_early_error", "too_far_ahead_error"]
