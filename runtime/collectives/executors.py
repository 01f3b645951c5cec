"""Runs the collectives of one task's members: by messages, or in shared memory.

By messages, a member brings a `MessageAlgorithm`, which decides what to send and how to combine what arrives. Parts for ranks of this
task are not sent. A part that arrives before its member is kept.

In shared memory, members on one machine share a buffer per instance (`shared_buffer.py`), if each task has one member. Before an
instance's first run the members agree whether all can map a buffer (the handshake). Its runs then use the buffer in turn, in the order
of their numbers. A run that waits too long returns its thread, and continues when another member wakes it by a message. Without a
buffer, each run uses messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.core.errors import OpError, ResourceExhaustedError, invalid
from ...graph.resources.async_request import AsyncResource
from .algorithms import Array, MessageAlgorithm, Part, RecursiveDoubling, TreeBroadcast, mismatch_text
from .device_link import LinkAgreement
from .membership import (
    CONSENT_RUN,
    MAX_EARLY_PARTS,
    OFFER_RUN,
    BufferQueue,
    CollectiveRequest,
    HandshakeRequest,
    Key,
    Membership,
    MembershipService,
    MessageRequest,
    PeerMessenger,
    SharedMemoryRequest,
    ended_early_error,
)
from .shared_buffer import CollectiveMemory, SharedBuffer, label_of, make_buffer, open_buffer


class MessageExecutor:
    """Runs the members of one task that exchange parts by messages. The caller holds the coordinator's lock.

    Args:
        perform: runs a function under the coordinator's lock, for device links, whose results come on other threads.
    """

    def __init__(
        self, messenger: PeerMessenger, service: MembershipService, perform: Callable[[Callable[[], None]], None]
    ) -> None:
        self._messenger, self._service, self._perform = messenger, service, perform

    def begin(self, request: MessageRequest) -> None:
        """Start a member's algorithm, once all tasks have joined."""
        membership = request.membership
        membership.waiting[request.key] = request
        if membership.missing:
            return
        request.has_begun = True
        if isinstance(request.algorithm, LinkAgreement):
            request.algorithm.tell = lambda result: self._perform(lambda: self._link_ended(request, result))
        self._route(request, request.algorithm.begin())
        for sender, tag, signature, array in membership.early.pop(request.key, ()):
            self._receive(request, sender, tag, signature, array)

    def arrive(self, membership: Membership, key: Key, sender: int, tag: int, signature: str, array: Array) -> None:
        """Handle a part of rank `sender` for a member of this task."""
        request = membership.waiting.get(key)
        if isinstance(request, SharedMemoryRequest) and request.signature != signature:
            self._service.fail(membership, _mismatch_error(request, sender, signature))
        elif not isinstance(request, MessageRequest) or not request.has_begun:
            membership.early.setdefault(key, []).append((sender, tag, signature, array))
            if len(membership.early) > MAX_EARLY_PARTS:
                task = membership.task_of[sender]
                text = (
                    f"More than {MAX_EARLY_PARTS} parts of {task} wait for this task to get to their collectives: {task} runs too far "
                    "ahead. Let it take something back from the others, such as an all_reduce or a barrier."
                )
                self._service.fail(membership, ResourceExhaustedError.of(text))
        else:
            self._receive(request, sender, tag, signature, array)

    def _receive(self, request: MessageRequest, sender: int, tag: int, signature: str, array: Array) -> None:
        if signature != request.signature:
            self._service.fail(request.membership, _mismatch_error(request, sender, signature))
        elif request.key in request.membership.waiting:
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
        if request.algorithm.is_done and request.key in membership.waiting:
            del membership.waiting[request.key]
            request.answer(request.algorithm.result)
        for to, tag, array in local:
            self.arrive(membership, (instance, run, to), rank, tag, request.signature, array)

    def _link_ended(self, request: MessageRequest, result: Any) -> None:
        """Handle the end of a run on a device link, with its result or an error."""
        membership = request.membership
        if membership.waiting.get(request.key) is not request:
            return  # the step has ended
        if isinstance(result, OpError):
            self._service.fail(membership, type(result).of(f"{request.what}: {result.message}"))
            return
        request.algorithm.finish(result)
        self._route(request, ())
        self._service.check_left(membership)


def _mismatch_error(request: CollectiveRequest, sender: int, signature: str) -> OpError:
    return invalid(f"{request.what}: {mismatch_text(request.key[2], request.signature, sender, signature)}")


WAKE, HANDSHAKE_SIGNATURE = "wake", "handshake"
"""The event of a wake-up message, and the signature of a handshake. Both are part of the protocol."""


