"""The payload of a `register` message: one task's part of a run signature, and the codec of its partitions.

`pack_partitions` turns each partition into a small graph of its own, in which placeholders stand for tensors from outside, and a list
of steps that refers to it. The graph is serialized in the same checked form as every graph, so `unpack_partitions`, on the worker, infers
and checks all of it again: each step may only use what an earlier one has made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import msgpack

from ...codegen.ir import partition as ir
from ...codegen.ir.nodes import new_node
from ...codegen.options import KernelOptions
from ...graph.core.device import DeviceName, parse_strict
from ...graph.core.dtypes import DType, bfloat16, float32
from ...graph.core.errors import invalid
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.io.serialization import extend_from_bytes, graph_to_bytes
from ...graph.ops.state.accumulators import ACCUMULATOR
from ...placer.cluster.spec import DeviceInfo
from ...placer.partition.one_sided_reads import VARIABLES
from ..rpc.dispatch import NAME_CHARS


@dataclass(frozen=True, slots=True)
class Registration:
    """One task's part of a run signature.

    Attributes:
        program: handle of the program on the task.
        partitions: the program of each device of the task.
        seed: seed of the session's random numbers.
        isolated: whether the session has its own state.
        peer_timeout_s: seconds of silence after which a task counts as dead.
        client: the name of the process that opened the session; its steps count towards its limit (`rpc/dispatch.py`).
    """

    program: str
    session: str
    partitions: tuple[ir.PartitionGraph, ...]
    seed: int
    isolated: bool = False
    kernels: KernelOptions = field(default_factory=KernelOptions)
    peer_timeout_s: float = 5.0
    client: str = ""

    def to_fields(self) -> dict[str, Any]:
        return {
            "program": self.program, "session": self.session, "partition": pack_partitions(self.partitions), "seed": self.seed,
            "isolated": self.isolated, "kernels": self.kernels.to_fields(), "peer_timeout_s": self.peer_timeout_s,
            "client": self.client,
        }  # fmt: skip

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Registration:
        """From a message's fields.

        Raises:
            InvalidArgumentError: the partition or the kernels' options are malformed.
        """
        try:
            kernels = KernelOptions.from_fields(fields["kernels"])
        except (TypeError, ValueError) as e:
            raise invalid(f"Malformed kernel options in a register message: {e}") from None
        names = "program", "session", "seed", "isolated", "peer_timeout_s"
        return cls(
            partitions=tuple(unpack_partitions(fields["partition"])), kernels=kernels, client=fields["client"][:NAME_CHARS],
            **{name: fields[name] for name in names},
        )  # fmt: skip


# --- devices ---------------------------------------------------------------------------------------------------------


def device_fields(device: DeviceInfo) -> dict[str, object]:
    return {
        "name": str(device.name), "memory": device.memory_bytes, "emulated": device.emulated, "incarnation": device.incarnation,
        "host": device.host, "model": device.model,
    }  # fmt: skip


def device_from_fields(fields: Mapping[str, Any]) -> DeviceInfo:
    """A device from a message. InvalidArgumentError: its name is malformed."""
    name, emulated, incarnation, host = (fields[k] for k in ("name", "emulated", "incarnation", "host"))
    memory, model = fields.get("memory"), fields.get("model", "")
    return DeviceInfo(DeviceName.of(parse_strict(name)), memory, emulated, incarnation, host=host, model=model)


# --- partitions ------------------------------------------------------------------------------------------------------


class _Copy:
    """The nodes of a partition graph, copied into a graph of their own."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.nodes: list[Node] = []
        # A tensor of the user's graph -> the one that stands for it in the copy.
        self.stands_for: dict[Tensor, Tensor] = {}
        self.copied: dict[Node, Node] = {}

    def placeholder(self, tensor: Tensor) -> Tensor:
        """A placeholder for a tensor that comes from outside; for a reference to a variable, one for its value."""
        dtype, dims = tensor.dtype.base, tensor.dims
        attrs, name = {"dtype": dtype, "shape": dims}, ir.stand_in(len(self.nodes), tensor)
        node = self._add("Placeholder", name, (), attrs, [(dtype, dims)], tensor.op)
        self.stands_for[tensor] = node.outputs[0]
        return node.outputs[0]

    def node(self, original: Node, inputs: Sequence[Tensor] | None = None) -> Node:
        """A copy of a node, taking the copies of its inputs (or of those given)."""
        inputs = [self.stands_for[t] for t in (original.inputs if inputs is None else inputs)]
        signature = [(t.dtype, t.dims) for t in original.outputs]
        node = self._add(original.type, original.name, inputs, original.attrs, signature, original)
        for mine, copied in zip(original.outputs, node.outputs, strict=True):
            self.stands_for.setdefault(mine, copied)  # a fed output keeps its placeholder
        self.copied[original] = node
        return node

    def token(self, what: Node | int) -> tuple[int, int]:
        """A node of the partition, or a channel, in the form that `_Unpacking` reads."""
        return (0, self.copied[what].index) if isinstance(what, Node) else (1, what)

    def _add(
        self, op: str, name: str, inputs: Sequence[Tensor], attrs: dict[str, Any], signature: Sequence[Any], original: Node
    ) -> Node:  # fmt: skip
        node = new_node(op, inputs, attrs, signature, original)
        node.graph, node.index, node.name, node.device = self.graph, len(self.nodes), name, ""
        self.nodes.append(node)
        return node


