"""Why a node is where it is, or cannot be anywhere: the placer's decisions and refusals in words.

A refusal says what was asked for and where in the user's program, which two requests contradict each other,
who else is in the group, and which devices there are: what a user needs to mend it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..graph.device import DeviceSpec, parse_strict
from ..graph.errors import InvalidArgumentError
from ..graph.graph import Graph
from ..graph.node import Node

if TYPE_CHECKING:
    from .constraints import Groups, UnplaceableError
    from .place import Decision

_SHOWN = 20  # members or devices listed; nobody reads more, and the rest is counted


def story(node: Node) -> str:
    """A node with its request, the user's line and the device blocks around it, over several lines."""
    line = node.source
    code = f": {line.text}" if line.text else ""
    asks = f"asks for '{node.device}'" if node.device else "asks for no device"
    lines = [f"  '{node.name}' ({node.type}) {asks}, made at {line}{code}"]
    block = node.blocks
    while block is not None:
        lines.append(f"    inside device block {block.describe()} at {block.source}")
        if block.clears:
            break
        block = block.outer
    if node.colocation:
        lines.append(f"    colocated with {_names(node.colocation)}")
    return "\n".join(lines)


def describe(decision: Decision, graph: Graph) -> str:
    """The text of `Placement.explain`."""
    lines = [f"{decision.node} -> {decision.chosen}", story(graph.get_operation_by_name(decision.node))]
    if len(decision.group) > 1:
        lines.append(f"  shares its device with {_names(n for n in decision.group if n != decision.node)}")
    if decision.required != decision.requested:
        lines.append(
            f"  required of the group: '{decision.required}'"
            if decision.required
            else "  required of the group: nothing"
        )
    lines += [f"  overruled: {text}" for text in decision.overruled]
    lines.append(f"  candidates, best first: {_names(decision.candidates)}")
    by_reason: dict[str, list[str]] = {}
    for r in decision.rejected:
        by_reason.setdefault(r.reason, []).append(r.device)
    lines += [f"  not {_names(devices)}: {reason}" for reason, devices in by_reason.items()]
    lines.append(f"  chosen: {decision.chosen}, {decision.rule.text}")
    return "\n".join(lines)


def unplaceable(found: UnplaceableError, graph: Graph, groups: Groups) -> InvalidArgumentError:
    """The error for a contradiction met while groups were formed."""
    node, other = found.node, found.other
    lines = [found.reason]
    if other is None:
        lines.append(story(node))
    else:
        if found.edge:
            lines.append(
                f"'{node.name}' takes the place of state that '{other.name}' gives out: both go together."
            )
        lines.append("These requests contradict each other:")
        lines += [story(n) for n in _contradiction(node, other, graph, groups)]
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
        else:
            text = f"Could not satisfy explicit device specification '{node.device}' because {reason}."
    else:
        text = (
            f"Could not satisfy explicit device specification '{node.device}' because the node "
            f"'{node.name}' was colocated with a group of nodes that required incompatible device "
            f"'{required}'; {reason}."
        )
    lines = [f"Cannot assign a device for operation {node.name}: {text}", story(node)]
    lines += _group(node, graph, groups)
    lines += [f"Kernels of {node.type}: {', '.join(node.opdef.device_types)}", _available(groups)]
    return InvalidArgumentError(node, node, "\n".join(lines))


def _contradiction(node: Node, other: Node, graph: Graph, groups: Groups) -> Iterable[Node]:
    """The smallest set of nodes whose own requests contradict each other: one of each group."""
    a, b = groups.constraint(node.index), groups.constraint(other.index)
    for mine, theirs in ((a.requested, b.requested), (a.resource, b.resource), (a.assigned, b.assigned)):
        for field in ("job", "replica", "task", "device_type", "device_index"):
            x, y = getattr(mine, field), getattr(theirs, field)
            if x is not None and y is not None and x != y:
                first, second = _asks(node, field, x, graph, groups), _asks(other, field, y, graph, groups)
                if first is not None and second is not None:
                    return first, second
    return node, other


def _asks(node: Node, field: str, value: object, graph: Graph, groups: Groups) -> Node | None:
    """A member of the node's group that asks for this value of a field; the node itself if it does."""
    for i in [node.index, *groups.members(node.index)]:
        member = graph.nodes[i]
        if getattr(_request(member), field) == value:
            return member
    return None


def _request(node: Node) -> DeviceSpec:
    return parse_strict(node.device)


def _group(node: Node, graph: Graph, groups: Groups) -> list[str]:
    members = groups.members(node.index)
    if len(members) < 2:
        return []
    shown = [graph.nodes[i] for i in members[:_SHOWN]]
    lines = [
        f"Colocation group of '{node.name}' ({len(members)} nodes), which together require "
        f"'{groups.constraint(node.index).requested}':"
    ]
    lines += [
        f"  '{m.name}' ({m.type}) requested '{m.device}', kernels for {', '.join(m.opdef.device_types)}"
        for m in shown
    ]
    if len(members) > _SHOWN:
        lines.append(f"  ... and {len(members) - _SHOWN} more")
    return lines


def _available(groups: Groups) -> str:
    return f"All available devices: [ {_devices(groups)} ]"


def _devices(groups: Groups) -> str:
    names = sorted(str(d.name) for d in groups.constraints.cluster.devices)
    return ", ".join(names[:64]) + (f", ... ({len(names)} in all)" if len(names) > 64 else "")


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    return (
        ", ".join(listed[:_SHOWN]) + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")
        or "none"
    )
