"""TensorFlow's `MetaGraphDef`: a graph with its collections, as `Saver.save` of TensorFlow writes it to `model.ckpt-10.meta`, and as saved
models hold it. What is read is checked before the graph changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..graph.aggregation import VariableAggregation, VariableSynchronization
from ..graph.default_graph import get_default_graph
from ..graph.errors import InvalidArgumentError
from ..graph.graph import Graph
from ..graph.graph_def_parts import without
from ..graph.graph_keys import GraphKeys
from ..graph.import_graph_def import import_graph_def
from ..graph.messages import message
from ..graph.meta_graph import Names, variable_of
from ..graph.node import Node, Tensor
from ..graph.variable_kinds import RefVariable, ResourceVariable
from ..graph.variables import Variable
from .tensorflow_savers import SAVERS

VARIABLES = (
    GraphKeys.GLOBAL_VARIABLES, GraphKeys.TRAINABLE_VARIABLES, GraphKeys.LOCAL_VARIABLES, GraphKeys.MODEL_VARIABLES,
    GraphKeys.MOVING_AVERAGE_VARIABLES,
)  # fmt: skip
"""Collections whose values are variables."""


def is_meta_graph(data: bytes) -> Any:
    """The `MetaGraphDef` that bytes are, or None."""
    found = message("MetaGraphDef")()
    try:
        found.ParseFromString(data)
    except Exception:  # protobuf's DecodeError, which has no class without the package
        return None
    return found if found.HasField("graph_def") else None


def import_tensorflow_meta_graph(
    meta: Any, import_scope: str | None = None, clear_devices: bool = False
) -> list[Variable]:
    """Add the nodes and collections of a `MetaGraphDef` to the default graph; gives the variables.

    The nodes that save are left out: a `Saver` makes its own. Those that restore come along, and read TensorFlow's checkpoints.

    Errors as of `import_graph_def`.
    """
    graph = get_default_graph()
    definition = without(meta.graph_def, lambda node: node.op in SAVERS)
    if clear_devices:
        for proto in definition.node:
            proto.device = ""
    scope = import_scope.strip("/") if import_scope else ""
    names = [proto.name for proto in definition.node]
    made = import_graph_def(definition, return_elements=names, name=f"{scope}/" if scope else "")
    assert made is not None
    prefix = f"{scope}/" if scope else ""
    nodes = Names({node.name: node for node in made}, prefix)
    known: dict[str, Variable] = {}
    for key, kept in meta.collection_def.items():
        for value in _values(key, kept, nodes, known):
            graph.add_to_collection(key, value)
    return list(known.values())


def _values(key: str, kept: Any, names: Names, known: dict[str, Variable]) -> Iterable[Any]:
    """What a collection holds, of what has a counterpart here."""
    match kept.WhichOneof("kind"):
        case "bytes_list" if key in VARIABLES:
            for data in kept.bytes_list.value:
                told = message("VariableDef").FromString(data)
                if told.variable_name not in known:
                    known[told.variable_name] = _variable(told, names)
                yield known[told.variable_name]
        case "node_list":
            for name in kept.node_list.value:
                if f"{names.prefix}{name.partition(':')[0]}" in names.nodes:
                    yield names.tensor(name) if ":" in name else names.node(name)
        case "int64_list":
            yield from kept.int64_list.value
        case "float_list":
            yield from kept.float_list.value


def _variable(told: Any, names: Names) -> Variable:
    """The variable that a `VariableDef` tells of."""
    try:
        initializer = names.node(told.initializer_name)
        initial = told.initial_value_name or initializer.inputs[1].name.removeprefix(names.prefix)
        parts: dict[str, Any] = {
            "place": told.variable_name, "initial_value": initial, "initializer": told.initializer_name, "starts_by": None,
            "trainable": told.trainable, "slice": None, "read": told.snapshot_name,
            "synchronization": VariableSynchronization(told.synchronization).name,
            "aggregation": VariableAggregation(told.aggregation).name,
        }  # fmt: skip
        if told.HasField("save_slice_info_def"):
            part = told.save_slice_info_def
            parts["slice"] = (part.full_name, list(part.full_shape), list(part.var_offset), list(part.var_shape))
        if told.is_resource:
            parts |= {"is_initialized": _is_initialized(names.tensor(told.variable_name), names), "cached": None}
        return variable_of(parts, names)
    except (KeyError, ValueError, IndexError) as e:
        raise InvalidArgumentError(
            None, None, f"Variable '{told.variable_name}' of this MetaGraphDef does not fit its graph: {e}"
        ) from None


def _is_initialized(handle: Tensor, names: Names) -> str:
    """The name of a tensor that tells whether a variable has a value; made if there is none."""
    for node in names.nodes.values():
        if node.type == "VarIsInitializedOp" and node.inputs[0] is handle:
            return node.outputs[0].name.removeprefix(names.prefix)
    made = handle.graph.create("VarIsInitializedOp", [handle], None, f"{handle.op.name}/IsInitialized/")
    assert isinstance(names.nodes, dict)
    names.nodes[made.name] = made
    return made.outputs[0].name.removeprefix(names.prefix)


def meta_graph_def(graph_def: Any, graph: Graph) -> Any:
    """The `MetaGraphDef` of a graph's `GraphDef`, with the graph's collections."""
    meta = message("MetaGraphDef")()
    meta.graph_def.CopyFrom(graph_def)
    write_collections(graph, meta)
    return meta


def write_collections(graph: Graph, meta: Any) -> None:
    """Write a graph's collections into a `MetaGraphDef`: variables, nodes, tensors and numbers."""
    nodes = {node.name for node in meta.graph_def.node}
    for key in graph.get_all_collection_keys():
        if not isinstance(key, str) or key.startswith("__"):
            continue
        kept = message("CollectionDef")()
        for value in graph.get_collection(key):
            _write_value(kept, value, nodes)
        if kept.WhichOneof("kind"):
            meta.collection_def[key].CopyFrom(kept)


def _write_value(kept: Any, value: Any, nodes: set[str]) -> None:
    single = value._single() if isinstance(value, Variable) else value
    kind = kept.WhichOneof("kind")
    if isinstance(single, (RefVariable, ResourceVariable)) and kind in (None, "bytes_list"):
        kept.bytes_list.value.append(variable_def(single).SerializeToString())
    elif isinstance(single, (Node, Tensor)) and kind in (None, "node_list"):
        if (single if isinstance(single, Node) else single.op).name in nodes:
            kept.node_list.value.append(single.name)
    elif type(single) is int and kind in (None, "int64_list"):
        kept.int64_list.value.append(single)
    elif type(single) is float and kind in (None, "float_list"):
        kept.float_list.value.append(single)


def variable_def(v: RefVariable | ResourceVariable) -> Any:
    """The `VariableDef` of a variable."""
    found = message("VariableDef")(
        variable_name=v._handle.name,
        initializer_name=v._initializer.name,
        snapshot_name=(v._element if isinstance(v, ResourceVariable) else v._snapshot).name,
        initial_value_name=v._initial_value.name,
        is_resource=isinstance(v, ResourceVariable),
        trainable=bool(v._trainable),
        synchronization=v.synchronization.value,
        aggregation=v.aggregation.value,
    )
    part = v.save_slice_info
    if part is not None:
        told = found.save_slice_info_def
        told.full_name = part.full_name
        for name in ("full_shape", "var_offset", "var_shape"):
            getattr(told, name).extend(getattr(part, name))
    return found


__all__ = ["import_tensorflow_meta_graph", "is_meta_graph", "meta_graph_def", "variable_def", "write_collections"]
