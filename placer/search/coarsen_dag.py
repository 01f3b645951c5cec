"""Acyclic coarsening: coarser levels of a problem are problems themselves.

Merging the ends of an edge closes a cycle exactly when another way leads from one to the other. There is none
if the edge is the only one out of its source, or the only one into its target; and many such merges at once
keep that true. Where no such edge is left (each node has several ways in and out), nodes of the same depth
(longest way from a start) that share an input or a consumer are merged: the depth of the merged graph still
grows along every edge. So rounds of chains and rounds of siblings take turns, under caps on work and memory.

A node that shares a group with others may merge with nodes that have no other group; then these join the group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from .jit import compiled
from .problem import Problem, distinct, numbered, starts, summed
from .types import Arrays, Flags, Floats, Ints

Whole: TypeAlias = int | np.int64


@compiled
def _depths(a: Arrays, order: Ints) -> Ints:
    depth = np.zeros(len(order), np.int32)
    for u in order:
        for e in range(a.input_start[u], a.input_start[u + 1]):
            depth[u] = max(depth[u], depth[a.value_source[a.input_value[e]]] + 1)
    return depth


@compiled
def _may_merge(
    i: Whole, j: Whole, group: Ints, members: Ints, work: Floats, memory: Floats, allowed: Flags,
    work_cap: float, memory_cap: float,
) -> bool:  # fmt: skip
    p, q = group[i], group[j]
    if p == q:
        return True
    if members[p] > 1 and members[q] > 1:
        return False
    if work[p] + work[q] > work_cap or memory[p] + memory[q] > memory_cap:
        return False
    common = False
    for d in range(allowed.shape[1]):
        common |= allowed[p, d] and allowed[q, d]
    return common


@compiled
def _merge(
    i: Whole, j: Whole, mate: Ints, group: Ints, members: Ints, work: Floats, memory: Floats, allowed: Flags
) -> None:
    """Pair two nodes; the group of the one that is alone goes up in the other's."""
    mate[i], mate[j] = j, i
    p, q = group[i], group[j]
    if p == q:
        members[p] -= 1
        return
    if members[p] > 1 or (members[q] == 1 and p < q):
        keep, gone, moved = p, q, j
    else:
        keep, gone, moved = q, p, i
    group[moved] = keep
    work[keep] += work[gone]
    memory[keep] += memory[gone]
    members[gone] = 0
    for d in range(allowed.shape[1]):
        allowed[keep, d] = allowed[keep, d] and allowed[gone, d]


@compiled
def _chains(
    a: Arrays, order: Ints, group: Ints, members: Ints, work: Floats, memory: Floats, allowed: Flags,
    work_cap: float, memory_cap: float, mate: Ints,
) -> None:  # fmt: skip
    """Pair ends of edges that are the only one out or the only one in, the most bytes of a node first."""
    n = len(order)
    ways_out, ways_in = np.zeros(n, np.int32), np.zeros(n, np.int32)
    seen = np.full(n, -1, np.int32)
    for i in range(n):
        for v in range(a.first_value[i], a.first_value[i + 1]):
            for e in range(a.value_start[v], a.value_start[v + 1]):
                x = a.value_target[e]
                if seen[x] != i:
                    seen[x] = i
                    ways_out[i] += 1
                    ways_in[x] += 1
    for at in range(n):
        u = np.int64(order[at])  # numbers of one type: else what is called is compiled for each
        if mate[u] >= 0:
            continue
        best, chosen = -1.0, np.int64(-1)
        for v in range(a.first_value[u], a.first_value[u + 1]):
            for e in range(a.value_start[v], a.value_start[v + 1]):
                x = np.int64(a.value_target[e])
                if mate[x] >= 0 or a.value_bytes[v] <= best or (ways_out[u] > 1 and ways_in[x] > 1):
                    continue
                if _may_merge(u, x, group, members, work, memory, allowed, work_cap, memory_cap):
                    best, chosen = a.value_bytes[v], x
        if chosen >= 0:
            _merge(u, chosen, mate, group, members, work, memory, allowed)


@compiled
def _sibling(
    free: Whole, x: Whole, depth: Ints, group: Ints, members: Ints, work: Floats, memory: Floats, allowed: Flags,
    work_cap: float, memory_cap: float, mate: Ints,
) -> Whole:  # fmt: skip
    """Pair a node with one that is free (-1: none), if they may merge; returns the one that is free then."""
    if mate[x] >= 0 or x == free:
        return free
    if free < 0 or depth[free] != depth[x]:
        return x
    if not _may_merge(free, x, group, members, work, memory, allowed, work_cap, memory_cap):
        return x
    _merge(free, x, mate, group, members, work, memory, allowed)
    return np.int64(-1)


@compiled
def _siblings(
    a: Arrays, depth: Ints, group: Ints, members: Ints, work: Floats, memory: Floats, allowed: Flags,
    work_cap: float, memory_cap: float, mate: Ints,
) -> None:  # fmt: skip
    """Pair nodes of the same depth that share an input, or a consumer."""
    for v in range(len(a.value_source)):
        free: Whole = np.int64(-1)
        for e in range(a.value_start[v], a.value_start[v + 1]):
            x = np.int64(a.value_target[e])
            free = _sibling(free, x, depth, group, members, work, memory, allowed, work_cap, memory_cap, mate)
    for y in range(len(depth)):
        free = np.int64(-1)
        for e in range(a.input_start[y], a.input_start[y + 1]):
            x = np.int64(a.value_source[a.input_value[e]])
            free = _sibling(free, x, depth, group, members, work, memory, allowed, work_cap, memory_cap, mate)


