"""Placement constraints: the merged request of each colocation group, and the devices of the cluster that meet it.

A `Constraint` is the sum of the requests of a group's members (`groups`). Merging two merges them field by field and intersects their
device types; a contradiction is an error, found at the first pair that shows it.

Almost all nodes of a large graph are in no group but their own, and ask for one of a few devices. So
constraints are interned: a node keeps a small number, `start` and `merge` work once per distinct case, and
the candidate devices are found once per distinct constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...graph.core.device import DeviceFields, DeviceSpec, is_compatible, merge, override, parse_strict
from ...graph.core.dtypes import resource
from ...graph.core.errors import InternalError, InvalidArgumentError
from ...graph.core.graph import Node
from ...graph.core.opdef import Trait
from ..cluster.spec import Cluster

ANYWHERE = DeviceSpec()


def type_rank(device_type: str) -> tuple[int, str]:
    """Sort key of a device type where no op says otherwise: GPU first, CPU last."""
    return {"GPU": 0, "CPU": 2}.get(device_type, 1), device_type


def is_state_source(node: Node) -> bool:
    """Whether the node gives out a place of state: no inputs, one output of reference or resource type."""
    return (
        not node.inputs
        and len(node.outputs) == 1
        and (node.outputs[0].dtype.is_ref or node.outputs[0].dtype is resource)
    )


def is_generator(node: Node) -> bool:
    """Whether the node is a source of one value (Const, Placeholder, a handle)."""
    return not node.inputs and len(node.outputs) == 1 and not node.outputs[0].dtype.is_ref


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the members of a group demand together.

    Attributes:
        requested: the merged request; sets all that `resource` and `assigned` set.
        resource: what was requested for a place of state, which soft placement should not change.
        assigned: the device that a member has had since an earlier step.
        types: device types for which every member has a kernel, best first.
        on_master: whether a member is bound to the process of the client, so to the master's task.
    """

    requested: DeviceSpec
    resource: DeviceSpec
    assigned: DeviceSpec
    types: tuple[str, ...]
    on_master: bool


@dataclass(frozen=True)  # no slots: the cached set lives in the instance
class Candidates:
    """The devices that a constraint admits.

    Attributes:
        devices: numbers of `Cluster.devices`, best first.
        given_up: what soft placement gave up to get them, in words; '' when nothing.
    """

    devices: tuple[int, ...]
    given_up: str

    @property
    def first(self) -> int:
        return self.devices[0]

    @cached_property
    def as_set(self) -> frozenset[int]:
        """The same devices, to ask for one of thousands."""
        return frozenset(self.devices)


class ConflictError(Exception):
    """Two constraints that cannot hold together. `clause` is the reason, to be put behind what cannot be done."""

    @property
    def clause(self) -> str:
        text = str(self)
        return f" because {text}" if text.startswith("no device type") else f": {text}"


