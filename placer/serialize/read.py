"""Reads a plan from the text that `write.py` makes.

What is read is not trusted: nothing is evaluated, every number is checked before it is used as an index.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from msgspec import convert

from ...graph.core.device import DeviceName, parse_strict
from ...graph.core.dtypes import BY_NAME, Array
from ...graph.core.errors import InvalidArgumentError
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.core.interpreter_state import collector_paused
from ...graph.core.opdef import opdef
from ...graph.core.scopes import RecordedBlock
from ...graph.core.source_location import RecordedFile
from ..cluster import calibration
from ..cluster.calibration import Calibration
from ..cluster.spec import Cluster, DeviceInfo, Link
from ..cost.shapes import Sizes, plan_sizes
from ..partition.one_sided_access import OneSidedAccess, Refusal
from ..partition.partitioned_graph import Channel, LoopPart, Partition, Partitioned, Step
from ..rules.colocation import Note
from ..rules.placement import Placement, Rule
from ..rules.provenance import Demand, Reasons
from ..search.problem import Found, Solution
from . import records
from .write import CHANNEL_FIELDS, DEVICE_FIELDS, FORMAT, VERSION

logger = logging.getLogger(__name__)

_MARKS: dict[str, Literal["loop", "test", "end"]] = {"l": "loop", "t": "test", "e": "end"}


class Parts(NamedTuple):
    """What a `Plan` is made of, by the names of its fields."""

    graph: Graph
    cluster: Cluster
    decisions: Placement
    partitioned: Partitioned
    fetches: tuple[str, ...]
    targets: tuple[str, ...]
    feeds: tuple[str, ...]
    sizes: Sizes
    access: OneSidedAccess
    solution: Solution | None


def read_plan(path: Path) -> Parts:
    """The parts of a plan that `write_plan` wrote.

    Raises:
        InvalidArgumentError: the file is damaged, or no plan. OSError: it cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            return parts_of(file)
        except InvalidArgumentError as e:
            raise InvalidArgumentError.of(f"{path}: {e.message}") from None


class _BadError(Exception):
    """What is wrong with a line; `parts_of` adds its number."""


def parts_of(lines: Iterable[str], graph: Graph | None = None) -> Parts:
    """The parts of a plan from its lines.

    Args:
        graph: the graph, where the lines came without it.

    Raises:
        InvalidArgumentError: anything is wrong with the lines; the text names the line.
    """
    reader = _Reader(graph)
    number = 0
    try:
        with collector_paused():
            for line in lines:
                number += 1
                reader.take(json.loads(line))
            return reader.finish()
    except _BadError as e:
        problem = str(e)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
        InvalidArgumentError,
    ) as e:
        problem = f"{type(e).__name__}: {e}"
    raise InvalidArgumentError.of(f"Malformed plan, line {number}: {problem}")


