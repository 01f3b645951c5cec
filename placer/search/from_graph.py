"""Builds the placement problem of a step: costs of nodes, sizes of values, links between devices.

Costs are analytic: the operations and bytes that an op's definition tells, over what the device can do. A processor that has not been
measured is taken for a common one (`TYPICAL_CPU`); an emulated device works at its speed. A GPU has the speeds that its maker publishes
for each kind of arithmetic (`graph/core/gpu_models.py`). Transfers take the link's latency plus bytes over its bandwidth; links that are
not known are taken for loopback between tasks, for memory copies within one (`BETWEEN_TASKS`, `WITHIN_TASK`). Where a profile says what
a node or a link took (../profile.py), that counts.

A transfer between tasks also keeps the processors at both ends busy for a while (`HANDLING`): what a device runs next takes so much
longer. Moves that gain nothing so cost something. Where the machine was measured, a message between two tasks that do nothing else keeps
each end busy for half of the time that it takes. A task whose kernels touch much memory (`touched`) has evicted the code and data of
message handling from its caches, and takes longer, up to what was measured for tasks that compute. What remains of a link's latency
passes beside. The message also wakes a task that waits, and what the tasks of a machine do at once shares its processors.

Memory is what the step keeps on a device for good, the state behind variables, and its values as long as they are needed
(`memory_penalty.py`). A loop counts as one iteration, and the way back to its next one is left out.

The client of the step costs no time unless `fetches` are given. Then it sends each task a message with the task's feeds, over the link
between the two, and waits for a message from each task with the fetches. Described and measured links name the client `CLIENT`.

Where the cluster has a machine's profile (../cluster/calibration.py), the times of its processors and of messages between its tasks are
those of the profile (../cost/launches.py). A node that a search may place counts as a kernel by itself; for a plan, `times` has what
its kernels take as they are fused, a GPU's also without a profile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from ...graph.core.dtypes import float32, resource
from ...graph.core.gpu_models import Work, work_of
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import OpDef, Trait
from ..cluster.calibration import Calibration
from ..cluster.spec import Cluster, DeviceInfo
from ..cost.launches import GPU_LAUNCH, REDUCTIONS, node_seconds
from ..cost.profile import STORED, Profile
from ..cost.shapes import Sizes
from ..cost.static import state_bytes
from .problem import Objective, Problem
from .types import Flags, Floats, Ints

T = TypeVar("T")


class Speed(NamedTuple):
    """Operations per second of each kind of `Work`, bytes per second, and seconds that every node takes at least."""

    rates: tuple[float, ...]
    bandwidth: float
    overhead: float

    def seconds(self, work: Work, flops: float, moved: float) -> float:
        """The time of a node by itself."""
        return self.overhead + max(flops / self.rates[work], moved / self.bandwidth)


class Values(NamedTuple):
    """What nodes of a problem give to each other: v values.

    Attributes:
        source: (v,) the node that makes each, ascending. tensor: what it is; None: a control edge.
        start: (v + 1,) where the consumers of each begin. target: consumers; the device of the first in a task gets the value for the task.
    """

    source: Ints
    tensor: Sequence[Tensor | None]
    start: Ints
    target: Ints


TYPICAL_CPU = Speed((5e10,) * len(Work), 1e10, 2e-6)  # a core complex of a server, rounded
CALIBRATED = Speed((), 0.0, 0.0)  # stands for the class of processors whose times a profile has
BETWEEN_TASKS = (50e-6, 1e9)  # seconds, bytes per second: ZeroMQ over loopback, with serialising
WITHIN_TASK = (5e-6, 1e10)
ONE_SIDED_READ = (2e-6, 1e10)  # seconds, bytes per second: a copy from another task's memory
COLD_BYTES = (
    1 << 20
)  # what a task touches between two messages, and has driven the code that handles them out of its caches
POLLED = 150e-6  # seconds for which a task polls once it has sent something: `BUSY_POLL_S` of the runtime's event loop
HANDLING = (40e-6, 4e9)  # seconds, bytes per second: what a transfer between tasks costs the processors at both ends
_READS = frozenset({"Identity", "ReadVariableOp"})
_GIVEN = frozenset({"Const", "Placeholder"})  # their values are there when the step begins
IN_PROCESS = "/job:localhost/replica:0/task:0"  # the task of a session without a target, which runs in its process
CLIENT = "/job:client"  # what links call the process that runs sessions; no task of a cluster should have that name


def step_problem(
    nodes: Sequence[Node],
    cluster: Cluster,
    *,
    running: Collection[Node] | None = None,
    feeds: Collection[Tensor] = (),
    group: Ints | None = None,
    allowed: Flags | None = None,
    allowed_kind: Ints | None = None,
    objective: Objective = Objective.MAKESPAN,
    contended: bool = False,
    costs: Profile | None = None,
    narrow: bool = False,
    fetches: Collection[Tensor] | None = None,
    sizes: Sizes | None = None,
    at_hand: Collection[Tensor] = (),
    times: Sequence[tuple[float, float] | None] = (),
    joined: Collection[str] = (),
    touched: Mapping[str, float] | None = None,
    values: Values | None = None,
) -> Problem:
    """The problem of placing these nodes on the cluster's devices, in the order of `cluster.devices`.

    Args:
        nodes: in a topological order of data and control edges; edges to other nodes, and those that lead back to the
            next iteration of a loop, are left out. One may stand there several times: a constant of which several devices have copies.
        running: those that the step runs; the others cost nothing. None: all run.
        feeds: tensors that the client gives.
        group, allowed, allowed_kind: as in `Problem`; None: each node by itself, on any device.
        costs: what was measured; None: analytic costs alone.
        narrow: whether float32 values cross between devices as bfloat16.
        contended: whether transfers over the same link wait for each other.
        fetches: what the client takes; None: what it gives and takes costs no time.
        sizes: of values in this plan; None: those that the graph knows.
        at_hand: values that are not sent, wherever they are made and used (`partition/one_sided_access.at_hand`).
        times: seconds and cores of each node in its plan, where they are known: a GPU's keep 0 cores busy.
        touched: device -> bytes that its kernels touch in this plan; None: all is in its caches.
        joined: names of tensors, and `^node` for control edges, that travel in the message of another one.
        values: what nodes give to each other in this plan; None: what the graph says, without what is at hand.
    """
    sizes, touched = sizes or Sizes(), touched or {}
    n, d = len(nodes), len(cluster.devices)
    fed, runs = set(feeds), None if running is None else set(running)
    machine, used = cluster.calibration, None
    speeds = [CALIBRATED if cluster.is_calibrated(device) else speed_of(device) for device in cluster.devices]
    classes = list(dict.fromkeys(speeds))
    gpus = {s for s, device in zip(speeds, cluster.devices, strict=True) if device.gpu is not None}
    device_class = np.array([classes.index(s) for s in speeds], np.int32)
    flops, moved, memory, work = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n, np.int8)
    busy = np.ones(n, bool)
    handles: dict[OpDef, bool] = {}
    no_copy = np.zeros(n, bool)  # the node hands out the state of a variable on its device
    cost_of = _PerKind(sizes.cost, sizes)
    for i, node in enumerate(nodes):
        opdef = node.opdef
        handle = handles.get(opdef)
        if handle is None:
            handle = handles[opdef] = Trait.STATE_HANDLE in opdef.traits
        if handle:
            memory[i], no_copy[i] = state_bytes(node)[0], True
        elif opdef.ref_inputs or opdef.name in _READS:
            no_copy[i] = _hands_out_state(node)
        if runs is not None and node not in runs:
            busy[i] = False
            continue
        if not handle and opdef.name not in _GIVEN and not (no_copy[i] and opdef.name in _READS):
            flops[i], moved[i] = cost_of(node)
            work[i] = work_of(node) if gpus else 0
        else:
            busy[i] = False
    if values is None:
        values = _values(nodes, {*fed, *at_hand}, runs)
    value_source, tensors = values.source, values.tensor
    size = np.array([0.0 if t is None else float(sizes.bytes(t)) for t in tensors], float)
    travelling = size
    if narrow:
        travelling = size * [0.5 if t is not None and t.dtype.base is float32 else 1.0 for t in tensors]
    usual = [TYPICAL_CPU if s is CALIBRATED else s for s in classes]
    seconds = np.array(
        [busy * (s.overhead + np.maximum(flops / np.array(s.rates)[work], moved / s.bandwidth)) for s in usual]
    )
    if len(times):
        for i, found in enumerate(times):
            if found is not None and not found[1]:
                seconds[[s in gpus for s in classes], i] = found[0]
    if machine is not None:
        calibrated = [s is CALIBRATED for s in classes]
        seconds[calibrated], used = _calibrated(nodes, busy, sizes, machine, times)
    if costs is not None:
        names = [str(device.name) for device in cluster.devices]
        seconds, device_class = costs.applied([node.name for node in nodes], names, device_class, seconds)
        cluster = costs.on(cluster)
        if runs is not None:
            seconds = seconds * np.array([node in runs for node in nodes])
    is_joined = None
    if joined:
        names = [
            f"^{nodes[i].name}" if t is None else t.name for i, t in zip(value_source.tolist(), tensors, strict=True)
        ]
        is_joined = np.array([name in joined for name in names], bool)
    task, latency, per_byte = links_of(cluster)
    fed_at, back_after = (
        (None, None) if fetches is None else _client_times(nodes, cluster, busy, fed, set(fetches), sizes)
    )
    host = None if machine is None else hosts_of(cluster)
    between = 1.0 - np.eye(len(latency))
    beside, handling = latency, between * HANDLING[0]
    if machine is not None:
        handling, cold = between * machine.overheads["transfer"] / 2, np.zeros(len(latency))
        for t, device in zip(task, cluster.devices, strict=True):
            cold[t] = max(cold[t], min(touched.get(str(device.name), 0.0) / COLD_BYTES, 1.0))
        beside = np.maximum(latency - handling, 0.0)
        handling += between * np.maximum(machine.overheads["message"] - handling, 0.0) * cold[:, None]
    # Ports stand for links where both ends are not known: half of a mean link at each end of a transfer, or
    # all of it where a load counts each end by itself.
    part = 1.0 if objective is Objective.THROUGHPUT else 0.5
    return Problem(
        objective,
        seconds=seconds,
        device_class=device_class,
        memory=memory,
        capacity=np.array([np.inf if x.memory_bytes is None else float(x.memory_bytes) for x in cluster.devices]),
        slots=np.ones(d, np.int32),
        value_source=value_source,
        value_bytes=travelling,
        away_memory=size,
        home_memory=size * ~no_copy[value_source],
        value_start=values.start,
        value_target=values.target,
        group=np.arange(n, dtype=np.int32) if group is None else group,
        allowed=np.ones((1, d), bool) if allowed is None else allowed,
        allowed_kind=np.zeros(n, np.int32) if allowed_kind is None else allowed_kind,
        link_latency=latency if objective is Objective.THROUGHPUT else beside,
        link_per_byte=per_byte,
        port_latency=_mean_link(task, latency) * part,
        port_per_byte=_mean_link(task, per_byte) * part,
        contended=contended,
        handling=handling,
        handling_per_byte=between / HANDLING[1] if machine is None else None,
        joined=is_joined,
        fed_at=fed_at,
        back_after=back_after,
        used=used,
        host=host,
        shared=0.0 if machine is None else machine.shared,
        wake=0.0 if machine is None else machine.overheads["wake"],
        polls=0.0 if machine is None or host is None or _is_crowded(host, task, machine.cores) else POLLED,
        priority=-np.arange(n, dtype=float),  # devices work through one order that is the same for all
        place=task,
    )  # fmt: skip


def _calibrated(
    nodes: Sequence[Node], busy: Flags, sizes: Sizes, machine: Calibration, times: Sequence[tuple[float, float] | None]
) -> tuple[Floats, Floats]:
    """(n,) seconds and cores of nodes on a calibrated processor."""

    def timed(node: Node) -> tuple[float, float]:
        return node_seconds(node, sizes, machine)

    alike = _PerKind(timed, sizes)
    seconds, used = np.zeros(len(nodes)), np.ones(len(nodes))
    for i, node in enumerate(nodes):
        found = times[i] if times else None
        if found is None:
            if not busy[i]:
                continue
            found = timed(node) if node.opdef.name in REDUCTIONS else alike(node)  # which depend on the values of axes
        seconds[i], used[i] = found[0], found[1] or 1.0
    return seconds, used


def _is_crowded(host: Ints, task: Ints, cores: int) -> bool:
    """Whether a machine has more tasks than cores: then no task polls for long, as another one needs the core."""
    tasks = np.unique(np.stack([host, task])[:, host >= 0], axis=1)
    return int(np.bincount(tasks[0]).max(initial=0)) > cores


def hosts_of(cluster: Cluster) -> Ints:
    """(D,) the number of each calibrated device's machine, else -1. Unknown hosts are one, unless links are described."""
    known: dict[str, int] = {}
    names = [d.host or (d.name.task_name if cluster.links else "") for d in cluster.devices]
    found = [
        known.setdefault(h, len(known)) if cluster.is_calibrated(d) else -1
        for d, h in zip(cluster.devices, names, strict=True)
    ]
    return np.array(found, np.int32)


