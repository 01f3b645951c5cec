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

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...graph.core.constant_value import static_value
from ...graph.core.dtypes import DType, bfloat16, float16, float32
from ...graph.core.graph import Node, Tensor
from ...graph.ops.nn import attention as _attention  # noqa: F401  the ops that this makes
from ..ir.nodes import inferred_node
from ..ir.partition import BeginLoop, PartitionGraph, PartitionStep, RunPredicated, SendTensor, inputs_of_step
from .rewrite import Fired

_TYPES = (float32, float16, bfloat16)
_SHAPES = frozenset(
    ("Shape", "BroadcastGradientArgs", "GatherV2", "Pack")
)  # ops that may use a part's shape, if only removed nodes use them


def fuse_attention(unit: PartitionGraph, types: Collection[DType] = _TYPES) -> tuple[PartitionGraph, tuple[Fired, ...]]:
    """The unit with attention and its gradient as one node each, and the rewrites; `types`: the supported element types."""
    ops = {s.type for s in unit.steps if isinstance(s, Node)}
    if not {"Softmax", "BatchMatMulV2"} <= ops or any(isinstance(s, BeginLoop | RunPredicated) for s in unit.steps):
        return unit, ()
    fired: list[Fired] = []
    while found := _Search(unit, types).found():
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


