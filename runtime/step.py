"""One step on one task: programs that pause and go on, and the rendezvous between them.

Theory of operation. A program is run by an `Execution`: an instruction counter and slots. It runs until it ends, or until it
comes to a Recv whose tensor is not there; then it just returns, leaving itself with the rendezvous, and no thread waits. When
the tensor is delivered, the rendezvous gives the execution back to be run on by whichever thread has time. So a step needs no
thread of its own, a small program runs in the thread that brought its message, and stopping a step means forgetting it.

In a loop, an execution also remembers where it is to go on afterwards, and which iteration it is in. Tensors sent inside a
loop belong to an iteration, so their channel's number is followed by those of the iterations, outermost first: `7@2@0`. Devices
that share a loop may so be in different iterations, as far as data let them.

An instruction that waits for another step (a dequeue) pauses its program in the same way: it leaves the request with the step,
and is resumed when whatever settles the request says so. When the step ends first, the request is cancelled, which puts back
what it holds (`graph/requests.py`).

All programs of a step follow one global order of nodes, so some execution can always go on: a step never waits for itself.
What may wait for other steps stands as late in that order as it can, so that it holds up nothing that does not need it.

Nothing here knows of sockets, threads or clocks: the step is told events, and calls its `Shell`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..codegen.backends.base import NodeError
from ..codegen.program import Await, Begin, Call, Guarded, Instruction, Loop, Program, Read, Recv, Send, Wait
from ..codegen.unit import RecvTensor
from ..graph.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnimplementedError,
    UnknownError,
)
from ..graph.requests import Desk, Request
from ..graph.state import DEAD
from .begun import Begun

_ABSENT = object()
_EMPTY = None  # what a control message carries

# Errors that NumPy and Python functions raise, by what they mean to the user (TensorFlow's own table for py_func).
_MEANING: tuple[tuple[type[BaseException], type[OpError]], ...] = (
    (StopIteration, OutOfRangeError),
    (MemoryError, ResourceExhaustedError),
    (NotImplementedError, UnimplementedError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (IndexError, InvalidArgumentError),
    (ZeroDivisionError, InvalidArgumentError),
)

ChannelKey: TypeAlias = int | str
"""A channel's number; inside a loop, followed by those of the iterations."""


class Shell(Protocol):
    """What a step calls."""

    def push(self, destination: str, channel: ChannelKey, value: Any) -> None:
        """Send a tensor to a device of another task. The value may be `DEAD`."""
        ...

    def schedule(self, execution: Execution) -> None:
        """An execution can go on: have `run()` called on it, now or soon, by some thread."""
        ...

    def resume(self, execution: Execution) -> None:
        """The same of an execution whose request was settled, or whose kernel has ended, from whichever thread did that."""
        ...

    def aside(self, work: Callable[[], None]) -> None:
        """Do what may run beside the programs, in another thread if there is one."""
        ...

    def want(self, receives: Sequence[RecvTensor]) -> None:
        """Ask for variables of other tasks that could not be read; they come on their channels."""
        ...

    def finish(self, step: TaskStep, outcome: Mapping[str, Any] | OpError) -> None:
        """Told once, with the fetched values or the error."""
        ...


_FIRST, _LATER = np.int32(0), np.int32(1)

_thread = threading.local()


def calm_thread() -> None:
    """Have NumPy never warn in this thread, which is our own, so that programs that run in it need not ask for that each time."""
    np.seterr(all="ignore")
    _thread.is_calm = True


@dataclass(slots=True)
class _Round:
    """A loop that is being run: where to go on after it, and how far it is."""

    loop: Loop
    around: tuple[Instruction, ...]
    at: int
    suffix: str
    iteration: int = 0
    in_body: bool = False


