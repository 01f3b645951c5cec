"""Fuses attention that is spelled out, and its gradient: a dozen nodes each become one node forward and one backward.

    s  = q kᵗ scale + mask        p = softmax(s)         y  = p v
    dp = dy vᵗ                    dv = pᵗ dy
    ds = (dp - Σ dp p) p scale    dq = ds k              dk = dsᵗ q

Without gradients, y becomes `Attention`. If all of the gradients exist and only y, dq, dk and dv have other consumers, they become
`AttentionWithSums` at the position of y and `AttentionGrad` at that of the first gradient (`graph/ops/nn/attention.py`). With unknown
sizes, sums over broadcast axes lie between the parts; `AttentionGrad` computes these too. The results are those of the formulas up to
rounding. What others need a part of stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph.core.constant_value import static_value
from ...graph.core.dtypes import bfloat16, float16, float32
from ...graph.core.graph import Node, Tensor
from ...graph.ops.nn import attention as _attention  # noqa: F401  the ops that this makes
from ..ir.nodes import inferred_node, transposed
from ..ir.partition import BeginLoop, PartitionGraph, RunPredicated, inputs_of_step
from .rewrite import Fired
from .rules.dsl import match, parse

_TYPES = (float32, float16, bfloat16)
# Ops that may use a part's shape, if only removed nodes use them.
_SHAPES = frozenset(("Shape", "BroadcastGradientArgs", "GatherV2", "Pack"))


def fuse_attention(partition: PartitionGraph) -> tuple[PartitionGraph, tuple[Fired, ...]]:
    """The partition with attention and its gradient as one node each, and the rewrites."""
    if not {"Softmax", "BatchMatMulV2"} <= {s.type for s in partition.steps if isinstance(s, Node)}:
        return partition, ()
    fired: list[Fired] = []
    while found := _Search(partition).found():
        instead = {old: new for f in found for old, new in f.instead.items()}
        gone = {n for f in found for n in f.gone}.difference(instead)
        steps = [instead.get(s, s) if isinstance(s, Node) else s for s in partition.steps if s not in gone]
        partition = replace(partition, steps=tuple(steps))
        fired += [Fired(f.rule, *next((old, new.type) for old, new in f.instead.items())) for f in found]
    return partition, tuple(fired)


@dataclass(frozen=True, slots=True)
class _Found:
    """A match.

    Attributes:
        rule: its name in reports.
        instead: what replaces some of its nodes, the result first.
        gone: all of its nodes, and those that use only their shapes.
    """

    rule: str
    instead: dict[Node, Node]
    gone: frozenset[Node]


# --- patterns ----------------------------------------------------------------------------------------------------------


def _scaled(pattern: str, name: str) -> str:
    """A pattern, or its match times or divided by a number: `_factor` gives that."""
    return f"{{{pattern} * {name}, {pattern} / {name}_under, {pattern}}}"


def _factor(names: Mapping[str, Any], name: str) -> float | None:
    """The number that a match of `_scaled` was multiplied by: 1 if it was not; None if it is not known, or no finite number."""
    under = f"{name}_under" in names
    if not under and name not in names:
        return 1.0
    array = static_value(names[f"{name}_under" if under else name])
    value = float(array.reshape(())) if array is not None and array.size == 1 else np.nan
    if not np.isfinite(value) or (under and value == 0):
        return None
    return 1.0 / value if under else value


def _unrepeated(pattern: str, name: str) -> str:
    """A pattern, or the sum of its match over axes that were broadcast."""
    return f"{{{pattern}, Reshape(Sum({pattern}, BroadcastGradientArgs({name}1, {name}2)), {name}3)}}"


_SCORES = _scaled("BatchMatMulV2(q, k, adj_x=False, adj_y=True)", "scale")
_P = f"(p := Softmax({{{_SCORES}, {_SCORES} + mask}}))"
_RESULT = parse(f"BatchMatMulV2({_P}, v, adj_x=False, adj_y=False)")
_OF_P = _unrepeated("(of_p := BatchMatMulV2(grad, v, adj_x=False, adj_y=True))", "p")
_OF_SCORES = f"((seen := {_OF_P}) - Sum(seen * {_P}, axis, keep_dims=True)) * p"
_OF_SCALED = _scaled(_unrepeated(_OF_SCORES, "s"), "back")
_OF_QUERIES = parse(f"BatchMatMulV2((start := {_unrepeated(_OF_SCALED, 'r')}), k, adj_x=False, adj_y=False)")
"""The gradient of the queries: it is made from all parts but three products."""


class _Search:
    """Looks for the parts in a partition."""

    def __init__(self, partition: PartitionGraph) -> None:
        self.nodes = {s: i for i, s in enumerate(partition.steps) if isinstance(s, Node)}  # and their places
        self.maker = {t: n for n in self.nodes for t in n.outputs}
        self.consumers: dict[Tensor, list[Node | None]] = {}
        for step in partition.steps:
            for t in inputs_of_step(step):
                self.consumers.setdefault(t, []).append(step if isinstance(step, Node) else None)
        for _, t in (*partition.fetches, *partition.feeds):
            self.consumers.setdefault(t, []).append(None)
        for _, t in partition.feeds:
            self.maker.pop(t, None)  # the value is another one
        self.needed_tokens = partition.needed_tokens
        self.is_plain = partition.kinds.isdisjoint((BeginLoop, RunPredicated))

    def found(self) -> list[_Found]:
        """The complete matches that share no parts."""
        out: list[_Found] = []
        gone: set[Node] = set()
        for node in self.nodes:
            found = next((f for f in self.at(node) if gone.isdisjoint(f.gone)), None)
            if found is not None:
                gone |= found.gone
                out.append(found)
        return out

    def at(self, node: Node) -> Iterator[_Found]:
        """What may be replaced, if this is the gradient of the queries or the result."""
        if node.type != "BatchMatMulV2":
            return
        ways = ((_RESULT, self.without_gradients), (_OF_QUERIES, self.with_gradients))
        for pattern, replaced in ways if self.is_plain else ways[:1]:
            for match_ in match(pattern, node, self.maker.get):
                nodes = {n for n in match_.nodes if n.type not in _SHAPES}
                found = replaced(node, match_.names, nodes)
                if found is not None:
                    yield found

    def without_gradients(self, result: Node, names: Mapping[str, Any], nodes: set[Node]) -> _Found | None:
        operands, scale = _operands(names), _factor(names, "scale")
        gone = self.closed(nodes, (result,))
        if operands is None or not scale or gone is None:
            return None
        made = inferred_node("Attention", operands, {"scale": scale}, result)
        made.outputs = result.outputs
        return _Found("attention", {result: made}, gone)

    def with_gradients(self, of_q: Node, names: Mapping[str, Any], nodes: set[Node]) -> _Found | None:
        operands, scale, back = _operands(names), _factor(names, "scale"), _factor(names, "back")
        if operands is None or not scale or not back or not np.isclose(back, scale, rtol=1e-6, atol=0.0):
            return None
        (q, k, v, *mask), p, grad, axes = operands, names["p"], names["grad"], static_value(names["axis"])
        if axes is None or np.asarray(axes).ravel().tolist() not in ([-1], [len(q.dims or ()) - 1]):
            return None
        result = self.only(p, (p, v), (False, False))
        of_v = self.only(p, (p, grad), (True, False))
        of_k = self.only(names["start"], (names["start"], q), (True, False))
        if result is None or of_v is None or of_k is None:
            return None
        gone = self.closed({result, of_k, of_v, *nodes}, (result, of_q, of_k, of_v))
        if gone is None:
            return None
        (y,), of_p = result.outputs, names["of_p"].op
        forward = inferred_node("AttentionWithSums", operands, {"scale": scale}, result)
        sums = forward.outputs[1]
        forward.outputs = (y, sums)
        backward = inferred_node("AttentionGrad", (q, k, v, y, sums, grad, *mask), {"scale": scale}, of_p)
        backward.outputs = tuple(n.outputs[0] for n in (of_q, of_k, of_v))
        first = min(of_v, of_p, key=self.nodes.__getitem__)
        return _Found("attention and its gradient", {result: forward, first: backward}, gone)

    def closed(self, parts: set[Node], kept: Iterable[Node]) -> frozenset[Node] | None:
        """The parts, and the nodes that use only their shapes; None if others need more of them than the values of `kept`."""
        seen = {n.outputs[0] for n in kept}
        gone = parts | self.only_look(parts, seen)
        inner = [t for n in gone for t in n.outputs if t not in seen]
        is_used = any(consumer not in gone for t in inner for consumer in self.consumers.get(t, ()))
        return None if is_used or gone & self.needed_tokens else frozenset(gone)

    def only(self, t: Tensor, inputs: tuple[Tensor, Tensor], flags: tuple[bool, bool]) -> Node | None:
        """The one product of these operands that takes a tensor, each transposed or not."""
        taking = dict.fromkeys(n for n in self.consumers.get(t, ()) if n is not None and n.type == "BatchMatMulV2")
        found = [n for n in taking if n.inputs == inputs and transposed(n) == flags]
        return found[0] if len(found) == 1 else None

    def only_look(self, gone: set[Node], seen: set[Tensor]) -> set[Node]:
        """Nodes that use only the shapes of removed nodes, and have only removed consumers."""
        found: set[Node] = set()
        ends = [t for n in gone for t in n.outputs if t not in seen]
        while ends:
            more = {n for t in ends for n in self.consumers.get(t, ()) if n is not None and n.type in _SHAPES} - found
            found |= more
            ends = [t for n in more for t in n.outputs]
        while True:
            inside = gone | found
            used = {n for n in found if any(t not in inside for o in n.outputs for t in self.consumers.get(o, ()))}
            if not used:
                return found
            found -= used


def _operands(names: Mapping[str, Any]) -> tuple[Tensor, ...] | None:
    """Queries, keys, values, and the mask if there is one; None unless kernels have their type, and their stack axes fit.

    These are of one static rank and, as far as is known, one shape.
    """
    q, k, v, *mask = (names[x] for x in ("q", "k", "v", "mask") if x in names)
    dims: Sequence[Sequence[int | None] | None] = [t.dims for t in (q, k, v)]
    if any(d is None or len(d) < 3 for d in dims) or len({len(d) for d in dims if d is not None}) != 1:
        return None
    if len({tuple(d[:-2]) for d in dims if d is not None}) != 1 or any(t.dims is None for t in mask):
        return None
    return (q, k, v, *mask) if q.dtype in _TYPES and all(t.dtype is q.dtype for t in (k, v, *mask)) else None
