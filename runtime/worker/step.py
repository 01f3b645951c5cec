"""One step on one task: its programs, and the rendezvous between them and with other tasks.

Theory of operation. Each device's program is run by an `Executor` (`executor.py`), which suspends where its next tensor has not
arrived. When the tensor is delivered, the rendezvous schedules the executor again, in any thread. So a step needs no thread of its
own, a small program runs in the thread that received its message, and a step is stopped by dropping it.

All programs of a step follow one global order of nodes, so some executor can always continue: a step never deadlocks with itself.
Nodes that may wait for other steps are as late in that order as possible, so that they delay only what depends on them.

The module uses no sockets, threads or clocks: its callers pass events to the step, and the step calls its `StepRunner`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from ...codegen.ir.partition import RecvTensor
from ...codegen.ir.program import Call, Program, Read, Recv
from ...graph.core.errors import OpError
from ...graph.resources.async_request import Request
from ...graph.resources.cancellation import Cancellation
from ..observability.step_notes import Recorder, bytes_of, clock
from ..wire.messages import ChannelKey
from .executor import ABSENT, AsyncKernel, Executor, Outcome
from .step_scheduler import StepRunner


class TaskStep:
    """Everything of one step that runs on one task.

    Args:
        number: the step's number, the same on all tasks.
        programs: one per device of this task that takes part.

    Attributes:
        began: when it was made, by `perf_counter`.
        cancellation: tells kernels that run long when the step has ended; None: sizes bound the time of all its programs.
        sent: channel without iteration -> the last that was sent to another task.
        wanted: the variables of other tasks that were requested, by channel.
    """

    __slots__ = (
        "__weakref__", "_arrived", "_executors", "_fetched", "_lock", "_programs", "_ready_kernels", "_requests", "_running", "_runtime",
        "_waiting", "began", "cancellation", "is_over", "number", "sent", "session", "wanted",
    )  # fmt: skip

    def __init__(
        self, number: int, session: str, programs: Sequence[Program], feeds: Mapping[str, Any], runtime: StepRunner
    ) -> None:
        self.number = number
        self.session = session
        self.began = perf_counter()
        self.is_over = False
        self.cancellation: Cancellation | None = None
        self.sent: dict[int, ChannelKey] = {}
        self.wanted: dict[ChannelKey, RecvTensor] = {}
        self._runtime = runtime
        self._programs = programs
        self._running = len(programs)
        self._lock = threading.Lock()
        self._arrived: dict[Any, Any] = {}  # tensors by channel, and results of asynchronous kernels
        self._waiting: dict[ChannelKey | AsyncKernel, Executor] = {}
        self._requests: dict[Executor, Request] = {}  # of resources, that executors wait for
        self._ready_kernels: dict[AsyncKernel, None] = {}  # those that a thread may run
        self._fetched: dict[str, Any] = {}
        self._executors: list[Executor] = []
        for program in programs:
            if not program.is_bounded and self.cancellation is None:
                self.cancellation = Cancellation()
            executor = Executor(self, program)
            self._executors.append(executor)
            executor.feed(number, feeds)

    def start(self) -> None:
        if not self._executors:
            self._end({})
        for executor in self._executors:
            self._runtime.schedule(executor)

    # --- variables of other tasks ----------------------------------------------------------------------------------

    def read(self, now: Read, slots: list[Any], device: str) -> None:
        """Read variables in the memory of their tasks, for a program of `device`; request those that cannot be read."""
        values = now.read()
        missing = []
        for receive, slot, value in zip(now.receives, now.slots, values, strict=True):
            slots[slot] = value
            if value is None:
                missing.append(receive)
        if missing:
            self.wanted.update((receive.channel, receive) for receive in missing)
            self._runtime.want(missing)

    # --- the rendezvous --------------------------------------------------------------------------------------------

    def take(self, channel: ChannelKey | AsyncKernel, executor: Executor) -> Any:
        """The channel's tensor if it has arrived; else ABSENT, and the executor is scheduled when it arrives."""
        value = self._arrived.pop(channel, ABSENT)  # only this executor takes it, so this needs no lock
        if value is ABSENT:
            with self._lock:
                value = self._arrived.pop(channel, ABSENT)
                if value is ABSENT:
                    self._waiting[channel] = executor
        return value

    def give(self, destination: str, channel: ChannelKey, value: Any, more: bool) -> None:
        """Send a tensor to a device, of this task or of another one."""
        for program in self._programs:
            if program.device == destination:
                self.deliver({channel: value})
                return
        self._runtime.push(destination, channel, value, more)

    def deliver(self, values: Mapping[ChannelKey, Any]) -> None:
        with self._lock:
            if self.is_over:
                return
            self._arrived.update(values)
            waiting = self._waiting
            resumed = [waiting.pop(channel) for channel in values if channel in waiting]
        for executor in resumed:
            self._runtime.schedule(executor)

    def waits_for(self) -> list[str]:
        """Descriptions of what the step waits for, for the text of a timeout error."""
        with self._lock:
            waiting, asked = list(self._waiting.items()), dict(self._requests)
        channels = [
            f"{x.program.device} waits for {c.what if isinstance(c, AsyncKernel) else _awaited(x).wanted}"
            for c, x in waiting
            if c not in asked
        ]
        return channels + [f"{x.program.device} waits for {r.waits_for()}" for x, r in asked.items()]

    def waits_for_tensors(self) -> list[tuple[str, ChannelKey]]:
        """The channels with outstanding receives: (sending device, channel)."""
        with self._lock:
            return [(_awaited(x).source, c) for c, x in self._waiting.items() if not isinstance(c, AsyncKernel)]

    # --- waiting for other steps -----------------------------------------------------------------------------------

    def wait_for(self, request: Request, executor: Executor) -> bool:
        """Leave a request with the step; whether the executor must suspend until it is settled."""
        with self._lock:
            over = self.is_over
            if not over:
                self._requests[executor] = request
        if over:
            request.cancel()
            return True
        if request.when_settled(lambda: self._resume(executor)):
            return True
        with self._lock:
            return self._requests.pop(executor, None) is None  # None: the step has ended, and has cancelled it

    def answered(self, executor: Executor) -> Request | None:
        """The settled request for which an executor was resumed; None: it has not made one yet."""
        if not self._requests:
            return None
        with self._lock:
            return self._requests.pop(executor, None)

    @property
    def may_go_on(self) -> bool:
        """Whether an event may still resume it although none of its programs runs: it is ending, or waits for another step."""
        return self.is_over or bool(self._requests) or any(isinstance(c, AsyncKernel) for c in list(self._waiting))

    # --- asynchronous kernels --------------------------------------------------------------------------------

    def begin(self, call: Call, inputs: Sequence[Any], device: str) -> AsyncKernel:
        """Start a call's kernel asynchronously to a device's program. `take` gives its result."""
        kernel = AsyncKernel(self, call, inputs, device)
        if getattr(call.kernel, "returns_at_once", False):  # such calls must stay in order
            kernel.run()
        else:
            self._ready_kernels[kernel] = None
            self._runtime.offload(self.run_ready, kernel)
        return kernel

    def run_ready(self, kernel: AsyncKernel) -> None:
        """Do the next piece of work of an asynchronous kernel; nothing if another thread does it, or it waits."""
        if self._ready_kernels.pop(kernel, kernel) is None:
            kernel.run()

    def finished(self, kernel: AsyncKernel, result: Any) -> None:
        """An asynchronous kernel has its result. The program that awaits it counts as waiting until it is resumed (`may_go_on`)."""
        with self._lock:
            if self.is_over:
                return
            self._arrived[kernel] = result
            executor = self._waiting.get(kernel)
        if executor is not None:
            self._runtime.resume(executor)
            self._waiting.pop(kernel, None)

    def _resume(self, executor: Executor) -> None:
        """Continue an executor whose request was settled. The program that awaits an asynchronous kernel runs it, else the pool does."""
        if isinstance(executor, AsyncKernel):
            with self._lock:
                if self.is_over:
                    return
                self._ready_kernels[executor] = None
                waiter = self._waiting.pop(executor, None)
            if waiter is None:
                self._runtime.offload(self.run_ready, executor)
                return
            executor = waiter
        self._runtime.resume(executor)

    # --- the end ---------------------------------------------------------------------------------------------------

    def ended(self, fetched: Mapping[str, Any]) -> None:
        if len(self._programs) > 1:
            with self._lock:
                self._fetched.update(fetched)
                self._running -= 1
                if self._running:
                    return
            fetched = self._fetched
        self._end(fetched)

    def fail(self, error: OpError) -> None:
        """End the step with an error; later events are ignored."""
        self._end(error)

    def _end(self, outcome: Outcome) -> None:
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
            self._arrived.clear()
            self._waiting.clear()
            self._ready_kernels.clear()
            # Step and executors refer to each other: without this, arrays would live until Python's cycle collector runs.
            self._fetched = {}
            for executor in self._executors:
                executor.slots = []
            self._executors = []  # this breaks the reference cycle
            requests = self._requests
            if requests:
                self._requests = {}
        for request in requests.values():
            request.cancel()
        if self.cancellation is not None and isinstance(outcome, OpError):
            self.cancellation.cancel(outcome)
        self._runtime.finish(outcome)


