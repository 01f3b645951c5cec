"""The global step: the variable that counts updates, shared by all workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.core.default_graph import GraphKeys, get_default_graph
from ..graph.core.dtypes import int64
from ..graph.core.graph import Graph
from ..graph.core.shape import compatible, text
from ..graph.variables.initializers import zeros_initializer
from ..graph.variables.scope import get_variable


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """The value of the global step in a session, as a number."""
    return int(np.asarray(sess.run(global_step_tensor)).item())


def get_global_step(graph: Graph | None = None) -> Any:
    """The global step of the (default) graph, or None.

    Raises:
        TypeError: the element of the collection is not an integer scalar.
        ValueError: the collection has several elements.
    """
    graph = graph or get_default_graph()
    kept = graph.get_collection(GraphKeys.GLOBAL_STEP)
    if len(kept) > 1:
        raise ValueError(f"The graph has {len(kept)} global steps: {', '.join(v.name for v in kept)}. Expected one")
    if kept:
        found = kept[0]
    elif GraphKeys.GLOBAL_STEP in graph:
        found = graph.get_tensor_by_name(f"{GraphKeys.GLOBAL_STEP}:0")
    else:
        return None
    assert_global_step(found)
    return found


def create_global_step(graph: Graph | None = None) -> Any:
    """Create the global step: an int64 scalar variable `global_step` that starts at 0 and is not trained.

    Raises:
        ValueError: the graph already has a global step.
    """
    graph = graph or get_default_graph()
    if get_global_step(graph) is not None:
        raise ValueError('"global_step" already exists.')
    with graph.as_default(), graph.name_scope(None):
        return get_variable(
            GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=int64,
            initializer=zeros_initializer(),
            trainable=False,
            collections=[GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP],
        )


def get_or_create_global_step(graph: Graph | None = None) -> Any:
    """The global step of the (default) graph, created if there is none."""
    found = get_global_step(graph)
    return create_global_step(graph) if found is None else found


def assert_global_step(global_step_tensor: Any) -> None:
    """Raise a TypeError unless the argument is a scalar of an integer type."""
    dtype, dims = global_step_tensor.dtype, global_step_tensor.get_shape().dims_tuple
    if not dtype.base.is_integer:
        raise TypeError(f'Existing "global_step" does not have integer type: {dtype.name}')
    if not compatible(dims, ()):
        raise TypeError(f'Existing "global_step" is not scalar: {text(dims)}')
