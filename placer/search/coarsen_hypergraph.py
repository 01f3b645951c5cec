"""Multilevel coarsening: the items that a search moves, and the values (hyperedges) that join them.

An item is a set of nodes that moves as one: a group, or many groups merged. A value joins all items that make
or need it. For the load of a device only this matters, not which item makes the value: the value is charged to
every device it touches when it touches two or more. So items and values are a weighted hypergraph, and a
coarser level is the same thing with fewer items.

`coarsened` merges pairs of items that are joined most tightly for their size (heavy-edge matching; Karypis
and Kumar, A Fast and High Quality Multilevel Scheme, 1998), under a cap, so that no item becomes too large
to balance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .jit import compiled, next_random, seeded
from .problem import Problem, distinct, numbered, starts, summed
from .types import Flags, Floats, Ints


class Items(NamedTuple):
    """m items, V values that touch two or more of them, P pins, K classes, D devices."""

    seconds: Floats  # (K, m)
    memory: Floats  # (m,)
    allowed: Flags  # (m, D)
    value_start: Ints  # (V + 1,)
    value_item: Ints  # (P,)
    value_bytes: Floats  # (V,)
    item_start: Ints  # (m + 1,)
    item_value: Ints  # (P,)


def items_of(problem: Problem) -> Items:
    """The groups of a problem as items."""
    a = problem.arrays
    owner = np.repeat(np.arange(len(a.value_source), dtype=np.int64), np.diff(a.value_start))
    pins = np.concatenate([a.value_source, a.value_target])
    values = np.concatenate([np.arange(len(a.value_source), dtype=np.int64), owner])
    m = problem.groups
    seconds = np.stack([summed(problem.group, row, m) for row in problem.seconds])
    return _with_pins(seconds, problem.group_memory, problem.group_allowed, values, problem.group[pins], a.value_bytes)


def contracted(items: Items, label: Ints) -> Items:
    """The items merged by label (m,), with labels 0..max, all used."""
    count = int(label.max()) + 1
    seconds = np.stack([summed(label, row, count) for row in items.seconds])
    allowed = np.ones((count, items.allowed.shape[1]), bool)
    np.logical_and.at(allowed, label, items.allowed)
    values: npt.NDArray[Any] = np.repeat(np.arange(len(items.value_bytes), dtype=np.int64), np.diff(items.value_start))
    return _with_pins(
        seconds, summed(label, items.memory, count), allowed, values, label[items.value_item],
        items.value_bytes,
    )  # fmt: skip


def _with_pins(
    seconds: Floats, memory: Floats, allowed: Flags, values: npt.NDArray[Any], pins: Ints, value_bytes: Floats
) -> Items:
    """Items joined by (value, item) pairs, given in any order and perhaps twice."""
    m = len(memory)
    pairs = distinct(values.astype(np.int64) * m + pins)
    value, item = pairs // m, (pairs % m).astype(np.int32)
    size = np.bincount(value, minlength=len(value_bytes))
    kept = size[value] > 1  # a value inside one item costs nothing
    value, item = value[kept], item[kept]
    used, value = numbered(value)
    order = np.argsort(item, kind="stable")
    return Items(
        seconds, memory, allowed, starts(value, len(used)), item, value_bytes[used], starts(item, m),
        value[order].astype(np.int32),
    )  # fmt: skip


@compiled
def matched(items: Items, weight: Floats, cap: float, memory_cap: float, part: Ints, seed: int) -> Ints:
    """Labels (m,) that pair items: each, in random order, with the free neighbour joined most tightly.

    Args:
        weight: (m,) size of an item. No pair is heavier than `cap`, or needs more than `memory_cap`.
        part: (m,) only items of the same part are paired.
    """
    m, devices = len(weight), items.allowed.shape[1]
    order = np.empty(m, np.int32)
    for i in range(m):
        order[i] = i
    state = seeded(seed)
    for i in range(m - 1, 0, -1):
        state = next_random(state)
        j = state % (i + 1)
        order[i], order[j] = order[j], order[i]
    mate, strength = np.full(m, -1, np.int32), np.zeros(m)
    near = np.empty(m, np.int32)
    for at in range(m):
        i = order[at]
        if mate[i] >= 0:
            continue
        count = 0
        for p in range(items.item_start[i], items.item_start[i + 1]):
            v = items.item_value[p]
            low, high = items.value_start[v], items.value_start[v + 1]
            if high - low > 64:  # a value that all items need joins none in particular
                continue
            w = (items.value_bytes[v] + 1e-30) / (high - low - 1)
            for q in range(low, high):
                j = items.value_item[q]
                if j != i and mate[j] < 0 and part[j] == part[i]:
                    if strength[j] == 0.0:
                        near[count] = j
                        count += 1
                    strength[j] += w
        best, chosen = 0.0, -1
        for k in range(count):
            j = near[k]
            tight = strength[j] / (weight[i] * weight[j] + 1e-300)
            strength[j] = 0.0
            if tight <= best or weight[i] + weight[j] > cap:
                continue
            if items.memory[i] + items.memory[j] > memory_cap:
                continue
            common = False
            for d in range(devices):
                common |= items.allowed[i, d] and items.allowed[j, d]
            if common:
                best, chosen = tight, j
        if chosen >= 0:
            mate[i], mate[chosen] = chosen, i
    label, count = np.full(m, -1, np.int32), 0
    for i in range(m):
        if label[i] < 0:
            label[i] = count
            if mate[i] >= 0:
                label[mate[i]] = count
            count += 1
    return label


class Level(NamedTuple):
    """Items, and the label that each item of the next finer level has here; None on the finest."""

    items: Items
    label: Ints | None


def coarsened(
    items: Items,
    coarsest: int,
    cap: float,
    memory_cap: float,
    seed: int,
    part: Ints | None = None,
    most: float = np.inf,
) -> list[Level]:
    """Levels from fine to coarse, until there are `coarsest` items or nothing more fits together.

    Args:
        cap, memory_cap: no item is made heavier (seconds on its fastest class), or larger, than this.
        part: (m,) items of different parts stay apart; None: all may merge.
        most: levels at most.
    """
    levels = [Level(items, None)]
    part = np.zeros(len(items.memory), np.int32) if part is None else part
    while len(levels[-1].items.memory) > coarsest and len(levels) < most:
        fine = levels[-1].items
        weight = np.ascontiguousarray(fine.seconds.min(axis=0))
        label = matched(fine, weight + weight.mean() * 0.1, cap, memory_cap, part, seed + len(levels))
        count = int(label.max()) + 1
        if count > 0.95 * len(weight):
            break
        levels.append(Level(contracted(fine, label), label))
        merged = np.empty(count, np.int32)
        merged[label] = part
        part = merged
    return levels


def memory_share(p: Problem) -> float:
    """Memory that an item may need at most: a quarter of a device, so that items can still be packed."""
    finite: Floats = p.capacity[np.isfinite(p.capacity)]
    return max(float(finite.min()) / 4, float(p.group_memory.max())) if len(finite) else np.inf
