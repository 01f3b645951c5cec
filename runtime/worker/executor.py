"""The interpreter of a program. It suspends where it must wait, without holding a thread, and resumes from there.

Theory of operation. An `Executor` is an instruction counter and slots. It runs until its program ends, or until it comes to a Recv
whose tensor has not arrived. Then it registers with its step and returns, so no thread waits. When the tensor arrives, the step hands
the executor to a thread, which runs it from there.

In a loop, an executor has a stack of frames: the instruction after the loop, and the iteration. A tensor that is sent inside a loop
belongs to an iteration. Its channel key is the channel's number followed by the iterations, outermost first: `7@2@0`. So devices that
share a loop may be in different iterations, as far as data dependences allow.

An instruction that waits for another step (a dequeue) suspends its program in the same way: it leaves the request with the step, and
is resumed when the request is settled. If the step ends first, it cancels the request, which returns what the request holds
(`graph/resources/async_request.py`).

A kernel that runs asynchronously to its program (a collective) has an executor of its own, an `AsyncKernel`. Begin makes it, and the
program continues. Each piece of its work (the kernel, or what follows a settled request) is done once, by the first thread that reaches
it: a thread of the pool, or the program's thread when it comes to the Await. An Await takes the result from the step as a Recv does.

An exception of a kernel becomes an `OpError` of the matching class, with the node, the user's source line and the device in its text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Protocol, TypeAlias

import numpy as np

from ...codegen.gpu.driver.api import CudaError
from ...codegen.ir.program import (
    Await,
    Begin,
    Call,
    Instruction,
    Loop,
    NodeError,
    Predicated,
    Program,
    Read,
    Recv,
    Send,
    Wait,
)
from ...graph.core.errors import (
    InternalError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnimplementedError,
    UnknownError,
    invalid,
)
from ...graph.resources.async_request import AsyncResource, Request
from ...graph.resources.cancellation import Cancellation
from ...graph.resources.resource_manager import DEAD
from ..wire.messages import ChannelKey

# Errors that NumPy and Python functions raise, by what they mean to the user (TensorFlow's own table for py_func).
_MEANING: tuple[tuple[type[BaseException], type[OpError]], ...] = (
    (StopIteration, OutOfRangeError),
    (MemoryError, ResourceExhaustedError),
    (NotImplementedError, UnimplementedError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (IndexError, InvalidArgumentError),
    (ZeroDivisionError, InvalidArgumentError),
    (CudaError, InternalError),
)


def explained(e: Exception, instruction: Any, device: str, inputs: Sequence[Any] = ()) -> OpError:
    """The error of the matching class, with the node, the user's source line and the device in its text.

    `inputs`: the values that a kernel took. An error of Python or NumPy does not tell them, so their names, types and shapes follow it.
    """
    name, op, source = "", "", None
    operands: Sequence[str] = ()
    if isinstance(e, NodeError):
        name, op, source, operands, inputs = e.node.name, e.node.type, e.node.source, e.operands, e.inputs
        e = e.__cause__ if isinstance(e.__cause__, Exception) else e
    elif isinstance(instruction, Call):
        name, op, source, operands = instruction.node, instruction.op, instruction.source, instruction.operands
    if isinstance(e, OpError):
        kind, text = type(e), e.message
    else:
        kind = next((mine for theirs, mine in _MEANING if isinstance(e, theirs)), UnknownError)
        text = str(e).strip() if type(e) is ValueError and op and "PyFunc" not in op else f"{type(e).__name__}: {e}"
        taken = [(t + " " * bool(t), a) for t, a in zip_longest(operands, inputs, fillvalue="")][:8]
        known = [(i, t, a) for i, (t, a) in enumerate(taken) if isinstance(a, np.ndarray | np.generic)]
        text += "".join(f"\n  input {i}: {t}{a.dtype} {a.shape}" for i, t, a in known)
    if not name:
        return kind.of(f"{text}\n  on {device}")
    return kind(name, name, f"{text}\n  node '{name}' ({op}), created at {source}, on {device}")


Outcome: TypeAlias = Mapping[str, Any] | OpError
"""How a step or a part of it ends: the fetched values by name, or the error."""
Finish: TypeAlias = Callable[[Outcome], None]
"""Called once, with how it ended."""
ABSENT = object()
"""A step returns it for a tensor that has not arrived."""


class Step(Protocol):
    """The interface of a step that an executor uses. `TaskStep` (`step.py`) implements and documents it."""

    is_over: bool
    cancellation: Cancellation | None

    def take(self, channel: ChannelKey | AsyncKernel, executor: Executor) -> Any: ...
    def give(self, destination: str, channel: ChannelKey, value: Any, more: bool) -> None: ...
    def read(self, now: Read, slots: list[Any], device: str) -> None: ...
    def wait_for(self, request: Request, executor: Executor) -> bool: ...
    def answered(self, executor: Executor) -> Request | None: ...
    def begin(self, call: Call, inputs: Sequence[Any], device: str) -> AsyncKernel: ...
    def run_ready(self, kernel: AsyncKernel) -> None: ...
    def finished(self, kernel: AsyncKernel, result: Any) -> None: ...
    def ended(self, fetched: Mapping[str, Any]) -> None: ...
    def fail(self, error: OpError) -> None: ...


_FIRST, _LATER = np.int32(0), np.int32(1)
_thread = threading.local()


def run_calmly(work: Callable[[], None]) -> None:
    """Call a function while NumPy does not warn of floating-point numbers in this thread."""
    if getattr(_thread, "is_calm", False):
        work()
        return
    with np.errstate(all="ignore"):
        _thread.is_calm = True
        try:
            work()
        finally:
            _thread.is_calm = False


def ignore_numpy_warnings() -> None:
    """Disable NumPy's floating-point warnings in this runtime thread once, so that no program has to do it for each run."""
    np.seterr(all="ignore")
    _thread.is_calm = True


