"""A registered program set, and what is known about how long its programs take.

A *segment* is what a program does without a pause; it is known by the device and by where it begins. A small one is run by the thread
that brought what it waited for, any other one by a thread of the pool.

What each thread of a worker is doing: which programs it runs next, and what the one that it runs has put out.

Programs are not run where they become ready, inside one another, but one after the other in the thread's *turn*, so the stack stays
flat however long a chain between two devices is.

Parts of steps that meet nobody: one program that neither sends, nor receives, nor waits.

If it is short as well, it is run where it was asked for, by the thread that heard of it: nobody can want to abort it, to hear what it
waits for, or to deliver something to it meanwhile. So the books that are kept of running steps need not be opened, which take as long
as a small program itself.

One part of a step that runs on this task: which thread runs its programs, and when what they put out leaves.

A segment of a program that is known to be short is run by the thread that made it ready; any other one by the client's own thread, if
that has nothing to do (`colocated.py`), or by the pool.

A message costs as much as some tens of KiB, mostly for waking the other side. So what a program makes for one task travels together,
as far as nobody is kept waiting: a tensor that the receiver awaits leaves before the program goes on for long, one that it does not
await yet leaves with the one that it does, and everything leaves when the program pauses. On a network, a large tensor leaves at
once, so that it is on its way meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, Protocol

from ...codegen.ir.partition import RecvTensor
from ...codegen.ir.program import Call, Program
from ...graph.core.errors import OpError
from ...placer.partition.partitioned_graph import task_of
from ..wire.messages import ChannelKey
from .colocated import CallerThread
from .executor import Executor
from .registration import Trigger
from .step import TaskStep

__all__ = [
    "AWAY_S",
    "InlineStep",
    "Around",
    "Finish",
    "HOSTED_S",
    "LARGE_BYTES",
    "RegisteredProgram",
    "MAX_TOGETHER",
    "MOST_SLOW",
    "StepRunner",
    "SMALL_S",
    "Segment",
    "RunQueue",
    "RunQueues",
    "only_segment",
]

SMALL_S = (
    300e-6  # a program that runs no longer than this is run where its message came in: a hand-over costs about as much
)
AWAY_S = 3e-3  # and one that waits so long by itself (a Python function may sleep) is not, either
MOST_SLOW = 6  # how well slow runs are remembered


class Segment:
    """What is known about one segment.

    A slow run may be slow because other processes had the cores. So what counts is the time that the thread was at work, unless it
    was away for very long; it takes more than one slow run to make a segment slow, and several quick ones to make it quick again.
    To ask for the time at work is a call of the kernel: it is not asked for after a quick run, and the first slow one after
    quick ones says nothing yet.

    Attributes:
        last: the seconds that it took last; an hour if it never ran.
        is_small: whether it is known to be short.
        is_clear: whether it is known to be quick, and was the last time: then nobody needs to know how long it is at work.
    """

    __slots__ = ("_slow", "is_clear", "is_small", "last")

    def __init__(self) -> None:
        self.last = 3600.0
        self.is_small = self.is_clear = False
        self._slow = -1  # how slow it has been; not known yet

    def measured(self, seconds: float, at_work: float | None) -> None:
        """It took so long, and so long of that the thread was at work, if that is known."""
        if at_work is None and seconds <= SMALL_S:
            return  # as ever
        self.last = seconds
        if seconds > AWAY_S or (at_work is not None and at_work > SMALL_S):
            self._slow = MOST_SLOW if self._slow < 0 else min(MOST_SLOW, self._slow + 3)
        elif self._slow:
            self._slow = max(0, self._slow - 1)
        self.is_small = self._slow <= MOST_SLOW // 2
        self.is_clear = self._slow == 0 and seconds <= SMALL_S


@dataclass(slots=True)
class RegisteredProgram:
    """This task's part of one run signature.

    Attributes:
        coalesced: channels whose tensors wait for a later one: see `lowering.py`.
        handle: under which it is known.
        triggers: as in `Registration`.
        reports: whether the client hears of the end (`lowering.py`).
        client: as in `Registration`.
        inline_segment: the only segment of a part that meets nobody (`step_scheduler.py`); None: it may meet somebody.
        segments: by device and where they begin.
        gaps: channel -> how long the program then goes on before it sends or pauses, about.
    """

    session: str
    programs: tuple[Program, ...]
    coalesced: frozenset[int] = frozenset()
    handle: str = ""
    triggers: frozenset[str] = frozenset()
    reports: bool = True
    client: str = ""
    inline_segment: Segment | None = None
    segments: dict[tuple[str, int], Segment] = field(default_factory=dict)
    gaps: dict[ChannelKey, float] = field(default_factory=dict)

    def segment(self, executor: Executor) -> Segment:
        """The segment that comes next."""
        key = executor.program.device, executor.counter
        return self.segments.get(key) or self.segments.setdefault(key, Segment())

    def went_on(self, channel: ChannelKey, seconds: float) -> None:
        """After sending to a channel, the program went on for so long. One hiccup counts little."""
        known = self.gaps.get(channel, 0.0)
        self.gaps[channel] = min((known + seconds) / 2, 2 * known + SMALL_S / 4)

    def trigger(self, client: int, task: str) -> Trigger | None:
        """What a client's tensors start on a task."""
        return Trigger(self.handle, client) if client and task in self.triggers else None


