"""Plans as text: tables that fit a terminal of 100 columns and one screen, however large the graph."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from ..graph.ops.accumulators import ACCUMULATOR
from .cost import Traffic
from .fold import fold
from .partitioned import task_of

if TYPE_CHECKING:
    from .cluster import Cluster
    from .plan import Plan

ROWS = 24
"""Rows of a table, besides its head: three tables then fit on one screen of a large terminal."""
WIDTH = 100
NARROW = 16  # columns that a text column keeps at least


def render(plan: Plan) -> str:
    """The tables of `print(plan)`: devices, links, scopes, and requests that were not met."""
    parts = [
        heading(plan),
        table(*devices_table(plan)),
        table(*links_table(plan)),
        table(*scopes_table(plan)),
    ]
    return "\n\n".join(p for p in [*parts, _relaxations(plan)] if p)


def render_html(plan: Plan) -> str:
    """The same tables and a picture, for notebooks."""
    from .draw import to_svg

    tables = [devices_table(plan), links_table(plan), scopes_table(plan)[:2]]
    parts = [f"<p>{escape(heading(plan))}</p>", to_svg(plan, graphviz=False)]
    parts += [_html_table(*t) for t in tables]
    told = _relaxations(plan)
    return "<div>" + "\n".join([*parts, f"<pre>{escape(told)}</pre>" if told else ""]) + "</div>"


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose text is on the left and whose numbers are on the right, whatever the page around it prefers."""
    if not rows:
        return ""
    sides = ["right" if all(row[i][:1].isdigit() for row in rows) else "left" for i in range(len(header))]

    def line(cell: str, texts: Sequence[str]) -> str:
        cells = zip(texts, sides, strict=True)
        return "".join(
            f'<{cell} style="text-align: {side}; padding: 1px 10px">{escape(c)}</{cell}>' for c, side in cells
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows[:ROWS])
    more = f"<p>... and {len(rows) - ROWS} more</p>" if len(rows) > ROWS else ""
    style = "border-collapse: collapse; margin: 8px 0; font-size: 12px"
    return f'<table style="{style}"><thead><tr>{line("th", header)}</tr></thead><tbody>{body}</tbody></table>{more}'


def short(device: str) -> str:
    """A complete device name without the parts that are the same in every cluster of today.

    >>> short("/job:ps/replica:0/task:1/device:GPU:0")
    '/job:ps/task:1/GPU:0'
    """
    return device.replace("/replica:0", "").replace("/device:", "/")


def size_text(count: float, exact: bool = True) -> str:
    """Bytes for people: `3.2 MiB`; with `+` when some sizes are unknown."""
    value, more = float(count), "" if exact else "+"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return (f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}") + more
        value /= 1024
    return f"{value:.1f} TiB{more}"


def number_text(count: float) -> str:
    """A number for people: `950`, `1.2 M`, `3.4 G`."""
    value = float(count)
    for unit in ("", " k", " M", " G", " T"):
        if value < 1000 or unit == " T":
            return f"{value:.0f}" if not unit else f"{value:.1f}{unit}"
        value /= 1000
    raise AssertionError


def seconds_text(seconds: float) -> str:
    """A duration for people: `12.3 us`, `4.5 ms`, `1.2 s`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def count_text(number: int, word: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], rest: str = "", limit: int | None = ROWS) -> str:
    """Columns of text: words to the left, numbers to the right; '' when there are no rows.

    A list of more than `limit` rows is cut, and the rest counted (or told by `rest`). Texts that are too long lose their middle,
    the widest first, until the table fits.
    """
    if not rows:
        return ""
    shown = [list(r) for r in rows[:limit]]
    numeric = [all(r[i][:1].isdigit() or not r[i] for r in shown) for i in range(len(header))]
    widths = [max(len(r[i]) for r in [header, *shown]) for i in range(len(header))]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        widest = max(range(len(widths)), key=lambda i: -1 if numeric[i] else widths[i])
        if widths[widest] <= NARROW:
            break
        widths[widest] -= 1
    lines = []
    for row in [header, *shown]:
        cells = [_fitted(c, w) for c, w in zip(row, widths, strict=True)]
        cells = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(cells, widths, numeric, strict=True)]
        lines.append("  ".join(cells).rstrip())
    if len(rows) > len(shown):
        lines.append(rest or f"... and {len(rows) - len(shown)} more")
    return "\n".join(lines)


def _fitted(text: str, width: int) -> str:
    """A text that may lose its middle: names differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 3) * 2 // 3
    return f"{text[: width - 3 - tail]}...{text[len(text) - tail :]}"


