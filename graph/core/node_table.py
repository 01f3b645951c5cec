"""The nodes of a graph by order and by name, the look-up of names, and the graph's collections.

`add` is a node's name, `add:0` that of its first output. `graph.py` defines `Node` and `Tensor` and imports this module, so they are
`Any` here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from .errors import FailedPreconditionError
from .source_location import at_caller, caller, locate

Node: TypeAlias = Any
Tensor: TypeAlias = Any
SHOWN = 8  # nodes of a scope that an error lists


class NodeTable:
    """The nodes of one graph.

    Args:
        graph: the graph.
        tensor: the class of its tensors.
        operation: the class of its nodes.

    Attributes:
        nodes: all nodes, in order of creation: `nodes[i].index == i`.
        by_name: the same by name.
        unfeedable: tensors for which no value may be fed.
        unfetchable: nodes whose outputs may not be fetched.
        is_finalized: whether the graph refuses new nodes.
        lacks_values: whether it was read from a saved plan, which has no values of large constants.
        has_late_edges: whether a control edge goes from a later node to an earlier one. Without one, a forward edge cannot close a cycle.
    """

    __slots__ = ("_graph", "_operation", "_tensor", "by_name", "has_late_edges", "is_finalized", "lacks_values", "nodes", "unfeedable",
                 "unfetchable")  # fmt: skip

    def __init__(self, graph: Any, tensor: type[Tensor], operation: type[Node]) -> None:
        self._graph = graph
        self._tensor = tensor
        self._operation = operation
        self.nodes: list[Node] = []
        self.by_name: dict[str, Node] = {}
        self.unfeedable: set[Tensor] = set()
        self.unfetchable: set[Node] = set()
        self.is_finalized = False
        self.lacks_values = False
        self.has_late_edges = False

    def check_not_finalized(self, doing: str) -> None:
        """RuntimeError if the graph is finalized. `doing` describes the attempted change."""
        if self.is_finalized:
            raise RuntimeError(
                f"Graph is finalized and cannot be modified ({doing}). Make all nodes before the call of finalize(), "
                "or before the MonitoredSession or Supervisor that calls it"
            )

    def check_values(self) -> None:
        """FailedPreconditionError if constants have no values."""
        if self.lacks_values:
            raise FailedPreconditionError.of(
                "This graph was read from a saved plan, which does not keep values of large constants. It can be inspected and "
                "placed, but not run or exported. Run the program that made it",
            )

    def check_is_new(self, name: str) -> None:
        """ValueError if a node has this name."""
        if name in self.by_name:
            raise ValueError(f"A node called '{name}' exists already (created at {self.by_name[name].source})")

    def add_control_edge(self, before: Node, node: Node) -> None:
        """Make `node` wait for `before`. ValueError if the edge would close a cycle, which the error shows."""
        if before in node.controls:
            return
        if before.index >= node.index or self.has_late_edges:
            path = _path_between(before, node)
            if path is not None:
                raise ValueError(
                    f"A control edge from '{before.name}' to '{node.name}' would close a cycle: "
                    + " -> ".join(n.name for n in [*path, before])
                )
        if before.index >= node.index:
            self.has_late_edges = True
        node.controls = (*node.controls, before)

    def element(self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Any:
        """The tensor or node for an object of the graph or for a name; see `Graph.as_graph_element`."""
        as_element = getattr(obj, "_as_graph_element", None)
        if as_element is not None:
            obj = as_element()
        if isinstance(obj, bytes):
            obj = obj.decode()
        if isinstance(obj, str):
            return element_by_name(self.by_name, obj, allow_tensor, allow_operation)
        is_tensor: bool = isinstance(obj, self._tensor)
        if (is_tensor and allow_tensor) or (isinstance(obj, self._operation) and allow_operation):
            if obj.graph is not self._graph:
                made_at = (obj.op if is_tensor else obj).source
                raise ValueError(
                    f"{obj!r} is not an element of this graph; it was made in another one (at {made_at}). "
                    "To run it, make a session of its own graph: dt.Session(graph=x.graph)"
                )
            return obj
        expected = " or ".join(w for w, ok in (("Tensor", allow_tensor), ("Operation", allow_operation)) if ok)
        raise TypeError(f"Can not convert a {type(obj).__name__} into a {expected}: {obj!r}")

    def node_of(self, value: Any, method: str, block: str) -> Node:
        """The node of a tensor, a node, a name, or an object with a method of that name which returns one of these.

        Raises:
            KeyError, TypeError, ValueError: it stands for no node of this graph. The text names the block that takes it.
        """
        named = getattr(value, method, None)
        try:
            element = self.element(value if named is None else named())
        except (KeyError, TypeError, ValueError) as e:
            where = locate(caller())
            raise type(e)(f"{block}: {e.args[0]} Pass the node or tensor itself, or its name (at {where})") from None
        return element.op if isinstance(element, self._tensor) else element

    def awaited_nodes(self, values: Any) -> list[Node]:
        """The nodes of the argument of `control_dependencies`. TypeError if it is not a list; else errors as of `node_of`."""
        if not isinstance(values, Iterable) or isinstance(values, (self._tensor, str)):
            what = "control_dependencies takes a list of nodes and tensors, [x], not x itself"
            raise TypeError(f"{what}: {values!r}{at_caller()}")
        return [self.node_of(v, "_control_element", "control_dependencies") for v in values]


class Collections:
    """Named lists of objects that a program keeps with its graph: variables, losses, summaries."""

    __slots__ = ("_table", "lists")

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.lists: dict[str, list[Any]] = {}

    def clear(self, name: str) -> None:
        """Empty a collection. RuntimeError if the graph is finalized."""
        self._table.check_not_finalized(f"emptying collection '{name}'")
        self.lists.pop(name, None)

    def add(self, name: str, value: Any) -> None:
        """Append to a collection. RuntimeError if the graph is finalized."""
        self._table.check_not_finalized(f"adding to collection '{name}'")
        self.lists.setdefault(name, []).append(value)

    def get(self, name: str, scope: str | None) -> list[Any]:
        """A copy of a collection; with `scope`, only items whose name matches that regular expression from the start."""
        items = self.lists.get(name, [])
        if scope is None:
            return list(items)
        pattern = re.compile(scope)
        return [x for x in items if hasattr(x, "name") and pattern.match(x.name)]


def element_by_name(
    nodes: Mapping[str, Node], name: str, allow_tensor: bool = True, allow_operation: bool = True
) -> Any:
    """The node or tensor of that name.

    Raises:
        KeyError: there is none. The error lists similar names.
        ValueError: it is of a kind that is not allowed, or malformed.
    """
    if ":" in name:
        node_name, _, index = name.rpartition(":")
        if not allow_tensor:
            raise ValueError(
                f"'{name}' is the name of a Tensor, where an Operation is asked for; did you mean '{node_name}'?"
            )
        if not index.isdigit():
            raise ValueError(f"'{name}' is not a tensor's name: it must have the form '<node>:<output number>'")
        node = nodes.get(node_name)
        if node is None:
            raise KeyError(
                f"The name '{name}' refers to a Tensor which does not exist: no node is named '{node_name}'."
                f"{_close_names(nodes, node_name)}"
            )
        if int(index) >= len(node.outputs):
            raise KeyError(
                f"The name '{name}' refers to a Tensor which does not exist: '{node_name}' has {len(node.outputs)} outputs"
            )
        return node.outputs[int(index)]
    node = nodes.get(name)
    if node is None:
        raise KeyError(f"No node is named '{name}'.{_close_names(nodes, name)}")
    if not allow_operation:
        raise ValueError(f"'{name}' is the name of an Operation, where a Tensor is asked for; did you mean '{name}:0'?")
    return node


def _close_names(nodes: Mapping[str, Node], name: str) -> str:
    """The end of an error: nodes with that name in a scope, or the nodes of a scope with that name, or similar names."""
    inside = [n for n in nodes if n.lower().endswith(f"/{name}".lower())]
    if inside:
        more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
        return f" Close names: {', '.join(inside[:3])}{more}."
    within = [n for n in nodes if f"/{name}/" in f"/{n}"]
    if within:
        within.sort(key=lambda n: n.count("/"))  # nodes of inner scopes last, such as those of initializers
        rest = f", ... ({len(within)} in all)" if len(within) > SHOWN else ""
        return f" A scope has that name. Its nodes: {', '.join(within[:SHOWN])}{rest}."
    # difflib is quadratic: on a large graph compare only names with the same ending.
    names = list(nodes)
    if len(names) > 5000:
        names = [n for n in names if n.rpartition("/")[2][:3] == name.rpartition("/")[2][:3]][:5000]
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f" Close names: {', '.join(close)}."
    return " A node's name is what `name=` gives, or its op's, below the open scopes; the names of Python's variables are not known."


def _path_between(start: Node, goal: Node) -> list[Any] | None:
    """A path goal -> ... -> start along edges, or None if `start` does not depend on `goal`."""
    came_from: dict[Node, Node | None] = {start: None}
    todo = [start]
    while todo:
        node = todo.pop()
        if node is goal:
            path: list[Node] = []
            step: Node | None = node
            while step is not None:
                path.append(step)
                step = came_from[step]
            return path
        for before in node.before:
            if before not in came_from:
                came_from[before] = node
                todo.append(before)
    return None
