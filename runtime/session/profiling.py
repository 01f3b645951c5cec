"""Measures devices, links and steps, so that plans can be made from measured numbers.

`measure` runs and times small steps. A device's operations per second are those of float32 matrix products, its bandwidth that of
summing a large array. Both are differences between a step with much and one with little work, so that the overhead of a step cancels.
Traced steps that send a small and a large value in both directions measure a link; steps with a small and a large feed measure the link
between the client and a task. The best of several tries counts: other processes can only slow them down.

`profile` runs and traces a step several times. The times of its nodes and links become a `Profile` that plans load.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from operator import itemgetter
from statistics import median
from typing import Any

import numpy as np

from ...graph.core import dtypes
from ...graph.core.build import placeholder
from ...graph.core.graph import Graph, Node
from ...graph.ops.array.creation import fill
from ...graph.ops.array.identity_and_placeholders import identity
from ...graph.ops.linalg.linalg import matmul
from ...graph.ops.math.reduce import reduce_sum
from ...graph.variables.variable import Variable
from ...placer.cluster.spec import Cluster, DeviceInfo, Link
from ...placer.cost.profile import Profile, fitted_link, measured_nodes
from ...placer.partition.partitioned_graph import task_of
from ...placer.plan import Plan
from ...placer.search.from_graph import CLIENT, TYPICAL_CPU
from ..config import RunMetadata, RunOptions
from ..observability.trace import Trace
from .fetches import parse_feeds
from .session import Session

TRIES = 5
SIDE = 1024  # rows and columns of the matrices
PRODUCTS = 5  # matrix products in a sequence, compared with one
SUMMED = 64 << 20  # bytes that are summed: more than caches hold
SMALL, LARGE = 4, 16 << 20  # bytes that are sent over links


def measure(target: str = "", log: Callable[[str], None] = lambda text: None) -> Cluster:
    """The devices of a session's cluster with their speeds, and the links between its tasks and to this process.

    Args:
        target: as for `Session`.
        log: called with a message about each measurement.

    Raises:
        OpError: what making the session or running steps raises.
    """
    with Session(target, graph=Graph()) as session:
        devices = session.list_devices()
    master = devices[0].name.task_name
    found = []
    for device in devices:
        if device.emulated:  # it has the host's speed
            found.append(device)
            continue
        log(f"measuring {device.name}")
        found.append(_measured(target, device))
    links = []
    for a, b in combinations(dict.fromkeys(d.name.task_name for d in devices), 2):
        log(f"measuring the link between {a} and {b}")
        links.append(_link(target, a, b, devices))
    for task in dict.fromkeys(d.name.task_name for d in devices) if target else ():
        log(f"measuring the link between this process and {task}")
        links.append(_client_link(target, task, devices))
    return Cluster(tuple(found), master, tuple(links))


def _measured(target: str, device: DeviceInfo) -> DeviceInfo:
    graph = Graph()
    with graph.as_default(), graph.device(str(device.name)), Session(target, graph=graph) as session:
        x = Variable(fill([SIDE, SIDE], 0.5), name="x")
        w = Variable(fill([SIDE, SIDE], 1.0 / SIDE), name="w")
        products = [x.value()]
        for _ in range(PRODUCTS):
            products.append(matmul(products[-1], w))
        large, little = (Variable(fill([n], 1.0), name="summed") for n in (SUMMED // 4, 1))
        session.run([v.initializer for v in (x, w, large, little)])
        nodes = products[-1].op, products[1].op, reduce_sum(large).op, reduce_sum(little).op
        several, one, much, nothing = (_seconds(session, node) for node in nodes)
    flops = 2.0 * SIDE**3 * (PRODUCTS - 1) / max(several - one, 1e-9)
    return replace(device, flops=flops, bandwidth=SUMMED / max(much - nothing, 1e-9))


def _seconds(session: Session, node: Node, feeds: Mapping[Any, Any] | None = None) -> float:
    session.warmup(node, feeds)
    times = []
    for _ in range(TRIES + 1):  # the first try touches memory for the first time
        began = time.perf_counter()
        session.run(node, feeds)
        times.append(time.perf_counter() - began)
    return min(times)


def _client_link(target: str, task: str, devices: Sequence[DeviceInfo]) -> Link:
    graph = Graph()
    device = next(str(d.name) for d in devices if d.name.task_name == task)
    with graph.as_default(), graph.device(device), Session(target, graph=graph) as session:
        x = placeholder(dtypes.float32, [None])
        node = identity(x).op
        values = (np.zeros(size // dtypes.float32.size, np.float32) for size in (SMALL, LARGE))
        little, much = (_seconds(session, node, {x: value}) for value in values)
    return Link(CLIENT, task, little / 2, (LARGE - SMALL) / max(much - little, 1e-9))


def _link(target: str, a: str, b: str, devices: Sequence[DeviceInfo]) -> Link:
    first = {d.name.task_name: str(d.name) for d in reversed(devices)}
    graph = Graph()
    points: dict[tuple[int, str], float] = {}
    with graph.as_default(), Session(target, graph=graph) as session:
        taken = []
        for source, destination in ((a, b), (b, a)):
            for size in (SMALL, LARGE):
                with graph.device(first[source]):
                    value = Variable(fill([size // dtypes.float32.size], 1.0), name="sent")
                with graph.device(first[destination]):
                    taken.append(reduce_sum(value).op)
                session.run(value.initializer)
        for node in taken:  # one at a time: concurrent transfers slow each other down
            session.warmup(node)
            for _ in range(TRIES):
                metadata = RunMetadata()
                session.run(node, options=RunOptions(trace_level=RunOptions.FULL_TRACE), run_metadata=metadata)
                assert metadata.trace is not None
                for t in metadata.trace.transfers:
                    if t.bytes:
                        key = t.bytes, t.source
                        points[key] = min(points.get(key, 1e9), t.finish - t.start)
    return fitted_link(a, b, [(float(size), seconds) for (size, _), seconds in points.items()])


WARM_STEPS = 2  # steps before the measured ones, to make connections and fill caches


def profile(session: Session, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, *, steps: int = 20) -> Profile:
    """Run a step several times and measure the times of its nodes and links.

    All kernels are compiled before. The step has its usual side effects: it updates the variables that it trains.

    Args:
        session: the session that runs it.
        fetches: as for `session.run`.
        feed_dict: as for `session.run`.
        steps: number of measured steps; the result has medians over them.

    Returns:
        Seconds of each node on its device (a fused kernel's time is divided among its nodes by their analytic costs); the latency
        and bandwidth of each link between tasks that carried values of different sizes; the shapes of what was fed.

    Raises:
        ValueError: `steps` is less than 1. Otherwise what `session.run` raises.

    >>> dt.profile(session, train_op, feeds).save("step.profile.json")
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    session.warmup(fetches, feed_dict)
    for _ in range(WARM_STEPS):
        session.run(fetches, feed_dict)
    traces = []
    for _ in range(steps):
        metadata = RunMetadata()
        session.run(fetches, feed_dict, RunOptions(trace_level=RunOptions.FULL_TRACE), metadata)
        if metadata.trace is None:
            raise ValueError("The step runs nothing: all that is fetched is fed")
        traces.append(metadata.trace)
    fed = {name: tuple(value.shape) for name, value in parse_feeds(session.graph, feed_dict).items()}
    return replace(profile_of(traces), shapes=fed)


def profile_of(traces: list[Trace]) -> Profile:
    plan = traces[0].plan
    shares = partial(_share, plan)
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    # Tasks -> value and receiver -> (bytes, seconds) of the fastest transfer: others may have waited for values in the same message.
    crossed: dict[tuple[str, str], dict[tuple[str, str], tuple[float, float]]] = defaultdict(dict)
    for trace in traces:
        line = trace.timeline
        measured = measured_nodes(line.spans, lambda s, names=line.devices: names[s.device], shares)  # type: ignore[misc]
        for key, seconds in measured.items():
            taken[key].append(seconds)
        for t in trace.transfers:
            a, b = sorted((task_of(t.source), task_of(t.destination)))
            if a != b:
                value, found = (t.name, t.destination), (float(t.bytes), t.finish - t.start)
                crossed[a, b][value] = min(crossed[a, b].get(value, found), found, key=itemgetter(1))
    # Nodes of the step that no kernel ran took no time.
    nodes: dict[str, dict[str, float]] = {n.name: {d: 0.0} for d, p in plan.partitions.items() for n in p.nodes}
    # The best time of a node counts: other processes can only slow it down, and they delay a different node in each step. A node may
    # not have run in some steps: in a branch that was not taken.
    usual = {key: min(times) * len(times) / len(traces) for key, times in taken.items()}
    at_work = _at_work(traces)
    for (name, device), seconds in usual.items():
        together = sum(s for (_, d), s in usual.items() if d == device)
        nodes.setdefault(name, {})[device] = seconds * (at_work[device] / together if together > 0 else 1.0)
    links = [fitted_link(a, b, list(points.values())) for (a, b), points in sorted(crossed.items())]
    return Profile(nodes, tuple(links), median(t.seconds for t in traces), len(traces))


def _at_work(traces: list[Trace]) -> dict[str, float]:
    """Device -> the median of its busy seconds per step, in and between kernels.

    Node times are scaled so that their sum is the busy time of their device.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for trace in traces:
        for device in {k.device for k in trace.kernels}:
            spans = [(k.start, k.finish) for k in trace.kernels if k.device == device]
            first, last = min(s for s, _ in spans), max(f for _, f in spans)
            waited = sum(max(0.0, min(w.finish, last) - max(w.start, first)) for w in trace.waits if w.device == device)
            found[device].append(max(last - first - waited, 0.0))
    return {device: median([*seconds, *[0.0] * (len(traces) - len(seconds))]) for device, seconds in found.items()}


def _share(plan: Plan, name: str) -> float:
    """Analytic seconds of a node on a common processor, by which a fused kernel's time is divided."""
    if name not in plan.graph:
        return 0.0
    flops, moved = plan.sizes.cost(plan.graph.get_operation_by_name(name))
    return max(flops / TYPICAL_CPU.rates[0], moved / TYPICAL_CPU.bandwidth)
