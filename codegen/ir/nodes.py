"""Nodes that the code generator makes, and facts about ops.

These nodes belong to no graph; each replaces a node of the user's graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import OpDef, opdef

PRODUCTS = {"MatMul": ("transpose_a", "transpose_b"), "BatchMatMulV2": ("adj_x", "adj_y")}
"""Matrix products, and the attributes that say which factors are taken transposed."""

HANDLES = frozenset(("VariableV2", "VarHandleOp"))
"""Ops that give a reference to a variable."""

PASSED_ON = frozenset(("Identity", "StopGradient", "PreventGradient"))
"""Ops that return their input."""


def transposed(product: Node) -> tuple[bool, bool]:
    """Which factors of a product are taken transposed."""
    first, second = PRODUCTS[product.type]
    return bool(product.attrs[first]), bool(product.attrs[second])


def new_node(
    op: str | OpDef, inputs: Sequence[Tensor], attrs: dict[str, Any], signature: Sequence[Any], root: Node
) -> Node:
    """A node outside any graph, with the name and the source line of the node that it replaces."""
    node = Node()
    node.opdef = op if isinstance(op, OpDef) else opdef(op)
    node.graph, node.index, node.name, node._origin = root.graph, root.index, root.name, root._origin
    node.inputs, node.controls, node.attrs = tuple(inputs), (), attrs
    node.device, node.colocation, node.blocks, node.container = root.device, (), None, root.container
    node.outputs = tuple([Tensor(node, i, dtype, dims) for i, (dtype, dims) in enumerate(signature)])
    return node


def inferred_node(op: str, inputs: Sequence[Tensor], attrs: dict[str, Any], root: Node) -> Node:
    """A new node, with outputs by its op's shape rule."""
    return new_node(op, inputs, attrs, opdef(op).infer(inputs, attrs), root)