@dataclass(slots=True)
class _LoopFrame:
    """A running loop: the instruction to continue with after it, and its iteration."""

    loop: Loop
    around: tuple[Instruction, ...]
    at: int
    suffix: str
    iteration: int = 0
    in_body: bool = False


class Executor:
    """Runs one program of one step.

    Attributes:
        instructions: the instructions being run: the program's, or the head or body of a loop.
        counter: index of the instruction at which it continues.
        suffix: the iterations of the enclosing loops, which follow a channel's number.
    """

    __slots__ = ("counter", "instructions", "program", "rounds", "slots", "step", "suffix")

    def __init__(self, step: Step, program: Program) -> None:
        self.step = step
        self.program = program
        self.slots = list(program.slots)
        self.instructions = program.instructions
        self.counter = 0
        self.suffix = ""
        self.rounds: list[_LoopFrame] = []

    def feed(self, number: int, feeds: Mapping[str, Any]) -> None:
        """Store the feeds of a step in their slots. InternalError: a feed is missing."""
        for name, slot in self.program.feeds:
            if name not in feeds:
                raise InternalError.of(f"The feed '{name}' of step {number} did not come with it")
            self.slots[slot] = feeds[name]

    def run(self) -> None:
        """Run until the program ends, suspends or fails, and notify the step."""
        cancellation = self.step.cancellation
        if cancellation is None:
            run_calmly(self._run)
        else:
            cancellation.run(run_calmly, self._run)

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
                    result = None  # so that only the slot refers to it: the next kernel may reuse its buffer in place
                    for i in now.frees:
                        slots[i] = None
                elif type(now) is Recv:
                    if now.unless_read and slots[now.slot] is not None:
                        at += 1
                        continue
                    self.counter = at
                    value = step.take(f"{now.channel}{self.suffix}" if self.suffix else now.channel, self)
                    if value is ABSENT:
                        return
                    if now.slot >= 0:
                        slots[now.slot] = value
                elif type(now) is Send:
                    channel = f"{now.channel}{self.suffix}" if self.suffix else now.channel
                    step.give(now.destination, channel, slots[now.slot] if now.slot >= 0 else None, now.more)
                    for i in now.frees:
                        slots[i] = None
                elif type(now) is Predicated:
                    _run_predicated(now, slots)
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
                    kernel = slots[now.call.inputs[0]]
                    step.run_ready(kernel)
                    value = step.take(kernel, self)
                    if value is ABSENT:
                        return
                    _store(now, slots, value)
                    value = None
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
            failed = instructions[at] if at < end else None
            failed = failed.call if isinstance(failed, Predicated) else failed
            inputs = [slots[i] for i in failed.inputs] if isinstance(failed, Call) else ()
            step.fail(explained(e, failed, self.program.device, inputs))
            return
        self._end(fetched)

    def _end(self, fetched: Mapping[str, Any]) -> None:
        self.step.ended(fetched)

    def _run_waiting(self, now: Wait) -> bool:
        """Run a kernel that may return a request, or take the result of its request; False: the program must suspend."""
        step, slots, call = self.step, self.slots, now.call
        request = step.answered(self)
        if request is None:
            if now.checks and any(slots[i] is DEAD for i in now.checks):
                _run_predicated(now, slots)
                return True
            result = call.kernel(*[slots[i] for i in call.inputs])
            for i in call.frees:  # also while it waits
                slots[i] = None
        else:
            result = request.result()
        while isinstance(result, Request):  # one wait may lead to another
            if step.wait_for(result, self):
                return False
            result = result.result()
        _store(now, slots, result)
        return True

    def _begin_loop(self, loop: Loop, after: int) -> None:
        """Start the first iteration; after the loop, instruction `after` of the current ones follows."""
        slots = self.slots
        self.rounds.append(_LoopFrame(loop, self.instructions, after, self.suffix))
        for start, to in loop.starts:
            slots[to] = slots[start]
        for i in loop.counts:
            slots[i] = _FIRST
        self.suffix += "@0"
        self.instructions = loop.head

    def _end_of_part(self) -> int:
        """Continue after the end of a loop's head (with the body, or after the loop) or body (with the head); the new counter."""
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


