"""Crossover of assignments for a step on a clock: of a walk's end with its begin, and of several walks' best.

Much of a step is a sequence of parts that hardly depend on each other, and a walk changes all of them at once: some for the better, some
for the worse. So what it has changed is kept or taken back part by part (`mixed`), where the step is cut into parts of as many groups by
when they start.

Walks that set out from different places find good assignments of different parts. So each of them is cut at many moments, and joined with
each other one (`crossed`): groups that start before the cut in the first parent go where that has them, the rest where the other has
them. Interchangeable devices are renamed in the other, so that as many bytes as possible stay on their device at the cut: an
assignment problem. The clock runs all children, each until it is sure to be worse than all parents.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from typing import TypeAlias

import numpy as np
from scipy.optimize import linear_sum_assignment

from .bounds import least_behind
from .clock import advance, begin, clocks
from .jit import compiled
from .problem import Problem
from .types import Arrays, Floats, Ints

PARTS = 32  # of a step, each as a walk has found it or as it has left it
CUTS = 16  # of a step, for each pair of parents
PARENTS = 4
GENERATIONS = 3
DEVICES = 64  # at most: pairing off the devices of two parents takes time in proportion to their number cubed
CUT_END_S = 2e-9  # price of looking whether a value's end lies behind a cut
PART_S = 2.5e-5  # price of judging a part, besides running nodes
PAIR_S = 6e-4  # price of a pair of parents besides

Valued: TypeAlias = tuple[float, Ints]
"""An assignment of groups (m,), and its objective."""


def crossed(
    p: Problem, kinds: Ints, found: Iterable[Valued], node_s: float, random: np.random.Generator, cores: Executor
) -> tuple[list[Valued], float]:
    """The best of assignments and of what descends from them, no two of one value, the best first; and the price.

    Args:
        kinds: (D,) the kind of each device; those of a kind are alike.
        node_s: the price of running one node on the clock.
    """
    parents, price, behind = _best(found), 0.0, least_behind(p)
    tried: set[tuple[float, float]] = set()
    for _ in range(GENERATIONS if p.devices <= DEVICES else 0):
        pairs = [(x, y) for x in parents for y in parents if x is not y and (x[0], y[0]) not in tried]
        tried.update((x[0], y[0]) for x, y in pairs)
        limit, shifts = parents[-1][0], random.random(len(pairs))

        def judged(pair: tuple[Valued, Valued], shift: float, limit: float = limit) -> tuple[Ints, Floats, int]:
            children = _children(p, kinds, pair[0][1], pair[1][1], shift)
            return children, *_values(p.arrays, p.rank, p.contended, behind, p.group, children, limit)

        best: list[Valued] = []  # of each pair's children
        for children, values, runs in cores.map(judged, pairs, shifts):
            if len(values):
                k = int(values.argmin())
                best.append((float(values[k]), children[k]))
            price += (p.nodes + runs) * node_s + CUT_END_S * CUTS * len(p.arrays.value_target) + PAIR_S
        before, parents = parents, _best([*parents, *best])
        if [value for value, _ in before] == [value for value, _ in parents]:
            break
    return parents, price


def mixed(p: Problem, behind: Floats, before: Valued, after: Ints, node_s: float, shift: float) -> tuple[Valued, float]:
    """The assignment `before` with those parts of `after` (m,) that make it no worse, and the price.

    Args:
        behind: the least time behind each node. node_s: the price of running one node on the clock.
        shift: where the first part ends, as a share of a part.
    """
    (value, where), price = before, p.nodes * node_s
    part = (_places(p, where) * (PARTS / p.groups) + shift).astype(np.int32)
    for number in np.unique(part[where != after]):
        child: Ints = np.where(part == number, after, where)
        if _fits(p, child):
            values, runs = _values(p.arrays, p.rank, p.contended, behind, p.group, child[None], value)
            price += runs * node_s + PART_S
            if values[0] <= value:
                value, where = float(values[0]), child
    return (value, where), price


def _best(found: Iterable[Valued]) -> list[Valued]:
    """The best, no two of the same value: so good ones stay that have little in common."""
    best: list[Valued] = []
    for value, where in sorted(found, key=lambda each: each[0]):
        if np.isfinite(value) and (not best or value > best[-1][0] * (1 + 1e-9)):
            best.append((value, where))
    return best[:PARENTS]


def _children(p: Problem, kinds: Ints, first: Ints, other: Ints, shift: float) -> Ints:
    """Assignments of groups (C, m) that begin as `first` and end as `other`, and keep all constraints.

    Args:
        shift: where each cut is between two places that are evenly spread: from 0 to 1.
    """
    place = _places(p, first)
    cuts = np.unique(((np.arange(CUTS) + shift) * p.groups / CUTS).astype(np.int32))
    stays = np.zeros((len(cuts), p.devices, p.devices))
    _add_stays(p.arrays, p.group, place, cuts, first, other, stays)
    stays[:, kinds[:, None] != kinds] = -1e30  # what is not alike is not renamed
    children = []
    for cut, weights in zip(cuts, stays, strict=True):
        renamed = linear_sum_assignment(weights, maximize=True)[1]
        child = np.where(place < cut, first, renamed[other]).astype(np.int32)
        is_allowed = p.group_allowed[np.arange(p.groups), child].all()
        if is_allowed and _fits(p, child):
            children.append(child)
    return np.array(children, np.int32).reshape(-1, p.groups)


def _fits(p: Problem, where: Ints) -> bool:
    return bool((np.bincount(where, p.group_memory, p.devices) <= p.capacity).all())


def _places(p: Problem, where: Ints) -> Ints:
    """(m,) the position of each group by when it starts."""
    start, _, _ = p.clocked(where[p.group])
    begins = np.full(p.groups, np.inf)
    np.minimum.at(begins, p.group, start)
    place = np.empty(p.groups, np.int32)
    place[np.argsort(begins, kind="stable")] = np.arange(p.groups, dtype=np.int32)
    return place


@compiled
def _add_stays(a: Arrays, group: Ints, place: Ints, cuts: Ints, first: Ints, other: Ints, stays: Floats) -> None:
    """Add to `stays` (C, D, D) the bytes of values over each cut, whichever way: from or to a device of `other`, and of `first`."""
    for v in range(len(a.value_source)):
        x = group[a.value_source[v]]
        for e in range(a.value_start[v], a.value_start[v + 1]):
            y = group[a.value_target[e]]
            early, late = (x, y) if place[x] < place[y] else (y, x)
            for c in range(len(cuts)):
                if place[early] < cuts[c] <= place[late]:
                    stays[c, other[late], first[early]] += a.value_bytes[v] + 1e-9


@compiled
def _values(
    a: Arrays, rank: Ints, contended: bool, behind: Floats, group: Ints, children: Ints, limit: float
) -> tuple[Floats, int]:
    """(C,) the objectives of assignments of groups (C, m), infinite above the limit; and how many nodes were run for it."""
    n, runs = len(rank), 0
    by_rank, ended = np.empty(n, np.int32), np.empty(n, np.int32)
    by_readiness, unrecorded = np.empty(0, np.int32), np.empty((2, 0))
    for i in range(n):
        by_rank[rank[i]] = i
    c, start, finish, values = clocks(a, np.int64(0)), np.empty(n), np.empty(n), np.empty(len(children))
    for k in range(len(children)):
        device = children[k][group]
        begin(a, device, c)
        values[k] = advance(
            a, device, rank, by_rank, contended, start, finish, c, np.int64(0), behind, limit, by_readiness, unrecorded, ended,
        )  # fmt: skip
        runs += c.size[1]
    return values, runs
