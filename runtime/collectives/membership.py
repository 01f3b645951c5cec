"""Group membership: which tasks take part in a group's collectives, and the requests that wait there.

A group is the set of devices that run a collective together. Its members may run in sessions of different clients, which know nothing of
each other. So before its first collective in a group, a session sends a `join` to the group's other tasks, with a random token. A
membership, one session's part in a group, is complete when each task has joined. Before that no collective starts, so workers also wait
for the last one to start. Each part carries its sender's token, so parts of a session that has ended, or of a process that was
restarted, are never used.

A membership fails as a whole, here and in the other tasks, and stays failed: no member can know which members have applied a result.
A new session starts a new membership.

A request is one member's wait for its result, by messages or in shared memory (`executors.py`).
"""

from __future__ import annotations

import hashlib
import secrets
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from ...graph.core.errors import AbortedError, OpError, UnavailableError, invalid
from ...graph.resources.async_request import Request
from ..rpc.failure_detection import LossCounter
from .algorithms import Array, MessageAlgorithm
from .shared_buffer import SharedBuffer
from .shared_memory_algorithms import SharedMemoryAllReduce

MAX_EARLY_PARTS = 4_000
"""Limit of a membership's parts that wait for this task to reach their collective."""
OFFER_RUN, CONSENT_RUN = -1, -2
"""The run numbers of the handshake for an instance's shared buffer."""
COUNTED = frozenset({"part", "end"})
"""Events that must not be lost. Wake-ups are not counted: a sleeping member polls from time to time."""
Key = tuple[str, int, int]
"""(instance, run, rank) of a member's share of one collective."""


class CollectiveRequest(Request):
    """One member's wait for a collective.

    Attributes:
        signature: what must be the same for all members.
        finish: makes the kernel's result.
        has_begun: whether it has started: all tasks have joined, and it has the shared buffer if it needs one.
    """

    __slots__ = ("algorithm", "finish", "has_begun", "key", "membership", "signature")

    def __init__(
        self, what: str, membership: Membership, key: Key, signature: str, finish: Callable[[Any], Any],
        algorithm: MessageAlgorithm | SharedMemoryAllReduce,
    ) -> None:  # fmt: skip
        super().__init__(what)
        self.membership, self.key, self.signature, self.finish = membership, key, signature, finish
        self.algorithm, self.has_begun = algorithm, False

    def waits_for(self) -> str:
        """As `Request.waits_for`, with the members that it waits for."""
        membership, (instance, _, rank) = self.membership, self.key
        assert self._resource is not None
        with self._resource.lock:
            absent = membership.missing
            ranks = {r for r, task in enumerate(membership.task_of) if task in absent}
            if not ranks:
                ranks = self.algorithm.expects()
                for run in (OFFER_RUN, CONSENT_RUN):  # all must agree on a buffer first
                    if handshake := membership.waiting.get((instance, run, rank)):
                        ranks = ranks | handshake.algorithm.expects()
        if not ranks:
            return self.what
        members = ", ".join(f"member {r}" + (f" ({t})" if (t := membership.task_of[r]) else "") for r in sorted(ranks))
        return f"{self.what}: {'not joined by' if absent else 'awaiting'} {members}"


class MessageRequest(CollectiveRequest):
    """One member's wait for the result of a message algorithm."""

    __slots__ = ()
    algorithm: MessageAlgorithm

    def finished(self, value: Any) -> Any:
        """The kernel's result."""
        return self.finish(value)


class HandshakeRequest(MessageRequest):
    """A member's part in an exchange of the handshake, for which no step waits: `finish` takes the result, under the lock."""

    __slots__ = ()

    def answer(self, value: Any = ()) -> None:
        """Take the result."""
        self.finish(value)

    def refuse(self, error: OpError) -> None:
        """Do nothing: the run that waits for the handshake is refused, too."""


class SharedMemoryRequest(CollectiveRequest):
    """One member's wait for the shared buffer, and for the other members in it.

    Attributes:
        ask_by_message: takes part by messages instead, for the case without a buffer.
        go_on: makes the kernel's result, or a request for the next wait.
    """

    __slots__ = ("ask_by_message", "go_on", "queue")
    algorithm: SharedMemoryAllReduce

    def __init__(
        self, what: str, membership: Membership, key: Key, signature: str, finish: Callable[[Any], Any],
        algorithm: SharedMemoryAllReduce, ask_by_message: Callable[[], Any], queue: BufferQueue,
        go_on: Callable[[SharedMemoryRequest], Any],
    ) -> None:  # fmt: skip
        super().__init__(what, membership, key, signature, finish, algorithm)
        self.ask_by_message, self.queue, self.go_on = ask_by_message, queue, go_on

    def again(self) -> SharedMemoryRequest:
        """The request for another wait, once its result was taken."""
        Request.__init__(self, self.what)
        return self

    def finished(self, value: Any) -> Any:
        """The kernel's result, or the request for the next wait."""
        return self.go_on(self)


