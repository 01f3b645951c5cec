"""One part of a step that runs on this task: which thread runs its programs, and when what they put out leaves.

A stretch of a program that is known to be short is run by the thread that made it ready; any other one by the client's own thread, if
that has nothing to do (`here.py`), or by the pool.

A message costs as much as some tens of KiB, mostly for waking the other side. So what a program makes for one task travels together,
as far as nobody is kept waiting: a tensor that the receiver awaits leaves before the program goes on for long, one that it does not
await yet leaves with the one that it does, and everything leaves when the program pauses. On a network, a large tensor leaves at
once, so that it is on its way meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from ..codegen.ir.partition import RecvTensor
from ..graph.core.errors import OpError
from ..placer.partition.partitioned_graph import task_of
from .carried import Carry
from .execution import ChannelKey, Execution
from .here import Host
from .loaded import SMALL_S, Loaded, Stretch
from .step import TaskStep
from .turns import Turns

HOSTED_S: Final = 0.2  # a client that runs a program itself gives no signs of life meanwhile: it must not take longer
LARGE_BYTES: Final = 64 << 10  # a tensor from this size on is sent as soon as it exists
MAX_TOGETHER: Final = 64  # small tensors in one message: a loop may send without ever pausing, and others wait for it

Finish = Callable[[Mapping[str, Any] | OpError], None]
"""Told once, with the fetched values or the error."""


class Around(Protocol):
    """What a running part needs of its worker.

    Attributes:
        turns: what its threads are doing.
        pool: the threads that run what is not small; None: everything runs in the caller's thread.
        away: what these do.
    """

    turns: Turns
    pool: ThreadPoolExecutor | None
    away: dict[object, None]

    def expect(self) -> None:
        """The calling thread has sent tensors of a step which now waits for others."""
        ...

    def is_near(self, task: str) -> bool:
        """Whether large tensors cost no more than small ones on the way to a task."""
        ...

    def send(self, task: str, number: int, values: Mapping[ChannelKey, Any], carry: Carry | None = None) -> None:
        """Send tensors of a step to a task."""
        ...

    def want(self, number: int, session: str, receives: Sequence[RecvTensor]) -> None:
        """Ask for variables of other tasks."""
        ...

    def over(self, number: int, outcome: Mapping[str, Any] | OpError) -> None:
        """A step has ended here."""
        ...


class Running:
    """What a `TaskStep` calls, for one part of a step.

    Args:
        worker: whose part it is.
        number: the step's.
        loaded: the programs.
        client: for whom its tensors start the parts of other tasks, or 0.
        finish: told of the end.
        host: takes stretches that are neither small nor long, if it has time.
        resume: has somebody do what resumes a program; None: this thread or the pool does.
    """

    __slots__ = ("_client", "_finish", "_host", "_loaded", "_number", "_resume", "_worker")

    def __init__(
        self,
        worker: Around,
        number: int,
        loaded: Loaded,
        client: int,
        finish: Finish,
        host: Host | None,
        resume: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self._worker = worker
        self._number = number
        self._loaded = loaded
        self._client = client
        self._finish = finish
        self._host = host
        self._resume = resume

    # --- threads -----------------------------------------------------------------------------------------------------

    def schedule(self, execution: Execution) -> None:
        """Run an execution in this thread's turn if it is small, by its host if that has time, in the pool otherwise."""
        worker = self._worker
        stretch = self._loaded.stretch(execution)
        turn = worker.turns.mine
        if turn.ready is not None and (stretch.is_small or worker.pool is None):
            turn.ready.append((self, execution, stretch))
            return

        def run() -> None:
            try:
                worker.turns.mine.take(self.run, execution, stretch)
            finally:
                worker.away.pop(execution, None)

        if self._host is not None and stretch.last <= HOSTED_S and self._host.take(run):
            return
        if worker.pool is not None:
            worker.away[execution] = None
            worker.pool.submit(run)
        else:
            run()

    def resume(self, execution: Execution) -> None:
        """Have an execution go on whose request was settled, by whichever thread calls this."""
        if self._resume is None:
            self.schedule(execution)
        else:
            turns, stretch = self._worker.turns, self._loaded.stretch(execution)
            self._resume(lambda: turns.mine.take(self.run, execution, stretch))

    def aside(self, work: Callable[[], None]) -> None:
        """Do what may run beside a program: in the pool."""
        pool, turns = self._worker.pool, self._worker.turns
        if pool is not None:
            pool.submit(lambda: turns.mine.take(work))
        else:
            work()

    def run(self, execution: Execution, stretch: Stretch) -> None:
        """Run an execution until it pauses or ends, then send what it has put out."""
        turn = self._worker.turns.mine
        if turn.sent is not None:  # inside another one, of which a kernel runs a session
            around = turn.sent, turn.sent_at, turn.outbox, turn.since
            turn.sent, turn.outbox, turn.since = None, {}, {}
            try:
                self.run(execution, stretch)
            finally:
                turn.sent, turn.sent_at, turn.outbox, turn.since = around
            return
        at_work = None if stretch.is_clear else time.thread_time()
        began = time.perf_counter()
        execution.run()
        ended = time.perf_counter()
        if at_work is not None:
            at_work = time.thread_time() - at_work
        stretch.measured(ended - began, at_work)
        if turn.sent is None:
            return  # it has put out nothing
        loaded = self._loaded
        loaded.went_on(turn.sent, ended - turn.sent_at)
        outbox = turn.outbox
        turn.sent, turn.outbox, turn.since = None, {}, {}
        try:
            for task, values in outbox.items():
                self._worker.send(task, self._number, values, loaded.carry(self._client, task))
        except OpError as e:
            execution.step.fail(e)
        if not execution.step.is_over and not self._worker.away:  # nobody else of this process needs the interpreter
            self._worker.expect()

    # --- what leaves -------------------------------------------------------------------------------------------------

    def push(self, destination: str, channel: ChannelKey, value: Any) -> None:
        """Send a tensor to another task, now or together with later ones."""
        worker, loaded = self._worker, self._loaded
        turn = worker.turns.mine
        now = time.perf_counter()
        if turn.sent is not None:
            loaded.went_on(turn.sent, now - turn.sent_at)
        turn.sent, turn.sent_at = channel, now
        task = task_of(destination)
        together = turn.outbox.get(task)
        if together is None:
            together = turn.outbox[task] = {}
        together[channel] = value
        large = getattr(value, "nbytes", 0) >= LARGE_BYTES and not worker.is_near(task)
        if not large and len(together) < MAX_TOGETHER:
            if channel in loaded.held:
                return
            since = turn.since.setdefault(task, now)
            if now - since <= SMALL_S and loaded.gaps.get(channel, 0.0) <= SMALL_S:
                return
        turn.since.pop(task, None)
        worker.send(task, self._number, turn.outbox.pop(task), loaded.carry(self._client, task))

    def want(self, receives: Sequence[RecvTensor]) -> None:
        """Ask for variables that could not be read."""
        self._worker.want(self._number, self._loaded.session, receives)

    def finish(self, step: TaskStep, outcome: Mapping[str, Any] | OpError) -> None:
        """The step has ended."""
        self._worker.over(self._number, outcome)
        self._finish(outcome)


__all__ = ["HOSTED_S", "LARGE_BYTES", "MAX_TOGETHER", "Around", "Finish", "Running"]
