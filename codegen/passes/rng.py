"""Counter-based random numbers: splits random nodes so that kernels compute the numbers where they are used.

A random node becomes two: one makes the *stream* (a key and the number of this draw), the other gives the stream's numbers at the
positions of a tensor (`graph/ops/random/stateless_random.py`). The second is a pure function, so it can be fused: a dropout's mask is
computed in the kernel that uses it, and no array of random numbers is written. Streams are made at the start of the step, where
they block no fusion, except those of nodes that may be dead or are in a loop.

Not split: draws of types without a kernel, of unknown rank, of no elements, and those whose deadness other steps need.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.core.graph import Node
from ...graph.ops.random import stateless_random as _streams  # noqa: F401  the ops that this makes
from ..ir.index_maps import RANDOM_OPS
from ..ir.nodes import inferred_node
from ..ir.partition import BeginLoop, EndLoop, PartitionGraph, PartitionStep, RunPredicated, node_of
from ..ir.predicates import asked_for

_NUMBERS = {"RandomUniform": "UniformOfStream", "RandomStandardNormal": "NormalOfStream",
            "StatelessRandomUniform": "UniformOfStream", "StatelessRandomNormal": "NormalOfStream"}  # fmt: skip


def functionalize_random(unit: PartitionGraph) -> PartitionGraph:
    """The unit with split random nodes; the unit itself if it has none."""
    if not any(_drawing_node(step) is not None for step in unit.steps):
        return unit
    fed, asked = {t for _, t in unit.feeds}, asked_for(unit)
    first: list[PartitionStep] = []
    rest: list[PartitionStep] = []
    depth = 0
    for step in unit.steps:
        depth += isinstance(step, BeginLoop) - isinstance(step, EndLoop)
        node = _drawing_node(step)
        if node is None or node in asked or node.outputs[0] in fed or not _is_made(node):
            rest.append(step)
            continue
        stream, numbers = _taken_apart(node, isinstance(step, RunPredicated))
        if isinstance(step, RunPredicated):
            rest += [replace(step, node=stream), replace(step, node=numbers)]
        else:
            (first if depth == 0 and not stream.inputs else rest).append(stream)
            rest.append(numbers)
    return replace(unit, steps=(*first, *rest))


def _drawing_node(step: PartitionStep) -> Node | None:
    """The random node of a step, if it runs one."""
    node = node_of(step)
    return node if node is not None and node.opdef.name in _NUMBERS else None


def _is_made(node: Node) -> bool:
    """Whether kernels can compute such numbers."""
    out = node.outputs[0]
    return out.dtype in RANDOM_OPS[_NUMBERS[node.type]][1] and out.dims is not None and 0 not in out.dims


def _taken_apart(node: Node, may_be_dead: bool) -> tuple[Node, Node]:
    shape, *seed = node.inputs
    if seed:
        stream = inferred_node("SeededStream", seed, {}, node)
    else:
        stream = inferred_node(
            "RandomStream",
            (shape,) if may_be_dead else (),
            {name: node.attrs[name] for name in ("seed", "seed2")},
            node,
        )
    numbers = inferred_node(_NUMBERS[node.type], (shape, *stream.outputs), {"dtype": node.attrs["dtype"]}, node)
    numbers.outputs = node.outputs  # consumers stay unchanged
    return stream, numbers