class BufferQueue:
    """The runs of one instance, which use its shared buffer in turn.

    Attributes:
        buffer: None if there is none, or before the handshake.
        is_agreed: whether the handshake has ended.
        current: the run that has the buffer. waiting: runs that wait for it.
    """

    def __init__(self) -> None:
        self.buffer: SharedBuffer | None = None
        self.is_agreed = False
        self.current: SharedMemoryRequest | None = None
        self.waiting: list[SharedMemoryRequest] = []


class Membership:
    """One session's part in one group.

    Attributes:
        group: the group's name. task_of: the task of each rank. token: identifies this membership.
        peers: other task -> its token; None until it has joined. is_spread: whether each member has a task of its own.
        error: the error with which the membership has failed.
        left: tasks that have left -> why. closed: those of them that have finished all that they had started.
        counters: messages sent to each other task, and received from it.
        waiting: requests by key. queues: of shared buffers, by instance.
        early: parts that arrived before their member, by key: (sender, tag, signature, array).
    """

    def __init__(self, group: str, task_of: Sequence[str], here: str) -> None:
        self.group = group
        self.task_of = tuple(task_of)
        self.token = secrets.randbits(62)
        self.is_spread = len(task_of) == len(set(task_of)) > 1
        self.peers: dict[str, int | None] = {t: None for t in dict.fromkeys(task_of) if t != here}
        self.error: OpError | None = None
        self.left: dict[str, str] = {}
        self.closed: set[str] = set()
        self.counters = {task: LossCounter() for task in self.peers}
        self.waiting: dict[Key, CollectiveRequest] = {}
        self.queues: dict[str, BufferQueue] = {}
        self.early: dict[Key, list[tuple[int, int, str, Array]]] = {}

    @property
    def requests(self) -> list[CollectiveRequest]:
        """The waiting requests, the oldest first."""
        return list(self.waiting.values())

    @property
    def missing(self) -> list[str]:
        """The tasks that have not joined."""
        return [t for t, token in self.peers.items() if token is None]


class Group:
    """The state of a group: memberships of this task's sessions, and joins of other tasks.

    Attributes:
        unused: task -> the token of its latest join without a membership here. known: task -> the tokens of its latest joins.
    """

    def __init__(self) -> None:
        self.unused: dict[str, int] = {}
        self.known: dict[str, deque[int]] = {}
        self.memberships: weakref.WeakSet[Membership] = weakref.WeakSet()


MAX_GROUPS = 1_000
"""Limit of groups without a membership of this task."""
MAX_KNOWN_TOKENS = 16
"""Remembered joins per task."""
Send: TypeAlias = Callable[[str, dict[str, Any], Sequence[Array]], None]
"""(task, message fields, tensors): sends to another task. KeyError, OSError, OpError: sending is impossible."""


class PeerMessenger:
    """Sends the messages of a task's collectives to other tasks.

    Args:
        send: sends to another task; None: there are no other tasks.

    Attributes:
        unsent: memberships with a message that could not be sent, and the error with which they will fail.
    """

    def __init__(self, task: str, send: Send | None) -> None:
        self.task = task
        self.has_peers = send is not None
        self.unsent: list[tuple[Membership, OpError]] = []
        self._send = send

    def send(self, task: str, event: str, membership: Membership, tensors: Sequence[Array] = (), **fields: Any) -> None:
        """Send a message for a membership."""
        if event in COUNTED:
            membership.counters[task].sent += 1
        error = self.try_to_send(task, event, membership.group, membership.token, tensors, **fields)
        if error is not None:
            self.unsent.append((membership, error))

    def try_to_send(
        self, task: str, event: str, group: str, token: int, tensors: Sequence[Array] = (), **fields: Any
    ) -> OpError | None:
        """Send a message that may be lost; the error if that is impossible."""
        assert self._send is not None
        try:
            self._send(task, {"event": event, "task": self.task, "group": group, "token": token} | fields, tensors)
        except KeyError:
            return invalid(f"{task} is a member of the group, but no task of the server's cluster")
        except (OSError, OpError) as e:  # an unknown host, a server that is stopping
            return UnavailableError.of(f"{task} cannot be reached: {e}")
        return None


