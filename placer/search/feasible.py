"""A first feasible assignment, or the tightest set of nodes that has none.

By Hall's theorem memory can only fit if every set of devices can hold what may be nowhere else; it is
enough to look at unions of the sets that groups demand. That is checked first, as it names what is short.
Packing is harder than that (it is bin packing): so groups are packed along a topological order, which keeps
neighbours together, then by size, the largest first, and at last by a small integer programme.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .evaluate import topological_order
from .problem import InfeasibleError, Problem
from .types import Flags, Floats, Ints

UNIONS = 4096  # of demanded sets: enough for 12 sets in every combination; more are not looked at
PROGRAMME = 20_000  # binary variables that the packing programme may have


def check(problem: Problem) -> None:
    """Raise InfeasibleError when no assignment can exist, by the tests that are cheap."""
    allowed, memory = problem.group_allowed, problem.group_memory
    nowhere = np.flatnonzero(~allowed.any(axis=1))
    if len(nowhere):
        nodes = np.flatnonzero(problem.group == nowhere[0]).astype(np.int32)
        raise InfeasibleError(
            f"{_nodes(nodes)} must share a device, and no device may have all of them", nodes, (), 0.0
        )
    worst, tightest = 0.0, None
    largest = np.where(allowed, problem.capacity, -np.inf).max(axis=1)
    for u in np.flatnonzero(memory > largest * (1 + 1e-12)):
        if memory[u] - largest[u] > worst:
            worst, tightest = memory[u] - largest[u], (problem.group == u, allowed[u])
    if tightest is not None:
        nodes, devices = np.flatnonzero(tightest[0]).astype(np.int32), np.flatnonzero(tightest[1])
        message = (
            f"{_nodes(nodes)} must share a device and need {problem.memory[nodes].sum():.6g} bytes, "
            f"{worst:.6g} more than the largest of devices {_list(devices)} has"
        )
        raise InfeasibleError(message, nodes, tuple(devices.tolist()), worst)
    kinds, kind = _distinct(allowed)
    need = np.bincount(kind, memory)
    for devices_of in _unions(kinds):
        confined = ~np.any(kinds & ~devices_of, axis=1)
        short = need[confined].sum() - problem.capacity[devices_of].sum()
        if short > worst + 1e-9 * need.sum():
            worst, tightest = short, (confined[kind][problem.group], devices_of)
    if tightest is not None:
        nodes, devices = np.flatnonzero(tightest[0]).astype(np.int32), np.flatnonzero(tightest[1])
        message = (
            f"{_nodes(nodes)} may only be on devices {_list(devices)} and need "
            f"{problem.memory[nodes].sum():.6g} bytes, {worst:.6g} more than these have together"
        )
        raise InfeasibleError(message, nodes, tuple(devices.tolist()), worst)


def _distinct(allowed: Flags) -> tuple[Flags, Ints]:
    """The distinct rows, and which of them each row is."""
    if (allowed == allowed[0]).all():  # what large graphs mostly are
        return allowed[:1], np.zeros(len(allowed), np.int32)
    rows, row = np.unique(allowed, axis=0, return_inverse=True)
    return rows, row.astype(np.int32)


def _unions(kinds: Flags) -> list[Flags]:
    found = {k.tobytes(): k for k in kinds}
    for k in kinds:
        for other in list(found.values()):
            union = k | other
            found.setdefault(union.tobytes(), union)
            if len(found) >= UNIONS:
                return list(found.values())
    return list(found.values())


def _nodes(nodes: Ints) -> str:
    return f"Node {nodes[0]}" if len(nodes) == 1 else f"The {len(nodes)} nodes {_list(nodes)}"


def _list(numbers: npt.NDArray[Any]) -> str:
    shown = ", ".join(map(str, numbers[:8].tolist()))
    return shown + ("..." if len(numbers) > 8 else "")


def first_assignment(problem: Problem) -> Ints:
    """(groups,) a device for each group, within memory; plain and quick.

    Raises:
        InfeasibleError: there is none, or none was found; the text tells which.
    """
    check(problem)
    allowed, memory, capacity = problem.group_allowed, problem.group_memory, problem.capacity
    work = problem.seconds.sum(axis=1, where=np.isfinite(problem.seconds))[problem.device_class]
    fastest_first = np.argsort(work, kind="stable").astype(np.int32)
    for d in fastest_first:
        if allowed[:, d].all() and memory.sum() <= capacity[d]:
            return np.full(problem.groups, d, np.int32)
    groups = problem.group[topological_order(problem.arrays, False)]
    _, first = np.unique(groups, return_index=True)
    along = groups[np.sort(first)]
    few = along[np.argsort(allowed.sum(axis=1)[along], kind="stable")]
    large = np.lexsort((-memory, allowed.sum(axis=1))).astype(np.int32)
    for order in (along, few, large):
        found = _packed(order, fastest_first, allowed, memory, capacity)
        if found is not None:
            return found
    found = _packed_exactly(allowed, memory, capacity)
    if found is not None:
        return found
    short = memory.sum() - capacity.sum()
    holding = np.flatnonzero(memory > 0)
    raise InfeasibleError(
        f"No packing of {memory.sum():.6g} bytes into {capacity.sum():.6g} was found, though the sums fit "
        f"({-short:.6g} bytes to spare); the largest piece, group {memory.argmax()}, needs {memory.max():.6g}",
        np.flatnonzero(problem.memory > 0).astype(np.int32), tuple(np.flatnonzero(allowed[holding].any(axis=0)).tolist()), 0.0,
    )  # fmt: skip


def _packed(order: Ints, devices: Ints, allowed: Flags, memory: Floats, capacity: Floats) -> Ints | None:
    """First fit: each group onto the device of the one before it, if it fits there, else onto the first."""
    free, out, at = capacity.copy(), np.empty(len(memory), np.int32), -1
    for u in order.tolist():
        if at < 0 or not allowed[u, at] or memory[u] > free[at]:
            fits = [d for d in devices.tolist() if allowed[u, d] and memory[u] <= free[d]]
            if not fits:
                return None
            at = fits[0]
        out[u] = at
        free[at] -= memory[u]
    return out


def _packed_exactly(allowed: Flags, memory: Floats, capacity: Floats) -> Ints | None:
    """Packing as an integer programme: any point that satisfies it will do."""
    m, devices = allowed.shape
    if m * devices > PROGRAMME:
        return None
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    group, device = np.divmod(np.arange(m * devices), devices)
    one = coo_array((np.ones(m * devices), (group, np.arange(m * devices))), shape=(m, m * devices))
    scale = max(memory.max(), 1e-300)
    fits = coo_array((memory[group] / scale, (device, np.arange(m * devices))), shape=(devices, m * devices))
    limits = np.minimum(capacity / scale, memory.sum() / scale * 2 + 1)
    done = milp(
        np.zeros(m * devices),
        constraints=[LinearConstraint(one.tocsr(), 1, 1), LinearConstraint(fits.tocsr(), -np.inf, limits)],
        integrality=np.ones(m * devices),
        bounds=Bounds(0, allowed.ravel().astype(float)),
        options={"node_limit": 2000},
    )
    if done.x is None:
        return None
    found = done.x.reshape(m, devices).argmax(axis=1).astype(np.int32)
    used = np.bincount(found, memory, devices)
    return found if (used <= capacity * (1 + 1e-12)).all() and allowed[np.arange(m), found].all() else None
