"""The state of groups: memberships of sessions, and the requests that wait in them.

A group is the set of devices that run a collective together. A membership is one session's part in a group (`membership_service.py`). A
request is one member's wait for its result, by messages (`message_executor.py`) or in shared memory (`shared_memory_executor.py`).
"""

from __future__ import annotations

import secrets
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...graph.core.errors import OpError
from ...graph.resources.async_request import Request
from .algorithms import Array, MessageAlgorithm
from .device_link import LinkAgreement
from .failure_detector import LossCounter
from .shared_buffer import SharedBuffer
from .shared_memory_algorithms import SharedMemoryAllReduce

MAX_EARLY_PARTS = 4_000
"""Parts of one group that wait for a session of this task to join, or for it to get to their collective."""
HANDSHAKE_RUN = -1
"""The run in which the members of an instance agree on a shared buffer."""
Key = tuple[str, int, int]
"""(instance, run, rank) of a member's share of one collective."""


class MessageRequest(Request):
    """One member's wait for the result of an algorithm that works by messages."""

    __slots__ = ("algorithm", "finish", "key", "membership", "signature")

    def __init__(
        self,
        what: str,
        membership: Membership,
        key: Key,
        algorithm: MessageAlgorithm,
        signature: str,
        finish: Callable[[Any], Any],
    ) -> None:
        super().__init__(what)
        self.membership, self.key, self.algorithm = membership, key, algorithm
        self.signature, self.finish = signature, finish

    def finished(self, value: Any) -> Any:
        """The kernel's result."""
        return self.finish(value)

    def waits_for(self) -> str:
        """As `Request.waits_for`, with the members that keep it waiting."""
        return _waiting_text(self)

    def expects(self) -> set[int]:
        """Ranks for which it waits."""
        return self.algorithm.expects()


