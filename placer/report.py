"""Plans as text: tables that fit a terminal, however large the graph.

Nodes are folded by name scope: the table shows as many scopes as fit, the largest first, and counts the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .cost import device_loads, traffic
from .partition import task_of

if TYPE_CHECKING:
    from .plan import Plan

ROWS = 24
"""Rows of a table: three tables then fit on one screen of a large terminal."""


def render(plan: Plan) -> str:
    """The tables of `print(plan)`: devices, links, scopes, and requests that were not met."""
    parts = [_heading(plan), _devices(plan), _links(plan), _scopes(plan), _relaxations(plan)]
    return "\n\n".join(p for p in parts if p)


def short(device: str) -> str:
    """A complete device name without the parts that are the same in every cluster of today.

    >>> short("/job:ps/replica:0/task:1/device:GPU:0")
    '/job:ps/task:1/GPU:0'
    """
    return device.replace("/replica:0", "").replace("/device:", "/")


def size_text(count: int, exact: bool = True) -> str:
    """Bytes for people: `3.2 MiB`; with `+` when some sizes are unknown."""
    value, more = float(count), "" if exact else "+"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return (f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}") + more
        value /= 1024
    return f"{value:.1f} TiB{more}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: words to the left, numbers to the right; a long list is cut, and the rest counted."""
    shown = list(rows[:ROWS])
    widths = [max(len(r[i]) for r in [header, *shown]) for i in range(len(header))]
    numeric = [all(r[i][:1].isdigit() or not r[i] for r in shown) for i in range(len(header))]
    lines = []
    for row in [header, *shown]:
        cells = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True)]
        lines.append("  ".join(cells).rstrip())
    if len(rows) > len(shown):
        lines.append(f"... and {len(rows) - len(shown)} more")
    return "\n".join(lines)


def _heading(plan: Plan) -> str:
    nodes = sum(len(p.nodes) for p in plan.partitions.values())
    between = [c for c in plan.channels if c.crosses_tasks]
    exact = all(t.exact for t in traffic(between))
    size = size_text(sum(c.bytes for c in between), exact)
    tasks = len({task_of(d) for d in plan.partitions})
    return (
        f"Plan: {_count(nodes, 'node')} on {_count(len(plan.partitions), 'device')} of "
        f"{_count(tasks, 'task')}; {_count(len(plan.channels), 'channel')}, "
        f"{len(between)} of them between tasks ({size} per step)"
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _devices(plan: Plan) -> str:
    emulated = {str(d.name) for d in plan.cluster.devices if d.emulated}
    held = ((plan.decisions.device_of(n), n) for n in plan.decisions)
    rows = [
        (short(r.device) + (" (emulated)" if r.device in emulated else ""), str(r.nodes), str(r.variables),
         size_text(r.variable_bytes, r.exact))
        for r in device_loads(plan.partitions, held)
    ]  # fmt: skip
    return table(("device", "nodes", "variables", "held"), rows)


def _links(plan: Plan) -> str:
    rows = [
        (
            f"{short(t.source)} -> {short(t.destination)}",
            str(t.tensors),
            str(t.control),
            size_text(t.bytes, t.exact),
        )
        for t in traffic(plan.channels)
    ]
    return table(("link", "tensors", "control", "per step"), rows) if rows else ""


def _scopes(plan: Plan) -> str:
    placed = [(n.name, device) for device, p in plan.partitions.items() for n in p.nodes]
    if not placed:
        return ""
    rows = []
    for scope, devices in fold(placed, ROWS):
        shown = [f"{short(d)} ({n})" if len(devices) > 1 else short(d) for d, n in devices.most_common(3)]
        more = f" and {len(devices) - 3} more" if len(devices) > 3 else ""
        rows.append((scope, str(sum(devices.values())), ", ".join(shown) + more))
    return table(("scope", "nodes", "where"), rows)


def _relaxations(plan: Plan) -> str:
    rows = [(r.node, f"'{r.requested}'", short(r.chosen), r.reason) for r in plan.relaxations]
    return table(("not as requested", "asked for", "got", "because"), rows) if rows else ""


def fold(placed: Iterable[tuple[str, str]], rows: int) -> list[tuple[str, Counter[str]]]:
    """Nodes summed up by name scope: (scope or node name, device -> nodes), the largest first.

    Scopes are opened, the largest first, while the result has at most `rows` rows.

    Args:
        placed: (node name, device) pairs.
    """
    shown = _opened("", list(placed))
    tried: set[str] = set()
    while True:
        closed = [name for name in shown if name.endswith("/") and name not in tried]
        if not closed:
            break
        largest = max(closed, key=lambda name: (len(shown[name]), name))
        parts = _opened(largest, shown[largest])
        tried.add(largest)
        if len(shown) - 1 + len(parts) <= rows:
            del shown[largest]
            shown |= parts
    ordered = sorted(shown.items(), key=lambda item: (-len(item[1]), item[0]))
    return [(name, Counter(device for _, device in nodes)) for name, nodes in ordered]


def _opened(scope: str, nodes: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """What a scope (`''`, or ending in `/`) consists of: inner scopes, which end in `/` too, and nodes."""
    parts: dict[str, list[tuple[str, str]]] = {}
    start = len(scope)
    for node in nodes:
        name = node[0]
        end = name.find("/", start) + 1
        parts.setdefault(name[:end] if end else name, []).append(node)
    return parts
