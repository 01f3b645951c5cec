"""What a task records while it runs its part of a traced step.

Theory of operation. An untraced step has no overhead: its programs and its code do not change. For a traced step the
worker makes a `TracedStep` instead of a `TaskStep`. Its programs are copies whose kernels are wrapped in two clock reads. Its
rendezvous records what is sent, what arrives, and how long a program waited for it. A note is a tuple appended to a
list, which is atomic, so any thread may take notes. On a GPU each kernel is waited for; otherwise its time would be that of its launch.

Times are nanoseconds of this process's clock. Tasks of one machine share it. For others the client measures the offset
(`trace.py`). The notes are sent to the client as msgpack (`Notes`), whose types are checked before use.
"""

from __future__ import annotations

import dataclasses
import time
from threading import get_ident
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np

from ...codegen.ir.program import Begin, Call, Instruction, Kernel, Loop, Predicated, Program, one_by_one
from ...graph.core.errors import InternalError
from ..wire.messages import ChannelKey

clock = time.perf_counter_ns
"""The clock of all notes."""

MAX_NOTES = 250_000  # of each kind and task: a loop may run forever, and its trace must not fill the memory

T = TypeVar("T")
Row: TypeAlias = tuple[int, int, int, int, int]
"""A `KernelNote` with Python's identifier of the thread."""


class Offset(NamedTuple):
    """What to subtract from a task's times to get the client's, and the uncertainty; nanoseconds."""

    ns: int
    uncertainty_ns: int


SAME = Offset(0, 0)
"""The client's own clock."""


class CallNote(NamedTuple):
    """One instruction of a program, recorded once however often it runs."""

    device: str
    node: str
    op: str
    nodes: tuple[str, ...]


class KernelNote(NamedTuple):
    """One run of a kernel: number of the call, thread (0, 1, …), bytes of output."""

    call: int
    start: int
    finish: int
    thread: int
    bytes: int


class SendNote(NamedTuple):
    """A value was sent into a channel."""

    channel: ChannelKey
    at: int
    bytes: int


class ArrivalNote(NamedTuple):
    """A value has arrived from a channel."""

    channel: ChannelKey
    at: int


class WaitNote(NamedTuple):
    """A wait of a program: for a channel's value, or for a node's request that another step settles."""

    device: str
    what: str
    start: int
    finish: int


class Notes(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """All notes of one task about one step."""

    began: int = 0
    ended: int = 0
    calls: list[CallNote] = []
    kernels: list[KernelNote] = []
    sends: list[SendNote] = []
    arrivals: list[ArrivalNote] = []
    waits: list[WaitNote] = []

    def pack(self) -> bytes:
        """The notes for a message."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> Notes:
        """The inverse of `pack`.

        Raises:
            InternalError: the data is malformed.
        """
        try:
            notes = msgspec.msgpack.decode(data, type=cls)
            if any(not 0 <= k.call < len(notes.calls) for k in notes.kernels):
                raise ValueError("a kernel is none of the calls")
            return notes
        except (ValueError, msgspec.MsgspecError) as e:
            raise InternalError.of(f"Malformed trace in a message: {type(e).__name__}: {e}") from None


class Recorder:
    """Records the notes of one task's part of one step."""

    def __init__(self) -> None:
        self.notes = Notes(began=clock())
        self._kernels: list[Row] = []
        self._begun: dict[Call, int] = {}  # async call -> number of the call

    def instrumented(self, program: Program) -> Program:
        return dataclasses.replace(
            program, instructions=tuple([self._timed(i, program.device) for i in one_by_one(program.instructions)])
        )

    def _timed(self, step: Instruction, device: str) -> Instruction:
        if isinstance(step, Call):
            calls = self.notes.calls
            calls.append(CallNote(device, step.node, step.op, step.nodes))
            kernel = _timed_kernel(step.kernel, len(calls) - 1, self._kernels)
            # Written out: `dataclasses.replace` takes longer than most kernels.
            return Call(
                step.work, step.inputs, step.outputs, step.frees, step.node, step.op, step.origin, step.nodes, kernel
            )
        if isinstance(step, Begin):  # an async call: its time is that of its whole run
            begun = step.call
            self._begun[begun] = len(self.notes.calls)
            self.notes.calls.append(CallNote(device, begun.node, begun.op, begun.nodes))
            return step
        if isinstance(step, Predicated):
            call = self._timed(step.call, device)
            assert isinstance(call, Call)
            return dataclasses.replace(step, call=call)
        if isinstance(step, Loop):
            head, body = (tuple([self._timed(i, device) for i in part]) for part in (step.head, step.body))
            return dataclasses.replace(step, head=head, body=body)
        return step

    def sent(self, channel: ChannelKey, value: Any) -> None:
        _note(self.notes.sends, SendNote(channel, clock(), bytes_of(value)))

    def read(self, channel: ChannelKey, began: int, size: int) -> None:
        """A program has read a variable of another task, from `began` until now."""
        _note(self.notes.sends, SendNote(channel, began, size))
        if size:
            self.arrived(channel)

    def arrived(self, channel: ChannelKey) -> None:
        _note(self.notes.arrivals, ArrivalNote(channel, clock()))

    def ran_beside(self, call: Call, began: int, result: Any) -> None:
        """An async call, started at `began`, has its result. It counts as a thread of its own, since it moves between threads."""
        number = self._begun[call]
        _note(self._kernels, (number, began, clock(), -1 - number, bytes_of(result)))

    def waited(self, device: str, what: str, began: int) -> None:
        """A program on this device resumes after a wait since `began`."""
        _note(self.notes.waits, WaitNote(device, what, began, clock()))

    def finished(self) -> Notes:
        """The notes, after the task's part of the step has ended."""
        self.notes.ended = clock()
        threads: dict[int, int] = {}
        self.notes.kernels = [
            KernelNote(call, start, finish, threads.setdefault(thread, len(threads)), size)
            for call, start, finish, thread, size in self._kernels
        ]
        return self.notes


def _timed_kernel(kernel: Kernel, call: int, rows: list[Row]) -> Kernel:
    gpu = getattr(kernel, "device", None)  # set for kernels that only launch their work

    def timed(*inputs: Any) -> Any:
        began = clock()
        result = kernel(*inputs)
        if gpu is not None:
            gpu.synchronize()
        ended = clock()
        if len(rows) < MAX_NOTES:
            size = result.nbytes if type(result) is np.ndarray else bytes_of(result)
            rows.append((call, began, ended, get_ident(), size))
        return result

    return timed


def _note(notes: list[T], note: T) -> None:
    if len(notes) < MAX_NOTES:
        notes.append(note)


def bytes_of(value: Any) -> int:
    """The bytes of a value, or of several; 0 of a message without a value, such as that of a branch not taken."""
    if isinstance(value, tuple):
        return sum(map(bytes_of, value))
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return sum(len(x) for x in value.flat if isinstance(x, bytes))
    return int(getattr(value, "nbytes", 0))


@dataclasses.dataclass(slots=True)
class Gathered:
    """The notes of all tasks that a client has received of a traced step."""

    began: int = dataclasses.field(default_factory=clock)
    ended: int = 0
    epoch_ns: int = dataclasses.field(default_factory=time.time_ns)
    offsets: dict[str, Offset | None] = dataclasses.field(default_factory=dict)
    notes: dict[str, Notes] = dataclasses.field(default_factory=dict)

    def begin(self) -> None:
        """Start the step's time: earlier work only prepared the tracing."""
        self.began, self.epoch_ns = clock(), time.time_ns()

    def add(self, task: str, notes: Notes) -> None:
        self.notes[task] = notes
        self.ended = clock()