class Execution:
    """One program of one step: where it stands, and its slots.

    Attributes:
        instructions: those that it is running: the program's, or a part of a loop.
        counter: where among them it goes on.
        suffix: what follows a channel's number: the iterations of the loops that it is in.
    """

    __slots__ = ("counter", "instructions", "program", "rounds", "slots", "step", "suffix")

    def __init__(self, step: TaskStep, program: Program) -> None:
        self.step = step
        self.program = program
        self.slots = list(program.slots)
        self.instructions = program.instructions
        self.counter = 0
        self.suffix = ""
        self.rounds: list[_Round] = []

    def feed(self, number: int, feeds: Mapping[str, Any]) -> None:
        """Put what was fed to a step in its place. InternalError: something is missing."""
        for name, slot in self.program.feeds:
            if name not in feeds:
                raise InternalError(None, None, f"The feed '{name}' of step {number} did not come with it")
            self.slots[slot] = feeds[name]

    def run(self) -> None:
        """Run until the program ends, waits, or fails; tells the step which."""
        if getattr(_thread, "is_calm", False):
            self._run()
        else:
            with np.errstate(all="ignore"):
                self._run()

    def _run(self) -> None:
        step = self.step
        slots = self.slots
        instructions = self.instructions
        at = self.counter
        end = len(instructions)
        try:
            while True:
                if at == end:
                    if not self.rounds:
                        break
                    at = self._end_of_part()
                    instructions = self.instructions
                    end = len(instructions)
                    if step.is_over:
                        return
                    continue
                if step.is_over:
                    return
                now = instructions[at]
                if type(now) is Call:
                    result = now.kernel(*[slots[i] for i in now.inputs])
                    outputs = now.outputs
                    if len(outputs) == 1:
                        slots[outputs[0]] = result
                    elif outputs:
                        for i, value in zip(outputs, result, strict=True):
                            slots[i] = value
                        value = None
                    result = None  # so that the slot alone holds it: the next kernel may write where it is
                    for i in now.frees:
                        slots[i] = None
                elif type(now) is Recv:
                    if now.unless_read and slots[now.slot] is not None:
                        at += 1
                        continue
                    self.counter = at
                    value = step.take(f"{now.channel}{self.suffix}" if self.suffix else now.channel, self)
                    if value is _ABSENT:
                        return
                    if now.slot >= 0:
                        slots[now.slot] = value
                elif type(now) is Send:
                    channel = f"{now.channel}{self.suffix}" if self.suffix else now.channel
                    step.give(now.destination, channel, slots[now.slot] if now.slot >= 0 else _EMPTY)
                    for i in now.frees:
                        slots[i] = None
                elif type(now) is Guarded:
                    _run_guarded(now, slots)
                elif type(now) is Wait:
                    self.counter = at
                    if not self._run_waiting(now):
                        return
                elif type(now) is Begin:
                    call = now.call
                    slots[call.outputs[0]] = step.begin(call, [slots[i] for i in call.inputs], self.program.device)
                    for i in call.frees:
                        slots[i] = None
                elif type(now) is Await:
                    self.counter = at
                    if not self._take_begun(now.call):
                        return
                elif type(now) is Read:
                    step.read(now, slots, self.program.device)
                else:
                    assert type(now) is Loop
                    self._begin_loop(now, at + 1)
                    instructions = self.instructions
                    at, end = 0, len(instructions)
                    continue
                at += 1
            fetches = self.program.fetches
            fetched = {name: _value(slots[slot]) for name, slot in fetches} if fetches else {}
        except Exception as e:
            step.fail(_explained(e, instructions[at] if at < end else None, self.program.device))
            return
        step.ended(fetched)

    def _run_waiting(self, now: Wait) -> bool:
        """Run a kernel that may answer later, or take its answer; False when the program must pause."""
        step, slots, call = self.step, self.slots, now.call
        request = step.answered(self)
        if request is None:
            if now.checks and any(slots[i] is DEAD for i in now.checks):
                _run_guarded(now, slots)
                return True
            result = call.kernel(*[slots[i] for i in call.inputs])
        else:
            result = request.result()
        while isinstance(result, Request):  # one wait may lead to another
            if step.wait_for(result, self):
                return False
            result = result.result()
        for i, value in zip(call.outputs, (result,) if len(call.outputs) == 1 else result, strict=True):
            slots[i] = value
        if now.token >= 0:
            slots[now.token] = None
        for i in call.frees:
            slots[i] = None
        return True

    def _take_begun(self, call: Call) -> bool:
        """Take the result of what was begun; False when the program must pause."""
        slots = self.slots
        begun = slots[call.inputs[0]]
        if not self.step.awaited(begun, self):
            return False
        result = begun.result()
        if begun.error is not None:
            return False  # the step has failed with it
        for i, value in zip(call.outputs, (result,) if len(call.outputs) == 1 else result, strict=True):
            slots[i] = value
        for i in call.frees:
            slots[i] = None
        return True

    def _begin_loop(self, loop: Loop, after: int) -> None:
        """Start the first iteration; the loop's end leads to instruction `after` of those that run now."""
        slots = self.slots
        self.rounds.append(_Round(loop, self.instructions, after, self.suffix))
        for start, to in loop.starts:
            slots[to] = slots[start]
        for i in loop.counts:
            slots[i] = _FIRST
        self.suffix += "@0"
        self.instructions = loop.head

    def _end_of_part(self) -> int:
        """From the end of a loop's head to its body or out of it, from the end of its body to its head; gives the counter."""
        slots = self.slots
        now = self.rounds[-1]
        loop = now.loop
        if now.in_body:
            values = [slots[i] for i, _ in loop.nexts]
            for i in loop.lost:
                slots[i] = None
            for (_, to), value in zip(loop.nexts, values, strict=True):
                slots[to] = value
            for i in loop.counts:
                slots[i] = _LATER
            now.iteration += 1
            now.in_body = False
            self.suffix = f"{now.suffix}@{now.iteration}"
            self.instructions = loop.head
            return 0
        again = slots[loop.test]
        if again is not DEAD and again:
            now.in_body = True
            self.instructions = loop.body
            return 0
        if again is DEAD:
            for _, to in loop.starts:
                slots[to] = DEAD
        for i in loop.frees:
            slots[i] = None
        self.rounds.pop()
        self.suffix = now.suffix
        self.instructions = now.around
        return now.at


