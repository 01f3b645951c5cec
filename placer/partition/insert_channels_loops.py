"""Send/receive insertion around branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ...graph.core.errors import InvalidArgumentError
from ...graph.core.frames import Frames, Item, Loop, Predicates
from ...graph.core.graph import Node, Tensor
from .control_flow_placement import devices_after_moves
from .insert_channels import ChannelInserter
from .partitioned_graph import Channel, LoopPart, Step


def inserter_for_loops(
    nodes: Sequence[Node], device_of: Callable[[Node], str], fed: set[Tensor], fetched: Sequence[Tensor], narrow: bool
) -> LoopChannelInserter:
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
    inserter = LoopChannelInserter(fed, devices_after_moves(nodes, device_of), narrow, predicates=Predicates(items))
    inserter.add_all(items)
    return inserter


@dataclass(slots=True)
class LoopChannelInserter(ChannelInserter):
    """The same where there are branches and loops. `steps` are those of the innermost loop that is being walked.

    A value is received at the level at which it is made: what comes from outside a loop before the loop's
    steps, which are put in place when the loop has been walked.
    """

    predicates: Predicates = field(kw_only=True)
    levels: list[dict[str, list[Step]]] = field(default_factory=list)  # outermost first
    names: list[str] = field(default_factory=list)  # of the loops that are being walked
    level: dict[int, int] = field(default_factory=dict)  # node index -> how many loops it is in, if any
    in_body: list[bool] = field(default_factory=lambda: [True])  # per level: whether its head is behind us
    of_head: set[int] = field(default_factory=set)  # nodes that run in a loop's head
    to_head: set[int] = field(default_factory=set)  # channels that are received there

    def add_all(self, items: Iterable[Item]) -> None:
        """Append nodes and loops, in order."""
        if not self.levels:
            self.levels.append(self.steps)
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
                self._guard(item)

    def _guard(self, node: Node) -> None:
        here = self.device[node.index]
        waits: list[Node | int] = []
        for c in node.controls:
            if c in self.predicates:
                waits.append(c if self.device[c.index] == here else self.arrived[here][c].id)
        self.guarded[node] = tuple(waits)

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
                self.guarded[merge] = ()
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

    def _send(self, channel: Channel, producer: Node, first: Channel | None) -> None:
        level = self.level.get(producer.index, 0)
        if not self.in_body[level]:
            self.to_head.add(channel.id)
        elif producer.index in self.of_head and (first is None or first.id in self.to_head):
            # The head makes it, and only the body needs it: after the last iteration it would not be received.
            self.levels[level][channel.source].append(("send", channel))
            return
        ChannelInserter._send(self, channel, producer, first)

    def _steps_of(self, value: Tensor | Node, here: str) -> list[Step]:
        return self.levels[self._level_of(value)][here]

    def _loop_of(self, value: Tensor | Node) -> str | None:
        level = self._level_of(value)
        return self.names[level - 1] if level else None

    def _level_of(self, value: Tensor | Node) -> int:
        """How many loops there are around the place where a value crosses."""
        # A place is read for its consumer, at the consumer's turn; any other value crosses where it is made.
        if isinstance(value, Tensor) and value.dtype.is_ref:
            return len(self.levels) - 1
        producer = value.op if isinstance(value, Tensor) else value
        return self.level.get(producer.index, 0)