class RunQueue:
    """What one thread is doing.

    Attributes:
        ready: what it is to run next; None while it runs nothing.
        last: what is done when nothing is left to run.
        outbox: task -> what the program that it runs has put out, and has not sent yet.
        since: the same -> when the first of that was put out that the receiver may be waiting for.
        sent, sent_at: the channel that was put out last, and when.
    """

    __slots__ = ("last", "outbox", "ready", "sent", "sent_at", "since")

    def __init__(self) -> None:
        self.ready: deque[tuple[StepRunner, Executor, Segment]] | None = None
        self.last: list[Callable[[], None]] = []
        self.outbox: dict[str, dict[ChannelKey, Any]] = {}
        self.since: dict[str, float] = {}
        self.sent: ChannelKey | None = None
        self.sent_at = 0.0

    def take(self, first: Callable[..., None], *arguments: Any) -> None:
        """Do `first(*arguments)`, then run whatever small segments it made ready, in order, until none is left."""
        if self.ready is not None:  # already inside a turn of this thread
            first(*arguments)
            return
        ready = self.ready = deque()
        try:
            first(*arguments)
            while ready:
                running, executor, segment = ready.popleft()
                running.run(executor, segment)
        finally:
            self.ready = None
            if self.last:
                self._end()

    def _end(self) -> None:
        """Do what was put off, all of it, whatever it raises."""
        last, self.last = self.last, []
        with contextlib.ExitStack() as stack:
            for do in reversed(last):
                stack.callback(do)

    def at_end(self, do: Callable[[], None]) -> None:
        """Do something that nobody is in a hurry for, when the turn has run what is ready: at once, if there is no turn."""
        if self.ready:
            self.last.append(do)
        else:
            do()


class RunQueues(threading.local):
    """The calling thread's turn."""

    def __init__(self) -> None:
        self.current = RunQueue()


def only_segment(registered: RegisteredProgram) -> Segment | None:
    """The segment of programs that are one, which runs to its end whatever others do; None if they are not."""
    if len(registered.programs) != 1 or any(type(now) is not Call for now in registered.programs[0].instructions):
        return None
    return registered.segments.setdefault((registered.programs[0].device, 0), Segment())


class InlineStep(TaskStep):
    """A step as its only program sees it.

    Args:
        registered: the program, which has an `only_segment`.
        feeds: name -> value.

    Attributes:
        outcome: what is fetched, or the error, when it has run.

    Raises:
        InternalError: a feed is missing.
    """

    __slots__ = ("_executor", "_segment", "outcome")

    outcome: Mapping[str, Any] | OpError

    def __init__(self, number: int, registered: RegisteredProgram, feeds: Mapping[str, Any]) -> None:
        self.is_over = False  # nor will it be before it has run
        assert registered.inline_segment is not None
        self._segment = registered.inline_segment
        self._executor = Executor(self, registered.programs[0])
        self._executor.feed(number, feeds)

    def run(self) -> None:
        """Run the program to its end."""
        began = perf_counter()
        self._executor.run()
        self._segment.measured(perf_counter() - began, None)
        del self._executor  # which refers to this

    def ended(self, fetched: Mapping[str, Any]) -> None:
        """As `TaskStep.ended`."""
        self.outcome = fetched

    def fail(self, error: OpError) -> None:
        """As `TaskStep.fail`."""
        self.outcome = error


HOSTED_S: Final = 0.2  # a client that runs a program itself gives no signs of life meanwhile: it must not take longer
LARGE_BYTES: Final = 64 << 10  # a tensor from this size on is sent as soon as it exists
MAX_TOGETHER: Final = 64  # small tensors in one message: a loop may send without ever pausing, and others wait for it
Finish = Callable[[Mapping[str, Any] | OpError], None]
"""Told once, with the fetched values or the error."""


class Around(Protocol):
    """What a running part needs of its worker.

    Attributes:
        run_queues: what its threads run.
        pool: the threads that run what is not small; None: everything runs in the caller's thread.
        away: what these do.
    """

    run_queues: RunQueues
    pool: ThreadPoolExecutor | None
    away: dict[object, None]

    def expect(self) -> None:
        """The calling thread has sent tensors of a step which now waits for others."""
        ...

    def is_near(self, task: str) -> bool:
        """Whether large tensors cost no more than small ones on the way to a task."""
        ...

    def send(self, task: str, number: int, values: Mapping[ChannelKey, Any], trigger: Trigger | None = None) -> None:
        """Send tensors of a step to a task."""
        ...

    def want(self, number: int, session: str, receives: Sequence[RecvTensor]) -> None:
        """Ask for variables of other tasks."""
        ...

    def over(self, number: int, outcome: Mapping[str, Any] | OpError) -> None:
        """A step has ended here."""
        ...


