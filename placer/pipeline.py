"""The planning pipeline: `place` goes from a graph and a cluster description to the parts of all devices.

A session's master takes the same way, through the same functions (`runtime/master/master.py`), for the graph and the cluster that it has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..graph.core.default_graph import get_default_graph
from ..graph.core.graph import Graph, Node, Tensor
from ..graph.core.interpreter_state import collector_paused
from .cluster.load import Devices, Jobs, as_cluster
from .cluster.spec import Cluster
from .cost.memory import check_state
from .cost.profile import as_profile
from .cost.shapes import as_tensor, given_shapes, plan_sizes, resized
from .partition.partition import partition
from .partition.prune import needed
from .plan import Plan, tools
from .rules.place import place as place_nodes
from .schedule.critical_path import order_by_rank
from .schedule.from_search import execution_order
from .schedule.pacing import schedule_receives
from .search import SEARCHES
from .search.problem import Objective
from .views.facts import Facts
from .views.lint_traffic import unknown_sizes

if TYPE_CHECKING:
    import numpy.typing as npt

    from .cost.profile import Profile
    from .search.problem import Problem, Solution

logger = logging.getLogger(__name__)

OBJECTIVES = ("makespan", "latency", "throughput")
STRATEGIES = ("rules", *SEARCHES)


def place(
    graph: Graph | None,
    cluster: Jobs | Cluster | str | os.PathLike[str] | Any = None,
    *,
    fetches: Any = None,
    targets: Any = None,
    feeds: Any = None,
    shapes: Mapping[Any, Any] | None = None,
    master: str | None = None,
    devices: Devices | None = None,
    allow_soft_placement: bool = False,
    strategy: str | Callable[[Problem], npt.ArrayLike] = "rules",
    budget_s: float = 5.0,
    seed: int = 0,
    enable_bfloat16_sendrecv: bool = False,
    enable_recv_scheduling: bool = False,
    costs: Profile | str | os.PathLike[str] | None = None,
    objective: str = "makespan",
    contended: bool = True,
) -> Plan:
    """Plan a step; no server has to run.

    Args:
        graph: the graph; None: the default graph.
        cluster: jobs with their tasks as `train.ClusterSpec` takes them, or numbers of tasks
            (`{"ps": 2, "worker": 2}`); the path of a YAML file (docs/devices.md shows one); what runs and
            knows its devices: a session, a server, a `LocalCluster`; None: one local task.
        fetches: tensors (or nodes) that the step returns, one or a list, as objects or names.
        targets: nodes that it runs for their effect. With neither fetches nor targets: all nodes.
        feeds: tensors that it is given; None: all placeholders. A mapping also says how large they are: its values are arrays,
            anything with a `shape`, nested lists, or None.
        shapes: tensors, or their names, -> shapes: `{x: (64, 784)}`. They complete shapes that the graph leaves open: of feeds, of
            batches, of what only a run can tell (`boolean_mask`). Sizes that stay unknown count as 1; numbers that depend on them
            are marked with `≥`. The order of nodes that the rules placed does not depend on shapes: a session does not know them either
            when it prepares a step.
        master: the task that the session talks to, such as `/job:worker/task:0`; None: the first task of the
            job `chief`, `master` or `worker`, else of the first job by name.
        devices: job or task -> its devices, `{"worker": ["cpu:0", "gpu:0"]}`; a job not named has `cpu:0`. A
            device may be a mapping with `name`, `memory` (bytes), `flops` and `bandwidth` (per second).
        allow_soft_placement: give up a device type or index that cannot be had.
        strategy: `rules`: TensorFlow's. `auto`: among the devices that requests and groups leave, those with
            which the step is predicted to be fastest; `single`, `heft`, `m-etf`, `contiguous`,
            `local-search`, `exact`: one part of that search. A function from the problem
            (`placer.search.problem.Problem`) to the device of each of its nodes: that.
        budget_s: search effort in reference-CPU seconds (deterministic, not wall-clock). seed: random seed of the search;
            the same input, budget and seed give the same plan on any machine.
        enable_bfloat16_sendrecv, enable_recv_scheduling: what a session does that has these `GraphOptions`:
            float32 crosses as bfloat16; sends are held back while their receiver is far behind.
        objective: what a search makes small: `makespan`: the time of one step, on the devices; `latency`: the time of one step for
            its client, with what is fed and fetched; `throughput`: the largest load of a device, which is the time from one step to
            the next when many are under way at once.
        contended: whether transfers over the same link wait for each other, for a search.
        costs: what nodes and links take, for a search: a `dt.Profile`, or the path of one; None: analytic costs.

    Raises:
        InvalidArgumentError: the graph cannot be placed, or a device or task is malformed or not there.
        ResourceExhaustedError: the variables do not fit the devices' memory, where that is described; the text names the
            tightest set.
        OSError: the file that describes the cluster cannot be read.
        ValueError, KeyError, TypeError: a fetch, target or feed is not in the graph; no such strategy; no
            such job; a shape contradicts the graph, or a node cannot take it.

    >>> plan = dt.place(graph, {"ps": 2, "worker": 1}, fetches=loss, devices={"worker": ["cpu:0", "gpu:0"]})
    >>> print(plan.explain("dense/MatMul"))
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"There is no objective {objective!r}; objectives: {', '.join(OBJECTIVES)}")
    if not callable(strategy) and strategy not in STRATEGIES:
        raise ValueError(f"There is no placement strategy {strategy!r}; strategies: {', '.join(STRATEGIES)}")
    graph = get_default_graph() if graph is None else graph
    found = as_cluster(cluster, devices, master)
    returned, run = _elements(graph, fetches), _elements(graph, targets)
    fed = [as_tensor(graph, t) for t in _elements(graph, list(feeds) if isinstance(feeds, Mapping) else feeds)]
    if feeds is None:
        fed = [n.outputs[0] for n in graph.nodes if n.type == "Placeholder"]
    tensors = [t for t in returned if isinstance(t, Tensor)]
    nodes = [e.op if isinstance(e, Tensor) else e for e in run] + [n for n in returned if isinstance(n, Node)]
    if fetches is None and targets is None:
        nodes = list(graph.nodes)
    told = given_shapes(graph, feeds, shapes)
    with collector_paused():
        steps = needed(graph, tensors, nodes, fed)
        solutions: list[Solution] = []
        measured = None
        if costs is not None:
            measured = as_profile(costs)
        sizes = plan_sizes(steps, told, measured).checked()
        search = None
        if strategy != "rules":
            from .search.assign import searching  # loads the searches

            search = searching(
                found, strategy, running=steps, feeds=fed, budget_s=budget_s, seed=seed, costs=measured,
                narrow=enable_bfloat16_sendrecv, on_solution=solutions.append, contended=contended,
                objective=Objective.THROUGHPUT if objective == "throughput" else Objective.MAKESPAN,
                fetches=tensors if objective == "latency" else None, sizes=sizes,
            )  # fmt: skip
        decisions = place_nodes(
            graph,
            found,
            allow_soft_placement=allow_soft_placement,
            search=search,
        )
        check_state(decisions)
        ranked = None
        if search is None:
            ranked = order_by_rank(steps, decisions.device_of, found, fed)
            steps = ranked.nodes
        else:
            steps = execution_order(
                steps, decisions.device_of, found, feeds=fed, costs=measured, narrow=enable_bfloat16_sendrecv,
                fetches=tensors if objective == "latency" else None, contended=contended, sizes=sizes,
            )  # fmt: skip
        cut = partition(
            steps, decisions.device_of, feeds=fed, fetches=tensors, enable_bfloat16_sendrecv=enable_bfloat16_sendrecv,
            copies=True,
        )  # fmt: skip
        if ranked is not None:
            cut = ranked.sends_first(cut)
        cut = resized(cut, sizes)
        if enable_recv_scheduling:
            cut = schedule_receives(cut)
    plan = Plan(
        graph,
        found,
        decisions,
        cut,
        fetches=tuple(t.name for t in tensors),
        targets=tuple(n.name for n in nodes),
        feeds=tuple(t.name for t in fed),
        sizes=sizes,
        solution=solutions[0] if solutions else None,
    )
    if plan.solution is None or not plan.unknown_sizes:
        return plan
    for warning in unknown_sizes(Facts(plan)):
        logger.warning("%s", warning.text)
    return replace(plan, solution=replace(plan.solution, lower_bound=0.0))  # nothing is proven of unknown sizes


def _elements(graph: Graph, given: Any) -> list[Tensor | Node]:
    """One or many tensors, nodes or names as elements of the graph."""
    if given is None:
        return []
    if isinstance(given, Mapping) or (isinstance(given, Iterable) and not isinstance(given, (str, Tensor))):
        many = [given] if hasattr(given, "_as_graph_element") else list(given)
    else:
        many = [given]
    return [graph.as_graph_element(x) for x in many]


tools["place"] = place
