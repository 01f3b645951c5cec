"""The static cost summary of a plan: state and work of each device, traffic of each link.

Sizes are those of the plan (`shapes.py`); an unknown size counts as 1, so a sum over unknown sizes is a lower bound
(`exact` is False then).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from ...graph.core.constant_value import is_folded
from ...graph.core.graph import Node
from ...graph.core.opdef import Cost, Trait, has_known_bytes, nbytes
from ..partition.partitioned_graph import Channel, Partition


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What one device holds and does.

    Attributes:
        device: complete name.
        nodes: nodes that it runs in the step.
        variables: places of state that it holds, whether the step uses them or not.
        variable_bytes: their bytes.
        exact: whether all sizes are known.
    """

    device: str
    nodes: int
    variables: int
    variable_bytes: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """What crosses one link in a step.

    Attributes:
        source: complete name of the sending device. destination: of the receiving one.
        tensors: values. control: empty messages for control edges. bytes: of the values.
        exact: whether all sizes are known.
    """

    source: str
    destination: str
    tensors: int
    control: int
    bytes: int
    exact: bool


def device_loads(partitions: Mapping[str, Partition], placed: Iterable[tuple[str, Node]]) -> list[DeviceLoad]:
    """A row for each device that runs a node or stores a variable, by name; `placed`: every node with its device."""
    variables: dict[str, list[Node]] = {}
    for device, node in placed:
        if Trait.STATE_HANDLE in node.opdef.traits:
            variables.setdefault(device, []).append(node)
    rows = []
    for device in sorted(variables.keys() | partitions.keys()):
        sizes = [state_bytes(n) for n in variables.get(device, ())]
        nodes = sum(kind == "node" for kind, _ in partitions[device].steps) if device in partitions else 0
        rows.append(DeviceLoad(device, nodes, len(sizes), sum(b for b, _ in sizes), all(exact for _, exact in sizes)))
    return rows


def state_bytes(node: Node) -> tuple[int, bool]:
    """Bytes of the state behind a place, and whether all sizes are known."""
    dtype, dims = node.attrs.get("dtype"), node.attrs.get("shape")
    if dtype is None:
        return 0, False
    count = 1
    for d in dims or ():
        count *= 1 if d is None else d
    return count * dtype.size, has_known_bytes(dtype, dims)


def repeated(partitions: Iterable[Partition]) -> frozenset[int]:
    """Numbers of the channels inside loops: what they carry crosses once per iteration."""
    found: set[int] = set()
    for p in partitions:
        depth = 0
        for kind, what in p.steps:
            depth += (kind == "loop") - (kind == "end")
            if depth and isinstance(what, Channel):
                found.add(what.id)
    return frozenset(found)


def traffic(channels: Iterable[Channel], repeated: Collection[int] = ()) -> list[Traffic]:
    """One row for each pair of devices between which something crosses, most bytes first.

    Args:
        repeated: numbers of channels inside loops; they count as one iteration, so a lower bound.
    """
    links: dict[tuple[str, str], list[Channel]] = {}
    for c in channels:
        links.setdefault((c.source, c.destination), []).append(c)
    rows = [
        Traffic(
            source, destination,
            tensors=sum(not c.control for c in crossing),
            control=sum(c.control for c in crossing),
            bytes=sum(c.bytes for c in crossing),
            exact=all(c.is_exact and c.id not in repeated for c in crossing),
        )
        for (source, destination), crossing in links.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda t: (-t.bytes, t.source, t.destination))


def work(nodes: Iterable[Node], cost_of: Callable[[Node], Cost]) -> Cost:
    """Arithmetic operations and bytes moved through memory by one execution of all nodes, inputs first.

    Constants do not run, nor does what compilers compute of them beforehand.
    """
    flops = moved = 0.0
    constants: dict[Node, int] = {}  # -> bytes
    for node in nodes:
        cost = cost_of(node)
        taken = [constants.get(t.op, -1) for t in node.inputs]
        if node.type == "Const" or (min(taken, default=-1) >= 0 and is_folded(node, sum(taken), cost.flops)):
            constants[node] = sum(map(nbytes, node.outputs))
            continue
        flops += cost.flops
        moved += cost.bytes
    return Cost(flops, moved)
