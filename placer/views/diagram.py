"""Plan diagrams: Graphviz text, and an SVG of our own where Graphviz is not installed.

A plan of few nodes is drawn node by node, in a box per device in a box per task. A larger one is drawn as
its devices, each with the largest parts of what it runs, and one arrow per link, as wide as its bytes.

Our own drawing has a column per job and its tasks below each other, in the order of their names; arrows leave
a device on the side of the other one. It needs no search, and looks the same everywhere.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TypeAlias

from ...graph.core.errors import InternalError
from ...graph.core.graph import Node
from ..cost.static import DeviceLoad, Traffic
from ..partition.partitioned_graph import task_of
from ..plan_data import PlanData
from ..render.text import count_text, short, size_text
from .scope_tree import fold

FEW = 60  # nodes that a reader can still follow one by one
LINES = 6  # parts named in a device's box
TIMEOUT_S = 60.0


def to_dot(plan: PlanData) -> str:
    """The plan as text in Graphviz's language DOT."""
    boxes, loads = _boxes(plan), _loads(plan)
    few = sum(len(p.nodes) for p in plan.partitions.values()) <= FEW
    lines = [
        "digraph plan {",
        "  graph [rankdir=LR, fontname=Helvetica, style=rounded, color=gray60, nodesep=0.15];",
        "  node [shape=box, style=rounded, fontname=Helvetica, fontsize=10];",
        "  edge [fontname=Helvetica, fontsize=9, color=gray40];",
    ]
    for task, devices in boxes.items():
        lines += [f"  subgraph {_quoted('cluster ' + task)} {{", f"    label={_quoted(short(task))};"]
        for device in devices:
            if few:
                lines.append(f"    subgraph {_quoted('cluster ' + device)} {{")
                lines.append(f"      label={_quoted(_device_part(device))};")
                nodes = plan.partitions[device].nodes if device in plan.partitions else []
                lines += [f"      {_quoted(n.name)} [tooltip={_quoted(_tip(n))}];" for n in nodes]
                lines.append("    }")
            else:
                label = "\\n".join(_escaped(line) for line in [_device_part(device), *_contents(plan, device, loads)])
                lines.append(f'    {_quoted(device)} [label="{label}"];')
        lines.append("  }")
    lines += _dot_edges(plan) if few else _dot_links(plan)
    return "\n".join([*lines, "}", ""])


def _dot_edges(plan: PlanData) -> Iterator[str]:
    where = {n.name: device for device, p in plan.partitions.items() for n in p.nodes}
    sizes = {(c.name, c.destination): size_text(c.bytes, c.is_exact) for c in plan.channels}
    for device, p in plan.partitions.items():
        for n in p.nodes:
            values = [(t.op.name, t.name) for t in n.inputs if t.name not in plan.feeds]
            for before, value in dict.fromkeys([*values, *((c.name, f"^{c.name}") for c in n.controls)]):
                if before not in where:
                    continue
                style = ["style=dashed"] if value[0] == "^" else []
                if where[before] != device:
                    size = sizes.get((value, device), size_text(0))
                    style += [
                        "color=firebrick",
                        f'label="{size}"' if value[0] != "^" else "penwidth=1.5",
                    ]
                yield f"  {_quoted(before)} -> {_quoted(n.name)} [{', '.join(style)}];"


def _dot_links(plan: PlanData) -> Iterator[str]:
    links = plan.traffic
    for t in links:
        yield (
            f"  {_quoted(t.source)} -> {_quoted(t.destination)} "
            f"[label={_quoted(_link_text(t))}, penwidth={_thickness(t, links):.1f}];"
        )


