"""The execution order of a searched placement: the order in which the search starts the nodes.

A program runs its nodes one after the other and waits for each value that has not arrived. In the order of creation it may so wait
while another node is ready. The search's devices run any ready node. The nodes in the order of their start times there are a
topological order, and programs that follow it start no node later than the search predicted.

Nodes that use the same state keep their order where one of them changes it; so results do not depend on it. Graphs with
loops or branches, or with nodes that may wait for other steps, keep the order that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from ...graph.core.frames import has_control_flow
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Trait
from ..cluster.spec import Cluster
from ..search.from_graph import step_problem

if TYPE_CHECKING:
    from ..cost.profile import Profile
    from ..cost.shapes import Sizes

MOST = 200_000  # nodes; in larger graphs one node's place in the order matters little, and a search has little time


def execution_order(
    nodes: Sequence[Node],
    device_of: Callable[[Node], str],
    cluster: Cluster,
    *,
    feeds: Collection[Tensor] = (),
    costs: Profile | None = None,
    narrow: bool = False,
    fetches: Collection[Tensor] | None = None,
    contended: bool = True,
    sizes: Sizes | None = None,
    at_hand: Collection[Tensor] = (),
) -> list[Node]:
    """The nodes of a step in the order in which a clock starts them.

    Args:
        nodes: in an order in which inputs come first (`needed`). device_of: complete device name of each.
        feeds, costs, narrow, fetches, contended, sizes, at_hand: as `step_problem` takes them.
    """
    nodes = list(nodes)
    if len(nodes) > MOST or len({device_of(n) for n in nodes}) < 2:
        return nodes
    if has_control_flow(nodes) or any(n.opdef.is_blocking for n in nodes):
        return nodes

    problem = step_problem(
        nodes, cluster, feeds=feeds, costs=costs, narrow=narrow, fetches=fetches, contended=contended, sizes=sizes,
        at_hand=at_hand,
    )  # fmt: skip
    number = {str(device.name): d for d, device in enumerate(cluster.devices)}
    device = np.array([number[device_of(n)] for n in nodes], np.int32)
    start, *_ = problem.clocked(device)
    order = np.lexsort((np.arange(len(nodes)), start)).tolist()
    position = {nodes[i]: at for at, i in enumerate(order)}
    kept = kept_pairs(nodes)
    if all(position[a] < position[b] for a, b in kept):
        return [nodes[i] for i in order]
    return _sorted(nodes, start.tolist(), kept)


def kept_pairs(nodes: Sequence[Node]) -> list[tuple[Node, Node]]:
    """Pairs of nodes that use the same state, of which one changes it, and must keep their order."""
    place: dict[Node, str] = {}  # the source of a reference or handle -> the name of its state
    reads: dict[str, list[Node]] = {}  # state -> what has read it since its last change
    changed: dict[str, Node] = {}
    pairs = []
    for node in nodes:
        if Trait.STATE_HANDLE in node.opdef.traits:
            place[node] = node.attrs.get("shared_name") or node.name
            continue
        used = dict.fromkeys(place[t.op] for t in node.inputs if t.op in place and _refers_to_state(t))
        for state in used:
            last = changed.get(state)
            if last is not None:
                pairs.append((last, node))
            if node.opdef.changes_state:
                pairs += [(r, node) for r in reads.pop(state, ())]
                changed[state] = node
            else:
                reads.setdefault(state, []).append(node)
            if any(map(_refers_to_state, node.outputs)):
                place[node] = state
    return pairs


def _refers_to_state(tensor: Tensor) -> bool:
    return tensor.dtype.is_ref or tensor.dtype.name == "resource" or Trait.STATE_HANDLE in tensor.op.opdef.traits


def _sorted(nodes: Sequence[Node], start: Sequence[float], kept: Sequence[tuple[Node, Node]]) -> list[Node]:
    """The nodes by start time, but behind their inputs and the kept pairs in order."""
    number = {n: i for i, n in enumerate(nodes)}
    after: list[list[int]] = [[] for _ in nodes]
    waiting = [0] * len(nodes)
    pairs = [(number[b], i) for i, n in enumerate(nodes) for b in n.before if b in number]
    for a, b in [*pairs, *((number[a], number[b]) for a, b in kept)]:
        after[a].append(b)
        waiting[b] += 1
    ready = [(start[i], i) for i, count in enumerate(waiting) if not count]
    heapify(ready)
    out = []
    while ready:
        _, i = heappop(ready)
        out.append(nodes[i])
        for b in after[i]:
            waiting[b] -= 1
            if not waiting[b]:
                heappush(ready, (start[b], b))
    return out