def _run_guarded(now: Guarded, slots: list[Any]) -> None:
    call = now.call
    dead = any(slots[i] is DEAD for i in now.checks)
    if dead:
        for i in call.outputs:
            slots[i] = DEAD
    else:
        result = call.kernel(*[slots[i] for i in call.inputs])
        for i, value in zip(call.outputs, (result,) if len(call.outputs) == 1 else result, strict=True):
            slots[i] = value
    if now.token >= 0:
        slots[now.token] = DEAD if dead else None
    for i in call.frees:
        slots[i] = None


def _value(value: Any) -> Any:
    """A fetched value. A variable's place (an Assign that was fetched) gives the value at the end of the step."""
    if isinstance(value, np.ndarray | np.generic):
        return value  # as most are
    if value is DEAD:
        raise InvalidArgumentError(
            None, None, "What is fetched has no value: it is made in a branch that was not taken"
        )
    if isinstance(value, Desk):
        raise InvalidArgumentError(None, None, f"A handle cannot be fetched: {value} stays where it is")
    read = getattr(value, "read", None)
    return read() if read is not None else value


def _explained(e: Exception, instruction: Any, device: str) -> OpError:
    """The error of the right class, with the node, the user's line and the device in its text."""
    fused = e.node if isinstance(e, NodeError) else None
    if isinstance(e, NodeError):
        e = e.__cause__ if isinstance(e.__cause__, Exception) else e
    if isinstance(e, OpError):
        kind, text = type(e), e.message
    else:
        kind = next((mine for theirs, mine in _MEANING if isinstance(e, theirs)), UnknownError)
        text = f"{type(e).__name__}: {e}"
    if isinstance(instruction, Guarded):
        instruction = instruction.call
    if fused is not None:
        return kind(
            fused.name, fused.name, f"{text}\n  node '{fused.name}' ({fused.type}), made at {fused.source}, on {device}"
        )
    if not isinstance(instruction, Call):
        return kind(None, None, f"{text}\n  on {device}")
    return kind(
        instruction.node,
        instruction.node,
        f"{text}\n  node '{instruction.node}' ({instruction.op}), made at {instruction.source}, on {device}",
    )


