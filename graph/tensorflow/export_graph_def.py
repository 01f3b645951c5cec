"""Writes a graph as a `GraphDef` for TensorFlow, TensorBoard and Netron, and prunes GraphDefs.

Ops have TensorFlow's names, inputs and attributes, so most nodes are written unchanged, with additional attributes for types. Nodes of
other ops are written as one or several nodes of TensorFlow (`written_forms`). Attributes that TensorFlow's op does not have are written
in an attribute `_dovetail`, which TensorFlow ignores. An op that TensorFlow does not have, or has with another meaning, is written as
`Dovetail<op>`, so that TensorFlow reports an unknown op.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgpack

from ..core.errors import InvalidArgumentError, invalid
from ..core.graph import Graph, Node
from ..core.hooks import hooks
from ..formats.protos import message
from ..formats.record_format import extension
from ..formats.values import MisfitError, write_attr
from .loop_order import order_iterations
from .signatures import REQUIRED, Signature, signatures
from .update_order import order_updates
from .written_forms import Form, Part, form_of


def node_of(text: str) -> str:
    """The name of the node of an input, such as `x` for `x:1` or `^x`."""
    return text.removeprefix("^").partition(":")[0]


def without(graph_def: Any, is_left_out: Callable[[Any], bool], needed: Collection[str] = frozenset()) -> Any:
    """A copy of a GraphDef without some nodes and the nodes that depend on them. Nodes with names in `needed` stay."""
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
    """The names of nodes on which these depend, and their own. Names that are not in the graph are included."""
    nodes = {node.name: node for node in graph_def.node}
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += map(node_of, nodes[name].input) if name in nodes else ()
    return found


PRODUCER = 1882  # the version of TensorFlow's graphs, which determines the defaults of attributes
OWN = "Dovetail"  # prefix of ops that TensorFlow does not have
EXTRA = "_dovetail"  # the attribute with the attributes that TensorFlow's op does not have, as msgpack
OTHERWISE = frozenset(("MergeV2Checkpoints", "ResourceSparseApplyKerasMomentum", "RestoreV2", "SaveV2"))
"""Ops with TensorFlow's names and another meaning."""


def graph_def_of(
    graph: Graph, from_version: int = 0, add_shapes: bool = False, nodes: Iterable[Node] | None = None
) -> Any:
    """The `GraphDef` of a graph.

    Args:
        graph: the graph.
        from_version: the number of the first node.
        add_shapes: whether to write the shapes of outputs, as `_output_shapes`.
        nodes: the nodes to write. None means all.

    Raises:
        UnimplementedError: the package `protobuf` is not installed.
        InvalidArgumentError: a node such as a `py_func` cannot be written, or a loop is being built.
    """
    graph.table.check_values()
    if graph.flow.has_open_loops:
        raise invalid("A graph has no GraphDef while a while_loop is being built")
    out = message("GraphDef")()
    out.versions.producer = PRODUCER
    for node in graph.nodes[from_version:] if nodes is None else nodes:
        out.node.extend(_protos(node, add_shapes))
    if nodes is None and not from_version:
        order_updates(graph, {proto.name: proto for proto in out.node})
        order_iterations(graph, out.node)
    return out


def _protos(node: Node, add_shapes: bool) -> list[Any]:
    """The messages of a node: those of its parts, then its own. InvalidArgumentError if it cannot be written."""
    parts: dict[str, Any] = {}
    try:
        if node.type in OTHERWISE:
            raise MisfitError("an op of its own")
        proto, extra = _filled(form_of(node), node, node.name, parts)
    except MisfitError:
        form = Form(f"{OWN}{node.type}", node.inputs, ())
        proto, extra = message("NodeDef")(name=node.name, op=form.op, device=node.device), dict(node.attrs)
        parts.clear()
        _write_inputs(proto, form, node, parts)
    if extra or proto.op.startswith(OWN):
        try:
            proto.attr[EXTRA].s = _packed(extra)
        except (TypeError, ValueError, OverflowError) as e:
            raise InvalidArgumentError(
                node, node, f"Node '{node.name}' ({node.type}) created at {node.source} cannot be written: {e}"
            ) from None
    proto.input.extend([f"^{c.name}" for c in node.controls])
    if node.colocation:
        proto.attr["_class"].list.s.extend(node.colocation_groups())
    if add_shapes and node.outputs:
        write_attr(proto.attr["_output_shapes"], "list(shape)", [t.dims for t in node.outputs])
    return [*parts.values(), proto]


def _filled(form: Form, node: Node, name: str, parts: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The message of a node or a part of it, and the attributes that TensorFlow's op does not have.

    Its parts are added to `parts`, by name. MisfitError if TensorFlow has no such node.
    """
    signature = signatures().get(form.op)
    if signature is None:
        raise MisfitError("an op of its own")
    proto = message("NodeDef")(name=name, op=form.op, device=node.device)
    extra = _write_attrs(proto, form, signature, node.container)
    _write_inputs(proto, form, node, parts)
    if not form.inputs and name != node.name:  # a constant must be in the node's branch or loop
        context = node.graph.flow.of(node)
        proto.input.extend([f"^{context.pivot.op.name}"] if context is not None else [])
    return proto, extra | dict(form.kept)


def _write_inputs(proto: Any, form: Form, node: Node, parts: dict[str, Any]) -> None:
    for t in form.inputs:
        if isinstance(t, Part):
            called, index = f"{node.name}/{t.name}", t.output
            while called in node.graph:
                called += "_"
            if called not in parts:
                parts[called] = _filled(t.form, node, called, parts)[0]
        else:
            called, index = t.op.name, t.value_index
        proto.input.append(f"{called}:{index}" if index else called)


def _write_attrs(proto: Any, form: Form, signature: Signature, container: str) -> dict[str, Any]:
    """Write the attributes of the signature. Returns the others. MisfitError if one is missing or does not fit."""
    inferred = signature.inferred_attrs([t.dtype for t in form.inputs], form.outputs)
    extra = dict(form.attrs)
    for name, (kind, default) in signature.attrs.items():
        if name in inferred:
            value = inferred[name]
            extra.pop(name, None)
        elif name in extra and (extra[name] is not None or kind == "shape" or default is REQUIRED):
            value = extra.pop(name)
        elif name == "container":
            value = container
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
