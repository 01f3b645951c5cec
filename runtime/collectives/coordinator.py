"""The coordinator of a task's collectives: handles kernels' requests and other tasks' messages, and detects missing tasks.

It has a `MembershipService` (which tasks take part), a `MessageExecutor` and a `SharedMemoryExecutor` (how a collective
runs), and a `FailureDetector`. Within a membership, a collective is identified by its instance (the op) and its run (a count per
session). The messages between coordinators have one of these events:

    join         the task takes part; if it had joined before, it has restarted, and requests that need its parts fail
    part         a part of one collective, for one rank
    wake         a shared buffer has changed
    end          the task has left: its session was closed (collectives with all its parts continue), or it failed (all fail)
    count        how many messages of this membership have you sent? Sent to each task that is waited for, as a request for a heartbeat, too
    counted      the answer to `count`
    alive        the answer to `count` of a task that takes no part yet

The coordinator has no sockets and no clock: messages and time are events, and `send` is an argument.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.errors import FailedPreconditionError, UnavailableError, from_code, invalid
from ...graph.resources.async_request import AsyncResource
from ...graph.resources.collective_context import CollectiveCall, CollectiveContext, DeviceLink
from ..rpc.failure_detection import FailureDetector
from . import algorithms
from .algorithms import Array, MessageAlgorithm, flatten, unflatten
from .device_link import LinkAgreement, LinkRefused, refusal_text
from .executors import WAKE, MessageExecutor, SharedMemoryExecutor
from .membership import (
    COUNTED,
    BufferQueue,
    CollectiveRequest,
    Membership,
    MembershipService,
    MessageRequest,
    PeerMessenger,
    Send,
    SharedMemoryRequest,
    ended_early_error,
    group_of,
)
from .shared_buffer import CollectiveMemory
from .shared_memory_algorithms import SharedMemoryAllReduce, SharedMemoryGather

logger = logging.getLogger(__name__)

WARN_S = 5.0  # between two warnings about missing tasks


# --- what a kernel brings to a collective --------------------------------------------------------------------------------


@lru_cache(1_000)
def described(kind: str, instance: str, members: int) -> str:
    return f"the {kind} '{instance}' of {members} members"


def signature(call: CollectiveCall) -> str:
    """What must be the same in all members besides the op: types, shapes, reduction."""
    values, attrs = call.values, call.attrs
    if call.kind == "barrier":
        return ""
    if call.kind == "all_gather":
        return f"{values[0].dtype}{list(values[0].shape[1:])}"
    how = (attrs["root"],) if call.kind == "broadcast" else (attrs["reduction"], attrs.get("way"))
    return _signature(how, tuple([v.dtype for v in values]), tuple([tuple(v.shape) for v in values]))


@lru_cache(1_000)
def _signature(how: tuple[Any, ...], dtypes: tuple[np.dtype[Any], ...], shapes: tuple[tuple[int, ...], ...]) -> str:
    words = [str(x) for x in how if x is not None]
    return " ".join(words + [f"{dtype}{list(shape)}" for dtype, shape in zip(dtypes, shapes, strict=True)])


_Way: TypeAlias = tuple[Callable[[], MessageAlgorithm], SharedMemoryAllReduce | None, Callable[[Any], Any]]
"""Functions that make the message algorithm, the shared-memory algorithm, and the kernel's result from either's."""


def _all_reduce(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    reduction, way = attrs["reduction"], attrs["way"]
    shapes, value = [v.shape for v in values], flatten(values)

    def finish(result: Array) -> Any:
        result = _read_only(result)
        return result.reshape(shapes[0]) if len(shapes) == 1 else tuple(unflatten(result, shapes))

    make_algorithm = partial(algorithms.all_reduce, attrs["rank"], len(attrs["members"]), value, reduction, way)
    return make_algorithm, SharedMemoryAllReduce(value, reduction) if way == "auto" else None, finish


def _all_gather(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    (value,) = values
    return (
        lambda: algorithms.all_gather(attrs["rank"], len(attrs["members"]), value),
        None if value.dtype.hasobject else SharedMemoryGather(value),  # shared memory holds no Python objects
        _read_only,
    )


def _reduce_scatter(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    (value,) = values
    reduction, rank, count = attrs["reduction"], attrs["rank"], len(attrs["members"])

    def finish(result: Array) -> Array:
        if result.size == value.size:  # in shared memory all rows are reduced
            rows = len(value) // count
            result = result.reshape(value.shape)[rank * rows : (rank + 1) * rows]
        return _read_only(result)

    make_algorithm = partial(algorithms.reduce_scatter, rank, count, value, reduction)
    return make_algorithm, SharedMemoryAllReduce(value, reduction), finish


def _broadcast(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    make = partial(algorithms.TreeBroadcast, attrs["rank"], len(attrs["members"]), values[0], attrs["root"])
    return make, None, np.array


def _barrier(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    nothing = np.zeros(1, np.int8)
    make = partial(algorithms.RecursiveDoubling, attrs["rank"], len(attrs["members"]), nothing, "max")
    return make, SharedMemoryAllReduce(nothing, "max"), lambda _: ()


WAYS: dict[str, Callable[[Sequence[Array], Mapping[str, Any]], _Way]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "barrier": _barrier,
}


def _read_only(array: Array) -> Array:
    """A read-only view: another member may use the same array."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


