"""Among assignments with the same objective, one that sends less: fewer bytes first, then fewer transfers.

A search sees the objective alone. What is on no longest way, or on a device with room, may be anywhere for it, and so crosses between
devices for nothing: links are busy, and other steps and people who read the plan pay for that. So the end of a search is a descent: groups
of nodes move to the device of a neighbour where that sends less and the objective does not rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from .problem import Problem
from .types import Ints

LOOK_S, LOOK_END_S = 3e-5, 4e-8  # price of counting what is sent, and for each end of a value
PASSES = 4  # over all values that cross

Traffic: TypeAlias = tuple[float, int]
"""Bytes that are sent, and transfers: a value is sent once to each device that needs it."""


def traffic(p: Problem, where: Ints) -> Traffic:
    """What an assignment of groups (m,) sends in a step."""
    return _traffic(p, _ends(p), where)


def _traffic(p: Problem, ends: Sequence[Ints], where: Ints) -> Traffic:
    value, source, target = ends
    crosses = where[source] != where[target]
    sent = np.unique(value[crosses].astype(np.int64) * p.devices + where[target[crosses]])
    return float(p.value_bytes[sent // p.devices].sum()), len(sent)


def with_fewer_transfers(p: Problem, where: Ints, node_s: float, effort: float) -> tuple[Ints, float]:
    """An assignment that sends no more than `where` (m,), and has no larger objective; and the price.

    Args:
        node_s: the price of evaluating one node. effort: the price, at most.
    """
    value, source, target = ends = _ends(p)
    look_s, price = LOOK_S + LOOK_END_S * len(value), 0.0
    least, sends = p.evaluate(where[p.group]), _traffic(p, ends, where)
    for _ in range(PASSES):
        before = sends
        crossing = np.flatnonzero(where[source] != where[target])
        for e in crossing[np.argsort(-p.value_bytes[value[crossing]], kind="stable")].tolist():
            for group, to in ((source[e], where[target[e]]), (target[e], where[source[e]])):
                if price + look_s + node_s * p.nodes > effort:
                    return where, price
                if where[group] == to or not p.group_allowed[group, to]:
                    continue
                child = where.copy()
                child[group] = to
                price, less = price + look_s, _traffic(p, ends, child)
                if less >= sends or p.violations(child[p.group]):
                    continue
                price, after = price + node_s * p.nodes, p.evaluate(child[p.group])
                if after <= least:
                    where, least, sends = child, after, less
        if sends == before:
            break
    return where, price


def _ends(p: Problem) -> tuple[Ints, Ints, Ints]:
    """(E,) of each end of a value: the value, the group that makes it, the group that takes it."""
    value = np.repeat(np.arange(len(p.value_source), dtype=np.int32), np.diff(p.value_start))
    return value, p.group[p.value_source[value]], p.group[p.value_target]
