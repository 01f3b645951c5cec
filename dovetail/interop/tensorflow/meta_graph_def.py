"""TensorFlow's `MetaGraphDef`: a graph with its collections.

TensorFlow's `Saver.save` writes it to `model.ckpt-10.meta`, and saved models contain it. A message is checked before the graph changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.formats.protos import message
from ...graph.formats.values import write_attr
from ...graph.io.meta_graph import Names
from ...graph.tensorflow.export_graph_def import without
from ...graph.tensorflow.import_graph_def import import_graph_def
from ...graph.tensorflow.variable_def import variable_def, variable_from_def
from ...graph.variables.ref_and_resource import RefVariable, ResourceVariable
from ...graph.variables.variable import Variable

VARIABLES = (
    GraphKeys.GLOBAL_VARIABLES, GraphKeys.TRAINABLE_VARIABLES, GraphKeys.LOCAL_VARIABLES, GraphKeys.MODEL_VARIABLES,
    GraphKeys.MOVING_AVERAGE_VARIABLES,
)  # fmt: skip
"""Collections of variables."""


def is_meta_graph(data: bytes) -> Any:
    """Parses bytes as a `MetaGraphDef`. Returns None if they are not one."""
    found = message("MetaGraphDef")()
    try:
        found.ParseFromString(data)
    except Exception:  # protobuf's DecodeError, which has no class without the package
        return None
    return found if found.HasField("graph_def") else None


def import_tensorflow_meta_graph(
    meta: Any, import_scope: str | None = None, clear_devices: bool = False
) -> list[Variable]:
    """Adds the nodes and collections of a `MetaGraphDef` to the default graph, and returns the variables.

    Nodes that save checkpoints are omitted, because a `Saver` creates its own. Nodes that restore are added, and read TensorFlow's
    checkpoints. Errors as in `import_graph_def`.

    Args:
        meta: the `MetaGraphDef`.
        import_scope: prefix of all names.
        clear_devices: remove the device requests.
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
    """Yields the values of a collection that have a counterpart here."""
    match kept.WhichOneof("kind"):
        case "bytes_list" if key in VARIABLES:
            for data in kept.bytes_list.value:
                proto = message("VariableDef").FromString(data)
                if proto.variable_name not in known:
                    known[proto.variable_name] = variable_from_def(proto, names)
                yield known[proto.variable_name]
        case "node_list":
            for name in kept.node_list.value:
                if f"{names.prefix}{name.partition(':')[0]}" in names.nodes:
                    yield names.tensor(name) if ":" in name else names.node(name)
        case "int64_list":
            yield from kept.int64_list.value
        case "float_list":
            yield from kept.float_list.value


def meta_graph_def(graph_def: Any, graph: Graph) -> Any:
    """Returns the `MetaGraphDef` of a graph's `GraphDef`, with the graph's collections."""
    meta = message("MetaGraphDef")()
    meta.graph_def.CopyFrom(graph_def)
    write_collections(graph, meta)
    return meta


def write_collections(graph: Graph, meta: Any) -> None:
    """Writes a graph's collections of variables, nodes, tensors and numbers into a `MetaGraphDef`."""
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


SCOPE = "saved_model_io"
SAVERS = frozenset(("MergeV2Checkpoints", "SaveV2", "ShardedFilename"))
"""TensorFlow's ops that save checkpoints."""


def add_saving_nodes(graph_def: Any, variables: Mapping[str, Variable]) -> Any:
    """Adds nodes that save and restore variables, and returns the `SaverDef` that names them.

    `variables`: name in the checkpoint -> variable.
    """
    writer = _Writer(graph_def)
    names = list(variables)
    prefix = writer.node("Const", attrs={"dtype": ("type", "string"), "value": ("tensor", _texts(["model"], ()))})
    keys = [
        writer.node("Const", attrs={"dtype": ("type", "string"), "value": ("tensor", _texts(texts, (len(names),)))})
        for texts in (names, [""] * len(names))
    ]
    dtypes = [v.dtype.base for v in variables.values()]
    kinds = {"dtypes": ("list(type)", dtypes)}
    values = [v._element.name if isinstance(v, ResourceVariable) else v._snapshot.name for v in variables.values()]  # type: ignore[attr-defined]
    saved = writer.node("SaveV2", [prefix, *keys, *values], kinds)
    written = writer.node("Identity", [prefix, f"^{saved}"], {"T": ("type", "string")}, "control_dependency")
    restored = writer.node("RestoreV2", [prefix, *keys], kinds)
    assigned = []
    for i, variable in enumerate(variables.values()):
        kind = {"T": ("type", dtypes[i])}
        value = f"{restored}:{i}"
        if isinstance(variable, ResourceVariable):
            value = writer.node("Identity", [value], kind)
            assigned.append(writer.node("AssignVariableOp", [variable._handle.name, value], {"dtype": kind["T"]}))
        else:
            assigned.append(writer.node("Assign", [variable._handle.name, value], kind))
    every = writer.node("NoOp", [f"^{name}" for name in assigned], {}, "restore_all")
    return message("SaverDef")(
        filename_tensor_name=f"{prefix}:0",
        save_tensor_name=f"{written}:0",
        restore_op_name=every,
        max_to_keep=5,
        version=2,
    )


class _Writer:
    """Adds nodes to a `GraphDef` under one scope."""

    def __init__(self, graph_def: Any) -> None:
        self.graph_def = graph_def
        self.names = {node.name for node in graph_def.node}
        self.scope = self._free(SCOPE)

    def _free(self, name: str) -> str:
        found, count = name, 0
        while found in self.names or any(n.startswith(f"{found}/") for n in self.names if name == SCOPE):
            count += 1
            found = f"{name}_{count}"
        self.names.add(found)
        return found

    def node(
        self,
        op: str,
        inputs: Sequence[str] = (),
        attrs: Mapping[str, tuple[str, Any]] | None = None,
        name: str | None = None,
    ) -> str:
        """Adds a node, and returns its name. `attrs`: name -> kind and value."""
        made = self.graph_def.node.add(name=self._free(f"{self.scope}/{name or op}"), op=op, input=inputs)
        for key, (kind, value) in (attrs or {}).items():
            write_attr(made.attr[key], kind, value)
        found: str = made.name
        return found


def _texts(values: Sequence[str], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), object)
    out[:] = [v.encode() for v in values]
    return out.reshape(shape)
