"""Lowering: from the nodes of a partition to a program's instructions.

Every tensor gets a slot. Constants are put into their slots once, when the program is made. If a node takes a variable's value
rather than a reference, a read is inserted, so that the snapshot is taken exactly there.

Control flow mostly disappears: Enter, Exit, NextIteration, LoopCond and the Switches of a loop only rename slots. A loop becomes one
`Loop` instruction, and a node that may be dead a `Predicated` one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...graph.core.dtypes import DType
from ...graph.core.errors import AbortedError, InvalidArgumentError
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.core.opdef import OpDef, Trait
from ...graph.core.shape import text
from ...graph.resources.accumulator import RemoteAccumulator
from ...graph.resources.variable import VariableState
from ..backend import Backend
from ..fusion.epilogue import EpilogueKernel
from ..ir.fused_kernel import FusedKernel
from ..ir.partition import (
    AwaitNode,
    BeginLoop,
    EndLoop,
    LeaveUnless,
    PartitionGraph,
    PartitionStep,
    RecvTensor,
    RunPredicated,
    SendTensor,
    users_name,
)
from ..ir.program import (
    Await,
    Begin,
    Builtin,
    Call,
    Instruction,
    Loop,
    Predicated,
    Program,
    Read,
    Recv,
    Send,
    Wait,
    flattened,
    slots_set,
    slots_used,
)

_RENAMES = frozenset({"Enter", "RefEnter", "Exit", "NextIteration", "LoopCond"})
_SPECIAL = _RENAMES | {"Const", "Placeholder", "Switch"}  # ops that may not become a call

PLANNED = 10_000  # the most steps of a program that records the tensors of its slots, and names of operands for errors

ReaderOf = Callable[[Sequence[RecvTensor]], Callable[[], Sequence[Any]]]
"""Makes a function that reads published variables, from the receives that have one."""


def lower(
    graph: PartitionGraph,
    steps: Sequence[PartitionStep | FusedKernel],
    backend: Backend,
    reader_of: ReaderOf | None = None,
) -> Program:
    """Lower a partition to a program, which frees no slot yet, and whose kernels are not bound yet.

    Args:
        graph: the partition after the graph passes.
        steps: its steps, with fused kernels among them.
        backend: says by which family of kernels it computes each node and each fused kernel.
        reader_of: makes readers of published variables; None: there are none.

    Raises:
        InvalidArgumentError: a placeholder is needed and not fed.
    """
    lowering = _Lowering(backend, graph.needed_tokens, names_operands=len(steps) <= PLANNED)
    if AwaitNode in graph.kinds:
        lowering.asynchronous = {s.node: None for s in graph.steps if type(s) is AwaitNode}
    feeds = tuple((name, lowering.arriving_slot(tensor)) for name, tensor in graph.feeds)
    for step in steps:
        _LOWERED[type(step)](lowering, step)
    fetches = lowering.fetch(graph.fetches)
    if lowering.read and reader_of is not None:
        receives, slots = zip(*lowering.read, strict=True)
        lowering.instructions.insert(0, Read(reader_of(receives), receives, slots))
    unbounded = any(Trait.UNBOUNDED in op.traits for op in lowering.ops)
    return Program(
        graph.device, tuple(lowering.instructions), tuple(lowering.slots), feeds, fetches,
        tensors={slot: t for t, slot in lowering.slot_of.items()} | lowering.read_of if len(steps) <= PLANNED else None,
        is_bounded=not unbounded and BeginLoop not in graph.kinds,
    )  # fmt: skip


@dataclass(slots=True)
class _OpenLoop:
    """A loop that is being lowered; `around` is where its instruction will go."""

    begin: BeginLoop
    around: list[Instruction]
    starts: list[tuple[int, int]]
    counts: list[int]
    head: list[Instruction] = field(default_factory=list)
    test: int = -1
    condition: Tensor | None = None


class _Lowering:
    """A partly lowered program: its slots and instructions so far."""

    def __init__(self, backend: Backend, asked: frozenset[Node | int], *, names_operands: bool) -> None:
        self.backend = backend
        self.names_operands = names_operands
        self.needed_tokens = asked
        self.instructions: list[Instruction] = []
        self.slots: list[Any] = []
        self.slot_of: dict[Tensor, int] = {}
        self.read_of: dict[int, Tensor] = {}  # by slot, the variable whose value it holds
        self.values: set[int] = set()  # slots of reference tensors that hold a received value
        self.tokens: dict[Node | int, int] = {}  # slots that show whether a node, or a channel's message, is dead
        self.plain: dict[OpDef, bool] = {}  # whether nodes of an op always become a call
        self.ops: set[OpDef] = set()  # of calls
        self.predicated: set[Node] = set()
        self.loops: list[_OpenLoop] = []
        # Nodes that run asynchronously, and the instruction that awaits each.
        self.asynchronous: dict[Node, Await | None] = {}
        self.read: list[tuple[RecvTensor, int]] = []  # published variables, and the slots for their values
        self.reached: dict[str, int] = {}  # nodes that are variables of other tasks, and the slots for these

    def new_slot(self, tensor: Tensor | None, value: Any = None) -> int:
        self.slots.append(value)
        if tensor is not None:
            self.slot_of[tensor] = len(self.slots) - 1
        return len(self.slots) - 1

    def arriving_slot(self, tensor: Tensor) -> int:
        """A slot for a tensor from the client or another device: always a value, never a variable reference."""
        slot = self.new_slot(tensor)
        if tensor.dtype.is_ref:
            self.values.add(slot)
        return slot

    def run(self, node: Node) -> None:
        op = node.opdef
        if node.name in self.reached:  # a variable or accumulator of another task, looked up when the program started
            source, slot = self.reached[node.name], self.new_slot(node.outputs[0])
            self.instructions.append(Call(_REACHED, (source,), (slot,), (), node.name, node.type, node._origin))
            return
        plain = self.plain.get(op)
        if plain is None:
            plain = self.plain[op] = not (op.name in _SPECIAL or op.is_blocking)
        if plain:
            self.instructions.append(self._call(node))
        elif op.name == "Const":
            if node.outputs[0] not in self.slot_of:  # else it is fed
                self.new_slot(node.outputs[0], node.attrs["value"])
        elif op.name == "Placeholder":
            raise _not_fed(node)
        elif op.name in _RENAMES or self._is_switch_of_loop(node):
            self._rename(node)
        else:
            call = self._call(node)
            if node in self.asynchronous:  # an `Await` takes the results later
                run = self.new_slot(None)
                self.asynchronous[node] = Await(replace(call, work=_NOTHING, inputs=(run,)), (), -1)
                self.instructions.append(Begin(replace(call, outputs=(run,)), (), -1))
            else:
                self.instructions.append(Wait(call, (), -1) if op.is_blocking else call)

    def _call(self, node: Node) -> Call:
        op, slot_of, slots = node.opdef, self.slot_of, self.slots
        refs, values = op.ref_inputs, self.value_slot
        inputs = [slot_of[t] if not t.dtype.is_ref or i in refs else values(t) for i, t in enumerate(node.inputs)]
        self.ops.add(op)
        # A fed output keeps the fed value: the node may still run for its other outputs, whose result goes to a spare slot.
        outputs = []
        for t in node.outputs:
            outputs.append(len(slots))
            slot_of.setdefault(t, len(slots))
            slots.append(None)
        work, names = self.backend.choose(node), self.names_of(node.inputs)
        return Call(work, tuple(inputs), tuple(outputs), (), node.name, op.name, node._origin, operands=names)

    def names_of(self, tensors: Sequence[Tensor]) -> tuple[str, ...]:
        """The names of operands, for errors; of a large program none: they would take a sixth of its first step."""
        return tuple(map(users_name, tensors)) if self.names_operands else ()

    def await_node(self, step: AwaitNode) -> None:
        waits = self.asynchronous[step.node]
        assert waits is not None
        self.instructions.append(waits)

    def run_fused(self, group: FusedKernel) -> None:
        inputs = tuple([self.slot_of[t] for t in (*group.inputs, *group.shapes)])
        outputs = tuple([self.new_slot(t) for t in group.outputs])
        last, names = group.nodes[-1], tuple([n.name for n in group.nodes])
        work, taken = self.backend.choose(group), self.names_of(group.inputs)
        call = Call(work, inputs, outputs, (), last.name, "Fused", last._origin, names, operands=taken)
        if group.is_predicated:
            checks = [*(self.slot_of[t] for t in group.checks), *(self.tokens[a] for a in group.after)]
            self.instructions.append(Predicated(call, tuple(dict.fromkeys(checks)), -1))
        else:
            self.instructions.append(call)

    def value_slot(self, tensor: Tensor) -> int:
        """The slot with a tensor's value. For a variable reference, a read is inserted here."""
        slot = self.slot_of[tensor]
        if not tensor.dtype.is_ref or slot in self.values:
            return slot
        value = self.new_slot(None)
        self.read_of[value] = tensor
        read = Call(_READ, (slot,), (value,), (), tensor.op.name, "Read", tensor.op._origin)
        may_be_dead = tensor.op in self.predicated or tensor.op.opdef.name == "RefSwitch"
        self.instructions.append(Predicated(read, (slot,), -1) if may_be_dead else read)
        return value

    def fetch(self, fetches: Iterable[tuple[str, Tensor]]) -> tuple[tuple[str, int], ...]:
        """The slots of the fetches. If two fetches became one tensor, one is copied, so that each result is the user's own."""
        slots: list[tuple[str, int]] = []
        taken: set[int] = set()
        for name, tensor in fetches:
            slot = self.value_slot(tensor)
            if slot in taken:
                copied = self.new_slot(None)
                call = Call(_COPY, (slot,), (copied,), (), tensor.op.name, "Copy", tensor.op._origin)
                self.instructions.append(Predicated(call, (slot,), -1))
                slot = copied
            taken.add(slot)
            slots.append((name, slot))
        return tuple(slots)

    def send(self, step: SendTensor) -> None:
        slot = -1 if step.tensor is None else self.value_slot(step.tensor)
        if step.token is not None:
            slot = self.tokens[step.token]
        if step.tensor is not None and step.travels_as is not None:
            slot = self._cast(step.tensor, slot, step.tensor.dtype.base, self.new_slot(None), step.travels_as)
        self.instructions.append(Send(step.channel, slot, step.destination, ()))

    def recv(self, step: RecvTensor) -> None:
        what = users_name(step.tensor) if self.names_operands and step.tensor is not None else ""
        if step.tensor is not None and step.travels_as is not None:
            narrow = self.new_slot(None)
            self.instructions.append(Recv(step.channel, narrow, step.source, what=what))
            self._cast(step.tensor, narrow, step.travels_as, self.arriving_slot(step.tensor), step.tensor.dtype.base)
            return
        slot = -1 if step.tensor is None else self.arriving_slot(step.tensor)
        if step.reached is not None:
            what = step.reached.name
            slot = self.reached[step.reached.name] = self.new_slot(None)
        elif slot < 0 and step.channel in self.needed_tokens:
            slot = self.tokens[step.channel] = self.new_slot(None)
        if step.posted is not None:
            self.read.append((step, slot))
        self.instructions.append(Recv(step.channel, slot, step.source, step.posted is not None, what))

    def _cast(self, tensor: Tensor, source: int, given: DType, to: int, wanted: DType) -> int:
        """Put a tensor's value, which may be dead, into another slot as another type; returns that slot."""
        graph = Graph()
        x = graph.create("Placeholder", [], {"dtype": given, "shape": tensor.dims}, "x").outputs[0]
        cast = graph.create("Cast", [x], {"DstT": wanted}, "cast")
        call = Call(self.backend.choose(cast), (source,), (to,), (), tensor.op.name, "Cast", tensor.op._origin)
        self.instructions.append(Predicated(call, (source,), -1))
        return to

    # --- dead nodes ------------------------------------------------------------------------------------------------

    def run_predicated(self, step: RunPredicated) -> None:
        node = step.node
        self.predicated.add(node)
        waits = [self.tokens[a] for a in step.after]
        name = node.opdef.name
        if name == "Placeholder":
            raise _not_fed(node)
        if name == "Const":
            value, slot = node.attrs["value"], self.new_slot(node.outputs[0])
            call = Call(Builtin(lambda: value), (), (slot,), (), node.name, name, node._origin)
        elif (name in _RENAMES and not waits) or self._is_switch_of_loop(node):
            self._rename(node)
            self._forward_deadness(node)
            return
        elif name == "Merge":  # forwards a live input; it is dead if all inputs are
            call = self._call(node)
            self.instructions.append(Predicated(call, tuple(waits), -1) if waits else call)
            self._forward_deadness(node)
            return
        else:
            call = self._call(node)
        token = self._new_token(node)
        kind = Wait if node.opdef.is_blocking else Predicated
        self.instructions.append(kind(call, tuple(dict.fromkeys([*call.inputs, *waits])), token))

    def _new_token(self, node: Node) -> int:
        """A slot that will show whether a node is dead; -1 if no other node needs it."""
        if node not in self.needed_tokens:
            return -1
        token = self.tokens[node] = self.new_slot(None)
        return token

    def _forward_deadness(self, node: Node) -> None:
        """Give the nodes that need it a token that is dead if the node's first output is."""
        token = self._new_token(node)
        if token >= 0:
            call = Call(_NOTHING, (), (), (), node.name, node.opdef.name, node._origin)
            self.instructions.append(Predicated(call, (self.slot_of[node.outputs[0]],), token))

    # --- loops -----------------------------------------------------------------------------------------------------

    def _is_switch_of_loop(self, node: Node) -> bool:
        return bool(self.loops) and node.opdef.name == "Switch" and node.inputs[1] is self.loops[-1].condition

    def _rename(self, node: Node) -> None:
        """Give the node's outputs the slot of its (first) input."""
        source = node.inputs[0]
        slot = self.slot_of[source] if node.outputs[0].dtype.is_ref else self.value_slot(source)
        for t in node.outputs:
            self.slot_of.setdefault(t, slot)

    def begin_loop(self, step: BeginLoop) -> None:
        loop = _OpenLoop(step, self.instructions, [], [])
        for merge in step.merges:
            start = self.value_slot(merge.inputs[0])
            loop.starts.append((start, self.new_slot(merge.outputs[0])))
            loop.counts.append(self.new_slot(merge.outputs[1]))
        self.loops.append(loop)
        self.instructions = loop.head
        for merge in step.merges:
            self._forward_deadness(merge)

    def leave_unless(self, step: LeaveUnless) -> None:
        loop = self.loops[-1]
        loop.condition, loop.test = step.condition, self.slot_of[step.condition]
        self.instructions = []

    def end_loop(self, step: EndLoop) -> None:
        nexts = [self.value_slot(t) for t in step.nexts]
        loop = self.loops.pop()
        to = [slot for _, slot in loop.starts]
        made = Loop(
            loop.begin.name, tuple(loop.starts), tuple(loop.counts), tuple(loop.head), loop.test,
            tuple(self.instructions), tuple(zip(nexts, to, strict=True)), (), (),
        )  # fmt: skip
        self.instructions = loop.around
        self.instructions.append(made)


