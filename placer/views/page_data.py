"""A plan as columns: the data of its page (`render/page.py`).

A graph of 100,000 nodes has as many names, but only some hundred ops, requests, source lines and demands. So
each string is stored once, nodes refer to it by number, and the page assembles explanations on demand. 0 stands for "none" in columns whose
comment says "+1".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import date
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from ...graph.core.dtypes import DType
from ...graph.core.graph import Tensor
from ...graph.core.interpreter_state import collector_paused
from ...graph.core.opdef import Trait, has_known_bytes
from ...graph.core.scopes import DeviceBlock
from ...graph.core.shape import text
from ...graph.core.source_location import SourceLine, locate
from ..cluster.calibration import release
from ..cluster.spec import Cluster
from ..cost.static import state_bytes
from ..partition.one_sided_reads import VARIABLES
from ..partition.partitioned_graph import Channel, takers_of, task_of
from ..partition.prune import initializers
from ..plan_data import PlanData
from ..render.page import Columns
from ..render.text import short
from ..render.timeline import Chart, packed_charts
from ..rules.placement import Rule
from .diff import diff
from .facts import PREDICTED, Facts
from .lint import check
from .report import heading_paragraphs

LISTED = 8  # nodes that a warning leads to
NAMED = 1000  # nodes of one plan only that the other's page names
LONGEST = 100  # characters of an attribute
VERSION = 1
"""Of the payload; a page is written together with its payload, so no page ever reads another version."""

NARROW, PACES, DIRECT = 1, 2, 3
"""How a channel carries its value, where that is special: as bfloat16; not at all, since it tells the receiver's pace."""

K = TypeVar("K", bound=Hashable)


class Table(Generic[K]):
    """Distinct values, numbered in order of appearance, each with its data for the page."""

    def __init__(self, row: Callable[[K], Any] | None = None) -> None:
        self._row = row
        self._numbers: dict[K, int] = {}
        self.rows: list[Any] = []

    def __getitem__(self, key: K) -> int:
        number = self._numbers.get(key)
        if number is None:
            row = key if self._row is None else self._row(key)  # may add rows of its own
            number = self._numbers[key] = len(self.rows)
            self.rows.append(row)
        return number


def contents(
    plan: PlanData,
    charts: Sequence[tuple[str, Chart]] = (),
    kernels: Callable[[str], Any] | None = None,
    before: PlanData | None = None,
    facts: Facts | None = None,
) -> tuple[dict[str, Any], Columns]:
    """Head and columns of a plan's page (`render/page.py`).

    Args:
        charts: (label, chart) of predicted and measured steps.
        kernels: function of a device that returns its kernels (`codegen.explain.DeviceKernels`); None: the page shows no kernels.
        before: the plan that this one is compared with.
        facts: facts that were derived from the plan before.
    """
    with collector_paused():
        writer, facts = _Writer(plan), facts or Facts(plan)
        head, columns = writer.write(facts)
        head["charts"], bars = packed_charts(
            charts, {name: i for i, name in enumerate(head["names"])} if charts else {}
        )
        columns |= bars
        if kernels is not None:
            columns |= writer.kernels(kernels, head)
        if before is not None:
            columns["was"] = writer.compared(facts, before, head)
    return head, columns


