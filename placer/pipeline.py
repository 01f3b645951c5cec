"""The planning pipeline: `plan_step` goes from a graph and a cluster to the plan of one step.

It is the one list of planning passes. `place` calls it for a description of a cluster, and a session's master
(`runtime/master/master.py`) for a running cluster. It uses neither sockets nor clocks: the state of a running cluster is an argument,
namely what is already placed (`Kept`), and which memory tasks can access of each other (`MemoryAccess`).
"""

from __future__ import annotations

import difflib
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.core.argument_names import check_flags, explains_arguments
from ..graph.core.default_graph import get_default_graph
from ..graph.core.errors import InvalidArgumentError, ResourceExhaustedError
from ..graph.core.graph import Graph, Node, Tensor
from ..graph.core.interpreter_state import collector_paused
from ..graph.core.shape import Dims
from ..graph.core.source_location import shows_users_frames
from ..graph.tensors.indexed_slices import IndexedSlices
from ..graph.tensors.sparse_tensor import SparseTensor
from .cluster.calibration import Calibration, own
from .cluster.load import Devices, Jobs, as_cluster
from .cluster.spec import Cluster
from .cost.memory import check_state
from .cost.profile import Profile, as_profile
from .cost.shapes import Sizes, as_tensor, given_shapes, listed_tensors, plan_sizes, resized
from .partition.control_edges import bypassed_noops
from .partition.one_sided_access import AssumedAccess, MemoryAccess, OneSidedPasses, at_hand
from .partition.one_sided_updates import moved_parts
from .partition.partition import partition
from .partition.prune import initializers, needed
from .plan import Plan, tools
from .rules.place import Search, place as place_nodes
from .rules.placement import Placement
from .schedule.critical_path import order_by_rank
from .schedule.from_search import execution_order
from .schedule.pacing import schedule_receives
from .search import FROM_RULES, SEARCHES
from .search.from_graph import CLIENT
from .search.memory_profile import check_assignment
from .search.problem import Found, InfeasibleError, Objective, Problem, Solution
from .search.types import Ints
from .simulate import is_exact, seconds_of, step_of
from .views.facts import Facts
from .views.lint_traffic import unknown_sizes

if TYPE_CHECKING:
    import numpy.typing as npt

logger = logging.getLogger(__name__)