def pack_partitions(partitions: Iterable[ir.PartitionGraph]) -> bytes:
    out: Any = msgpack.packb([_pack(partition) for partition in partitions])
    return bytes(out)


def _pack(partition: ir.PartitionGraph) -> dict[str, Any]:
    copy = _Copy()
    feeds = [(name, _address(copy.placeholder(tensor))) for name, tensor in partition.feeds]
    steps: list[Any] = []
    for step in partition.steps:
        if isinstance(step, Node):
            node = copy.copied.get(step) or copy.node(step)  # it may have been copied already
            steps.append(("n", node.index))
        elif isinstance(step, ir.SendTensor):
            sent = None if step.tensor is None else _address(copy.stands_for[step.tensor])
            token = None if step.token is None else copy.token(step.token)
            steps.append(("s", step.channel, sent, step.destination, token, getattr(step.travels_as, "name", None)))
        elif isinstance(step, ir.RecvTensor):
            received = None if step.tensor is None else _address(copy.placeholder(step.tensor))
            posted = None if step.posted is None else astuple(step.posted)
            reached = None if step.reached is None else copy.node(step.reached).index
            other = getattr(step.travels_as, "name", None)
            steps.append(("r", step.channel, received, step.source, other, posted, reached))
        elif isinstance(step, ir.RunPredicated):
            after = [copy.token(a) for a in step.after]
            steps.append(("g", copy.node(step.node).index, after))
        elif isinstance(step, ir.AwaitNode):
            steps.append(("w", copy.copied[step.node].index))
        elif isinstance(step, ir.BeginLoop):
            # A Merge has its first input twice: the second comes later in the loop, and is in `EndLoop`.
            steps.append(("l", step.name, [copy.node(m, m.inputs[:1] * 2).index for m in step.merges]))
        elif isinstance(step, ir.LeaveUnless):
            steps.append(("t", _address(copy.stands_for[step.condition])))
        else:
            steps.append(("e", [_address(copy.stands_for[t]) for t in step.nexts]))
    fetches = [(name, _address(copy.stands_for[tensor])) for name, tensor in partition.fetches]
    copy.graph.insertion.adopt(copy.nodes)
    graph = graph_to_bytes(copy.graph)
    return {"device": partition.device, "graph": graph, "feeds": feeds, "fetches": fetches, "steps": steps}


def _address(tensor: Tensor) -> tuple[int, int]:
    return tensor.op.index, tensor.value_index


def unpack_partitions(data: bytes) -> list[ir.PartitionGraph]:
    """Partitions from a message.

    Raises:
        InvalidArgumentError: anything is wrong with the data.
    """
    try:
        # A partition's graph is one byte string of any size; wrong lengths are detected because the data end too early.
        described = msgpack.unpackb(data, use_list=False, strict_map_key=True)
        return [_Unpacking(extend_from_bytes(Graph(), d["graph"])).partition(d) for d in described]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, msgpack.UnpackException) as e:
        raise invalid(f"Malformed partition in a message: {type(e).__name__}: {e}") from None


