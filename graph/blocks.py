"""The blocks that a user opens with `with`: devices, names, and what is the default of a thread.

Those that open at every node are classes, because a generator would cost three times as much per block.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .scopes import DeviceBlock
from .source import caller

if TYPE_CHECKING:
    from .graph import Graph


class OpenBlocks(threading.local):
    """The default graphs and sessions of a thread, the innermost last."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.sessions: list[Any] = []


open_blocks = OpenBlocks()


@contextmanager
def pushed(stack: list[Any], item: Any) -> Iterator[Any]:
    """A context in which an item is the innermost of a stack."""
    stack.append(item)
    try:
        yield item
    finally:
        if stack and stack[-1] is item:
            stack.pop()
        else:  # left in the wrong order: remove the right one, do not corrupt the others
            stack.remove(item)


class DeviceContext:
    """`with graph.device(...)`."""

    __slots__ = ("_block", "_graph", "_outer", "_request")

    def __init__(self, graph: Graph, request: Any) -> None:
        self._graph = graph
        self._request = request
        self._outer: DeviceBlock | None = None
        self._block: DeviceBlock | None = None

    def __enter__(self) -> None:
        if self._block is not None:
            raise RuntimeError(f"The device block {self._block.describe()} is open already")
        scopes = self._graph.scopes
        self._outer = scopes.device
        self._block = scopes.device = DeviceBlock(scopes.device, self._request, caller())

    def __exit__(self, *exc: object) -> None:
        scopes, block = self._graph.scopes, self._block
        self._block = None
        if block is not None and scopes.device is block:
            scopes.device = DeviceBlock.still_open(self._outer)
            return
        # Those inside it that are still open are left with it; one that was left so before changes nothing.
        open_ = scopes.device
        while open_ is not None and open_ is not block:
            open_ = open_.outer
        if open_ is not None:
            scopes.device = self._outer
        elif block is not None:
            block.left = True
        raise RuntimeError("Exiting device scope without proper scope nesting.")


class NameContext:
    """`with graph.name_scope(...)`."""

    __slots__ = ("_graph", "_name", "_outer")

    def __init__(self, graph: Graph, name: str | None) -> None:
        self._graph = graph
        self._name = name
        self._outer = ""

    def __enter__(self) -> str:
        scopes = self._graph.scopes
        self._outer = scopes.name
        name = self._name
        if not name:
            scopes.name = ""
            return ""
        scopes.name = name[:-1] if name[-1] == "/" else self._graph.unique_name(name)
        return scopes.name + "/"

    def __exit__(self, *exc: object) -> None:
        self._graph.scopes.name = self._outer


class OpContext(NameContext):
    """`with graph.op_scope(...)`."""

    __slots__ = ()

    def __enter__(self) -> str:
        scope = super().__enter__()
        open_blocks.graphs.append(self._graph)
        return scope

    def __exit__(self, *exc: object) -> None:
        open_blocks.graphs.pop()
        super().__exit__(*exc)
