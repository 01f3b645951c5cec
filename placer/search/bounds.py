"""Lower bounds of the objectives.

Weigh the devices with numbers that sum up to 1: the largest load is at least the weighted mean of the loads,
and that is at least the sum over units of the cheapest weighted time. The best weights are found by
subgradient steps; each weighting on the way is a proof by itself. Communication and memory are left out.

A step also takes at least as long as its longest way, each node on its fastest device.
"""

from __future__ import annotations

import numpy as np

from .evaluate import time_behind
from .problem import Objective, Problem
from .types import Floats

STEPS = 100
SAMPLE = 20_000  # units, at least, from which weights are taken


def lower_bound(problem: Problem) -> float:
    """A value that the objective of no assignment is below, in seconds."""
    balance = _balance(problem)
    if problem.objective is Objective.THROUGHPUT:
        return balance
    return max(balance, float((least_behind(problem) + _fastest(problem)).max()))


def least_behind(problem: Problem) -> Floats:
    """(n,) the longest way from the end of each node to the end of a step, each node on its fastest device."""
    return time_behind(problem.arrays, problem.topological, _fastest(problem))


def _fastest(problem: Problem) -> Floats:
    """(n,) the least time of each node on a device that it may have."""
    best = np.full(problem.nodes, np.inf)
    for d in range(problem.devices):
        may = problem.unit_allowed[problem.unit, d]
        np.minimum(best, problem.seconds[problem.device_class[d]], out=best, where=may)
    return best


def _balance(problem: Problem) -> float:
    time = np.full((problem.devices, problem.units), np.inf)
    for d in range(problem.devices):
        total = np.bincount(problem.unit, problem.seconds[problem.device_class[d]], problem.units)
        may = problem.unit_allowed[:, d]
        time[d, may] = total[may]
    if problem.objective is Objective.MAKESPAN:
        time /= problem.slots[:, None]
    else:
        largest = float(time.min(axis=0).max())
    # Devices with the same row share a weight, so equal devices need not be told apart.
    like: dict[bytes, list[int]] = {}
    for d in range(problem.devices):
        like.setdefault(time[d].tobytes(), []).append(d)
    rows, count = time[[same[0] for same in like.values()]], np.array([len(same) for same in like.values()])
    # Any weights prove a bound, so for many units they are sought on some of them.
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
