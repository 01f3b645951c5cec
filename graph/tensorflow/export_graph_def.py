"""Writes a graph as a `GraphDef`, which TensorFlow, TensorBoard and Netron read; also pruning of GraphDefs.

Ops have TensorFlow's names, inputs and attributes, so most nodes are written as they are, with the types that TensorFlow spells
out. Attributes that TensorFlow's op does not have go into an attribute `_dovetail`, which TensorFlow ignores. An op that TensorFlow
does not have, or has with other inputs, is written as `Dovetail<op>`: TensorFlow then reports an unknown op and gives no wrong
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgpack
import numpy as np

from ..core.errors import InvalidArgumentError, invalid
from ..core.graph import Graph, Node
from ..core.hooks import hooks
from ..formats.protos import message
from ..formats.record_format import extension
from ..formats.values import MisfitError, write_attr
from .signatures import REQUIRED, Signature, signatures


def node_of(text: str) -> str:
    """The name of the node that an input names: `x` of `x:1` and of `^x`."""
    return text.removeprefix("^").partition(":")[0]


def without(graph_def: Any, is_left_out: Callable[[Any], bool], needed: Collection[str] = frozenset()) -> Any:
    """A graph without some nodes, and without those that need them; but with all of `needed`, by name."""
    takers: dict[str, list[str]] = {}
    for node in graph_def.node:
        for source in {node_of(i) for i in node.input}:
            takers.setdefault(source, []).append(node.name)
    todo = [node.name for node in graph_def.node if is_left_out(node)]
    gone: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in gone:
            gone.add(name)
            todo += takers.get(name, ())
    out = type(graph_def)()
    out.CopyFrom(graph_def)
    del out.node[:]
    out.node.extend([node for node in graph_def.node if node.name in needed or node.name not in gone])
    return out


def needed_by(graph_def: Any, names: Iterable[str]) -> set[str]:
    """The names of nodes that these need, and theirs; those that are not in the graph among them."""
    nodes = {node.name: node for node in graph_def.node}
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += map(node_of, nodes[name].input) if name in nodes else ()
    return found


PRODUCER = 1882  # the version of TensorFlow's graphs that these are: with what of it defaults came and went
OWN = "Dovetail"  # before the names of ops that TensorFlow does not have
EXTRA = "_dovetail"  # the attribute of what else a node is told, as msgpack
OTHERWISE = frozenset(("MergeV2Checkpoints", "ReduceJoin", "RestoreV2", "SaveV2", "StringSplit"))
"""Ops that have TensorFlow's names and other inputs."""
TAGGED = {"HistogramSummary": "tag", "ImageSummary": "tag", "ScalarSummary": "tags"}
"""Ops whose tag is an attribute here, and TensorFlow's first input: that input's name."""


def graph_def_of(
    graph: Graph, from_version: int = 0, add_shapes: bool = False, nodes: Iterable[Node] | None = None
) -> Any:
    """The `GraphDef` of a graph.

    Args:
        from_version: nodes from this number on. add_shapes: tell the shapes of outputs, as `_output_shapes`.
        nodes: these alone; None: all.

    Raises:
        UnimplementedError: the package `protobuf` is not installed.
        InvalidArgumentError: a node cannot be written, such as a `py_func`; or a loop is being built.
    """
    graph.check_values()
    if graph.has_open_loops:
        raise invalid("A graph has no GraphDef while a while_loop is being built")
    out = message("GraphDef")()
    out.versions.producer = PRODUCER
    for node in graph.nodes[from_version:] if nodes is None else nodes:
        if node.type in TAGGED:
            _write_tagged(out, node, add_shapes)
        else:
            write_node(out.node.add(), node, add_shapes)
    return out


def _write_tagged(out: Any, node: Node, add_shapes: bool) -> None:
    """Write a node of a summary, with a constant for its tag."""
    tag = out.node.add(name=f"{node.name}/{TAGGED[node.type]}", op="Const", device=node.device)
    write_attr(tag.attr["dtype"], "type", "string")
    write_attr(tag.attr["value"], "tensor", np.array(node.attrs["tag"].encode(), object))
    proto = out.node.add(op=node.type)
    proto.input.append(tag.name)
    _write_frame(proto, node, add_shapes)
    write_attr(proto.attr["T"], "type", node.inputs[0].dtype)
    if node.type == "ImageSummary":
        write_attr(proto.attr["max_images"], "int", node.attrs["max_images"])


def _write_frame(proto: Any, node: Node, add_shapes: bool) -> None:
    """Write what all nodes have: name, device, inputs, colocation groups, and shapes if they are wanted."""
    proto.name, proto.device = node.name, node.device
    proto.input.extend([t.op.name if t.value_index == 0 else t.name for t in node.inputs])
    proto.input.extend([f"^{c.name}" for c in node.controls])
    if node.colocation:
        proto.attr["_class"].list.s.extend(node.colocation_groups())
    if add_shapes and node.outputs:
        write_attr(proto.attr["_output_shapes"], "list(shape)", [t.dims for t in node.outputs])


def write_node(proto: Any, node: Node, add_shapes: bool = False) -> None:
    """Write a node into a `NodeDef`. InvalidArgumentError: it cannot be written."""
    signature = None if node.type in OTHERWISE else signatures().get(node.type)
    extra = dict(node.attrs)
    proto.op = node.type
    try:
        if signature is None:
            raise MisfitError("an op of its own")
        extra = _write_attrs(proto, node, signature)
    except MisfitError:
        proto.op = f"{OWN}{node.type}"
        proto.ClearField("attr")
    if extra or proto.op != node.type:
        try:
            proto.attr[EXTRA].s = _packed(extra)
        except (TypeError, ValueError, OverflowError) as e:
            raise InvalidArgumentError(
                node, node, f"Node '{node.name}' ({node.type}) created at {node.source} cannot be written: {e}"
            ) from None
    _write_frame(proto, node, add_shapes)


def _write_attrs(proto: Any, node: Node, signature: Signature) -> dict[str, Any]:
    """Write what the signature asks for; gives what it has no place for. MisfitError: something does not fit."""
    told = signature.tell([t.dtype for t in node.inputs], [t.dtype for t in node.outputs])
    extra = dict(node.attrs)
    for name, (kind, default) in signature.attrs.items():
        if name in told:
            value = told[name]
            extra.pop(name, None)
        elif name in extra:
            value = extra.pop(name)
        elif name == "container":
            value = node.container
        elif default is REQUIRED:
            raise MisfitError(f"attribute {name} is missing")
        else:
            continue
        write_attr(proto.attr[name], kind, value)
    return extra


def _packed(attrs: dict[str, Any]) -> bytes:
    pieces: list[bytes] = []
    packed: bytes = msgpack.packb(attrs, default=lambda value: extension(value, pieces))
    if pieces:
        raise ValueError("a constant is too large")
    return packed


hooks.graph_def_of = graph_def_of
