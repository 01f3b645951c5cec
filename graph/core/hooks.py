"""Functions of higher modules that `core` calls.

Core must not import these modules. Each stores its function in `hooks` when `import dovetail` imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hooks:
    """One function per attribute. RuntimeError if the module that provides it was not imported."""

    pack_list: Callable[..., Any]
    """`ops.array.concat_stack`: `(list with tensors, dtype or None, name)` -> one tensor of them all."""
    sum_rows: Callable[..., Any]
    """`ops.array.segments`: `(rows, index of each, number of rows)` -> the dense tensor."""
    cond: Callable[..., Any]
    case: Callable[..., Any]
    """`control_flow.cond_while`."""
    gradients: Callable[..., Any]
    """`gradients.reverse`."""
    format_graph: Callable[[Any], str]
    """`core.printing`: the text of a graph."""
    to_networkx: Callable[[Any], Any]
    """`core.printing`: a graph as networkx has it."""
    graph_def_of: Callable[..., Any]
    """`tensorflow.export_graph_def`: `(graph, first node, add_shapes)` -> a `GraphDef`."""
    node_from_tensorflow: Callable[..., tuple[str, dict[str, Any]]]
    """`tensorflow.node_mapping`: `(TensorFlow's op, inputs, attrs)` -> our op and its attrs."""
    variable_def_of: Callable[[Any], Any]
    """`tensorflow.variable_def`: a variable -> its `VariableDef`."""
    variable_from_def: Callable[..., Any]
    """`tensorflow.variable_def`: `(VariableDef, nodes by name, prefix of their names)` -> the variable."""
    message: Callable[[str], Any]
    """`tensorflow.protos`: the class of one of TensorFlow's messages, by name."""

    define_old_ops: Callable[[], object] = staticmethod(lambda: None)
    """`dovetail.compat.tf1.ops`: defines the ops that only programs of TensorFlow 1 use."""
    instead_of_attribute: Callable[[str], str] = staticmethod(lambda name: "")
    """`dovetail.api.unknown_names`: an attribute that tensors do not have -> the end of the error's text."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"Nothing provides '{name}': import dovetail first")


hooks = Hooks()