# --- the coordinator -------------------------------------------------------------------------------------------------


class Coordinator(AsyncResource[CollectiveRequest], CollectiveContext):
    """The collectives of one task. It chooses between messages and shared memory when it knows the members.

    Members on GPUs first agree whether all have a link. If one has none, all continue with values in host memory.

    Args:
        task: the task's name; '' in a process without servers, which contains all members.
        send: (task, message fields, tensors): sends to another task; None: there are no other tasks.
        patience_s: a task that sends nothing for this long counts as dead, in seconds.
        memory: makes and maps shared memory of the machine. None: there is none.
        lives: whether a task's process has run since a given time, even if it does not answer.
    """

    def __init__(
        self, task: str = "", send: Send | None = None, patience_s: float = 5.0, memory: CollectiveMemory | None = None,
        lives: Callable[[str, float], bool] = lambda task, since: False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.task = task
        self._messenger = PeerMessenger(task, send)
        self.memberships = MembershipService(self._messenger, self._begin_waiting)
        self._by_message = MessageExecutor(self._messenger, self.memberships, self.perform)
        self._in_memory = SharedMemoryExecutor(memory, self, self._messenger, self.memberships, self._by_message)
        self._detector = FailureDetector(patience_s)
        self._lives = lives
        # Session -> (members, instance) of the collectives whose members have agreed that they have no link.
        self._without_link: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()
        self._warned = 0.0

    # --- kernels ---------------------------------------------------------------------------------------------------

    def run(self, call: CollectiveCall) -> Any:
        make_algorithm, shared, finish = WAYS[call.kind](call.values, call.attrs)
        return self.take_part(call, f"{call.kind} {signature(call)}", make_algorithm, finish, shared)

    def run_on_link(
        self, call: CollectiveCall, link: DeviceLink | None = None, make_job: Callable[[], Any] | None = None
    ) -> Any:
        without = self._without_link.setdefault(call.session, set())
        key = call.members, call.instance

        def run_on_host() -> Any:
            # Another instance: a part may reach a member that does not know yet that there is no link.
            values = [np.asarray(v) for v in call.values]
            return self.run(replace(call, instance=f"{call.instance} by messages", values=values))

        def finish(result: Any) -> Any:
            if not isinstance(result, LinkRefused):
                return result
            if call.attrs.get("way") == "nccl":
                text = f"The {call.kind} '{call.instance}' cannot go by NCCL: {refusal_text(result, call.members)}."
                raise FailedPreconditionError(call.node_name, None, f"{text} Or use communication 'auto' or 'ring'")
            without.add(key)
            return run_on_host()

        if key in without:
            return run_on_host()
        rows = len(call.values[0]) if call.values[0].ndim else 0
        job = None if link is None or make_job is None else make_job()
        agreement = LinkAgreement(call.rank, len(call.members), link, job, rows)
        return self.take_part(call, f"{call.kind} by a link {signature(call)}", lambda: agreement, finish)

    def take_part(
        self, call: CollectiveCall, brought: str, make_algorithm: Callable[[], MessageAlgorithm], finish: Callable[[Any], Any],
        shared: SharedMemoryAllReduce | None = None,
    ) -> Any:  # fmt: skip
        """Take part in a collective; returns the result, or a request for it.

        Args:
            brought: what must be the same for all members: the op, types, shapes.
            make_algorithm: makes this member's message algorithm. finish: makes the kernel's result.
            shared: the algorithm if the members share memory. None: always use messages.

        Raises:
            InvalidArgumentError: the member is not in this task, or two members differ. OpError: the membership has failed.
        """
        members, rank = call.members, call.rank
        name, task_of = group_of(members, self.task, self._messenger.has_peers)
        if task_of[rank] != self.task:
            text = f"Member {rank} of the group is {members[rank]}, but its op runs on {self.task or 'this process'}"
            raise invalid(text)
        with self.lock:
            membership = self.memberships.of_session(call.session, name, task_of)
        what, key = described(call.kind, call.instance, len(members)), (call.instance, call.run, rank)

        def ask_by_message() -> Any:
            return self.ask(MessageRequest(what, membership, key, brought, finish, make_algorithm()))

        if shared is None or not membership.is_spread:
            return ask_by_message()
        queue = membership.queues.get(call.instance) or membership.queues.setdefault(call.instance, BufferQueue())
        if queue.is_agreed and queue.buffer is None:
            return ask_by_message()
        go_on = self._in_memory.go_on
        return self._in_memory.start(
            SharedMemoryRequest(what, membership, key, brought, finish, shared, ask_by_message, queue, go_on)
        )

    # --- request rules, under the lock -----------------------------------------------------------------------------

    def perform(self, event: Callable[[], None]) -> None:
        def whole() -> None:
            event()
            while self._messenger.unsent:
                self.memberships.fail(*self._messenger.unsent.pop())

        super().perform(whole)

    def _admit(self, request: CollectiveRequest) -> None:
        membership = request.membership
        if membership.error is not None:
            raise type(membership.error).of(membership.error.message)
        if request.key in membership.waiting:
            raise invalid(f"{request.what}: member {request.key[2]} takes part twice at once")
        if isinstance(request, SharedMemoryRequest):
            self._in_memory.enqueue(request)
        elif isinstance(request, MessageRequest):
            self._by_message.begin(request)
        self.memberships.check_left(membership)

    def _begin_waiting(self, membership: Membership) -> None:
        for request in membership.requests:
            if isinstance(request, MessageRequest) and request.key in membership.waiting:  # else failed with one before
                self._by_message.begin(request)

    def _serve(self) -> None:
        """Do nothing: a request completes when its last part arrives."""

    def _withdraw(self, request: CollectiveRequest) -> None:
        membership = request.membership
        membership.waiting.pop(request.key, None)
        if isinstance(request, MessageRequest):
            request.algorithm.stop()
        self.memberships.fail(membership, ended_early_error(self.task, request))

    def _take_back(self, request: CollectiveRequest, value: Any) -> None:
        if isinstance(request, SharedMemoryRequest):  # it could have continued
            self.memberships.fail(request.membership, ended_early_error(self.task, request))

    def _waiting(self) -> Iterable[CollectiveRequest]:
        return [r for group in self.memberships.groups.values() for m in group.memberships for r in m.requests]

    # --- messages of other tasks -----------------------------------------------------------------------------------

    def message(self, fields: Mapping[str, Any], tensors: Sequence[Any]) -> None:
        self.perform(lambda: self._on_message(fields, tensors))

    def _on_message(self, fields: Mapping[str, Any], tensors: Sequence[Array]) -> None:
        event, task, token = fields["event"], fields["task"], fields["token"]
        self._detector.heard(task)
        if event == "alive":
            return
        group = self.memberships.group(fields["group"])
        if event == "join" or (event != "end" and token not in group.known.get(task, ())):  # else its `join` was lost
            self.memberships.joined(group, task, token)
        membership = next((m for m in group.memberships if m.peers.get(task) == token), None)
        if event == "count":
            self._on_count(membership, fields["group"], task, token, fields["known"], fields["deaf"])
        elif membership is not None and membership.error is None:
            self._on_bound_message(membership, fields, tensors)
        elif event == "end" and group.unused.get(task) == token:
            del group.unused[task]  # it has left before this task joined

    def _on_bound_message(self, membership: Membership, fields: Mapping[str, Any], tensors: Sequence[Array]) -> None:
        """Handle a message of a task that is bound to this membership."""
        event, task = fields["event"], fields["task"]
        membership.counters[task].received += event in COUNTED
        if event == "counted":
            if membership.requests and membership.counters[task].lacks(fields["sent"]):
                what = membership.requests[0].what
                text = (
                    f"{what}: something that {task} has sent never came: the connection between it and {self.task} broke meanwhile. All "
                    "workers go on from the last checkpoint, in new sessions."
                )
                self.memberships.fail(membership, UnavailableError.of(text))
        elif event == WAKE:
            self._in_memory.woken(membership, fields["instance"])
        elif event == "end":
            if fields["code"]:
                error = from_code(fields["code"], f"{task}: {fields['reason']}", None)
                self.memberships.fail(membership, error)
            else:
                membership.left[task] = f"{task} {fields['reason']}"
                membership.closed.add(task)
                self.memberships.check_left(membership)
        elif event == "part":
            keys = ("instance", "run", "sender", "to", "tag", "what")
            instance, run, sender, to, tag, signed = (fields[key] for key in keys)
            task_of, is_sound = membership.task_of, len(tensors) == 1 and min(sender, to) >= 0
            if is_sound and max(sender, to) < len(task_of) and (task_of[sender], task_of[to]) == (task, self.task):
                self._by_message.arrive(membership, (instance, run, to), sender, tag, signed, tensors[0])

    # --- heartbeats and lost messages ------------------------------------------------------------------------------

    def _on_count(
        self, membership: Membership | None, name: str, task: str, token: int, meant: int, is_deaf: bool
    ) -> None:
        """Answer a `count`. `meant` is the token of the membership here; 0: the other task does not know it.

        If the membership is gone or has failed, the `end` was lost and is repeated. If the other task does not know the membership, the
        `join` was lost and is repeated. `is_deaf`: the other task has not heard this one lately.
        """
        if membership is None:
            if meant:
                reason = "takes part no longer: it was restarted, or its session has ended"
                self._messenger.try_to_send(task, "end", name, meant, reason=reason, code="ABORTED")
            else:
                self._messenger.try_to_send(task, "alive", name, token)
        elif membership.error is not None:
            self._messenger.send(task, "end", membership, reason=membership.error.summary, code=membership.error.code)
        elif meant != membership.token:
            self._messenger.send(task, "join", membership)
        else:
            self._messenger.send(task, "counted", membership, sent=membership.counters[task].sent)
        if self._detector.is_cut_off(task, is_deaf):
            for m in self.memberships.active():
                if m.peers.get(task) is not None:  # the other task cannot continue in any case
                    text = (
                        f"{task} hears nothing of {self.task}, though it is heard: the way there is cut. All "
                        "workers go on from the last checkpoint, in new sessions, when it is open."
                    )
                    self.memberships.fail(m, UnavailableError.of(text))

    # --- ticks -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Ask for heartbeats, and fail memberships that wait for silent tasks."""
        self.perform(lambda: self._tick(now))

    def _tick(self, now: float) -> None:
        detector = self._detector
        detector.tick(now)
        self.memberships.leave_ended()
        awaited: set[str] = set()
        waits: list[tuple[Membership, set[str]]] = []
        for membership in self.memberships.active():
            requests = membership.requests
            if not requests:
                continue
            self._in_memory.look(membership)
            expected = {membership.task_of[r] for w in requests for r in w.algorithm.expects()}
            expected = (expected | set(membership.missing)) - {self.task}
            awaited |= expected
            waits.append((membership, expected))
            since = min((detector.awaited.get(t, now) for t in membership.missing), default=now)
            if now - max(since, self._warned) > WARN_S:
                self._warned = now
                logger.warning(
                    "%s waits at %s for %s to start and get there",
                    self.task, requests[0].what, ", ".join(membership.missing),
                )  # fmt: skip
        detector.wait_for(awaited)
        asked = dict(detector.to_ask())
        for membership, tasks in waits:
            for task in sorted(asked.keys() & tasks):
                # A task that has left, but runs on a link, answers that it lives.
                known = 0 if task in membership.left else membership.peers[task] or 0
                self._messenger.try_to_send(
                    task, "count", membership.group, membership.token, known=known, deaf=asked[task]
                )
        for task, seconds in detector.silent(self._lives):
            for m in self.memberships.active():
                if task in m.peers and m.requests:
                    text = (
                        f"{m.requests[0].what}: {task} has given no sign of life for {seconds:.1f} s: it is dead, stopped or cut off. "
                        "Start it again; all workers then go on from the last checkpoint, in new sessions."
                    )
                    self.memberships.fail(m, UnavailableError.of(text))