OBJECTIVES = ("makespan", "latency", "throughput")
STRATEGIES = ("rules", *SEARCHES)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How a step is planned. `place` says what each option does.

    Raises:
        ValueError, TypeError: an option has an invalid value.
    """

    allow_soft_placement: bool = False
    strategy: str | Callable[[Problem], npt.ArrayLike] = "rules"
    budget_s: float = 5.0
    seed: int = 0
    enable_bfloat16_sendrecv: bool = False
    enable_recv_scheduling: bool = False
    costs: Profile | None = None
    objective: str = "makespan"
    contended: bool = True
    profile: Calibration | str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        flags = ("allow_soft_placement", "enable_bfloat16_sendrecv", "enable_recv_scheduling", "contended")
        check_flags(**{name: getattr(self, name) for name in flags})
        if self.profile is not None and not isinstance(self.profile, (Calibration, str, os.PathLike)):
            raise TypeError(
                f"profile must be the path of a machine's profile, a Calibration or 'none', not {self.profile!r}"
            )
        if not callable(self.strategy) and self.strategy not in STRATEGIES:
            close = difflib.get_close_matches(str(self.strategy).lower(), STRATEGIES, 1)
            meant = f": did you mean {close[0]!r}?" if close else "; strategies: " + ", ".join(STRATEGIES)
            raise ValueError(f"There is no placement strategy {self.strategy!r}{meant}")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"There is no objective {self.objective!r}; objectives: {', '.join(OBJECTIVES)}")
        if isinstance(self.budget_s, bool) or not isinstance(self.budget_s, (int, float)):
            raise TypeError(f"budget_s must be a number of seconds, not {self.budget_s!r}")
        if not (math.isfinite(self.budget_s) and self.budget_s >= 0):
            raise ValueError(f"budget_s must be a finite number of seconds, at least 0, not {self.budget_s!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed must be an integer, not {self.seed!r}")


def objective_of(costs: Profile | None) -> str:
    """What the search for a session minimizes: the latency, if the links to its client were measured, else the makespan."""
    return "latency" if costs is not None and any(CLIENT in (link.a, link.b) for link in costs.links) else "makespan"


@dataclass(frozen=True, slots=True)
class Kept:
    """Decisions of a session's earlier steps.

    Attributes:
        placement: the placement of the whole graph, which stays; None: nodes are placed now.
        solution: the answer of the search that found it; None: the rules did.
        assigned: the devices that stateful nodes keep, by node name.
        later_steps: nodes are placed for later steps, too: a search then optimizes all nodes of the graph except those that initialize
            variables, or, with measured costs, the measured nodes.
        pruned: only the nodes that the step runs are placed.
    """

    placement: Placement | None = None
    solution: Solution | None = None
    assigned: Mapping[str, str] = field(default_factory=dict)
    later_steps: bool = False
    pruned: bool = False


NOTHING_KEPT = Kept()
NO_SHAPES: Mapping[str, Dims] = {}


def plan_step(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions,
    access: MemoryAccess,
    *,
    fetches: Sequence[Tensor] = (),
    targets: Sequence[Node] = (),
    feeds: Sequence[Tensor] = (),
    shapes: Mapping[str, Dims] = NO_SHAPES,
    kept: Kept = NOTHING_KEPT,
) -> Plan:
    """Plan one step: run the planning passes in order.

    Args:
        fetches: the tensors that the step returns.
        targets: the nodes that it runs for their effect.
        feeds: the tensors that it is fed.
        access: which memory tasks can access of each other.
        kept: earlier decisions.
        shapes: tensor name -> shape, where the graph leaves it open.

    Raises:
        InvalidArgumentError, ResourceExhaustedError: as in `place`. ValueError: a shape is invalid for a node.
    """
    cluster = _on_machine(cluster, options.profile)
    with collector_paused():
        nodes = needed(graph, fetches, targets, feeds)
        sizes = plan_sizes(nodes, shapes, options.costs)
        if shapes:
            sizes.checked()
        step = _Step(graph, cluster, options, access, fetches, targets, feeds, nodes, sizes)
        if kept.placement is not None:
            return replace(step.ordered(kept.placement), solution=kept.solution)
        to_place = sorted(nodes, key=lambda n: n.index) if kept.pruned else None
        solutions: list[Solution] = []

        def placed(search: Search | None) -> Placement:
            try:
                return place_nodes(
                    graph,
                    cluster,
                    assigned=kept.assigned,
                    allow_soft_placement=options.allow_soft_placement,
                    nodes=to_place,
                    search=search,
                )
            except InvalidArgumentError as e:
                if not kept.later_steps or not isinstance(e.op, Node) or e.op in nodes:
                    raise
                raise InvalidArgumentError(e.node_def, e.op, f"{e.message}\n{_not_needed(e.op)}") from None

        searched = options.strategy != "rules" and bool(graph.nodes)
        decisions = placed(_search(step, kept, solutions) if searched else None)
        check_state(decisions)
        plan = step.ordered(decisions)
        if not solutions:
            return plan
        if kept.later_steps:
            return replace(plan, solution=replace(solutions[-1], is_of_step=False))
        if not nodes:
            return replace(plan, solution=solutions[0])
        # The search had not counted the readers' copies. They are kept for a whole step, what is sent only from its arrival.
        if any(c.direct for c in plan.channels) and not Facts(plan).fits:
            decisions = placed(_search(step, kept, solutions, in_place=False))
            plan = step.ordered(decisions)
            if not Facts(plan).fits:
                plan = replace(step, in_place=False).ordered(decisions)
        plan = step.predicted(plan, solutions[-1])
        if options.strategy in FROM_RULES:
            with_place = graph.nodes if to_place is None else to_place
            plan = step.better(plan, step.plan(placed(None), by_rank=True), with_place)
    if plan.unknown_sizes and plan.solution is not None:
        for warning in unknown_sizes(Facts(plan)):
            logger.warning("%s", warning.text)
    # Nothing is proven of unknown sizes and iterations.
    if plan.solution is not None and not is_exact(plan, options.costs):
        plan = replace(plan, solution=replace(plan.solution, lower_bound=0.0))
    return plan


def _not_needed(node: Node) -> str:
    """Why a session places a node that the step does not need, and how it would not."""
    return (
        f"This step does not need '{node.name}', but a session places its whole graph. With "
        "ConfigProto(graph_options=GraphOptions(place_pruned_graph=True)) it places only what a step needs."
    )


def _on_machine(cluster: Cluster, given: Calibration | str | os.PathLike[str] | None) -> Cluster:
    """The cluster with the machine's profile that its predicted times rest on; `given` is `place`'s argument `profile`."""
    if given is None:
        return cluster if cluster.calibration is not None else cluster.on_profile(own())
    if given == "none":
        return replace(cluster, calibration=None, calibrated=())
    return cluster.on_profile(given if isinstance(given, Calibration) else Calibration.load(given), everywhere=True)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step, and the passes from a placement to its plan.

    Attributes are those of `plan_step`, and `nodes`: what it runs, inputs first; `in_place`: whether it reads variables in other tasks'
    memory where it can.
    """

    graph: Graph
    cluster: Cluster
    options: PlanOptions
    access: MemoryAccess
    fetches: Sequence[Tensor]
    targets: Sequence[Node]
    feeds: Sequence[Tensor]
    nodes: Sequence[Node]
    sizes: Sizes
    in_place: bool = True

    def ordered(self, decisions: Placement) -> Plan:
        """The plan of the step in this placement; if it was searched, with the faster of both orders of nodes."""
        if self.options.strategy == "rules":
            return self.plan(decisions, by_rank=True)
        plans = [self.plan(decisions, by_rank) for by_rank in (False, True)]
        return min(plans, key=lambda plan: _objective(*self._problem(plan))) if self.nodes else plans[0]

    def plan(self, decisions: Placement, by_rank: bool) -> Plan:
        """The plan of the step in this placement: the passes that follow placing, in their order.

        `by_rank`: devices run their nodes by upward rank; else in the order in which a clock starts them.
        """
        cluster, options, fed, nodes = self.cluster, self.options, set(self.feeds), self.nodes
        narrow = options.enable_bfloat16_sendrecv
        one_sided = OneSidedPasses(self.access, fed)
        device_of = one_sided.updates(nodes, decisions.device_of, cluster)
        ranked = order_by_rank(nodes, device_of, cluster, self.feeds) if by_rank else None
        if ranked is not None:
            nodes = ranked.nodes
        else:
            nodes = execution_order(
                nodes, device_of, cluster, feeds=self.feeds, costs=options.costs, narrow=narrow, contended=options.contended,
                fetches=self.counted, sizes=self.sizes,
                at_hand=at_hand(nodes, cluster, self.access, fed, self.in_place),
            )  # fmt: skip
        bypassed = bypassed_noops(nodes, device_of)
        cut = partition(
            nodes, device_of, feeds=self.feeds, fetches=self.fetches, enable_bfloat16_sendrecv=narrow, bypassed=bypassed, copies=True
        )  # fmt: skip
        if ranked is not None:
            cut = ranked.sends_first(cut)
        if self.in_place:
            cut = one_sided.reads(
                cut, nodes, decisions.device_of, {*self.targets, *(t.op for t in self.fetches)}, bypassed
            )
        cut = resized(cut, self.sizes)
        if options.enable_recv_scheduling:
            cut = schedule_receives(cut)
        return Plan(
            self.graph,
            cluster,
            decisions,
            cut,
            fetches=tuple(t.name for t in self.fetches),
            targets=tuple(n.name for n in self.targets),
            feeds=tuple(t.name for t in self.feeds),
            sizes=self.sizes,
            access=one_sided.result,
        )

    @property
    def counted(self) -> Sequence[Tensor] | None:
        """The fetches whose transfer to the client counts; None: none counts."""
        return self.fetches if self.options.objective == "latency" else None

    def predicted(self, plan: Plan, solution: Solution) -> Plan:
        """The plan of a search's placement, with the search's solution; its objective is that of this plan.

        The passes may make a step faster than the search could: they run nodes in another task's memory, and bypass NoOps. The
        search's lower bound does not hold for such a plan.
        """
        objective = _objective(*self._problem(plan))
        return replace(
            plan, solution=replace(solution, objective=objective, lower_bound=_bound(plan, objective, solution))
        )

    def better(self, plan: Plan, other: Plan, placed: Sequence[Node]) -> Plan:
        """The searched plan, or that of the rules where it is faster and fits into memory. `placed`: the nodes with a device.

        The search evaluated the rules' placement, too, but without the passes that follow.
        """
        from .search.assign import topologically  # the searches and their compiled loops

        problem, assignment = self._problem(other)
        objective, solution = _objective(problem, assignment), plan.solution
        if solution is None or objective >= solution.objective:
            return plan
        try:
            check_state(other.decisions)
            check_assignment(problem, assignment)
        except (ResourceExhaustedError, InfeasibleError):
            return plan
        if not Facts(other).fits:
            return plan
        number = {str(d.name): i for i, d in enumerate(self.cluster.devices)}
        devices = np.array([number[other.decisions.device_of(n)] for n in topologically(placed)], np.int32)
        devices.flags.writeable = False
        history = (*solution.history, Found("rules", objective, solution.history[-1].seconds))
        bound = _bound(other, objective, solution)
        return replace(
            other,
            solution=replace(solution, assignment=devices, objective=objective, lower_bound=bound, history=history),
        )

    def _problem(self, plan: Plan) -> tuple[Problem, Ints]:
        """A plan's step as a placement problem, and the plan's assignment."""
        options = self.options
        problem, assignment, *_ = step_of(
            plan, contended=options.contended, costs=options.costs, client=self.counted is not None,
            objective=_minimized(options),
        )  # fmt: skip
        return problem, assignment