def heading(plan: Plan) -> str:
    """In a line or two: how much runs on how many devices, and what crosses."""
    nodes = len({node for p in plan.partitions.values() for node in p.nodes})  # a constant may run on several
    between = [c for c in plan.channels if c.crosses_tasks]
    direct = sum(c.direct for c in between)
    links = [t for t in plan.traffic if task_of(t.source) != task_of(t.destination)]
    size = size_text(sum(c.bytes for c in between), all(t.exact for t in links))
    tasks = len({task_of(d) for d in plan.partitions})
    text = (
        f"Plan: {count_text(nodes, 'node')} on {count_text(len(plan.partitions), 'device')} of "
        f"{count_text(tasks, 'task')}; {count_text(len(plan.channels), 'channel')}, "
        f"{len(between)} of them between tasks ({size} per step)" + (f", {direct} read directly" if direct else "")
    )
    by_device: dict[str, list[str]] = {}
    for task, device in plan.moved_parts.items():
        by_device.setdefault(device, []).append(short(task))
    for device, moved in by_device.items():
        whose = "its" if len(moved) == 1 else "their"
        text += f"; {short(device)} does the part of {', '.join(sorted(moved))} where {whose} variables lie"
    adding = Counter(device for node, device in plan.added_to.items() if node.type == ACCUMULATOR)
    for device, count in adding.items():
        text += f"; {short(device)} adds to {count_text(count, 'accumulator')} of other tasks in their memory"
    return textwrap.fill(text, WIDTH)


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def devices_table(plan: Plan) -> Table:
    """A row for each device that runs or holds something: its nodes, variables, their bytes, its work."""
    emulated = {str(d.name) for d in plan.cluster.devices if d.emulated}
    rows: list[tuple[str, ...]] = [
        (
            short(r.device) + (" (emulated)" if r.device in emulated else ""),
            str(r.nodes),
            str(r.variables),
            size_text(r.variable_bytes, r.exact),
            number_text(plan.cost[r.device].flops if r.device in plan.cost else 0),
        )
        for r in plan.loads
    ]
    return ("device", "nodes", "variables", "held", "flop"), rows


def links_table(plan: Plan) -> Table:
    """A row for each pair of devices between which something crosses; times where links are known."""
    found = plan.traffic
    times = [link_seconds(t, plan.cluster) for t in found]
    header: tuple[str, ...] = ("link", "tensors", "control", "per step")
    rows: list[tuple[str, ...]] = [
        (
            f"{short(t.source)} -> {short(t.destination)}",
            str(t.tensors),
            str(t.control),
            size_text(t.bytes, t.exact),
        )
        for t in found
    ]
    if any(s is not None for s in times):
        header = (*header, "time")
        rows = [(*r, "" if s is None else seconds_text(s)) for r, s in zip(rows, times, strict=True)]
    return header, rows


def link_seconds(crossing: Traffic, cluster: Cluster) -> float | None:
    """Time that a step's traffic takes on a link when nothing waits; None when the link is not known."""
    source, destination = task_of(crossing.source), task_of(crossing.destination)
    link = cluster.link(source, destination) if source != destination else None
    return None if link is None else link.seconds(crossing.bytes)


def scopes_table(plan: Plan) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    """The nodes folded by name (fold.py), and a line that counts what is left out."""
    rows = fold(((n.name, device) for device, p in plan.partitions.items() for n in p.nodes), ROWS)
    left = rows[ROWS:]
    rest = f"... and {len(left)} more with {count_text(sum(len(r.nodes) for r in left), 'node')}"
    return ("scope", "nodes", "where"), [(r.label, str(len(r.nodes)), where(r.devices)) for r in rows], rest


def where(devices: Counter[str], word: str = "device") -> str:
    """Devices (or whatever `word` names) with their numbers of nodes, the most first."""
    ordered = sorted(devices.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) == 1:
        return short(ordered[0][0])
    shown = ", ".join(f"{short(d)} ({n})" for d, n in ordered[:2])
    return shown if len(ordered) <= 2 else f"{shown} and {count_text(len(ordered) - 2, word)} more"


def _relaxations(plan: Plan) -> str:
    found = plan.relaxations
    if not found:
        return ""
    lines = [f"Not as requested: {count_text(len(found), 'node')}"]
    for r in found[:ROWS]:
        text = f"{r.node} asked for '{r.requested}', got {short(r.chosen)}: {r.reason}"
        lines += textwrap.wrap(
            text, WIDTH, initial_indent="  ", subsequent_indent="    ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    if len(found) > ROWS:
        lines.append(f"  ... and {len(found) - ROWS} more (plan.relaxations)")
    return "\n".join(lines)
