"""Placement of a compiled function under a strategy that searches, such as `strategy="auto"`: one search for all signatures.

The first call of a function, or of `plan`, searches for the placement of its trace with the shapes of that call's arguments. The result
is stored in the graph (`Graph.searched`: node -> device). The placement rules of the session follow it.

A later trace with the same nodes, such as one for another batch size, gets the devices of the first trace. Two traces have the same nodes
if the names, ops, dtypes, device requests, colocation and inputs of all nodes that a call runs are equal. Names are compared with the
scope of the first trace in place of the own scope. Shapes and constants are not compared. Any other trace is searched again, with the
variables at their present devices.

    trace 1: step/MatMul    result of the search: /job:worker/task:1/CPU:0
    trace 2: step_1/MatMul  corresponds to step/MatMul: the same device
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from .graph.core.graph import Graph, Node, Tensor
from .placer.cluster.spec import Cluster
from .placer.cost.profile import as_profile
from .placer.cost.shapes import given_shapes
from .placer.partition.one_sided_access import AssumedAccess
from .placer.partition.prune import needed
from .placer.pipeline import Kept, PlanOptions, objective_of, plan_step
from .placer.plan import Plan
from .placer.render.text import time_text
from .runtime.config import ConfigProto

if TYPE_CHECKING:
    from .placer.search.problem import Solution

NodeKeys: TypeAlias = Mapping[str, tuple[Any, ...]]
"""Name of a node in the first trace -> what must be equal for the node to be the same in another trace."""


class SearchedPlacement:
    """The placement by search of all traces in one graph.

    Args:
        graph: the graph of all traces.
        strategy: a strategy of `dt.place` other than "rules".
        budget_s: effort of each search in seconds, as in `dt.place`. None: the default.
        config: settings of the session.

    Raises:
        ValueError, TypeError: as `PlanOptions`.
    """

    def __init__(self, graph: Graph, strategy: str, budget_s: float | None, config: ConfigProto) -> None:
        costs = as_profile(config.placement_costs)
        self._graph = graph
        options = PlanOptions(
            allow_soft_placement=config.allow_soft_placement,
            strategy=strategy,
            costs=costs,
            objective=objective_of(costs),
        )
        self._options = options if budget_s is None else replace(options, budget_s=budget_s)
        self._cluster: Cluster | None = None
        self._name: dict[str, str] = {}  # name of a node -> its name in the first trace
        # For each search: the nodes, their devices, and the solution.
        self._found: list[tuple[NodeKeys, Mapping[str, str], Solution | None]] = []
        self._placed: dict[Any, Solution | None] = {}  # trace -> the solution of the search that placed it
        self._plans: dict[Any, tuple[Mapping[str, Any], Plan]] = {}  # trace -> (fed shapes, plan of its search)

    def on(self, cluster: Cluster) -> None:
        """Place nodes on this cluster from now on. If its devices differ from those before, earlier results are discarded."""
        before, self._cluster = self._cluster, cluster
        if before is not None and [d.name for d in before.devices] != [d.name for d in cluster.devices]:
            for found in (self._graph.searched, self._found, self._placed, self._plans):
                found.clear()

    def note(self, nodes: Iterable[Node], scope: str, first: str) -> None:
        """Record the nodes of a trace.

        Args:
            nodes: the nodes.
            scope: name scope of the trace, such as `step_1`.
            first: name scope of the first trace, such as `step`.
        """
        for node in nodes:
            self._name[node.name] = "/".join(first if part == scope else part for part in node.name.split("/"))

    def place(
        self, trace: Any, fetches: Iterable[Any], targets: Sequence[Node], feeds: Mapping[Tensor, Any]
    ) -> Plan | None:
        """Determine the devices of a trace's nodes once: from an earlier trace with the same nodes, or by a search.

        Args:
            trace: identifies the trace.
            fetches: what a call fetches.
            targets: nodes that a call runs without fetching a value.
            feeds: placeholder -> array.

        Returns:
            The plan of the search, if it was made for this trace and these shapes. Otherwise None: the rules, which follow the search,
            make the plan.
        """
        shapes = {tensor.name: value.shape for tensor, value in feeds.items()}
        if trace not in self._placed:
            elements = list(dict.fromkeys(map(self._graph.as_graph_element, fetches)))
            tensors = [e for e in elements if isinstance(e, Tensor)]
            targets = [*(e for e in elements if isinstance(e, Node)), *targets]
            running = needed(self._graph, tensors, targets, list(feeds))
            keys = {self._name_of(n.name): self._key(n) for n in running}
            found = next((f for f in self._found if f[0] == keys), None)
            if found is None:
                plan = self._search(tensors, targets, feeds)
                self._plans[trace] = shapes, plan
                of = {n: plan.decisions.device_of(n) for n in running}
                found = keys, {self._name_of(n.name): device for n, device in of.items()}, plan.solution
                self._found.append(found)
                state = [n for n in self._graph.nodes if n.opdef.is_stateful]  # later searches must not move state
                self._keep(of | {n: plan.decisions.device_of(n) for n in state})
            else:
                self._keep({n: found[1][self._name_of(n.name)] for n in running})
            self._placed[trace] = found[2]
        searched, searched_plan = self._plans.get(trace, (None, None))
        return searched_plan if searched == shapes else None

    def with_solution(self, trace: Any, plan: Plan) -> Plan:
        """A plan that the rules made for a trace, with the solution of the search that placed the trace with other shapes."""
        solution = self._placed[trace]
        return plan if solution is None else replace(plan, solution=replace(solution, is_of_step=False))

    def _search(self, fetches: Sequence[Tensor], targets: Sequence[Node], feeds: Mapping[Tensor, Any]) -> Plan:
        assert self._cluster is not None
        kept = {n.name: device for n, device in self._graph.searched.items() if n.opdef.is_stateful}
        with search_progress() if is_terminal(sys.stderr) else nullcontext():
            return plan_step(
                self._graph, self._cluster, self._options, AssumedAccess(self._cluster), fetches=fetches, targets=targets,
                feeds=list(feeds), shapes=given_shapes(self._graph, feeds), kept=Kept(assigned=kept),
            )  # fmt: skip

    def _keep(self, devices: Mapping[Node, str]) -> None:
        """Record the devices of nodes that have none in the graph."""
        for node, device in devices.items():
            self._graph.searched.setdefault(node, device)

    def _name_of(self, name: str) -> str:
        return self._name.get(name, name)

    def _key(self, node: Node) -> tuple[Any, ...]:
        inputs = tuple((self._name_of(t.op.name), t.value_index) for t in node.inputs)
        groups = tuple(map(self._name_of, node.colocation))
        return node.type, node.device, groups, inputs, tuple(t.dtype for t in node.outputs)


def is_terminal(file: TextIO | None) -> bool:
    """Whether a stream is a terminal. In a process without a console the stream is None."""
    return file is not None and file.isatty()


@contextmanager
def search_progress() -> Iterator[None]:
    """Print the progress of a search to stderr: the best predicted time, its lower bound and the share of the budget used."""
    from .placer.search.portfolio import watched  # imports the searches and their compiled loops

    in_place = is_terminal(sys.stderr)
    begin, end = ("\r\x1b[K", "") if in_place else ("", "\n")
    shown = ""

    def show(best: Solution, spent: float, exact: bool) -> None:
        nonlocal shown
        bound = f", at least {time_text(best.lower_bound)}" if best.lower_bound else ""
        text = f"best so far {time_text(best.objective, exact)}{bound}"
        new = f"{text}; {spent:.0%} of the budget used" if in_place else text
        if new != shown:
            print(f"{begin}{new}; Ctrl-C keeps it", end=end, file=sys.stderr, flush=True)
            shown = new

    try:
        with watched(show):
            yield
    finally:
        print(begin, end="", file=sys.stderr, flush=True)
