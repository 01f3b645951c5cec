"""Placement constraints: the merged request of each colocation group, and the devices of the cluster that meet it.

A `Constraint` merges the requests of a group's members (`colocation`). Two constraints are merged field by field, and their device types
are intersected. A conflict is an error, found at the first pair that shows it.

Almost all nodes of a large graph are alone in their group, and request one of a few devices. So constraints
are interned: a node keeps a small number, `start` and `merge` work once per distinct case, and
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
    """Whether the node outputs a reference or handle of state: no inputs, one output of reference or resource type."""
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
    """The merged constraint of a group.

    Attributes:
        requested: the merged request; it includes the fields of `resource` and `assigned`.
        resource: the request of a variable, which soft placement should not change.
        assigned: the device that a member was assigned in an earlier step.
        types: the device types for which all members have kernels, best first.
        on_master: whether a member is bound to the process of the client, so to the master's task.
    """

    requested: DeviceSpec
    resource: DeviceSpec
    assigned: DeviceSpec
    types: tuple[str, ...]
    on_master: bool


@dataclass(frozen=True)  # no slots: the cached set lives in the instance
class Candidates:
    """The devices that satisfy a constraint.

    Attributes:
        devices: numbers of `Cluster.devices`, best first.
        dropped: the fields that soft placement dropped to get them, as text; '' if none.
    """

    devices: tuple[int, ...]
    dropped: str

    @property
    def first(self) -> int:
        return self.devices[0]

    @cached_property
    def as_set(self) -> frozenset[int]:
        """The same devices, for membership tests."""
        return frozenset(self.devices)


class ConflictError(Exception):
    """Two constraints conflict. `clause` is the reason, to be appended to a message."""

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
        """The device that a node was assigned in an earlier step. A wrong one is an error of Dovetail."""
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
        """The constraint of a consumer of a reference: if its request conflicts with the source's, that of the source.

        Raises:
            ConflictError: two variables, or two devices from earlier steps, conflict.
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

    def drops_fields(self, a: int, b: int) -> bool:
        """Whether merging two groups drops a device type or index (soft placement only)."""
        return self.soft and not is_compatible(self._all[a].requested, self._all[b].requested)

    def candidates(self, number: int) -> Candidates:
        """The devices that satisfy a constraint; none if it cannot be satisfied."""
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
        """The candidates of one constraint, or of two merged ones, under soft placement; None if they conflict."""
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
        """The devices that match a constraint's request but are excluded, by reason."""
        c, chosen = self._all[number], self.candidates(number).as_set
        found: dict[str, list[int]] = {}
        for device in self.cluster.numbers(c.requested):
            if device not in chosen:
                found.setdefault(self._why_unable(device, c), []).append(device)
        return found

    def _why_unable(self, device: int, c: Constraint) -> str:
        """Why nodes of a constraint cannot run on a device, regardless of their request; '' if they can."""
        name = self.cluster.devices[device].name
        if name.device_type not in c.types:
            return f"no kernel for {name.device_type}"
        if c.on_master and name.task_name != self.cluster.master:
            return "bound to the client's own process, the master's task"
        return ""

    def why_none(self, spec: DeviceFields, c: Constraint) -> str:
        """Why no device satisfies a constraint, as text."""
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
    """The types in both. If only one of the two has another order than the default one, its order is used.

    >>> _common_types(("CPU", "GPU"), ("GPU", "CPU"))
    ('CPU', 'GPU')
    """
    default = tuple(sorted((t for t in a if t in b), key=type_rank))
    preferred = {tuple(t for t in a if t in b), tuple(t for t in b if t in a)} - {default}
    return preferred.pop() if len(preferred) == 1 else default


def _and(words: Sequence[str]) -> str:
    return " and ".join(words) or "nothing"