def coarser(problem: Problem, work_cap: float, memory_cap: float, siblings: bool) -> tuple[Problem, Ints]:
    """A problem with fewer nodes, and for each node of this one the node there that holds it.

    Args:
        work_cap, memory_cap: no group grows beyond this (seconds on its fastest device, bytes).
        siblings: merge nodes of the same depth; else chains.
    """
    a, n = problem.arrays, problem.nodes
    work = summed(problem.group, problem.seconds.min(axis=0), problem.groups)
    group, members = problem.group.copy(), np.bincount(problem.group, minlength=problem.groups).astype(np.int32)
    memory, allowed = problem.group_memory.copy(), problem.group_allowed.copy()
    mate = np.full(n, -1, np.int32)
    if siblings:
        depth = _depths(a, problem.topological)
        _siblings(a, depth, group, members, work, memory, allowed, work_cap, memory_cap, mate)
    else:
        _chains(a, problem.topological, group, members, work, memory, allowed, work_cap, memory_cap, mate)
    is_first = (mate < 0) | (mate > np.arange(n))
    number = np.cumsum(is_first) - 1
    label: Ints = np.where(is_first, number, number[mate]).astype(np.int32)
    return _contracted(problem, label, group, allowed), label


def _contracted(problem: Problem, label: Ints, group: Ints, allowed: Flags) -> Problem:
    count = int(label.max()) + 1
    a = problem.arrays
    value = np.repeat(np.arange(len(a.value_source), dtype=np.int64), np.diff(a.value_start))
    source, target = label[a.value_source][value], label[a.value_target]
    out = source != target
    pairs = distinct(value[out] * count + target[out])
    value, target = pairs // count, (pairs % count).astype(np.int32)
    used, value = numbered(value)
    # Values are numbered by their sources again, which must ascend.
    order = np.argsort(label[a.value_source[used]], kind="stable")
    number = np.empty(len(used), np.int64)
    number[order] = np.arange(len(used))
    value = number[value]
    by_value = np.argsort(value, kind="stable")
    used = used[order]
    old_group = np.empty(count, np.int32)
    old_group[label] = group
    kept, new_group = np.unique(old_group, return_inverse=True)
    return replace(
        problem,
        seconds=np.stack([summed(label, row, count) for row in problem.seconds]),
        memory=summed(label, problem.memory, count),
        value_source=label[a.value_source[used]],
        value_bytes=a.value_bytes[used],
        away_memory=None if problem.away_memory is None else problem.away_memory[used],
        home_memory=None if problem.home_memory is None else problem.home_memory[used],
        fed_at=_latest(label, problem.fed_at, count),
        back_after=_latest(label, problem.back_after, count),
        used=None if problem.used is None else _mean(label, problem.used, problem.seconds.min(axis=0), count),
        value_start=starts(value[by_value], len(used)),
        value_target=target[by_value],
        group=new_group.astype(np.int32),
        allowed=allowed[kept],
        allowed_kind=new_group.astype(np.int32),
        priority=None if problem.priority is None else np.maximum.reduceat(
            problem.priority[np.argsort(label, kind="stable")],
            np.searchsorted(np.sort(label), np.arange(count)),
        ),
    )  # fmt: skip


def _latest(label: Ints, seconds: Floats | None, count: int) -> Floats | None:
    """(D, count) the largest of each label's."""
    if seconds is None:
        return None
    out = np.zeros((len(seconds), count))
    for row, given in zip(out, seconds, strict=True):
        np.maximum.at(row, label, given)
    return out


def _mean(label: Ints, numbers: Floats, weights: Floats, count: int) -> Floats:
    """(count,) the mean of each label's, by weight; without any weight, 1."""
    whole = summed(label, weights, count)
    return np.where(whole > 0, summed(label, numbers * weights, count) / np.where(whole > 0, whole, 1.0), 1.0)


def levels(
    problem: Problem, coarsest: int, work_cap: float, memory_cap: float, densest: float = np.inf, effort: float = np.inf
) -> list[tuple[Problem, Ints]]:
    """Coarser and coarser problems, each with the group that every group of the finest has there.

    Args:
        coarsest: groups, at most, that a problem has after which none coarser follows. densest: the same for inputs of a
            node, on average: values that merging does not do away with make a coarser problem no cheaper.
        effort: nodes of all problems that are looked at, at most.
    """
    out = [(problem, np.arange(problem.groups, dtype=np.int32))]
    one_of = np.unique(problem.group, return_index=True)[1]  # a node of each group
    at = np.arange(problem.nodes, dtype=np.int32)
    siblings, stuck = False, 0
    while out[-1][0].groups > coarsest and stuck < 2:
        fine = out[-1][0]
        effort -= fine.nodes
        if len(fine.value_target) > densest * fine.nodes or effort < 0:
            break
        coarse, label = coarser(fine, work_cap, memory_cap, siblings)
        at = label[at]
        siblings = not siblings
        if coarse.nodes > 0.97 * fine.nodes:
            stuck += 1
            continue
        stuck = 0
        out.append((coarse, coarse.group[at[one_of]]))
    return out
