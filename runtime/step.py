"""One step on one task: programs that pause and go on, and the rendezvous between them.

Theory of operation. A program is run by an `Execution`: an instruction counter and slots. It runs until it ends, or until it
comes to a Recv whose tensor is not there; then it just returns, leaving itself with the rendezvous, and no thread waits. When
the tensor is delivered, the rendezvous gives the execution back to be run on by whichever thread has time. So a step needs no
thread of its own, a small program runs in the thread that brought its message, and stopping a step means forgetting it.

All programs of a step follow one global order of nodes, so some execution can always go on: a step never waits for itself.

Nothing here knows of sockets, threads or clocks: the step is told events and calls `push`, `schedule` and `finish`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..codegen.program import Call, Program, Recv, Send
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

Push = Callable[[str, int, Any], None]
"""push(destination device, channel, value): send a tensor to another task."""


class Execution:
    """One program of one step: where it stands, and its slots."""

    __slots__ = ("counter", "program", "slots", "step")

    def __init__(self, step: TaskStep, program: Program) -> None:
        self.step = step
        self.program = program
        self.slots = list(program.slots)
        self.counter = 0

    def run(self) -> None:
        """Run until the program ends, waits, or fails; tells the step which."""
        step = self.step
        slots = self.slots
        instructions = self.program.instructions
        at = self.counter
        end = len(instructions)
        try:
            with np.errstate(all="ignore"):
                while at < end:
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
                        for i in now.frees:
                            slots[i] = None
                    elif type(now) is Recv:
                        self.counter = at
                        value = step.take(now.channel, self)
                        if value is _ABSENT:
                            return
                        if now.slot >= 0:
                            slots[now.slot] = value
                    else:
                        assert type(now) is Send
                        step.give(now.destination, now.channel, slots[now.slot] if now.slot >= 0 else _EMPTY)
                        for i in now.frees:
                            slots[i] = None
                    at += 1
            fetched = {name: _value(slots[slot]) for name, slot in self.program.fetches}
        except Exception as e:
            step.fail(_explained(e, instructions[at] if at < end else None, self.program.device))
            return
        step.ended(fetched)


def _value(value: Any) -> Any:
    """A fetched value. A variable's place (an Assign that was fetched) gives the value at the end of the step."""
    read = getattr(value, "read", None)
    return read() if read is not None else value


def _explained(e: Exception, instruction: Any, device: str) -> OpError:
    """The error of the right class, with the node, the user's line and the device in its text."""
    if isinstance(e, OpError):
        kind, text = type(e), e.message
    else:
        kind = next((mine for theirs, mine in _MEANING if isinstance(e, theirs)), UnknownError)
        text = f"{type(e).__name__}: {e}"
    if not isinstance(instruction, Call):
        return kind(None, None, f"{text}\n  on {device}")
    return kind(instruction.node, instruction.node, f"{text}\n  node '{instruction.node}' ({instruction.op}), made at {instruction.source}, on {device}")


class TaskStep:
    """Everything of one step that runs on one task.

    Args:
        number: the step's number, the same on all tasks.
        session: handle of the session it belongs to.
        programs: one per device of this task that takes part.
        feeds: name -> value.
        push: sends a tensor to another task.
        schedule: takes an execution that can go on, and has `run()` called on it, now or soon, by some thread.
        finish: told once, with the fetched values or the error.
    """

    def __init__(
        self,
        number: int,
        session: str,
        programs: Iterable[Program],
        feeds: Mapping[str, Any],
        *,
        push: Push,
        schedule: Callable[[Execution], None],
        finish: Callable[[TaskStep, Mapping[str, Any] | OpError], None],
    ) -> None:
        self.number = number
        self.session = session
        self.is_over = False
        self._push = push
        self._schedule = schedule
        self._finish = finish
        self._lock = threading.Lock()
        self._arrived: dict[int, Any] = {}
        self._waiting: dict[int, Execution] = {}
        self._fetched: dict[str, Any] = {}
        self._executions = [Execution(self, p) for p in programs]
        self._here = {x.program.device for x in self._executions}
        self._running = len(self._executions)
        for execution in self._executions:
            for name, slot in execution.program.feeds:
                if name not in feeds:
                    raise InternalError(None, None, f"The feed '{name}' of step {number} did not come with it")
                execution.slots[slot] = feeds[name]

    def start(self) -> None:
        """Set all programs going."""
        if not self._executions:
            self._end({})
        for execution in self._executions:
            self._schedule(execution)

    # --- the rendezvous --------------------------------------------------------------------------------------------

    def take(self, channel: int, execution: Execution) -> Any:
        """The channel's tensor if it is there; else remember who waits for it."""
        with self._lock:
            value = self._arrived.pop(channel, _ABSENT)
            if value is _ABSENT:
                self._waiting[channel] = execution
            return value

    def give(self, destination: str, channel: int, value: Any) -> None:
        """Pass a tensor on: to another device of this task, or out."""
        if destination in self._here:
            self.deliver(channel, value)
        else:
            self._push(destination, channel, value)

    def deliver(self, channel: int, value: Any) -> None:
        """A tensor has come for this step."""
        with self._lock:
            if self.is_over:
                return
            self._arrived[channel] = value
            execution = self._waiting.pop(channel, None)
        if execution is not None:
            self._schedule(execution)

    def waits_for(self) -> list[str]:
        """What keeps the step from going on, in words: for the error when it takes too long."""
        with self._lock:
            return [f"{x.program.device} waits for channel {c} from {_source(x, c)}" for c, x in self._waiting.items()]

    # --- the end ---------------------------------------------------------------------------------------------------

    def ended(self, fetched: Mapping[str, Any]) -> None:
        """One program has come to its end."""
        with self._lock:
            self._fetched.update(fetched)
            self._running -= 1
            last = self._running == 0
        if last:
            self._end(self._fetched)

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
        self._finish(self, outcome)


def _source(execution: Execution, channel: int) -> str:
    return next(i.source for i in execution.program.instructions if isinstance(i, Recv) and i.channel == channel)
