"""A timeline chart (Gantt chart): bars in tracks over one axis of time, as SVG or as a tab of the page (`page.py`).

Predicted steps (simulate.py) and traced ones (runtime/observability/trace.py) are drawn by the same two pens. The page's tab zooms,
moves, explains each bar, and shows several charts beside each other; `to_svg` is a still picture, for notebooks and documents.

Bars of one track that overlap are put into rows: each into the first that is free. A picture has no more bars than points, so
neighbours that are too narrow to be told apart are drawn as one.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .page import Columns, page
from .text import short, time_text

KINDS = ("kernel", "transfer", "wait")
TICKS = 2**31
"""Parts of a chart's time: bars of the page start and end at whole ones."""
POINTS = 2000
"""Moments of a device's memory that a page gets, at most: more than a screen is wide."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that takes time.

    Attributes:
        track: where it is drawn: a device, or a link (`A -> B`).
        start, finish: seconds after the start of the step.
        name: what it is. kind: `kernel`, `transfer` or `wait`. note: more about it.
        critical: whether the end of the step depends on it. op: of a kernel, where it is known; the page colours by it.
    """

    track: str
    start: float
    finish: float
    name: str
    kind: str
    note: str = ""
    critical: bool = False
    op: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTrack:
    """The bytes that a device holds over time.

    Attributes:
        device: whose memory. at: (P,) seconds, ascending. bytes: (P,) held from that moment on. exact: whether all sizes are known.
    """

    device: str
    at: npt.NDArray[np.float64]
    bytes: npt.NDArray[np.float64]
    exact: bool = True


