"""Chooses the thread that runs each program of a step on this task, and the time at which its tensors are sent.

Theory of operation. A *segment* is what a program does between two pauses. Its device and its first instruction identify it. The
scheduler measures each segment. The thread that made a short segment ready runs it: a hand-over would cost about as much as the
segment. The pool runs any other segment, except the first one of a part whose client is in this process: the client's thread waits for
the part anyway, so it runs the segment itself, unless that takes long.

A thread does not run programs recursively as they become ready. It appends them to its `RunQueue` and runs them one after the other,
so the stack depth does not grow with the length of a chain between two devices.

A part of a step that is one short program and neither sends, receives nor waits is run inline (`InlineStep`), by the thread that got
the request. It cannot be aborted, receive a tensor or be asked what it waits for, so it is not entered among the running steps: that
would take as long as a small program itself.

A segment of a program that has a loop, a data set or a Python function may take any time, however short it was before. It is never
short: the thread that made it ready may be the I/O thread, which must hear that the step was aborted.

Sends are coalesced. A message costs as much as some tens of KiB, mostly for waking the receiver. So a tensor waits for the next one
that its program sends to the same task, as long as that hardly delays the receiver: if it comes before the program may pause, and soon,
as measured in earlier steps. On a network, a large tensor is sent at once, so that its transfer overlaps the computation that follows.

Small tensors for a task in the client's process go to the client: no other thread has to be woken, and to wake that of the client then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from time import perf_counter
from typing import Any, Final, Protocol

from ...codegen.ir.partition import RecvTensor
from ...codegen.ir.program import Call, Program
from ...placer.partition.partitioned_graph import task_of
from ..wire.messages import INLINE_BYTES, ChannelKey
from .executor import Executor, Finish, Outcome, run_calmly

SHORT_S: Final = 300e-6  # a segment up to this is short: a hand-over to another thread costs about as much
BRIEF_S: Final = 0.2  # a client that runs a segment sends no heartbeats meanwhile: none that takes longer
SLOW_MEMORY: Final = 6  # to which slow runs count up, and short ones down; up to half of it a segment is short
COALESCED_S: Final = 300e-6  # for so long a tensor may wait for others that travel in the same message
NEXT_S: Final = 100e-6  # and for so long for the next one: about what a message costs that has to wake its receiver
LARGE_BYTES: Final = 64 << 10  # a tensor from this size on is sent as soon as it exists


class Segment:
    """What the measurements of a segment say. A run may be slow because other processes had the cores, so most of the last runs decide.

    It does not change. Segments of which the same is known share one: the cycle collector has no object for each instruction to look at.

    Attributes:
        is_short: whether it is known to be short: most of its last runs were, and sizes bound its time.
        is_brief: whether it is known to end before a waiting client must do something else.
    """

    __slots__ = ("_is_bounded", "_slow", "is_brief", "is_short")

    def __init__(self, is_bounded: bool = True, slow: int = SLOW_MEMORY // 2 + 1, is_brief: bool = False) -> None:
        self._is_bounded = is_bounded
        self._slow = slow  # 0: short, SLOW_MEMORY: slow
        self.is_brief = is_brief
        self.is_short = is_bounded and slow <= SLOW_MEMORY // 2

    def measured(self, seconds: float) -> Segment:
        """What is known after another run."""
        if seconds <= SHORT_S and not self._slow and self.is_brief:
            return self
        slow = max(0, self._slow - 1) if seconds <= SHORT_S else min(SLOW_MEMORY, self._slow + 1)
        return _segment(self._is_bounded, slow, self._is_bounded and seconds <= BRIEF_S)


_segment = lru_cache(maxsize=None)(Segment)


@dataclass(slots=True)
class RegisteredProgram:
    """This task's part of one run signature, compiled.

    Attributes:
        programs: one for each device of the task that takes part.
        client: as in `Registration`.
        inline_segment: the key of the only segment of a part that can be run inline; None: it cannot.
        segments: what is known of them, by device and first instruction.
        gaps: channel -> smoothed seconds from a send on it until the program sends again.
    """

    session: str
    programs: tuple[Program, ...]
    client: str = ""
    inline_segment: tuple[str, int] | None = None
    segments: dict[tuple[str, int], Segment] = field(default_factory=dict)
    gaps: dict[ChannelKey, float] = field(default_factory=dict)

    def segment(self, executor: Executor) -> Segment:
        return self.segments.get((executor.program.device, executor.counter)) or _segment(executor.program.is_bounded)

    def continued(self, channel: ChannelKey, seconds: float) -> None:
        """Record for how many seconds the program continued after sending on a channel. One outlier counts little."""
        known = self.gaps.get(channel, 0.0)
        self.gaps[channel] = min((known + seconds) / 2, 2 * known + COALESCED_S / 4)


def only_segment(registered: RegisteredProgram) -> tuple[str, int] | None:
    """The key of the segment of a part that is one program of calls only, so that it runs to its end without a pause; else None."""
    if len(registered.programs) != 1 or any(type(now) is not Call for now in registered.programs[0].instructions):
        return None
    program = registered.programs[0]
    registered.segments[program.device, 0] = _segment(program.is_bounded)
    return program.device, 0


class RunQueue:
    """The executors that one thread runs next, and the tensors that its program has produced and not sent yet.

    Attributes:
        ready: (runner, executor, segment) of each ready executor; None while the thread runs nothing.
        coalesced: task -> when the first of the tensors was produced that wait for another one, and these tensors.
        sent, sent_at: the channel of the last tensor that was produced, if another one follows, and the time.
    """

    __slots__ = ("coalesced", "ready", "sent", "sent_at")

    def __init__(self) -> None:
        self.ready: deque[tuple[Callable[[Executor, Segment], None], Executor, Segment]] | None = None
        self.coalesced: dict[str, tuple[float, dict[ChannelKey, Any]]] = {}
        self.sent: ChannelKey | None = None
        self.sent_at = 0.0

    def take(self, first: Callable[..., None], *arguments: Any) -> None:
        """Call `first(*arguments)`, then run the short segments that became ready, in order, until none is left."""
        if self.ready is not None:  # called by something that this queue runs
            first(*arguments)
            return
        ready = self.ready = deque()
        try:
            first(*arguments)
            if ready:
                run_calmly(self._run_ready)
        finally:
            self.ready = None

    def _run_ready(self) -> None:
        while self.ready:
            run, executor, segment = self.ready.popleft()
            run(executor, segment)


class RunQueues(threading.local):
    """The run queue of the calling thread."""

    def __init__(self) -> None:
        self.current = RunQueue()


class InlineStep:
    """A part of a step that is run inline: the interface of a step for the executor of its only program.

    Attributes:
        outcome: the fetched values or the error, after the run.
    """

    __slots__ = ("outcome",)
    is_over = False  # it cannot be ended while it runs
    cancellation = None  # nor need it, since sizes bound its time
    outcome: Outcome

    def ended(self, outcome: Outcome) -> None:
        self.outcome = outcome

    fail = ended


class StepOwner(Protocol):
    """The interface of a worker that a step uses. `Worker` implements and documents it."""

    pool: ThreadPoolExecutor | None
    run_queues: RunQueues
    reader_of: Callable[[str], int]

    def send(self, task: str, number: int, values: Mapping[ChannelKey, Any], *client: bytes) -> None: ...
    def want(self, number: int, session: str, receives: Sequence[RecvTensor]) -> None: ...
    def step_ended(self, number: int, outcome: Outcome) -> None: ...


@dataclass(slots=True, eq=False)
class StepRunner:
    """The callbacks of one part of a step to its threads, the network and its client.

    Args:
        _resume: passes the call that resumes a program to some thread; None: this thread or the pool makes it.
        _waiter: the identifier of the thread that waits for the part, its only program; 0: it has several, or another process waits.
        _client: a task in the process of the client, or None, and the client's connection.
    """

    _worker: StepOwner
    _number: int
    _registered: RegisteredProgram
    _finish: Finish
    _resume: Callable[[Callable[[], None]], None] | None
    _waiter: int = 0
    _client: tuple[str | None, bytes] = (None, b"")

    # --- threads -----------------------------------------------------------------------------------------------------

    def schedule(self, executor: Executor) -> None:
        """Let an executor continue: a short segment in this thread, any other in the pool, unless this thread only waits for the part."""
        worker = self._worker
        segment = self._registered.segment(executor)
        ready = worker.run_queues.current.ready
        is_waiter = segment.is_brief and threading.get_ident() == self._waiter
        if ready is not None and (segment.is_short or is_waiter or worker.pool is None):
            ready.append((self.run, executor, segment))
        else:
            self.offload(self.run, executor, segment)

    def resume(self, executor: Executor) -> None:
        """The same for an executor whose request was settled or whose asynchronous kernel has ended, from any thread."""
        if self._resume is None:
            self.schedule(executor)
        else:
            run_queues, segment = self._worker.run_queues, self._registered.segment(executor)
            self._resume(lambda: run_queues.current.take(self.run, executor, segment))

    def offload(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do work that may run concurrently with the programs: in the pool, if there is one."""
        run_queues, pool = self._worker.run_queues, self._worker.pool
        if pool is not None:
            pool.submit(lambda: run_queues.current.take(work, *arguments))
        else:
            run_queues.current.take(work, *arguments)

    def run(self, executor: Executor, segment: Segment) -> None:
        queue = self._worker.run_queues.current
        # A kernel of another program may run a session: what that program has coalesced is put aside. What is left here has failed.
        outer = queue.sent, queue.sent_at, queue.coalesced
        queue.sent, queue.coalesced = None, {}
        key = executor.program.device, executor.counter
        began = perf_counter()
        try:
            executor.run()
        finally:
            queue.sent, queue.sent_at, queue.coalesced = outer
        self._registered.segments[key] = segment.measured(perf_counter() - began)

    # --- what leaves -------------------------------------------------------------------------------------------------

    def push(self, destination: str, channel: ChannelKey, value: Any, more: bool) -> None:
        """Send a tensor, or `DEAD`, to a device of another task: now, or, if there are `more` for the task, together with later ones."""
        worker, registered = self._worker, self._registered
        queue = worker.run_queues.current
        now = perf_counter()
        if queue.sent is not None:
            registered.continued(queue.sent, now - queue.sent_at)
        queue.sent, queue.sent_at = channel if more else None, now
        task = task_of(destination)
        since, together = queue.coalesced.pop(task, (now, {}))
        together[channel] = value
        waits = more and now - since <= COALESCED_S and registered.gaps.get(channel, 0.0) <= NEXT_S
        large = getattr(value, "nbytes", 0) >= LARGE_BYTES and not worker.reader_of(task)
        if waits and not large:
            queue.coalesced[task] = since, together
        elif task == self._client[0] and all(getattr(v, "nbytes", 0) <= INLINE_BYTES for v in together.values()):
            worker.send(task, self._number, together, self._client[1])
        else:
            worker.send(task, self._number, together)

    def want(self, receives: Sequence[RecvTensor]) -> None:
        """Ask other tasks for variables that could not be read in those tasks' memory; the values arrive on their channels."""
        self._worker.want(self._number, self._registered.session, receives)

    def finish(self, outcome: Outcome) -> None:
        """The step has ended, with the fetched values or the error. Called once."""
        self._worker.step_ended(self._number, outcome)
        self._finish(outcome)
