"""Send/receive insertion: one walk over a step's nodes gives each device its steps, and opens channels between devices.

`partition.py` says which sends, receives and reads there are, and where they stand. `insert_channels_loops.py` does branches and loops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...graph.core.dtypes import bfloat16, float32
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import nbytes
from ...graph.core.shape import element_count
from .control_edges import without_bypassed
from .partitioned_graph import Channel, Partition, Partitioned, Step, task_of

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
    guarded: dict[Node, tuple[Node | int, ...]] = field(default_factory=dict)
    copied: dict[Node, set[str]] = field(default_factory=dict)  # small constants -> the other devices that have them

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
        """Make sure that a value, or the news that a node has run, is on a device."""
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
        if first is None:
            channel = self._open(value, source, here)
            self._send(channel, producer, None)
            if crosses_tasks:
                self.arrived[task][value] = channel
        else:
            channel = self._open(value, first.destination, here, relays=first.id)
            self._send(channel, producer, first)
        arrived[value] = channel

    def _send(self, channel: Channel, producer: Node, first: Channel | None) -> None:
        """Send a value as soon as it is made, or has come on the channel `first`."""
        if first is None:
            self.behind_node.setdefault(producer.index, []).append(("send", channel))
        else:
            self.behind_recv.setdefault(first.id, []).append(("send", channel))

    def _read(self, place: Tensor, here: str) -> None:
        """Send the value that a variable has at this point of the global order, for one consumer."""
        source = self.device[place.op.index]
        self.steps[source].append(("send", self._open(place, source, here)))

    def _open(self, value: Tensor | Node, source: str, here: str, relays: int | None = None) -> Channel:
        number, loop = len(self.channels), self._loop_of(value)
        if isinstance(value, Tensor):
            size, dtype = nbytes(value), value.dtype.base
            if self.narrow and dtype is float32:
                size, dtype = size // 2, bfloat16
            channel = Channel(number, value.name, source, here, size, False, dtype, value.dims, relays, loop)
        else:
            channel = Channel(number, f"^{value.name}", source, here, 0, True, None, (), relays, loop)
        self.channels.append(channel)
        self.values.append(value)
        self._steps_of(value, here).append(("recv", channel))
        return channel

    def _steps_of(self, value: Tensor | Node, here: str) -> list[Step]:
        """Where a value that has just been asked for is received."""
        return self.steps[here]

    def _loop_of(self, value: Tensor | Node) -> str | None:
        """The loop in which that is."""
        return None

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
            self.guarded,
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
