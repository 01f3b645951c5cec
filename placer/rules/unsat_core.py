"""The unsatisfiable core of conflicting requests, and the changes that would resolve the conflict.

Each member of a colocation group allows a set of devices: those that match its request, for which its op has a kernel, and which its
process can reach. The group can be placed if the sets intersect. If they do not, a *smallest contradiction* is a subset with the fewest
members whose sets do not intersect: without any one of its members, the others agree. A user resolves the conflict by changing one of
these requests, so the error shows these.

Sets are bits of integers, and members with equal sets count once: a large group has few distinct sets. The search tries pairs, then
triples. Beyond that it removes members one by one until the subset is irreducible, as in Junker's QuickXplain (AAAI 2004), but without
its divide and conquer, because few sets are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from itertools import combinations
from operator import and_

from ...graph.core.device import DeviceName, DeviceSpec, parse_strict
from ...graph.core.dtypes import resource
from ...graph.core.graph import Node
from ...graph.core.opdef import Trait
from ..cluster.spec import Cluster
from .constraints import type_rank

FIELDS = {"device_index": 1, "device_type": 2, "task": 4, "job": 8, "replica": 16}
"""The cost of another value of a field than the requested one: another GPU of a task is near, another job is
far. Each cost outweighs all smaller ones together."""
MANY = 48  # distinct sets beyond which triples are not tried: there would be more than 17,000


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a group, with what it allows.

    Attributes:
        node: the node.
        request: its own request; empty if a colocation set it, or if it was relaxed.
        allowed: bit i: whether it may be on the cluster's device i.
        able: the same without its request.
        follows: index of the node whose request its own yields to, or comes from; its own index when none.
        kept: an earlier step assigned it to the device that `request` names, regardless of its own request.
    """

    node: Node
    request: DeviceSpec
    allowed: int
    able: int
    follows: int
    kept: bool = False


def members(
    nodes: Sequence[Node], cluster: Cluster, overruled: Collection[int] = (), assigned: Mapping[str, str] | None = None
) -> list[Member]:
    """What each node allows, and each node from which one of them has its request by colocation.

    Args:
        overruled: indices of nodes whose requests no longer count.
        assigned: devices that stateful nodes keep from earlier steps, by node name.
    """
    devices, assigned = cluster.devices, assigned or {}
    requests: dict[str, tuple[DeviceSpec, int]] = {}
    able: dict[str, int] = {}
    follows: dict[int, int] = {}
    every = {n.index: n for n in nodes}
    for node in nodes:
        requester = _requester(node)
        every[requester.index] = requester
        follows[node.index] = requester.index if requester is not node else _reference_source(node, every)
    found = []
    for i, node in sorted(every.items()):
        leader = i
        while follows.get(leader, leader) != leader:
            leader = follows[leader]
        kept = node.opdef.is_stateful and node.name in assigned
        text = assigned[node.name] if kept else "" if i in overruled or _requester(node) is not node else node.device
        if text not in requests:
            spec = parse_strict(text)
            requests[text] = spec, sum(1 << i for i in cluster.numbers(spec))
        if node.type not in able:
            at_master = Trait.HOST_ONLY in node.opdef.traits
            able[node.type] = _bits(
                d.name.device_type in node.opdef.device_types and (not at_master or d.name.task_name == cluster.master)
                for d in devices
            )
        spec, mask = requests[text]
        found.append(Member(node, spec, mask & able[node.type], able[node.type], leader, kept))
    return found


def _requester(node: Node) -> Node:
    """The node whose request a node has: `colocate_with` copies a request."""
    seen = {node.name}
    while node.device:
        peers = [node.graph.get_operation_by_name(c) for c in node.colocation if c in node.graph and c not in seen]
        peer = next((p for p in peers if p.device == node.device), None)
        if peer is None:
            break
        seen.add(peer.name)
        node = peer
    return node