class _Reader:
    """Collects the records of a plan; nothing is made of them before all are there."""

    def __init__(self, graph: Graph | None) -> None:
        self._given = graph
        self._graph = Graph() if graph is None else graph
        self._head: records.Head | None = None
        self._count = 0
        self._ended = False
        self._devices: list[DeviceInfo] = []
        self._links: list[Link] = []
        self._profile: tuple[Calibration | None, tuple[str, ...]] = None, ()
        self._files: dict[str, RecordedFile] = {}
        self._lines: list[tuple[RecordedFile, int]] = []
        self._blocks: list[RecordedBlock] = []
        self._demands: list[Demand] = []
        self._notes: list[Note] = []
        self._nodes: list[Node] = []
        self._edges: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._placed: list[tuple[int, int, int, int]] = []
        self._channels: list[Channel] = []
        self._partitions: list[records.Partition] = []
        self._predicated: list[tuple[int, list[int | str]]] = []
        self._access = OneSidedAccess()
        self._solution: Solution | None = None
        self._version: Any = VERSION

    def take(self, record: Any) -> None:
        """Check and keep one record."""
        if self._ended:
            raise _BadError("something follows the end")
        if self._head is None:
            self._take_head(record)
        elif isinstance(record, list):
            self._take_node(convert(record, records.Node))
        elif isinstance(record, dict) and record:
            record = {records.OLD_KEYS.get(key, key): value for key, value in record.items()}
            kind = next(iter(record))
            if kind not in records.KINDS:
                raise _BadError(f"unknown record {kind!r}")
            if kind == "demand" and self._version == 1:
                record = self._demand_of_version_1(convert(record, records.DemandOfVersion1))
            self._TAKE[kind](self, convert(record, records.KINDS[kind]))
        else:
            raise _BadError("it is neither a node nor a record")
        self._count += 1

    def _take_head(self, record: Any) -> None:
        if not isinstance(record, dict) or FORMAT not in record:
            raise _BadError("this is no plan")
        self._version = record[FORMAT]
        if self._version not in (1, VERSION):
            raise _BadError(f"version {self._version!r} is not known; this release reads versions 1 and {VERSION}")
        self._head = convert(record, records.Head)

    def _take_device(self, record: records.Device) -> None:
        name = DeviceName.parse(record.device)
        facts = {f: getattr(record, f) for f in DEVICE_FIELDS}
        self._devices.append(DeviceInfo(name, incarnation=0, **facts))

    def _take_link(self, record: records.Link) -> None:
        for end in record.link:
            parse_strict(end)
        self._links.append(Link(*record.link, record.latency, record.bandwidth))

    def _take_profile(self, record: records.Profile) -> None:
        if record.profile.get(calibration.KEY) == calibration.VERSION:
            self._profile = Calibration.from_fields(record.profile), record.hosts
        else:
            logger.warning(
                "The plan's times rest on a machine's profile of another release of Dovetail, which measured other things. They are "
                "predicted without it: measure anew with `dovetail calibrate`, and place again"
            )

    def _take_line(self, record: records.Line) -> None:
        name, line, text = record.line
        file = self._files.setdefault(name, RecordedFile(name))
        file.texts[line] = text
        self._lines.append((file, line))

    def _take_block(self, record: records.Block) -> None:
        outer, spec, description, line = record.block
        around = None if outer == -1 else self._blocks[_below(outer, len(self._blocks))]
        file, at = self._lines[_below(line, len(self._lines))]
        self._blocks.append(RecordedBlock(around, spec, description, file, at))

    def _demand_of_version_1(self, record: records.DemandOfVersion1) -> dict[str, Any]:
        """The record of today: only reasons that do not follow from the request, each with its devices."""
        required, candidates, against, dropped = record.demand
        if len(against) != len(self._devices):
            raise _BadError(f"a demand judges {len(against)} devices; there are {len(self._devices)}")
        refused: dict[str, list[int]] = {}
        for device, reason in enumerate(against):
            if reason and reason != f"'{required}' is required":
                refused.setdefault(reason, []).append(device)
        return {"demand": [required, candidates, list(refused.items()), dropped]}

    def _take_demand(self, record: records.Demand) -> None:
        required, candidates, refused, dropped = record.demand
        for d in chain(candidates, *(some for _, some in refused)):
            _below(d, len(self._devices))
        self._demands.append(Demand(required, candidates, refused, dropped))

    def _take_note(self, record: records.Note) -> None:
        node, by, kind, text = record.note
        self._notes.append(Note(self._node_number(node), self._node_number(by), kind, text))

    def _take_node(self, record: records.Node) -> None:
        if self._given is not None:
            raise _BadError("it brings nodes, but the graph is there already")
        node = Node()
        node.graph, node.index = self._graph, len(self._nodes)
        node.name, node.opdef = record.name, opdef(record.op)
        node.attrs = {k: _attr(v) for k, v in record.attrs.items()}
        node.device, node.container, node.colocation = record.device, record.container, record.colocation
        node._origin = self._lines[_below(record.line, len(self._lines))]
        node.blocks = None if record.block == -1 else self._blocks[_below(record.block, len(self._blocks))]
        node.outputs = tuple(Tensor(node, i, BY_NAME[d], dims) for i, (d, dims) in enumerate(record.outputs))
        if record.op == "Const" and "value" not in node.attrs:
            node.attrs["value"] = _unknown(node.outputs[0])
        node.inputs = node.controls = ()
        self._nodes.append(node)
        self._edges.append((record.inputs, record.controls))

    def _take_placed(self, record: records.Placed) -> None:
        self._placed.append(record.placed)

    def _take_channel(self, record: records.Channel) -> None:
        given = {f: getattr(record.channel, f) for f in CHANNEL_FIELDS}
        given["source"], given["destination"] = map(self._device, (given["source"], given["destination"]))
        given["dtype"] = None if given["dtype"] is None else BY_NAME[given["dtype"]]
        self._channels.append(Channel(id=len(self._channels), **given))

    def _take_partition(self, record: records.Partition) -> None:
        self._partitions.append(record)

    def _take_predicated(self, record: records.Predicated) -> None:
        node, *controls = record.predicated
        if isinstance(node, str):
            raise _BadError(f"{node!r} is no node")
        self._predicated.append((self._node_number(node), controls))

    def _take_access(self, record: records.Access) -> None:
        found, used, refused = record.access
        self._access = OneSidedAccess(found, used, tuple(Refusal(*r) for r in refused))

    def _take_solution(self, record: records.Solution) -> None:
        assignment = np.array([_below(d, len(self._devices)) for d in record.solution], np.int32)
        assignment.flags.writeable = False
        history = tuple(Found(*h) for h in record.history)
        self._solution = Solution(assignment, record.objective, record.bound, history, record.minimized, record.of_step)

    def _take_end(self, record: records.End) -> None:
        if record.end != self._count:
            raise _BadError(f"{self._count} lines came before the end, {record.end!r} were written")
        self._ended = True

    _TAKE: ClassVar[dict[str, Callable[[_Reader, Any], None]]] = {
        "device": _take_device, "link": _take_link, "profile": _take_profile, "line": _take_line, "block": _take_block,
        "demand": _take_demand, "note": _take_note, "placed": _take_placed, "channel": _take_channel,
        "partition": _take_partition, "predicated": _take_predicated, "access": _take_access, "solution": _take_solution, "end": _take_end,
    }  # fmt: skip

    def _device(self, number: int) -> str:
        return str(self._devices[_below(number, len(self._devices))].name)

    def _node_number(self, number: int) -> int:
        assert self._head is not None
        return _below(number, self._head.nodes)

    def finish(self) -> Parts:
        """Make the plan's parts, once all records are there."""
        if not self._ended or self._head is None:
            raise _BadError("the plan ends too early")
        head, graph = self._head, self._graph
        if self._given is None:
            self._join_nodes()
        if len(graph.nodes) < head.nodes:
            raise _BadError(f"it is about {head.nodes} nodes, and there are {len(graph.nodes)}")
        cluster = Cluster(tuple(self._devices), head.master, tuple(self._links), *self._profile)
        if list(cluster.devices) != self._devices:
            raise _BadError("the devices are not in order")
        nodes = graph.nodes[: head.nodes]
        partitioned = self._partitioned(nodes)
        targets = head.targets
        run = nodes if targets is None else [nodes[self._node_number(t)] for t in targets]
        for name in (*head.fetches, *head.feeds):
            graph.get_tensor_by_name(name)
        return Parts(
            graph,
            cluster,
            self._placement(cluster, nodes),
            partitioned,
            head.fetches,
            tuple(n.name for n in run),
            head.feeds,
            plan_sizes(partitioned.nodes, head.shapes),
            self._access,
            self._solution,
        )

    def _join_nodes(self) -> None:
        """Connect the nodes: an edge may come from a later one, in a loop or added later."""
        nodes, late = self._nodes, False
        for node, (inputs, controls) in zip(nodes, self._edges, strict=True):
            pairs = zip(inputs[::2], inputs[1::2], strict=True)
            made = []
            for source, output in pairs:
                outputs = nodes[_below(source, len(nodes))].outputs
                made.append(outputs[_below(output, len(outputs))])
            node.inputs = tuple(made)
            node.controls = tuple(nodes[_below(c, len(nodes))] for c in controls)
            late = late or any(c >= node.index for c in controls)
        self._graph.insertion.adopt(nodes, late)
        self._graph.table.lacks_values = True

    def _placement(self, cluster: Cluster, nodes: Sequence[Node]) -> Placement:
        assert self._head is not None
        if len(self._placed) != len(nodes):
            raise _BadError(f"{len(self._placed)} of {len(nodes)} nodes are placed")
        table = np.array(self._placed, np.int64).reshape(len(nodes), 4)
        limits = (len(self._devices), len(Rule), len(self._demands), len(nodes))
        if len(nodes) and ((table.max(axis=0) >= limits).any() or table.min() < -1):
            raise _BadError("a node's device, rule, demand or group does not exist")
        index = table[:, 0].astype(np.int32)
        reasons = Reasons(
            tuple(self._demands),
            table[:, 2].astype(np.int32),
            {i: g for i, g in enumerate(table[:, 3].tolist()) if g >= 0},
            tuple(self._notes),
        )
        if ((index >= 0) & (reasons.demand_of < 0)).any():
            raise _BadError("a node is placed without a demand")
        placed = [n for n, d in zip(nodes, index.tolist(), strict=True) if d >= 0]
        soft = self._head.soft
        return Placement(self._graph, cluster, soft, placed, index, table[:, 1].astype(np.uint8), lambda: reasons)

    def _partitioned(self, nodes: Sequence[Node]) -> Partitioned:
        graph, channels = self._graph, self._channels
        values: list[Tensor | Node] = []
        for c in channels:
            values.append(graph.get_operation_by_name(c.name[1:]) if c.control else graph.get_tensor_by_name(c.name))
            if c.relays is not None:
                _below(c.relays, len(channels))
        partitions = {}
        for record in self._partitions:
            device = self._device(record.partition)
            loops = [self._loop(*part, nodes) for part in record.loops]
            steps = tuple(self._step(s, nodes, loops) for s in record.steps)
            partitions[device] = Partition(device, steps, record.feeds, record.fetches)
        predicated = {
            nodes[node]: tuple(
                nodes[_below(c, len(nodes))] if isinstance(c, int) else self._channel(c).id for c in controls
            )
            for node, controls in self._predicated
        }
        return Partitioned(partitions, channels, values, predicated)

    def _loop(self, name: str, condition: int, merges: Sequence[int], nodes: Sequence[Node]) -> LoopPart:
        found = [nodes[_below(i, len(nodes))] for i in (condition, *merges)]
        return LoopPart(name, found[0], tuple(found[1:]))

    def _step(self, step: int | str, nodes: Sequence[Node], loops: Sequence[LoopPart]) -> Step:
        if isinstance(step, int):
            return "node", nodes[_below(step, len(nodes))]
        match step[:1]:
            case "s":
                return "send", self._channel(step)
            case "r":
                return "recv", self._channel(step)
            case "d":
                return "read", self._channel(step)
            case "l" | "t" | "e" as mark:
                return _MARKS[mark], loops[_below(int(step[1:]), len(loops))]
        raise _BadError(f"unknown step {step!r}")

    def _channel(self, text: str) -> Channel:
        return self._channels[_below(int(text[1:]), len(self._channels))]


def _below(value: int, limit: int) -> int:
    if not 0 <= value < limit:
        raise _BadError(f"{value!r} is not a number below {limit}")
    return value


def _unknown(constant: Tensor) -> Array:
    """What stands for the value of a constant that the plan does not keep: no number that a rewrite looks for. It takes no memory."""
    kind = constant.dtype.np
    if kind.kind in "iu":
        value = np.array(np.iinfo(kind).max, kind)
    else:
        value = np.array(b"" if kind.kind == "O" else np.nan).astype(kind)
    return np.broadcast_to(value, [n or 0 for n in constant.shape.as_list()])


def _attr(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_attr(v) for v in value)
    if isinstance(value, dict) and "array" in value:
        return np.array(value["array"], BY_NAME[value["dtype"]].np)
    return BY_NAME[value["dtype"]] if isinstance(value, dict) else value
