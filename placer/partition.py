"""Cutting a placed graph: for every device the steps it runs, joined by channels.

A value that another device needs is sent right after it is made and received just before its first use. It
crosses once per destination, however many nodes there use it. Between tasks the destination is the *task*: a
value that two devices of a remote task need crosses the network once, to the device that uses it first, and
is sent on from there inside the task. A control edge crosses as an empty message of its own.

The steps of all partitions follow one global order of the graph's nodes, in which every send stands before
its receive. So no set of partitions can wait for each other in a circle: the step that comes first in the
global order can always run.

A reference (the place of a TF1 variable) does not travel; its value does, read at the moment in the global
order at which the consumer uses it. So a graph gives the same numbers on one device and on twenty. Such
reads are not shared between consumers.

Fed values come straight from the client to every partition that needs them; they never cross between devices.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ..graph.dtypes import DType
from ..graph.graph import Graph
from ..graph.node import Node, Tensor
from ..graph.opdef import nbytes
from ..graph.shape import Dims


@dataclass(frozen=True, slots=True)
class Channel:
    """One send/receive pair.

    Attributes:
        id: number, unique in its step.
        name: the tensor (`add:0`), or `^node` for a control edge.
        source: complete name of the device that sends.
        destination: complete name of the device that receives.
        bytes: size of the value; an unknown size counts as 1; 0 for a control edge.
        control: whether it is a control edge: an empty message.
        dtype: element type of the value; None for a control edge.
        dims: its static shape; () for a control edge.
        relays: the channel whose value this one passes on inside a task, or None.
    """

    id: int
    name: str
    source: str
    destination: str
    bytes: int
    control: bool
    dtype: DType | None
    dims: Dims
    relays: int | None = None

    @property
    def crosses_tasks(self) -> bool:
        """Whether it goes from one task to another, over a network, rather than between devices of one."""
        return task_of(self.source) != task_of(self.destination)


Step: TypeAlias = tuple[Literal["node"], Node] | tuple[Literal["send", "recv"], Channel]


@dataclass(frozen=True, slots=True)
class Partition:
    """What one device runs in a step, in order.

    Attributes:
        device: complete name.
        steps: `("node", node)`, `("send", channel)`, `("recv", channel)`.
        feeds: names of the fed tensors that its nodes take.
        fetches: names of the tensors that it returns.
    """

    device: str
    steps: tuple[Step, ...]
    feeds: tuple[str, ...] = ()
    fetches: tuple[str, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """Its nodes, in order."""
        return [what for kind, what in self.steps if isinstance(what, Node)]

    @property
    def sends(self) -> list[Channel]:
        """The channels it sends on, in order."""
        return [what for kind, what in self.steps if kind == "send" and isinstance(what, Channel)]

    @property
    def receives(self) -> list[Channel]:
        """The channels it receives on, in order."""
        return [what for kind, what in self.steps if kind == "recv" and isinstance(what, Channel)]


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A cut graph: device -> its partition, and all channels, in the global order of their receives.

    `values` says what each channel carries, by its number: a tensor, or the node of a control edge.
    """

    partitions: dict[str, Partition]
    channels: list[Channel] = field(default_factory=list)
    values: list[Tensor | Node] = field(default_factory=list)


def task_of(device: str) -> str:
    """The task part of a complete device name."""
    return device.rpartition("/device:")[0]


def needed(
    graph: Graph, fetches: Iterable[Tensor] = (), targets: Iterable[Node] = (), feeds: Iterable[Tensor] = ()
) -> list[Node]:
    """The nodes that one step runs, in the global order: what fetches and targets depend on, up to feeds.

    The order is that of creation; where control edges were added against it later, the closest order that
    they allow. A node is not run when all its outputs that are used are fed. A placeholder that is fed
    satisfies the control edges from it.
    """
    fed = set(feeds)
    seen = bytearray(len(graph.nodes))
    todo = [t.op for t in fetches if t not in fed]
    todo += (n for n in targets if not _is_fed_placeholder(n, fed))
    found: list[Node] = []
    while todo:
        node = todo.pop()
        if seen[node.index]:
            continue
        seen[node.index] = 1
        found.append(node)
        for t in node.inputs:
            if not (fed and t in fed) and not seen[t.op.index]:
                todo.append(t.op)
        for c in node.control_inputs:
            if not seen[c.index] and not (fed and _is_fed_placeholder(c, fed)):
                todo.append(c)
    found.sort(key=lambda n: n.index)
    if any(c.index > n.index for n in found for c in n.control_inputs):
        return _topological(found)
    return found


def _is_fed_placeholder(node: Node, fed: set[Tensor]) -> bool:
    return node.type == "Placeholder" and node.outputs[0] in fed


