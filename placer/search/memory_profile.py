"""The memory profile of a step: the bytes that each device holds over time, and the error if they exceed its memory.

A value occupies memory on its device from the moment its node starts until its last use or departure there, and on a device that
receives it from its arrival until its last use. Reading a variable copies nothing where the variable is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .clock import MOMENT
from .problem import InfeasibleError, Problem, starts, summed
from .types import Floats, Ints


class PeakError(InfeasibleError):
    """No placement was found whose values fit at every moment.

    Attributes:
        device: the device that lacks most bytes. at: the node that starts at that moment.
        alive: (node, bytes) of the values that are live on the device then, largest first.
        proven: whether no placement can fit.
    """

    def __init__(self, device: int, at: int, alive: Sequence[tuple[int, float]], short: float, proven: bool) -> None:
        nodes = np.array([node for node, _ in alive], np.int32)
        super().__init__(f"Device {device} is short of {short:.6g} bytes when node {at} runs", nodes, (device,), short)
        self.device, self.at, self.alive, self.proven = device, at, tuple(alive), proven


class LiveValues:
    """The live ranges of values: one row for each value on each device that has it.

    Attributes:
        value, device: (R,) the value and the device. since, until: (R,) seconds, its live range. size: (R,) bytes.
    """

    def __init__(
        self,
        problem: Problem,
        device: Ints,
        start: Floats,
        finish: Floats,
        arrives: dict[tuple[int, int], float] | None = None,
    ) -> None:
        a, count = problem.arrays, problem.devices
        values = len(a.value_source)
        owner = np.repeat(np.arange(values, dtype=np.int64), np.diff(a.value_start))
        home = device[a.value_source].astype(np.int64)
        key = np.concatenate([np.arange(values) * count + home, owner * count + device[a.value_target]])
        used = np.concatenate([finish[a.value_source], finish[a.value_target]])
        keys, row = np.unique(key, return_inverse=True)
        self.value, self.device = keys // count, keys % count
        self.until = np.zeros(len(keys))
        np.maximum.at(self.until, row, used)
        source = a.value_source[self.value]
        away = self.device != home[self.value]
        link = a.place[device[source]], a.place[self.device]
        came = finish[source] + a.link_latency[link] + a.value_bytes[self.value] * a.link_per_byte[link]
        if arrives is not None:
            came[away] = [
                arrives[v, d] for v, d in zip(self.value[away].tolist(), self.device[away].tolist(), strict=True)
            ]
        self.since = np.where(away, came, start[source])
        # On its own device a value is live until its last departure.
        at_home = np.zeros(values, np.int64)
        at_home[self.value[~away]] = np.flatnonzero(~away)
        np.maximum.at(self.until, at_home[self.value[away]], came[away])
        here, there = _sizes(problem)
        self.size = np.where(away, there[self.value], here[self.value])

    def peaks(self, devices: int) -> tuple[Floats, Floats]:
        """(D,) the peak bytes of live values on each device, and the time of the peak."""
        most, when = np.zeros(devices), np.zeros(devices)
        for d, (time, size) in enumerate(self.over_time(devices)):
            if len(size):
                at = int(size.argmax())
                most[d], when[d] = max(float(size[at]), 0.0), time[at]
        return most, when

    def over_time(self, devices: int) -> list[tuple[Floats, Floats]]:
        """For each device, the times at which its live bytes change, and the live bytes from each time on."""
        rows = np.flatnonzero(self.size > 0)
        device = np.tile(self.device[rows], 2)
        size = np.concatenate([self.size[rows], -self.size[rows]])
        time = np.concatenate([self.since[rows], self.until[rows]])
        order = np.lexsort((size, time, device))  # at one moment what ends goes first
        ends = starts(device, devices)
        return [(time[at], np.cumsum(size[at])) for at in map(order.__getitem__, map(slice, ends[:-1], ends[1:]))]

    def alive(self, device: int, at: float) -> Ints:
        """The values that are live on a device at a time."""
        here = (self.device == device) & (self.since <= at) & (self.until > at) & (self.size > 0)
        found: Ints = self.value[here].astype(np.int32)
        return found


def _sizes(problem: Problem) -> tuple[Floats, Floats]:
    """(V,) bytes of each value at home and away."""
    bytes_of = problem.value_bytes
    return (
        bytes_of if problem.home_memory is None else problem.home_memory,
        bytes_of if problem.away_memory is None else problem.away_memory,
    )


def check_moments(problem: Problem) -> None:
    """Raises PeakError if a single node needs more memory than each of its candidate devices has."""
    if not len(problem.arrays.home_memory):
        return
    _check_alone(problem)


def check_assignment(problem: Problem, device: Ints) -> None:
    """Raises PeakError if the live values of an assignment (n,) exceed a device's memory at some time."""
    if not len(problem.arrays.home_memory):
        return
    start, finish, _ = problem.clocked(device)
    live = LiveValues(problem, device, start, finish)
    most, when = live.peaks(problem.devices)
    short = summed(device, problem.memory, problem.devices) + most - problem.capacity
    d = int(short.argmax())
    if short[d] <= 1e-9 * problem.capacity[d]:
        return
    size = np.zeros(problem.nodes)
    for v in live.alive(d, when[d]).tolist():
        row = (live.value == v) & (live.device == d)
        size[problem.value_source[v]] += float(live.size[row][0])
    size += np.where(device == d, problem.memory, 0.0)
    alive = [(i, float(size[i])) for i in np.argsort(-size, kind="stable").tolist() if size[i] > 0]
    running = np.flatnonzero((device == d) & (start <= when[d] + MOMENT) & (finish > when[d]))
    at = int(running[0]) if len(running) else alive[0][0]
    raise PeakError(d, at, alive, float(short[d]), False)


def _check_alone(problem: Problem) -> None:
    """What a node takes and makes must be in one place while it runs."""
    a = problem.arrays
    here, there = _sizes(problem)
    made = np.bincount(a.value_source, here, problem.nodes)
    taken = np.bincount(a.value_target, np.repeat(np.minimum(here, there), np.diff(a.value_start)), problem.nodes)
    need = made + taken + problem.memory
    room = np.where(problem.group_allowed, problem.capacity, 0.0).max(axis=1)[problem.group]
    worst = int((need - room).argmax())
    if need[worst] <= room[worst] * (1 + 1e-12):
        return
    alive = {worst: float(made[worst] + problem.memory[worst])}
    for v in a.input_value[a.input_start[worst] : a.input_start[worst + 1]].tolist():
        source = int(a.value_source[v])
        alive[source] = alive.get(source, 0.0) + float(min(here[v], there[v]))
    device = int(np.where(problem.group_allowed[problem.group[worst]], problem.capacity, -1.0).argmax())
    ordered = sorted(alive.items(), key=lambda entry: -entry[1])
    raise PeakError(device, worst, ordered, float(need[worst] - room[worst]), True)
