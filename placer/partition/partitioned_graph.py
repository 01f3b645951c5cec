"""The partitioned graph: for every device the steps that it runs, and the channels between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import has_known_bytes
from ...graph.core.shape import Dims


class Channel(NamedTuple):  # a tuple, since a chain that changes device at each node has as many of them as nodes
    """One send/receive pair.

    Attributes:
        id: number, unique in its step.
        name: the tensor (`add:0`), or `^node` for a control edge.
        source: complete name of the device that sends.
        destination: complete name of the device that receives.
        bytes: size of the value, in this plan; an unknown size counts as 1; 0 for a control edge.
        control: whether it is a control edge: an empty message.
        dtype: element type in which the value travels; None for a control edge.
        dims: its shape, as far as this plan knows it; () for a control edge.
        relays: the channel whose value this one passes on inside a task, or None.
        loop: name of the loop in which it crosses once per iteration; None: it crosses once per step.
        paces: whether it carries no edge of the graph, but the progress of the receiver
            (`schedule/pacing.py`).
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
    def maker(self) -> str:
        """The name of the node that makes its value."""
        return self.name[1:] if self.control else self.name.rpartition(":")[0]

    @property
    def is_exact(self) -> bool:
        """Whether the size of the value is known."""
        return self.dtype is None or has_known_bytes(self.dtype, self.dims)

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
            variable is read where it lies (`one_sided_reads.py`); around and in a loop `("loop", part)`,
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
    def has_loop(self) -> bool:
        """Whether it has a part of a loop. Sums over its nodes count one iteration."""
        return any(kind == "loop" for kind, _ in self.steps)

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


def takers_of(partition: Partition) -> dict[int, list[Node]]:
    """Channels that a partition receives or reads, by number -> the nodes that take the value, in order.

    A reference is read anew for each consumer, and each read has a channel of its own, which comes just before that consumer; any other
    value arrives once and serves all. No node takes the progress of a receiver, or a LoopCond.
    """
    found: dict[int, list[Node]] = {}
    fresh: dict[str, list[Channel]] = {}  # received, and not taken yet
    latest: dict[str, Channel] = {}
    for kind, what in partition.steps:
        if isinstance(what, Channel) and kind != "send":
            found[what.id] = []
            fresh.setdefault(what.name, []).append(what)
            latest[what.name] = what
        elif isinstance(what, Node) and latest:
            for name in dict.fromkeys(_taken(what)):
                if name in latest:
                    taken = fresh.get(name)
                    if not taken:
                        arrived = [latest[name]]
                    elif taken[0].direct:  # all reads in memory come first
                        arrived = [taken.pop(0)]
                    else:
                        arrived = fresh.pop(name)
                    for channel in arrived:
                        found[channel.id].append(what)
    return found


def _taken(node: Node) -> Iterable[str]:
    """Names of the values that a node takes, control edges as `^node`."""
    return chain((t.name for t in node.inputs), (f"^{c.name}" for c in node.controls))


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A cut graph: device -> its partition, and all channels, in the global order of their receives.

    `values` says what each channel carries, by its number: a tensor, or the node of a control edge. `predicated`
    has the nodes that may be dead, each with those of its control inputs that may be: a node of the same
    device, or the number of the channel that carries it.
    """

    partitions: dict[str, Partition]
    channels: list[Channel] = field(default_factory=list)
    values: list[Tensor | Node] = field(default_factory=list)
    predicated: Mapping[Node, tuple[Node | int, ...]] = field(default_factory=dict)

    @property
    def nodes(self) -> list[Node]:
        """The nodes that the step runs: those of the partitions, one after the other. A copied node is there several times."""
        return [n for p in self.partitions.values() for n in p.nodes]


@lru_cache(maxsize=4096)
def task_of(device: str) -> str:
    """The task part of a complete device name."""
    return device.rpartition("/device:")[0]