class AsyncKernel(Executor):
    """Runs the kernel of a Begin, concurrently with its program. The step has its result, under this key."""

    __slots__ = ("call",)

    def __init__(self, step: Step, call: Call, inputs: Sequence[Any], device: str) -> None:
        self.call = call
        taken, result = tuple(range(len(inputs))), len(inputs)
        run = Wait(replace(call, inputs=taken, outputs=(result,), frees=taken), (), -1)
        super().__init__(step, Program(device, (run,), (None,) * (result + 1), (), (("", result),)))
        self.slots[:result] = inputs

    @property
    def what(self) -> str:
        """A description, for error texts and traces."""
        return f"{self.call.op} '{self.call.node}'"

    def _end(self, fetched: Mapping[str, Any]) -> None:
        result = fetched[""]
        self.slots.clear()
        self.step.finished(self, result)


def _run_predicated(now: Predicated, slots: list[Any]) -> None:
    call, count = now.call, len(now.call.outputs)
    if any(slots[i] is DEAD for i in now.checks):
        _store(now, slots, DEAD if count == 1 else (DEAD,) * count, token=DEAD)
    else:
        _store(now, slots, call.kernel(*[slots[i] for i in call.inputs]))


def _store(now: Predicated, slots: list[Any], result: Any, token: Any = None) -> None:
    """Store the result of an instruction's call and its token, and free what is not used any more."""
    call = now.call
    for i, value in zip(call.outputs, (result,) if len(call.outputs) == 1 else result, strict=True):
        slots[i] = value
    if now.token >= 0:
        slots[now.token] = token
    for i in call.frees:
        slots[i] = None


def _value(value: Any) -> Any:
    """A fetched value. For a reference to a variable (a fetched Assign), it is the variable's value at the end of the step."""
    if isinstance(value, np.ndarray | np.generic):
        return value  # as most are
    if value is DEAD:
        raise invalid("What is fetched has no value: it is computed in a branch that was not taken")
    if isinstance(value, AsyncResource):
        raise invalid(f"A handle cannot be fetched: {value} stays where it is")
    read = getattr(value, "read", None)
    return read() if read is not None else value