@dataclass(frozen=True)  # no slots: the rows are cached in the instance
class Chart:
    """A picture that is not drawn yet.

    Attributes:
        title: what it shows. bars: in any order. seconds: where the axis ends. facts: (what, how much), shown above it.
        memory: of the devices, on the page below their tracks. exact: whether all sizes are known; else times are lower bounds.
    """

    title: str
    bars: tuple[Bar, ...]
    seconds: float
    facts: tuple[tuple[str, str], ...] = ()
    memory: tuple[MemoryTrack, ...] = ()
    exact: bool = True

    @cached_property
    def tracks(self) -> dict[str, list[list[Bar]]]:
        """Track -> its rows of bars by start: devices in order of appearance, then links, the busiest first."""
        by_track: dict[str, list[Bar]] = {}
        taken: dict[str, float] = {}  # by links
        for bar in sorted(self.bars, key=lambda b: (b.start, b.finish)):
            by_track.setdefault(bar.track, []).append(bar)
            if " -> " in bar.track:
                taken[bar.track] = taken.get(bar.track, 0.0) + bar.finish - bar.start
        ordered = sorted(by_track, key=lambda track: (track in taken, -taken.get(track, 0.0)))
        return {track: _rows(by_track[track]) for track in ordered}

    def to_svg(self, width: int = 960) -> str:
        """The picture as one `<svg>` element, `width` pixels wide."""
        return _svg(self, width)

    def to_chrome_trace(self) -> str:
        """The picture in the JSON format of Chrome's tracing: a process for each track, times in microseconds."""
        events: list[dict[str, object]] = []
        for pid, (track, rows) in enumerate(self.tracks.items()):
            events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": track}})
            for tid, row in enumerate(rows):
                for b in row:
                    events.append({
                        "ph": "X", "name": b.name, "cat": b.kind, "pid": pid, "tid": tid,
                        "ts": b.start * 1e6, "dur": (b.finish - b.start) * 1e6, "args": {"note": b.note, "critical": b.critical},
                    })  # fmt: skip
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the picture as one self-contained page. OSError: the file cannot be written."""
        Path(path).write_text(self.page(), encoding="utf-8", newline="\n")

    def page(self) -> str:
        """The page as text."""
        head, columns = packed_charts([("", self)])
        return page(self.title, {"charts": head}, columns)

    def _repr_html_(self) -> str:
        return self.to_svg()


def packed_charts(
    charts: Sequence[tuple[str, Chart]], numbers: Mapping[str, int] | None = None
) -> tuple[list[dict[str, object]], Columns]:
    """Charts as the page takes them: a head for each, and columns with a value per bar, track after track, row after row.

    Args:
        charts: (label, chart); the page writes the label beside each track.
        numbers: names that the page has already, and their numbers from 0 on; others are numbered behind them.
    """
    heads: list[dict[str, object]] = []
    columns: Columns = {}
    known = dict(numbers or {})
    offset = len(known)
    for at, (label, chart) in enumerate(charts):
        rows = [row for rows in chart.tracks.values() for row in rows]
        bars = [b for row in rows for b in row]
        ticks = TICKS / (chart.seconds or 1.0)
        ops = list(dict.fromkeys(b.op for b in bars))
        memory = [_thinned(m, chart.seconds) for m in chart.memory]
        op_number = {op: i for i, op in enumerate(ops)}
        heads.append(
            {
                "label": label, "title": chart.title, "seconds": chart.seconds, "exact": chart.exact, "facts": chart.facts, "ops": ops,
                "tracks": [[short(track), len(rows)] for track, rows in chart.tracks.items()],
                "memory": [[short(m.device), m.exact] for m in chart.memory],
            }
        )  # fmt: skip
        found: Columns = {
            "rowSize": [len(row) for row in rows],
            "start": np.rint([b.start * ticks for b in bars]).astype(np.int64),
            "finish": np.rint([b.finish * ticks for b in bars]).astype(np.int64),
            "name": [known.setdefault(b.name, len(known)) for b in bars],
            "note": [known.setdefault(b.note, len(known)) for b in bars],
            "op": [op_number[b.op] for b in bars],
            "kind": [KINDS.index(b.kind) for b in bars],
            "critical": [int(b.critical) for b in bars],
            "memorySize": [len(m.at) for m in memory],
            "memoryAt": np.rint(np.concatenate([[], *(m.at for m in memory)]) * ticks).astype(np.int64),
            "memoryBytes": np.rint(np.concatenate([[], *(m.bytes for m in memory)])).astype(np.int64),
        }
        columns.update((f"chart{at}.{name}", values) for name, values in found.items())
    if heads:
        heads[0]["texts"] = list(known)[offset:]
    return heads, columns


def _thinned(memory: MemoryTrack, seconds: float) -> MemoryTrack:
    """At most POINTS moments of a memory: for each interval of time the most that is held in it."""
    if len(memory.at) <= POINTS:
        return memory
    part = (memory.at / (seconds or 1.0) * POINTS).astype(np.int64)
    first = np.flatnonzero(np.diff(part, prepend=-1))
    return MemoryTrack(memory.device, memory.at[first], np.maximum.reduceat(memory.bytes, first), memory.exact)


def _rows(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Bars by start, in the fewest rows in which none overlaps."""
    rows: list[list[Bar]] = []
    free: list[tuple[float, int]] = []  # (end, row) of rows that are in use; numbers of the free ones come back by it
    idle: list[int] = []
    for bar in bars:
        while free and free[0][0] <= bar.start + 1e-12:
            heapq.heappush(idle, heapq.heappop(free)[1])
        if idle:
            row = heapq.heappop(idle)
        else:
            row = len(rows)
            rows.append([])
        rows[row].append(bar)
        heapq.heappush(free, (bar.finish, row))
    return rows


# -- the still picture -------------------------------------------------------------------------------------

