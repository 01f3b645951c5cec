"""Builds: a model that is built several times in one graph. Each build has its own losses, updates and summaries.

Traces of a compiled function, replicas of a strategy, and the workers of a coordinator build one model several times in one graph.
Programs collect its losses, the updates of its moving averages and its summaries in the graph's collections. A build sees the items
that it has collected and those collected outside all builds, but no items of other builds. So `get_total_loss` is the loss of one
build. Builds share variables, tables and the regularization losses of variables.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from ..core.default_graph import GraphKeys
from ..core.graph import Graph, Node, Tensor
from .store import VariableStore

_KEY = "__build"  # the collection that holds the build that is open
_SHARED = frozenset(
    (
        GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES, GraphKeys.TRAINABLE_VARIABLES, GraphKeys.MODEL_VARIABLES,
        GraphKeys.METRIC_VARIABLES, GraphKeys.MOVING_AVERAGE_VARIABLES, GraphKeys.TABLE_INITIALIZERS,
    )
)  # fmt: skip


class _Build:
    """The items that a build has collected, by the name of the collection, and the builds inside it."""

    __slots__ = ("collected", "inner")

    def __init__(self) -> None:
        self.collected: dict[str, list[Any]] = {}
        self.inner: dict[Hashable, _Build] = {}


@contextmanager
def build(graph: Graph, key: Hashable) -> Iterator[None]:
    """A block in which the nodes of a build are made. A later block with an equal key and the same outer block continues the build."""
    kept = graph.get_collection_ref(_KEY)
    kept[:] = kept or [_Build()]
    outer: _Build = kept[0]
    mine = outer.inner.setdefault(key, _Build())
    shared = VariableStore.of(graph)
    before: dict[str, list[Any]] = {}
    for name in graph.get_all_collection_keys():
        if _is_separate(name):
            items = graph.get_collection_ref(name)
            before[name] = list(items)
            hidden = {id(x) for b in outer.inner.values() for x in b.collected.get(name, ())}
            items[:] = [*(x for x in items if id(x) not in hidden), *mine.collected.get(name, ())]
    kept[0] = mine
    try:
        yield
    finally:
        kept[0] = outer
        for name in {*before, *graph.get_all_collection_keys()}:
            if _is_separate(name):
                items, known = graph.get_collection_ref(name), before.get(name, [])
                found = {id(x) for x in known}
                new = [x for x in items if id(x) not in found and not (isinstance(x, Tensor) and x in shared.of_copies)]
                was_mine = {id(x) for x in mine.collected.get(name, ())}
                own = [x for x in items if id(x) in was_mine or (id(x) not in found and _is_own(x, shared))]
                mine.collected[name] = own
                items[:] = [*known, *new]


def _is_separate(name: Any) -> bool:
    return name not in _SHARED and not str(name).startswith("__")


def _is_own(value: Any, shared: VariableStore) -> bool:
    of_a_variable = isinstance(value, Tensor) and (value in shared.regularizations or value in shared.of_copies)
    return isinstance(value, Node | Tensor) and not of_a_variable
