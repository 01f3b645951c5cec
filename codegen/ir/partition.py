"""The input of the code generator: a `PartitionGraph`, the part of one step that one device runs.

Its nodes are in one global order, with explicit steps where tensors enter and leave. A tensor is identified by its `Tensor` object:
the user's own if the partition runs in the process that built the graph, a stand-in if the partition came in a message.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node, Tensor


def stand_in(number: int, tensor: Tensor) -> str:
    """The name of the placeholder that stands for a tensor from outside in a partition that travels."""
    return f"in/{number}/{tensor.value_index}/{tensor.op.name}"


def users_name(tensor: Tensor) -> str:
    """The name of a tensor in the user's graph, also of one that a `stand_in` stands for."""
    name = tensor.op.name
    if tensor.op.type == "Placeholder" and name.startswith("in/") and (found := _STAND_IN.fullmatch(name)):
        return f"{found[2]}:{found[1]}"
    return tensor.name


_STAND_IN = re.compile(r"in/\d+/(\d+)/(.+)")


@dataclass(slots=True, eq=False)  # not frozen: see codegen/ir/program.py
class SendTensor:
    """Send a tensor on a channel as soon as it exists; None: an empty message for a control edge.

    `token`: the node, or the number of the channel, that decides whether that message is dead; None: it never is.
    `travels_as`: the element type on the wire, if it is not the tensor's own.
    """

    channel: int
    tensor: Tensor | None
    destination: str
    token: Node | int | None = None
    travels_as: DType | None = None


@dataclass(frozen=True, slots=True)
class Posted:
    """A published variable of another task, which is read in place.

    Attributes:
        place: its location, for the reader.
        incarnation: of the process that holds it.
        container, name: its container and name there.
        node, op, source: the node that reads it, and the user's line that made the node, for errors.
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

    `posted`: the published variable with the value, which is read in place. The owner sends the value only if that fails.
    `reached`: a node of this partition, a variable or accumulator of another task, which is changed in place if it is published. If a value
    comes instead, this is not possible.
    """

    channel: int
    tensor: Tensor | None
    source: str
    travels_as: DType | None = None
    posted: Posted | None = None
    reached: Node | None = None

    @property
    def dtype(self) -> DType:
        """The element type of the received message."""
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
    """Wait here for a node that starts asynchronously at an earlier step. No step before this one takes its outputs."""

    node: Node


@dataclass(slots=True, eq=False)
class BeginLoop:
    """Starts a loop: the steps up to the matching `EndLoop` repeat. `merges`: the loop variables that live on this device."""

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


@dataclass(frozen=True)  # no slots: what is cached lives in the instance
class PartitionGraph:
    """One device's part of a step.

    Attributes:
        device: full device name.
        steps: in the global order that all devices of the step follow, so that they cannot deadlock.
        feeds: name and tensor of each value that the client gives.
        fetches: name and tensor of each value that the client gets.
    """

    device: str
    steps: tuple[PartitionStep, ...]
    feeds: tuple[tuple[str, Tensor], ...]
    fetches: tuple[tuple[str, Tensor], ...]

    @cached_property
    def nodes(self) -> Sequence[Node]:
        """The nodes that it runs, in order."""
        nodes = [s if type(s) is Node else s.node if type(s) is RunPredicated else None for s in self.steps]
        return [node for node in nodes if node is not None]

    @cached_property
    def ops(self) -> frozenset[str]:
        """The types of its nodes: most passes see by them that there is nothing to do."""
        return frozenset({node.opdef.name for node in self.nodes})

    @cached_property
    def kinds(self) -> frozenset[type]:
        """The types of its steps."""
        return frozenset(map(type, self.steps))

    @cached_property
    def needed_tokens(self) -> frozenset[Node | int]:
        """The nodes and channels for which other steps need to know whether they are dead."""
        waited = {a for step in self.steps if type(step) is RunPredicated for a in step.after}
        return frozenset(waited | {s.token for s in self.steps if type(s) is SendTensor and s.token is not None})

    @cached_property
    def sends_away(self) -> bool:
        """Whether it sends to other tasks."""
        destinations = {step.destination for step in self.steps if type(step) is SendTensor}
        return len({name.partition("/device:")[0] for name in (self.device, *destinations)}) > 1

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
    """The node that a step runs, if it runs one."""
    return step if type(step) is Node else step.node if type(step) is RunPredicated else None


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


# --- which nodes are dead together -----------------------------------------------------------------------------------
# A node under a `cond` is dead if any of its inputs or control inputs is dead. So deadness starts at the outputs of Switches and
# propagates down to Merges. A node's predicate is a set of *sources*, any of which may be dead:
#
#     an output of a Switch       its condition and side: all Switches of one condition are dead together on one side
#     the output of a Merge       the Merge: unlike other ops, it is dead only if all of its inputs are
#     a received tensor           the channel: the sending device decides
#
# Two nodes with the same set are dead together for every value of the conditions, and may share a kernel. Different sets may still be
# equivalent; then there are two kernels where one would do.


Predicate: TypeAlias = frozenset[Hashable]

NONE: Predicate = frozenset()
"""Of a node that always runs."""


class Predicates:
    """Finds the predicate of each node that may be dead. Steps are visited in order."""

    def __init__(self) -> None:
        self._of_tensor: dict[Tensor, Predicate] = {}
        self._of_waited: dict[Node | int, Predicate] = {}

    def visit(self, step: PartitionStep) -> Predicate:
        """Visit the next step. Returns the predicate of its node."""
        if isinstance(step, Node):
            return self._made(step, NONE) if step.opdef.name in ("Switch", "RefSwitch") else NONE
        if isinstance(step, RecvTensor):
            # Only its consumers show whether it can be dead: a plain node takes it only if it cannot.
            self._of_waited[step.channel] = frozenset([("channel", step.channel)])
            if step.tensor is not None:
                self._of_tensor[step.tensor] = self._of_waited[step.channel]
        elif isinstance(step, BeginLoop):
            for merge in step.merges:
                self._give(merge, self._of_tensor.get(merge.inputs[0], NONE))
        elif isinstance(step, RunPredicated):
            found = [self._of_tensor.get(t, NONE) for t in step.node.inputs]
            found += [self._of_waited.get(a, frozenset([("node", a)])) for a in step.after]
            sources = NONE.union(*found)
            if step.node.type in ("Merge", "RefMerge") or not sources:
                sources = frozenset([("node", step.node)])
            self._of_waited[step.node] = sources
            return self._made(step.node, sources)
        return NONE

    def _made(self, node: Node, sources: Predicate) -> Predicate:
        if node.type in ("Switch", "RefSwitch"):
            for side, t in enumerate(node.outputs):
                self._of_tensor[t] = sources | {("side", _condition(node.inputs[1]), side)}
        else:
            self._give(node, sources)
        return sources

    def _give(self, node: Node, sources: Predicate) -> None:
        if sources:
            for t in node.outputs:
                self._of_tensor[t] = sources


def _condition(pred: Tensor) -> Tensor:
    """The tensor that a condition is a copy of: `cond` makes copies for its Switches."""
    while pred.op.type == "Identity" and not pred.op.inputs[0].dtype.is_ref:
        pred = pred.op.inputs[0]
    return pred
