"""Sums of products become products: a1 @ b1 + a2 @ b2 is [a1 a2] @ [b1; b2].

A matrix that is used n times has a gradient of n terms. In a recurrent network that is written out each step gives one: a product as
large as the matrix, over no more than the batch. Such a term costs little arithmetic, but it is written, kept until the sum, and read
again. An LSTM of 50 steps with 192 x 512 weights wrote 19 MB of terms. Here the factors are concatenated along the summed axis, and
one product gives the sum, as libraries of recurrent layers do for all steps at once (Appleyard et al., "Optimizing Performance of
Recurrent Neural Networks on GPUs", 2016). The terms are the same; they are added in another order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...graph.core.graph import Node, Tensor
from ...graph.core.shape import element_count
from ..ir.nodes import inferred_node, transposed
from ..ir.partition import BeginLoop, EndLoop, PartitionGraph, PartitionStep, inputs_of_step


def merge_summed_products(graph: PartitionGraph) -> PartitionGraph:
    """The graph with one product for each sum of products that are larger than their factors; the graph itself if it has none.

    Products of unknown sizes stay, and those with another consumer than the sum, or in another loop.
    """
    if not {"AddN", "MatMul"} <= graph.ops:
        return graph
    uses = Counter(t for s in graph.steps for t in inputs_of_step(s))
    uses.update(t for _, t in graph.fetches)
    fixed = graph.needed_tokens
    fed = {t for _, t in graph.feeds}
    products: dict[Tensor, Node] = {}  # of this loop, by their results
    merged: dict[Node, Sequence[Node]] = {}  # a sum -> the nodes that replace it
    gone: set[Node] = set()
    for step in graph.steps:
        if isinstance(step, BeginLoop | EndLoop):
            products.clear()
        if type(step) is not Node or step in fixed or not fed.isdisjoint(step.outputs):
            continue
        if step.opdef.name == "MatMul" and uses[step.outputs[0]] == 1 and _is_larger_than_factors(step):
            products[step.outputs[0]] = step
        elif step.opdef.name == "AddN":
            alike: defaultdict[tuple[int, int], list[Node]] = defaultdict(list)
            for product in [products[t] for t in step.inputs if t in products]:
                alike[_summed_axes(product)].append(product)
            if several := [group for group in alike.values() if len(group) > 1]:
                merged[step] = _merged(step, several)
                gone.update(*several)
    steps: list[PartitionStep] = []
    for step in graph.steps:
        if step not in gone:
            steps += merged.get(step, (step,)) if type(step) is Node else (step,)
    return replace(graph, steps=tuple(steps)) if gone else graph


def _summed_axes(product: Node) -> tuple[int, int]:
    """Along which axis each factor of a product is summed."""
    first, second = transposed(product)
    return 0 if first else 1, 1 if second else 0


def _is_larger_than_factors(product: Node) -> bool:
    """Whether a product has more elements than its factors, which are values of known sizes."""
    sizes = []
    for factor, axis in zip(product.inputs, _summed_axes(product), strict=True):
        if factor.dims is None or len(factor.dims) != 2 or None in factor.dims or factor.dtype.is_ref:
            return False
        sizes.append((element_count(factor.dims) or 0, factor.dims[1 - axis] or 0))
    (first, rows), (second, columns) = sizes
    return first + second < rows * columns


def _merged(root: Node, groups: Sequence[Sequence[Node]]) -> Sequence[Node]:
    """The nodes that replace a sum: a product for each group of products, and a sum of these and of the other terms."""
    made: list[Node] = []
    terms = list(root.inputs)
    for group in groups:
        factors = []
        for which, axis in enumerate(_summed_axes(group[0])):
            along = inferred_node("Const", (), {"value": np.array(axis, np.int32)}, root)
            parts = [product.inputs[which] for product in group]
            factors.append(inferred_node("ConcatV2", (*parts, *along.outputs), {}, root))
            made += along, factors[-1]
        made.append(inferred_node("MatMul", [f.outputs[0] for f in factors], dict(group[0].attrs), root))
        summed = {product.outputs[0] for product in group}
        terms = [*made[-1].outputs, *(t for t in terms if t not in summed)]
    if len(terms) > 1:
        made.append(inferred_node("AddN", terms, {}, root))
    made[-1].outputs = root.outputs  # consumers stay unchanged
    return made
