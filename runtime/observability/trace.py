"""A `Trace`: what every task did in a traced step, on one clock.

Each task of a step with `RunOptions(trace_level=RunOptions.FULL_TRACE)` records events (`step_notes.py`), which it returns
with the results. Here they become a `Trace`. Times are converted to the client's clock, channel numbers become tensor names, and a
send and its arrival become a transfer. A kernel's time is that of the call; on a GPU, until its work is done. A transfer lasts from the
send until the receiving program has the value. Coalesced small values wait for each other.

Clock offsets come from round trips: the client asks a task for its clock, which it reads between question and answer. So the offset
is known to half of the round trip, and the shortest round trip is the most precise (F. Cristian, Probabilistic clock synchronization,
1989). Processes of one machine share a clock. An offset that could be zero within its uncertainty counts as zero, so their times are exact.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import cached_property

from ...graph.formats.atomic_files import path_of
from ...placer.cost.shapes import partial_batches
from ...placer.critical_path import Span, Transfer as Travel, critical_path
from ...placer.partition.partitioned_graph import Channel
from ...placer.plan import Plan
from ...placer.render.text import count_text, short, size_text, table, time_text
from ...placer.render.timeline import Bar, Chart
from ...placer.simulate import Timeline
from ..transport.client import Connections
from ..wire.messages import ChannelKey, Message
from ..wire.schema import WireError
from .step_notes import SAME, Gathered, Offset, SendNote, clock
from .timeline import RECEIVED, DeviceStepStats, NodeExecStats, StepStats, Timeline as ChromeTimeline

ROUNDS = 8  # round trips to each task
ROUND_S = 0.25  # after a round trip longer than this, a task is not asked again


def offset_of(connections: Connections, address: str) -> Offset | None:
    """The clock offset of a task; None: it does not answer, and its times are shown as they are. Other messages are dropped."""
    tried: list[tuple[int, int]] = []  # round trip, offset
    while len(tried) < ROUNDS:
        number, asked, shown = len(tried) + 1, clock(), None
        end = time.monotonic() + ROUND_S
        try:
            connections.send(address, Message("ping", {"seq": number}))
            while shown is None and (left := end - time.monotonic()) > 0:
                for source, message in connections.poll(left):
                    if source == address and message.kind == "pong" and message.fields["seq"] == number:
                        heard, shown = clock(), message.fields.get("clock")
        except (OSError, WireError):
            break
        if shown is None:
            break
        tried.append((heard - asked, shown - (asked + heard) // 2))
    return settled(*min(tried)) if tried else None


def settled(round_trip_ns: int, offset_ns: int) -> Offset:
    """The offset from one round trip: zero if that is possible.

    >>> settled(100, 30), settled(100, 70)
    (Offset(ns=0, uncertainty_ns=0), Offset(ns=70, uncertainty_ns=50))
    """
    half = (round_trip_ns + 1) // 2
    return Offset(0, 0) if abs(offset_ns) <= half else Offset(offset_ns, half)


LISTED = 8  # rows of each table in the printed trace


@dataclass(frozen=True, slots=True)
class Kernel:
    """One run of a kernel. Times are in seconds since the start of the step.

    Attributes:
        device: complete name. node: the node; the last node of a fused kernel. op: its op, or `Fused`.
        nodes: all nodes of a fused kernel; else empty.
        thread: number of the thread in its task. bytes: size of the outputs.
    """

    device: str
    node: str
    op: str
    nodes: tuple[str, ...]
    start: float
    finish: float
    thread: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """One value through a channel.

    Attributes:
        name: the tensor (`x:0`), or `^node` for an empty message. source, destination: complete device names.
        iteration: of the loops around it, outermost first: `@2@0`; '' outside of loops.
        bytes: size of the value; 0 for an empty message, as from a branch not taken.
        start, finish: when it was sent, and when it had arrived.
        direct: whether the receiver read it in the memory of the other task; it was not sent.
    """

    name: str
    source: str
    destination: str
    iteration: str
    bytes: int
    start: float
    finish: float
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stall of a device's program.

    Attributes:
        device: complete name. what: the awaited value or resource. start, finish: begin and end of the wait.
    """

    device: str
    what: str
    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class TaskPart:
    """One task's part of the step.

    Attributes:
        task: its name. start, finish: when it was started, and when its last program had ended.
        uncertainty: possible error of its times against other tasks, in seconds; 0: the same clock; None: not known.
    """

    task: str
    start: float
    finish: float
    uncertainty: float | None


