"""Small placement problems for the tests of the searches, and the plainest possible answers to them."""

import itertools

import numpy as np

from dovetail.placer.search.problem import Objective, Problem


def problem(
    edges, seconds, *, objective=Objective.MAKESPAN, devices=None, memory=None, capacity=None, group=None,
    allowed=None, size=1.0, slots=None, contended=False,
):  # fmt: skip
    """A problem from (source, target) pairs: one value per source; all links and ports cost `size` seconds.

    `seconds` is (classes, nodes); `devices` the class of each device, one of each class unless given.
    """
    seconds = np.atleast_2d(np.asarray(seconds, float))
    n = seconds.shape[1]
    devices = np.asarray(range(len(seconds)) if devices is None else devices, np.int32)
    d = len(devices)
    after = [sorted({t for s, t in edges if s == u}) for u in range(n)]
    sources = [u for u in range(n) if after[u]]
    size = np.broadcast_to(np.asarray(size, float), n)
    return Problem(
        objective, seconds, devices,
        memory=np.zeros(n) if memory is None else np.asarray(memory, float),
        capacity=np.full(d, np.inf) if capacity is None else np.asarray(capacity, float),
        slots=np.ones(d, np.int32) if slots is None else np.asarray(slots, np.int32),
        value_source=np.array(sources, np.int32),
        value_bytes=size[sources],
        value_start=np.cumsum([0] + [len(after[u]) for u in sources]).astype(np.int32),
        value_target=np.array([t for u in sources for t in after[u]], np.int32),
        group=np.arange(n, dtype=np.int32) if group is None else np.asarray(group, np.int32),
        allowed=np.ones((1, d), bool) if allowed is None else np.asarray(allowed, bool),
        allowed_kind=np.zeros(n, np.int32) if allowed is None else np.arange(n, dtype=np.int32),
        link_latency=np.zeros((d, d)), link_per_byte=1.0 - np.eye(d),
        port_latency=np.zeros(d), port_per_byte=np.ones(d), contended=contended,
    )  # fmt: skip


def random_problem(seed, n=8, objective=Objective.MAKESPAN, devices=(0, 1, 1), **options):
    """A random acyclic problem; class 0 is slow. Some nodes share a group, and memory binds."""
    rng = np.random.default_rng(seed)
    edges = [(a, b) for a, b in itertools.combinations(range(n), 2) if rng.random() < 2.5 / n]
    work = rng.integers(1, 6, n).astype(float)
    group = np.arange(n)
    group[n // 2] = 0
    group = np.unique(group, return_inverse=True)[1]
    memory = rng.integers(1, 4, n).astype(float)
    capacity = np.full(len(devices), np.ceil(memory.sum() * 0.6))
    options = {"memory": memory, "capacity": capacity, "group": group, "size": rng.integers(0, 4, n)} | options
    return problem(edges, [work * 3, work], objective=objective, devices=devices, **options)


def best_of_all(p):
    """The best objective of all feasible assignments, by trying them all."""
    best = np.inf
    for where in itertools.product(range(p.devices), repeat=p.groups):
        assignment = np.array(where, np.int32)[p.group]
        if not p.violations(assignment):
            best = min(best, p.evaluate(assignment))
    return best
