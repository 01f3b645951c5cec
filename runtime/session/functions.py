"""Graphs as functions that kernels call, such as those of data sets: they run in the caller's thread, with the state of the task.

Each call has a number. Its random numbers depend on this number and on the seeds of its nodes, not on how often the nodes have run.
So calls may be made in any order, in any thread, and repeated, with the same result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...graph.core.graph import Graph, Node, Tensor
from ...graph.resources.resource_manager import Resources, SessionState
from .session import Session

Call = Callable[..., Any]
"""(seed of nodes that have none, number of the call, values of the inputs) -> values of the outputs."""


class _CallState(SessionState, threading.local):
    """The session state for nodes: of the call that this thread makes."""

    number = 0

    def begin(self, seed: int, number: int) -> None:
        """Begin a call; no node has run in it."""
        SessionState.__init__(self, seed)
        self.number = number

    def count(self, node_name: str) -> int:
        """The number of the call; further runs of one node in one call, as in a loop, have their own numbers."""
        return (self.number + (super().count(node_name) << 40)) & (2**64 - 1)


def compile_function(
    graph: Graph, inputs: Sequence[Tensor], outputs: Sequence[Tensor | Node], resources: Resources
) -> Call:
    """A function that runs a graph with the state of a task.

    Args:
        graph: the graph, which must not change any more. inputs: the tensors that the caller feeds.
    """
    from .local_backend import make_backend_within_task  # loads the code generator

    state = _CallState(0)
    session = Session(graph=graph, _within=make_backend_within_task(graph, resources, lambda seed: state))
    run = session.make_callable(list(outputs), list(inputs))

    def call(seed: int, number: int, *values: Any) -> Any:
        state.begin(seed, number)
        return run(*values)

    return call
