"""Rounds of annealing, and the chains that they form: what a search does with most of its budget (`portfolio.py`).

A round for the largest load is a descent over all levels of coarseness (`anneal_load`). In even rounds items are merged without regard to
the chain's best assignment and the walk starts hot; in odd rounds only items of the same device are merged, so that assignment exists on
every level and is refined at once on all of them.

A round for a step on a clock (`anneal_makespan`), where a move is dear, is one walk, from the chain's best. Its level of coarseness and
its temperature are drawn anew: which items are worth moving, single nodes or whole branches, depends on what the values cost that join
them. Of what the walk has changed, those parts of the step are kept that make it no worse (`crossover.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .anneal import anneal_load, anneal_makespan
from .bounds import least_behind
from .coarsen_hypergraph import Items, Level, coarsened, memory_share
from .crossover import mixed
from .jit import next_random, seeded
from .problem import Problem
from .types import Ints

CHAINS = 4  # of rounds at the same time
LOAD_MOVE_S, LOAD_VALUE_S = 1.2e-7, 1e-8  # price of one move of `anneal_load`, and of each value of the item
MOVE_S, MOVE_NODE_S = 1e-6, 1.2e-8  # price of one move of `anneal_makespan`, and for each node of the problem
NODE_S, END_S = 8.5e-8, 1.2e-8  # price of running one node on the clock for it, and for each end of a value
WARM = 1e-3, 1e-2  # temperatures from which its walks set out; of few items, up to what one of them takes
HOT = 0.3  # that of the first walk of a chain which begins anew, and of a descent without regard to the best
WALK_SHARE = 0.025  # of a chain's budget at most for one walk, or, for steps of few nodes, ...
FEW_NODES = 20  # ... so many, over all nodes
COLD = 1e-4  # last temperature of all walks, as a part of the objective
MEASURED = 1.5  # times that price, where machines are measured


@dataclass
class Chain:
    """Rounds that follow each other, and the best assignment of groups that they have found since they began.

    Attributes:
        number: which chain since the search began. rounds: how many there were. idle: of these without gain at the end.
        value: the objective of `best`; infinite where a chain begins anew, and takes what its first round finds.
    """

    number: int
    best: Ints
    value: float
    rounds: int = 0
    idle: int = 0


Round: TypeAlias = Callable[[Chain], tuple[Ints, float, float]]
"""One round of a chain: the assignment of groups found, its objective, and the price."""


def descents(p: Problem, items: Items, seed: int, budget_s: float) -> Round:
    """Rounds for the largest load: descents from coarse to fine, from the chain's best."""
    total = budget_s / CHAINS

    def descend(chain: Chain) -> tuple[Ints, float, float]:
        number, random = chain.rounds, _seed(seed, chain)
        fresh, value, price = number % 2 == 0, np.inf, 0.0
        levels, labels = _levels(p, items, random, None if fresh else chain.best)
        # An item starts where one of its groups is in the best assignment.
        where: Ints = np.empty(len(levels[-1].items.memory), np.int32)
        where[labels[-1]] = chain.best
        repaired = _repaired(p, levels[-1].items, where)
        if repaired is None:  # the coarse items cannot be packed: only the finest level is walked
            levels = levels[:1]
        where = chain.best.copy() if repaired is None else repaired
        for depth in range(len(levels) - 1, -1, -1):
            merged, label = levels[depth]
            m = len(where)
            move_s = LOAD_MOVE_S + LOAD_VALUE_S * len(merged.item_value) / m
            moves = 20_000 + 1_200 * m * min(1 + number // 4, 3)
            moves = max(1000, int(min(moves, 0.025 * total / move_s)))
            hot = HOT if fresh and depth == len(levels) - 1 and depth else 0.02
            value = anneal_load(
                merged, p.device_class, p.port_latency, p.port_per_byte, p.capacity, where,
                moves, hot, COLD, random + depth,
            )  # fmt: skip
            price += moves * move_s
            if label is not None:
                where = where[label]
        return where, value, price

    return descend


def walks(p: Problem, items: Items, seed: int, budget_s: float, best: Ints) -> Round:
    """Rounds for a step on a clock: one walk each, on a level of coarseness and from a temperature that are drawn.

    Args:
        best: (m,) the best assignment of groups so far; which levels there are is that of its items.
    """
    a, rank, behind = p.arrays, p.rank, least_behind(p)
    move_s, node_s = _dearness(p) * (MOVE_S + MOVE_NODE_S * p.nodes), node_price(p)
    most = max(WALK_SHARE, FEW_NODES / p.nodes) * budget_s / CHAINS
    depths = len(_levels(p, items, seed, best)[0])

    def walk(chain: Chain) -> tuple[Ints, float, float]:
        random = _seed(seed, chain)
        drawn = next_random(seeded(random))
        levels, labels = _levels(p, items, random, chain.best, (drawn >> 5) % depths + 1)
        merged, label = levels[-1].items, labels[-1]
        where = np.empty(len(merged.memory), np.int32)
        where[label] = chain.best
        moves = 200 + 30 * len(where) * min(1 + chain.rounds // 6, 4)
        if np.isinf(chain.value):
            hot = HOT
        else:
            warm = max(WARM[1], 1 / len(where))
            hot = WARM[0] * (warm / WARM[0]) ** ((next_random(drawn) >> 10) / 2.0**53)
        value, price, end = anneal_makespan(
            a, rank, p.contended, behind, label[p.group], merged, p.capacity, where,
            min(moves * (move_s + node_s * p.nodes), most), move_s, node_s, hot, COLD, random,
        )  # fmt: skip
        (value, found), more = mixed(p, behind, (value, where[label]), end[label], node_s, (drawn >> 10) / 2.0**53)
        return found, value, price + more

    return walk


def node_price(p: Problem) -> float:
    """The price of running one node on the clock."""
    return _dearness(p) * (NODE_S + END_S * len(p.arrays.value_target) / p.nodes)


def _dearness(p: Problem) -> float:
    return MEASURED if len(p.arrays.host) else 1.0


def _seed(seed: int, chain: Chain) -> int:
    return (seed * 1_000_003 + chain.number * 10_007 + chain.rounds * 101 + 1) & 0x7FFFFFFF


def _levels(
    p: Problem, items: Items, seed: int, part: Ints | None, most: float = np.inf
) -> tuple[list[Level], list[Ints]]:
    """At most so many levels from fine to coarse, and each group's item on each; items of different parts stay apart."""
    cap = float(items.seconds.min(axis=0).sum()) / p.devices / 4
    found = coarsened(items, 6 * p.devices, cap, memory_share(p), seed, part, most)
    labels = [np.arange(p.groups, dtype=np.int32)]
    for level in found[1:]:
        assert level.label is not None
        labels.append(level.label[labels[-1]])
    return found, labels


def _repaired(p: Problem, items: Items, where: Ints) -> Ints | None:
    """A coarse assignment that may break constraints, made feasible; None when that is not simple."""
    allowed = items.allowed
    where = where.copy()
    wrong = ~allowed[np.arange(len(where)), where]
    where[wrong] = allowed[wrong].argmax(axis=1)
    used = np.bincount(where, items.memory, p.devices)
    for i in np.argsort(-items.memory, kind="stable").tolist():
        d = int(where[i])
        if used[d] <= p.capacity[d]:
            continue
        room = np.where(allowed[i], p.capacity - used - items.memory[i], -np.inf)
        to = int(room.argmax())
        if room[to] >= 0:
            where[i] = to
            used[d] -= items.memory[i]
            used[to] += items.memory[i]
    return where if (used <= p.capacity).all() else None
