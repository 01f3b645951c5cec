"""Partial runs: one step in several calls, each of which feeds and fetches some of the declared tensors (`Session.partial_run`).

Each call is an ordinary step. It runs the nodes that its fetches need and that have not run yet. This process also fetches the values
that later calls need, keeps them, and feeds them to those calls. So over all calls each node runs once, as in one step, and the cluster
keeps no state between calls.

Tensors without a value that can be kept are computed again: references to variables, the inside of loops and branches. If that would
repeat a side effect, the call is refused before anything runs.

Like `tf.Session.partial_run` (TensorFlow 1), where a step of the whole graph stays open in the cluster instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ...graph.core.errors import UnimplementedError, invalid
from ...graph.core.frames import Frames, Predicates
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.core.opdef import Trait
from ...placer.partition.prune import named, needed
from .fetches import Fetches, feed_value, given_back

Step = Callable[[Fetches, Mapping[str, Any]], Mapping[str, Any]]
"""Runs a step: takes the fetches and the feeds by tensor name; returns the values by name."""

# Handles that are valid only in the step that creates them.
_OF_A_STEP = frozenset({"TensorArrayV3", "StackV2"})


class PartialRun:
    """One partial run: the declared fetches and feeds, those already used, and the values that later calls need.

    Raises:
        InvalidArgumentError: there is nothing to fetch or run.
    """

    def __init__(self, graph: Graph, fetches: Fetches, feeds: Iterable[Tensor]) -> None:
        if not fetches.tensors and not fetches.targets:
            raise invalid("Must specify at least one target to fetch or execute.")
        self._graph = graph
        self._left = {*fetches.tensors, *fetches.targets}
        self._agreed = frozenset(self._left)
        self._feeds = {t.name: t for t in feeds}
        self._values: dict[Tensor, Any] = {}  # fed or computed so far
        self._done: set[Node] = set()
        self._all = needed(graph, *self._elements(self._agreed), self._feeds.values())
        self._frames = Frames(self._all, self._feeds.values())
        self._predicates = Predicates(self._frames.schedule())
        self._places = {n.inputs[i] for n in self._all for i in n.opdef.ref_inputs[: len(n.inputs)]}
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether everything has been fetched, or a step has failed."""
        return not self._left

    def run(self, requested: Fetches, feeds: Mapping[str, Any], step: Step) -> dict[str, Any]:
        """Run one call, and return the values of `requested.tensors`.

        Raises:
            InvalidArgumentError: a feed or fetch was not declared, was used before, or needs a tensor that has not been fed.
            UnimplementedError: a side effect would be repeated. Otherwise what `step` raises.
        """
        with self._lock:
            fetched = {*requested.tensors, *requested.targets}
            self._check(fetched, feeds)
            # The caller may reuse a fed array before a later call reads it.
            given = {n: value.copy() if isinstance(value, np.ndarray) else value for n, value in feeds.items()}
            known = self._values | {self._feeds[name]: value for name, value in given.items()}
            nodes = self._to_run(fetched, known)
            names = dict.fromkeys([*requested.tensors, *(t.name for t in self._kept(nodes, self._left - fetched))])
            targets = tuple(n for n in requested.targets if self._graph.get_operation_by_name(n) not in self._done)
            fed = {t.name: feed_value(t, value) for t, value in known.items()}
            try:
                found = step(Fetches(tuple(names), targets, lambda v: v), fed)
            except BaseException:
                self._left.clear()  # it is unknown which nodes have run
                raise
            self._values = known | {self._graph.get_tensor_by_name(name): value for name, value in found.items()}
            self._done.update(nodes)
            self._left -= fetched
            return given_back({name: found[name] for name in requested.tensors}, self._values.values())

    def _check(self, fetched: set[str], feeds: Mapping[str, Any]) -> None:
        for name in feeds:
            if name not in self._feeds:
                raise invalid(f"The feed {name} was not specified in partial_run_setup.")
            if self._feeds[name] in self._values:
                raise invalid(f"The feed {name} has already been fed.")
        for name in fetched:
            if name not in self._agreed:
                raise invalid(f"The fetch {name} was not specified in partial_run_setup.")
            if name not in self._left:
                raise invalid(f"The fetch {name} has already been fetched.")

    def _to_run(self, fetched: set[str], known: Mapping[Tensor, Any]) -> list[Node]:
        """The nodes that a call runs, in order."""
        missing = {t for t in self._feeds.values() if t not in known}
        nodes: dict[Node, None] = {}
        for name in fetched:
            tensors, targets = self._elements([name])
            targets = [n for n in targets if n not in self._done]
            found = needed(self._graph, tensors, targets, [*known, *missing])
            inputs = [t for n in found for t in n.inputs]
            waited_for = [c.outputs[0] for n in found for c in n.controls if c.type == "Placeholder"]
            lacking = [t for t in (*inputs, *waited_for, *tensors) if t in missing]
            if lacking:
                raise invalid(
                    f"Fetch {name} can't be computed from the feeds that have been fed so far. It needs {lacking[0].name}",
                )  # fmt: skip
            nodes.update(dict.fromkeys(found))
        for node in nodes:
            place = next((t.op for t in node.inputs if t.op.type in _OF_A_STEP and t.op in self._done), None)
            if place is not None or (node in self._done and node.opdef.changes_state):
                raise UnimplementedError(
                    None, node,
                    f"{node.name} ({node.type}) created at {node.source} belongs to two calls of a partial run, and cannot be done "
                    "twice: fetch what needs it in one call, or in one session.run",
                )  # fmt: skip
        return sorted(nodes, key=lambda n: n.index)

    def _kept(self, nodes: list[Node], later: set[str]) -> list[Tensor]:
        """The tensors of this call's nodes that later calls need."""
        if not later:
            return []
        now = set(nodes)
        todo = [t for n in self._all if n not in now and n not in self._done for t in n.inputs]
        todo += self._elements(later)[0]
        found: dict[Tensor, bool] = {}
        while todo:
            tensor = todo.pop()
            if tensor in found or tensor.op not in now or tensor.name in self._feeds:
                continue
            found[tensor] = self._has_a_value(tensor)
            if not found[tensor]:  # it will be computed again, so its inputs are kept
                todo += tensor.op.inputs
        return [t for t, has_a_value in found.items() if has_a_value]

    def _has_a_value(self, tensor: Tensor) -> bool:
        """Whether a tensor has a value that can be kept: it is not a reference or handle, and not inside a loop or branch."""
        node = tensor.op
        if Trait.STATE_HANDLE in node.opdef.traits or tensor in self._places:
            return False
        if node in self._predicates or self._frames.gives_in(node) is not None:
            return False
        return self._graph.is_fetchable(node) and self._graph.is_feedable(tensor)

    def _elements(self, names: Iterable[str]) -> tuple[list[Tensor], list[Node]]:
        ordered = sorted(names)
        return named(self._graph, (n for n in ordered if ":" in n), (n for n in ordered if ":" not in n))
