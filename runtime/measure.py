"""How fast devices and links are: small steps, run and timed, so that plans can be made of measured numbers.

A device's operations per second are those of float32 matrix products, its bandwidth that of summing a large array. Both are
differences between a step with much and one with little work, so that what every step costs falls out. A link is measured by traced
steps in which a small and a large value cross it both ways; that between the client and a task by how long steps take to which a
small and a large value are fed. Of each figure the best of some tries counts: others that use the
machine can only make it look slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from ..graph.core import dtypes
from ..graph.core.build import placeholder
from ..graph.core.graph import Graph
from ..graph.core.node import Node
from ..graph.ops.array.creation import fill
from ..graph.ops.array.identity_and_placeholders import identity
from ..graph.ops.linalg.linalg import matmul
from ..graph.ops.math.reduce import reduce_sum
from ..graph.variables.variable import Variable
from ..placer.cluster.spec import Cluster, DeviceInfo, Link
from ..placer.cost.profile import fitted_link
from ..placer.search.from_graph import CLIENT
from .config import RunMetadata, RunOptions
from .session import Session

TRIES = 5
SIDE = 1024  # of the matrices
PRODUCTS = 5  # one after the other, against one
SUMMED = 64 << 20  # bytes that are summed: more than caches hold
SMALL, LARGE = 4, 16 << 20  # bytes that cross links


def measure(target: str = "", tell: Callable[[str], None] = lambda text: None) -> Cluster:
    """The devices of a session's cluster with their speeds, and the links between its tasks, and between this process and each.

    Args:
        target: as a `Session` takes it. tell: is told what is being measured.

    Raises:
        OpError: what making the session or running steps raises.
    """
    with Session(target, graph=Graph()) as session:
        devices = session.list_devices()
    master = devices[0].name.task_name
    found = []
    for device in devices:
        if device.emulated:  # its speed is the host's
            found.append(device)
            continue
        tell(f"measuring {device.name}")
        found.append(_measured(target, device))
    links = []
    for a, b in combinations(dict.fromkeys(d.name.task_name for d in devices), 2):
        tell(f"measuring the link between {a} and {b}")
        links.append(_link(target, a, b, devices))
    for task in dict.fromkeys(d.name.task_name for d in devices) if target else ():
        tell(f"measuring the link between this process and {task}")
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
        several, one, much, nothing = (
            _seconds(session, node)
            for node in (products[-1].op, products[1].op, reduce_sum(large).op, reduce_sum(little).op)
        )
    flops = 2.0 * SIDE**3 * (PRODUCTS - 1) / max(several - one, 1e-9)
    return replace(device, flops=flops, bandwidth=SUMMED / max(much - nothing, 1e-9))


def _seconds(session: Session, node: Node, feeds: Mapping[Any, Any] | None = None) -> float:
    session.warmup(node, feeds)
    times = []
    for _ in range(TRIES + 1):  # the first touches memory for the first time
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
        little, much = (
            _seconds(session, node, {x: np.zeros(size // dtypes.float32.size, np.float32)}) for size in (SMALL, LARGE)
        )
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
        for node in taken:  # one at a time: values that cross together slow each other down
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
