"""The branches and loops of a graph: which node is in which, and invariants while a loop is built.

The inputs of a node that is created inside a branch or loop are replaced by the tensors inside (`let_in`). It cannot be fed or fetched. A
node outside cannot take a tensor of one iteration (`keep_out`). The back edge of a loop is added at the end (`close_loop`). It is the only
data edge from a later node to an earlier one, and replaces an input of a Merge.

`graph.py` defines `Node` and imports this module, and `control_flow/contexts.py` defines `FlowContext`, so they are `Any` here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

from .node_table import NodeTable
from .scopes import Scopes

Node: TypeAlias = Any
FlowContext: TypeAlias = Any


class FlowTable:
    """The branches and loops of one graph.

    Args:
        table: the nodes of the graph.
        lock: a reentrant lock that is held while the graph changes.

    Attributes:
        homes: node inside a branch or loop -> its `FlowContext`.
    """

    __slots__ = ("_lock", "_open_loops", "_table", "homes")

    def __init__(self, table: NodeTable, lock: AbstractContextManager[Any]) -> None:
        self._table = table
        self._lock = lock
        self._open_loops = 0  # loops whose last iteration edge is still missing
        self.homes: dict[Node, FlowContext] = {}

    def __bool__(self) -> bool:
        """Whether there are branches or loops."""
        return bool(self.homes)

    def of(self, node: Node) -> FlowContext:
        """The branch or loop in which a node's outputs are, or None. The Exits of a loop are outside it."""
        return self.homes.get(node)

    def let_in(self, node: Node, scopes: Scopes, variables: Sequence[Node]) -> None:
        """Replace the inputs of a node that is created inside a branch or loop by the tensors inside.

        Args:
            node: the node.
            scopes: the open blocks.
            variables: variables to which the node takes references.
        """
        flow = scopes.flow
        assert flow is not None
        # Nodes that are created for this are named under the node, except for a Const, as in TensorFlow. If the node takes references to
        # variables, they are colocated with these, too.
        saved = scopes.name, scopes.device, scopes.colocation
        if node.opdef.name != "Const":
            scopes.name = node.name
        if variables:
            scopes.device, scopes.colocation = None, (*scopes.colocation, *variables)
        try:
            node.inputs, node.controls = flow.admit(node, node.inputs, node.controls)
        finally:
            scopes.name, scopes.device, scopes.colocation = saved
        if flow.home is not None:
            self.homes[node] = flow.home
            self._table.unfetchable.add(node)
            self._table.unfeedable.update(node.outputs)

    def keep_out(self, node: Node) -> None:
        """ValueError if a node outside all loops takes a tensor of one iteration."""
        for before in node.before:
            home = self.homes.get(before)
            if home is not None and home.loop is not None:
                raise ValueError(
                    f"'{node.name}' ({node.type}) at {node.source} is outside {home.loop.name} but takes '{before.name}' (created at "
                    f"{before.source}), which has one value per iteration; make it a loop variable, and use what while_loop returns"
                )

    def put_in(self, homes: Mapping[Node, FlowContext]) -> None:
        """Set the branch or loop of nodes that were added without one."""
        self.homes.update(homes)

    @contextmanager
    def building_loop(self) -> Iterator[None]:
        """A context in which a loop is built. Inside it, other threads wait, and the graph cannot be saved or sent."""
        with self._lock:
            self._open_loops += 1
            try:
                yield
            finally:
                self._open_loops -= 1

    @property
    def has_open_loops(self) -> bool:
        """Whether a loop is being built, so that its Merges do not have their second inputs yet."""
        return self._open_loops > 0

    def close_loop(self, merge: Node, next_iteration: Node) -> None:
        """Add a loop's back edge: replace the second input of a Merge by a NextIteration."""
        merge.inputs = (merge.inputs[0], next_iteration.outputs[0])

    def move_before(self, node: Node, inputs: Sequence[Node]) -> None:
        """Move nodes and their newer inputs before `node` in the order of creation, so that it may take them as inputs.

        This renumbers other nodes. So it is allowed only while a loop is being built.
        """
        with self._lock:
            moved: set[Node] = set()
            todo = list(inputs)
            while todo:
                before = todo.pop()
                if before.index > node.index and before not in moved:
                    moved.add(before)
                    todo += before.before
            if moved:
                nodes = self._table.nodes
                rest = [n for n in nodes[node.index :] if n not in moved]
                nodes[node.index :] = [*sorted(moved, key=lambda n: n.index), *rest]
                for index in range(node.index, len(nodes)):
                    nodes[index].index = index