class StepRunner:
    """What a `TaskStep` calls, for one part of a step.

    Args:
        worker: whose part it is.
        number: the step's.
        registered: the programs.
        client: for whom its tensors start the parts of other tasks, or 0.
        finish: told of the end.
        caller_thread: takes segments that are neither small nor long, if it has time.
        resume: has somebody do what resumes a program; None: this thread or the pool does.
    """

    __slots__ = ("_client", "_finish", "_caller_thread", "_registered", "_number", "_resume", "_worker")

    def __init__(
        self,
        worker: Around,
        number: int,
        registered: RegisteredProgram,
        client: int,
        finish: Finish,
        caller_thread: CallerThread | None,
        resume: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self._worker = worker
        self._number = number
        self._registered = registered
        self._client = client
        self._finish = finish
        self._caller_thread = caller_thread
        self._resume = resume

    # --- threads -----------------------------------------------------------------------------------------------------

    def schedule(self, executor: Executor) -> None:
        """Run an executor in this thread's turn if it is small, by the client's thread if that is idle, in the pool otherwise."""
        worker = self._worker
        segment = self._registered.segment(executor)
        turn = worker.run_queues.current
        if turn.ready is not None and (segment.is_small or worker.pool is None):
            turn.ready.append((self, executor, segment))
            return

        def run() -> None:
            try:
                worker.run_queues.current.take(self.run, executor, segment)
            finally:
                worker.away.pop(executor, None)

        if self._caller_thread is not None and segment.last <= HOSTED_S and self._caller_thread.take(run):
            return
        if worker.pool is not None:
            worker.away[executor] = None
            worker.pool.submit(run)
        else:
            run()

    def resume(self, executor: Executor) -> None:
        """Have an executor go on whose request was settled, by whichever thread calls this."""
        if self._resume is None:
            self.schedule(executor)
        else:
            run_queues, segment = self._worker.run_queues, self._registered.segment(executor)
            self._resume(lambda: run_queues.current.take(self.run, executor, segment))

    def offload(self, work: Callable[[], None]) -> None:
        """Do what may run beside a program: in the pool."""
        pool, run_queues = self._worker.pool, self._worker.run_queues
        if pool is not None:
            pool.submit(lambda: run_queues.current.take(work))
        else:
            work()

    def run(self, executor: Executor, segment: Segment) -> None:
        """Run an executor until it pauses or ends, then send what it has put out."""
        turn = self._worker.run_queues.current
        if turn.sent is not None:  # inside another one, of which a kernel runs a session
            around = turn.sent, turn.sent_at, turn.outbox, turn.since
            turn.sent, turn.outbox, turn.since = None, {}, {}
            try:
                self.run(executor, segment)
            finally:
                turn.sent, turn.sent_at, turn.outbox, turn.since = around
            return
        at_work = None if segment.is_clear else time.thread_time()
        began = time.perf_counter()
        executor.run()
        ended = time.perf_counter()
        if at_work is not None:
            at_work = time.thread_time() - at_work
        segment.measured(ended - began, at_work)
        if turn.sent is None:
            return  # it has put out nothing
        registered = self._registered
        registered.went_on(turn.sent, ended - turn.sent_at)
        outbox = turn.outbox
        turn.sent, turn.outbox, turn.since = None, {}, {}
        try:
            for task, values in outbox.items():
                self._worker.send(task, self._number, values, registered.trigger(self._client, task))
        except OpError as e:
            executor.step.fail(e)
        if not executor.step.is_over and not self._worker.away:  # nobody else of this process needs the interpreter
            self._worker.expect()

    # --- what leaves -------------------------------------------------------------------------------------------------

    def push(self, destination: str, channel: ChannelKey, value: Any) -> None:
        """Send a tensor to another task, now or together with later ones."""
        worker, registered = self._worker, self._registered
        turn = worker.run_queues.current
        now = time.perf_counter()
        if turn.sent is not None:
            registered.went_on(turn.sent, now - turn.sent_at)
        turn.sent, turn.sent_at = channel, now
        task = task_of(destination)
        together = turn.outbox.get(task)
        if together is None:
            together = turn.outbox[task] = {}
        together[channel] = value
        large = getattr(value, "nbytes", 0) >= LARGE_BYTES and not worker.is_near(task)
        if not large and len(together) < MAX_TOGETHER:
            if channel in registered.coalesced:
                return
            since = turn.since.setdefault(task, now)
            if now - since <= SMALL_S and registered.gaps.get(channel, 0.0) <= SMALL_S:
                return
        turn.since.pop(task, None)
        worker.send(task, self._number, turn.outbox.pop(task), registered.trigger(self._client, task))

    def want(self, receives: Sequence[RecvTensor]) -> None:
        """Ask for variables that could not be read."""
        self._worker.want(self._number, self._registered.session, receives)

    def finish(self, step: TaskStep, outcome: Mapping[str, Any] | OpError) -> None:
        """The step has ended."""
        self._worker.over(self._number, outcome)
        self._finish(outcome)