@dataclass(frozen=True, eq=False)  # no slots: the timeline is cached in the instance
class Trace:
    """The timing of a step. `print(trace)` summarizes it.

    Attributes:
        seconds: the step's duration for its client.
        started: its start, in seconds since 1970.
        tasks: the tasks that took part. kernels, transfers, waits: all by start.
        plan: the step's plan, for the sizes that the step had.
    """

    seconds: float
    started: float
    tasks: tuple[TaskPart, ...]
    kernels: tuple[Kernel, ...]
    transfers: tuple[Transfer, ...]
    waits: tuple[Waiting, ...]
    plan: Plan

    @cached_property
    def timeline(self) -> Timeline:
        """The measured counterpart of `simulate(plan)`: spans of kernels, transfers of values, and the critical path."""
        names = tuple(str(d.name) for d in self.plan.cluster.devices)
        number = {name: i for i, name in enumerate(names)}
        spans = tuple(Span(k.node, number[k.device], k.start, k.finish, k.nodes) for k in self.kernels)
        travels = tuple(
            Travel(t.name.partition(":")[0].lstrip("^"), number[t.source], number[t.destination], float(t.bytes), t.start, t.finish)
            for t in self.transfers
        )  # fmt: skip
        busy, until = [0.0] * len(names), [0.0] * len(names)
        for s in spans:  # by start; a collective overlaps with others
            busy[s.device] += max(0.0, s.finish - max(s.start, until[s.device]))
            until[s.device] = max(until[s.device], s.finish)
        end = max((s.finish for s in spans), default=0.0)
        waits: dict[int, list[float]] = {}
        for w in sorted(self.waits, key=lambda w: w.finish):
            waits.setdefault(number[w.device], []).append(w.finish)
        graph = self.plan.graph

        def inputs(name: str) -> list[str]:
            nodes = [graph.get_operation_by_name(name)] if name in graph else []
            return [b.name for n in nodes for b in (*(t.op for t in n.inputs), *n.controls)]

        critical = tuple(critical_path(spans, travels, inputs, waits=waits))
        return Timeline(names, spans, travels, critical, tuple(busy), (), end)

    @property
    def step_stats(self) -> StepStats:
        """The trace in TensorFlow 1's shape."""
        # Includes a device whose nodes were all folded into constants.
        devices: dict[str, DeviceStepStats] = {str(name): DeviceStepStats(str(name)) for name in self.plan.partitions}

        def add(device: str, node: str, start: float, finish: float, label: str, thread: int, size: int) -> None:
            at, lasts = round((self.started + start) * 1e9), round((finish - start) * 1e9)
            micros, taken = at // 1000, -(-lasts // 1000)
            stats = NodeExecStats(node, micros, 0, taken, taken, label, micros, thread, size, at, lasts)
            devices.setdefault(device, DeviceStepStats(device)).node_stats.append(stats)

        for k in self.kernels:
            inputs = ""
            if k.node in self.plan.graph:
                inputs = ", ".join(t.op.name for t in self.plan.graph.get_operation_by_name(k.node).inputs)
            add(k.device, k.node, k.start, k.finish, f"{k.node} = {k.op}({inputs})", k.thread, k.bytes)
        occupied: dict[str, list[float]] = {}  # device -> until when each of its rows of received values is
        for t in self.transfers:
            label = f"[{size_text(t.bytes).replace(' ', '')}] {t.name}{t.iteration} from {t.source} to {t.destination}"
            label += ", one-sided read" if t.direct else ""
            ends = occupied.setdefault(t.destination, [])
            row = next((i for i, end in enumerate(ends) if end <= t.start), len(ends))
            ends[row : row + 1] = [t.finish]
            add(t.destination, "RecvTensor", t.start, t.finish, label, RECEIVED + row, t.bytes)
        return StepStats([devices[name] for name in sorted(devices)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace in Chrome's format, for Perfetto (ui.perfetto.dev) or chrome://tracing. OSError: the file cannot be written."""
        path_of(path).write_text(ChromeTimeline(self.step_stats).generate_chrome_trace_format(), encoding="utf-8")

    def chart(self, title: str = "") -> Chart:
        """The trace as a chart."""
        line = self.timeline
        drawn = line.chart(title or f"Step of {time_text(self.seconds)}")
        bars = [  # the first bars are those of kernels, in their order
            replace(b, op=k.op, note=f"{k.op}{': ' * bool(b.note)}{b.note}, {size_text(k.bytes)}")
            for k, b in zip(self.kernels, drawn.bars, strict=False)
        ]
        bars += drawn.bars[len(bars) :]
        bars += [Bar(w.device, w.start, w.finish, f"waits for {w.what}", "wait") for w in self.waits]
        facts = (("until the last kernel ended", time_text(line.makespan)), *drawn.facts)
        return replace(drawn, bars=tuple(bars), seconds=max(self.seconds, line.makespan), facts=facts)

    def to_html(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Write the page of the step's plan, with the prediction beside this trace. OSError: the file cannot be written."""
        self.plan.to_html(path, title=title, measured=self.chart(title))

    def to_svg(self) -> str:
        """The trace as one `<svg>` element."""
        return self.chart().to_svg()

    def _repr_html_(self) -> str:
        return self.to_svg()

    def __str__(self) -> str:
        line = self.timeline
        moved = sum(t.bytes for t in self.transfers)
        lines = [
            f"{time_text(self.seconds)} for the client, {time_text(line.makespan)} until the last kernel ended, "
            f"on {count_text(len(self.tasks), 'task')}: {count_text(len(self.kernels), 'kernel')}, "
            f"{count_text(len(self.transfers), 'transfer')} ({size_text(moved)}); limited by {short(line.limited_by)}"
        ]
        rows = [
            (
                short(d), f"{line.busy[line.devices.index(d)] / (self.seconds or 1):.0%}",
                time_text(sum(w.finish - w.start for w in self.waits if w.device == d)),
                str(sum(k.device == d for k in self.kernels)),
            )
            for d in sorted({k.device for k in self.kernels} | {w.device for w in self.waits})
        ]  # fmt: skip
        tables = [table(("device", "busy", "waited", "kernels"), rows, limit=None, indent="  ")]
        longest = sorted(self.kernels, key=lambda k: k.start - k.finish)[:LISTED]
        found = [(k.node, time_text(k.finish - k.start), k.op, short(k.device)) for k in longest]
        tables.append(table(("kernel", "time", "op", "device"), found, indent="  "))
        slowest = sorted(self.transfers, key=lambda t: t.start - t.finish)[:LISTED]
        found = [
            (
                t.name + t.iteration, time_text(t.finish - t.start), size_text(t.bytes),
                f"{short(t.source)} -> {short(t.destination)}" + (", one-sided read" if t.direct else ""),
            )
            for t in slowest
        ]  # fmt: skip
        tables.append(table(("transfer", "time", "size", "link"), found, indent="  "))
        lines += filter(None, tables)
        for part in self.tasks:
            if part.uncertainty is None:
                lines.append(f"{part.task} did not tell its clock: its times may be off")
            elif part.uncertainty:
                lines.append(f"times of {part.task} are right within {time_text(part.uncertainty)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<dt.Trace of {time_text(self.seconds)}: {len(self.kernels)} kernels, {len(self.transfers)} transfers>"


def traced(gathered: Gathered, plan: Plan) -> Trace:
    """The trace of a step that has ended; built from its notes."""
    channels = {c.id: c for c in plan.channels}
    parts, kernels, waits = [], [], []
    sends: list[tuple[SendNote, float]] = []
    arrivals: dict[ChannelKey, float] = {}
    for task, notes in gathered.notes.items():
        offset = gathered.offsets.get(task, SAME)

        def seconds(at: int, zero: int = gathered.began + (offset or SAME).ns) -> float:
            return (at - zero) / 1e9

        unsure = None if offset is None else offset.uncertainty_ns / 1e9
        parts.append(TaskPart(task, seconds(notes.began), seconds(notes.ended), unsure))
        for k in notes.kernels:
            kernels.append(Kernel(*notes.calls[k.call], seconds(k.start), seconds(k.finish), k.thread, k.bytes))
        waits += [
            Waiting(w.device, _waited_for(w.what, channels), seconds(w.start), seconds(w.finish)) for w in notes.waits
        ]
        sends += [(s, seconds(s.at)) for s in notes.sends]
        arrivals |= {a.channel: seconds(a.at) for a in notes.arrivals}
    made = {k.node: k.bytes for k in kernels}
    plan = plan.resized({**plan.sizes.given, **partial_batches(plan.partitioned.nodes, made, plan.sizes)})
    transfers = []
    for note, at in sends:
        number, iteration = _parts_of(note.channel)
        c = channels.get(number)
        if c is not None and note.channel in arrivals:  # later arrivals have no note
            direct = c.direct and note.bytes > 0  # otherwise it was sent, and its size is not recorded
            finish, size = max(at, arrivals[note.channel]), c.bytes if c.direct and not direct else note.bytes
            transfers.append(Transfer(c.name, c.source, c.destination, iteration, size, at, finish, direct))
    return Trace(
        (gathered.ended - gathered.began) / 1e9,
        gathered.epoch_ns / 1e9,
        tuple(sorted(parts, key=lambda p: p.task)),
        tuple(sorted(kernels, key=lambda k: (k.start, k.finish))),
        tuple(sorted(transfers, key=lambda t: (t.start, t.finish))),
        tuple(sorted(waits, key=lambda w: (w.start, w.finish))),
        plan,
    )


def _parts_of(key: ChannelKey) -> tuple[int, str]:
    """The number of a channel, and its iteration as text. Keys come from other processes; -1 if the number is malformed."""
    if isinstance(key, int):
        return key, ""
    number, at, rest = key.partition("@")
    return (int(number) if number.isdecimal() else -1), at + rest


def _waited_for(what: str, channels: dict[int, Channel]) -> str:
    kind, _, key = what.partition(" ")
    if kind != "channel":
        return what
    number, iteration = _parts_of(key)
    channel = channels.get(number)
    return what if channel is None else f"{channel.name}{iteration} from {short(channel.source)}"
