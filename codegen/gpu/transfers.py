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
from functools import partial
from typing import Any

from ...graph.core.source_location import UNKNOWN
from ...graph.resources.variable import VariableState
from ..ir.nodes import HANDLES
from ..ir.program import Builtin, Call, Instruction, Loop, Program, Recv, Send
from ..target import GPU_SMALLEST_LEASE
from .driver.array import DeviceArray
from .driver.copies import HostCopy
from .driver.device import Device
from .driver.ipc import Lends, Outgoing, outgoing
from .families import HOST, WITHOUT_WAITING, family_of
from .residency import received

TO_DEVICE = "ToDevice"
"""The op of a step that copies a slot's value to the GPU."""

_WITHOUT_WORK = HANDLES | {"Identity"}


def to_host(value: Any) -> Any:
    """A value in host memory, after its copy has finished. A handle of a variable, which can be fetched, gives the variable's value.

    A lent array gives its lease, when the array is complete.
    """
    if type(value) is VariableState:
        value = value.read()
    if type(value) is HostCopy:  # the copy has been started
        return value.result()
    if type(value) is Outgoing:
        return value.wait()
    return value.device.to_host(value) if type(value) is DeviceArray else value


def start(value: Any, destination: str, lends: Lends | None) -> Any:
    """Lends a large array to the process of another GPU, if that process reads this one's memory; else starts its copy to the host."""
    if type(value) is VariableState:
        value = value.read()
    if type(value) is not DeviceArray or not value.nbytes:
        return to_host(value)
    may_lend = value.nbytes >= GPU_SMALLEST_LEASE and "/device:GPU:" in destination
    lease = outgoing(value, destination) if may_lend and lends and lends(destination) else None
    return lease or value.device.coming_to_host(value)


TO_HOST = Builtin(to_host)


def insert_transfers(program: Program, device: Device, peers: frozenset[str], lends: Lends | None = None) -> Program:
    """The program with a step for each transfer.

    Args:
        program: after lowering; no slot is freed yet.
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

    def leave(slot: int, out: int, what: str, work: Builtin = TO_HOST, op: str = "ToHost") -> Call:
        return Call(work, (slot,), (out,), (), what, op, UNKNOWN)

    def inside(instructions: Iterable[Instruction]) -> list[Instruction]:
        out: list[Instruction] = []
        waiting: list[Instruction] = []  # sends whose copies have begun
        for step in instructions:
            if isinstance(step, Send) and step.slot >= 0 and step.destination not in peers:
                coming, there = new_slot(), new_slot()
                what = f"to {step.destination}"
                begins = Builtin(partial(start, destination=step.destination, lends=lends))
                out += [*waiting, leave(step.slot, coming, what, begins)]
                waiting = [leave(coming, there, what, op="HasCome"), replace(step, slot=there)]
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
