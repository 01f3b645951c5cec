"""Placement diagnostics: decisions and refusals of the placer as text.

A refusal says what was asked for and where in the user's program, which two requests contradict each other,
which other nodes are in the group, and which devices there are: what a user needs to mend it.
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


def story(node: Node, fields: Collection[str] = ()) -> str:
    """A node with its request, the user's line and the device blocks around it, over several lines.

    Args:
        fields: parts of a device's name that are in question: the block that asked for each is pointed out.
    """
    line = node.source
    code = f": {line.text}" if line.text else ""
    asks = f"asks for '{node.device}'" if node.device else "asks for no device"
    lines = [f"  '{node.name}' ({node.type}) {asks}, made at {line}{code}"]
    block, request, open_ = node.blocks, parse_strict(node.device) if fields else DeviceSpec(), set(fields)
    while block is not None:
        # Read as it was when the block was opened: what a node cannot have (`/job:a-b`) may be overridden inside.
        its_own = DeviceSpec.from_string(block.spec) if block.spec is not None and open_ else None
        # What a function asks for cannot be seen in it: what no block inside it asked for, it may have.
        asked = [f for f in _WORDS if f in open_ and (its_own is None or getattr(its_own, f) is not None)]
        said = [f"{_WORDS[f]} {getattr(request, f)}" for f in asked if getattr(request, f) is not None]
        mark = f"  <- asks for {' and '.join(said)}" if said and not block.clears else ""
        open_ -= set(asked)
        lines.append(f"    inside device block {block.describe()} at {block.source}{mark}")
        if block.clears:
            break
        block = block.outer
    if node.colocation:
        lines.append(f"    colocated with {listed(node.colocation, SHOWN)}")
    if fields:
        lines.append(f"    {node.type} has kernels for {', '.join(node.opdef.device_types)}")
    return "\n".join(lines)


def unplaceable(found: UnplaceableError, graph: Graph, groups: Groups) -> InvalidArgumentError:
    """The error for a contradiction met while groups were formed."""
    node, other = found.node, found.other
    lines = [found.reason]
    if other is None:
        lines.append(story(node))
    else:
        if found.edge:
            lines.append(_joining(node, f"takes the place of state that '{other.name}' gives out: both go together"))
        elif node.colocation:
            lines.append(_joining(node, f"is colocated with {listed(node.colocation, SHOWN)}: all go together"))
        a, b = groups.constraint(node.index), groups.constraint(other.index)
        indices = sorted({*groups.members(node.index), *groups.members(other.index)})
        group = _members(indices, graph, groups)
        few = _asking(a, b, group, node, other) or smallest_contradiction(group)
        lines += _contradiction(few, group, groups)
        if not found.edge and not groups.constraints.soft:
            soft = groups.constraints.if_soft(a, b)
            if soft is None:
                lines.append("  allow_soft_placement=True: the colocation is ignored")
            elif soft.devices:
                lines.append(f"  allow_soft_placement=True: all can be on {_device(soft, groups)}")
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
    few = smallest_contradiction(group)
    if all(m.node is not node for m in few):
        lines += [story(node), f"    {node.type} has kernels for {', '.join(node.opdef.device_types)}"]
    lines += _contradiction(few, group, groups)
    if not constraints.soft:
        soft = constraints.if_soft(c)
        if soft is not None and soft.devices:
            lines.append(f"  allow_soft_placement=True: it can be on {_device(soft, groups)}")
    lines += _group(node, graph, groups)
    if "available devices are" not in text:
        lines.append(_available(groups))
    return InvalidArgumentError(node, node, "\n".join(lines))


def _joining(node: Node, why: str) -> str:
    """The node because of which two groups must share a device, and where it was made."""
    line = node.source
    return f"'{node.name}' ({node.type}) {why}; made at {line}" + (f": {line.text}" if line.text else "")


def _members(indices: Iterable[int], graph: Graph, groups: Groups) -> list[Member]:
    overruled = {note.node for note in groups.notes if note.kind == "edge"}
    return members([graph.nodes[i] for i in indices], groups.constraints.cluster, overruled, groups.assigned)


def _contradiction(few: Sequence[Member], group: Sequence[Member], groups: Groups) -> list[str]:
    """The members that contradict each other, each with its story, and what would work instead."""
    cluster = groups.constraints.cluster
    fields = _fields_in_question(few, cluster)
    lines = [] if len(few) == 1 else ["These requests contradict each other:"]
    for m in few:
        lines.append(story(m.node, fields))
        if m.kept:
            lines.append(f"    it has been on {m.request} since an earlier step")
    ways = list(remedies(few, group, cluster))
    ways += [
        f"'{m.node.name}' asks for '{other.request}' where it is made, or the first step that runs it is one that asks for this"
        for m in few if m.kept
        for other in few if not other.kept and not m.node.device
    ]  # fmt: skip
    lines.append("What would work:" if ways else "What would work: nothing that changes one request only.")
    return lines + [f"  {way}" for way in ways]


def _fields_in_question(few: Sequence[Member], cluster: Cluster) -> set[str]:
    """Fields in which requests differ; of a lone one, those in which the nearest device differs."""
    differ = {
        f for f in FIELDS
        if len({v for m in few if (v := getattr(m.request, f)) is not None}) > 1
    }  # fmt: skip
    for m in few:
        near = nearest(m.request, m.able, cluster)
        if not differ and near is not None and len(few) == 1:
            differ = set(near[1])
    return differ or set(FIELDS)


def _asking(a: Constraint, b: Constraint, group: Sequence[Member], node: Node, other: Node) -> list[Member]:
    """Members that ask for different values of a field, one of each group; [] when types are to blame."""
    first = sorted(group, key=lambda m: (m.node is not node, m.node is not other))
    for mine, theirs in ((a.requested, b.requested), (a.resource, b.resource), (a.assigned, b.assigned)):
        for field in FIELDS:
            x, y = getattr(mine, field), getattr(theirs, field)
            if x is not None and y is not None and x != y:
                asking = [next((m for m in first if getattr(m.request, field) == value), None) for value in (x, y)]
                if None not in asking:
                    return sorted(filter(None, asking), key=lambda m: m.node.index)
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