@lru_cache(MAX_GROUPS)
def group_of(members: tuple[str, ...], task: str, has_peers: bool) -> tuple[str, tuple[str, ...]]:
    """A group's name, and the task of each rank, as seen by a task.

    Raises:
        InvalidArgumentError: a member is in another task, but this process has no cluster.
    """
    task_of = tuple(m.partition("/device:")[0] or task for m in members)  # a device without a task belongs to this task
    if not has_peers and set(task_of) != {task}:
        others = ", ".join(sorted(set(task_of) - {task}))
        raise invalid(f"{others}: a session without servers reaches no other task; give the session a server's target")
    return hashlib.blake2s("\n".join(members).encode(), digest_size=12).hexdigest(), task_of


class MembershipService:
    """All groups of one task, and its sessions' memberships in them. The caller holds the coordinator's lock.

    Args:
        completed: starts the collectives of a membership, whose last task has joined.
    """

    def __init__(self, messenger: PeerMessenger, completed: Callable[[Membership], None]) -> None:
        self.task = messenger.task
        self.groups: dict[str, Group] = {}
        self._messenger, self._completed = messenger, completed
        self._sessions: weakref.WeakKeyDictionary[Any, dict[str, Membership]] = weakref.WeakKeyDictionary()
        self._ended: deque[dict[str, Membership]] = deque()  # memberships of sessions that have ended

    def active(self) -> list[Membership]:
        """The memberships that have not failed."""
        return [m for g in self.groups.values() for m in g.memberships if m.error is None]

    # --- this task's sessions --------------------------------------------------------------------------------------

    def of_session(self, session: Any, name: str, task_of: tuple[str, ...]) -> Membership:
        """The session's membership in a group. The first call sends a `join` to the other tasks."""
        memberships = self._sessions.get(session)
        if memberships is None:
            memberships = self._sessions[session] = {}
            # On any thread, at any time: the next tick tells the others.
            weakref.finalize(session, self._ended.append, memberships)
        membership = memberships.get(name)
        if membership is None:
            membership = memberships[name] = Membership(name, task_of, self.task)
            group = self.groups.setdefault(name, Group())
            group.memberships.add(membership)
            for task in membership.peers:
                self._messenger.send(task, "join", membership)
                token = group.unused.pop(task, None)
                if token is not None:
                    self._bind(membership, task, token)
        return membership

    def leave_ended(self) -> None:
        """Send an `end` to the other tasks for sessions that have ended."""
        while self._ended:
            for membership in self._ended.popleft().values():
                membership.queues = {}
                for task in membership.peers:
                    if membership.error is None and task not in membership.left:
                        self._messenger.send(task, "end", membership, reason="has closed its session", code="")

    # --- other tasks -----------------------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """The group of that name. If there are too many, groups without a membership here are forgotten."""
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= MAX_GROUPS:
                self.groups = {n: g for n, g in self.groups.items() if g.memberships}
            group = self.groups[name] = Group()
        return group

    def joined(self, group: Group, task: str, token: int) -> None:
        """Handle a `join` of another task. If the task had joined before, its former membership has ended."""
        known = group.known.setdefault(task, deque(maxlen=MAX_KNOWN_TOKENS))
        if known and known[-1] == token:
            return
        known.append(token)
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
            self._messenger.send(task, "join", unbound)  # it may have started after the first `join`
            self._bind(unbound, task, token)

    def _bind(self, membership: Membership, task: str, token: int) -> None:
        """Bind a membership to that of the other task."""
        membership.peers[task] = token
        if not membership.missing:
            self._completed(membership)

    # --- failing ---------------------------------------------------------------------------------------------------

    def check_left(self, membership: Membership) -> None:
        """Fail if a request still needs parts of a task that has left."""
        for request in membership.requests:
            for rank in request.algorithm.expects():
                task = membership.task_of[rank]
                reason = membership.left.get(task)
                if reason is not None and not (task in membership.closed and request.algorithm.is_under_way):
                    self.fail(membership, AbortedError.of(f"{request.what}: {reason}"))
                    return

    def fail(self, membership: Membership, error: OpError) -> None:
        """Fail a membership and all its requests, here and in the other tasks."""
        if membership.error is not None:
            return
        membership.error = error
        for task in membership.peers:
            self._messenger.send(task, "end", membership, reason=error.summary, code=error.code)
        requests, membership.waiting = membership.requests, {}
        membership.early.clear()
        for queue in membership.queues.values():
            queue.waiting.clear()  # a run that ends now passes the buffer on
        membership.queues = {}
        for request in requests:
            if isinstance(request, MessageRequest):
                request.algorithm.stop()
            request.refuse(type(error).of(error.message))


def ended_early_error(task: str, request: CollectiveRequest) -> OpError:
    """The error when a member's step ends before its collective."""
    text = f"A step of {task or 'this process'} was ended while it took part in {request.what}"
    return AbortedError.of(text)
