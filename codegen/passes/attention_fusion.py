"""Fuses attention and its gradient in training programs: a dozen nodes each become one node forward and one backward.

A rule of `codegen/passes/rules` replaces spelled-out attention by one op if the probabilities p have no other consumer. In a program
with gradients they do: the gradients of the parts,

    s  = q kᵗ scale + mask        p = softmax(s)         y  = p v
    dp = dy vᵗ                    dv = pᵗ dy
    ds = (dp - Σ dp p) p scale    dq = ds k              dk = dsᵗ q

If all of these exist and only y, dq, dk and dv have other consumers, they become `AttentionWithSums` at the position of y and
`AttentionGrad` at that of the first gradient (`graph/ops/nn/attention.py`). With unknown sizes, sums over broadcast axes lie between
the parts; `AttentionGrad` computes these too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph.core.constant_value import static_value
from ...graph.core.dtypes import bfloat16, float16, float32
from ...graph.core.graph import Node, Tensor
from ...graph.ops.nn import attention as _attention  # noqa: F401  the ops that this makes
from ..ir.nodes import inferred_node
from ..ir.partition import BeginLoop, PartitionGraph, PartitionStep, RunPredicated, SendTensor, inputs_of_step
from .rewrite import Fired
from .rules.attention import SCORES, factor, scaled
from .rules.dsl import match, parse

_TYPES = (float32, float16, bfloat16)
# Ops that may use a part's shape, if only removed nodes use them.
_SHAPES = frozenset(("Shape", "BroadcastGradientArgs", "GatherV2", "Pack"))


def fuse_attention(unit: PartitionGraph) -> tuple[PartitionGraph, tuple[Fired, ...]]:
    """The unit with attention and its gradient as one node each, and the rewrites."""
    ops = {s.type for s in unit.steps if isinstance(s, Node)}
    if not {"Softmax", "BatchMatMulV2"} <= ops or any(isinstance(s, BeginLoop | RunPredicated) for s in unit.steps):
        return unit, ()
    fired: list[Fired] = []
    while found := _Search(unit).found():
        unit = _replaced(unit, found)
        fired += [Fired("attention and its gradient", f.result, "AttentionWithSums") for f in found]
    return unit, tuple(fired)


@dataclass(frozen=True, slots=True)
class _Found:
    """Attention and its gradient. `gone`: the parts, and the nodes that use only their shapes."""

    operands: tuple[Tensor, ...]
    mask: tuple[Tensor, ...]
    scale: float
    grad: Tensor
    result: Node
    of_q: Node
    of_k: Node
    of_v: Node
    of_p: Node
    gone: frozenset[Node]


def _replaced(unit: PartitionGraph, found: Sequence[_Found]) -> PartitionGraph:
    gone = {n for f in found for n in f.gone}
    instead: dict[Node, Node] = {}
    gradients: dict[Node, Node] = {}
    for f in found:
        instead[f.result], gradient = _made(f)
        gradients[f.of_v] = gradients[f.of_p] = gradient
    placed: set[Node] = set()
    for step in unit.steps:
        if isinstance(step, Node) and step in gradients and gradients[step] not in placed:
            instead[step] = gradients[step]  # at the position of the first of the two
            placed.add(gradients[step])
    steps: list[PartitionStep] = []
    for step in unit.steps:
        if isinstance(step, Node) and step in instead:
            steps.append(instead[step])
        elif not (isinstance(step, Node) and step in gone):
            steps.append(step)
    return replace(unit, steps=tuple(steps))


def _made(found: _Found) -> tuple[Node, Node]:
    attrs = {"scale": found.scale}
    inputs = (*found.operands, *found.mask)
    y = found.result.outputs[0]
    forward = inferred_node("AttentionWithSums", inputs, attrs, found.result)
    sums = forward.outputs[1]
    forward.outputs = (y, sums)
    inputs = (*found.operands, y, sums, found.grad, *found.mask)
    backward = inferred_node("AttentionGrad", inputs, attrs, found.of_p)
    backward.outputs = tuple(n.outputs[0] for n in (found.of_q, found.of_k, found.of_v))
    return forward, backward


def _unrepeated(pattern: str, name: str) -> str:
    """A pattern, or the sum of its match over axes that were broadcast."""
    return f"{{{pattern}, Reshape(Sum({pattern}, BroadcastGradientArgs({name}1, {name}2)), {name}3)}}"


_P = f"(p := Softmax({{{SCORES}, {SCORES} + mask}}))"
_OF_P = _unrepeated("(of_p := BatchMatMulV2(grad, v, adj_x=False, adj_y=True))", "p")
_OF_SCORES = f"((seen := {_OF_P}) - Sum(seen * {_P}, axis, keep_dims=True)) * p"
_OF_SCALED = scaled(_unrepeated(_OF_SCORES, "s"), "back")
_PATTERN = parse(f"BatchMatMulV2((start := {_unrepeated(_OF_SCALED, 'r')}), k, adj_x=False, adj_y=False)")
"""The gradient of the queries: it is made from all parts but three products."""


class _Search:
    """Looks for the parts in a unit."""

    def __init__(self, unit: PartitionGraph) -> None:
        self.nodes = [s for s in unit.steps if isinstance(s, Node)]
        self.maker = {t: n for n in self.nodes for t in n.outputs}
        self.takers: dict[Tensor, list[Node | None]] = {}
        for step in unit.steps:
            for t in inputs_of_step(step):
                self.takers.setdefault(t, []).append(step if isinstance(step, Node) else None)
        for _, t in (*unit.fetches, *unit.feeds):
            self.takers.setdefault(t, []).append(None)
        for _, t in unit.feeds:
            self.maker.pop(t, None)  # the value is another one
        self.asked = {s.token for s in unit.steps if isinstance(s, SendTensor)}

    def found(self) -> list[_Found]:
        """The complete matches that share no parts."""
        out: list[_Found] = []
        gone: set[Node] = set()
        for node in self.nodes:
            for names, nodes in self.matches(node):
                found = self.at(node, names, nodes)
                if found is not None and gone.isdisjoint(found.gone):
                    gone |= found.gone
                    out.append(found)
                    break
        return out

    def matches(self, of_q: Node) -> Iterable[tuple[Mapping[str, Any], Sequence[Node]]]:
        """What the pattern matches at a node: the names, and the nodes without those that only look at shapes."""
        if of_q.type == "BatchMatMulV2":
            for found in match(_PATTERN, of_q, self.maker.get):
                yield found.names, [n for n in found.nodes if n.type not in _SHAPES]

    def at(self, of_q: Node, names: Mapping[str, Any], nodes: Sequence[Node]) -> _Found | None:
        """With this as the gradient of the queries."""
        q, k, v, p, grad = (names[x] for x in ("q", "k", "v", "p", "grad"))
        mask = (names["mask"],) if "mask" in names else ()
        scale, back = (factor(names, name, lambda n: static_value(names[n])) for name in ("scale", "back"))
        axes = static_value(names["axis"])
        if not scale or not back or not np.isclose(back, scale, rtol=1e-6, atol=0.0):
            return None
        if q.dtype not in _TYPES or not _fit(q, k, v, mask):
            return None
        if axes is None or np.asarray(axes).ravel().tolist() not in ([-1], [len(q.dims) - 1]):
            return None
        result = self.only(p, (p, v), (False, False))
        of_v = self.only(p, (p, grad), (True, False))
        of_k = self.only(names["start"], (names["start"], q), (True, False))
        if result is None or of_v is None or of_k is None:
            return None
        seen = {n.outputs[0] for n in (result, of_q, of_k, of_v)}
        gone = {result, of_k, of_v, *nodes}
        gone |= self.only_look(gone, seen)
        inner = [t for n in gone for t in n.outputs if t not in seen]
        if any(taker not in gone for t in inner for taker in self.takers.get(t, ())) or gone & self.asked:
            return None
        of_p = names["of_p"].op
        return _Found((q, k, v), mask, scale, grad, result, of_q, of_k, of_v, of_p, frozenset(gone))

    def only(self, t: Tensor, inputs: tuple[Tensor, Tensor], flags: tuple[bool, bool]) -> Node | None:
        """The one product of these operands that takes a tensor, each transposed or not."""
        taking = dict.fromkeys(n for n in self.takers.get(t, ()) if n is not None and n.type == "BatchMatMulV2")
        found = [n for n in taking if n.inputs == inputs and (n.attrs["adj_x"], n.attrs["adj_y"]) == flags]
        return found[0] if len(found) == 1 else None

    def only_look(self, gone: set[Node], seen: set[Tensor]) -> set[Node]:
        """Nodes that use only the shapes of removed nodes, and have only removed consumers."""
        found: set[Node] = set()
        ends = [t for n in gone for t in n.outputs if t not in seen]
        while ends:
            more = {n for t in ends for n in self.takers.get(t, ()) if n is not None and n.type in _SHAPES} - found
            found |= more
            ends = [t for n in more for t in n.outputs]
        while True:
            used = {n for n in found if any(t not in gone | found for o in n.outputs for t in self.takers.get(o, ()))}
            if not used:
                return found
            found -= used


def _fit(q: Tensor, k: Tensor, v: Tensor, mask: Iterable[Tensor]) -> bool:
    """Whether all are of one type, and have stack axes of one static rank and, as far as is known, one shape."""
    dims: Sequence[Sequence[int | None] | None] = [t.dims for t in (q, k, v)]
    if any(d is None or len(d) < 3 for d in dims) or len({len(d) for d in dims if d is not None}) != 1:
        return False
    stacks = {tuple(d[:-2]) for d in dims if d is not None}
    return len(stacks) == 1 and all(t.dtype is q.dtype for t in (k, v, *mask)) and all(t.dims is not None for t in mask)
