"""One-sided reads: a task reads a variable of another task in its memory, without a message.

Two tasks of one machine may be able to read each other's memory. A channel that brings the value of a variable from one to the other
need not be sent then: the receiver reads it, before its program does anything else.

    ps       w ── Identity ── send ──┐                   ps       apply ...
    worker                   receive ┴── MatMul ...      worker   read w ── MatMul ...

Nothing that a step computes may depend on whether values are read directly, so it is done only where that cannot show:

- The value is that of the variable and nothing else: the place itself, or what reads it, or an Identity of that; without control
  inputs, outside of loops and branches, and not fed. All of these are on the sender's device. It crosses as it is, from a CPU to a CPU.
- Each node that changes the variable in this step runs after the read: it is later in the sender's program, and it depends on something
  that the receiver sends, directly or through other nodes. The receiver reads before it sends anything. (Constants do not count as
  sent: they may be copied to where they are used.)

Other steps may change the variable at any time, whether its value is sent or read; a read is atomic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...graph.core.dtypes import resource
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Trait
from ...graph.core.shape import element_count
from .control_edges import without_bypassed
from .partitioned_graph import Channel, LoopPart, Partition, Partitioned, Step, task_of

VARIABLES = frozenset(("VariableV2", "VarHandleOp"))
_HANDS_ON = frozenset(
    ("Identity", "Switch", "RefSwitch", "Merge", "RefMerge", "Enter", "RefEnter", "Exit", "NextIteration")
)

Place = tuple[str, str, str]
"""Task, container and name of a variable; the container is empty where it is the task's own."""


@dataclass(frozen=True, slots=True)
class DirectRead:
    """A channel whose value could be read directly.

    Attributes:
        channel: the channel. place: the variable.
        reader: the node that reads it, for errors: the variable itself where that is a reference.
    """

    channel: Channel
    place: Place
    reader: Node


def direct_reads(
    cut: Partitioned, nodes: Sequence[Node], feeds: Collection[Tensor], most_bytes: int, home: Callable[[Node], str]
) -> list[DirectRead]:
    """The channels of a step that could be read directly if the receiver can map the sender's memory.

    Args:
        cut: what each device runs. nodes: what the step runs, inputs first. feeds: tensors that the client gives.
        most_bytes: larger values are sent. home: where each node is placed; another task may run it (`one_sided_updates.py`).
    """
    device = {n: name for name, part in cut.partitions.items() for n in part.nodes}
    found = list(_bare_variables(cut, device, feeds, most_bytes, home))
    if not found:
        return []
    writers = _writers(nodes, device, feeds)
    later: dict[str, set[Node]] = {}
    order: dict[str, dict[Node | int, int]] = {}
    out = []
    for read in found:
        here, there = read.channel.destination, read.channel.source
        changing = writers.get(read.place, ())
        if changing:
            if here not in later:
                later[here] = _after(here, nodes, device, feeds)
            if there not in order:
                order[there] = _order(cut.partitions[there])
            sent = order[there][read.channel.id]
            if any(w not in later[here] or order[there].get(w, -1) < sent for w in changing):
                continue
        if not writers.get((read.place[0], "", ""), ()):
            out.append(read)
    return out


def _order(part: Partition) -> dict[Node | int, int]:
    """When a program runs each node, and sends on each channel."""
    found: dict[Node | int, int] = {}
    for at, (kind, what) in enumerate(part.steps):
        if isinstance(what, Node):
            found[what] = at
        elif kind == "send" and isinstance(what, Channel):
            found[what.id] = at
    return found


def _bare_variables(
    cut: Partitioned,
    device: Mapping[Node, str],
    feeds: Collection[Tensor],
    most_bytes: int,
    home: Callable[[Node], str],
) -> Iterator[DirectRead]:
    for channel in cut.channels:
        value = cut.values[channel.id]
        if (
            not isinstance(value, Tensor)
            or not channel.crosses_tasks
            or channel.control or channel.loop is not None or channel.relays is not None or channel.paces
            or not _is_cpu(channel.source) or not _is_cpu(channel.destination)
        ):  # fmt: skip
            continue
        dtype, count = value.dtype.base, element_count(value.dims)
        if (
            channel.dtype is not dtype
            or dtype.np.kind == "O"
            or dtype is resource
            or not count
            or count * dtype.size > most_bytes
        ):
            continue
        reader = bare_reader(value, feeds, cut.predicated)
        # A value that has come to the sender from the variable's own device is in no memory of the sender; nor is a variable that
        # the sender changes in the memory of another task.
        if reader is None or any(device[n] != channel.source for n in _chain(value)):
            continue
        if task_of(home(reader.inputs[0].op if reader.inputs else reader)) == task_of(channel.source):
            yield DirectRead(channel, place_read(reader, channel.source), reader)


def _is_cpu(device: str) -> bool:
    return "/device:CPU:" in device


def bare_reader(
    value: Tensor, feeds: Collection[Tensor] = (), predicated: Collection[Node] = frozenset()
) -> Node | None:
    """What reads the variable whose bare value a tensor is: a ReadVariableOp, or the variable itself; None: it is something else."""
    while True:
        node = value.op
        if value in feeds or node.controls or node in predicated:
            return None
        if value.dtype.is_ref:
            return node if node.type == "VariableV2" else None
        if node.type == "ReadVariableOp":
            (handle,) = node.inputs
            place = handle.op
            bare = (
                place.type == "VarHandleOp" and handle not in feeds and not place.controls and place not in predicated
            )
            return node if bare else None
        if node.type != "Identity":
            return None
        (value,) = node.inputs


