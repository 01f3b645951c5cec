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
Nor need small constants cross between tasks: each device that needs one can have its own copy of the node.

A loop stands in one piece, in every partition that takes part in it: a mark at its begin, what this device
does in each iteration, up to the point where the LoopCond is known, a mark there, the rest, a mark at its
end. Every device that takes part is sent the LoopCond, so that it knows when to stop. A value that comes from
outside the loop crosses before it, once; a value that is made inside crosses once per iteration. A dead value
crosses too, as a message that says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from ..graph.dtypes import DType, bfloat16, float32
from ..graph.errors import InvalidArgumentError
from ..graph.frames import Frames, Guards, Item, Loop, in_order, is_steered
from ..graph.graph import Graph
from ..graph.node import Node, Tensor
from ..graph.opdef import Trait, nbytes
from ..graph.shape import Dims, element_count
from .joins import through
from .steering import devices_after_moves

COPIED_BYTES: Final = 1024  # constants up to this size may be copied: sent, each would cost a message, or hold one up


class Channel(NamedTuple):  # a tuple, since a chain that changes device at each node has as many of them as nodes
    """One send/receive pair.

    Attributes:
        id: number, unique in its step.
        name: the tensor (`add:0`), or `^node` for a control edge.
        source: complete name of the device that sends.
        destination: complete name of the device that receives.
        bytes: size of the value; an unknown size counts as 1; 0 for a control edge.
        control: whether it is a control edge: an empty message.
        dtype: element type in which the value travels; None for a control edge.
        dims: its static shape; () for a control edge.
        relays: the channel whose value this one passes on inside a task, or None.
        loop: name of the loop in which it crosses once per iteration; None: it crosses once per step.
        paces: whether it stands for no edge of the graph: it tells a sender how far the receiver is
            (receive_schedule.py).
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
    loop: str | None = None
    paces: bool = False
    direct: bool = False

    @property
    def crosses_tasks(self) -> bool:
        """Whether it goes from one task to another, over a network, rather than between devices of one."""
        return task_of(self.source) != task_of(self.destination)


@dataclass(frozen=True, slots=True, eq=False)
class LoopPart:
    """A device's part of a loop: its name, the LoopCond, and the Merges of the loop variables that live here."""

    name: str
    condition: Node
    merges: tuple[Node, ...]


Step: TypeAlias = (
    tuple[Literal["node"], Node]
    | tuple[Literal["send", "recv", "read"], Channel]
    | tuple[Literal["loop", "test", "end"], LoopPart]
)


@dataclass(frozen=True, slots=True)
class Partition:
    """What one device runs in a step, in order.

    Attributes:
        device: complete name.
        steps: `("node", node)`, `("send", channel)`, `("recv", channel)`, or `("read", channel)` where another task's
            variable is read where it lies (direct_reads.py); around and in a loop `("loop", part)`,
            `("test", part)` where it is left unless its LoopCond is true, `("end", part)`.
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

    @property
    def reads(self) -> list[Channel]:
        """The channels whose values it reads where they lie."""
        return [what for kind, what in self.steps if kind == "read" and isinstance(what, Channel)]


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A cut graph: device -> its partition, and all channels, in the global order of their receives.

    `values` says what each channel carries, by its number: a tensor, or the node of a control edge. `guarded`
    has the nodes that may be dead, each with those of its control inputs that may be: a node of the same
    device, or the number of the channel that brings the news.
    """

    partitions: dict[str, Partition]
    channels: list[Channel] = field(default_factory=list)
    values: list[Tensor | Node] = field(default_factory=list)
    guarded: Mapping[Node, tuple[Node | int, ...]] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def task_of(device: str) -> str:
    """The task part of a complete device name."""
    return device.rpartition("/device:")[0]


def is_copied(node: Node) -> bool:
    """Whether a node is a constant that every device makes for itself, instead of being sent it."""
    if node.type != "Const" or node.controls:
        return False
    made = node.outputs[0]  # a plan that was loaded knows its constants' shapes, not their values
    count = element_count(made.dims)
    return made.dtype.np.kind != "O" and count is not None and count * made.dtype.np.itemsize <= COPIED_BYTES


