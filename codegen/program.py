"""Programs: what a device runs for its part of a step.

A `Program` is a straight list of instructions over numbered slots; a slot holds one tensor. Running it walks no graph, looks up
no name and decides nothing: that was all done when it was lowered. Its instructions:

    Call   run a kernel on some slots, put the results into others, let go of slots that nobody needs any more
    Send   push a slot's tensor into a channel
    Recv   take a channel's tensor into a slot, or pause the program until it is there
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..graph.source import Origin, SourceLine, locate

Kernel: TypeAlias = Callable[..., Any]

# Instructions are not frozen, because a frozen dataclass costs four times as much to make, and a program may have a million of
# them. Nobody changes them after lowering.


@dataclass(slots=True, eq=False)
class Call:
    """Run a kernel. It returns one array when there is one output, else a tuple.

    `node`, `op` and `origin` (where the user wrote it) are for errors and traces.
    """

    kernel: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    node: str
    op: str
    origin: Origin

    @property
    def source(self) -> SourceLine:
        """The user's line that made the node."""
        return locate(self.origin)


@dataclass(slots=True, eq=False)
class Send:
    """Push a slot's tensor into a channel; slot -1 sends an empty message (a control edge)."""

    channel: int
    slot: int
    destination: str
    frees: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Recv:
    """Take a channel's tensor into a slot; slot -1 only waits (a control edge)."""

    channel: int
    slot: int
    source: str


Instruction: TypeAlias = Call | Send | Recv


@dataclass(frozen=True, slots=True)
class Program:
    """A device's compiled part of a step.

    Attributes:
        device: full device name.
        instructions: run from first to last.
        slots: what the slots hold before the first instruction: constants, or None.
        feeds: (name, slot) of values that the client gives.
        fetches: (name, slot) of values that the client gets.
    """

    device: str
    instructions: tuple[Instruction, ...]
    slots: tuple[Any, ...]
    feeds: tuple[tuple[str, int], ...]
    fetches: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        lines = [f"program for {self.device}: {len(self.instructions)} instructions, {len(self.slots)} slots"]
        lines += [f"  s{slot} = feed {name}" for name, slot in self.feeds]
        lines += [f"  s{i} = constant {_brief(v)}" for i, v in enumerate(self.slots) if v is not None]
        lines += [f"  {_line(step)}" for step in self.instructions]
        lines += [f"  fetch {name} = s{slot}" for name, slot in self.fetches]
        return "\n".join(lines)


def _line(step: Instruction) -> str:
    if isinstance(step, Call):
        outputs = ", ".join(f"s{i}" for i in step.outputs) or "-"
        inputs = ", ".join(f"s{i}" for i in step.inputs)
        text = f"{outputs} = {step.op}({inputs})  # {step.node}"
    elif isinstance(step, Send):
        text = f"send {f's{step.slot}' if step.slot >= 0 else 'control'} -> channel {step.channel} to {step.destination}"
    else:
        return f"{f's{step.slot}' if step.slot >= 0 else 'control'} = recv channel {step.channel} from {step.source}"
    return text + (f"  free {', '.join(f's{i}' for i in step.frees)}" if step.frees else "")


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", ())
    return f"{getattr(value, 'dtype', type(value).__name__)}{list(shape)}" if shape else repr(value)
