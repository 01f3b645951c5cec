"""Mixed-precision products: those of float16 and bfloat16 become products of float32 with casts around them.

CPUs multiply no such numbers. The factors are widened, the products summed in float32, and the sums rounded once. As nodes of their
own, the casts are fused with what is around them.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.core.dtypes import bfloat16, float16, float32
from ...graph.core.graph import Node
from ..ir.nodes import PRODUCTS, inferred_node
from ..ir.partition import PartitionGraph, PartitionStep, RunPredicated, node_of
from ..ir.predicates import asked_for

_NARROW = (float16, bfloat16)


def widen_products(graph: PartitionGraph) -> PartitionGraph:
    """The graph with widened products; the graph itself if it has none.

    Not widened: a product that is fed, or whose deadness other steps need.
    """
    if not any(_product(step) for step in graph.steps):
        return graph
    fed, asked = {t for _, t in graph.feeds}, asked_for(graph)
    steps: list[PartitionStep] = []
    for step in graph.steps:
        node = _product(step)
        if node is None or node in asked or node.outputs[0] in fed:
            steps.append(step)
        elif isinstance(step, RunPredicated):
            steps += [replace(step, node=each) for each in _widened(node)]
        else:
            steps += _widened(node)
    return replace(graph, steps=tuple(steps))


def _product(step: PartitionStep) -> Node | None:
    """The narrow product of a step, if it runs one."""
    node = node_of(step)
    found = node is not None and node.opdef.name in PRODUCTS and node.outputs[0].dtype.base in _NARROW
    return node if found else None


def _widened(node: Node) -> list[Node]:
    """The nodes that replace a product."""
    casts = [inferred_node("Cast", (t,), {"DstT": float32}, node) for t in node.inputs]
    product = inferred_node(node.type, [c.outputs[0] for c in casts], dict(node.attrs), node)
    rounded = inferred_node("Cast", product.outputs, {"DstT": node.outputs[0].dtype.base}, node)
    rounded.outputs = node.outputs  # consumers stay unchanged
    return [*casts, product, rounded]
