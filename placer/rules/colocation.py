"""Colocation groups: nodes that must share a device.

There are two reasons: a node takes a reference to a variable (a reference or resource edge), or the user requested it
(`colocate_with`). Both relations are equivalences, so groups are the classes of a union-find. Each group has one `Constraint`, which
merges the requests of its members (`constraints`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...graph.core.dtypes import resource
from ...graph.core.errors import InvalidArgumentError
from ...graph.core.graph import Node
from ...graph.core.opdef import OpDef
from ..cluster.spec import Cluster
from .constraints import ConflictError, Constraint, Constraints, is_state_source


class Note(NamedTuple):
    """A request that was relaxed while groups were formed: the node, the other node, and the kind."""

    node: int
    by: int
    kind: str  # "edge": a consumer follows a reference; "given up": a dropped type or index; "ignored": a colocation (saved in plans)
    text: str


class Groups:
    """The colocation groups of a graph: for each node (by index) its group's root, and the root's constraint.

    Attributes:
        constraints: the table that numbers refer to.
        number: per node the number of its constraint; what counts is the root's.
        notes: the relaxed requests.
        assigned: devices that stateful nodes keep from earlier steps, by node name.
    """

    def __init__(self, constraints: Constraints, size: int, assigned: Mapping[str, str]) -> None:
        self.constraints = constraints
        self.assigned = assigned
        self.number: list[int] = [-1] * size
        self.own: dict[tuple[OpDef, str, int], int] = {}
        self.notes: list[Note] = []
        self._parent: dict[int, int] = {}  # only nodes that share a group; all others are their own root

    def find(self, i: int) -> int:
        """The root of a node's group."""
        parent = self._parent
        root = parent.get(i, i)
        if root == i:
            return i
        while (above := parent.get(root, root)) != root:
            root = above
        while parent.get(i, i) != root:  # path compression
            i, parent[i] = parent[i], root
        return root

    def constraint(self, i: int) -> Constraint:
        """The constraint of a node's group."""
        return self.constraints[self.number[self.find(i)]]

    def join(self, a: int, b: int) -> None:
        """Make two nodes' groups one. Raises ConflictError, and changes nothing then."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        merged = self.constraints.merge(self.number[a], self.number[b])
        if self.constraints.drops_fields(self.number[a], self.number[b]):
            self.notes.append(
                Note(b, a, "given up", "the members of the group request several device types or indices")
            )
        # The lower index becomes the root, so that a group has one name whatever the order of joining.
        root, child = min(a, b), max(a, b)
        self._parent[child] = root
        self._parent.setdefault(root, root)
        self.number[root] = merged

    def __contains__(self, root: int) -> bool:
        """Whether a node shares its group with another."""
        return root in self._parent

    @property
    def shared(self) -> list[int]:
        """The nodes that share their group with another, in order."""
        return sorted(self._parent)

    def members(self, i: int) -> list[int]:
        """The nodes of a node's group, in order."""
        root = self.find(i)
        return [j for j in self.shared if self.find(j) == root] or [i]


class UnplaceableError(Exception):
    """A conflict: `reason`, the `node` at which it was found, and the `other` node that it cannot be colocated with, or None.

    `edge` says that a reference or resource edge joins them, rather than the user's colocation.
    """

    def __init__(self, reason: str, node: Node, other: Node | None = None, *, edge: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.node, self.other, self.edge = reason, node, other, edge


def form_groups(
    nodes: Sequence[Node], size: int, cluster: Cluster, assigned: Mapping[str, str], soft: bool
) -> tuple[Groups, UnplaceableError | None]:
    """Group the nodes, and merge the constraints of each group.

    Args:
        nodes: the nodes to place, in order of creation.
        size: one more than the highest node index.
        assigned: devices that stateful nodes keep from earlier steps, by node name.
        soft: whether conflicting device types and indices are dropped; if not, they are an error.

    Returns:
        the groups, and the first conflict, if any; the groups then are in the state in which it was found.
    """
    groups = Groups(Constraints(cluster, soft), size, assigned)
    try:
        _start(groups, nodes, assigned)
        _follow_references(groups, nodes)
        _follow_colocations(groups, nodes)
    except UnplaceableError as e:
        return groups, e
    return groups, None


def _start(groups: Groups, nodes: Sequence[Node], assigned: Mapping[str, str]) -> None:
    known: dict[tuple[OpDef, str, bool], int] = {}
    number, constraints = groups.number, groups.constraints
    for node in nodes:
        opdef = node.opdef
        if assigned and node.name in assigned and opdef.is_stateful:
            number[node.index] = _start_one(constraints, node, assigned[node.name])
            continue
        key = (opdef, node.device, not node.inputs and is_state_source(node))
        found = known.get(key)
        if found is None:
            found = known[key] = _start_one(constraints, node, None)
        number[node.index] = found


def _start_one(constraints: Constraints, node: Node, assigned: str | None) -> int:
    try:
        return constraints.start(node, assigned)
    except InvalidArgumentError as e:
        raise UnplaceableError(e.message, node) from None
    except ConflictError as e:
        raise UnplaceableError(str(e), node) from None


def _follow_references(groups: Groups, nodes: Sequence[Node]) -> None:
    """A node that takes a reference is colocated with its source, whose request has precedence."""
    number, constraints = groups.number, groups.constraints
    for node in nodes:
        refs = node.opdef.ref_inputs
        for i, tensor in enumerate(node.inputs):
            dtype = tensor.dtype
            if dtype is not resource and not (dtype.is_ref and i in refs):
                continue
            source = tensor.op
            if number[source.index] < 0:  # left out of this placement (fed)
                continue
            a, b = groups.find(source.index), groups.find(node.index)
            if a == b:
                continue
            try:
                followed = constraints.follow(number[a], number[b])
            except ConflictError as e:
                raise UnplaceableError(str(e), node, source, edge=True) from None
            if followed != number[b]:
                # The request that is dropped is the whole group's: the text names the node that is to blame.
                text = f"'{node.name}' takes a reference to '{source.name}', and is colocated with it"
                groups.notes.append(Note(node.index, source.index, "edge", text))
                number[b] = followed
            try:
                groups.join(a, b)
            except ConflictError as e:
                raise UnplaceableError(
                    "Nodes were connected by a reference connection (requiring them to be on the same "
                    f"device), but the two nodes were assigned two different devices: {e}",
                    node, source, edge=True,
                ) from None  # fmt: skip


def _follow_colocations(groups: Groups, nodes: Sequence[Node]) -> None:
    """Nodes of one named colocation group are together; a node also belongs to the group of its own name."""
    named: set[str] = set()
    for node in nodes:
        if node.colocation:
            named.update(node.colocation)
    if not named:
        return
    first: dict[str, Node] = {}  # group name -> the first node seen with it
    for node in nodes:
        colocation = node.colocation
        if not colocation and node.name not in named:
            continue
        for name in (*colocation, node.name):
            other = first.setdefault(name, node)
            if other is node:
                continue
            try:
                groups.join(node.index, other.index)
            except ConflictError as e:
                if not groups.constraints.soft:
                    raise UnplaceableError(
                        f"Cannot colocate nodes '{node.name}' and '{other.name}'{e.clause}", node, other
                    ) from None
                groups.notes.append(
                    Note(
                        node.index,
                        other.index,
                        "ignored",
                        f"Ignoring request to colocate '{node.name}' with '{other.name}'{e.clause}",
                    )
                )
