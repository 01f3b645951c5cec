"""One step on one task: its programs, and the rendezvous between them and with other tasks.

Theory of operation. Each device's program is run by an `Executor` (`executor.py`), which pauses where its next tensor is not there.
When the tensor is delivered, the rendezvous gives the executor back to be run on by whichever thread has time. So a step needs no
thread of its own, a small program runs in the thread that brought its message, and stopping a step means forgetting it.

All programs of a step follow one global order of nodes, so some executor can always go on: a step never waits for itself.
What may wait for other steps stands as late in that order as it can, so that it holds up nothing that does not need it.

Nothing here knows of sockets, threads or clocks: the step is told events, and calls its `StepRuntime`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

from ...codegen.ir.partition import RecvTensor
from ...codegen.ir.program import Call, Program, Read, Recv
from ...graph.core.errors import OpError, from_code
from ...graph.resources.async_request import Request
from ..wire.messages import ChannelKey
from .async_kernel import AsyncKernel
from .executor import ABSENT, Executor, explained


class StepRuntime(Protocol):
    """What a step calls."""

    def push(self, destination: str, channel: ChannelKey, value: Any) -> None:
        """Send a tensor to a device of another task. The value may be `DEAD`."""
        ...

    def schedule(self, executor: Executor) -> None:
        """An executor can go on: have `run()` called on it, now or soon, by some thread."""
        ...

    def resume(self, executor: Executor) -> None:
        """The same of an executor whose request was settled, or whose kernel has ended, from whichever thread did that."""
        ...

    def offload(self, work: Callable[[], None]) -> None:
        """Do what may run beside the programs, in another thread if there is one."""
        ...

    def want(self, receives: Sequence[RecvTensor]) -> None:
        """Ask for variables of other tasks that could not be read; they come on their channels."""
        ...

    def finish(self, step: TaskStep, outcome: Mapping[str, Any] | OpError) -> None:
        """Told once, with the fetched values or the error."""
        ...


class TaskStep:
    """Everything of one step that runs on one task.

    Args:
        number: the step's number, the same on all tasks.
        session: handle of the session it belongs to.
        programs: one per device of this task that takes part.
        feeds: name -> value.
        runtime: what it calls.
        arrived: tensors that have come already; the step's from now on.
    """

    __slots__ = (
        "__weakref__", "_arrived", "_begun", "_executors", "_fetched", "_lock", "_programs", "_requests", "_running", "_runtime",
        "_waiting", "is_over", "number", "session",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        session: str,
        programs: Sequence[Program],
        feeds: Mapping[str, Any],
        runtime: StepRuntime,
        arrived: dict[ChannelKey, Any] | None = None,
    ) -> None:
        self.number = number
        self.session = session
        self.is_over = False
        self._runtime = runtime
        self._programs = programs
        self._running = len(programs)
        self._lock = threading.Lock()
        self._arrived: dict[ChannelKey, Any] = {} if arrived is None else arrived
        self._waiting: dict[ChannelKey, Executor] = {}
        self._requests: dict[Executor, Request] = {}  # what executors have asked of resources
        self._begun: dict[AsyncKernel[Executor], None] = {}  # what runs beside the programs
        self._fetched: dict[str, Any] = {}
        self._executors: list[Executor] = []
        for program in programs:
            executor = Executor(self, program)
            self._executors.append(executor)
            executor.feed(number, feeds)

    def start(self) -> None:
        """Set all programs going."""
        if not self._executors:
            self._end({})
        for executor in self._executors:
            self._runtime.schedule(executor)

    # --- variables of other tasks ----------------------------------------------------------------------------------

    def read(self, now: Read, slots: list[Any], device: str) -> None:
        """Read variables where they lie, for a program of this device, as far as they can be; ask for the others."""
        values = now.read()
        missing = []
        for receive, slot, value in zip(now.receives, now.slots, values, strict=True):
            slots[slot] = value
            if value is None:
                missing.append(receive)
        if missing:
            self._runtime.want(missing)

    # --- the rendezvous --------------------------------------------------------------------------------------------

    def take(self, channel: ChannelKey, executor: Executor) -> Any:
        """The channel's tensor if it is there; else remember who waits for it."""
        value = self._arrived.pop(channel, ABSENT)  # nobody else takes it, so this needs no lock
        if value is ABSENT:
            with self._lock:
                value = self._arrived.pop(channel, ABSENT)
                if value is ABSENT:
                    self._waiting[channel] = executor
        return value

    def give(self, destination: str, channel: ChannelKey, value: Any) -> None:
        """Pass a tensor on: to another device of this task, or out."""
        for program in self._programs:
            if program.device == destination:
                self.deliver(channel, value)
                return
        self._runtime.push(destination, channel, value)

    def deliver(self, channel: ChannelKey, value: Any) -> None:
        """A tensor has come for this step."""
        with self._lock:
            if self.is_over:
                return
            self._arrived[channel] = value
            executor = self._waiting.pop(channel, None)
        if executor is not None:
            self._runtime.schedule(executor)

    def deliver_all(self, values: Mapping[ChannelKey, Any]) -> None:
        """Tensors have come for this step, together."""
        if len(values) == 1:
            for channel, value in values.items():
                self.deliver(channel, value)
            return
        with self._lock:
            if self.is_over:
                return
            self._arrived.update(values)
            resumed = [x for x in map(self._waiting.pop, values, repeat(None)) if x is not None]
        for executor in resumed:
            self._runtime.schedule(executor)

    def waits_for(self) -> list[str]:
        """What keeps the step from going on, in words: for the error when it takes too long."""
        with self._lock:
            channels = [f"{x.program.device} waits for channel {c} from {_source(x)}" for c, x in self._waiting.items()]
            asked = [(x, r.waits_for) for x, r in self._requests.items()]
            asked += [(b.waiter, b.waits_for) for b in self._begun if b.waiter is not None]
        return channels + [f"{x.program.device} waits for {what()}" for x, what in asked]

    def waits_for_tensors(self) -> list[tuple[str, ChannelKey]]:
        """The channels on which tensors have to come before it can go on: (device that sends, channel)."""
        with self._lock:
            return [(_source(x), channel) for channel, x in self._waiting.items()]

    # --- waiting for other steps -----------------------------------------------------------------------------------

    def wait_for(self, request: Request, executor: Executor) -> bool:
        """Leave a request with the step; False when it is settled already, so that the executor need not pause."""
        with self._lock:
            over = self.is_over
            if not over:
                self._requests[executor] = request
        if over:
            request.cancel()
            return True
        if request.when_settled(lambda: self._runtime.resume(executor)):
            return True
        with self._lock:
            return self._requests.pop(executor, None) is None  # the step has ended, and cancelled it

    def answered(self, executor: Executor) -> Request | None:
        """The settled request for which an executor has been resumed; None when it has asked for nothing yet."""
        if not self._requests:
            return None
        with self._lock:
            return self._requests.pop(executor, None)

    @property
    def may_go_on(self) -> bool:
        """Whether something will still be heard of it though nothing of it runs: it is ending, or waits for another step."""
        return self.is_over or bool(self._requests) or any(b.waiter is not None for b in list(self._begun))

    # --- what runs beside the programs -----------------------------------------------------------------------------

    def begin(
        self, call: Call, inputs: Sequence[Any], device: str, noted: Callable[[Any], None] | None = None
    ) -> AsyncKernel[Executor]:
        """Have a call's kernel run beside the program of a device; `noted` is told the result as soon as it is there."""

        def ended(begun: AsyncKernel[Executor], result: Any, error: Exception | None) -> None:
            with self._lock:
                self._begun.pop(begun, None)
            if error is not None:
                self.fail(explained(error, call, device))
            elif noted is not None:
                noted(result)

        begun = AsyncKernel(
            f"{call.op} '{call.node}'",
            call.kernel,
            inputs,
            offload=self._runtime.offload,
            resume=self._runtime.resume,
            ended=ended,
        )
        with self._lock:
            if self.is_over:
                return begun
            self._begun[begun] = None
        if getattr(call.kernel, "returns_at_once", False):  # it must not overtake, nor be overtaken
            begun.run()
        else:
            begun.start()
        return begun

    def awaited(self, begun: AsyncKernel[Executor], executor: Executor) -> bool:
        """Whether what was begun has ended; if not, the executor goes on when it has."""
        return begun.awaited(executor)

    # --- the end ---------------------------------------------------------------------------------------------------

    def ended(self, fetched: Mapping[str, Any]) -> None:
        """One program has come to its end."""
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

    def abort(self, reason: str, code: str = "CANCELLED") -> None:
        """End the step because somebody else says so."""
        self._end(from_code(code, reason))

    def _end(self, outcome: Mapping[str, Any] | OpError) -> None:
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
            self._arrived.clear()
            self._waiting.clear()
            # Step and executors refer to each other: without this, arrays would stay until Python's cycle collector comes by.
            self._fetched = {}
            for executor in self._executors:
                executor.slots = []
            self._executors = []  # nor has the collector anything to do for them then
            requests, begun = self._requests, self._begun
            if requests or begun:
                self._requests, self._begun = {}, {}
        for request in requests.values():
            request.cancel()
        for beside in begun:
            beside.cancel()
        self._runtime.finish(self, outcome)


def _source(executor: Executor) -> str:
    now = executor.instructions[executor.counter]
    assert isinstance(now, Recv)
    return now.source
