"""What the code generator is given: a `PartitionGraph`, the part of one step that one device runs.

It is the partition in the form that lowering wants: nodes in one global order, with the places where tensors enter and leave
marked. A tensor is known by its `Tensor` object: the user's own when the unit runs in the process that built the graph, a
stand-in when the unit came in a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node, Tensor


@dataclass(slots=True, eq=False)  # not frozen: see codegen/ir/program.py
class SendTensor:
    """Hand a tensor to a channel as soon as it exists; None: an empty message for a control edge.

    `token`: the node, or the number of the channel, that says whether that message is dead; None: it never is.
    `travels_as`: the element type in which the tensor crosses, where that is not its own.
    `held`: whether the receiver takes something else from here first, so that this may wait for it.
    """

    channel: int
    tensor: Tensor | None
    destination: str
    token: Node | int | None = None
    travels_as: DType | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Posted:
    """A variable of another task, which can be read where it lies.

    Attributes:
        place: where it is, for those who read it.
        incarnation: of the process that has it.
        container, name: what it is there called.
        node, op, source: the node that reads it, and where the user made that: for errors.
    """

    place: tuple[int, ...]
    incarnation: int
    container: str
    name: str
    node: str
    op: str
    source: str


@dataclass(slots=True, eq=False)
class RecvTensor:
    """Wait for a channel's tensor; None: an empty message for a control edge. `travels_as`: as for `SendTensor`.

    `posted`: the variable whose value it is, which is read where it lies; nobody sends it unless that fails.
    `reached`: a node of this unit, a variable or accumulator of another task, which is changed where that is posted. A value that comes
    instead says that this cannot be.
    """

    channel: int
    tensor: Tensor | None
    source: str
    travels_as: DType | None = None
    posted: Posted | None = None
    reached: Node | None = None

    @property
    def dtype(self) -> DType:
        """The element type of what comes."""
        if self.reached is not None:
            dtype: DType = self.reached.attrs["dtype"]
            return dtype
        assert self.tensor is not None
        return self.tensor.dtype.base


@dataclass(slots=True, eq=False)
class RunPredicated:
    """Run a node that may be dead. `after`: nodes, and numbers of channels, that it waits for and that may be dead too."""

    node: Node
    after: tuple[Node | int, ...]


@dataclass(slots=True, eq=False)
class AwaitNode:
    """Wait here for a node that stands further up: there it only begins. Nobody takes its outputs before this."""

    node: Node


@dataclass(slots=True, eq=False)
class BeginLoop:
    """What follows, up to the matching `EndLoop`, runs again and again. `merges`: the loop variables that live on this device."""

    name: str
    merges: tuple[Node, ...]


@dataclass(slots=True, eq=False)
class LeaveUnless:
    """Leave the innermost loop here, unless this tensor, its LoopCond, is true."""

    condition: Tensor


@dataclass(slots=True, eq=False)
class EndLoop:
    """The end of the innermost loop. `nexts`: the next value of each loop variable of this device, in order."""

    nexts: tuple[Tensor, ...]


PartitionStep: TypeAlias = (
    Node | SendTensor | RecvTensor | RunPredicated | AwaitNode | BeginLoop | LeaveUnless | EndLoop
)
"""A node to run, or to wait for, one end of a channel, or a mark of control flow."""


@dataclass(frozen=True, slots=True)
class PartitionGraph:
    """One device's part of a step.

    Attributes:
        device: full device name.
        steps: in the global order that all devices of the step follow, so that no two can wait for each other.
        feeds: name and tensor of each value that the client gives.
        fetches: name and tensor of each value that the client gets.
    """

    device: str
    steps: tuple[PartitionStep, ...]
    feeds: tuple[tuple[str, Tensor], ...]
    fetches: tuple[tuple[str, Tensor], ...]

    def __str__(self) -> str:
        """The steps, one per line, as tests and people read them."""
        lines = [f"feed {name}" for name, _ in self.feeds]
        for step in self.steps:
            if isinstance(step, Node):
                lines.append(_line(step))
            elif isinstance(step, RunPredicated):
                lines.append(f"unless dead: {_line(step.node)}")
            elif isinstance(step, AwaitNode):
                lines.append(f"wait for {step.node.name}")
            else:
                what = ", ".join(t.name for t in inputs_of_step(step))
                lines.append(f"{type(step).__name__}({what})")
        return "\n".join(lines + [f"fetch {name} = {_short(t)}" for name, t in self.fetches])


def node_of(step: object) -> Node | None:
    """The node that a step runs in its place, if it runs one."""
    return step if isinstance(step, Node) else step.node if isinstance(step, RunPredicated) else None


def inputs_of_step(step: PartitionStep) -> Iterable[Tensor]:
    """The tensors that a step takes."""
    if isinstance(step, Node):
        return step.inputs
    if isinstance(step, SendTensor):
        return () if step.tensor is None else (step.tensor,)
    if isinstance(step, RunPredicated):
        return step.node.inputs
    if isinstance(step, BeginLoop):
        return [merge.inputs[0] for merge in step.merges]
    if isinstance(step, LeaveUnless):
        return (step.condition,)
    return step.nexts if isinstance(step, EndLoop) else ()


def _line(node: Node) -> str:
    if node.opdef.name == "Const":
        value = node.attrs["value"]
        return f"{node.name} = {value.tolist() if value.size <= 8 else f'{value.dtype}{list(value.shape)}'}"
    given = [_short(t) for t in node.inputs]
    given += [f"{k}={v.name if hasattr(v, 'name') else v}" for k, v in node.attrs.items()]
    return f"{node.name} = {node.opdef.name}({', '.join(given)})"


def _short(tensor: Tensor) -> str:
    return tensor.op.name if tensor.value_index == 0 else tensor.name