_LOWERED: dict[type, Callable[[_Lowering, Any], None]] = {
    Node: _Lowering.run,
    FusedKernel: _Lowering.run_fused,
    EpilogueKernel: _Lowering.run_fused,
    SendTensor: _Lowering.send,
    RecvTensor: _Lowering.recv,
    RunPredicated: _Lowering.run_predicated,
    AwaitNode: _Lowering.await_node,
    BeginLoop: _Lowering.begin_loop,
    LeaveUnless: _Lowering.leave_unless,
    EndLoop: _Lowering.end_loop,
}


def _reached(found: Any) -> VariableState | RemoteAccumulator:
    """A variable or accumulator of another task; AbortedError if a value came instead."""
    if type(found) is not VariableState and type(found) is not RemoteAccumulator:
        raise AbortedError.of(
            "The variable cannot be changed any more where this step found it: it was made anew or given another shape, or there is no "
            "room for it. Run again: then its own task changes it."
        )
    return found


def _own_copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) and value.flags.writeable else value


_READ, _REACHED, _COPY = Builtin(VariableState.read), Builtin(_reached), Builtin(_own_copy)
_NOTHING = Builtin(tuple)


def _not_fed(node: Node) -> InvalidArgumentError:
    (tensor,) = node.outputs
    return InvalidArgumentError(
        node, node,
        f"You must feed a value for placeholder tensor '{node.name}' with dtype {tensor.dtype.name} and "
        f"shape {text(tensor.dims)} "
        f"(created at {node.source}): session.run(..., feed_dict={{tensor: value}})",
    )  # fmt: skip