class _Search:
    """Looks for the parts in a unit."""

    def __init__(self, unit: PartitionGraph, types: Collection[DType]) -> None:
        self.types = types
        self.nodes = [s for s in unit.steps if isinstance(s, Node)]
        self.maker = {t: n for n in self.nodes for t in n.outputs}
        self.takers: dict[Tensor, list[Node | None]] = {}
        for step in unit.steps:
            for t in inputs_of_step(step):
                self.takers.setdefault(t, []).append(step if isinstance(step, Node) else None)
        for _, t in (*unit.fetches, *unit.feeds):
            self.takers.setdefault(t, []).append(None)
        self.fed = {t for _, t in unit.feeds}
        self.asked = {s.token for s in unit.steps if isinstance(s, SendTensor)}

    def found(self) -> list[_Found]:
        """The complete matches that share no parts."""
        out: list[_Found] = []
        gone: set[Node] = set()
        for node in self.nodes:
            found = self.at(node) if node.type == "BatchMatMulV2" else None
            if found is not None and gone.isdisjoint(found.gone):
                gone |= found.gone
                out.append(found)
        return out

    def at(self, result: Node) -> _Found | None:
        """With this as the last product of the forward part."""
        softmax = self.made_by(result.inputs[0], "Softmax")
        if softmax is None or _flags(result) != (False, False):
            return None
        p, v = result.inputs
        forward = self.scores(softmax.inputs[0])
        if forward is None:
            return None
        product, mask, scale, parts = forward
        q, k = product.inputs
        if q.dtype not in self.types or not _fit(q, k, v, mask):
            return None
        gone = {result, softmax, *parts}
        backward = self.gradient(p, v, q, k, scale)
        if backward is None:
            return None
        of_q, of_k, of_v, of_p, more = backward
        gone |= {of_q, of_k, of_v, of_p, *more}
        seen = {n.outputs[0] for n in (result, of_q, of_k, of_v)}
        gone |= self.only_look(gone, seen)
        inner = [t for n in gone for t in n.outputs if t not in seen]
        if any(taker not in gone for t in inner for taker in self.takers.get(t, ())) or gone & self.asked:
            return None
        return _Found((q, k, v), mask, scale, of_p.inputs[0], result, of_q, of_k, of_v, of_p, frozenset(gone))

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

    # --- forward ---------------------------------------------------------------------------------------------------

    def scores(self, s: Tensor) -> tuple[Node, tuple[Tensor, ...], float, list[Node]] | None:
        """Matches q kᵗ scale + mask: the product, the mask, the scale, and the nodes."""
        total = self.made_by(s, "AddV2")
        if total is None:
            found = self.scaled(s)
            return None if found is None else (found[0], (), found[1], found[2])
        for one, other in (total.inputs, total.inputs[::-1]):
            found = self.scaled(one)
            if found is not None:
                return found[0], (other,), found[1], [total, *found[2]]
        return None

    def scaled(self, s: Tensor) -> tuple[Node, float, list[Node]] | None:
        """Matches q kᵗ scale: the product, the scale, and the nodes."""
        factor, parts = 1.0, []
        step = self.factor(s)
        if step is not None:
            s, factor, node = step
            parts.append(node)
        product = self.made_by(s, "BatchMatMulV2")
        if product is None or _flags(product) != (False, True):
            return None
        return product, factor, [*parts, product]

    def factor(self, t: Tensor) -> tuple[Tensor, float, Node] | None:
        """Matches x times, or divided by, a number: x, the factor, and the node."""
        node = self.maker.get(t)
        if node is None or node.type not in ("Mul", "RealDiv"):
            return None
        for x, number in (node.inputs, node.inputs[::-1])[: 2 if node.type == "Mul" else 1]:
            array = None if number in self.fed else static_value(number)
            value = float(array.reshape(())) if array is not None and array.size == 1 else 0.0
            if np.isfinite(value) and value != 0:
                return x, value if node.type == "Mul" else 1.0 / value, node
        return None

    # --- backward --------------------------------------------------------------------------------------------------

    def gradient(
        self, p: Tensor, v: Tensor, q: Tensor, k: Tensor, scale: float
    ) -> tuple[Node, Node, Node, Node, list[Node]] | None:
        """The products for q, k, v and p, and the nodes between them."""
        for inner in self.taking(p, "Mul"):
            of_p_seen = _other(inner, p)
            parts = self.of_softmax(inner, of_p_seen, p)
            of_p, views = self.unrepeated(of_p_seen)
            product = self.made_by(of_p, "BatchMatMulV2")
            if parts is None or product is None or _flags(product) != (False, True) or product.inputs[1] is not v:
                continue
            grad = product.inputs[0]
            of_v = [n for n in self.taking(p, "BatchMatMulV2") if _flags(n) == (True, False) and n.inputs == (p, grad)]
            pair = self.of_operands(parts[-1].outputs[0], q, k, scale)
            if len(of_v) == 1 and pair is not None:
                of_q, of_k, more = pair
                return of_q, of_k, of_v[0], product, [*parts, *views, *more]
        return None

    def of_softmax(self, inner: Node, of_p: Tensor, p: Tensor) -> list[Node] | None:
        """The nodes of (dp - Σ dp p) p, from dp p on; the last one is the result."""
        for total in self.taking(inner.outputs[0], "Sum"):
            axes, dims = static_value(total.inputs[1]), p.dims
            last = (
                dims is not None and axes is not None and np.asarray(axes).ravel().tolist() in ([-1], [len(dims) - 1])
            )
            if not last or not total.attrs.get("keep_dims", False):
                continue
            for centred in self.taking(total.outputs[0], "Sub"):
                if centred.inputs != (of_p, total.outputs[0]):
                    continue
                for product in self.taking(centred.outputs[0], "Mul"):
                    if set(product.inputs) == {centred.outputs[0], p}:
                        return [inner, total, centred, product]
        return None

    def of_operands(self, ds: Tensor, q: Tensor, k: Tensor, scale: float) -> tuple[Node, Node, list[Node]] | None:
        """The products for q and k, and the nodes from the softmax's gradient to them."""
        for of_q in self.taking(k, "BatchMatMulV2"):
            start, parts, factor = of_q.inputs[0], [], 1.0
            if _flags(of_q) != (False, False) or of_q.inputs[1] is not k:
                continue
            t = start
            while t is not ds:
                step = self.factor(t)
                if step is not None:
                    t, by, node = step
                    factor *= by
                    parts.append(node)
                    continue
                t, views = self.unrepeated(t)
                if not views:
                    break
                parts += views
            if t is not ds or not np.isclose(factor, scale, rtol=1e-6, atol=0.0):
                continue
            of_k = [n for n in self.taking(q, "BatchMatMulV2") if _flags(n) == (True, False) and n.inputs == (start, q)]
            if len(of_k) == 1:
                return of_q, of_k[0], parts
        return None

    # --- steps -----------------------------------------------------------------------------------------------------

    def made_by(self, t: Tensor, op: str) -> Node | None:
        node = self.maker.get(t)
        return node if node is not None and node.type == op else None

    def taking(self, t: Tensor, op: str) -> list[Node]:
        return list(dict.fromkeys(n for n in self.takers.get(t, ()) if n is not None and n.type == op))

    def unrepeated(self, t: Tensor) -> tuple[Tensor, list[Node]]:
        """The operand of a sum over broadcast axes, and the sum's nodes."""
        shaped = self.made_by(t, "Reshape")
        total = None if shaped is None else self.made_by(shaped.inputs[0], "Sum")
        if shaped is None or total is None or total.inputs[1].op.type != "BroadcastGradientArgs":
            return t, []
        return total.inputs[0], [shaped, total]


def _flags(product: Node) -> tuple[bool, bool]:
    return bool(product.attrs.get("adj_x")), bool(product.attrs.get("adj_y"))


def _other(node: Node, t: Tensor) -> Tensor:
    return node.inputs[1] if node.inputs[0] is t else node.inputs[0]


def _fit(q: Tensor, k: Tensor, v: Tensor, mask: Iterable[Tensor]) -> bool:
    """Whether all are of one type, and have stack axes of one static rank and, as far as is known, one shape."""
    dims: Sequence[Sequence[int | None] | None] = [t.dims for t in (q, k, v)]
    if any(d is None or len(d) < 3 for d in dims) or len({len(d) for d in dims if d is not None}) != 1:
        return False
    stacks = {tuple(d[:-2]) for d in dims if d is not None}
    return len(stacks) == 1 and all(t.dtype is q.dtype for t in (k, v, *mask)) and all(t.dims is not None for t in mask)
