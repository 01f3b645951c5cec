"""Writes a plan as text: one JSON value per line, the same text for the same plan. `read.py` reads it.

    {"dovetail-plan": 2, "nodes": 3, "master": "/job:...", "soft": false, "fetches": [...], "feeds": [...],
     "targets": [node, ...] or null for all nodes, "shapes": {"x:0": [64, 784], ...}}
    {"device": "/job:...", "memory_bytes": 8589934592, ...} of the cluster, numbered from 0
    {"link": ["/job:ps", "/job:worker"], "latency": 5e-05, "bandwidth": 1e9}
    {"line": ["train.py", 12, "w = tf.Variable(...)"]} source lines, blocks and demands are numbered likewise
    {"block": [outer or -1, spec, description, line]}
    {"profile": {...}, "hosts": [host, ...]}               the machine's profile, and the machines that it counts for
    {"demand": [required, candidates, [[reason, [device, ...]], ...], the dropped fields]}
                                                           devices that match the request and are no candidates
    {"note": [node, by, kind, text]}
    [name, op, inputs, control inputs, attrs, request, colocation, container, line, outputs, block]
    {"placed": [device, rule, demand, group] per node}     -1: not placed; group -1: on its own
    {"channel": {"name": "w/read:0", "source": 0, "destination": 2, ...}}
    {"partition": 0, "feeds": [...], "fetches": [...], "loops": [[name, LoopCond, [Merge, ...]], ...],
     "steps": [node, ..., "s0", "r1", ...]}                s: send on a channel, r: receive, d: read directly;
                                                           l, t, e: begin, test and end of a loop of this partition
    {"predicated": [node, node or "r1", ...]}              may be dead, with control inputs that may be
    {"access": [found, [[task, owner], ...], [[task, owner, variable], ...]]}   one-sided access, where the step has use for it
    {"solution": [device, ...], "objective": 0.01, "bound": 0.009, "minimized": "makespan", "of_step": true,
     "history": [[by, objective, seconds], ...]}           the answer of the search that placed the nodes
    {"end": number of lines before}

Nodes are numbered in order of creation; inputs are node and output in turn. Constants' values are left out, but for
few numbers, which may say how large something is or let a rewrite apply: a plan says where things run, and the graph of a loaded plan can
be looked at and placed again, but not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node
from ...graph.formats.atomic_files import write_durably
from ..partition.partitioned_graph import Channel, LoopPart
from ..plan_data import PlanData

if TYPE_CHECKING:
    from ...graph.core.scopes import DeviceBlock

FORMAT, VERSION = "dovetail-plan", 2
FEW = 64  # numbers of a constant that is kept: it may be a shape, an axis, a permutation, a factor
CHANNEL_FIELDS = tuple(f for f in Channel._fields if f != "id")
DEVICE_FIELDS = ("memory_bytes", "emulated", "bandwidth", "flops", "host", "model")


def write_plan(plan: PlanData, path: Path) -> None:
    """Write a plan to a file, line by line. The file appears whole or not at all."""

    def write(partial: Path) -> None:
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in plan_lines(plan))

    write_durably(path, write)


def plan_lines(plan: PlanData, *, with_graph: bool = True) -> Iterator[str]:
    """The lines of a plan, without line ends.

    Args:
        with_graph: False leaves the nodes out, for a reader that has the same graph.
    """
    count = 0
    for record in _records(plan, with_graph):
        yield json.dumps(record, separators=(",", ":"), ensure_ascii=False)
        count += 1
    yield json.dumps({"end": count})


def _records(plan: PlanData, with_graph: bool) -> Iterator[Any]:
    placement, cluster, reasons = plan.decisions, plan.cluster, plan.decisions.reasons
    size = len(placement.index)
    nodes = plan.graph.nodes[:size]
    number = {n.name: n.index for n in nodes}
    everything = len(plan.targets) == size and all(n.name == t for n, t in zip(nodes, plan.targets, strict=True))
    yield {
        FORMAT: VERSION, "nodes": size, "master": cluster.master, "soft": placement.soft,
        "fetches": plan.fetches, "feeds": plan.feeds,
        "targets": None if everything else [number[t] for t in plan.targets],
        **({"shapes": plan.sizes.given} if plan.sizes.given else {}),
    }  # fmt: skip
    for d in cluster.devices:
        yield {"device": str(d.name), **{f: getattr(d, f) for f in DEVICE_FIELDS}}
    for link in cluster.links:
        yield {"link": [link.a, link.b], "latency": link.latency, "bandwidth": link.bandwidth}
    if cluster.calibration is not None:
        yield {"profile": cluster.calibration.to_fields(), "hosts": cluster.calibrated}
    for demand in reasons.demands:
        yield {"demand": [demand.required, demand.candidates, demand.refused, demand.dropped]}
    for note in reasons.notes:
        yield {"note": list(note)}
    if with_graph:
        yield from _nodes(nodes)
    demands, groups = reasons.demand_of.tolist(), reasons.groups
    placed = zip(placement.index.tolist(), placement.rules.tolist(), strict=True)
    for i, (device, rule) in enumerate(placed):
        yield {"placed": [device, rule, demands[i], groups.get(i, -1)]}
    devices = {name: i for i, name in enumerate(placement.devices)}
    for channel in plan.channels:
        found = {f: getattr(channel, f) for f in CHANNEL_FIELDS}
        found["source"], found["destination"] = devices[channel.source], devices[channel.destination]
        found["dtype"] = None if channel.dtype is None else channel.dtype.name
        for field in ("paces", "direct"):
            if not found[field]:
                del found[field]  # older files lack these fields
        yield {"channel": found}
    for device_name, p in plan.partitions.items():
        loops = {what: None for _, what in p.steps if isinstance(what, LoopPart)}
        at = {part: i for i, part in enumerate(loops)}
        yield {
            "partition": devices[device_name], "feeds": p.feeds, "fetches": p.fetches,
            "loops": [[part.name, part.condition.index, [m.index for m in part.merges]] for part in loops],
            "steps": [_step(kind, what, at) for kind, what in p.steps],
        }  # fmt: skip
    for node, controls in plan.partitioned.predicated.items():
        yield {"predicated": [node.index, *(c.index if isinstance(c, Node) else f"r{c}" for c in controls)]}
    access = plan.access
    if access.used or access.refused:
        yield {"access": [access.found, access.used, access.refused]}
    if (answer := plan.solution) is not None:
        yield {
            "solution": answer.assignment.tolist(), "objective": answer.objective, "bound": answer.lower_bound,
            "minimized": answer.minimized, "of_step": answer.is_of_step, "history": [astuple(h) for h in answer.history],
        }  # fmt: skip


def _step(kind: str, what: Node | Channel | LoopPart, loops: Mapping[LoopPart, int]) -> int | str:
    if isinstance(what, Node):
        return what.index
    letter = "d" if kind == "read" else kind[0]
    return f"{letter}{what.id if isinstance(what, Channel) else loops[what]}"


def _nodes(nodes: Iterable[Node]) -> Iterator[Any]:
    """The records of nodes, each after the source lines and blocks that it is the first to name."""
    lines: dict[tuple[str, int], int] = {}
    origins: dict[tuple[int, int], int] = {}  # one line makes many nodes: a look-up beats finding it again
    blocks: dict[DeviceBlock | None, int] = {None: -1}
    for node in nodes:
        code, at = node._origin
        line = origins.get((id(code), at))
        if line is None:
            source = node.source
            line = lines.get((source.file, source.line))
            if line is None:
                line = lines[source.file, source.line] = len(lines)
                yield {"line": [source.file, source.line, source.text]}
            origins[id(code), at] = line
        around = []
        block = node.blocks
        while block not in blocks:
            assert block is not None
            around.append(block)
            block = block.outer
        for b in reversed(around):
            source = b.source
            its_line = lines.get((source.file, source.line))
            if its_line is None:
                its_line = lines[source.file, source.line] = len(lines)
                yield {"line": [source.file, source.line, source.text]}
            yield {"block": [blocks[b.outer], b.spec, b.describe(), its_line]}
            blocks[b] = len(blocks) - 1
        yield [
            node.name,
            node.type,
            list(chain.from_iterable((t.op.index, t.value_index) for t in node.inputs)),
            [c.index for c in node.controls],
            {k: v for k, v in ((k, _plain(v)) for k, v in node.attrs.items()) if v is not _LEFT_OUT},
            node.device,
            node.colocation,
            node.container,
            line,
            [[t.dtype.name, t.dims] for t in node.outputs],
            blocks[node.blocks],
        ]


_LEFT_OUT: Any = object()


def _plain(value: Any) -> Any:
    """An attr as JSON; what a plan does not need (large arrays, bytes) is left out."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iufb" and value.size <= FEW and np.isfinite(value).all():
        return {"array": value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        inner = [_plain(v) for v in value]
        return _LEFT_OUT if any(v is _LEFT_OUT for v in inner) else inner
    return _LEFT_OUT
