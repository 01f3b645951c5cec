"""Named outputs: tensors in a collection, each with the name of the layer that made it (`tf.contrib.layers.utils`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from ....graph.core.default_graph import get_default_graph
from ....graph.core.graph import Graph, Tensor

_aliases: WeakKeyDictionary[Graph, dict[str, list[str]]] = WeakKeyDictionary()
"""By the name of the tensor."""


def collect_named_outputs(collections: str | Iterable[str] | None, alias: str, outputs: Tensor) -> Tensor:
    """Add a layer's output to collections, under a name; gives the output."""
    if collections:
        graph = get_default_graph()
        graph.add_to_collections([collections] if isinstance(collections, str) else list(collections), outputs)
        _aliases.setdefault(graph, {}).setdefault(outputs.name, []).append(alias)
    return outputs


def get_tensor_aliases(tensor: Tensor) -> list[str]:
    """The names that a tensor was collected under; else its own."""
    return list(_aliases.get(tensor.graph, {}).get(tensor.name, ())) or [tensor.name.removesuffix(":0")]


def convert_collection_to_dict(collection: str, clear_collection: bool = False) -> OrderedDict[str, Tensor]:
    """The tensors of a collection by their names: the *end points* of a network.

    Args:
        clear_collection: empty the collection.
    """
    graph = get_default_graph()
    found = OrderedDict((alias, t) for t in graph.get_collection(collection) for alias in get_tensor_aliases(t))
    if clear_collection:
        graph.clear_collection(collection)
    return found


def get_variable_collections(variables_collections: Any, name: str) -> list[str]:
    """The collections for the variables of this name, of collections that are for all, or a mapping by name."""
    if isinstance(variables_collections, Mapping):
        variables_collections = variables_collections.get(name)
    if isinstance(variables_collections, str):
        return [variables_collections]
    return list(variables_collections or ())


def last_dimension(shape: Any, min_rank: int = 1) -> int:
    """The last size of a static shape. ValueError: it is unknown, or there are fewer axes."""
    sizes = shape.as_list() if shape.rank is not None else []
    if len(sizes) < min_rank or not sizes or sizes[-1] is None:
        raise ValueError(f"a shape of rank {min_rank} or more whose last size is known is needed, not {shape}")
    return int(sizes[-1])


__all__ = [
    "collect_named_outputs",
    "convert_collection_to_dict",
    "get_tensor_aliases",
    "get_variable_collections",
    "last_dimension",
]
