"""Decompositions: single nodes become several, so that these can be fused with what is around them.

Random numbers are counter-based. A random node becomes two: one makes the *stream* (a key and the number of this draw), the other gives the
stream's numbers at the positions of a tensor (`graph/ops/random/stateless_random.py`). The second is a pure function, so it can be fused:
a dropout's mask is computed in the kernel that uses it, and no array of random numbers is written. Streams are made at the start of the
step, where they block no fusion, except those of nodes that may be dead or are in a loop. Draws of types without a kernel, of unknown rank
and of no elements stay.

The gradient of max pooling is two loop nests: the first finds the tap that each window chooses, the second goes over the pixels and takes
the gradients of the windows that chose them.

Products of float16 and bfloat16 become products of float32 with casts around them, for CPUs, which multiply no such numbers. The factors
are widened, the products summed in float32, and the sums rounded once.

Batch normalization and its gradient become sums and elementwise nodes (`batch_norm`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from ...graph.core.dtypes import bfloat16, float16, float32, int32
from ...graph.core.graph import Node, Tensor
from ...graph.ops.random import stateless_random as _streams  # noqa: F401  the ops that this makes
from ..ir.index_maps import RANDOM_OPS
from ..ir.nodes import PRODUCTS, inferred_node, new_node
from ..ir.partition import BeginLoop, EndLoop, PartitionGraph, PartitionStep, RunPredicated, inputs_of_step, node_of
from .batch_norm import BATCH_NORMS, elementary_nodes, fits

_NARROW = (float16, bfloat16)
_NUMBERS = {"RandomUniform": "UniformOfStream", "RandomStandardNormal": "NormalOfStream",
            "StatelessRandomUniform": "UniformOfStream", "StatelessRandomNormal": "NormalOfStream"}  # fmt: skip


def functionalize_random(graph: PartitionGraph) -> PartitionGraph:
    """The graph with split random nodes; the graph itself if it has none."""
    return _decomposed(graph, _NUMBERS, _stream_and_numbers, _is_drawn)


def widen_products(graph: PartitionGraph) -> PartitionGraph:
    """The graph with widened products; the graph itself if it has none."""
    return _decomposed(graph, PRODUCTS, _widened, lambda node: node.outputs[0].dtype.base in _NARROW)


def split_max_pool_gradients(graph: PartitionGraph) -> PartitionGraph:
    """The graph with gradients of max pooling as two nodes; the graph itself if it has none."""
    return _decomposed(graph, ("MaxPoolGrad",), _choice_and_gradient)


def split_batch_norms(graph: PartitionGraph) -> PartitionGraph:
    """The graph with batch normalizations as elementary nodes; the graph itself if it has none."""
    return _decomposed(graph, BATCH_NORMS, elementary_nodes, fits)


def _decomposed(
    graph: PartitionGraph,
    ops: Collection[str],
    made: Callable[[Node, bool], Sequence[Node]],
    chosen: Callable[[Node], bool] = lambda node: True,
) -> PartitionGraph:
    """The graph with other nodes for those of `ops` that are `chosen`, unless they are fed, or others need to know whether they are dead.

    `made`: gives the nodes, for one that may be dead or not. A stream of random numbers goes to the start, if it can.
    """
    if graph.ops.isdisjoint(ops):
        return graph
    found = {n for n in graph.nodes if n.opdef.name in ops and chosen(n)}
    if not found:
        return graph
    fed, asked = {t for _, t in graph.feeds}, graph.needed_tokens
    taken = {t for s in graph.steps for t in inputs_of_step(s)} | {t for _, t in graph.fetches}
    first: list[PartitionStep] = []
    rest: list[PartitionStep] = []
    depth = 0
    for step in graph.steps:
        depth += isinstance(step, BeginLoop) - isinstance(step, EndLoop)
        node = node_of(step)
        if node is None or node not in found or node in asked or not fed.isdisjoint(node.outputs):
            rest.append(step)
            continue
        wanted = {node.outputs[0], *taken.intersection(node.outputs)}
        for each in _needed(made(node, isinstance(step, RunPredicated)), wanted):
            if isinstance(step, RunPredicated) and each.type != "Const":
                rest.append(replace(step, node=each))
            else:
                (first if each.type == "RandomStream" and depth == 0 else rest).append(each)
    return replace(graph, steps=(*first, *rest))


def _needed(nodes: Sequence[Node], wanted: set[Tensor]) -> Sequence[Node]:
    """Those of some nodes, in order, that these tensors need."""
    found: list[Node] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            found.append(node)
            wanted.update(node.inputs)
    return found[::-1]


def _is_drawn(node: Node) -> bool:
    """Whether a node draws random numbers, which kernels can compute."""
    out = node.outputs[0]
    return out.dtype in RANDOM_OPS[_NUMBERS[node.type]][1] and out.dims is not None and 0 not in out.dims


def _stream_and_numbers(node: Node, may_be_dead: bool) -> Sequence[Node]:
    shape, *seed = node.inputs
    if seed:
        stream = inferred_node("SeededStream", seed, {}, node)
    else:
        attrs = {name: node.attrs[name] for name in ("seed", "seed2")}
        stream = inferred_node("RandomStream", (shape,) if may_be_dead else (), attrs, node)
    numbers = inferred_node(_NUMBERS[node.type], (shape, *stream.outputs), {"dtype": node.attrs["dtype"]}, node)
    numbers.outputs = node.outputs  # consumers stay unchanged
    return stream, numbers


def _widened(node: Node, may_be_dead: bool) -> Sequence[Node]:
    casts = [inferred_node("Cast", (t,), {"DstT": float32}, node) for t in node.inputs]
    product = inferred_node(node.type, [c.outputs[0] for c in casts], dict(node.attrs), node)
    rounded = inferred_node("Cast", product.outputs, {"DstT": node.outputs[0].dtype.base}, node)
    rounded.outputs = node.outputs  # consumers stay unchanged
    return [*casts, product, rounded]


def _choice_and_gradient(node: Node, may_be_dead: bool) -> Sequence[Node]:
    image, _, gradient = node.inputs
    dims, attrs = image.dims, dict(node.attrs)
    if dims is not None and None not in dims and not may_be_dead:
        sizes = new_node("Const", (), {"value": np.array(dims, np.int32)}, [(int32, (len(dims),))], node)
    else:
        sizes = inferred_node("Shape", (image,), {"out_type": int32}, node)
    choice = inferred_node("MaxPoolChoice", (image,), attrs, node)
    split = inferred_node("MaxPoolChoiceGrad", (*sizes.outputs, *choice.outputs, gradient), attrs, node)
    split.outputs = node.outputs  # consumers stay unchanged
    return sizes, choice, split
