"""The branches and loops of a graph: which node is in which, and what the graph guarantees while a loop is built.

A node that is made inside a branch or loop takes the tensors inside in place of those outside (`let_in`), and cannot be fed or fetched. A
node outside cannot take a tensor of one iteration (`keep_out`). A loop closes last: its back edge, the only data edge against the order of
creation, replaces an input of its Merge (`close_loop`).

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
        lock: held while the graph changes; the thread that holds it may take it again.

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
        """The branch or loop in which a node's outputs are; None outside all. A loop's Exits are outside it."""
        return self.homes.get(node)

    def let_in(self, node: Node, scopes: Scopes, places: Sequence[Node]) -> None:
        """Replace the inputs of a node that is made inside a branch or loop by the tensors inside.

        Args:
            places: variables to which the node takes references.
        """
        flow = scopes.flow
        assert flow is not None
        # What is made on the way is named under the node (a Const, in TensorFlow, has no scope of its own), and goes with it
        # where it takes a variable's place.
        saved = scopes.name, scopes.device, scopes.colocation
        if node.opdef.name != "Const":
            scopes.name = node.name
        if places:
            scopes.device, scopes.colocation = None, (*scopes.colocation, *places)
        try:
            node.inputs, node.controls = flow.admit(node, node.inputs, node.controls)
        finally:
            scopes.name, scopes.device, scopes.colocation = saved
        if flow.home is not None:
            self.homes[node] = flow.home
            self._table.unfetchable.add(node)
            self._table.unfeedable.update(node.outputs)

    def keep_out(self, node: Node) -> None:
        """Refuse a node outside all loops that takes a tensor of one iteration."""
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
        """A context in which a loop is built. Until it is left, other threads wait, and the graph cannot be saved or sent."""
        with self._lock:
            self._open_loops += 1
            try:
                yield
            finally:
                self._open_loops -= 1

    @property
    def has_open_loops(self) -> bool:
        """Whether a loop is being built: its Merges do not have their second inputs yet."""
        return self._open_loops > 0

    def close_loop(self, merge: Node, next_iteration: Node) -> None:
        """Add a loop's back edge: the NextIteration replaces the second input of the variable's Merge, so far an Enter."""
        merge.inputs = (merge.inputs[0], next_iteration.outputs[0])

    def move_before(self, node: Node, inputs: Sequence[Node]) -> None:
        """Number nodes, and those of what they take that are newer than `node`, before it, so that it may take them.

        Only while a loop is being built, which nothing else has seen: other nodes get new numbers.
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