class TaskStep:
    """Everything of one step that runs on one task.

    Args:
        number: the step's number, the same on all tasks.
        session: handle of the session it belongs to.
        programs: one per device of this task that takes part.
        feeds: name -> value.
        shell: what it calls.
        arrived: tensors that have come already; the step's from now on.
    """

    __slots__ = (
        "__weakref__", "_arrived", "_begun", "_executions", "_fetched", "_lock", "_programs", "_requests", "_running", "_shell",
        "_waiting", "is_over", "number", "session",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        session: str,
        programs: Sequence[Program],
        feeds: Mapping[str, Any],
        shell: Shell,
        arrived: dict[ChannelKey, Any] | None = None,
    ) -> None:
        self.number = number
        self.session = session
        self.is_over = False
        self._shell = shell
        self._programs = programs
        self._running = len(programs)
        self._lock = threading.Lock()
        self._arrived: dict[ChannelKey, Any] = {} if arrived is None else arrived
        self._waiting: dict[ChannelKey, Execution] = {}
        self._requests: dict[Execution, Request] = {}  # what executions have asked of resources
        self._begun: dict[Begun[Execution], None] = {}  # what runs beside the programs
        self._fetched: dict[str, Any] = {}
        self._executions: list[Execution] = []
        for program in programs:
            execution = Execution(self, program)
            self._executions.append(execution)
            execution.feed(number, feeds)

    def start(self) -> None:
        """Set all programs going."""
        if not self._executions:
            self._end({})
        for execution in self._executions:
            self._shell.schedule(execution)

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
            self._shell.want(missing)

    # --- the rendezvous --------------------------------------------------------------------------------------------

    def take(self, channel: ChannelKey, execution: Execution) -> Any:
        """The channel's tensor if it is there; else remember who waits for it."""
        value = self._arrived.pop(channel, _ABSENT)  # nobody else takes it, so this needs no lock
        if value is _ABSENT:
            with self._lock:
                value = self._arrived.pop(channel, _ABSENT)
                if value is _ABSENT:
                    self._waiting[channel] = execution
        return value

    def give(self, destination: str, channel: ChannelKey, value: Any) -> None:
        """Pass a tensor on: to another device of this task, or out."""
        for program in self._programs:
            if program.device == destination:
                self.deliver(channel, value)
                return
        self._shell.push(destination, channel, value)

    def deliver(self, channel: ChannelKey, value: Any) -> None:
        """A tensor has come for this step."""
        with self._lock:
            if self.is_over:
                return
            self._arrived[channel] = value
            execution = self._waiting.pop(channel, None)
        if execution is not None:
            self._shell.schedule(execution)

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
        for execution in resumed:
            self._shell.schedule(execution)

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

    def wait_for(self, request: Request, execution: Execution) -> bool:
        """Leave a request with the step; False when it is settled already, so that the execution need not pause."""
        with self._lock:
            over = self.is_over
            if not over:
                self._requests[execution] = request
        if over:
            request.cancel()
            return True
        if request.when_settled(lambda: self._shell.resume(execution)):
            return True
        with self._lock:
            return self._requests.pop(execution, None) is None  # the step has ended, and cancelled it

    def answered(self, execution: Execution) -> Request | None:
        """The settled request for which an execution has been resumed; None when it has asked for nothing yet."""
        if not self._requests:
            return None
        with self._lock:
            return self._requests.pop(execution, None)

    @property
    def may_go_on(self) -> bool:
        """Whether something will still be heard of it though nothing of it runs: it is ending, or waits for another step."""
        return self.is_over or bool(self._requests) or any(b.waiter is not None for b in list(self._begun))

    # --- what runs beside the programs -----------------------------------------------------------------------------

    def begin(
        self, call: Call, inputs: Sequence[Any], device: str, noted: Callable[[Any], None] | None = None
    ) -> Begun[Execution]:
        """Have a call's kernel run beside the program of a device; `noted` is told the result as soon as it is there."""

        def ended(begun: Begun[Execution], result: Any, error: Exception | None) -> None:
            with self._lock:
                self._begun.pop(begun, None)
            if error is not None:
                self.fail(_explained(error, call, device))
            elif noted is not None:
                noted(result)

        begun = Begun(
            f"{call.op} '{call.node}'",
            call.kernel,
            inputs,
            aside=self._shell.aside,
            resume=self._shell.resume,
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

    def awaited(self, begun: Begun[Execution], execution: Execution) -> bool:
        """Whether what was begun has ended; if not, the execution goes on when it has."""
        return begun.awaited(execution)

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

    def abort(self, reason: str) -> None:
        """End the step because somebody else says so."""
        self._end(CancelledError(None, None, reason))

    def _end(self, outcome: Mapping[str, Any] | OpError) -> None:
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
            self._arrived.clear()
            self._waiting.clear()
            # Step and executions refer to each other: without this, arrays would stay until Python's cycle collector comes by.
            self._fetched = {}
            for execution in self._executions:
                execution.slots = []
            self._executions = []  # nor has the collector anything to do for them then
            requests, begun = self._requests, self._begun
            if requests or begun:
                self._requests, self._begun = {}, {}
        for request in requests.values():
            request.cancel()
        for beside in begun:
            beside.cancel()
        self._shell.finish(self, outcome)


def _source(execution: Execution) -> str:
    now = execution.instructions[execution.counter]
    assert isinstance(now, Recv)
    return now.source
