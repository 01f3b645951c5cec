"""Lower bounds of the objectives.

Weigh the devices with numbers that sum up to 1: the largest load is at least the weighted mean of the loads,
and that is at least the sum over groups of the cheapest weighted time. The best weights are found by
subgradient steps; each weighting on the way is a proof by itself. Memory is left out, and communication but for what is forced: a value
whose source and target have no device in common must travel. A device has the work and the values that it must have, and a step takes
at least as long as its longest way, each node on its fastest device, and as all work on all cores.
"""

from __future__ import annotations

import numpy as np

from .evaluate import time_behind
from .problem import Objective, Problem
from .types import Floats

STEPS = 100
SAMPLE = 20_000  # groups, at least, from which weights are taken


def lower_bound(problem: Problem, *, proven: float = 0.0, known: float = np.inf) -> float:
    """A value that the objective of no assignment is below, in seconds.

    Args:
        proven: a lower bound that is known otherwise, such as a search's under device requests.
        known: the objective of a placement that is known otherwise; no bound is above it. The problem of a plan has the times of its
            kernels as they are fused there, and another placement may fuse more of them.
    """
    bound = max(proven, _balance(problem), _forced(problem), _shared(problem))
    if problem.objective is not Objective.THROUGHPUT:
        bound = max(bound, float((least_behind(problem) + _fastest(problem)).max()))
    return min(bound, known)


def _shared(problem: Problem) -> float:
    """What no placement is below because the cores of machines are shared; 0 where a device shares no machine."""
    if problem.host is None or problem.share is None or (problem.host < 0).any():
        return 0.0
    return float((problem.seconds.min(axis=0) * problem.share).sum()) / len(np.unique(problem.host))


def least_behind(problem: Problem) -> Floats:
    """(n,) the longest way from the end of each node to the end of a step, each node on its fastest device."""
    return time_behind(problem.arrays, problem.topological, _fastest(problem), _forced_travel(problem))


def _forced_travel(problem: Problem) -> Floats:
    """(E,) the least time that a value is under way to each target that can be on none of its source's devices."""
    a, kinds = problem.arrays, problem.allowed
    if len(kinds) == 1:
        return np.zeros(len(a.value_target))
    ends = np.diff(a.value_start)
    source, target = problem.allowed_kind[np.repeat(a.value_source, ends)], problem.allowed_kind[a.value_target]
    pairs, pair = np.unique(source.astype(np.int64) * len(kinds) + target, return_inverse=True)
    least = np.zeros((2, len(pairs)))
    for k, (s, t) in enumerate(zip(*divmod(pairs, len(kinds)), strict=True)):
        if not (kinds[s] & kinds[t]).any():
            links = np.ix_(np.unique(problem.places[kinds[s]]), np.unique(problem.places[kinds[t]]))
            least[:, k] = problem.link_latency[links].min(), problem.link_per_byte[links].min()
    travel: Floats = least[0, pair] + np.repeat(a.value_bytes, ends) * least[1, pair]
    return travel


def _forced(problem: Problem) -> float:
    """The largest load that devices must have: of groups that can be nowhere else, and of values that must come or go."""
    first, kind = problem.alike
    allowed = problem.allowed_on(first)
    groups = np.flatnonzero(allowed @ np.bincount(kind) == 1)
    only = np.full(problem.groups, -1, np.int64)
    only[groups] = first[allowed[groups].argmax(axis=1)]
    here = only[problem.group]
    nodes = np.flatnonzero(here >= 0)
    load = np.bincount(here[nodes], problem.seconds[problem.device_class[here[nodes]], nodes], problem.devices)
    if problem.objective is Objective.MAKESPAN:
        return float((load / problem.slots).max())
    a, charged = problem.arrays, []
    value = np.repeat(np.arange(len(a.value_source)), np.diff(a.value_start))
    ends = problem.group[a.value_source[value]], problem.group[a.value_target]
    for end, other in (ends, ends[::-1]):
        crosses = (only[end] >= 0) & ~allowed[other, kind[only[end]]]
        charged.append(np.stack([value[crosses], only[end[crosses]]]))
    v, d = np.unique(np.concatenate(charged, axis=1), axis=1)
    port = problem.port_latency[d] + problem.value_bytes[v] * problem.port_per_byte[d]
    return float((load + np.bincount(d, port, problem.devices)).max())


def _fastest(problem: Problem) -> Floats:
    """(n,) the least time of each node on a device that it may have."""
    best, first = np.full(problem.nodes, np.inf), problem.alike[0]
    for d, may in zip(first, problem.allowed_on(first).T, strict=True):
        np.minimum(best, problem.seconds[problem.device_class[d]], out=best, where=may[problem.group])
    return best


def _balance(problem: Problem) -> float:
    first, kind = problem.alike
    time = np.full((len(first), problem.groups), np.inf)
    for row, d, may in zip(time, first, problem.allowed_on(first).T, strict=True):
        row[may] = np.bincount(problem.group, problem.seconds[problem.device_class[d]], problem.groups)[may]
    if problem.objective is Objective.MAKESPAN:
        time /= problem.slots[first, None]
    else:
        largest = float(time.min(axis=0).max())
    # Devices with the same row share a weight, so equal devices need not be told apart.
    like: dict[bytes, list[int]] = {}
    for k, row in enumerate(time):
        like.setdefault(row.tobytes(), []).append(k)
    rows = time[[same[0] for same in like.values()]]
    count = np.array([np.bincount(kind)[same].sum() for same in like.values()])
    # Any weights prove a bound, so for many groups they are sought on some of them.
    sample = rows[:, :: max(rows.shape[1] // SAMPLE, 1)]
    uniform = np.full(len(rows), 1.0 / count.sum())
    best, found, weight = 0.0, uniform, uniform
    for step in range(STEPS):
        weighted = sample * weight[:, None]
        bound = float(weighted.min(axis=0).sum())
        if bound > best:
            best, found = bound, weight
        owner = weighted.argmin(axis=0)
        load = np.bincount(owner, sample[owner, np.arange(sample.shape[1])], len(rows)) / count
        if load.max() <= 0:
            break
        # Multiplicative steps keep the weights positive: a device that is loaded more becomes dearer.
        weight = weight * np.exp(np.clip((load / load.mean() - 1) * 0.5 / np.sqrt(step + 1), -1, 1))
        weight /= (weight * count).sum()
    best = max(float((rows * weights[:, None]).min(axis=0).sum()) for weights in (found, uniform))
    return best if problem.objective is Objective.MAKESPAN else max(best, largest)