def _values(nodes: Sequence[Node], free: Collection[Tensor], runs: Collection[Node] | None) -> Values:
    """What nodes give to each other by the graph: each value once, by source and output, and each consumer of it once.

    Args:
        free: what is not sent. runs: the nodes that take something; None: all.
    """
    n, place = len(nodes), {node: i for i, node in enumerate(nodes)}
    edges: tuple[list[int], list[int], list[int]] = [], [], []  # source, output or -1 for control, consumer
    from_node, from_output, to_node = (column.append for column in edges)
    for i, node in enumerate(nodes):
        if runs is not None and node not in runs:
            continue
        back = node.back_edge if node.opdef.name == "Merge" else None
        for t in node.inputs:
            maker = place.get(t.op)
            if maker is not None and t.op is not back and t not in free:
                from_node(maker)
                from_output(t.value_index)
                to_node(i)
        for c in node.controls:
            maker = place.get(c)
            if maker is not None:
                from_node(maker)
                from_output(-1)
                to_node(i)
    source, output, consumer = (np.array(column, np.int64) for column in edges)
    outputs = int(output.max(initial=-1)) + 2
    ends = np.unique((source * outputs + output + 1) * n + consumer)
    value, first = np.unique(ends // n, return_index=True)
    found = (value // outputs, np.append(first, len(ends)), ends % n)
    sources, starts, targets = (column.astype(np.int32) for column in found)
    pairs = zip(sources.tolist(), (value % outputs - 1).tolist(), strict=True)
    return Values(sources, [None if out < 0 else nodes[i].outputs[out] for i, out in pairs], starts, targets)


class _PerKind(Generic[T]):
    """A function of nodes that follows from types, shapes and attrs, and from a variable's place: it is called once for those alike."""

    def __init__(self, of: Callable[[Node], T], sizes: Sizes) -> None:
        self._of, self._sizes = of, sizes
        self._known: dict[object, T] = {}

    def __call__(self, node: Node) -> T:
        view = self._sizes.node(node)
        for t in view.inputs:
            if t.dtype is resource:
                return self._of(node)
        try:
            key = (
                node.opdef.name, *[(t.dtype.name, t.dims) for t in view.inputs], *[(t.dtype.name, t.dims) for t in view.outputs],
                *node.attrs.items(),
            )  # fmt: skip
            found = self._known.get(key)
        except TypeError:  # an attr is an array
            return self._of(node)
        if found is None:
            found = self._known[key] = self._of(node)
        return found


def _hands_out_state(node: Node) -> bool:
    if node.opdef.name in _READS:
        return Trait.STATE_HANDLE in node.inputs[0].op.opdef.traits
    return any(t.dtype.is_ref for t in node.outputs)


def _client_times(
    nodes: Sequence[Node],
    cluster: Cluster,
    busy: Flags,
    fed: set[Tensor],
    fetched: set[Tensor],
    sizes: Sizes,
) -> tuple[Floats, Floats]:
    """(D, n) seconds until a node has what it is fed, and until the client has what it takes from a node, on each device.

    More than `STORED` numbers are one row, if that holds for all devices. Loops are compiled once more for these.
    """
    given, taken = np.zeros(len(nodes)), np.zeros(len(nodes))
    for i, node in enumerate(nodes):
        given[i] = sum(sizes.bytes(t) for t in dict.fromkeys(node.inputs) if t in fed)
        taken[i] = sum(sizes.bytes(t) for t in node.outputs if t in fetched)
    usual = BETWEEN_TASKS
    if cluster.calibration is not None:
        cost, tasks = cluster.calibration.overheads, cluster.tasks
        if tasks == (IN_PROCESS,):
            usual = cost["step"] / 2, 1 / max(cost["fed byte"], 1e-15)
        else:
            usual = (cost["remote step"] + cost["task"] * (len(tasks) - 1)) / 2, 1 / max(cost["remote fed byte"], 1e-15)
    links = np.array([_link(cluster, CLIENT, device.name.task_name, usual) for device in cluster.devices])
    shape = len(links), len(nodes)
    if shape[0] * shape[1] > STORED and (links == links[0]).all():
        links = links[:1]
    latency, per_byte = links.T[:, :, None]
    fed_at, back_after = ((latency + moved * per_byte) * busy for moved in (given, taken))
    if len(links) < shape[0]:
        return np.broadcast_to(fed_at, shape), np.broadcast_to(back_after, shape)
    return fed_at, back_after


def _link(cluster: Cluster, a: str, b: str, usual: tuple[float, float]) -> tuple[float, float]:
    """Seconds, and seconds per byte."""
    (seconds, rate), link = usual, cluster.link(a, b)
    if link is not None:
        seconds = seconds if link.latency is None else link.latency
        rate = link.bandwidth or rate
    return seconds, 1 / rate


def copy_cost(cluster: Cluster) -> tuple[float, float]:
    """Seconds, and bytes per second, of a copy from another task's memory (a one-sided read)."""
    machine = cluster.calibration
    if machine is None:
        return ONE_SIDED_READ
    return machine.overheads["read"], 1 / max(machine.overheads["shared byte"], 1e-15)


def speed_of(device: DeviceInfo) -> Speed:
    """What a device can do: as measured or described, else by a GPU's maker, else as is typical for a processor."""
    if device.gpu is not None:
        return Speed(device.gpu.rates, device.gpu.bytes_per_second, GPU_LAUNCH)
    rates, bandwidth, overhead = TYPICAL_CPU
    return Speed((device.flops,) * len(Work) if device.flops else rates, device.bandwidth or bandwidth, overhead)


def link_between(cluster: Cluster, *, calibrated: bool = False) -> Callable[[str, str], tuple[float, float]]:
    """A function that gives latency and seconds per byte from a task to a task; it looks up each pair once.

    `calibrated`: by the machine's profile, where the cluster has one and describes no link.
    """
    machine = cluster.calibration if calibrated else None
    known: dict[tuple[str, str], tuple[float, float]] = {}

    def between(a: str, b: str) -> tuple[float, float]:
        found = known.get((a, b))
        if found is None:
            within = WITHIN_TASK[0], 1 / WITHIN_TASK[1]
            usual = _between_tasks(machine, cluster.same_host(a, b))
            found = known[a, b] = within if a == b else _link(cluster, a, b, usual)
        return found

    return between


def _between_tasks(machine: Calibration | None, on_one_host: bool) -> tuple[float, float]:
    """Seconds, and bytes per second, between two tasks whose link nothing describes."""
    if machine is None:
        return BETWEEN_TASKS
    cost = machine.overheads
    byte = cost["shared byte" if on_one_host else "tcp byte"]
    return cost["transfer"], 1 / max(byte, 1e-15)


def links_of(cluster: Cluster) -> tuple[Ints, Floats, Floats]:
    """(D,) the task of each device, by number; (T, T) latency and seconds per byte from task to task, or between a task's devices."""
    names = [device.name.task_name for device in cluster.devices]
    tasks, first, place = np.unique(names, return_index=True, return_inverse=True)
    if cluster.links:
        between = link_between(cluster, calibrated=True)
        table = np.array([[between(a, b) for b in tasks.tolist()] for a in tasks.tolist()])
    else:
        machine, hosts = cluster.calibration, np.array([cluster.devices[d].host or "" for d in first.tolist()])
        unknown = hosts == ""
        together = (hosts[:, None] == hosts) | unknown[:, None] | unknown
        table = np.where(together[..., None], _between_tasks(machine, True), _between_tasks(machine, False))
        table[np.diag_indices(len(tasks))] = WITHIN_TASK
        table[..., 1] = 1 / table[..., 1]
    return place.astype(np.int32), np.ascontiguousarray(table[..., 0]), np.ascontiguousarray(table[..., 1])


def _mean_link(place: Ints, table: Floats) -> Floats:
    """(D,) the mean over the links from all other devices to each."""
    total = np.bincount(place, minlength=len(table)) @ table - table.diagonal()
    return total[place] / max(len(place) - 1, 1)
