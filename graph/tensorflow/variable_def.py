"""TensorFlow's `VariableDef`: the names of a variable's nodes, in meta graphs."""

from __future__ import annotations

from typing import Any

from ..core.errors import invalid
from ..core.graph import Node, Tensor
from ..core.hooks import hooks
from ..formats.protos import message
from ..io.meta_graph import Names, variable_of
from ..variables.ref_and_resource import RefVariable, ResourceVariable
from ..variables.variable import Variable, VariableAggregation, VariableSynchronization


def variable_from_def(proto: Any, names: Names) -> Variable:
    """The variable of a `VariableDef`. InvalidArgumentError if it names nodes that do not exist."""
    try:
        initializer = names.node(proto.initializer_name)
        initial = proto.initial_value_name or initializer.inputs[1].name.removeprefix(names.prefix)
        parts: dict[str, Any] = {
            "place": proto.variable_name, "initial_value": initial, "initializer": proto.initializer_name, "starts_by": None,
            "trainable": proto.trainable, "slice": None, "read": proto.snapshot_name,
            "synchronization": VariableSynchronization(proto.synchronization).name,
            "aggregation": VariableAggregation(proto.aggregation).name,
        }  # fmt: skip
        if proto.HasField("save_slice_info_def"):
            part = proto.save_slice_info_def
            parts["slice"] = (part.full_name, list(part.full_shape), list(part.var_offset), list(part.var_shape))
        if proto.is_resource:
            parts |= {"is_initialized": _is_initialized(names.tensor(proto.variable_name), names), "cached": None}
        return variable_of(parts, names)
    except (KeyError, ValueError, IndexError) as e:
        raise invalid(f"Variable '{proto.variable_name}' of this MetaGraphDef does not fit its graph: {e}") from None


def _is_initialized(handle: Tensor, names: Names) -> str:
    """The name of a tensor that tells whether a variable is initialized. It is made if there is none."""
    for node in names.nodes.values():
        if node.type == "VarIsInitializedOp" and node.inputs[0] is handle:
            return node.outputs[0].name.removeprefix(names.prefix)
    made = handle.graph.create("VarIsInitializedOp", [handle], None, f"{handle.op.name}/IsInitialized/")
    assert isinstance(names.nodes, dict)
    names.nodes[made.name] = made
    return made.outputs[0].name.removeprefix(names.prefix)


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
        piece = found.save_slice_info_def
        piece.full_name = part.full_name
        for name in ("full_shape", "var_offset", "var_shape"):
            getattr(piece, name).extend(getattr(part, name))
    return found


def _variable_from_def(proto: Any, nodes: dict[str, Node], prefix: str) -> Variable:
    return variable_from_def(proto, Names(nodes, prefix))


hooks.variable_def_of, hooks.variable_from_def = variable_def, _variable_from_def
