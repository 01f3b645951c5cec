"""`tf.graph_util`: subgraphs of a `GraphDef`, and frozen graphs, in which constants replace the variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ...graph.core import dtypes
from ...graph.formats.protos import message
from ...graph.formats.values import make_tensor_proto, write_attr
from ...graph.ops.array.identity_and_placeholders import identity
from ...graph.ops.state.variables import read_variable
from ...graph.tensorflow.export_graph_def import needed_by, node_of
from ...graph.tensorflow.import_graph_def import import_graph_def

_VARIABLE_OPS = frozenset(("VarHandleOp", "Variable", "VariableV2"))
# Ops that pass on resource handles, and ops that pass on references.
_FORWARDS_HANDLES = frozenset(("Enter", "Exit", "Identity", "Merge", "NextIteration", "Switch"))
_FORWARDS_REFERENCES = frozenset(("RefEnter", "RefSwitch"))
_RESOURCE = dtypes.resource.enum
_TRAINING = frozenset(("CheckNumerics", "Identity", "StopGradient", "PreventGradient"))


def extract_sub_graph(graph_def: Any, dest_nodes: Sequence[str]) -> Any:
    """Returns the subgraph of some nodes and all nodes that they depend on.

    Args:
        graph_def: a `GraphDef`.
        dest_nodes: names of nodes.

    Raises:
        TypeError: `dest_nodes` is a string.
        AssertionError: a node is not in the graph. TensorFlow raises the same error.

    >>> extract_sub_graph(graph.as_graph_def(), ["logits"])
    """
    if isinstance(dest_nodes, (str, bytes)):
        raise TypeError(f"dest_nodes must be a list of names, not {dest_nodes!r}")
    nodes = {node.name for node in graph_def.node}
    for name in dest_nodes:
        if name not in nodes:
            raise AssertionError(f"{name} is not in graph")
    kept = needed_by(graph_def, dest_nodes)
    out = message("GraphDef")()
    out.node.extend([node for node in graph_def.node if node.name in kept])
    out.versions.CopyFrom(graph_def.versions)
    out.library.CopyFrom(graph_def.library)
    return out


def convert_variables_to_constants(
    sess: Any,
    input_graph_def: Any,
    output_node_names: Sequence[str],
    variable_names_whitelist: Collection[str] | None = None,
    variable_names_blacklist: Collection[str] | None = None,
) -> Any:
    """Returns the subgraph that some nodes depend on, with each variable replaced by its current value.

    Args:
        sess: a session in which the variables have values.
        input_graph_def: the `GraphDef` of the session's graph.
        output_node_names: names of the output nodes.
        variable_names_whitelist: names of variables that become constants; None: all.
        variable_names_blacklist: names of variables that do not become constants.

    Raises:
        FailedPreconditionError: a variable has no value.
        AssertionError: a node is not in the graph.

    >>> frozen = convert_variables_to_constants(session, session.graph_def, ["logits"])
    >>> train.write_graph(frozen, "/tmp", "frozen.pb", as_text=False)
    """
    found = extract_sub_graph(input_graph_def, output_node_names)
    chosen = [
        node.name
        for node in found.node
        if node.op in _VARIABLE_OPS
        and (variable_names_whitelist is None or node.name in variable_names_whitelist)
        and node.name not in (variable_names_blacklist or ())
    ]
    graph = sess.graph
    with graph.as_default(), graph.control_dependencies(None), graph.name_scope("freeze/"):
        reads = [_value_of(graph.get_operation_by_name(name)) for name in chosen]
    values = dict(zip(chosen, sess.run(reads), strict=True))
    out = message("GraphDef")()
    out.versions.CopyFrom(found.versions)
    out.library.CopyFrom(found.library)
    variables = _handed_on(found, values)
    for node in found.node:
        taken = variables.get(node_of(node.input[0])) if node.input else None
        if node.name in values:
            out.node.append(_constant(node.name, values[node.name]))
        elif node.name in variables:  # this node passes on the value instead of the handle
            made = out.node.add()
            made.CopyFrom(node)
            made.op = node.op.removeprefix("Ref")
            made.attr["T"].type = make_tensor_proto(values[variables[node.name]]).dtype
        elif taken is not None and node.op == "ReadVariableOp":
            made = out.node.add(name=node.name, op="Identity", input=node.input, device=node.device)
            made.attr["T"].CopyFrom(node.attr["dtype"])
        elif taken is not None and node.op == "ResourceGather":
            axis = out.node.add()
            axis.CopyFrom(_constant(f"{node.name}/axis", 0))
            made = out.node.add(
                name=node.name, op="GatherV2", input=[*node.input[:2], axis.name, *node.input[2:]], device=node.device
            )
            for name, source in (("Tparams", "dtype"), ("Tindices", "Tindices"), ("batch_dims", "batch_dims")):
                if source in node.attr:
                    made.attr[name].CopyFrom(node.attr[source])
            write_attr(made.attr["Taxis"], "type", "int32")
        else:
            out.node.append(node)
    return out


def _handed_on(graph_def: Any, values: Collection[str]) -> dict[str, str]:
    """Returns the nodes that output a variable's reference, and their variables.

    These are the variables themselves, and nodes that pass references into branches and loops.
    """
    found = {name: name for name in values}
    count = 0
    while count != len(found):
        count = len(found)
        for node in graph_def.node:
            source = found.get(node_of(node.input[0])) if node.input else None
            if source is not None and (node.op in _FORWARDS_REFERENCES or _forwards_handle(node)):
                found[node.name] = source
    return found


def _forwards_handle(node: Any) -> bool:
    return node.op in _FORWARDS_HANDLES and node.attr["T"].type == _RESOURCE


def remove_training_nodes(input_graph: Any, protected_nodes: Iterable[str] | None = None) -> Any:
    """Remove identities and checks, which only training needs. Their consumers then use their inputs.

    Args:
        input_graph: a `GraphDef`.
        protected_nodes: names of nodes to keep.

    >>> remove_training_nodes(frozen, protected_nodes=["logits"])
    """
    protected = set(protected_nodes or ())
    controls = {node_of(i) for node in input_graph.node for i in node.input if i.startswith("^")}
    aside: dict[str, str] = {}
    for node in input_graph.node:
        waits = any(i.startswith("^") for i in node.input)
        if node.op in _TRAINING and node.name not in protected | controls and len(node.input) == 1 and not waits:
            aside[node.name] = node.input[0]

    def source(text: str) -> str:
        while text.removesuffix(":0") in aside:
            text = aside[text.removesuffix(":0")]
        return text

    out = message("GraphDef")()
    for node in input_graph.node:
        if node.name not in aside:
            made = out.node.add()
            made.CopyFrom(node)
            made.input[:] = [source(i) for i in node.input]
    out.versions.CopyFrom(input_graph.versions)
    out.library.CopyFrom(input_graph.library)
    return out


def _value_of(place: Any) -> Any:
    """Returns a tensor with the value of a variable, from its reference."""
    if place.type == "VarHandleOp":
        return read_variable(place.outputs[0])
    return identity(place.outputs[0])


def _constant(name: str, value: Any) -> Any:
    proto = message("NodeDef")(name=name, op="Const")
    held = make_tensor_proto(value)
    proto.attr["dtype"].type = held.dtype
    proto.attr["value"].tensor.CopyFrom(held)
    return proto


__all__ = ["convert_variables_to_constants", "extract_sub_graph", "import_graph_def", "remove_training_nodes"]