class SharedMemoryRequest(Request):
    """One member's wait for its run to get the shared buffer, and for the other members there.

    Attributes:
        make_algorithm: makes what runs by messages where there is no buffer.
        algorithm: what runs in the buffer.
        go_on: makes the kernel's result, or a request for what to wait for next.
        has_begun: whether the run has got the buffer.
    """

    __slots__ = (
        "algorithm",
        "finish",
        "go_on",
        "has_begun",
        "key",
        "make_algorithm",
        "membership",
        "queue",
        "signature",
    )

    def __init__(
        self, what: str, membership: Membership, key: Key, make_algorithm: Callable[[], MessageAlgorithm], signature: str,
        finish: Callable[[Any], Any], algorithm: SharedMemoryAllReduce, queue: BufferQueue,
        go_on: Callable[[SharedMemoryRequest], Any], has_begun: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(what)
        self.membership, self.key, self.make_algorithm, self.signature = membership, key, make_algorithm, signature
        self.finish, self.algorithm, self.queue, self.go_on, self.has_begun = finish, algorithm, queue, go_on, has_begun

    def waits_for(self) -> str:
        """As `Request.waits_for`, with the members that keep it waiting."""
        return _waiting_text(self)

    def expects(self) -> set[int]:
        """Ranks for which it waits."""
        return self.algorithm.expects()

    def again(self) -> SharedMemoryRequest:
        """The same, to be waited for once more."""
        return SharedMemoryRequest(
            self.what, self.membership, self.key, self.make_algorithm, self.signature, self.finish, self.algorithm, self.queue,
            self.go_on, self.has_begun,
        )  # fmt: skip

    def finished(self, value: Any) -> Any:
        """The kernel's result, or what to wait for next."""
        return self.go_on(self)


AnyRequest = MessageRequest | SharedMemoryRequest


class BufferQueue:
    """The runs of one instance, which use its shared buffer one after the other.

    Attributes:
        buffer: None where there is none, or its members have not agreed yet.
        is_agreed: whether the members have agreed whether there is a buffer.
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
        group: the group's name. task_of: the task of each rank. token: tells this membership from all others.
        peers: other task -> its token; None until it has joined. is_spread: whether each member has a task of its own.
        error: why the membership has failed.
        left: tasks that take part no longer -> why. closed: those of them that have finished all that they had begun.
        counters: messages sent to each other task, and received from it.
        by_message, in_memory: requests that wait, by key. queues: of shared buffers, by instance.
        early: parts that came before their member, by key: (sender, tag, signature, array).
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
    def requests(self) -> list[AnyRequest]:
        """All that waits."""
        return [*self.by_message.values(), *self.in_memory.values()]

    @property
    def missing(self) -> list[str]:
        """Tasks that have not joined."""
        return [t for t, token in self.peers.items() if token is None]


class Group:
    """What is known of a group: memberships of this task's sessions, and what other tasks have said.

    Attributes:
        unused: task -> the token of its latest join that no membership has taken. latest: task -> the token of its latest join.
        known: task -> the tokens of its last joins.
        early: (task, token) -> messages that came before a membership took that token; `kept`: how many there are.
        lost: (task, token) of which a message could not be kept.
    """

    def __init__(self) -> None:
        self.unused: dict[str, int] = {}
        self.latest: dict[str, int] = {}
        self.known: dict[str, deque[int]] = {}
        self.memberships: weakref.WeakSet[Membership] = weakref.WeakSet()
        self.early: OrderedDict[tuple[str, int], list[tuple[Mapping[str, Any], Sequence[Array]]]] = OrderedDict()
        self.kept = 0
        self.lost: set[tuple[str, int]] = set()

    def of_peer(self, task: str, token: int) -> Membership | None:
        """The membership that is bound to this token of another task."""
        return next((m for m in self.memberships if m.peers.get(task) == token), None)

    def keep(self, task: str, token: int, fields: Mapping[str, Any], tensors: Sequence[Array]) -> None:
        """Keep a message of a task that no membership is bound to yet."""
        if fields["event"] == "end" and fields.get("code"):  # it failed before this task joined
            self.drop_early(task, token)
            if self.unused.get(task) == token:
                del self.unused[task]
        elif self.kept < MAX_EARLY_PARTS:
            self.kept += 1
            self.early.setdefault((task, token), []).append((fields, tensors))
        elif len(self.lost) < MAX_EARLY_PARTS:
            self.lost.add((task, token))

    def drop_early(self, task: str, token: int | None) -> list[tuple[Mapping[str, Any], Sequence[Array]]]:
        """Take out the messages that were kept for a token."""
        found = self.early.pop((task, token), []) if token is not None else []
        self.kept -= len(found)
        return found


def stop_link(request: AnyRequest) -> None:
    """Stop the device link that a request waits for, if it does."""
    if isinstance(request.algorithm, LinkAgreement):
        request.algorithm.stop()


def _waiting_text(request: AnyRequest) -> str:
    """What a member waits for: the collective, and the members without which it cannot go on."""
    membership, (instance, _, rank) = request.membership, request.key
    assert request._resource is not None
    with request._resource.lock:
        absent = membership.missing
        ranks = {r for r, task in enumerate(membership.task_of) if task in absent}
        if not ranks:
            ranks = request.expects()
            handshake = membership.by_message.get((instance, HANDSHAKE_RUN, rank))
            if handshake is not None:  # it cannot begin before all have agreed on a buffer
                ranks = ranks | handshake.expects()
    if not ranks:
        return request.what
    members = ", ".join(f"member {r}" + (f" ({t})" if (t := membership.task_of[r]) else "") for r in sorted(ranks))
    return f"{request.what}: {'not joined by' if absent else 'awaiting'} {members}"


__all__ = [
    "HANDSHAKE_RUN", "MAX_EARLY_PARTS", "AnyRequest", "BufferQueue", "Group", "Key", "Membership", "MessageRequest",
    "SharedMemoryRequest", "stop_link",
]  # fmt: skip