# --- liveness --------------------------------------------------------------------------------------------------------


def free_dead_slots(program: Program) -> Program:
    """Let each instruction free the slots that it uses last: all but constants and fetches."""
    constants = bytearray([v is not None for v in program.slots])
    let_go(program.instructions, _marked(constants + b"\1", (slot for _, slot in program.fetches)))
    return program


def let_go(instructions: Iterable[Instruction], used: bytearray, only: set[int] | None = None) -> None:
    """Free each slot at the instruction that uses it last (or makes it, if it has no use).

    `used`: whether each slot is used afterwards; this marks those that go here. Its last entry is for slot -1, which is none, and
    is set. `only`: the slots that may go at all (None: all).
    """
    for step in reversed(list(instructions)):
        if isinstance(step, (Recv, Read)):
            continue
        if type(step) is Loop:
            _let_go_inside(step, used)
        frees = []
        for slot in (*step.inputs, *step.outputs) if type(step) is Call else slots_used(step):
            if (only is None or slot in only) and not used[slot]:
                used[slot] = True
                frees.append(slot)
        if frees:
            (step.call if isinstance(step, Predicated) else step).frees = tuple(frees)


def _marked(used: bytearray, slots: Iterable[int]) -> bytearray:
    """A copy in which these slots are used, too."""
    used = used.copy()
    for slot in slots:
        used[slot] = True
    return used


def _let_go_inside(loop: Loop, used_after: bytearray) -> None:
    """Free slots inside a loop: those that one iteration makes, and those that its body is the last to use.

    The body may free a loop variable, since the next iteration sets it anew. Exits take it after the head has failed, when the body
    has not run. The head frees a slot that it makes only if neither the body nor Exits use it.
    """
    nexts = {s for s, _ in loop.nexts}
    of_head, of_body = ({i for step in flattened(part) for i in slots_set(step)} for part in (loop.head, loop.body))
    needed_again, variables = nexts | {loop.test}, {s for _, s in loop.starts}
    let_go(loop.body, _marked(bytearray(len(used_after)), {*needed_again, -1}), of_head | of_body | variables)
    needed_later = needed_again.union(*map(slots_used, loop.body))
    let_go(loop.head, _marked(used_after, needed_later), of_head)
    loop.lost = tuple(sorted(nexts & (of_head | of_body)))
