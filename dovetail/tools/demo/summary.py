"""What the demo says and leaves at the end: the plan, what crosses which wire, and two files."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import dovetail as tf

from ...placer.cluster.spec import Cluster
from ...placer.partition.partitioned_graph import Channel
from ...placer.plan import Plan
from ...placer.render.text import short, size_text
from .model import BATCH_SIZE, Replica

PLAN_FILE, GRAPH_FILE = "plan.txt", "graph.dtg"
WIRES = "What crosses which wire when each task is on a machine of its own"


def plan_of_step(session: tf.Session, replicas: Iterable[Replica], shared_memory: bool | None = None) -> Plan:
    """The plan of one training step of these replicas, on the devices that the session found.

    Args:
        shared_memory: False: the plan of tasks on machines of their own, which cannot read each other's memory.
    """
    devices = session.list_devices()  # the master's come first
    cluster = Cluster(tuple(devices), devices[0].name.task_name)
    replicas = list(replicas)
    return tf.place(
        session.graph,
        cluster,
        fetches=[f for r in replicas for f in (r.train_op, r.loss, r.global_step)],
        feeds=[f for r in replicas for f in (r.images, r.labels)],
        shapes={f: [BATCH_SIZE, *f.shape[1:]] for r in replicas for f in (r.images, r.labels)},
        shared_memory=shared_memory,
    )


def wires(plan: Plan) -> str:
    """What crosses between tasks in a step, link by link: each tensor with its shape and size."""
    crossing = [c for c in plan.channels if c.crosses_tasks]
    crossing.sort(key=lambda c: (c.source, c.destination, -c.bytes, c.name))
    parts = []
    for (source, destination), found in groupby(crossing, key=lambda c: (c.source, c.destination)):
        channels = list(found)
        scalars = [c for c in channels if c.dims == () and not c.control]
        rows = [(c.name, _value(c), size_text(c.bytes)) for c in channels if c.dims != ()]
        if scalars:
            names = scalars[0].name if len(scalars) == 1 else f"{scalars[0].name} and {len(scalars) - 1} more"
            rows.append((names, "scalars" if len(scalars) > 1 else "scalar", size_text(_bytes(scalars))))
        control = sum(c.control for c in channels)
        if control:
            rows.append((f"{control} control edge{'s' if control > 1 else ''}", "", size_text(0)))
        heading = f"{short(source)} -> {short(destination)}: {size_text(_bytes(channels))} per step"
        parts.append(heading + "\n" + _columns(rows))
    return "\n".join(parts)


def _bytes(channels: list[Channel]) -> int:
    return sum(c.bytes for c in channels)


def _value(channel: Channel) -> str:
    name = channel.dtype.name if channel.dtype is not None else ""
    dims = "?" if channel.dims is None else ", ".join("?" if d is None else str(d) for d in channel.dims)
    return f"{name} [{dims}]"


def _columns(rows: list[tuple[str, str, str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(f"    {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)


def leave(plan: Plan, apart: Plan, directory: Path) -> list[Path]:
    """Write the plan and what crosses in `apart` as text, and the graph so that `dt.load_graph` can read it; the files written."""
    directory.mkdir(parents=True, exist_ok=True)
    plan_file, graph_file = directory / PLAN_FILE, directory / GRAPH_FILE
    plan_file.write_text(f"{plan}\n\n{WIRES}\n\n{wires(apart)}\n", encoding="utf-8")
    tf.save_graph(plan.graph, graph_file)
    return [plan_file, graph_file]