def _awaited(executor: Executor) -> Recv:
    now = executor.instructions[executor.counter]
    assert isinstance(now, Recv)
    return now


class TracedStep(TaskStep):
    """A `TaskStep` that records its events."""

    def __init__(
        self, recorder: Recorder, number: int, session: str, programs: Sequence[Program], feeds: Mapping[str, Any], runtime: StepRunner,
    ) -> None:  # fmt: skip
        self._recorder = recorder
        # Awaited channel or kernel, or waiting executor -> start of the wait. Call of an asynchronous kernel -> its start.
        self._since: dict[ChannelKey | Executor | Call, int] = {}
        super().__init__(number, session, [recorder.instrumented(p) for p in programs], feeds, runtime)

    def take(self, channel: ChannelKey | AsyncKernel, executor: Executor) -> Any:
        # Recorded before the executor is registered: the delivering thread may run it before this returns.
        paused = self._since.get(channel)
        began = self._since[channel] = clock() if paused is None else paused
        value = super().take(channel, executor)
        if value is not ABSENT:
            self._since.pop(channel, None)
            if paused is not None:
                what = channel.what if isinstance(channel, AsyncKernel) else f"channel {channel}"
                self._recorder.waited(executor.program.device, what, began)
        return value

    def read(self, now: Read, slots: list[Any], device: str) -> None:
        began = clock()
        super().read(now, slots, device)
        for receive, slot in zip(now.receives, now.slots, strict=True):
            if receive.reached is None:
                self._recorder.read(receive.channel, began, bytes_of(slots[slot]))

    def give(self, destination: str, channel: ChannelKey, value: Any, more: bool) -> None:
        self._recorder.sent(channel, value)
        super().give(destination, channel, value, more)

    def deliver(self, values: Mapping[ChannelKey, Any]) -> None:
        for channel in values:
            self._recorder.arrived(channel)
        super().deliver(values)

    def begin(self, call: Call, inputs: Sequence[Any], device: str) -> AsyncKernel:
        self._since[call] = clock()
        return super().begin(call, inputs, device)

    def finished(self, kernel: AsyncKernel, result: Any) -> None:
        self._recorder.ran_beside(kernel.call, self._since.pop(kernel.call), result)
        super().finished(kernel, result)

    def wait_for(self, request: Request, executor: Executor) -> bool:
        if not isinstance(executor, AsyncKernel):
            self._since[executor] = clock()
        return super().wait_for(request, executor)

    def answered(self, executor: Executor) -> Request | None:
        request = super().answered(executor)
        began = None if isinstance(executor, AsyncKernel) else self._since.pop(executor, None)
        if request is not None and began is not None:
            self._recorder.waited(executor.program.device, request.what, began)
        return request
