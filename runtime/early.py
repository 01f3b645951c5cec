"""Collectives that begin early: where in a device's steps each can begin, before the place where it is waited for.

A device's steps keep the order of the graph, in which a strategy makes its collectives last, and what may wait stands as late as it
can. There every collective would begin after the whole backward pass. But it has what it takes long before: the gradients of the
last layers are made first. So it begins right behind what makes its last input:

    in the order of nodes    [ d3 ][ d2 ][ d1 ][ reduce d3 d2 ][ reduce d1 ][ update ]
    begun early              [ d3 ][ d2 ][ d1 ]              [ reduce d1 ][ update ]
                                       [ reduce d3 d2 ..... ]

Nothing else moves: it is waited for where it stood. Collectives keep their order among each other, so all members begin them
in the same one. What takes a variable's place, may be dead, or is in a loop stays where it is; so does what would not gain: small
values, and collectives that little else could run beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from ..graph.core.node import Node, Tensor
from ..graph.core.opdef import nbytes
from ..placer.partition.partitioned_graph import LoopPart, Partition, Partitioned, Step

LEAST_BYTES = 64 << 10  # handing it to another thread, and back, takes as long as reducing so much
LEAST_WORK = 1 << 18  # the same for what runs meanwhile: arithmetic operations, and bytes moved

EarlyStep: TypeAlias = Step | tuple[Literal["await"], Node]


def with_early_collectives(part: Partition, cut: Partitioned) -> list[EarlyStep]:
    """A device's steps with each collective where it can begin, and `("await", node)` where it stood."""
    if not any(isinstance(what, Node) and what.opdef.is_collective for _, what in part.steps):
        return list(part.steps)
    begins = _begins(part, cut)
    early = {node for nodes in begins.values() for node in nodes}
    out: list[EarlyStep] = [("node", node) for node in begins.get(-1, ())]
    for p, step in enumerate(part.steps):
        _, what = step
        if not (isinstance(what, Node) and what in early):
            out.append(step)
        elif not out or out[-1][1] is not what:  # else it would begin where it is waited for
            out.append(("await", what))
        out += [("node", node) for node in begins.get(p, ())]
    return out


def _begins(part: Partition, cut: Partitioned) -> dict[int, list[Node]]:
    """The collectives that can begin before their places, by the number of the step behind which they can; -1: before all."""
    comes: dict[
        Node | Tensor, int
    ] = {}  # nodes that run here, and what comes from elsewhere -> the step from which on it is there
    inside: list[Node | Tensor] = []  # the same of the loop that is open: they are there when it has ended
    depth = 0
    feeds = frozenset(part.feeds)
    last = -1  # behind which the next one may begin
    found: dict[int, list[Node]] = {}
    for p, (kind, what) in enumerate(part.steps):
        if isinstance(what, LoopPart):
            depth += {"loop": 1, "end": -1}.get(kind, 0)
            if not depth:
                comes.update(dict.fromkeys(inside, p))
                inside.clear()
        elif kind != "send":
            made = what if isinstance(what, Node) else cut.values[what.id]
            if depth:
                inside.append(made)
            else:
                comes[made] = p
        if isinstance(what, Node) and what.opdef.is_collective:
            bound = None if depth or what in cut.guarded else _bound(what, comes, feeds)
            if bound is None or not _is_work(part.steps[max(last, bound) + 1 : p]):
                last = p
                continue
            last = max(last, bound)
            while part.steps[last + 1][0] == "send":  # it goes on its way first
                last += 1
            found.setdefault(last, []).append(what)
    return found


def _bound(node: Node, comes: Mapping[Node | Tensor, int], feeds: frozenset[str]) -> int | None:
    """The step behind which a collective has what it takes; None when it stays where it is."""
    if sum(nbytes(t) for t in node.inputs) < LEAST_BYTES or any(t.dtype.is_ref for t in node.inputs):
        return None
    bound = -1
    for t in node.inputs:
        if t.name not in feeds:
            at = comes.get(t, comes.get(t.op))
            if at is None:
                return None
            bound = max(bound, at)
    for c in node.controls:
        at = comes.get(c)
        if at is None:
            return None
        bound = max(bound, at)
    return bound


def _is_work(steps: Iterable[Step]) -> bool:
    """Whether something else is worth running meanwhile; unknown sizes count as 1."""
    left = float(LEAST_WORK)
    for kind, what in steps:
        if isinstance(what, Node) and what.type not in ("Const", "Placeholder"):
            left -= sum(what.opdef.cost_of(what))
        if left <= 0 or kind == "recv" or isinstance(what, LoopPart):
            return True
    return False


__all__ = ["LEAST_BYTES", "LEAST_WORK", "with_early_collectives"]
