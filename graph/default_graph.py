"""The default graph and session of a thread, and the functions that act on them, as users write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .blocks import open_blocks, pushed
from .graph import Graph
from .node import Node, Tensor

_global: list[Graph] = []  # the process's default graph, made on first use; in a list so that it can be replaced


def get_default_graph() -> Graph:
    """The innermost `with graph.as_default()` of this thread, or else the process's own graph."""
    graphs = open_blocks.graphs
    if graphs:
        return graphs[-1]
    if not _global:
        _global.append(Graph())
    return _global[0]


def reset_default_graph() -> None:
    """Start a new default graph. AssertionError inside a `with graph.as_default()` block, as in TensorFlow."""
    if open_blocks.graphs:
        raise AssertionError("Do not use reset_default_graph() inside a `with graph.as_default()` block")
    _global[:] = [Graph()]


def get_default_session() -> Any:
    """The innermost `with session:` of this thread, or None."""
    return open_blocks.sessions[-1] if open_blocks.sessions else None


def default_session(session: Any) -> AbstractContextManager[Any]:
    """A context in which `session` is the default session of the thread."""
    return pushed(open_blocks.sessions, session)


# --- the same on the default graph, as users write it --------------------------------------------------------------


def device(device_name_or_function: Any) -> AbstractContextManager[None]:
    """`Graph.device` on the default graph."""
    return get_default_graph().device(device_name_or_function)


def colocate_with(op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
    """`Graph.colocate_with` on the default graph."""
    return get_default_graph().colocate_with(op, ignore_existing)


def control_dependencies(control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
    """`Graph.control_dependencies` on the default graph."""
    return get_default_graph().control_dependencies(control_inputs)


def container(container_name: str) -> AbstractContextManager[str]:
    """`Graph.container` on the default graph."""
    return get_default_graph().container(container_name)


def name_scope(
    name: str | None, default_name: str | None = None, values: Sequence[Any] | None = None
) -> AbstractContextManager[str]:
    """`Graph.name_scope` on the default graph (or on the graph of `values`); `default_name` serves where `name` is None."""
    graph = next((v.graph for v in values or () if isinstance(v, (Tensor, Node))), None) or get_default_graph()
    return graph.name_scope(default_name if name is None else name)


def add_to_collection(name: str, value: Any) -> None:
    """`Graph.add_to_collection` on the default graph."""
    get_default_graph().add_to_collection(name, value)


def get_collection(key: str, scope: str | None = None) -> list[Any]:
    """`Graph.get_collection` on the default graph."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: str) -> list[Any]:
    """`Graph.get_collection_ref` on the default graph."""
    return get_default_graph().get_collection_ref(key)


def set_random_seed(seed: int | None) -> None:
    """Set the graph-level seed of the default graph; nodes made afterwards use it."""
    get_default_graph().seed = seed


def merge_device(spec: Any) -> Callable[[Node], Any]:
    """A device function that merges `spec` as a text block would; for use as `with dt.device(merge_device(spec))`."""
    from .device import merge_names
    from .scopes import as_canonical

    wanted = as_canonical(spec if spec is not None else "")

    def merge(node: Node) -> str:
        return merge_names(wanted, node.device)

    return merge