def _reference_source(node: Node, group: Collection[int]) -> int:
    """Index of the node of the group to which a node takes a reference; its own if there is none."""
    for i, t in enumerate(node.inputs):
        if (t.dtype is resource or (t.dtype.is_ref and i in node.opdef.ref_inputs)) and t.op.index in group:
            return t.op.index
    return node.index


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def smallest_contradiction(group: Sequence[Member]) -> list[Member]:
    """A fewest-member subset that allows no device in common, in order of creation; empty when all agree."""
    distinct = list({m.allowed: m for m in reversed(group)}.values())[::-1]  # the first of each kind
    if not group or _common(distinct):
        return []
    for size in (1, 2, 3) if len(distinct) <= MANY else (1, 2):
        for core in combinations(distinct, size):
            if not _common(core):
                return list(core)
    kept = distinct
    for m in distinct:
        fewer = [k for k in kept if k is not m]
        if fewer and not _common(fewer):
            kept = fewer
    return kept


def _common(group: Sequence[Member]) -> int:
    return reduce(and_, (m.allowed for m in group), -1)


def nearest(request: DeviceSpec, able: int, cluster: Cluster) -> tuple[DeviceName, list[str]] | None:
    """The device closest to a request among those of the bits `able`, and where it differs.

    A job that is not there may be a slip: one whose name is like it is closer than all others.
    """
    best: tuple[int, DeviceName, list[str]] | None = None
    like = set(get_close_matches(request.job or "", {d.name.job for d in cluster.devices}))
    for i, d in sorted(enumerate(cluster.devices), key=lambda pair: _preference(pair[1].name, cluster)):
        if able >> i & 1:
            differs = [f for f in FIELDS if getattr(request, f) not in (None, getattr(d.name, f))]
            cost = sum(FIELDS[f] for f in differs)
            if "job" in differs and like and d.name.job not in like:
                cost += FIELDS["job"]
            if best is None or cost < best[0]:
                best = cost, d.name, differs
    return None if best is None else best[1:]


def _preference(name: DeviceName, cluster: Cluster) -> tuple[bool, str, tuple[int, str], str]:
    """The placer's order of candidates, so that of near devices the one is named that would be chosen."""
    return name.task_name != cluster.master, name.task_name, type_rank(name.device_type), str(name)


def remedies(core: Sequence[Member], group: Sequence[Member], cluster: Cluster) -> Iterator[str]:
    """Changes of one request that resolve a conflict, the smallest first, each with the device that the group gets.

    Args:
        core: the smallest contradiction. group: all members that must share a device.
    """
    if {d.name.job for d in cluster.devices} == {"localhost"}:
        absent = next((m.request for m in core if m.request.job not in (None, "localhost")), None)
        if absent is not None:
            yield (
                f"use a cluster that has job '{absent.job}', instead of this process only: "
                f'dt.compile(cluster={{"{absent.job}": {(absent.task or 0) + 1}}}), or a session with the target of a server'
            )
    found: list[tuple[int, str]] = []
    for m in core:
        # A node that has its request from this one, or follows it, moves with it.
        i = m.node.index
        rest = reduce(and_, (g.able if g.follows == i else g.allowed for g in group if g.node is not m.node), m.able)
        if m.kept or not rest:
            continue  # its state cannot move; or other members conflict, too, so that changing this request alone does not help
        near = nearest(m.request, rest, cluster)
        assert near is not None  # some bit of `rest` is set
        device, differs = near
        request = m.request.replace(**{f: getattr(device, f) for f in differs})
        cost = sum(FIELDS[f] for f in differs)
        if differs == ["device_index"] and m.request.device_type == "CPU":
            count = f'ConfigProto(device_count={{"CPU": {(m.request.device_index or 0) + 1}}})'
            found.append(
                (0, f"give {device.task_name} so many CPU devices: {count}, as config= of its server or session")
            )
        all_of = "it" if len(group) == 1 else f"all {len(group)}"
        found.append((cost, f"request '{request}' for '{m.node.name}': then {all_of} can be on {device}"))
    yield from (text for _, text in sorted(found, key=lambda pair: pair[0]))