def place_read(reader: Node, device: str) -> Place:
    """The place of what a `bare_reader` reads, when the variable is on `device`."""
    return place_at(reader.inputs[0].op if reader.inputs else reader, device)


def place_at(node: Node, device: str) -> Place:
    """The place of a variable or accumulator on a device."""
    return task_of(device), node.container, node.attrs["shared_name"] or node.name


def _writers(nodes: Sequence[Node], device: Mapping[Node, str], feeds: Collection[Tensor]) -> dict[Place, list[Node]]:
    """Variable -> the nodes of a step that may change it; under a task alone: nodes that may change any variable of the task."""
    found: dict[Place, list[Node]] = defaultdict(list)
    for node in nodes:
        if Trait.READS_ONLY in node.opdef.traits or node.type in _HANDS_ON or node not in device:
            continue
        for i, t in enumerate(node.inputs):
            if t in feeds or not (t.dtype is resource or (t.dtype.is_ref and i in node.opdef.ref_inputs)):
                continue
            for place in _places(t, device[node]):
                found[place].append(node)
    return found


def _places(handle: Tensor, device: str) -> set[Place]:
    """The variables that a handle or reference may be of."""
    todo, seen = [handle.op], {handle.op}
    found: set[Place] = set()
    while todo:
        node = todo.pop()
        if node.type in VARIABLES:
            found.add(place_at(node, device))
        elif Trait.STATE_HANDLE not in node.opdef.traits:
            before = {t.op for t in node.inputs if t.dtype is resource or t.dtype.is_ref}
            if not before:
                found.add((task_of(device), "", ""))
            todo += before - seen
            seen |= before
    return found


def _after(here: str, nodes: Sequence[Node], device: Mapping[Node, str], feeds: Collection[Tensor]) -> set[Node]:
    """The nodes of other devices that depend on something from this one, directly or through others."""
    found: set[Node] = set()
    for node in nodes:
        if device.get(node) == here:
            continue
        # A loop's first iteration does not wait for that.
        back = node.back_edge if node.type in ("Merge", "RefMerge") else None
        for before in (*(t.op for t in node.inputs if t not in feeds), *node.controls):
            if before is back:
                continue
            if before in found or (device.get(before) == here and before.type != "Const"):
                found.add(node)
                break
    return found


def read_directly(
    cut: Partitioned,
    reads: Iterable[DirectRead],
    keep: Collection[Node],
    bypassed: Mapping[Node, tuple[Node, ...]],
) -> Partitioned:
    """The same step with values read directly: the receiver begins with that, and the sender does not make them.

    Args:
        reads: some of `remote_variables`.
        keep: nodes that run in any case: targets and fetched nodes. bypassed: those that do not, as `partition` takes them.
    """
    direct = {r.channel.id: r.channel._replace(direct=True) for r in reads}
    if not direct:
        return cut
    partitions = {}
    chains: dict[str, set[Node]] = defaultdict(set)  # device -> what was there to make values that are read directly
    for channel in direct.values():
        chains[channel.source] |= _chain(cut.values[channel.id])
    for name, part in cut.partitions.items():
        first: list[Step] = []
        rest: list[Step] = []
        for step in part.steps:
            kind, what = step
            if isinstance(what, Channel) and what.id in direct:
                if kind == "recv":
                    first.append(("read", direct[what.id]))
            else:
                rest.append(step)
        if name in chains:
            rest = _without(rest, chains[name], _needed_else(part, keep), bypassed, cut.values)
        if first or rest or part.fetches:
            partitions[name] = replace(part, steps=(*first, *rest))
    channels = [direct.get(c.id, c) for c in cut.channels]
    return Partitioned(partitions, channels, cut.values, cut.predicated)


def _chain(value: Tensor | Node) -> set[Node]:
    """What makes the bare value of a variable, the variable included."""
    assert isinstance(value, Tensor)
    found = {value.op}
    while value.op.inputs:
        (value,) = value.op.inputs
        found.add(value.op)
    return found


def _needed_else(part: Partition, keep: Collection[Node]) -> set[str]:
    return {name.rpartition(":")[0] for name in part.fetches} | {n.name for n in keep}


def _without(
    steps: Sequence[Step], chain: Collection[Node], keep: Collection[str], bypassed: Mapping[Node, tuple[Node, ...]],
    values: Sequence[Tensor | Node],
) -> list[Step]:  # fmt: skip
    """The steps without those of a chain's nodes that nothing here needs."""
    needed: set[Node] = set()
    out: list[Step] = []
    for kind, what in reversed(steps):  # consumers stand behind producers
        if isinstance(what, Node):
            if what in chain and what not in needed and what.name not in keep:
                continue
            needed.update(t.op for t in what.inputs)
            needed.update(without_bypassed(what.controls, bypassed))
        elif isinstance(what, LoopPart):
            needed.add(what.condition)
        elif kind == "send":
            value = values[what.id]
            needed.add(value.op if isinstance(value, Tensor) else value)
        out.append((kind, what))  # type: ignore[arg-type]
    return out[::-1]


__all__ = [
    "VARIABLES", "DirectRead", "Place", "bare_reader", "direct_reads", "place_at", "place_read", "read_directly",
]  # fmt: skip
