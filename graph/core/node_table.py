"""What a name means among nodes: `add` is a node, `add:0` its first output.

What is in a graph: its nodes, by order and by name, and its collections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .node import Node, Tensor


def element_by_name(
    nodes: Mapping[str, Node], name: str, allow_tensor: bool = True, allow_operation: bool = True
) -> Tensor | Node:
    """The node or tensor of that name.

    Raises:
        KeyError: there is none; the text tells names that are close.
        ValueError: it is of the kind that is not allowed, or malformed.
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
                f"The name '{name}' refers to a Tensor which does not exist: no node is called '{node_name}'.{_close(nodes, node_name)}"
            )
        if int(index) >= len(node.outputs):
            raise KeyError(
                f"The name '{name}' refers to a Tensor which does not exist: '{node_name}' has {len(node.outputs)} outputs"
            )
        return node.outputs[int(index)]
    node = nodes.get(name)
    if node is None:
        raise KeyError(f"The name '{name}' refers to an Operation not in the graph.{_close(nodes, name)}")
    if not allow_operation:
        raise ValueError(f"'{name}' is the name of an Operation, where a Tensor is asked for; did you mean '{name}:0'?")
    return node


def _close(nodes: Mapping[str, Node], name: str) -> str:
    import difflib

    # difflib is quadratic: on a large graph only look among names that end alike.
    names = list(nodes)
    if len(names) > 5000:
        names = [n for n in names if n.rpartition("/")[2][:3] == name.rpartition("/")[2][:3]][:5000]
    close = difflib.get_close_matches(name, names, n=3)
    return f" Close names: {', '.join(close)}." if close else ""


class Contents:
    """The part of a `Graph` that tells what it holds. It grows by `Graph.create`."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._by_name: dict[str, Node] = {}
        self._collections: dict[str, list[Any]] = {}
        self._finalized = False
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Node] = set()

    # --- nodes -----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Grows with every node: the number of nodes."""
        return len(self._nodes)

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes in order of creation."""
        return self._nodes

    @property
    def finalized(self) -> bool:
        """Whether the graph refuses to grow."""
        return self._finalized

    def finalize(self) -> None:
        """Make the graph refuse to grow, so that a loop that adds nodes by mistake is noticed."""
        self._finalized = True

    def unfinalize(self) -> None:
        """Let the graph grow again: who has finalised it for a while is done."""
        self._finalized = False

    def _check_not_finalized(self, doing: str) -> None:
        if self._finalized:
            raise RuntimeError(f"Graph is finalized and cannot be modified ({doing})")

    def get_operations(self) -> list[Node]:
        """All nodes in order of creation (a copy)."""
        return list(self._nodes)

    def get_operation_by_name(self, name: str) -> Node:
        """The node of that name; KeyError when there is none, ValueError when it is a tensor's name."""
        node = self.as_graph_element(name, allow_tensor=False)
        assert isinstance(node, Node)
        return node

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor of that name (`add:0`); KeyError when there is none, ValueError when it is a node's name."""
        tensor = self.as_graph_element(name, allow_operation=False)
        assert isinstance(tensor, Tensor)
        return tensor

    def as_graph_element(self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Tensor | Node:
        """The tensor or node meant by an object of this graph, or by a name.

        Raises:
            KeyError: the name is not in this graph.
            ValueError: the object belongs to another graph, or the name is malformed.
            TypeError: neither name nor graph element, or of the kind that is not allowed.
        """
        wanted = " or ".join(w for w, ok in (("Tensor", allow_tensor), ("Operation", allow_operation)) if ok)
        as_element = getattr(obj, "_as_graph_element", None)
        if as_element is not None:
            obj = as_element()
        if isinstance(obj, bytes):
            obj = obj.decode()
        if isinstance(obj, str):
            return element_by_name(self._by_name, obj, allow_tensor, allow_operation)
        if (isinstance(obj, Tensor) and allow_tensor) or (isinstance(obj, Node) and allow_operation):
            if obj.graph is not self:
                raise ValueError(
                    f"{obj!r} is not an element of this graph; it was made in another one (at {_source_of(obj)})"
                )
            return obj
        raise TypeError(f"Can not convert a {type(obj).__name__} into a {wanted}: {obj!r}")

    def is_feedable(self, tensor: Any) -> bool:
        """Whether a value may be fed for it."""
        return tensor not in self._unfeedable

    def is_fetchable(self, element: Any) -> bool:
        """Whether its value may be fetched."""
        node = element.op if isinstance(element, Tensor) else element
        return node not in self._unfetchable

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Refuse feeds for this tensor from now on."""
        self._unfeedable.add(tensor)

    def prevent_fetching(self, node: Node) -> None:
        """Refuse fetches of this node from now on."""
        self._unfetchable.add(node)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._nodes)

    def __bool__(self) -> bool:
        return True  # an empty graph is a graph: `graph or get_default_graph()` must not pass over it

    # --- collections -----------------------------------------------------------------------------------------------

    def add_to_collection(self, name: str, value: Any) -> None:
        """Append to a collection. RuntimeError when the graph is finalized."""
        self._check_not_finalized(f"adding to collection '{name}'")
        self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Iterable[str] | str, value: Any) -> None:
        """Append to several collections, once each. RuntimeError when the graph is finalized."""
        for name in {names} if isinstance(names, str) else dict.fromkeys(names):
            self.add_to_collection(name, value)

    def get_collection(self, name: str, scope: str | None = None) -> list[Any]:
        """A copy of a collection; with `scope`, only items whose name matches that regular expression from the start."""
        items = self._collections.get(name, [])
        if scope is None:
            return list(items)
        pattern = re.compile(scope)
        return [x for x in items if hasattr(x, "name") and pattern.match(x.name)]

    def get_collection_ref(self, name: str) -> list[Any]:
        """The collection itself, made if need be; changes to the list are changes to the collection."""
        return self._collections.setdefault(name, [])

    def get_all_collection_keys(self) -> list[str]:
        """Names of the collections that hold something."""
        return [k for k, v in self._collections.items() if v]

    collections = property(get_all_collection_keys)

    def clear_collection(self, name: str) -> None:
        """Empty a collection. RuntimeError when the graph is finalized."""
        self._check_not_finalized(f"emptying collection '{name}'")
        self._collections.pop(name, None)


def _source_of(element: Tensor | Node) -> Any:
    return (element.op if isinstance(element, Tensor) else element).source