def _objective(problem: Problem, assignment: Ints) -> float:
    if problem.objective is Objective.THROUGHPUT:
        return problem.evaluate(assignment)
    return seconds_of(problem, assignment, in_order=True)


def _bound(plan: Plan, objective: float, solution: Solution) -> float:
    """A lower bound for the plan of a search's assignment; 0 where a pass did what no assignment can do."""
    bound = solution.lower_bound
    if objective < bound * (1 - 1e-9) or moved_parts(plan.partitions, plan.decisions.device_of):
        return 0.0
    return min(bound, objective)


def _minimized(options: PlanOptions) -> Objective:
    return Objective.THROUGHPUT if options.objective == "throughput" else Objective.MAKESPAN


def _search(step: _Step, kept: Kept, solutions: list[Solution], in_place: bool = True) -> Search | None:
    """The search that places nodes; it adds its solution to `solutions`. `in_place`: what is read in place costs it nothing."""
    from .search.assign import searching  # the searches and their compiled loops

    graph, cluster, options, sizes = step.graph, step.cluster, step.options, step.sizes
    feeds, fetches, running = step.feeds, step.fetches, step.nodes
    if kept.later_steps:
        feeds, fetches = _placeholders(graph.nodes), ()
        if options.costs is not None:
            running = [n for n in graph.nodes if n.name in options.costs.nodes]
        else:  # variables are initialized once
            once = initializers(graph.nodes)
            running = [n for n in graph.nodes if n not in once] or graph.nodes
        sizes = plan_sizes(running, NO_SHAPES, options.costs)
    unknown = sizes.unknown(sorted(running, key=lambda n: n.index), set(feeds))
    if unknown and kept.later_steps:
        logger.warning(
            "The search for the session's placement counts unknown sizes as 1: %s. Measure a step, and pass its profile: "
            "ConfigProto(placement_costs=dt.profile(session, fetches, feeds))", listed_tensors(unknown, sizes),
        )  # fmt: skip

    measured = () if options.costs is None else options.costs.nodes
    counted = all(n.name in measured for n in running if n.back_edge is not None)  # the iterations of loops
    return searching(
        cluster, options.strategy, running=running, feeds=feeds, budget_s=options.budget_s, seed=options.seed,
        costs=options.costs, narrow=options.enable_bfloat16_sendrecv, on_solution=solutions.append, contended=options.contended,
        objective=_minimized(options),
        fetches=fetches if options.objective == "latency" else None, sizes=sizes,
        at_hand=at_hand(running, cluster, step.access, set(feeds), in_place), exact=counted and not unknown,
    )  # fmt: skip


