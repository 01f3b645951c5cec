"""Placement diagnostics: the decisions and the errors of the placer as text.

An error gives the requests with their source lines, the requests that conflict, the other nodes of the colocation group, the available
devices, and possible fixes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from ...graph.core.device import DeviceSpec, parse_strict
from ...graph.core.errors import InvalidArgumentError
from ...graph.core.graph import Graph, Node
from ..cluster.spec import Cluster
from ..render.text import listed
from .unsat_core import FIELDS, Member, members, nearest, remedies, smallest_contradiction

if TYPE_CHECKING:
    from .colocation import Groups, UnplaceableError
    from .constraints import Candidates, Constraint

_WORDS = {"job": "job", "replica": "replica", "task": "task", "device_type": "type", "device_index": "index"}
SHOWN = 20  # members or devices listed; the rest is counted


def describe(node: Node, fields: Collection[str] = ()) -> str:
    """A node with its request, the user's line and the device blocks around it, over several lines.

    Args:
        fields: fields of the device name that conflict: the text marks the block that requested each.
    """
    line = node.source
    code = f": {line.text}" if line.text else ""
    request = f"requests '{node.device}'" if node.device else "requests no device"
    lines = [f"  '{node.name}' ({node.type}) {request}, created at {line}{code}"]
    block, requested, open_ = node.blocks, parse_strict(node.device) if fields else DeviceSpec(), set(fields)
    while block is not None:
        # The block's spec as it was opened: a block inside it may override a part that no node can have (`/job:a-b`).
        own = DeviceSpec.from_string(block.spec) if block.spec is not None and open_ else None
        # A device function does not show what it requests. It may have set any field that no block inside it set.
        fields_here = [f for f in _WORDS if f in open_ and (own is None or getattr(own, f) is not None)]
        values = [f"{_WORDS[f]} {getattr(requested, f)}" for f in fields_here if getattr(requested, f) is not None]
        mark = f"  <- requests {' and '.join(values)}" if values and not block.clears else ""
        open_ -= set(fields_here)
        lines.append(f"    inside device block {block.describe()} at {block.source}{mark}")
        if block.clears:
            break
        block = block.outer
    if node.colocation:
        ignored = ", so device blocks around it do not count" if node.blocks is None and not fields else ""
        lines.append(f"    colocated with {listed(node.colocation, SHOWN)}{ignored}")
    if fields:
        lines.append(f"    {node.type} has kernels for {', '.join(node.opdef.device_types)}")
    return "\n".join(lines)


def unplaceable(found: UnplaceableError, graph: Graph, groups: Groups) -> InvalidArgumentError:
    """The error for a contradiction met while groups were formed."""
    node, other = found.node, found.other
    lines = [found.reason]
    if other is None:
        lines.append(describe(node))
    else:
        if found.edge:
            lines.append(_link(node, f"takes a reference to '{other.name}', and must be on its device"))
        elif node.colocation:
            lines.append(_link(node, f"is colocated with {listed(node.colocation, SHOWN)}"))
        a, b = groups.constraint(node.index), groups.constraint(other.index)
        indices = sorted({*groups.members(node.index), *groups.members(other.index)})
        group = _members(indices, graph, groups)
        core = _conflicting(a, b, group, node, other) or smallest_contradiction(group)
        lines += _contradiction(core, group, groups)
        if not found.edge and not groups.constraints.soft:
            soft = groups.constraints.if_soft(a, b)
            if soft is None:
                lines.append("  with allow_soft_placement=True the colocation is ignored")
            elif soft.devices:
                lines.append(f"  with allow_soft_placement=True all can be on {_device(soft, groups)}")
        lines += _group(node, graph, groups)
        lines += _group(other, graph, groups)
    lines.append(_available(groups))
    return InvalidArgumentError(node, node, "\n".join(lines))


def cannot_assign(node: Node, graph: Graph, groups: Groups) -> InvalidArgumentError:
    """The error for a node whose group has no candidate device."""
    constraints = groups.constraints
    c = groups.constraint(node.index)
    required = str(c.requested)
    own = str(parse_strict(node.device))
    reason = constraints.why_none(c.requested, c)
    if own == required:
        if reason.startswith("no device matches"):
            text = (
                f"'{node.name}' was explicitly assigned to {node.device} but available devices are "
                f"[ {_devices(groups)} ]. "
                "Make sure the device specification refers to a valid device."
            )
            if c.requested.device_type == "GPU" and "GPU" not in {
                d.name.device_type for d in constraints.cluster.devices
            }:
                text += " The requested device appears to be a GPU, but no task has one."
        else:
            text = f"Could not satisfy explicit device specification '{node.device}' because {reason}."
    else:
        text = (
            f"Could not satisfy explicit device specification '{node.device}' because the node "
            f"'{node.name}' was colocated with a group of nodes that required incompatible device "
            f"'{required}'; {reason}."
        )
    lines = [f"Cannot assign a device for operation {node.name}: {text}"]
    group = _members(groups.members(node.index), graph, groups)
    core = smallest_contradiction(group)
    if all(m.node is not node for m in core):
        lines += [describe(node), f"    {node.type} has kernels for {', '.join(node.opdef.device_types)}"]
    lines += _contradiction(core, group, groups)
    if not constraints.soft:
        soft = constraints.if_soft(c)
        if soft is not None and soft.devices:
            lines.append(f"  with allow_soft_placement=True it can be on {_device(soft, groups)}")
    lines += _group(node, graph, groups)
    if "available devices are" not in text:
        lines.append(_available(groups))
    return InvalidArgumentError(node, node, "\n".join(lines))


def _link(node: Node, why: str) -> str:
    """The node that joins two groups, and where it was created."""
    line = node.source
    return f"'{node.name}' ({node.type}) {why}; created at {line}" + (f": {line.text}" if line.text else "")


def _members(indices: Iterable[int], graph: Graph, groups: Groups) -> list[Member]:
    overruled = {note.node for note in groups.notes if note.kind == "edge"}
    return members([graph.nodes[i] for i in indices], groups.constraints.cluster, overruled, groups.assigned)


def _contradiction(core: Sequence[Member], group: Sequence[Member], groups: Groups) -> list[str]:
    """The members whose requests conflict, each described, and the possible fixes."""
    cluster = groups.constraints.cluster
    fields = _fields_in_question(core, cluster)
    lines = [] if len(core) == 1 else ["These requests conflict:"]
    for m in core:
        lines.append(describe(m.node, fields))
        if m.kept:
            lines.append(f"    assigned to {m.request} in an earlier step")
    ways = list(remedies(core, group, cluster))
    ways += [
        f"request '{other.request}' for '{m.node.name}' where it is created, or run it first in a step that requests this device"
        for m in core if m.kept
        for other in core if not other.kept and not m.node.device
    ]  # fmt: skip
    lines.append("Possible fixes:" if ways else "Possible fixes: none that changes only one request.")
    return lines + [f"  {way}" for way in ways]


def _fields_in_question(core: Sequence[Member], cluster: Cluster) -> set[str]:
    """The fields in which the requests differ; for a single request, those in which the nearest device differs from it."""
    differ = {
        f for f in FIELDS
        if len({v for m in core if (v := getattr(m.request, f)) is not None}) > 1
    }  # fmt: skip
    for m in core:
        near = nearest(m.request, m.able, cluster)
        if not differ and near is not None and len(core) == 1:
            differ = set(near[1])
    return differ or set(FIELDS)


def _conflicting(a: Constraint, b: Constraint, group: Sequence[Member], node: Node, other: Node) -> list[Member]:
    """Two members that request different values of a field, one of each group; [] if device types conflict instead."""
    first = sorted(group, key=lambda m: (m.node is not node, m.node is not other))
    for mine, theirs in ((a.requested, b.requested), (a.resource, b.resource), (a.assigned, b.assigned)):
        for field in FIELDS:
            x, y = getattr(mine, field), getattr(theirs, field)
            if x is not None and y is not None and x != y:
                pair = [next((m for m in first if getattr(m.request, field) == value), None) for value in (x, y)]
                if None not in pair:
                    return sorted(filter(None, pair), key=lambda m: m.node.index)
    return []


def _device(found: Candidates, groups: Groups) -> str:
    return str(groups.constraints.cluster.devices[found.first].name)


def _group(node: Node, graph: Graph, groups: Groups) -> list[str]:
    members = groups.members(node.index)
    if len(members) < 2:
        return []
    shown = [graph.nodes[i] for i in members[:SHOWN]]
    lines = [
        f"Colocation group of '{node.name}' ({len(members)} nodes), which together require "
        f"'{groups.constraint(node.index).requested}':"
    ]
    lines += [
        f"  '{m.name}' ({m.type}) requested '{m.device}', kernels for {', '.join(m.opdef.device_types)}" for m in shown
    ]
    if len(members) > SHOWN:
        lines.append(f"  ... and {len(members) - SHOWN} more")
    return lines


def _available(groups: Groups) -> str:
    return f"All available devices: [ {_devices(groups)} ]"


def _devices(groups: Groups) -> str:
    names = sorted(str(d.name) for d in groups.constraints.cluster.devices)
    return ", ".join(names[:64]) + (f", ... ({len(names)} in all)" if len(names) > 64 else "")
