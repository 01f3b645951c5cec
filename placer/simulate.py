"""Discrete-event simulation of a step: start and end of each node and transfer, the critical path, and peak memory.

The machine model is that of the placement search, with one difference. Here a device runs its partition in the plan's order and waits
for values that have not arrived, as programs do. In the search it runs the first node that is ready. (The order of a searched plan is
mostly the one in which nodes start in the search: `schedule/from_search.py`.) What the plan's channels carry is sent concurrently with
computation: a value once to each other task that needs it, which passes it on to its other devices. What the runtime coalesces into one
message is handled once. Channels over one link share it or wait for
each other. One-sided reads are not sent. A value occupies memory on its device from the start of its node until its last use or the end
of its transfer there, and on a receiving device from its arrival until its last use.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..graph.core.argument_names import check_flags
from ..graph.core.dtypes import bfloat16, float32
from ..graph.core.errors import InvalidArgumentError
from ..graph.core.graph import Node, Tensor
from ..graph.core.opdef import Trait
from .cost.launches import Launch, device_times, working_set
from .cost.profile import Profile, as_profile
from .cost.static import state_bytes
from .critical_path import CLIENT, Span, Transfer, critical_path
from .partition.partitioned_graph import Channel, Partition, takers_of, task_of
from .plan_data import PlanData
from .render.text import count_text, short, size_text, time_text
from .render.timeline import Bar, Chart, MemoryTrack
from .search.from_graph import Values, copy_cost, hosts_of, link_between, step_problem
from .search.memory_profile import LiveValues
from .search.problem import Objective, Problem, summed
from .search.types import Floats, Ints

Travels = dict[tuple[int, int], tuple[float, float]]
"""(value, destination) -> when it leaves and arrives."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The simulated timeline of a step.

    Attributes:
        devices: names of the devices that numbers refer to.
        spans: the nodes, by start. transfers: the values that cross, by start.
        critical: the critical path: the chain of spans and transfers that ends last, in order. Each waits for the one before it, for
            its value or for its device. If the client counts, the chain may start with what it feeds and end with what it fetches.
        busy: seconds for which each device computes.
        peak: peak memory of each device, in bytes; empty in a measured timeline without memory.
        makespan: seconds until the last node has ended or, if the client counts, until the client has its fetches.
        exact: whether all sizes are known; if not, times and bytes are lower bounds.
        memory: for each device, times and the bytes in use from then on; empty in a measured timeline without memory.
    """

    devices: tuple[str, ...]
    spans: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    critical: tuple[Span | Transfer, ...]
    busy: tuple[float, ...]
    peak: tuple[float, ...]
    makespan: float
    exact: bool = True
    memory: tuple[tuple[Floats, Floats], ...] = field(default=(), compare=False, repr=False)

    @property
    def limited_by(self) -> str:
        """The bottleneck: the device, or `link A -> B`, on which the critical path spends the most time."""
        return max(self.spent.items(), key=lambda item: item[1], default=("nothing", 0.0))[0]

    @property
    def spent(self) -> dict[str, float]:
        """Device, or `link A -> B` -> its seconds of the critical path.

        The time for which a part waits, as for a link that others use, counts as its own. So the sum is the end of the path.
        """
        out: dict[str, float] = {}
        end = 0.0
        for part in self.critical:
            where = self.where(part)
            where = where if isinstance(part, Span) else f"link {where}"
            out[where] = out.get(where, 0.0) + part.finish - end
            end = part.finish
        return out

    def where(self, part: Span | Transfer) -> str:
        """The device of a span, or `A -> B` of a transfer."""
        if isinstance(part, Span):
            return self.devices[part.device]
        return " -> ".join("client" if i == CLIENT else self.devices[i] for i in (part.source, part.destination))

    def __str__(self) -> str:
        share = [f"{b / self.makespan:.0%}" if self.makespan > 0 else "-" for b in self.busy]
        names = [short(name) for name in self.devices]
        width = max(map(len, names))
        lines = [
            f"{time_text(self.makespan, self.exact)}; {count_text(len(self.spans), 'node')}, "
            f"{count_text(len(self.transfers), 'transfer')}; limited by {short(self.limited_by)}"
        ]
        peaks = [f"  peak {size_text(p, self.exact)}" for p in self.peak] or [""] * len(self.devices)
        lines += [f"  {name:<{width}}  busy {s:>4}{p}" for name, s, p in zip(names, share, peaks, strict=True)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<dt.Timeline of {len(self.spans)} nodes and {len(self.transfers)} transfers, "
            f"{time_text(self.makespan, self.exact)}>"
        )

    def chart(self, title: str = "") -> Chart:
        """The timeline as a picture, with a row for each active device and link."""
        critical = set(map(id, self.critical))
        bars = [
            Bar(self.devices[s.device], s.start, s.finish, s.name, "kernel", ", ".join(s.nodes), id(s) in critical)
            for s in self.spans
        ] + [
            Bar(
                short(self.where(t)), t.start, t.finish, t.name, "transfer", size_text(round(t.bytes), self.exact), id(t) in critical
            )
            for t in self.transfers
        ] + [
            Bar(short(self.where(p)), p.start, p.finish, p.name, "transfer", "", True)
            for p in self.critical
            if isinstance(p, Transfer) and CLIENT in (p.source, p.destination)
        ]  # fmt: skip
        busiest = sorted(zip(self.busy, self.devices, strict=True), reverse=True)[:3]
        busy = ", ".join(f"{short(d)} {b / self.makespan:.0%}" for b, d in busiest if b > 0)
        facts: tuple[tuple[str, str], ...] = (("limited by", short(self.limited_by)), ("busy", busy))
        if not self.exact:
            facts = (*facts, ("sizes", "some are unknown, and count as 1: times and bytes are lower bounds"))
        memory = [
            MemoryTrack(d, at, in_use, self.exact)
            for d, (at, in_use) in zip(self.devices, self.memory, strict=False)
            if len(at) and in_use.any()
        ]
        return Chart(title or "Predicted step", tuple(bars), self.makespan, facts, tuple(memory), self.exact)

    def folded(self, depth: int = 1) -> Timeline:
        """A coarser timeline: consecutive spans on a device are merged if the first `depth` parts of their names agree.

        A step of thousands of nodes becomes a picture of its layers, or of a pipeline's passes.
        """
        made: dict[int, list[tuple[str, list[Span]]]] = {}
        for s in self.spans:
            scope = "/".join(s.name.split("/")[:depth])
            parts = made.setdefault(s.device, [])
            if not parts or parts[-1][0] != scope:
                parts.append((scope, []))
            parts[-1][1].append(s)
        whole: dict[int, Span] = {}  # the span that holds each, by identity
        for device, parts in made.items():
            for scope, inside in parts:
                names = tuple(n for s in inside for n in s.nodes or (s.name,))
                one = Span(scope, device, inside[0].start, max(s.finish for s in inside), names)
                whole.update((id(s), one) for s in inside)
        spans = sorted({id(s): s for s in whole.values()}.values(), key=lambda s: (s.start, s.finish))
        critical = {id(c): c for c in (whole[id(p)] if isinstance(p, Span) else p for p in self.critical)}
        return replace(self, spans=tuple(spans), critical=tuple(critical.values()))

    def to_html(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Write a self-contained HTML page of the timeline."""
        self.chart(title).to_html(path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline in Chrome's format, for Perfetto (ui.perfetto.dev). OSError: the file cannot be written."""
        Path(path).write_text(self.chart().to_chrome_trace(), encoding="utf-8")

    def to_svg(self) -> str:
        """The timeline as one `<svg>` element."""
        return self.chart().to_svg()

    def _repr_html_(self) -> str:
        return self.to_svg()


def simulate(
    plan: PlanData,
    *,
    contended: bool = True,
    costs: Profile | str | os.PathLike[str] | None = None,
    client: bool = False,
) -> Timeline:
    """Simulate one step of a plan.

    Args:
        costs: measured costs, a `Profile` or the path of one; None: analytic costs (`search/from_graph.py`).
        contended: whether transfers over the same link wait for each other.
        client: whether the time of the step includes the transfer of feeds from the client and of fetches to it.

    Raises:
        InvalidArgumentError: the step runs no node, as all that it fetches is fed.

    >>> print(simulate(dt.place(graph, {"worker": 2}, fetches=loss)))
    """
    if not any(part.nodes for part in plan.partitions.values()):
        raise InvalidArgumentError.of(
            "The step runs no node, as all that it fetches is fed: there is no time to predict"
        )
    profile = as_profile(costs)
    plan = _sized(plan, profile)
    problem, assignment, names, devices = step_of(plan, contended=contended, costs=profile, client=client)
    return replace(plan_timeline(plan, problem, assignment, names, devices), exact=is_exact(plan, profile))


def plan_timeline(
    plan: PlanData, problem: Problem, assignment: Ints, names: list[str], devices: tuple[str, ...]
) -> Timeline:
    """The timeline of a plan's step, from the results of `step_of`.

    Peak memory includes one-sided access: a variable is in the memory of its owner, whichever device runs it, and a one-sided read has a
    copy at its reader from the start of the step.
    """
    step = timeline(problem, assignment, names, devices, in_order=True)
    more = Counter[str]()
    for c in plan.channels:
        more[c.destination] += c.bytes * (c.direct and not c.control)
    for place, device in read_in_place(plan).items():
        more[device] += state_bytes(place)[0]
    for device, part in plan.partitions.items():
        for node in part.nodes:
            if Trait.STATE_HANDLE in node.opdef.traits and node in plan.decisions:
                size = state_bytes(node)[0]
                more[device] -= size
                more[plan.decisions.device_of(node)] += size
    return replace(
        step,
        transfers=tuple(sorted((*step.transfers, *_unawaited(plan, step)), key=lambda t: (t.start, t.finish))),
        peak=tuple(p + more[d] for d, p in zip(step.devices, step.peak, strict=True)),
        memory=tuple((at, size + more[d]) for d, (at, size) in zip(step.devices, step.memory, strict=True)),
    )


def _unawaited(plan: PlanData, step: Timeline) -> Iterator[Transfer]:
    """The transfers that delay no node of a simulated step, by the plan's order of channels.

    A device begins with its one-sided reads, whose time counts for the nodes that need the values. What no node waits for is sent as soon
    as it is made.
    """
    number = {name: i for i, name in enumerate(step.devices)}
    simulated = Counter((t.name, t.source, t.destination, t.bytes) for t in step.transfers)
    ends = {(s.name, s.device): s.finish for s in step.spans} | {
        (t.name, t.destination): t.finish for t in step.transfers
    }
    link, (copy_latency, copy_rate) = link_between(plan.cluster, calibrated=True), copy_cost(plan.cluster)
    for c in plan.channels:
        name, source, destination = c.maker, number[c.source], number[c.destination]
        key = name, source, destination, float(c.bytes)
        if simulated[key]:
            simulated[key] -= 1
            continue
        start, latency, per_byte = 0.0, copy_latency, 1 / copy_rate
        if not c.direct:
            start = ends.get((name, source), 0.0)
            latency, per_byte = link(task_of(c.source), task_of(c.destination))
        ends[name, destination] = finish = start + latency + c.bytes * per_byte
        yield Transfer(name, source, destination, float(c.bytes), start, finish)


def read_in_place(plan: PlanData) -> dict[Node, str]:
    """Variables that other tasks read one-sidedly in this step -> the devices that store them."""
    run = set(plan.partitioned.nodes)
    read = [
        (state_behind(plan.graph.get_tensor_by_name(c.name).op), c.source)
        for c in plan.channels
        if c.direct and not c.control
    ]
    return {place: device for place, device in read if place is not None and place not in run}


def state_behind(node: Node) -> Node | None:
    """The node that owns the state (such as a variable's memory) that a node is or reads; None for any other node."""
    while node.type in ("Identity", "ReadVariableOp") and node.inputs:
        node = node.inputs[0].op
    return node if Trait.STATE_HANDLE in node.opdef.traits else None


def _sized(plan: PlanData, costs: Profile | None) -> PlanData:
    """The plan, for the sizes of the measured steps where it has none."""
    return plan if costs is None or not costs.shapes else plan.resized({**costs.shapes, **plan.sizes.given})


def is_exact(plan: PlanData, costs: Profile | None = None) -> bool:
    """Whether a plan's predicted times and bytes depend on no unknown size and no unknown number of loop iterations."""
    sizes = _sized(plan, costs).sizes
    measured = {} if costs is None else costs.nodes
    for p in plan.partitions.values():
        if p.has_loop and not all(n.name in measured for n in p.nodes):
            return False
        if not sizes.is_exact(n for n in p.nodes if n.name not in measured):
            return False
    values = (v for v in plan.partitioned.values if isinstance(v, Tensor))
    return all(map(sizes.is_known, values))


def step_of(
    plan: PlanData,
    *,
    contended: bool = True,
    costs: Profile | str | os.PathLike[str] | None = None,
    client: bool = False,
    objective: Objective = Objective.MAKESPAN,
) -> tuple[Problem, Ints, list[str], tuple[str, ...]]:
    """A plan's step as an unconstrained placement problem, the plan's assignment, and the names of its nodes and devices.

    The nodes are numbered in an order that all programs of the plan follow.
    """
    check_flags(contended=contended, client=client)
    profile = as_profile(costs)
    plan = _sized(plan, profile)
    order, where = _merged(plan.partitions)
    feeds = {plan.graph.get_tensor_by_name(name) for name in plan.feeds}
    narrow = any(
        c.dtype is bfloat16 and plan.graph.get_tensor_by_name(c.name).dtype.base is float32 for c in plan.channels
    )
    launches = _launches(plan, len(order)) if profile is None else {}
    touched = {device: working_set(calls) for device, calls in launches.items()}
    times = _times(plan, order, where, launches, touched) if launches else ()
    problem = step_problem(
        order, plan.cluster, feeds=feeds, values=_values(plan, order, where, feeds), contended=contended, costs=profile, narrow=narrow,
        sizes=plan.sizes, times=times,
        joined=_joined(plan, dict(zip(zip(where, order, strict=True), times, strict=True))) if launches else (),
        touched=touched,
        fetches=[plan.graph.get_tensor_by_name(name) for name in plan.fetches] if client else None, objective=objective,
    )  # fmt: skip
    if not len(times) or plan.cluster.calibration is None:
        reads = one_sided_reads(plan)
        problem = replace(
            problem, seconds=problem.seconds + [reads.get(key, 0.0) for key in zip(where, order, strict=True)]
        )
    number = {str(device.name): d for d, device in enumerate(plan.cluster.devices)}
    assignment = np.array([number[device] for device in where], np.int32)
    return problem, assignment, [node.name for node in order], tuple(number)


def _values(plan: PlanData, order: Sequence[Node], where: Sequence[str], feeds: Collection[Tensor]) -> Values:
    """What the nodes of a plan give to each other: on a device by the graph, between devices by the channels, in their order.

    Nothing waits for copies of a constant, nor a node for one that comes later on its device: in a loop, or as the copy of a constant.
    """
    number: dict[str, dict[Node, int]] = {device: {} for device in plan.partitions}
    for i, (node, device) in enumerate(zip(order, where, strict=True)):
        number[device][node] = i
    times, carried, channels = Counter(order), plan.partitioned.values, {c.id: c for c in plan.channels}
    # (source, output or -1 for control, channel of what is sent for one consumer or -1) -> (channel or -1, consumer) of each end
    ends: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for device, part in plan.partitions.items():
        here = number[device]
        for node, i in here.items():
            taken: dict[Tensor | Node, None] = dict.fromkeys((*node.inputs, *node.controls))
            for what in taken:
                maker, output = (what.op, what.value_index) if isinstance(what, Tensor) else (what, -1)
                if here.get(maker, i) < i and times[maker] == 1 and what not in feeds:
                    ends.setdefault((here[maker], output, -1), []).append((-1, i))
        for channel, takers in _received(part):
            what = carried[channel.id]
            maker, output = (what.op, what.value_index) if isinstance(what, Tensor) else (what, -1)
            first = channel if channel.relays is None else channels[channel.relays]
            alone = channel.id if channel.paces or (isinstance(what, Tensor) and what.dtype.is_ref) else -1
            for node in () if first.direct else takers:
                key = number[first.source][maker], output, alone
                ends.setdefault(key, []).append((channel.id, here[node]))
    keys = sorted(ends)
    start = np.cumsum([0, *(len(ends[key]) for key in keys)], dtype=np.int32)
    target = np.array([i for key in keys for _, i in sorted(ends[key])], np.int32)
    tensors = [None if output < 0 else order[i].outputs[output] for i, output, _ in keys]
    return Values(np.array([i for i, *_ in keys], np.int32), tensors, start, target)


def _received(part: Partition) -> Iterator[tuple[Channel, Sequence[Node]]]:
    """The channels that a device receives, each with the nodes that wait for it: those that take its value, or the node behind.

    A LoopCond, and the progress of a receiver, are taken by no node.
    """
    takers = takers_of(part)
    behind: list[Node] = []
    for kind, what in reversed(part.steps):
        if isinstance(what, Node):
            behind = [what]
        elif kind == "recv" and isinstance(what, Channel):
            yield what, takers[what.id] or behind


# Seconds that a tensor waits for the next one for its task: `NEXT_S` of the runtime's step scheduler.
COALESCED = 100e-6
# Nodes of plans up to which kernels are found as they will be fused; nodes of larger ones count one by one.
LAUNCHED = 20_000


def _gpus(plan: PlanData) -> set[str]:
    return {str(d.name) for d in plan.cluster.devices if d.gpu is not None} & plan.partitions.keys()


def _launches(plan: PlanData, nodes: int) -> dict[str, Sequence[Launch]]:
    """The launches of devices whose times are known: a GPU's by its maker's figures, a processor's by the machine's profile.

    Empty: none are, or the plan has too many `nodes`.
    """
    if nodes > LAUNCHED:
        return {}
    timed = _gpus(plan) if plan.cluster.calibration is None else plan.partitions
    launches = {d: plan.launches(d) for d in timed}
    return launches if any(launches.values()) else {}


def _times(
    plan: PlanData, order: Sequence[Node], where: Sequence[str], launches: Mapping[str, Sequence[Launch]],
    touched: Mapping[str, float],
) -> Sequence[tuple[float, float] | None]:  # fmt: skip
    """Seconds and cores of each node in its plan: kernels as they are fused, and one-sided reads and updates.

    Args:
        touched: bytes that the launches of a device touch.
    """
    machine, gpus = plan.cluster.calibration, _gpus(plan)
    if machine is None:
        on_gpu = {d: device_times(plan.partitions[d].nodes, found, None, 0.0) for d, found in launches.items()}
        return [on_gpu[d].get(n, (0.0, 0.0)) if d in on_gpu else None for n, d in zip(order, where, strict=True)]
    hosts = dict(zip((str(d.name) for d in plan.cluster.devices), hosts_of(plan.cluster).tolist(), strict=True))
    working = Counter[int]()  # the working sets of tasks of one machine share its last cache
    for device, size in touched.items():
        working[hosts[device]] += round(size)
    found = {
        d: dict(device_times(p.nodes, launches[d], machine, working[hosts[d]])) for d, p in plan.partitions.items()
    }

    def add(device: str, node: Node, seconds: float) -> None:
        before, cores = found[device].get(node, (0.0, 1.0))
        found[device][node] = before + seconds, cores

    for device, p in plan.partitions.items():
        task = task_of(device)
        for node in p.nodes:
            if node in plan.decisions and node.opdef.changes_state and task_of(plan.decisions.device_of(node)) != task:
                add(device, node, machine.overheads["update"])
    for (device, reader), seconds in one_sided_reads(plan).items():
        add(device, reader, seconds)
    nothing = {d: (0.0, 0.0 if d in gpus else 1.0) for d in plan.partitions}
    return [found[device].get(node, nothing[device]) for node, device in zip(order, where, strict=True)]


def _joined(plan: PlanData, times: Mapping[tuple[str, Node], tuple[float, float] | None]) -> set[str]:
    """What travels in the message of another value, as the runtime coalesces sends: names of channels.

    A tensor waits for the next one for the same task, if that comes before a pause and soon.
    """
    alone, joined = set[str](), set[str]()
    for device, part in plan.partitions.items():
        until_end, following = 0.0, dict[str, float]()  # task -> when what follows is sent
        for kind, what in reversed(part.steps):
            if isinstance(what, Node):
                found = times.get((device, what))
                until_end += found[0] if found else 0.0
            elif kind == "send" and isinstance(what, Channel) and what.crosses_tasks:
                task = task_of(what.destination)
                soon = until_end - following.get(task, -np.inf) <= COALESCED
                (joined if soon else alone).add(what.name)
                following[task] = until_end
            elif kind != "read":
                following.clear()
    return joined - alone


def one_sided_reads(plan: PlanData) -> dict[tuple[str, Node], float]:
    """(device, node) -> seconds for which it copies what it reads in other tasks' memory."""
    out: dict[tuple[str, Node], float] = {}
    latency, rate = copy_cost(plan.cluster)
    for device, part in plan.partitions.items():
        reads = part.reads
        takers = takers_of(part) if reads else {}
        for c in reads:
            for reader in takers[c.id][:1]:
                out[device, reader] = out.get((device, reader), 0.0) + latency + c.bytes / rate
    return out


def _merged(partitions: Mapping[str, Partition]) -> tuple[list[Node], list[str]]:
    """One order of all devices' nodes, each device's in its order and behind what it receives for them; and the device of each.

    A constant that several devices have is there once for each of them.
    """
    order: list[Node] = []
    where: list[str] = []
    sent: set[int] = set()
    waiting: dict[int, str] = {}  # channel -> the device that waits for it
    at, ready = dict.fromkeys(partitions, 0), list(partitions)[::-1]
    while ready:
        device = ready.pop()
        steps, i = partitions[device].steps, at[device]
        while i < len(steps):
            kind, what = steps[i]
            if isinstance(what, Node):
                order.append(what)
                where.append(device)
            elif kind == "send" and isinstance(what, Channel):
                sent.add(what.id)
                if what.id in waiting:
                    ready.append(waiting.pop(what.id))
            elif kind == "recv" and isinstance(what, Channel) and what.id not in sent:
                waiting[what.id] = device
                break
            i += 1
        at[device] = i
    return order, where


def timeline(
    problem: Problem, assignment: npt.ArrayLike, names: Sequence[str] | None = None,
    devices: Sequence[str] | None = None, *, in_order: bool = False,
) -> Timeline:  # fmt: skip
    """Simulate one step of an assignment (n,). Without `names` and `devices`, nodes and devices are named by their numbers.

    `in_order`: devices run nodes in order of their numbers, and wait for each. Otherwise they run the ready node of the highest priority.
    """
    device = np.asarray(assignment, np.int32)
    names = [str(i) for i in range(problem.nodes)] if names is None else names
    start, finish, makespan, travels = _run(problem, device, in_order)
    live = LiveValues(problem, device, start, finish, {key: arrival for key, (_, arrival) in travels.items()})
    fixed, changes = summed(device, problem.memory, problem.devices), live.over_time(problem.devices)
    spans = [Span(names[i], int(device[i]), float(start[i]), float(finish[i])) for i in range(problem.nodes)]
    moved, first = [], dict[tuple[int, int], int]()  # value, task -> the device to which it is sent
    for (v, d), times in travels.items():
        source, place = int(problem.value_source[v]), int(problem.places[d])
        home = int(device[source])
        via = first.setdefault((v, place), d) if place != problem.places[home] else d
        moved.append(Transfer(names[source], home if via == d else via, d, float(problem.value_bytes[v]), *times))
    return Timeline(
        tuple(map(str, range(problem.devices))) if devices is None else tuple(devices),
        tuple(sorted(spans, key=lambda s: (s.start, s.finish))),
        tuple(sorted(moved, key=lambda t: (t.start, t.finish))),
        tuple(_critical(problem, device, spans, moved)),
        tuple(np.bincount(device, finish - start, problem.devices).tolist()),
        tuple(float(f + max(size.max(initial=0.0), 0.0)) for f, (_, size) in zip(fixed, changes, strict=True)),
        float(makespan),
        memory=tuple((at, f + size) for f, (at, size) in zip(fixed, changes, strict=True)),
    )


def seconds_of(problem: Problem, assignment: npt.ArrayLike, *, in_order: bool = False) -> float:
    """The makespan of the step that `timeline` simulates."""
    return problem.clocked(np.asarray(assignment, np.int32), in_order)[2]


def _run(problem: Problem, device: Ints, in_order: bool) -> tuple[Floats, Floats, float, Travels]:
    """When each node starts, and when it ends; when the last one ends; and what travels when."""
    times = np.full((2, len(problem.value_target)), np.nan)
    start, finish, makespan = problem.clocked(device, in_order, times)
    ends = np.flatnonzero(~np.isnan(times[0]))
    values = np.searchsorted(problem.value_start, ends, side="right") - 1
    to = device[problem.value_target[ends]]
    keys = zip(values.tolist(), to.tolist(), strict=True)
    return start, finish, makespan, dict(zip(keys, map(tuple, times[:, ends].T.tolist()), strict=True))


def _critical(
    problem: Problem, device: Ints, spans: Sequence[Span], moved: Iterable[Transfer]
) -> list[Span | Transfer]:
    """The critical path, with what the client feeds and fetches."""
    a, names = problem.arrays, [s.name for s in spans]
    number = {name: i for i, name in enumerate(names)}
    nodes = np.arange(problem.nodes)

    def inputs(name: str) -> list[str]:
        i = number[name]
        values = a.input_value[a.input_start[i] : a.input_start[i + 1]]
        return [names[i] for i in a.value_source[values].tolist()]

    fed = [] if problem.fed_at is None else problem.fed_at[device, nodes].tolist()
    back = [] if problem.back_after is None else problem.back_after[device, nodes].tolist()
    ends: list[Span | Transfer] = [*spans]
    for i, after in enumerate(back):
        if after > 0:
            s = spans[i]
            ends[i] = Transfer(s.name, s.device, CLIENT, 0.0, s.finish, s.finish + after)
    feeds = {names[i]: Transfer(names[i], CLIENT, spans[i].device, 0.0, 0.0, at) for i, at in enumerate(fed) if at > 0}
    return critical_path(spans, moved, inputs, feeds, end=max(ends, key=lambda p: p.finish))