def to_svg(plan: PlanData, graphviz: bool | None = None) -> str:
    """The plan as one `<svg>` element.

    Args:
        graphviz: whether Graphviz's `dot` draws it; None: if it is installed.

    Raises:
        FileNotFoundError: `graphviz` is True, and `dot` is not installed. InternalError: `dot` failed.
    """
    dot = shutil.which("dot") if graphviz is not False else None
    if dot is None:
        if graphviz:
            raise FileNotFoundError("Graphviz is not installed: there is no program `dot`")
        return _own_svg(plan)
    done = subprocess.run([dot, "-Tsvg"], input=to_dot(plan), capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise InternalError.of(f"Graphviz could not draw the plan: {done.stderr.strip()}")
    return done.stdout[done.stdout.index("<svg") :]


# -- our own drawing ---------------------------------------------------------------------------------------

Box: TypeAlias = tuple[float, float, float, float]  # left, top, width, height

_LINE, _PAD, _GAP, _BETWEEN, _CHAR = 16, 10, 14, 150, 6.6  # pixels; _CHAR is about a letter at 11 px
_STYLE = """
.plan { font: 11px Helvetica, Arial, sans-serif;
  --ink: #222; --box: #fff; --task: #f0f2f5; --line: #9aa4b2; --arrow: #b3401f; }
@media (prefers-color-scheme: dark) {
  .plan { --ink: #ddd; --box: #262b33; --task: #1a1e24; --line: #55606e; --arrow: #ff9d7a; }
}
.plan text { fill: var(--ink); } .plan .name { font-weight: bold; }
.plan .task { fill: var(--task); stroke: var(--line); }
.plan .device { fill: var(--box); stroke: var(--line); }
.plan .link { fill: none; stroke: var(--arrow); opacity: .75; }
.plan marker path { fill: var(--arrow); }
.plan .bytes { font-size: 10px; paint-order: stroke; stroke: var(--box); stroke-width: 3px; }
"""


def _own_svg(plan: PlanData) -> str:
    jobs: dict[str, list[tuple[str, list[str]]]] = {}
    loads = _loads(plan)
    for task, devices in _boxes(plan).items():
        jobs.setdefault(task.split("/")[1], []).append((task, devices))
    body: list[str] = []
    at: dict[str, Box] = {}
    x, height = float(_GAP), 0.0
    for tasks in jobs.values():
        texts = {d: [_device_part(d), *_contents(plan, d, loads)] for _, devices in tasks for d in devices}
        longest = max(len(line) for line in [*(short(t) for t, _ in tasks), *sum(texts.values(), [])])
        width = longest * _CHAR + 2 * _PAD
        y = float(_GAP)
        for task, devices in tasks:
            top = y
            y += _LINE + _PAD
            boxes: list[str] = []
            for d in devices:
                tall = len(texts[d]) * _LINE + _PAD
                at[d] = x + _PAD, y, width, tall
                boxes += _device_box(at[d], d, texts[d])
                y += tall + _PAD
            size = f'width="{width + 2 * _PAD:.0f}" height="{y - top}"'
            body.append(f'<rect class="task" x="{x}" y="{top}" {size} rx="8"/>')
            body.append(f'<text class="name" x="{x + _PAD}" y="{top + _LINE}">{escape(short(task))}</text>')
            body += boxes
            y += _GAP
        height = max(height, y)
        x += width + 2 * _PAD + _BETWEEN
    links = plan.traffic
    ends = _ends(links, at)
    for i, t in enumerate(links):
        body += _arrow(ends[i, True], ends[i, False], t, _thickness(t, links), i)
    width = max(x - _BETWEEN + (_BETWEEN / 2 if links else 0) + _GAP, 1.0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="plan" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            f"<style>{_STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="12" markerHeight="12" '
            'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
            *body,
            "</svg>",
        ]
    )


def _device_box(box: Box, device: str, texts: Sequence[str]) -> Iterator[str]:
    x, y, w, h = box
    yield f"<g><title>{escape(device)}</title>"
    yield f'<rect class="device" x="{x}" y="{y}" width="{w:.0f}" height="{h}" rx="5"/>'
    for i, text in enumerate(texts):
        kind = ' class="name"' if i == 0 else ""
        yield f'<text{kind} x="{x + 8}" y="{y + (i + 1) * _LINE}">{escape(text)}</text>'
    yield "</g>"


