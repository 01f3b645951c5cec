"""The nodes by which TensorFlow saves and restores the variables of a saved model: its loader runs them.

Here they replace a graph's own saver nodes, which save in Dovetail's way and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...graph.formats.protos import message
from ...graph.formats.values import write_attr
from ...graph.variables.ref_and_resource import ResourceVariable
from ...graph.variables.variable import Variable

SCOPE = "saved_model_io"
SAVERS = frozenset(("MergeV2Checkpoints", "SaveV2", "ShardedFilename"))
"""TensorFlow's ops that save."""


def add_saving_nodes(graph_def: Any, variables: Mapping[str, Variable]) -> Any:
    """Add nodes that save and restore these variables, by their names in the checkpoint; gives the `SaverDef` that names them."""
    writer = _Writer(graph_def)
    names = list(variables)
    prefix = writer.node("Const", attrs={"dtype": ("type", "string"), "value": ("tensor", _texts(["model"], ()))})
    told = [
        writer.node("Const", attrs={"dtype": ("type", "string"), "value": ("tensor", _texts(texts, (len(names),)))})
        for texts in (names, [""] * len(names))
    ]
    dtypes = [v.dtype.base for v in variables.values()]
    kinds = {"dtypes": ("list(type)", dtypes)}
    values = [v._element.name if isinstance(v, ResourceVariable) else v._snapshot.name for v in variables.values()]  # type: ignore[attr-defined]
    saved = writer.node("SaveV2", [prefix, *told, *values], kinds)
    written = writer.node("Identity", [prefix, f"^{saved}"], {"T": ("type", "string")}, "control_dependency")
    restored = writer.node("RestoreV2", [prefix, *told], kinds)
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
        """Add one; its name. `attrs`: name -> kind and value."""
        made = self.graph_def.node.add(name=self._free(f"{self.scope}/{name or op}"), op=op, input=inputs)
        for key, (kind, value) in (attrs or {}).items():
            write_attr(made.attr[key], kind, value)
        found: str = made.name
        return found


def _texts(values: Sequence[str], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), object)
    out[:] = [v.encode() for v in values]
    return out.reshape(shape)


__all__ = ["SAVERS", "SCOPE", "add_saving_nodes"]