class _Writer:
    """Fills the tables and columns of one plan."""

    def __init__(self, plan: PlanData) -> None:
        self.plan = plan
        self.nodes = list(plan.decisions)
        self.at = {node.index: i for i, node in enumerate(self.nodes)}
        self.files: Table[str] = Table()
        self.lines: Table[SourceLine] = Table(lambda s: [self.files[s.file], s.line, s.text])
        self.blocks: Table[DeviceBlock] = Table(self._block)
        self.values: Table[tuple[str, int, bool]] = Table()
        self.loops: Table[str] = Table()
        self._value_of: dict[tuple[Any, Any], int] = {}

    def write(self, facts: Facts) -> tuple[dict[str, Any], Columns]:
        plan, reasons, nodes = self.plan, self.plan.decisions.reasons, self.nodes
        ops: Table[Any] = Table(lambda opdef: [opdef.name, _kind(opdef.traits)])
        requests: Table[str] = Table()
        colocations: Table[tuple[str, ...]] = Table()
        index = [node.index for node in nodes]
        states = [state_bytes(n) if Trait.STATE_HANDLE in n.opdef.traits else None for n in nodes]
        (attrs, attr_texts), lines = self._attributes(), self._lines()
        run = {r.device: r.nodes for r in plan.loads}
        flops = [int(min(plan.sizes.cost(n).flops, 2**53)) for n in nodes]
        exact = [plan.sizes.is_exact([n]) for n in nodes]
        parts = {d: [self.at[n.index] for n in p.nodes if n.index in self.at] for d, p in plan.partitions.items()}
        loops = {device for device, p in plan.partitions.items() if p.has_loop}
        assigned = plan.decisions.index[index].tolist()
        run_on, in_place = self._run_on(parts), self._in_place()
        columns: Columns = {
            "op": [ops[n.opdef] for n in nodes],
            "device": assigned,
            "place": [
                d if i not in run_on or d in run_on[i] or i in in_place else run_on[i][0]
                for i, d in enumerate(assigned)
            ],
            "request": [requests[n.device] for n in nodes],
            "rule": plan.decisions.told_rules[index].tolist(),
            "demand": reasons.demand_of[index].tolist(),
            "line": lines,
            "block": [0 if n.blocks is None else self.blocks[n.blocks] + 1 for n in nodes],  # +1
            "colocation": [colocations[n.colocation] + 1 if n.colocation else 0 for n in nodes],  # +1
            "attrs": attrs,
            "isInitializer": self._initializers(),
            "runs": self._runs(parts.values()),
            "state": [0 if s is None else s[0] for s in states],
            "isState": [0 if s is None else 1 + s[1] for s in states],  # 0 no, 1 size not known, 2 known
            "flops": flops,
            "flopsExact": exact,
            **self._edges(),
            **self._groups(),
            **self._channels(),
        }
        head = {
            "version": VERSION,
            "program": self._program(lines),
            "cluster": cluster_text(plan.cluster),
            "written": f"{date.today()}, by Dovetail {release() or 'of a checkout'}",
            "names": [n.name for n in nodes],
            "devices": [
                {"name": str(d.name), "task": d.name.task_name, "job": d.name.job, "index": d.name.task,
                 "type": d.name.device_type, "number": d.name.device_index, "emulated": d.emulated,
                 "memory": d.memory_bytes, "nodes": run.get(str(d.name), 0),
                 "flops": int(min(plan.cost[str(d.name)].flops, 2**53)) if str(d.name) in plan.cost else 0,
                 "flopsExact": str(d.name) not in loops and all(exact[i] for i in parts.get(str(d.name), ()))}
                for d in plan.cluster.devices
            ],
            "master": plan.cluster.master,
            "ops": ops.rows,
            "requests": requests.rows,
            "colocations": colocations.rows,
            "attrTexts": attr_texts,
            "rules": [rule.text for rule in Rule],
            "demands": [
                {"required": d.required, "candidates": d.candidates, "refused": d.refused,
                 "otherwise": d.otherwise, "dropped": d.dropped}
                for d in reasons.demands
            ],
            "inPlace": list(in_place.items()),
            "copies": [[i, devices] for i, devices in run_on.items() if len(devices) > 1],
            "notes": [[self.at[note.node], note.text] for note in reasons.notes if note.node in self.at],
            "files": self.files.rows,
            "lines": self.lines.rows,
            "blocks": self.blocks.rows,
            "values": self.values.rows,
            "fetches": plan.fetches,
            "targets": plan.targets if len(plan.targets) < len(nodes) else (),
            "feeds": plan.feeds,
            "relaxations": [[self._number(r.node), r.requested, r.reason] for r in plan.relaxations],
            "warnings": [[w.text, [self._number(name) for name in w.nodes if name in plan.graph][:LISTED]]
                         for w in check(plan, predict=len(plan.decisions) <= PREDICTED, facts=facts)],
            "access": {"how": plan.access.how, "used": plan.access.used, "refused": plan.access.refused},
            "loops": self.loops.rows,
        }  # fmt: skip
        return head, columns

    def kernels(self, of: Callable[[str], Any], head: dict[str, Any]) -> Columns:
        """The kernels of all devices, and per node why it is in none; the texts go into `head`."""
        reasons: Table[str] = Table()
        alone = [0] * len(self.nodes)  # +1
        columns: dict[str, list[int]] = {
            name: [] for name in ("Device", "Size", "Member", "Read", "Written", "Saved", "Flops", "Exact")
        }
        number = {str(d.name): i for i, d in enumerate(self.plan.cluster.devices)}
        at = {node.name: i for i, node in enumerate(self.nodes)}
        for device in self.plan.partitions:
            compiled = of(device)
            for k in (*compiled.kernels, *compiled.own):
                # A rewrite's nodes have its root's name.
                inside = list(dict.fromkeys(at[name] for name in k.nodes if name in at))
                columns["Member"] += inside
                saved = getattr(k, "bytes_saved", 0)  # of kernels that fusion made
                row = (
                    number[device],
                    len(inside),
                    k.bytes_read,
                    k.bytes_written,
                    saved,
                    int(k.flops),
                    int(compiled.memory.exact),
                )
                for name, value in zip(
                    ("Device", "Size", "Read", "Written", "Saved", "Flops", "Exact"), row, strict=True
                ):
                    columns[name].append(value)
            for name, reason in compiled.reasons.items():
                if name in at and reason:
                    alone[at[name]] = reasons[reason] + 1
        head["reasons"] = reasons.rows
        return {"reason": alone, **{f"kernel{name}": values for name, values in columns.items()}}

    def compared(self, facts: Facts, before: PlanData, head: dict[str, Any]) -> Sequence[int]:
        """Per node the device that it had in the plan before, +1 (0: that plan has no such node); the rest goes into `head`."""
        changes = diff(before, self.plan)
        devices: Table[str] = Table()
        for d in (*self.plan.cluster.devices, *before.cluster.devices):
            devices[short(str(d.name))]
        head["before"] = {
            "devices": devices.rows, "moved": len(changes.moved),
            "headings": [heading_paragraphs(Facts(before)), heading_paragraphs(facts)],
            "lists": [
                [title, len(names), names[:NAMED]]
                for title, names in (("Only before", changes.removed), ("Only after", changes.added),
                                     ("No longer run", changes.no_longer_run), ("Run only now", changes.newly_run))
            ],
            "amounts": [
                [title, [[short(c.what), c.before, c.after, c.before_exact, c.after_exact] for c in found]]
                for title, found in (("Bytes per step", changes.traffic), ("Messages per step", changes.messages),
                                     ("Variable memory", changes.memory))
            ],
        }  # fmt: skip
        old = before.placement
        return [devices[short(old[n.name])] + 1 if n.name in old else 0 for n in self.nodes]

    def _initializers(self) -> list[int]:
        """Per node whether it only serves to give variables their first values, where the plan is of a whole graph."""
        plan, nodes = self.plan, self.nodes
        if plan.fetches or len(plan.targets) < len(nodes):  # what is asked for is shown
            return [0] * len(nodes)
        hidden = initializers(nodes)
        return [int(n in hidden) for n in nodes]

    def _attributes(self) -> tuple[list[int], list[Any]]:
        """Per node the number of its attributes' texts, +1; and these, each once: [name, text] of each attribute."""
        texts: Table[tuple[tuple[str, str], ...]] = Table()
        numbers: dict[tuple[Any, ...], int] = {}  # by the values' identities: hashing them takes longer than all else
        out = []
        for n in self.nodes:
            attrs = n.attrs
            if not attrs:
                out.append(0)
                continue
            key = (*attrs, *map(id, attrs.values()))
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = texts[tuple([(name, _attr_text(value)) for name, value in attrs.items()])] + 1
            out.append(number)
        return out, texts.rows

    def _program(self, lines: Sequence[float]) -> str:
        """The name of the file whose lines made most nodes; '' where there is none."""
        made: Counter[int] = Counter()
        for line, count in Counter(lines).items():
            made[self.lines.rows[int(line)][0]] += count
        return re.split(r"[/\\]", self.files.rows[made.most_common(1)[0][0]])[-1] if made else ""

    def _number(self, name: str) -> int:
        return self.at[self.plan.graph.get_operation_by_name(name).index]

    def _lines(self) -> list[int]:
        # Looking a line up walks its function's line table, so each place in the code is looked up once.
        known: dict[Any, int] = {}
        out = []
        for node in self.nodes:
            origin = node._origin
            number = known.get(origin)
            if number is None:
                number = known[origin] = self.lines[locate(origin)]
            out.append(number)
        return out

    def _block(self, block: DeviceBlock) -> list[Any]:
        outer = block.outer
        return [
            block.describe(),
            self.lines[block.source],
            0 if outer is None or block.clears else self.blocks[outer] + 1,  # +1
        ]

    def _runs(self, parts: Iterable[list[int]]) -> list[int]:
        """Per node its place in the step's order on its device, from 1; 0 when the step does not run it."""
        out = [0] * len(self.nodes)
        for part in parts:
            for place, i in enumerate(part, 1):
                out[i] = place
        return out

    def _run_on(self, parts: Mapping[str, Sequence[int]]) -> dict[int, list[int]]:
        """Node -> the devices that run it: another than its own in another task's memory, several for a constant that is copied."""
        number = {str(d.name): at for at, d in enumerate(self.plan.cluster.devices)}
        found: dict[int, list[int]] = {}
        for device, part in parts.items():
            for i in part:
                found.setdefault(i, []).append(number[device])
        return found

    def _in_place(self) -> dict[int, int]:
        """Variable -> the device of another task that changes it in its memory: it is drawn where it lies."""
        number = {str(d.name): at for at, d in enumerate(self.plan.cluster.devices)}
        moved, device_of = self.plan.moved_parts, self.plan.decisions.device_of
        return {
            self.at[n.index]: number[device]
            for device in set(moved.values())
            for n in self.plan.partitions[device].nodes
            if n.type in VARIABLES and moved.get(task_of(device_of(n))) == device
        }

    def _edges(self) -> Columns:
        """What each node makes and takes; the node that a value comes from as the distance back to it."""
        at, value = self.at, self._value
        made: list[int] = []
        back: list[int] = []
        output: list[int] = []
        control: list[int] = []
        ends: list[tuple[int, int]] = [(0, 0)]  # of each node's entries in `back` and `control`
        for i, node in enumerate(self.nodes):
            for t in node.outputs:
                made.append(value(t))
            for t in node.inputs:
                source = at.get(t.op.index)
                if source is not None:
                    back.append(i - source)
                    output.append(t.value_index)
            control += [i - at[c.index] for c in node.controls if c.index in at]
            ends.append((len(back), len(control)))
        counts = np.diff(ends, axis=0)
        return {
            "outputCount": [len(n.outputs) for n in self.nodes],
            "outputValue": made,
            "inputCount": counts[:, 0].tolist(),
            "inputBack": back,
            "inputIndex": output,
            "controlCount": counts[:, 1].tolist(),
            "controlBack": control,
        }

    def _value(self, t: Tensor) -> int:
        t = self.plan.sizes.of(t)
        key = (t.dtype, t.dims)
        number = self._value_of.get(key)
        if number is None:
            words = f"{t.dtype.name} {text(t.dims)}"
            number = self._value_of[key] = self.values[
                words, self.plan.sizes.bytes(t), has_known_bytes(t.dtype, t.dims)
            ]
        return number

    def _groups(self) -> Columns:
        """Nodes that share their group, group after group in order of creation: its size, its members."""
        members: dict[int, list[int]] = {}
        for node, root in self.plan.decisions.reasons.groups.items():
            if node in self.at:
                members.setdefault(root, []).append(self.at[node])
        groups = [sorted(m) for m in members.values()]
        return {"groupSize": [len(m) for m in groups], "groupMember": list(chain.from_iterable(groups))}

    def _channels(self) -> Columns:
        """Each channel: producer (node, output; output -1 for a control edge), ends, bytes, and its nodes."""
        plan = self.plan
        number = {str(d.name): i for i, d in enumerate(plan.cluster.devices)}
        channels = plan.channels
        position = {c.id: i for i, c in enumerate(channels)}
        producers = [self._producer(c) for c in channels]
        return {
            "channelNode": [node for node, _ in producers],
            "channelOutput": [output for _, output in producers],
            "channelSource": [number[c.source] for c in channels],
            "channelTarget": [number[c.destination] for c in channels],
            "channelBytes": [c.bytes for c in channels],
            "channelExact": [c.is_exact for c in channels],
            "channelHow": [
                PACES
                if c.paces
                else DIRECT
                if c.direct
                else NARROW
                if isinstance(v, Tensor) and c.dtype is not v.dtype.base
                else 0
                for c, v in zip(channels, plan.partitioned.values, strict=True)
            ],
            "channelRelays": [0 if c.relays is None else position[c.relays] + 1 for c in channels],  # +1
            **self._takers(channels),
        }

    def _producer(self, channel: Channel) -> tuple[int, int]:
        if channel.control:
            return self._number(channel.name[1:]), -1
        name, _, output = channel.name.rpartition(":")
        return self._number(name), int(output)

    def _takers(self, channels: Sequence[Channel]) -> Columns:
        """Per channel the nodes on its destination that take its value, and its loop (+1)."""
        found = {number: nodes for p in self.plan.partitions.values() for number, nodes in takers_of(p).items()}
        takers = [found.get(c.id, []) for c in channels]
        return {
            "takerCount": [len(t) for t in takers],
            "taker": [self.at[node.index] for t in takers for node in t],
            "channelLoop": [0 if c.loop is None else self.loops[c.loop] + 1 for c in channels],
        }


def cluster_text(cluster: Cluster) -> str:
    """Jobs with their numbers of tasks: `2 ps, 4 worker`."""
    tasks = {d.name.task_name: d.name.job for d in cluster.devices}
    return ", ".join(f"{count} {job}" for job, count in sorted(Counter(tasks.values()).items()))


def _kind(traits: Trait) -> str:
    """The kinds of nodes that the page tells apart by colour; the rest it sees from inputs and outputs."""
    if Trait.STATE_HANDLE in traits:
        return "state"
    return "effect" if Trait.STATEFUL in traits else "compute"


def _attr_text(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > LISTED:
        return f"{value.dtype} {text(value.shape)}"
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, DType):
        value = value.name
    words = value if isinstance(value, str) else repr(value)
    return words if len(words) <= LONGEST else words[:LONGEST] + "…"
