"""Linear orderings of items for contiguous splits: topological and spectral ones.

A topological order is good where work flows from one end to the other. A training step flows forward and
back: the gradient of a layer comes last though it shares the layer's variables. Its group stands where its
first node stands, but nodes of the way back that share no group with the way out would all stand at the end.
So they are moved to where their neighbours are: first each order is *folded* (those nodes get the mean
position of their neighbours, the others stay), then *smoothed* (all move towards their neighbours, which
tends to the spectral order; Juvan and Mohar, Optimal linear labelings and eigenvalues of graphs, 1992).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .coarsen_hypergraph import Items
from .evaluate import topological_order
from .jit import compiled
from .problem import Problem
from .types import Flags, Floats, Ints


def orders(problem: Problem, items: Items, label: Ints, seeds: int = 3) -> Iterator[Ints]:
    """Orders of the items (m,), the plain ones first, each only once.

    Args:
        items: the groups, or what they were merged to. label: (groups,) the item of each group.
    """
    seen: set[bytes] = set()
    plain = []
    for backward in (False, True):
        for breadth in (False, True):
            for seed in range(1 if breadth else seeds):
                nodes = topological_order(problem.arrays, breadth, seed, backward)
                plain.append(_by_first(label[problem.group[nodes]]))
                if _is_new(plain[-1], seen):
                    yield plain[-1]
    back = _on_the_way_back(problem)
    for order in plain:
        m = len(order)
        position = np.empty(m)
        position[order] = np.arange(m)
        free = np.ones(m, bool)
        free[label[~back]] = False
        if free.any():
            position = relaxed(items, position, free, 200)
            folded = np.argsort(position, kind="stable").astype(np.int32)
            if _is_new(folded, seen):
                yield folded
        for sweeps in (3, 30, 300):
            moved = relaxed(items, position, np.ones(m, bool), sweeps)
            smooth = np.argsort(moved, kind="stable").astype(np.int32)
            if _is_new(smooth, seen):
                yield smooth


def _is_new(order: Ints, seen: set[bytes]) -> bool:
    before = len(seen)
    seen.add(order.tobytes())
    return len(seen) > before


def _by_first(groups: Ints) -> Ints:
    """Items in the order of their first appearance."""
    _, first = np.unique(groups, return_index=True)
    return groups[np.sort(first)].astype(np.int32)


def _on_the_way_back(problem: Problem) -> Flags:
    """(groups,) whether a group begins after the last group that reaches far across the order has begun."""
    nodes = problem.topological
    at = np.empty(len(nodes))
    at[nodes] = np.arange(len(nodes))
    low, high = np.full(problem.groups, np.inf), np.zeros(problem.groups)
    np.minimum.at(low, problem.group, at)
    np.maximum.at(high, problem.group, at)
    far = high - low > len(nodes) / 4
    if not far.any():
        return np.zeros(problem.groups, bool)
    back: Flags = low > low[far].max()
    return back


@compiled
def relaxed(items: Items, position: Floats, free: Flags, sweeps: int) -> Floats:
    """Positions (m,) after every free item has moved so many times to the mean of its neighbours'.

    An item keeps half of its old position in each sweep, which keeps even and odd neighbours from swinging.
    """
    position = position.copy()
    m = len(position)
    for _ in range(sweeps):
        total, weight = np.zeros(m), np.zeros(m)
        for v in range(len(items.value_bytes)):
            low, high = items.value_start[v], items.value_start[v + 1]
            mean = 0.0
            for p in range(low, high):
                mean += position[items.value_item[p]]
            mean /= high - low
            for p in range(low, high):
                w = items.value_bytes[v] + 1e-30
                total[items.value_item[p]] += w * mean
                weight[items.value_item[p]] += w
        for i in range(m):
            if free[i] and weight[i] > 0.0:
                position[i] = 0.5 * position[i] + 0.5 * total[i] / weight[i]
    return position
