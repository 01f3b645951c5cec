"""Send/receive insertion: one walk over a step's nodes gives each device its steps, and opens channels between devices.

`partition.py` says which sends, receives and reads there are, and where they stand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...graph.core.dtypes import bfloat16, float32
from ...graph.core.errors import InvalidArgumentError
from ...graph.core.frames import Frames, Item, Loop, Predicates
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import nbytes
from ...graph.core.shape import element_count
from .control_edges import without_bypassed
from .control_flow_placement import devices_after_moves
from .partitioned_graph import Channel, LoopPart, Partition, Partitioned, Step, task_of

COPIED_BYTES: Final = 1024  # constants up to this size may be copied: sent, each would cost a message, or hold one up


def is_copied(node: Node) -> bool:
    """Whether a node is a constant that every device makes for itself, instead of being sent it."""
    if node.type != "Const" or node.controls:
        return False
    made = node.outputs[0]  # a plan that was loaded knows its constants' shapes, not their values
    count = element_count(made.dims)
    return made.dtype.np.kind != "O" and count is not None and count * made.dtype.np.itemsize <= COPIED_BYTES


@dataclass(slots=True)
class ChannelInserter:
    """The lists that partitioning fills; it walks the nodes once, in the global order.

    A send belongs right behind the step that makes its value, but is known only when the first consumer is
    met. So sends are kept apart, by that step, until the end.

    A value is received at the level of loops at which it is made: what comes from outside a loop before the loop's
    steps, which are put in place when the loop has been walked. `steps` are those of the innermost loop that is being walked.
    """

    fed: set[Tensor]
    device: dict[int, str]
    narrow: bool = False  # whether float32 crosses as bfloat16
    bypassed: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict)
    copies: bool = False  # whether small constants are copied instead of sent
    steps: dict[str, list[Step]] = field(default_factory=dict)
    feeds: dict[str, dict[str, None]] = field(default_factory=dict)
    channels: list[Channel] = field(default_factory=list)
    values: list[Tensor | Node] = field(default_factory=list)
    # device or task -> values that have come there from elsewhere, and what brings them
    arrived: dict[str, dict[Tensor | Node, Channel]] = field(default_factory=lambda: defaultdict(dict))
    behind_node: dict[int, list[Step]] = field(default_factory=dict)  # node index -> its sends
    behind_recv: dict[int, list[Step]] = field(default_factory=dict)  # channel id -> the sends that pass its value on
    predicated: dict[Node, tuple[Node | int, ...]] = field(default_factory=dict)
    copied: dict[Node, set[str]] = field(default_factory=dict)  # small constants -> the other devices that have them
    predicates: Predicates | frozenset[Node] = frozenset()  # nodes that may be dead
    levels: list[dict[str, list[Step]]] = field(init=False)  # those of the step, then of each loop that is being walked
    names: list[str] = field(default_factory=list)  # of the loops that are being walked
    level: dict[int, int] = field(default_factory=dict)  # node index -> how many loops it is in, if any
    in_body: list[bool] = field(default_factory=lambda: [True])  # per level: whether its head is behind us
    of_head: set[int] = field(default_factory=set)  # nodes that run in a loop's head
    to_head: set[int] = field(default_factory=set)  # channels that are received there

    def __post_init__(self) -> None:
        self.levels = [self.steps]

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
        bypassed = self.bypassed
        for c in without_bypassed(node.controls, bypassed) if bypassed else node.controls:
            # One that is not run is a placeholder that is fed: there is nothing to wait for.
            if device.get(c.index, here) != here:
                self._bring(c, c, here)
        steps.append(("node", node))

    def _bring(self, value: Tensor | Node, producer: Node, here: str) -> None:
        """Make sure that a value, or the notification that a node has run, comes to a device."""
        arrived = self.arrived[here]
        if value in arrived:
            return
        source, task = self.device[producer.index], task_of(here)
        crosses_tasks = task_of(source) != task
        if crosses_tasks and self.copies and is_copied(producer):
            copied = self.copied.setdefault(producer, set())
            if isinstance(value, Tensor) and here not in copied:
                copied.add(here)
                self.steps[here].append(("node", producer))
            return
        first = self.arrived[task].get(value) if crosses_tasks else None
        level = self.level.get(producer.index, 0)
        if first is None:
            channel = self._open(value, level, source, here)
            self._send(channel, level, producer, None)
            if crosses_tasks:
                self.arrived[task][value] = channel
        else:
            channel = self._open(value, level, first.destination, here, relays=first.id)
            self._send(channel, level, producer, first)
        arrived[value] = channel

    def _send(self, channel: Channel, level: int, producer: Node, first: Channel | None) -> None:
        """Send a value as soon as it is made, or has come on the channel `first`."""
        if not self.in_body[level]:
            self.to_head.add(channel.id)
        elif producer.index in self.of_head and (first is None or first.id in self.to_head):
            # The head makes it, and only the body needs it: after the last iteration it would not be received.
            self.levels[level][channel.source].append(("send", channel))
            return
        if first is None:
            self.behind_node.setdefault(producer.index, []).append(("send", channel))
        else:
            self.behind_recv.setdefault(first.id, []).append(("send", channel))

    def _read(self, place: Tensor, here: str) -> None:
        """Send the value that a variable has at this point of the global order, for one consumer."""
        source = self.device[place.op.index]
        self.steps[source].append(("send", self._open(place, len(self.levels) - 1, source, here)))

    def _open(self, value: Tensor | Node, level: int, source: str, here: str, relays: int | None = None) -> Channel:
        """Open a channel for a value that crosses inside so many loops."""
        number = len(self.channels)
        loop = self.names[level - 1] if level else None
        if isinstance(value, Tensor):
            size, dtype = nbytes(value), value.dtype.base
            if self.narrow and dtype is float32:
                size, dtype = size // 2, bfloat16
            channel = Channel(number, value.name, source, here, size, False, dtype, value.dims, relays, loop)
        else:
            channel = Channel(number, f"^{value.name}", source, here, 0, True, None, (), relays, loop)
        self.channels.append(channel)
        self.values.append(value)
        self.levels[level][here].append(("recv", channel))
        return channel

    def add_all(self, items: Iterable[Item]) -> None:
        """Append nodes and loops, in order."""
        depth = len(self.levels) - 1
        for item in items:
            if isinstance(item, Loop):
                self._loop(item)
                continue
            if depth:
                self.level[item.index] = depth
                if not self.in_body[-1]:
                    self.of_head.add(item.index)
            self.add(item)
            if item in self.predicates:
                self._add_predicated(item)

    def _add_predicated(self, node: Node) -> None:
        """Note which control inputs of a node that may be dead may be dead, too."""
        here = self.device[node.index]
        waits: list[Node | int] = []
        for c in node.controls:
            if c in self.predicates:
                waits.append(c if self.device[c.index] == here else self.arrived[here][c].id)
        self.predicated[node] = tuple(waits)

    def _loop(self, loop: Loop) -> None:
        around = self.steps
        parts = self._parts(loop)
        inner: dict[str, list[Step]] = {device: [] for device in parts}
        for device in parts:
            around.setdefault(device, [])
        self.steps = inner
        self.levels.append(inner)
        self.names.append(loop.name)
        self.in_body.append(False)
        for merge in loop.merges:
            self._check_merge(merge)
            self.level[merge.index] = len(self.levels) - 1
            self.of_head.add(merge.index)
            inner[self.device[merge.index]].append(("node", merge))
            if merge in self.predicates:
                self.predicated[merge] = ()
        self.add_all(loop.head)
        again = loop.condition.outputs[0]
        for device, part in parts.items():
            if device != self.device[loop.condition.index]:
                self._bring(again, loop.condition, device)
            inner[device].append(("test", part))
        self.in_body[-1] = True
        self.add_all(loop.body)
        self.in_body.pop()
        self.names.pop()
        self.levels.pop()
        self.steps = around
        for device, part in parts.items():
            around[device].append(("loop", part))
            around[device] += inner[device]
            around[device].append(("end", part))

    def _parts(self, loop: Loop) -> dict[str, LoopPart]:
        """The devices that take part in a loop, in the order in which they first do."""
        devices: dict[str, None] = {}
        for node in loop.nodes():
            here = self.device[node.index]
            devices[here] = None
            for t in node.inputs:  # a variable that is read from elsewhere is read in each iteration
                if t.dtype.is_ref and self.device[t.op.index] != here:
                    devices[self.device[t.op.index]] = None
        merges: dict[str, list[Node]] = {}
        for merge in loop.merges:
            merges.setdefault(self.device[merge.index], []).append(merge)
        return {d: LoopPart(loop.name, loop.condition, tuple(merges.get(d, ()))) for d in devices}

    def _check_merge(self, merge: Node) -> None:
        """A loop variable goes from Enter to Merge and back without crossing, unless a graph was tampered with."""
        here = self.device[merge.index]
        if any(self.device[t.op.index] != here for t in merge.inputs):
            raise InvalidArgumentError(
                merge, merge, f"Malformed loop: the Enter or NextIteration of '{merge.name}' feeds something else first"
            )

    def result(self, fetches: Sequence[Tensor]) -> Partitioned:
        """The partitions, every send behind its step."""
        self._drop_originals({t.op for t in fetches})
        fetched: dict[str, list[str]] = {}
        for t in fetches:
            fetched.setdefault(self.device[t.op.index], []).append(t.name)
        return Partitioned(
            {
                device: Partition(
                    device,
                    self._with_sends(device, steps),
                    tuple(self.feeds.get(device, ())),
                    tuple(fetched.get(device, ())),
                )
                for device, steps in self.steps.items()
            },
            self.channels,
            self.values,
            self.predicated,
        )

    def _drop_originals(self, fetched: Collection[Node]) -> None:
        """Leave out constants on devices where nothing needs them any more, now that their consumers have copies."""
        homes: dict[str, set[Node]] = defaultdict(set)
        for node in self.copied:
            if node not in fetched and node.index not in self.behind_node:  # that passes it on inside its task
                homes[self.device[node.index]].add(node)
        for home, constants in homes.items():
            steps = self.steps[home]
            for _, what in steps:
                if isinstance(what, Node):
                    constants.difference_update(t.op for t in what.inputs)
            kept = [s for s in steps if s[1] not in constants]
            if kept:
                self.steps[home] = kept
            else:
                del self.steps[home]

    def _with_sends(self, device: str, steps: list[Step]) -> tuple[Step, ...]:
        if not self.channels:
            return tuple(steps)
        behind_node, behind_recv, copied = self.behind_node, self.behind_recv, self.copied
        out: list[Step] = []
        for step in steps:
            out.append(step)
            if step[0] == "node":
                if step[1] not in copied or self.device[step[1].index] == device:
                    out += behind_node.get(step[1].index, ())
            elif step[0] == "recv":
                out += behind_recv.get(step[1].id, ())
        return tuple(out)


def inserter_with_loops(
    nodes: Sequence[Node], device_of: Callable[[Node], str], fed: set[Tensor], fetched: Sequence[Tensor], narrow: bool
) -> ChannelInserter:
    """The channels of nodes with branches and loops among them; `narrow`: float32 crosses as bfloat16.

    Raises:
        InvalidArgumentError: what is made inside a loop is fetched.
    """
    frames = Frames(nodes, fed)
    for t in fetched:
        if frames.gives_in(t.op) is not None:
            raise InvalidArgumentError(
                t.op, t.op, f"{t.name} is created inside {frames.gives_in(t.op)} and cannot be fetched: it has one value "
                f"per iteration. Fetch what the loop returns.\n  '{t.op.name}' ({t.op.type}), created at {t.op.source}",
            )  # fmt: skip
    items = frames.schedule()
    inserter = ChannelInserter(fed, devices_after_moves(nodes, device_of), narrow, predicates=Predicates(items))
    inserter.add_all(items)
    return inserter