def needed(
    graph: Graph, fetches: Iterable[Tensor] = (), targets: Iterable[Node] = (), feeds: Iterable[Tensor] = ()
) -> list[Node]:
    """The nodes that one step runs, in the global order: what fetches and targets depend on, up to feeds.

    The order is that of creation; where control edges were added against it later, the closest order that
    they allow. What may have to wait for another step (a dequeue) comes as late as it can, with all that needs
    it: the rest is not held up, and what only this step itself can put into a queue is put there first. A node is
    not run when all its outputs that are used are fed. A placeholder that is fed
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
        for c in node.controls:
            if not seen[c.index] and not (fed and _is_fed_placeholder(c, fed)):
                todo.append(c)
    found.sort(key=lambda n: n.index)
    if any(c.index > n.index for n in found for c in n.controls):
        inside = set(found)
        found = in_order(found, lambda n: [b for b in n.before if b in inside])
    if any(Trait.BLOCKING in n.opdef.traits for n in found):
        found = _waiting_last(found)
    return found


def _waiting_last(nodes: list[Node]) -> list[Node]:
    """Nodes in waves: those that depend on no node that may wait, then those nodes, then what depends on one of them, ...

    Of the nodes of one wave that may wait, those that only give (they have no outputs) come first.
    """
    wave: dict[Node, tuple[int, int]] = {}
    for node in nodes:
        number = max((wave[b][0] + (wave[b][1] > 0) for b in node.before if b in wave), default=0)
        waits = Trait.BLOCKING in node.opdef.traits
        wave[node] = number, (2 if node.outputs else 1) if waits else 0
    return sorted(nodes, key=wave.__getitem__)


def _is_fed_placeholder(node: Node, fed: set[Tensor]) -> bool:
    return node.type == "Placeholder" and node.outputs[0] in fed


def partition(
    nodes: Sequence[Node],
    device_of: Callable[[Node], str],
    *,
    feeds: Iterable[Tensor] = (),
    fetches: Iterable[Tensor] = (),
    enable_bfloat16_sendrecv: bool = False,
    passed: Mapping[Node, tuple[Node, ...]] | None = None,
    copies: bool = False,
) -> Partitioned:
    """Cut what one step runs by device.

    Args:
        nodes: the nodes to run, in an order in which inputs come first (`needed`).
        device_of: complete device name of a node; nodes that share a place of state share a device.
        feeds: tensors that the client gives.
        fetches: tensors that the client gets; one that is fed comes back without any partition.
        enable_bfloat16_sendrecv: float32 values cross as bfloat16: half the bytes, a relative error of up to 2**-9.
        passed: nodes that do not run, each with those to wait for in its place (`joins.passed_over`).
        copies: small constants do not cross between tasks: each device that needs one has a copy of the node. Steps with
            branches or loops send theirs.

    Returns:
        the partitions of the devices that have something to run, in the order in which they first do, and the
        channels.
    """
    fed = set(feeds)
    fetched = [t for t in dict.fromkeys(fetches) if t not in fed]
    cut: _Cut
    if not is_steered(nodes):
        cut = _Cut(fed, {n.index: device_of(n) for n in nodes}, enable_bfloat16_sendrecv, passed or {}, copies)
        for node in nodes:
            if not (passed and node in passed):
                cut.add(node)
    else:
        cut = _steered_cut(nodes, device_of, fed, fetched, enable_bfloat16_sendrecv)
    return cut.result(fetched)


def _steered_cut(
    nodes: Sequence[Node], device_of: Callable[[Node], str], fed: set[Tensor], fetched: Sequence[Tensor], narrow: bool
) -> _SteeredCut:
    frames = Frames(nodes, fed)
    for t in fetched:
        if frames.gives_in(t.op) is not None:
            raise InvalidArgumentError(
                t.op, t.op, f"{t.name} is made inside {frames.gives_in(t.op)} and cannot be fetched: it has one value "
                f"per iteration. Fetch what the loop returns.\n  '{t.op.name}' ({t.op.type}), made at {t.op.source}",
            )  # fmt: skip
    items = frames.schedule()
    steered = _SteeredCut(fed, devices_after_moves(nodes, device_of), narrow, guards=Guards(items))
    steered.add_all(items)
    return steered


@dataclass(slots=True)
class _Cut:
    """The lists that partitioning fills; it walks the nodes once, in the global order.

    A send belongs right behind the step that makes its value, but is known only when the first consumer is
    met. So sends are kept apart, by that step, until the end.
    """

    fed: set[Tensor]
    device: dict[int, str]
    narrow: bool = False  # whether float32 crosses as bfloat16
    passed: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict)
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
        passed = self.passed
        for c in through(node.controls, passed) if passed else node.controls:
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
        """Leave out constants on devices where nobody needs them, now that those who do have copies."""
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


@dataclass(slots=True)
class _SteeredCut(_Cut):
    """The same where there are branches and loops. `steps` are those of the innermost loop that is being cut.

    A value is received at the level at which it is made: what comes from outside a loop before the loop's
    steps, which are put in place when the loop has been cut.
    """

    guards: Guards = field(kw_only=True)
    levels: list[dict[str, list[Step]]] = field(default_factory=list)  # outermost first
    names: list[str] = field(default_factory=list)  # of the loops that are being cut
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
            if item in self.guards:
                self._guard(item)

    def _guard(self, node: Node) -> None:
        here = self.device[node.index]
        waits: list[Node | int] = []
        for c in node.controls:
            if c in self.guards:
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
            if merge in self.guards:
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
            # The head makes it, and only the body needs it: after the last iteration nobody would receive it.
            self.levels[level][channel.source].append(("send", channel))
            return
        _Cut._send(self, channel, producer, first)

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