def _ends(links: Sequence[Traffic], at: Mapping[str, Box]) -> dict[tuple[int, bool], tuple[float, float]]:
    """Where each link begins (True) and ends (False): spread over the side of the device that faces the other one.

    On each side they stand in the order of what they lead to, so that they cross as little as can be.
    """
    sides: dict[tuple[str, bool], list[tuple[float, int, bool]]] = {}
    for i, t in enumerate(links):
        for here, there, begins in ((t.source, t.destination, True), (t.destination, t.source, False)):
            on_left = at[there][0] + at[there][2] < at[here][0]  # a device of the same column is met on the right
            sides.setdefault((here, on_left), []).append((at[there][1], i, begins))
    found = {}
    for (device, on_left), ends in sides.items():
        x, y, w, h = at[device]
        for slot, (_, i, begins) in enumerate(sorted(ends), 1):
            found[i, begins] = (x if on_left else x + w), y + h * slot / (len(ends) + 1)
    return found


def _arrow(a: tuple[float, float], b: tuple[float, float], t: Traffic, thick: float, i: int) -> Iterator[str]:
    """A curve that leaves and meets the devices level; between devices of one column it bends out to the right."""
    (ax, ay), (bx, by) = a, b
    bend = _BETWEEN / 2 * (1 if bx > ax else -1) if abs(bx - ax) > _BETWEEN / 2 else _BETWEEN / 3 + 6 * (i % 5)
    near = -bend if abs(bx - ax) > _BETWEEN / 2 else bend
    path = f"M{ax:.0f} {ay:.0f}C{ax + bend:.0f} {ay:.0f} {bx + near:.0f} {by:.0f} {bx:.0f} {by:.0f}"
    text = f"{short(t.source)} -> {short(t.destination)}: {_link_text(t)}"
    yield f'<path class="link" d="{path}" stroke-width="{thick:.1f}" marker-end="url(#tip)">'
    yield f"<title>{escape(text)}</title></path>"
    if t.tensors:
        # Near its source, so that the labels of two arrows that meet in the middle do not.
        u = 0.25
        w = [(1 - u) ** 3, 3 * u * (1 - u) ** 2, 3 * u * u * (1 - u), u**3]
        x = w[0] * ax + w[1] * (ax + bend) + w[2] * (bx + near) + w[3] * bx
        y = (w[0] + w[1]) * ay + (w[2] + w[3]) * by
        size = escape(size_text(t.bytes, t.exact))
        above = y - thick / 2 - 3
        yield f'<text class="bytes" text-anchor="middle" x="{x:.0f}" y="{above:.0f}">{size}</text>'


# -- what both show ----------------------------------------------------------------------------------------


def _boxes(plan: PlanData) -> dict[str, list[str]]:
    """Task -> the devices that run or hold something, by name."""
    busy = {r.device for r in plan.loads}
    found: dict[str, list[str]] = {}
    for device in sorted(busy):
        found.setdefault(task_of(device), []).append(device)
    return found


def _device_part(device: str) -> str:
    return device.rpartition("/device:")[2]


def _loads(plan: PlanData) -> dict[str, DeviceLoad]:
    return {r.device: r for r in plan.loads}


def _contents(plan: PlanData, device: str, loads: Mapping[str, DeviceLoad]) -> list[str]:
    """The largest parts of what a device runs, and how much state it holds."""
    nodes = plan.partitions[device].nodes if device in plan.partitions else []
    rows = fold(((n.name, "") for n in nodes), LINES)
    lines = [f"{r.label} ({len(r.nodes)})" if len(r.nodes) > 1 else r.label for r in rows[:LINES]]
    if len(rows) > LINES:
        lines.append(f"... and {sum(len(r.nodes) for r in rows[LINES:])} more nodes")
    load = loads.get(device)
    if load is not None and load.variables:
        lines.append(f"{count_text(load.variables, 'variable')}, {size_text(load.variable_bytes, load.exact)}")
    return [line if len(line) <= 40 else f"{line[:18]}...{line[-19:]}" for line in lines]


def _link_text(t: Traffic) -> str:
    messages = count_text(t.tensors + t.control, "message")
    return f"{size_text(t.bytes, t.exact)}, {messages}"


def _thickness(t: Traffic, links: Sequence[Traffic]) -> float:
    """Line width: by the cube of the logarithm of the bytes, for links differ by orders of magnitude. `links`: most bytes first."""
    most = links[0].bytes
    return 1.0 + 5.0 * (math.log1p(t.bytes) / math.log1p(most)) ** 3 if most else 1.0


def _tip(node: Node) -> str:
    return f"{node.type} {node.device}".strip()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