class _Unpacking:
    """Decodes and checks a partition of a message, and tracks which tensors exist so far. It trusts no part of the message."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.available: set[Tensor] = set()
        self.tokens: set[Node | int] = set()  # predicated nodes and received channels so far
        self.asynchronous: set[Node] = set()  # collectives that may still be awaited: no step has used their outputs
        self.loops: list[ir.BeginLoop] = []  # the open loops
        self.left: list[bool] = []  # whether each open loop's `LeaveUnless` has been seen

    def partition(self, described: Any) -> ir.PartitionGraph:
        """The partition, its steps checked one by one."""
        feeds = tuple((_text(name), self.tensor(address, new=True)) for name, address in described["feeds"])
        steps = tuple([self.step(*step) for step in described["steps"]])
        if self.loops:
            raise ValueError("a loop has no end")
        fetches = tuple((_text(name), self.tensor(address)) for name, address in described["fetches"])
        return ir.PartitionGraph(_text(described["device"]), steps, feeds, fetches)

    def step(self, kind: Any, what: Any, *rest: Any) -> ir.PartitionStep:
        """One step, in the form that `_pack` gives it."""
        if kind == "n":
            node = self.node(what)
            if node.opdef.is_collective and not self.loops:
                self.asynchronous.add(node)
            return node
        if kind == "w":
            kernel = self.nodes[_number(what)]
            if kernel not in self.asynchronous or self.loops:
                raise ValueError(f"{kernel.name} is awaited, but is no asynchronous kernel")
            self.asynchronous.remove(kernel)
            return ir.AwaitNode(kernel)
        if kind == "s":
            sent, destination, token, other = rest  # a control edge may have a token, a tensor another type
            tensor = None if sent is None else self.tensor(sent)
            after = None if token is None or tensor is not None else self.token(token)
            return ir.SendTensor(_number(what), tensor, _text(destination), after, _other_type(tensor, other))
        if kind == "r":
            received, source, other, posted, reached = rest
            tensor = None if received is None else self.tensor(received, new=True)
            place = None if posted is None else _posted(*posted)
            changed = None if reached is None else self.nodes[_number(reached)]
            if place is None:
                self.tokens.add(_number(what))
            elif (tensor is None) == (changed is None):
                raise ValueError("a published variable is either read or reached")
            if changed is not None and (place is None or changed.type not in (*VARIABLES, ACCUMULATOR)):
                raise ValueError(f"{changed.name} is accessed one-sidedly, but is no published variable or accumulator")
            return ir.RecvTensor(_number(what), tensor, _text(source), _other_type(tensor, other), place, changed)
        if kind == "g":
            (after,) = rest
            step = ir.RunPredicated(self.node(what), tuple([self.token(a) for a in after]))
            self.tokens.add(step.node)
            return step
        if kind == "l":
            (merges,) = rest
            loop = ir.BeginLoop(_text(what), tuple([self.node(m) for m in merges]))
            if any(m.type != "Merge" or len(m.inputs) != 2 for m in loop.merges):
                raise ValueError("a loop variable must be a Merge of two inputs")
            self.tokens.update(loop.merges)
            self.loops.append(loop)
            self.left.append(False)
            return loop
        if kind == "t":
            if not self.loops or self.left[-1]:
                raise ValueError("a loop test is outside a loop, or a second one")
            self.left[-1] = True
            return ir.LeaveUnless(self.tensor(what))
        if kind == "e":
            if not self.loops or not self.left.pop() or len(what) != len(self.loops.pop().merges):
                raise ValueError("the end of a loop does not match its begin")
            return ir.EndLoop(tuple([self.tensor(address) for address in what]))
        raise ValueError(f"unknown step {kind!r}")

    def node(self, index: Any) -> Node:
        """A node whose inputs exist; its outputs exist from now on."""
        node = self.nodes[_number(index)]
        for t in node.inputs:
            if t not in self.available:
                raise ValueError(f"{node.name} takes {t.name} before it exists")
            self.asynchronous.discard(t.op)
        self.available.update(node.outputs)
        return node

    def tensor(self, address: Any, *, new: bool = False) -> Tensor:
        """A tensor that exists; if `new`, also a placeholder that gets its value here."""
        node, output = address
        found = self.nodes[_number(node)].outputs[_number(output)]
        if new and found.op.type == "Placeholder":
            self.available.add(found)
        elif found not in self.available:
            raise ValueError(f"{found.name} is used before it exists")
        self.asynchronous.discard(found.op)
        return found

    def token(self, described: Any) -> Node | int:
        """A predicated node or a channel of an earlier step."""
        kind, index = described
        found = self.nodes[_number(index)] if kind == 0 else _number(index)
        if found not in self.tokens:
            raise ValueError(f"{found!r} is waited for before it exists")
        return found


def _other_type(tensor: Tensor | None, given: Any) -> DType | None:
    """The type in which a tensor is sent, where it is not the tensor's own: float32 may be sent as bfloat16."""
    if given is None:
        return None
    if given != bfloat16.name or tensor is None or tensor.dtype.base is not float32:
        raise ValueError(f"{tensor} cannot travel as {given}")
    return bfloat16


def _posted(place: Any, incarnation: Any, *texts: Any) -> ir.Posted:
    """A published variable. Only the types are checked here: the reader checks the record at the address."""
    container, name, node, op, source = map(_text, texts)
    return ir.Posted(tuple([_number(n) for n in place]), _number(incarnation), container, name, node, op, source)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is expected, not {value!r}")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"a number is expected, not {value!r}")
    return value
