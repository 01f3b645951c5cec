"""Pass: inserts the copies between a GPU and everything else as steps of the program.

Programs of GPUs keep tensors in GPU memory. Clients, messages and CPUs do not. So each feed and each received tensor passes a step
`ToDevice`, and each fetch and each sent tensor a step `ToHost`. Among the GPUs of one task, tensors go from memory to memory, and
only the receiving side has a step. To a GPU of another process that reads this one's memory, a large tensor is lent (`driver/ipc.py`).

The copy of a sent tensor starts where the tensor is made, and is waited for after the kernels that follow have been launched: the two
overlap. No send moves past a receive, another send, or anything that may have to wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...graph.core.source_location import UNKNOWN
from ...graph.resources.variable import VariableState
from ..ir.nodes import HANDLES
from ..ir.program import Builtin, Call, Instruction, Loop, Program, Recv, Send
from .driver.array import DeviceArray
from .driver.copies import HostCopy
from .driver.device import Device
from .driver.ipc import LEAST_BYTES, Lends, Outgoing, outgoing
from .families import HOST, WITHOUT_WAITING, family_of
from .residency import received

TO_DEVICE = "ToDevice"
"""The op of a step that brings a value to the GPU, and puts it where it was."""

_WITHOUT_WORK = HANDLES | {"Identity"}


def to_host(value: Any) -> Any:
    """A value in host memory, as soon as it is there; of a variable's handle, which can be fetched, the variable's value."""
    if type(value) is VariableState:
        value = value.read()
    if type(value) is HostCopy:  # the copy has been started
        return value.result()
    return value.device.to_host(value) if type(value) is DeviceArray else value


def start_to_host(value: Any) -> Any:
    """Starts the copy of a value to host memory."""
    if type(value) is VariableState:
        value = value.read()
    return value.device.coming_to_host(value) if type(value) is DeviceArray and value.nbytes else to_host(value)


def start_or_lend(value: Any, destination: str, lends: Lends) -> Any:
    """Lends a large array to the process of another GPU, if that process reads this one's memory; else starts its copy to the host."""
    if type(value) is DeviceArray and value.nbytes >= LEAST_BYTES and lends(destination):
        lent = outgoing(value, destination)
        if lent is not None:
            return lent
    return start_to_host(value)


def wait_for_host(value: Any) -> Any:
    """Waits for a copy to host memory, or until a lent array is complete."""
    return value.wait() if type(value) is Outgoing else to_host(value)


TO_HOST, _START, _WAIT = Builtin(to_host), Builtin(start_to_host), Builtin(wait_for_host)


def insert_transfers(program: Program, device: Device, peers: frozenset[str], lends: Lends | None = None) -> Program:
    """The program with a step for each transfer.

    Args:
        program: as it was lowered.
        device: the GPU that runs it.
        peers: names of devices that take tensors in GPU memory.
        lends: which GPUs of other tasks read this one's memory; None: none.
    """
    slots = list(program.slots)

    def new_slot() -> int:
        slots.append(None)
        return len(slots) - 1

    def arrive(slot: int, what: str) -> Call:
        return Call(Builtin(lambda value: received(device, value)), (slot,), (slot,), (), what, TO_DEVICE, UNKNOWN)

    def leave(slot: int, out: int, what: str, work: Builtin = TO_HOST, frees: tuple[int, ...] = ()) -> Call:
        return Call(work, (slot,), (out,), frees, what, "ToHost", UNKNOWN)

    def start(destination: str) -> Builtin:
        """What starts a send to a device."""
        if lends is None or "/device:GPU:" not in destination:
            return _START
        return Builtin(lambda value: start_or_lend(value, destination, lends))

    def inside(instructions: Iterable[Instruction]) -> list[Instruction]:
        out: list[Instruction] = []
        waiting: list[Instruction] = []  # sends whose copies have begun
        for step in instructions:
            if isinstance(step, Send) and step.slot >= 0 and step.destination not in peers:
                coming, there = new_slot(), new_slot()
                what = f"to {step.destination}"
                out += [*waiting, leave(step.slot, coming, what, start(step.destination), step.frees)]
                waiting = [
                    Call(_WAIT, (coming,), (there,), (coming,), what, "HasCome", UNKNOWN),
                    replace(step, slot=there, frees=(there,)),
                ]
                continue
            if not (isinstance(step, Call) and (family_of(step) in WITHOUT_WAITING or step.op in _WITHOUT_WORK)):
                out += waiting
                waiting = []
            if isinstance(step, Recv) and step.slot >= 0:
                out += [step, arrive(step.slot, f"from {step.source}")]
            elif isinstance(step, Call) and family_of(step) == HOST:
                out.append(replace(step, op=f"{step.op} (on the host)"))
            elif isinstance(step, Loop):
                out.append(step.with_parts(inside))
            else:
                out.append(step)
        return out + waiting

    steps = [*(arrive(slot, name) for name, slot in program.feeds), *inside(program.instructions)]
    fetches = tuple([(name, new_slot()) for name, _ in program.fetches])
    steps += [leave(slot, out, name) for (name, slot), (_, out) in zip(program.fetches, fetches, strict=True)]
    return replace(program, instructions=tuple(steps), slots=tuple(slots), fetches=fetches)
