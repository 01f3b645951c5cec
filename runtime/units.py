"""Partitions on their way to workers.

`units_of` turns the placer's partitions into the code generator's units. `pack_units` and `unpack_units` carry units in a message:
each becomes a small graph of its own, in which placeholders stand for the tensors that come from outside, and a list of steps that
points into it. The graph travels in the same checked form as every other, so a worker infers and checks all of it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgpack

from ..codegen.unit import RecvTensor, SendTensor, Unit, UnitStep
from ..graph.errors import InvalidArgumentError
from ..graph.graph import Graph
from ..graph.node import Node, Tensor
from ..graph.opdef import opdef
from ..graph.serialize import extend_from_bytes, graph_to_bytes
from ..placer.partition import Channel, Partitioned


def units_of(cut: Partitioned, graph: Graph) -> list[Unit]:
    """The units of all partitions."""
    units = []
    for part in cut.partitions.values():
        steps: list[UnitStep] = []
        for kind, what in part.steps:
            if isinstance(what, Node):
                steps.append(what)
                continue
            assert isinstance(what, Channel)
            value = cut.values[what.id]
            tensor = value if isinstance(value, Tensor) else None
            if kind == "send":
                steps.append(SendTensor(what.id, tensor, what.destination))
            else:
                steps.append(RecvTensor(what.id, tensor, what.source))
        units.append(
            Unit(
                part.device,
                tuple(steps),
                tuple((name, graph.get_tensor_by_name(name)) for name in part.feeds),
                tuple((name, graph.get_tensor_by_name(name)) for name in part.fetches),
            )
        )
    return units


# --- in a message ----------------------------------------------------------------------------------------------------


class _Copy:
    """A unit's nodes copied into a graph of their own."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.nodes: list[Node] = []
        self.stands_for: dict[Tensor, Tensor] = {}  # a tensor of the user's graph -> the one that stands for it in the copy

    def placeholder(self, tensor: Tensor) -> Tensor:
        """A stand-in for a tensor that comes from outside: its value, even where it is a variable's place."""
        attrs = {"dtype": tensor.dtype.base, "shape": tensor.dims}
        node = self._add("Placeholder", f"in/{len(self.nodes)}", (), attrs, tensor.op)
        node.outputs = (Tensor(node, 0, tensor.dtype.base, tensor.dims),)
        self.stands_for[tensor] = node.outputs[0]
        return node.outputs[0]

    def node(self, original: Node) -> Node:
        """A copy of a node, taking the copies of its inputs."""
        inputs = tuple(self.stands_for[t] for t in original.inputs)
        node = self._add(original.type, original.name, inputs, original.attrs, original)
        node.container = original.container
        node.outputs = tuple(Tensor(node, i, t.dtype, t.dims) for i, t in enumerate(original.outputs))
        for mine, copied in zip(original.outputs, node.outputs, strict=True):
            self.stands_for.setdefault(mine, copied)  # a fed output stays what was fed
        return node

    def _add(self, op: str, name: str, inputs: tuple[Tensor, ...], attrs: dict[str, Any], original: Node) -> Node:
        node = Node()
        node.graph, node.index, node.opdef, node.name = self.graph, len(self.nodes), opdef(op), name
        node.inputs, node.control_inputs, node.attrs = inputs, (), attrs
        node.device, node.colocation, node.blocks, node.container = "", (), None, ""
        node._origin = original._origin
        self.nodes.append(node)
        return node


def pack_units(units: Iterable[Unit]) -> bytes:
    """Units as bytes for `unpack_units`."""
    out: Any = msgpack.packb([_pack(unit) for unit in units])
    return bytes(out)


def _pack(unit: Unit) -> dict[str, Any]:
    copy = _Copy()
    feeds = [(name, _address(copy.placeholder(tensor))) for name, tensor in unit.feeds]
    steps: list[Any] = []
    for step in unit.steps:
        if isinstance(step, Node):
            steps.append(("n", copy.node(step).index))
        elif isinstance(step, SendTensor):
            sent = None if step.tensor is None else _address(copy.stands_for[step.tensor])
            steps.append(("s", step.channel, sent, step.destination))
        else:
            received = None if step.tensor is None else _address(copy.placeholder(step.tensor))
            steps.append(("r", step.channel, received, step.source))
    fetches = [(name, _address(copy.stands_for[tensor])) for name, tensor in unit.fetches]
    copy.graph.adopt(copy.nodes)
    return {"device": unit.device, "graph": graph_to_bytes(copy.graph), "feeds": feeds, "fetches": fetches, "steps": steps}


def _address(tensor: Tensor) -> tuple[int, int]:
    return tensor.op.index, tensor.value_index


def unpack_units(data: bytes) -> list[Unit]:
    """Units from a message.

    Raises:
        InvalidArgumentError: anything is wrong with the data.
    """
    try:
        # A unit's graph is one byte string of any size; lengths that lie are noticed because the data end too early.
        described = msgpack.unpackb(data, use_list=False, strict_map_key=True)
        return [_unpack(d) for d in described]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, msgpack.UnpackException) as e:
        raise InvalidArgumentError(None, None, f"Malformed partition in a message: {type(e).__name__}: {e}") from None


def _unpack(described: Any) -> Unit:
    graph = Graph()
    nodes = extend_from_bytes(graph, described["graph"])
    available: set[Tensor] = set()

    def text(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"text is expected, not {value!r}")
        return value

    def number(value: Any) -> int:
        if type(value) is not int or value < 0:
            raise TypeError(f"a number is expected, not {value!r}")
        return value

    def tensor(address: Any, *, new: bool = False) -> Tensor:
        node, output = address
        found = nodes[number(node)].outputs[number(output)]
        if new and nodes[node].type == "Placeholder":
            available.add(found)
        elif found not in available:
            raise ValueError(f"{found.name} is used before it exists")
        return found

    feeds = tuple((text(name), tensor(address, new=True)) for name, address in described["feeds"])
    steps: list[UnitStep] = []
    for kind, what, *rest in described["steps"]:
        if kind == "n":
            node = nodes[number(what)]
            for t in node.inputs:
                if t not in available:
                    raise ValueError(f"{node.name} takes {t.name} before it exists")
            available.update(node.outputs)
            steps.append(node)
        elif kind == "s":
            sent, destination = rest
            steps.append(SendTensor(number(what), None if sent is None else tensor(sent), text(destination)))
        elif kind == "r":
            received, source = rest
            steps.append(RecvTensor(number(what), None if received is None else tensor(received, new=True), text(source)))
        else:
            raise ValueError(f"unknown step {kind!r}")
    fetches = tuple((text(name), tensor(address)) for name, address in described["fetches"])
    return Unit(text(described["device"]), tuple(steps), feeds, fetches)


__all__: Sequence[str] = ("pack_units", "units_of", "unpack_units")
