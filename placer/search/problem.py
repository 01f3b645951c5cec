"""The placement problem as a value: arrays, without graphs, names or devices of any cluster.

A directed acyclic graph of nodes produces *values*; each value has one source and some targets. A device is
described by the row of execution times that holds for its class, its memory, how many nodes it runs at once,
and what a value costs that enters or leaves it. An assignment gives every node a device.

Hard constraints: the devices each node may have, nodes that must share a device (a colocation *group*), and memory.
Objectives, all in seconds and all to be made small:

- `MAKESPAN`: when the last node of one step ends. A device runs ready nodes by priority. A value travels
  once to each other device that needs it; transfers overlap with work, and either share a link without
  slowing each other or go one after the other (`contended`).
- `THROUGHPUT`: the largest load of a device, the time per sample of a pipeline that is full. A load is all
  execution time plus, for each value with ends inside and outside of the device, one transfer through its
  port (Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020). Where machines were
  measured, a machine of several devices has a load, too: the work of all of them, over the cores that they share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .clock import run
from .evaluate import loads, topological_order, upward_rank
from .types import Arrays, Flags, Floats, Ints


class Objective(StrEnum):
    """What the search minimizes."""

    MAKESPAN = "makespan"
    THROUGHPUT = "throughput"


@dataclass(frozen=True)  # no slots: derived arrays are cached in the instance
class Problem:
    """Which node runs on which device.

    Attributes:
        objective: what is made small.
        seconds: (K, n) execution time of each node on each class of device.
        device_class: (D,) the class of each device.
        memory: (n,) bytes that a node occupies on its device for the whole step.
        capacity: (D,) bytes of each device; infinite where nothing limits it.
        slots: (D,) how many nodes a device runs at once (makespan only).
        value_source: (V,) the node that makes each value, ascending.
        value_bytes: (V,) size of each value on its way.
        away_memory: (V,) bytes that it occupies on a device that receives it; None: memory of values does not count.
        home_memory: (V,) bytes that it occupies where it is made; None: memory of values does not count.
        value_start, value_target: value v is needed by nodes value_target[value_start[v]:value_start[v + 1]].
        group: (n,) nodes with the same number share a device; numbers 0..m-1, all used.
        allowed: (S, D) distinct sets of devices; allowed_kind: (n,) the set that each node may have.
        link_latency, link_per_byte: (P, P) seconds per message and per byte from place to place.
        port_latency, port_per_byte: (D,) the same into or out of a device, whatever is at the other end.
        handling, handling_per_byte: (P, P) seconds per message and per byte for which a transfer keeps the first of its two devices
            from other work, whichever sends; None: none (makespan only).
        joined: (V,) values that travel in the message of another one; None: none.
        contended: whether transfers over the same link wait for each other (makespan only).
        fed_at: (D, n) seconds until a node on each device has what the client feeds to it; None: no time (makespan only).
        back_after: (D, n) seconds until the client has what it fetches from a node on each device; None: no time (makespan only).
        used: (n,) cores that each node keeps busy, where hosts are known. host: (D,) number of each device's machine, -1 where devices do
            not share one. shared: cores of each such machine that several tasks keep busy together. wake: seconds until what comes to a
            task that waits has woken it. polls: seconds for which a task that has sent something is awake (makespan only).
        priority: (n,) which of the ready nodes runs first, the highest; None: by upward rank.
        place: (D,) the place of each device, its row in the tables of links: devices of a task have the same links. The diagonal holds
            for different devices of a place. None: each device is a place.

    Raises:
        ValueError: shapes or numbers that do not fit together, or a cycle.
    """

    objective: Objective
    seconds: Floats
    device_class: Ints
    memory: Floats
    capacity: Floats
    slots: Ints
    value_source: Ints
    value_bytes: Floats
    value_start: Ints
    value_target: Ints
    group: Ints
    allowed: Flags
    allowed_kind: Ints
    link_latency: Floats
    link_per_byte: Floats
    port_latency: Floats
    port_per_byte: Floats
    contended: bool = False
    priority: Floats | None = None
    home_memory: Floats | None = None
    away_memory: Floats | None = None
    handling: Floats | None = None
    handling_per_byte: Floats | None = None
    joined: Flags | None = None
    fed_at: Floats | None = None
    back_after: Floats | None = None
    used: Floats | None = None
    host: Ints | None = None
    shared: float = 0.0
    wake: float = 0.0
    polls: float = 0.0
    place: Ints | None = None

    def __post_init__(self) -> None:
        n, d = self.nodes, self.devices
        p = len(self.link_latency)
        shapes: dict[str, tuple[int, ...]] = {
            "memory": (n,), "capacity": (d,), "slots": (d,), "group": (n,), "allowed_kind": (n,),
            "allowed": (len(self.allowed), d), "link_latency": (p, p), "link_per_byte": (p, p),
            "port_latency": (d,), "port_per_byte": (d,), "value_bytes": (len(self.value_source),),
            "value_start": (len(self.value_source) + 1,),
        }  # fmt: skip
        for name, shape in shapes.items():
            found = getattr(self, name).shape
            if found != shape:
                raise ValueError(f"{name} has shape {found}, and {n} nodes on {d} devices need {shape}")
        if self.places.shape != (d,) or self.places.max(initial=0) >= p:
            raise ValueError(f"Links between {p} places do not fit {d} devices: `place` says which device is where")
        if n == 0 or d == 0:
            raise ValueError("A placement problem needs at least one node and one device")
        if not np.all(np.diff(self.value_source) >= 0):
            raise ValueError("value_source must ascend")
        if np.isnan(self.seconds).any() or self.seconds.min() < 0 or self.memory.min() < 0:
            raise ValueError("Execution times and memory must be numbers, and none negative")
        if not np.asarray(self.allowed.any(axis=1))[self.allowed_kind].all():
            raise ValueError("There is a node that no device may have")
        if len(self.topological) != n:
            raise ValueError("The nodes depend on each other in a cycle")

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return int(self.seconds.shape[1])

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.device_class)

    @cached_property
    def places(self) -> Ints:
        """(D,) the place of each device."""
        return np.arange(self.devices, dtype=np.int32) if self.place is None else self.place

    @cached_property
    def groups(self) -> int:
        """How many colocation groups there are: sets of nodes that share a device."""
        return int(self.group.max()) + 1

    @cached_property
    def arrays(self) -> Arrays:
        """What compiled loops take."""
        targets = self.value_target
        value_of_end = np.repeat(np.arange(len(self.value_source), dtype=np.int32), np.diff(self.value_start))
        order = np.argsort(targets, kind="stable")
        none, alike = np.empty((0, self.nodes)), np.zeros_like(self.link_latency)
        used, host = self._measured
        seat = _seats(self.places)
        return Arrays(
            self.seconds, self.device_class, self.slots,
            self.places, seat, int(seat.max()) + 1, self.link_latency, self.link_per_byte,
            self.port_latency, self.port_per_byte,
            starts(self.value_source, self.nodes), self.value_start, targets, self.value_bytes,
            starts(targets, self.nodes), value_of_end[order], self.value_source,
            alike if self.handling is None else self.handling,
            np.where(self.joined, 0.0, 1.0) if self.joined is not None else np.empty(0),
            alike if self.handling_per_byte is None else self.handling_per_byte,
            self.memory, self.capacity, *self._watched,
            none if self.fed_at is None else self.fed_at, none if self.back_after is None else self.back_after,
            used, host, self.shared, self.wake if len(used) else 0.0, self.polls,
        )  # fmt: skip

    @property
    def _measured(self) -> tuple[Floats, Ints]:
        """Cores of nodes, and machines that several devices share; empty if nothing was measured."""
        used, host = self.used, self.host
        if used is None or host is None or self.devices < 2 or self.objective is not Objective.MAKESPAN:
            return np.empty(0), np.empty(0, np.int32)
        _, number, tasks = np.unique(host, return_inverse=True, return_counts=True)
        shares = (host >= 0) & (tasks[number] > 1)
        return used, np.where(shares, number, -1).astype(np.int32)

    @property
    def _watched(self) -> tuple[Floats, Floats]:
        """What values occupy at home and away, where it can be that not all fits at every moment."""
        home, away = self.home_memory, self.away_memory
        if home is None or away is None or self.objective is not Objective.MAKESPAN:
            return np.empty(0), np.empty(0)
        # On one device a value is either at home or away.
        if (self.memory.sum() + np.maximum(home, away).sum() <= self.capacity).all():
            return np.empty(0), np.empty(0)
        return home, away

    @cached_property
    def topological(self) -> Ints:
        """The nodes, each behind what it needs; shorter than `nodes` when there is a cycle."""
        return topological_order(self.arrays, False)

    @cached_property
    def rank(self) -> Ints:
        """(n,) position of each node by priority, the first to run 0."""
        priority = self.priority
        if priority is None:
            priority = upward_rank(self.arrays, self.topological)
        rank = np.empty(self.nodes, np.int32)
        rank[np.argsort(-priority, kind="stable")] = np.arange(self.nodes)
        return rank

    @cached_property
    def group_allowed(self) -> Flags:
        """(groups, D) the devices that all nodes of a group may have."""
        return self.allowed_on(np.arange(self.devices))

    def allowed_on(self, devices: npt.NDArray[Any]) -> Flags:
        """(groups, len(devices)) which of these devices all nodes of a group may have."""
        allowed, out = self.allowed[:, devices], np.ones((self.groups, len(devices)), bool)
        # Groups of one node, the most, are one copy; the others meet their members' sets one by one.
        size = np.bincount(self.group, minlength=self.groups)
        alone = size[self.group] == 1
        out[self.group[alone]] = allowed[self.allowed_kind[alone]]
        rest = np.flatnonzero(~alone)
        np.logical_and.at(out, self.group[rest], allowed[self.allowed_kind[rest]])
        return out

    @cached_property
    def alike(self) -> tuple[Ints, Ints]:
        """Devices that differ in nothing but memory and links: (R,) the first of each kind, and (D,) the kind of each device."""
        kinds: dict[tuple[int, int, bytes], int] = {}
        columns = np.ascontiguousarray(self.allowed.T)
        keys = zip(self.device_class.tolist(), self.slots.tolist(), map(bytes, columns), strict=True)
        of = np.array([kinds.setdefault(key, len(kinds)) for key in keys], np.int32)
        return np.unique(of, return_index=True)[1].astype(np.int32), of

    @cached_property
    def group_memory(self) -> Floats:
        """(groups,) bytes that a group occupies."""
        return summed(self.group, self.memory, self.groups)

    def of_step(self) -> Problem:
        """The same problem without nodes that cost no time: those that initialize variables, save or restore them, in most graphs.

        Groups and their numbers stay, and so do objectives: each group keeps its first node, which occupies all of its memory.
        """
        _, first = np.unique(self.group, return_index=True)
        kept = self.seconds.any(axis=0) | (self.allowed_kind != self.allowed_kind[first][self.group])
        for seconds in (self.fed_at, self.back_after):
            if seconds is not None:
                kept |= seconds.any(axis=0)
        kept[self.value_source] = kept[self.value_target] = kept[first] = True
        if kept.all():
            return self
        memory = np.zeros(self.nodes)
        memory[first] = self.group_memory

        def of(column: npt.NDArray[Any] | None) -> Any:
            return None if column is None else np.ascontiguousarray(column[..., kept])

        number = np.cumsum(kept, dtype=np.int32) - 1
        return replace(
            self, seconds=of(self.seconds), memory=of(memory), group=of(self.group), allowed_kind=of(self.allowed_kind),
            value_source=number[self.value_source], value_target=number[self.value_target],
            priority=of(self.priority), fed_at=of(self.fed_at), back_after=of(self.back_after), used=of(self.used),
        )  # fmt: skip

    def evaluate(self, assignment: npt.ArrayLike) -> float:
        """The objective of an assignment (n,), in seconds. It does not check constraints."""
        device = np.asarray(assignment, np.int32)
        if self.objective is Objective.THROUGHPUT:
            return float(max(loads(self.arrays, device).max(), self.machine_loads(device).max(initial=0.0)))
        return self.clocked(device)[2]

    @cached_property
    def share(self) -> Floats | None:
        """(n,) the part of its machine's cores that each node keeps busy; None where machines are not known.

        A node by itself has all cores of its machine, nodes of several devices have `shared` together.
        """
        return None if self.host is None or self.used is None else np.minimum(1.0, self.used / self.shared)

    def machine_loads(self, device: Ints) -> Floats:
        """(M,) seconds for which each machine works for one step, if all cores that its devices have are busy; (0,): none is known."""
        if self.host is None or self.share is None:
            return np.empty(0)
        work = self.seconds[self.device_class[device], np.arange(self.nodes)] * self.share
        host = self.host[device]
        return summed(host[host >= 0], work[host >= 0], int(self.host.max()) + 1)

    def clocked(
        self, device: Ints, in_order: bool = False, travels: Floats | None = None
    ) -> tuple[Floats, Floats, float]:
        """(n,) when each node of an assignment starts, and when it ends; and when the last one ends. In seconds, for one step.

        Args:
            in_order: devices run their nodes by number, and wait for each; else whatever is ready, by priority.
            travels: (2, E) filled: when what goes to each end of a value leaves and arrives, at the first end on each device.
        """
        start, finish = np.empty(self.nodes), np.empty(self.nodes)
        rank = np.arange(self.nodes, dtype=np.int32) if in_order else self.rank
        times = np.empty((2, 0)) if travels is None else travels
        end = run(self.arrays, device, rank, self.contended, in_order, start, finish, times)
        return start, finish, float(end)

    def violations(self, assignment: npt.ArrayLike) -> list[str]:
        """What is wrong with an assignment, in words; empty when it is feasible."""
        device = np.asarray(assignment, np.int32)
        found = []
        wrong = np.flatnonzero(~self.allowed[self.allowed_kind, device])
        if len(wrong):
            found.append(f"node {wrong[0]} may not be on device {device[wrong[0]]}")
        first = np.zeros(self.groups, np.int32)
        first[self.group[::-1]] = device[::-1]
        apart = np.flatnonzero(first[self.group] != device)
        if len(apart):
            found.append(f"node {apart[0]} is not with its group {self.group[apart[0]]}")
        used = np.bincount(device, self.memory, self.devices)
        for d in np.flatnonzero(used > self.capacity * (1 + 1e-12)):
            found.append(f"device {d} holds {used[d]:.6g} of {self.capacity[d]:.6g} bytes")
        return found


class InfeasibleError(ValueError):
    """No assignment meets the hard constraints.

    Attributes:
        nodes: the tightest set found, which cannot fit; devices: where alone it may be.
        short: bytes by which they exceed what there is; 0 when memory is not the reason.
    """

    def __init__(self, message: str, nodes: Ints, devices: tuple[int, ...], short: float) -> None:
        super().__init__(message)
        self.nodes, self.devices, self.short = nodes, devices, short


@dataclass(frozen=True, slots=True)
class Found:
    """One step of a search: what found something better, and how good it is (`seconds` after the start)."""

    by: str
    objective: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Solution:
    """The answer of a search.

    Attributes:
        assignment: (n,) the device of each node; read-only.
        objective: its objective, in seconds.
        lower_bound: no assignment is better than this; 0 where nothing is proven, as sizes or numbers of loop iterations are unknown.
        history: each improvement with its source, in order. The times in it vary; all else is repeatable.
        minimized: what the objective is.
        is_of_step: whether the search was for the step and the sizes of the plan that has this answer. A session searches once, for all
            nodes of its graph, and `plan.at` changes sizes: the numbers are those of that search then.
    """

    assignment: Ints
    objective: float
    lower_bound: float
    history: tuple[Found, ...]
    minimized: Objective = Objective.MAKESPAN
    is_of_step: bool = True

    @property
    def gap(self) -> float:
        """By which part of the objective the lower bound is lower: 0 when it is proven optimal."""
        return 1 - self.lower_bound / self.objective if self.objective > 0 else 0.0


def summed(label: npt.NDArray[Any], number: Floats, count: int) -> Floats:
    """(count,) the sum of the numbers of each label."""
    out: Floats = np.bincount(label, number, count).astype(np.float64)  # no numbers at all would give integers
    return out


def _seats(place: Ints) -> Ints:
    """The number of each device among those of its place."""
    order = np.argsort(place, kind="stable")
    first = _is_first(place[order])
    seat = np.empty(len(place), np.int32)
    seat[order] = np.arange(len(place)) - np.flatnonzero(first)[np.cumsum(first) - 1]
    return seat


def distinct(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The different numbers, ascending; faster than np.unique on what is nearly sorted, as edges mostly are."""
    ordered = np.sort(numbers, kind="stable")
    return ordered[_is_first(ordered)]


def numbered(ordered: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The different values of a sorted array, and for each entry which of them it is."""
    first = _is_first(ordered)
    return ordered[first], np.cumsum(first) - 1


def _is_first(ordered: npt.NDArray[Any]) -> Flags:
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def starts(owner: npt.NDArray[Any], count: int) -> Ints:
    """Where each owner's entries start, in an array sorted by owner: (count + 1,)."""
    out = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=count), out=out[1:])
    return out
