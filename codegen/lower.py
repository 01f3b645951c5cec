"""Lowering: from a unit's nodes to a program's instructions.

Every tensor gets a slot. Constants are put into their slots once, when the program is made. Where a node takes the value of a
variable rather than its place, a read is inserted, so that the snapshot is taken exactly there. Slots are let go after
their last use, so that memory returns as early as it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph.errors import InvalidArgumentError
from ..graph.node import Node, Tensor
from ..graph.shape import text
from ..graph.state import Context, VariableState
from .backends.base import Backend
from .program import Call, Instruction, Program, Recv, Send
from .unit import RecvTensor, SendTensor, Unit


def lower(unit: Unit, backend: Backend, context_of: Callable[[Node], Context]) -> Program:
    """Make the program for a unit.

    Args:
        unit: nodes in order, with sends, receives, feeds and fetches.
        backend: gives a kernel per node.
        context_of: the `Context` for a stateful node.

    Raises:
        InvalidArgumentError: a placeholder is needed and not fed.
        UnimplementedError: a node has no kernel on this backend.
    """
    lowering = _Lowering(backend, context_of)
    feeds = tuple((name, lowering.arriving_slot(tensor)) for name, tensor in unit.feeds)
    for step in unit.steps:
        if isinstance(step, Node):
            lowering.run(step)
        elif isinstance(step, SendTensor):
            lowering.send(step)
        else:
            lowering.recv(step)
    fetches = tuple((name, lowering.value_slot(tensor, "fetch")) for name, tensor in unit.fetches)
    kept = {slot for _, slot in fetches} | {i for i, v in enumerate(lowering.slots) if v is not None}
    _let_go(lowering.instructions, kept)
    return Program(unit.device, tuple(lowering.instructions), tuple(lowering.slots), feeds, fetches)


class _Lowering:
    """Slots and instructions so far."""

    def __init__(self, backend: Backend, context_of: Callable[[Node], Context]) -> None:
        self.backend = backend
        self.context_of = context_of
        self.instructions: list[Instruction] = []
        self.slots: list[Any] = []
        self.slot_of: dict[Tensor, int] = {}
        self.values: set[int] = set()  # slots of reference tensors that hold a value which came from elsewhere

    def new_slot(self, tensor: Tensor | None, value: Any = None) -> int:
        self.slots.append(value)
        if tensor is not None:
            self.slot_of[tensor] = len(self.slots) - 1
        return len(self.slots) - 1

    def arriving_slot(self, tensor: Tensor) -> int:
        """A slot for a tensor that the client or another device gives: always a value, never a place."""
        slot = self.new_slot(tensor)
        self.values.add(slot)
        return slot

    def run(self, node: Node) -> None:
        op = node.opdef
        if op.name == "Const":
            if node.outputs[0] not in self.slot_of:  # else it is fed
                self.new_slot(node.outputs[0], node.attrs["value"])
            return
        if op.name == "Placeholder":
            (tensor,) = node.outputs
            raise InvalidArgumentError(
                node, node,
                f"You must feed a value for placeholder tensor '{node.name}' with dtype {tensor.dtype.name} and shape {text(tensor.dims)} "
                f"(made at {node.source}): session.run(..., feed_dict={{tensor: value}})",
            )  # fmt: skip
        slot_of = self.slot_of
        inputs = tuple(
            [
                slot_of[t] if not t.dtype.is_ref or i in op.ref_inputs else self.value_slot(t, node.name)
                for i, t in enumerate(node.inputs)
            ]
        )
        kernel = self.backend.kernel(node, self.context_of(node) if op.is_stateful else None)
        # A fed output keeps the fed value: the node may still run for its other outputs, whose result goes to a spare slot.
        outputs = tuple([self.new_slot(None if t in slot_of else t) for t in node.outputs])
        self.instructions.append(Call(kernel, inputs, outputs, (), node.name, op.name, node._origin))

    def value_slot(self, tensor: Tensor, reader: str) -> int:
        """The slot with a tensor's value; for a variable's place, a read is inserted here."""
        slot = self.slot_of[tensor]
        if not tensor.dtype.is_ref or slot in self.values:
            return slot
        value = self.new_slot(None)
        self.instructions.append(Call(VariableState.read, (slot,), (value,), (), tensor.op.name, "Read", tensor.op._origin))
        return value

    def send(self, step: SendTensor) -> None:
        slot = -1 if step.tensor is None else self.value_slot(step.tensor, step.destination)
        self.instructions.append(Send(step.channel, slot, step.destination, ()))

    def recv(self, step: RecvTensor) -> None:
        slot = -1 if step.tensor is None else self.arriving_slot(step.tensor)
        self.instructions.append(Recv(step.channel, slot, step.source))


def _let_go(instructions: list[Instruction], kept: set[int]) -> None:
    """Let each slot go at the instruction that uses it last (or makes it, when nobody uses it)."""
    seen = kept
    for step in reversed(instructions):
        if isinstance(step, Recv):
            continue
        used = step.inputs + step.outputs if isinstance(step, Call) else (step.slot,)
        frees = [s for s in used if s not in seen and s >= 0]
        if frees:
            seen.update(frees)
            step.frees = tuple(dict.fromkeys(frees))
