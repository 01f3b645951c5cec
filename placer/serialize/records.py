"""The records of a saved plan, one JSON value per line: the types that `read.py` checks each line against.

A record is an object whose first key is its kind, but for nodes, of which there are many: they are arrays. `write.py` shows a plan.
Counts and indices are checked to be whole numbers from 0 on here; whether an index exists, only the reader knows.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from ..search.problem import Objective

Index = Annotated[int, Meta(ge=0)]
Dims = tuple[Annotated[int, Meta(ge=0)] | None, ...] | None


class Head(Struct):
    """The first line, but for the format's name and version."""

    nodes: Annotated[int, Meta(ge=0, lt=1 << 40)]
    master: str
    soft: bool
    fetches: tuple[str, ...]
    feeds: tuple[str, ...]
    targets: tuple[Index, ...] | None
    shapes: dict[str, Dims] = {}  # older files lack it


class Device(Struct):
    """A device of the cluster."""

    device: str
    memory_bytes: int | None
    emulated: bool
    bandwidth: float | None
    flops: float | None
    host: str = ""
    model: str = ""


class Link(Struct):
    """What is known of the links between two jobs or tasks."""

    link: tuple[str, str]
    latency: float | None
    bandwidth: float | None


class Profile(Struct):
    """The machine's profile that times rest on (`cluster/calibration.py` checks it), and the hosts that it counts for."""

    profile: dict[str, Any]
    hosts: tuple[str, ...]


class Line(Struct):
    """A source line: file, number, text."""

    line: tuple[str, Annotated[int, Meta(ge=0, lt=1 << 40)], str]


class Block(Struct):
    """A device block: the block around it or -1, its spec, its description, its source line."""

    block: tuple[Annotated[int, Meta(ge=-1)], str | None, str, Index]


class Demand(Struct):
    """A demand on the device of some nodes: the request, the candidates, the refused devices by reason, the dropped fields."""

    demand: tuple[str, tuple[Index, ...], tuple[tuple[str, tuple[Index, ...]], ...], str]


class DemandOfVersion1(Struct):
    """The same in files of version 1: the reason against each device, "" for candidates."""

    demand: tuple[str, tuple[Index, ...], tuple[str, ...], str]


class Note(Struct):
    """Why two nodes share a device: node, node, kind, text."""

    note: tuple[Index, Index, str, str]


class Node(Struct, array_like=True):
    """A node of the graph. Its inputs are node and output in turn; its outputs are element types and shapes."""

    name: str
    op: str
    inputs: tuple[Index, ...]
    controls: tuple[Index, ...]
    attrs: dict[str, Any]
    device: str
    colocation: tuple[str, ...]
    container: str
    line: Index
    outputs: tuple[tuple[str, Dims], ...]
    block: Annotated[int, Meta(ge=-1)]


class Placed(Struct):
    """Where a node is placed: device, rule, demand and group, or -1 for none."""

    placed: tuple[int, int, int, int]


class ChannelFields(Struct, forbid_unknown_fields=True):
    """The fields of a `Channel`, but for its number; devices are indices."""

    name: str
    source: Index
    destination: Index
    bytes: Annotated[int, Meta(ge=0, lt=1 << 62)]
    control: bool
    dtype: str | None
    dims: Dims
    relays: Index | None = None
    loop: str | None = None
    paces: bool = False
    direct: bool = False


class Channel(Struct):
    """A send/receive pair."""

    channel: ChannelFields


class Partition(Struct):
    """What a device runs: nodes as indices, sends `s0`, receives `r1`, one-sided reads `d1`, marks of loops `l0`, `t0`, `e0`."""

    partition: Index
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    loops: tuple[tuple[str, Index, tuple[Index, ...]], ...]
    steps: tuple[Index | str, ...]


class Predicated(Struct):
    """A node that may be dead, then its control inputs that may be: nodes, or receives `r1`."""

    predicated: tuple[Index | str, ...]


class Access(Struct):
    """One-sided access: whether it was found, (task, owner) of each that is used, (task, owner, variable) of each that is refused."""

    access: tuple[bool, tuple[tuple[str, str], ...], tuple[tuple[str, str, str], ...]]


class Solution(Struct):
    """The answer of the search: a device for each node that it placed, and what is known of it."""

    solution: tuple[Index, ...]
    objective: float
    bound: float
    minimized: Objective
    of_step: bool
    history: tuple[tuple[str, float, float], ...]


class End(Struct):
    """The last line: how many lines came before it."""

    end: int


KINDS: dict[str, type[Struct]] = {
    "device": Device, "link": Link, "profile": Profile, "line": Line, "block": Block, "demand": Demand, "note": Note, "placed": Placed,
    "channel": Channel, "partition": Partition, "predicated": Predicated, "access": Access, "solution": Solution, "end": End,
}  # fmt: skip
"""The first key of a record -> its type."""

OLD_KEYS = {"guarded": "predicated"}
"""First keys in older files -> those of today."""