def _topological(nodes: Sequence[Node]) -> list[Node]:
    """Kahn's algorithm, always taking the ready node that was created first."""
    inside = {n.index: n for n in nodes}
    waits = dict.fromkeys(inside, 0)
    after: dict[int, list[int]] = {}
    for n in nodes:
        for before in {t.op.index for t in n.inputs} | {c.index for c in n.control_inputs}:
            if before in inside:
                waits[n.index] += 1
                after.setdefault(before, []).append(n.index)
    ready = [i for i, count in waits.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(inside[i])
        for j in after.get(i, ()):
            waits[j] -= 1
            if not waits[j]:
                heapq.heappush(ready, j)
    assert len(order) == len(nodes), "Graph.add_control_input refuses edges that would close a cycle"
    return order


def partition(
    nodes: Sequence[Node],
    device_of: Callable[[Node], str],
    *,
    feeds: Iterable[Tensor] = (),
    fetches: Iterable[Tensor] = (),
) -> Partitioned:
    """Cut what one step runs by device.

    Args:
        nodes: the nodes to run, in an order in which inputs come first (`needed`).
        device_of: complete device name of a node; nodes that share a place of state share a device.
        feeds: tensors that the client gives.
        fetches: tensors that the client gets; one that is fed comes back without any partition.

    Returns:
        the partitions of the devices that have something to run, in the order in which they first do, and the
        channels.
    """
    cut = _Cut(set(feeds), {n.index: device_of(n) for n in nodes})
    for node in nodes:
        cut.add(node)
    return cut.result([t for t in dict.fromkeys(fetches) if t not in cut.fed])


@dataclass(slots=True)
class _Cut:
    """The lists that partitioning fills; it walks the nodes once, in the global order.

    A send belongs right behind the step that makes its value, but is known only when the first consumer is
    met. So sends are kept apart, by that step, until the end.
    """

    fed: set[Tensor]
    device: dict[int, str]
    steps: dict[str, list[Step]] = field(default_factory=dict)
    feeds: dict[str, dict[str, None]] = field(default_factory=dict)
    channels: list[Channel] = field(default_factory=list)
    values: list[Tensor | Node] = field(default_factory=list)
    arrived: dict[tuple[object, str], Channel] = field(
        default_factory=dict
    )  # (value, device or task) -> what brings it
    behind_node: dict[int, list[Step]] = field(default_factory=dict)  # node index -> its sends
    behind_recv: dict[int, list[Step]] = field(
        default_factory=dict
    )  # channel id -> the sends that pass its value on

    def add(self, node: Node) -> None:
        """Append a node, before it the receives of what it takes from elsewhere."""
        device, fed = self.device, self.fed
        here = device[node.index]
        steps = self.steps.get(here)
        if steps is None:
            steps = self.steps[here] = []
        for t in node.inputs:
            if fed and t in fed:
                self.feeds.setdefault(here, {})[t.name] = None
            elif device[t.op.index] != here:
                if t.dtype.is_ref:
                    self._read(t, here)
                else:
                    self._bring(t, t.op, here)
        for c in node.control_inputs:
            # One that is not run is a placeholder that is fed: there is nothing to wait for.
            if device.get(c.index, here) != here:
                self._bring(c, c, here)
        steps.append(("node", node))

    def _bring(self, value: Tensor | Node, producer: Node, here: str) -> None:
        """Make sure that a value, or the news that a node has run, is on a device."""
        arrived = self.arrived
        if (value, here) in arrived:
            return
        source, task = self.device[producer.index], task_of(here)
        first = arrived.get((value, task)) if task_of(source) != task else None
        if first is None:
            channel = self._open(value, source, here)
            self.behind_node.setdefault(producer.index, []).append(("send", channel))
            arrived[value, task] = channel
        else:
            channel = self._open(value, first.destination, here, relays=first.id)
            self.behind_recv.setdefault(first.id, []).append(("send", channel))
        arrived[value, here] = channel

    def _read(self, place: Tensor, here: str) -> None:
        """Send the value that a variable has at this point of the global order, for one consumer."""
        source = self.device[place.op.index]
        self.steps[source].append(("send", self._open(place, source, here)))

    def _open(self, value: Tensor | Node, source: str, here: str, relays: int | None = None) -> Channel:
        if isinstance(value, Tensor):
            channel = Channel(
                len(self.channels),
                value.name,
                source,
                here,
                nbytes(value),
                False,
                value.dtype.base,
                value.dims,
                relays,
            )
        else:
            channel = Channel(len(self.channels), f"^{value.name}", source, here, 0, True, None, (), relays)
        self.channels.append(channel)
        self.values.append(value)
        self.steps[here].append(("recv", channel))
        return channel

    def result(self, fetches: Sequence[Tensor]) -> Partitioned:
        """The partitions, every send behind its step."""
        fetched: dict[str, list[str]] = {}
        for t in fetches:
            fetched.setdefault(self.device[t.op.index], []).append(t.name)
        return Partitioned(
            {
                device: Partition(
                    device,
                    self._with_sends(steps),
                    tuple(self.feeds.get(device, ())),
                    tuple(fetched.get(device, ())),
                )
                for device, steps in self.steps.items()
            },
            self.channels,
            self.values,
        )

    def _with_sends(self, steps: list[Step]) -> tuple[Step, ...]:
        out: list[Step] = []
        for step in steps:
            out.append(step)
            kind, what = step
            if isinstance(what, Node):
                out += self.behind_node.get(what.index, ())
            elif kind == "recv":
                out += self.behind_recv.get(what.id, ())
        return tuple(out)
