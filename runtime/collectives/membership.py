"""The state of groups: sessions' memberships, and their waiting requests.

A group is the set of devices that run a collective together. A membership is one session's part in a group (`membership_service.py`). A
request is one member's wait for its result, by messages or in shared memory (`executors.py`).
"""

from __future__ import annotations

import secrets
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...graph.core.errors import OpError
from ...graph.resources.async_request import Request
from ..rpc.failure_detection import LossCounter
from .algorithms import Array, MessageAlgorithm
from .device_link import LinkAgreement
from .shared_buffer import SharedBuffer
from .shared_memory_algorithms import SharedMemoryAllReduce

MAX_EARLY_PARTS = 4_000
"""Limit of a group's parts that wait for a session of this task to join, or to reach their collective."""
HANDSHAKE_RUN = -1
"""The run number of the handshake for an instance's shared buffer."""
COUNTED = frozenset({"part", "end"})
"""Events that must not be lost. Wake-ups are not counted: a sleeping member polls from time to time."""
Key = tuple[str, int, int]
"""(instance, run, rank) of a member's share of one collective."""


class CollectiveRequest(Request):
    """One member's wait for a collective.

    Attributes:
        signature: what must be the same for all members.
        finish: makes the kernel's result.
    """

    __slots__ = ("algorithm", "finish", "key", "membership", "signature")

    def __init__(
        self, what: str, membership: Membership, key: Key, signature: str, finish: Callable[[Any], Any],
        algorithm: MessageAlgorithm | SharedMemoryAllReduce,
    ) -> None:  # fmt: skip
        super().__init__(what)
        self.membership, self.key, self.signature, self.finish = membership, key, signature, finish
        self.algorithm = algorithm

    def expects(self) -> set[int]:
        """The ranks that it waits for."""
        return self.algorithm.expects()

    def waits_for(self) -> str:
        """As `Request.waits_for`, with the members that it waits for."""
        membership, (instance, _, rank) = self.membership, self.key
        assert self._resource is not None
        with self._resource.lock:
            absent = membership.missing
            ranks = {r for r, task in enumerate(membership.task_of) if task in absent}
            if not ranks:
                ranks = self.expects()
                handshake = membership.by_message.get((instance, HANDSHAKE_RUN, rank))
                if handshake is not None:  # all must agree on a buffer first
                    ranks = ranks | handshake.expects()
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


class SharedMemoryRequest(CollectiveRequest):
    """One member's wait for the shared buffer, and for the other members in it.

    Attributes:
        make_algorithm: makes the message algorithm for the case without a buffer.
        go_on: makes the kernel's result, or a request for the next wait.
        has_begun: whether the run has the buffer.
    """

    __slots__ = ("go_on", "has_begun", "make_algorithm", "queue")
    algorithm: SharedMemoryAllReduce

    def __init__(
        self, what: str, membership: Membership, key: Key, signature: str, finish: Callable[[Any], Any],
        algorithm: SharedMemoryAllReduce, make_algorithm: Callable[[], MessageAlgorithm], queue: BufferQueue,
        go_on: Callable[[SharedMemoryRequest], Any],
    ) -> None:  # fmt: skip
        super().__init__(what, membership, key, signature, finish, algorithm)
        self.make_algorithm, self.queue, self.go_on, self.has_begun = make_algorithm, queue, go_on, False

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
        by_message, in_memory: waiting requests, by key. queues: of shared buffers, by instance.
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
        self.by_message: dict[Key, MessageRequest] = {}
        self.in_memory: dict[Key, SharedMemoryRequest] = {}
        self.queues: dict[str, BufferQueue] = {}
        self.early: dict[Key, list[tuple[int, int, str, Array]]] = {}

    @property
    def requests(self) -> list[CollectiveRequest]:
        """All waiting requests."""
        return [*self.by_message.values(), *self.in_memory.values()]

    @property
    def missing(self) -> list[str]:
        """The tasks that have not joined."""
        return [t for t, token in self.peers.items() if token is None]


class Group:
    """The state of a group: memberships of this task's sessions, and joins and messages of other tasks.

    Attributes:
        unused: task -> the token of its latest join without a membership here. latest: task -> the token of its latest join.
        known: task -> the tokens of its latest joins.
        early: (task, token) -> messages that arrived before a membership was bound to that token; `early_count`: their number.
        lost: (task, token) with a message that could not be kept.
    """

    def __init__(self) -> None:
        self.unused: dict[str, int] = {}
        self.latest: dict[str, int] = {}
        self.known: dict[str, deque[int]] = {}
        self.memberships: weakref.WeakSet[Membership] = weakref.WeakSet()
        self.early: OrderedDict[tuple[str, int], list[tuple[Mapping[str, Any], Sequence[Array]]]] = OrderedDict()
        self.early_count = 0
        self.lost: set[tuple[str, int]] = set()

    def of_peer(self, task: str, token: int) -> Membership | None:
        """The membership that is bound to this token of another task."""
        return next((m for m in self.memberships if m.peers.get(task) == token), None)

    def keep(self, task: str, token: int, fields: Mapping[str, Any], tensors: Sequence[Array]) -> None:
        """Keep a message of a task that is not bound to a membership yet."""
        if fields["event"] == "end" and fields.get("code"):  # the sender failed before this task joined
            self.drop_early(task, token)
            if self.unused.get(task) == token:
                del self.unused[task]
        elif self.early_count < MAX_EARLY_PARTS:
            self.early_count += 1
            self.early.setdefault((task, token), []).append((fields, tensors))
        elif len(self.lost) < MAX_EARLY_PARTS:
            self.lost.add((task, token))

    def drop_early(self, task: str, token: int | None) -> list[tuple[Mapping[str, Any], Sequence[Array]]]:
        """Remove and return the messages that were kept for a token."""
        found = self.early.pop((task, token), []) if token is not None else []
        self.early_count -= len(found)
        return found


def stop_link(request: CollectiveRequest) -> None:
    """Stop the device link that a request waits for, if any."""
    if isinstance(request.algorithm, LinkAgreement):
        request.algorithm.stop()
