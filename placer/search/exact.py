"""Exact solvers: an integer programme for the largest load, enumeration for the makespan.

The programme is solved by HiGHS. Binary x[i, d] puts item i on device d. For a value v, t[v, d] says that it
crosses the border of d: for each of its items i other than a chosen one j, t[v, d] >= x[i, d] - x[j, d] and
t[v, d] >= x[j, d] - x[i, d]. As loads only grow with t, it may be continuous. The load of each device is at
most z, and z is made small, between the bounds that are known. Equal devices can be renumbered, so that item
k is on one of the first k + 1 of them; this keeps the search from meeting the same split many times.

A problem with more variables than `VARIABLES` is merged first; then the result is an assignment, no proof.
The effort is limited by nodes of the search tree, not by time, so the result is repeatable.

A step on a clock has no programme of useful strength, as the order on each device would be part of it. Its
assignments are tried one by one, where there are few; what is proven then is the best of the model, in which
ready nodes run by priority.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .anneal import try_all
from .coarsen_hypergraph import Items, coarsened
from .problem import Objective, Problem
from .types import Ints

SMALL = 150  # binaries up to which the portfolio asks for a proof: it takes about a second
VARIABLES = 400  # binaries up to which a problem is solved as it is when exactness is asked for
NODES = 2000  # of the search tree
CASES = 50_000  # assignments that are tried one by one: less than a second


class Proven(NamedTuple):
    """An assignment of groups that is better than what was known, or None; and a lower bound."""

    where: Ints | None
    bound: float


def is_small(problem: Problem, items: Items) -> bool:
    """Whether `exactly` is cheap enough to be tried on the way."""
    if problem.objective is Objective.THROUGHPUT:
        return len(items.memory) * problem.devices <= SMALL
    return _cases(problem) <= CASES


def _cases(problem: Problem) -> float:
    return float(problem.devices) ** min(problem.groups, 64)


def exactly(problem: Problem, items: Items, chosen: Ints, value: float, bound: float) -> Proven:
    """Solve for the optimum.

    Args:
        items: the groups. chosen: the best assignment of groups known, with its value. bound: a lower bound.

    Raises:
        ValueError: the problem is too large to try all assignments, and is not about the largest load.
    """
    if value <= bound * (1 + 1e-9) or problem.devices == 1:
        return Proven(None, bound)
    if problem.objective is not Objective.THROUGHPUT:
        return _by_trying(problem, items)
    label = np.arange(problem.groups, dtype=np.int32)
    most = max(VARIABLES // problem.devices, 2)
    merged = len(items.memory) > most
    if merged:  # only items that are together already: the known assignment stays within reach
        for level in coarsened(items, most, np.inf, np.inf, 1, chosen)[1:]:
            assert level.label is not None
            label, items = level.label[label], level.items
        if len(items.memory) > 4 * most:
            return Proven(None, bound)
    found, proven = _solve(problem, items, value, bound)
    return Proven(None if found is None else found[label], bound if merged else max(bound, proven))


def _by_trying(problem: Problem, items: Items) -> Proven:
    if _cases(problem) > CASES:
        raise ValueError(
            f"The exact search of the objective {problem.objective.value!r} tries all assignments, and "
            f"{problem.groups} groups on {problem.devices} devices have more than {CASES}; try 'auto'"
        )
    where = np.full(problem.groups, -1, np.int32)
    best = try_all(
        problem.arrays, problem.rank, problem.contended, problem.group, items, problem.capacity, where,
    )  # fmt: skip
    return Proven(where if best < np.inf else None, best)


def _solve(problem: Problem, items: Items, value: float, bound: float) -> tuple[Ints | None, float]:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    m, devices, values = len(items.memory), problem.devices, len(items.value_bytes)
    x = np.arange(m * devices).reshape(m, devices)
    t = m * devices + np.arange(values * devices).reshape(values, devices)
    z = (m + values) * devices
    rows: list[npt.NDArray[Any]] = []
    columns: list[npt.NDArray[Any]] = []
    entries: list[npt.NDArray[Any]] = []
    low: list[npt.NDArray[Any]] = []
    high: list[npt.NDArray[Any]] = []
    count = 0

    def add(column: npt.NDArray[Any], entry: npt.NDArray[Any], least: float, most: npt.NDArray[Any] | float) -> None:
        """Add one constraint for each row of columns and entries."""
        nonlocal count
        rows.append(np.repeat(count + np.arange(len(column)), column.shape[1]))
        columns.append(column.ravel())
        entries.append(np.broadcast_to(entry, column.shape).ravel())
        low.append(np.full(len(column), least))
        high.append(np.broadcast_to(np.asarray(most, float), len(column)))
        count += len(column)

    add(x, np.ones(devices), 1, 1.0)
    first = items.value_item[items.value_start[:-1]]
    v = np.repeat(np.arange(values), np.diff(items.value_start))
    other = items.value_item != first[v]
    v, i = v[other], items.value_item[other]
    for d in range(devices):
        ends = np.stack([x[i, d], x[first[v], d], t[v, d]], axis=1)
        add(ends, np.array([1.0, -1.0, -1.0]), -np.inf, 0.0)
        add(ends, np.array([-1.0, 1.0, -1.0]), -np.inf, 0.0)
        seconds = items.seconds[problem.device_class[d]]
        seconds = np.where(items.allowed[:, d], seconds, 0.0)
        port = problem.port_latency[d] + items.value_bytes * problem.port_per_byte[d]
        add(np.concatenate([x[:, d], t[:, d], [z]])[None], np.concatenate([seconds, port, [-1.0]]), -np.inf, 0.0)
        if np.isfinite(problem.capacity[d]):
            # Bytes are large numbers; as parts of the capacity they keep the programme well scaled.
            scale = max(float(problem.capacity[d]), 1e-300)
            add(x[:, d][None], items.memory / scale, -np.inf, 1.0)
    upper = np.concatenate([items.allowed.ravel().astype(float), np.ones(values * devices), [value]])
    _break_symmetry(problem, items, upper, x)
    done = milp(
        np.eye(1, z + 1, z)[0],
        constraints=LinearConstraint(
            coo_array(
                (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))), shape=(count, z + 1)
            ).tocsr(),
            np.concatenate(low), np.concatenate(high),
        ),
        integrality=np.concatenate([np.ones(m * devices), np.zeros(values * devices + 1)]),
        bounds=Bounds(np.concatenate([np.zeros(z), [bound]]), upper),
        options={"node_limit": NODES, "mip_rel_gap": 1e-6},
    )  # fmt: skip
    proven = getattr(done, "mip_dual_bound", None)
    proven = bound if proven is None or not np.isfinite(proven) else min(float(proven), value)
    if done.x is None:
        # Infeasible below the known value: the known value is the optimum.
        return None, value if done.status == 2 else proven
    where = done.x[: m * devices].reshape(m, devices).argmax(axis=1).astype(np.int32)
    used = np.bincount(where, items.memory, devices)
    fits = (used <= problem.capacity * (1 + 1e-12)).all() and items.allowed[np.arange(m), where].all()
    return (where if fits else None), proven


def _break_symmetry(problem: Problem, items: Items, upper: npt.NDArray[Any], x: npt.NDArray[Any]) -> None:
    """Of equal devices, item k may only have the first k + 1: any assignment can be renumbered so."""
    like: dict[tuple[object, ...], list[int]] = {}
    for d in range(problem.devices):
        key = (
            int(problem.device_class[d]), float(problem.capacity[d]), float(problem.port_latency[d]),
            float(problem.port_per_byte[d]), items.allowed[:, d].tobytes(),
        )  # fmt: skip
        like.setdefault(key, []).append(d)
    for devices in like.values():
        for k in range(len(devices) - 1):
            upper[x[k, devices[k + 1 :]]] = 0.0