_ROW, _GAP, _TOP, _CHAR = 18, 6, 26, 6.2
_STYLE = """
.timeline { font: 11px Helvetica, Arial, sans-serif; --ink: #222; --soft: #667; --line: #d5dae2; --wait: #e6e9ee;
  --kernel: #3b78d8; --transfer: #d9820f; --critical: #b3202f; }
@media (prefers-color-scheme: dark) { .timeline { --ink: #ddd; --soft: #99a; --line: #343c47; --wait: #2a313b;
  --kernel: #6aa3f5; --transfer: #f0b740; --critical: #ff7a86; } }
.timeline text { fill: var(--ink); } .timeline .soft { fill: var(--soft); } .timeline .in { fill: #fff; font-size: 10px; }
.timeline line { stroke: var(--line); } .timeline .kernel { fill: var(--kernel); } .timeline .transfer { fill: var(--transfer); }
.timeline .wait { fill: var(--wait); } .timeline .critical { stroke: var(--critical); stroke-width: 1.5; }
"""


def _svg(chart: Chart, width: int) -> str:
    tracks = chart.tracks
    left = max([len(short(track)) for track in tracks] or [0]) * _CHAR + 16
    scale = (width - left - 12) / (chart.seconds or 1.0)
    out, y = [], float(_TOP)
    for track, rows in tracks.items():
        out.append(f'<text x="4" y="{y + 13:.0f}">{escape(short(track))}</text>')
        for row in rows:
            out += _svg_row(row, left, y, scale)
            y += _ROW
        y += _GAP
        out.append(f'<line x1="0" x2="{width}" y1="{y - _GAP / 2:.1f}" y2="{y - _GAP / 2:.1f}"/>')
    ticks = []
    for at in ticks_of(chart.seconds):
        x = left + at * scale
        ticks.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{y:.0f}"/>')
        ticks.append(f'<text class="soft" x="{x:.1f}" y="12" text-anchor="middle">{time_text(at)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" role="img" aria-label="{escape(chart.title)}" '
        f'viewBox="0 0 {width} {y:.0f}" width="{width}" style="max-width:100%"><style>{_STYLE}</style>'
        + "".join(ticks + out) + "</svg>"
    )  # fmt: skip


def _svg_row(row: Sequence[Bar], left: float, y: float, scale: float) -> list[str]:
    """The bars of a row; those that would be narrower than half a point are drawn with their neighbours."""
    out = []
    i = 0
    while i < len(row):
        first, end = row[i], i + 1
        finish = first.finish
        while end < len(row) and (finish - first.start) * scale < 0.5 and (row[end].start - finish) * scale < 0.5:
            finish = row[end].finish
            end += 1
        x, wide = left + first.start * scale, max((finish - first.start) * scale, 0.5)
        named = max(row[i:end], key=lambda b: b.finish - b.start)
        critical = " critical" if any(b.critical for b in row[i:end]) else ""
        many = f" and {end - i - 1} more" if end - i > 1 else ""
        tip = f"{named.name}{many}: {time_text(finish - first.start)} from {time_text(first.start)}"
        tip += f"\n{named.note}" if named.note else ""
        out.append(
            f'<rect class="{named.kind}{critical}" x="{x:.2f}" y="{y + 2:.0f}" width="{wide:.2f}" height="{_ROW - 3}" rx="2">'
            f"<title>{escape(tip)}</title></rect>"
        )
        fits = int((wide - 6) / _CHAR)
        if (fits >= 4 or len(named.name) <= fits) and named.kind != "wait":
            name = named.name if len(named.name) <= fits else named.name[: fits - 1] + "…"
            out.append(f'<text class="in" x="{x + 3:.1f}" y="{y + 13:.0f}" pointer-events="none">{escape(name)}</text>')
        i = end
    return out


def ticks_of(seconds: float, most: int = 8) -> list[float]:
    """Round times from 0 on, at most so many and one."""
    if seconds <= 0:
        return [0.0]
    power = 10.0 ** len(str(int(seconds))) if seconds >= 1 else 1.0
    step = power
    while True:
        for part in (0.5, 0.2, 0.1):
            if seconds / (power * part) > most:
                return [i * step for i in range(int(seconds / step + 1e-9) + 1)]
            step = power * part
        power /= 10
