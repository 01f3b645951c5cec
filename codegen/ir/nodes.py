"""Nodes that the code generator makes: in nobody's graph, each in the place of one that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import OpDef, opdef


def new_node(
    op: str | OpDef, inputs: Sequence[Tensor], attrs: dict[str, Any], signature: Sequence[Any], root: Node
) -> Node:
    """A node in nobody's graph, with the name and the source line of the one that it stands for."""
    node = Node()
    node.opdef = op if isinstance(op, OpDef) else opdef(op)
    node.graph, node.index, node.name, node._origin = root.graph, root.index, root.name, root._origin
    node.inputs, node.controls, node.attrs = tuple(inputs), (), attrs
    node.device, node.colocation, node.blocks, node.container = root.device, (), None, root.container
    node.outputs = tuple([Tensor(node, i, dtype, dims) for i, (dtype, dims) in enumerate(signature)])
    return node


def inferred_node(op: str, inputs: Sequence[Tensor], attrs: dict[str, Any], root: Node) -> Node:
    """A new node whose outputs are what its op's rule says."""
    return new_node(op, inputs, attrs, opdef(op).infer(inputs, attrs), root)