def _placeholders(nodes: Iterable[Node]) -> list[Tensor]:
    return [n.outputs[0] for n in nodes if n.type == "Placeholder"]


@shows_users_frames
@explains_arguments
def place(
    results: Any = None,
    /,
    cluster: Jobs | Cluster | str | os.PathLike[str] | Any = None,
    *,
    graph: Graph | None = None,
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
    profile: Calibration | str | os.PathLike[str] | None = None,
    shared_memory: bool | None = None,
) -> Plan:
    """Plan a step: choose devices, partition the graph, and predict costs. No server need run; a session on such a cluster plans the same.

    Args:
        results: what the step returns or runs: tensors, variables or nodes, one or a list, as objects or names. Or a graph; `fetches` and
            `targets` then define the step.
        cluster: a description: jobs with tasks as in `train.ClusterSpec`, numbers of tasks (`{"ps": 2, "worker": 2}`), or the path of a
            YAML file (docs/guides/devices.md); or a running session, server or cluster; None: one local task.
        graph: the graph; None: that of `results`, or the default graph.
        fetches: the same as `results`, if `results` is a graph or is not given.
        targets: nodes that the step runs for their effect. Without fetches and targets: all nodes.
        feeds: tensors that are fed; None: all placeholders that the step needs. A mapping also gives their shapes: its values are arrays,
            objects with a `shape`, nested lists, or None.
        shapes: tensors, or their names -> shapes that the graph leaves open, `{x: (64, 784)}`: of feeds, of batches, of results that
            depend on values (`boolean_mask`). Unknown sizes count as 1, and figures that depend on them are marked with `≥`. Shapes do
            not change the order of nodes that the rules placed, because a session prepares a step without them.
        master: the task that the session connects to, such as `/job:worker/task:0`; None: the first task of the job `chief`, `master` or
            `worker`, else of the first job by name.
        devices: job or task -> its devices, `{"worker": ["cpu:0", "gpu:0"]}`; default: `cpu:0`. A device may be a mapping with `name`,
            `memory` (bytes), `flops` (operations per second) and `bandwidth` (bytes per second).
        allow_soft_placement: if a requested device type or index is not available, use another device of the same task.
        strategy: `rules`: TensorFlow's. `auto`: a search, among the devices that requests and colocation groups allow, for the shortest
            predicted step. `single`, `heft`, `m-etf`, `contiguous`, `local-search`, `exact`: one part of that search. Or a function from
            a `placer.search.problem.Problem` to an array with the device number of each node.
        budget_s: search effort, in seconds of two typical CPU cores. It is counted in operations, so that results are deterministic.
        seed: random seed of the search; the same input, budget and seed give the same plan on any machine.
        enable_bfloat16_sendrecv: plan for this option of `GraphOptions`: float32 values are sent as bfloat16.
        enable_recv_scheduling: plan for this option of `GraphOptions`: sends are delayed while their receiver is far behind.
        objective: what a search minimizes. `makespan`: the time of one step on the devices. `latency`: the time of one step for its
            client, including feeds and fetches. `throughput`: the largest load of a device, which is the time between the starts of
            overlapping steps.
        contended: for a search: whether transfers over the same link wait for each other.
        costs: for a search: measured costs of nodes and links, a `dt.Profile` or the path of one; None: analytic costs.
        profile: the machine profile (`dovetail calibrate`) for processors without described speeds: a path or a `Calibration`; `none`: no
            profile; None: that of this machine, if measured, for its tasks and for tasks on unknown hosts.
        shared_memory: whether tasks read and update each other's variables in memory (one-sided access). None: tasks of one host do.
            Tasks that are given by number count as being on one host, unless a link between them is described.

    Raises:
        InvalidArgumentError: the graph cannot be placed, or a device or task is malformed or does not exist.
        ResourceExhaustedError: the variables do not fit into the described memory of the devices; the message names the tightest set.
        OSError: the cluster's file cannot be read.
        ValueError, KeyError, TypeError: a fetch, target or feed is not in the graph; the strategy or job is unknown; an option has an
            invalid value; a shape contradicts the graph, or is invalid for a node.

    >>> plan = dt.place(loss, {"ps": 2, "worker": 1}, devices={"worker": ["cpu:0", "gpu:0"]})
    >>> print(plan.explain("dense/MatMul"))
    """
    if shared_memory is not None and not isinstance(shared_memory, bool):
        raise TypeError(f"shared_memory must be True, False or None, not {shared_memory!r}")
    options = PlanOptions(
        allow_soft_placement, strategy, budget_s, seed, enable_bfloat16_sendrecv, enable_recv_scheduling, as_profile(costs),
        objective, contended, profile,
    )  # fmt: skip
    if isinstance(results, Graph):
        if graph is not None and graph is not results:
            raise ValueError("Two different graphs are given: the first argument and `graph`. Leave out one")
        graph = results
    elif results is not None:
        if fetches is not None:
            raise ValueError(
                "The first argument already has the fetches: leave out `fetches`, or pass a graph as the first argument"
            )
        fetches = results
    if graph is None:
        graph = next((e.graph for e in _leaves((fetches, targets)) if hasattr(e, "graph")), None) or get_default_graph()
    found = as_cluster(cluster, devices, master)
    returned, run = _elements(graph, fetches), _elements(graph, targets)
    tensors = [t for t in returned if isinstance(t, Tensor)]
    nodes = [e.op if isinstance(e, Tensor) else e for e in run] + [n for n in returned if isinstance(n, Node)]
    if fetches is None and targets is None:
        nodes = list(graph.nodes)
    if feeds is None:
        fed = _placeholders(needed(graph, tensors, nodes))
    else:
        fed = [as_tensor(graph, t) for t in _elements(graph, list(feeds) if isinstance(feeds, Mapping) else feeds)]
    return plan_step(
        graph, found, options, AssumedAccess(found, shared_memory), fetches=tensors, targets=nodes, feeds=fed,
        shapes=given_shapes(graph, feeds, shapes),
    )  # fmt: skip


def _elements(graph: Graph, given: Any) -> list[Tensor | Node]:
    """Tensors, nodes or names, one or many, as elements of the graph, each once."""
    return list(dict.fromkeys(graph.as_graph_element(x) for x in _leaves(given)))


def _leaves(given: Any) -> Iterator[Any]:
    """What lists, tuples, the values of dictionaries and sparse tensors hold, however nested."""
    if given is None:
        return
    if isinstance(given, (IndexedSlices, SparseTensor)):
        given = given._tensors()
    if isinstance(given, Mapping):
        given = list(given.values())
    if isinstance(given, Iterable) and not isinstance(given, (str, Tensor)) and not hasattr(given, "_as_graph_element"):
        for one in given:
            yield from _leaves(one)
    else:
        yield given


tools["place"] = place