class SharedMemoryExecutor:
    """Runs the members of one task in buffers that they share with members of other tasks.

    Args:
        memory: makes and maps shared memory. None: there is none.
        coordinator: handles requests, and owns the lock.
    """

    def __init__(
        self, memory: CollectiveMemory | None, coordinator: AsyncResource[CollectiveRequest], messenger: PeerMessenger,
        service: MembershipService, messages: MessageExecutor,
    ) -> None:  # fmt: skip
        self._memory, self._coordinator = memory, coordinator
        self._messenger, self._service, self._messages = messenger, service, messages

    # --- kernels, without the lock ---------------------------------------------------------------------------------

    def start(self, request: SharedMemoryRequest) -> Any:
        """A run's result, or a request for it. It starts at once if no other run has the buffer or waits for it."""
        queue, membership = request.queue, request.membership
        with self._coordinator.lock:
            is_taken = queue.buffer is None or queue.current is not None or queue.waiting
            starts = not (is_taken or membership.error or membership.left)
            if starts:
                queue.current = request
        return self.go_on(request) if starts else self._coordinator.ask(request)

    def go_on(self, request: SharedMemoryRequest) -> Any:
        """Run as far as possible. Returns the result, or a request for the next wait."""
        membership, queue, algorithm = request.membership, request.queue, request.algorithm
        buffer = queue.buffer
        if buffer is None:
            return request.ask_by_message()
        try:
            if request.has_begun:
                buffer.set_notify(False)
            else:
                request.has_begun = True
                algorithm.start(buffer, request.key[1], label_of(request.signature))
            is_done = algorithm.drive(lambda: membership.error is not None)
        except OpError as e:
            error = type(e).of(f"{request.what}: {e.message}")
            self._coordinator.perform(lambda: self._service.fail(membership, error))
            raise error from None
        except BaseException:  # also KeyboardInterrupt: the other members must not wait for this one
            ended = ended_early_error(self._service.task, request)
            self._coordinator.perform(lambda: self._service.fail(membership, ended))
            raise
        if not is_done:
            return self._coordinator.ask(request.again())
        with self._coordinator.lock:
            queue.current = None
            is_awaited = bool(queue.waiting)
        if is_awaited:
            self._coordinator.perform(lambda: self._start_next(queue))
        return request.finish(algorithm.result)

    # --- under the lock --------------------------------------------------------------------------------------------

    def enqueue(self, request: SharedMemoryRequest) -> None:
        """Queue a run for the buffer, or let it wait in the buffer for the other members."""
        membership, queue = request.membership, request.queue
        membership.waiting[request.key] = request
        if request.has_begun:
            queue.current = request
            self._look(request)
            return
        queue.waiting.append(request)
        if len(queue.waiting) == 1 and not queue.is_agreed:
            self._agree(request)
        self._start_next(queue)

    def _agree(self, request: SharedMemoryRequest) -> None:
        """The handshake: rank 0 makes a buffer and broadcasts its address. It is used if all members have mapped it."""
        membership, queue, (instance, _, rank) = request.membership, request.queue, request.key
        size, algorithm, memory = len(membership.task_of), request.algorithm, self._memory
        made, numbers = None, list[int]()
        if rank == 0:
            made, numbers = make_buffer(memory, size, algorithm.nbytes, algorithm.has_result_areas)

        def exchange(run: int, algorithm: MessageAlgorithm, then: Callable[[Array], None]) -> None:
            key = instance, run, rank
            self._messages.begin(HandshakeRequest(request.what, membership, key, HANDSHAKE_SIGNATURE, then, algorithm))

        def wake(to: int) -> None:
            task = membership.task_of[to]
            self._coordinator.perform(lambda: self._messenger.send(task, WAKE, membership, instance=instance))

        def offered(numbers: Array) -> None:
            mapped = made or open_buffer(memory, size, [int(x) for x in numbers])

            def agreed(have_all: Array) -> None:
                if memory is not None and mapped is not None and have_all.all():
                    queue.buffer = SharedBuffer(memory.may_sleep, *mapped, rank, wake)
                queue.is_agreed = True
                self._start_next(queue)

            exchange(CONSENT_RUN, RecursiveDoubling(rank, size, np.array([mapped is not None]), "min"), agreed)

        exchange(OFFER_RUN, TreeBroadcast(rank, size, np.array(numbers, np.int64), 0), offered)

    def _start_next(self, queue: BufferQueue) -> None:
        """Give the buffer to the earliest run. Without a buffer, let all runs continue."""
        while queue.is_agreed and queue.current is None and queue.waiting:
            request = min(queue.waiting, key=lambda r: r.key[1])
            queue.waiting.remove(request)
            if queue.buffer is not None:
                queue.current = request
            self._let_go_on(request)

    def woken(self, membership: Membership, instance: str) -> None:
        """Handle a wake-up from another member: an instance's buffer has changed."""
        queue = membership.queues.get(instance)
        request = queue.current if queue is not None else None
        if request is not None and request.key in membership.waiting:
            self._look(request)

    def look(self, membership: Membership) -> None:
        """Check all buffers of a membership: a wake-up may have been lost."""
        for request in membership.requests:
            if isinstance(request, SharedMemoryRequest) and request.has_begun:
                self._look(request)

    def _look(self, request: SharedMemoryRequest) -> None:
        if request.algorithm.look():
            self._let_go_on(request)

    @staticmethod
    def _let_go_on(request: SharedMemoryRequest) -> None:
        del request.membership.waiting[request.key]
        request.answer()