class Constraints:
    """The distinct constraints of one placement, by number. The table grows, the numbers stay."""

    def __init__(self, cluster: Cluster, soft: bool) -> None:
        self.cluster = cluster
        self.soft = soft
        self._all: list[Constraint] = []
        self._ids: dict[Constraint, int] = {}
        self._merged: dict[tuple[int, int], int] = {}
        self._candidates: dict[int, Candidates] = {}
        self._ranks: dict[tuple[str, ...], list[int]] = {}
        self._types_present = {d.name.device_type for d in cluster.devices}

    def __getitem__(self, number: int) -> Constraint:
        return self._all[number]

    def _number(self, constraint: Constraint) -> int:
        number = self._ids.get(constraint)
        if number is None:
            number = self._ids[constraint] = len(self._all)
            self._all.append(constraint)
        return number

    def start(self, node: Node, assigned: str | None) -> int:
        """The constraint of a node by itself.

        Raises:
            InvalidArgumentError: its request is malformed.
            InternalError: the device that it has had is no device of the cluster, or has no kernel for it.
            ConflictError: no device in the cluster has a kernel for it.
        """
        types = tuple(t for t in node.opdef.device_types if t in self._types_present)
        on_master = Trait.HOST_ONLY in node.opdef.traits
        if assigned is not None:
            spec = self._kept(node, assigned, types)
            return self._number(Constraint(spec, ANYWHERE, spec, types, on_master))
        request = parse_strict(node.device)
        if not types:
            raise ConflictError(
                f"No OpKernel was registered to support Op '{node.type}': it runs on "
                f"{_and(node.opdef.device_types)}, and the cluster's devices are of type "
                f"{_and(sorted(self._types_present))}"
            )
        return self._number(
            Constraint(request, request if is_state_source(node) else ANYWHERE, ANYWHERE, types, on_master)
        )

    def _kept(self, node: Node, assigned: str, types: Sequence[str]) -> DeviceSpec:
        """The device that a node has had since an earlier step. Only Dovetail itself can get it wrong."""
        try:
            spec = parse_strict(assigned)
        except InvalidArgumentError as e:
            text = f"Malformed assigned device '{assigned}': {e.message}"
            raise InternalError(node, node, text) from None
        if str(spec) not in self.cluster:
            raise InternalError(node, node, f"Assigned device '{assigned}' does not match any device")
        if spec.device_type not in types:
            text = f"Assigned device '{assigned}' does not have registered OpKernel support for {node.type}"
            raise InternalError(node, node, text)
        return spec

    def merge(self, a: int, b: int) -> int:
        """The constraint of two groups that become one. Raises ConflictError."""
        if a == b:
            return a
        found = self._merged.get((a, b))
        if found is None:
            found = self._merged[a, b] = self._number(self._merge(self._all[a], self._all[b]))
        return found

    def _merge(self, a: Constraint, b: Constraint) -> Constraint:
        try:
            assigned = merge(a.assigned, b.assigned)
            resource_ = merge(a.resource, b.resource)
            requested = merge(a.requested, b.requested, soft=self.soft)
        except InvalidArgumentError as e:
            raise ConflictError(e.message) from None
        types = _common_types(a.types, b.types)
        if not types:
            raise ConflictError(
                "no device type supports both of those nodes and the other nodes colocated with them: "
                f"{_and(a.types)} on one side, {_and(b.types)} on the other"
            )
        return Constraint(
            override(override(requested, assigned), resource_),
            resource_,
            assigned,
            types,
            a.on_master or b.on_master,
        )

    def follow(self, source: int, consumer: int) -> int:
        """The constraint of a consumer of a place: where its request contradicts the source's, the source's.

        Raises:
            ConflictError: two places, or two devices from earlier steps, contradict each other.
        """
        src, dst = self._all[source], self._all[consumer]
        for kind, mine, theirs in (
            ("assigned", src.assigned, dst.assigned),
            ("resource", src.resource, dst.resource),
        ):
            if not is_compatible(mine, theirs):
                raise ConflictError(
                    "Cannot place the graph because a reference or resource edge connects colocation groups "
                    f"with incompatible {kind} devices: {mine} vs. {theirs}"
                )
        if is_compatible(src.requested, dst.requested):
            return consumer
        requested = override(override(src.requested, dst.assigned), dst.resource)
        return self._number(Constraint(requested, dst.resource, dst.assigned, dst.types, dst.on_master))

    def gives_up(self, a: int, b: int) -> bool:
        """Whether merging two groups gives up a device type or index (soft placement only)."""
        return self.soft and not is_compatible(self._all[a].requested, self._all[b].requested)

    def candidates(self, number: int) -> Candidates:
        """The devices that a constraint admits; none when it cannot be met."""
        found = self._candidates.get(number)
        if found is None:
            found = self._candidates[number] = self._find_candidates(self._all[number])
        return found

    def _find_candidates(self, c: Constraint) -> Candidates:
        devices = self._admitted(c.requested, c)
        if devices or not self.soft:
            return Candidates(devices, "")
        for fixed, what in (((c.assigned, c.resource), ""), ((c.assigned,), ", also for variables")):
            relaxed = c.requested
            if all(f.device_type is None for f in fixed):
                relaxed = relaxed.replace(device_type=None)
            if all(f.device_index is None for f in fixed):
                relaxed = relaxed.replace(device_index=None)
            devices = self._admitted(relaxed, c)
            if devices:
                return Candidates(devices, f"{self.why_none(c.requested, c)}; device type and index were dropped{what}")
        return Candidates((), "")

    def if_soft(self, a: Constraint, b: Constraint | None = None) -> Candidates | None:
        """What soft placement would admit for one constraint, or two together; None when they stay apart."""
        soft = Constraints(self.cluster, True)
        try:
            return soft._find_candidates(a if b is None else soft._merge(a, b))
        except ConflictError:
            return None

    def _admitted(self, spec: DeviceFields, c: Constraint) -> tuple[int, ...]:
        found = [i for i in self.cluster.numbers(spec) if not self._why_unable(i, c)]
        if len(found) > 1:
            found.sort(key=self._rank(c.types).__getitem__)
        return tuple(found)

    def _rank(self, types: tuple[str, ...]) -> list[int]:
        """Device -> its place in the order of preference, which depends on the types and on nothing else of a constraint."""
        rank = self._ranks.get(types)
        if rank is None:
            ordered = sorted(range(len(self.cluster.devices)), key=lambda i: self._preference(i, types))
            rank = self._ranks[types] = [0] * len(ordered)
            for place, i in enumerate(ordered):
                rank[i] = place
        return rank

    def _preference(self, device: int, types: Sequence[str]) -> tuple[bool, str, int, str]:
        """The master's task first, then tasks by name; in a task the best device type, then devices by name.

        TensorFlow puts the device type before the task, so that a node without a request goes to some other
        task's GPU when the master has none. Here it stays with the master, as users are promised. Where all
        tasks have devices of the same types, both orders choose the same device.
        """
        name = self.cluster.devices[device].name
        best = types.index(name.device_type) if name.device_type in types else len(types)
        return name.task_name != self.cluster.master, name.task_name, best, str(name)

    def refused(self, number: int) -> dict[str, list[int]]:
        """The devices that meet a constraint's request and are no candidates for another reason, by this reason."""
        c, chosen = self._all[number], self.candidates(number).as_set
        found: dict[str, list[int]] = {}
        for device in self.cluster.numbers(c.requested):
            if device not in chosen:
                found.setdefault(self._why_unable(device, c), []).append(device)
        return found

    def _why_unable(self, device: int, c: Constraint) -> str:
        """Why nodes of a constraint cannot run on a device, whatever they request; '' when they can."""
        name = self.cluster.devices[device].name
        if name.device_type not in c.types:
            return f"no kernel for {name.device_type}"
        if c.on_master and name.task_name != self.cluster.master:
            return "bound to the client's own process, the master's task"
        return ""

    def why_none(self, spec: DeviceFields, c: Constraint) -> str:
        """Why no device is left, in words."""
        found = self.cluster.matching(spec)
        if not found:
            return f"no device matches '{spec}'"
        kinds = sorted({d.name.device_type for d in found})
        if not set(kinds) & set(c.types):
            return f"no supported kernel for {_and(kinds)} devices is available"
        return (
            f"'{spec}' is not on the master's task {self.cluster.master}, "
            "and what runs a function of the client's process is bound to it"
        )


def _common_types(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """Types in both. Who prefers another order than the default one decides about it, unless the other does, too.

    >>> _common_types(("CPU", "GPU"), ("GPU", "CPU"))
    ('CPU', 'GPU')
    """
    default = tuple(sorted((t for t in a if t in b), key=type_rank))
    preferred = {tuple(t for t in a if t in b), tuple(t for t in b if t in a)} - {default}
    return preferred.pop() if len(preferred) == 1 else default


def _and(words: Sequence[str]) -> str:
    return " and ".join(words) or "nothing"
