"""Placement by search: constraints stay hard, and everything else goes where the step is fastest.

Requests, partial specs, colocation and supported device types have become groups and candidates already
(`rules/colocation.py`). The groups are those of the problem; candidates are the devices that a group may have. Nodes that
the step does not run stay where the rules put them, unless they share a group with one that runs. The
placement by the rules is one of the starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ...graph.core.errors import InvalidArgumentError, ResourceExhaustedError
from ...graph.core.graph import Node, Tensor
from ..cluster.spec import Cluster
from ..cost.memory import NAMED, all_too_large, one_too_large
from ..cost.shapes import Sizes
from ..partition.insert_channels import is_copied
from ..render.text import count_text, listed, size_text, sum_texts, time_text
from ..rules.colocation import Groups
from . import FROM_RULES, SEARCHES
from .feasible import check
from .from_graph import copy_cost, step_problem
from .memory_profile import PeakError, check_assignment, check_moments
from .portfolio import search, shown_with
from .problem import Found, InfeasibleError, Objective, Problem, Solution
from .types import Ints

if TYPE_CHECKING:
    from ..cost.profile import Profile
    from ..rules.place import Search

logger = logging.getLogger(__name__)

Strategy: TypeAlias = str | Callable[[Problem], npt.ArrayLike]


def assign(
    nodes: Sequence[Node],
    cluster: Cluster,
    groups: Groups,
    by_rules: npt.NDArray[np.signedinteger],
    *,
    running: Collection[Node] | None = None,
    feeds: Collection[Tensor] = (),
    strategy: Strategy = "auto",
    objective: Objective = Objective.MAKESPAN,
    budget_s: float = 5.0,
    seed: int = 0,
    costs: Profile | None = None,
    narrow: bool = False,
    fetches: Collection[Tensor] | None = None,
    contended: bool = True,
    sizes: Sizes | None = None,
    at_hand: Collection[Tensor] = (),
    exact: bool = True,
) -> tuple[Ints, npt.NDArray[np.bool_], Solution]:
    """A device for each node, and what the search says about it.

    Args:
        nodes: the nodes to place, in order of creation. groups: what they demand, with candidates for all.
        by_rules: per node index the device that the rules give, as a number of `cluster.devices`.
        running: the nodes that the step runs; None: all. feeds: the tensors that it is given.
        strategy: a name (`SEARCHES`), or a function from the problem to an assignment of nodes
            (what it says about nodes that the step does not run is not used).
        budget_s, seed, exact: see `search`. costs, narrow, fetches, contended, sizes, at_hand: see `step_problem`.

    Returns:
        (len(nodes),) numbers of `cluster.devices`; whether there was a choice for each; and the solution of
        the problem behind it.

    Raises:
        ResourceExhaustedError: memory does not suffice; the text names the tightest set.
        InvalidArgumentError: a function's assignment breaks constraints.
        ValueError: no such strategy, or it found nothing.
    """
    ordered = topologically(nodes)
    place = {node: i for i, node in enumerate(ordered)}
    roots = np.array([groups.find(node.index) for node in ordered])
    _, first, group = np.unique(roots, return_index=True, return_inverse=True)
    number = np.array([groups.number[root] for root in roots[first].tolist()])
    kinds, kind = np.unique(number, return_inverse=True)
    allowed = np.zeros((len(kinds), len(cluster.devices)), bool)
    for k, demand in enumerate(kinds.tolist()):
        allowed[k, list(groups.constraints.candidates(demand).devices)] = True
    rules = np.array([by_rules[node.index] for node in ordered], np.int32)
    of_group: Ints = kind.astype(np.int32)
    runs = np.ones(len(first), bool)
    if running is not None:  # what does not run stays where it is
        runs[:] = False
        runs[group[[place[node] for node in running if node in place]]] = True
        idle = np.flatnonzero(~runs)
        fixed, row = np.unique(rules[first[idle]], return_inverse=True)
        of_group[idle] = len(allowed) + row
        allowed = np.concatenate([allowed, np.eye(len(cluster.devices), dtype=bool)[fixed]])
    problem = step_problem(
        ordered, cluster, running=running, feeds=feeds, group=group.astype(np.int32), allowed=allowed,
        allowed_kind=of_group[group], objective=objective, costs=costs, narrow=narrow,
        fetches=fetches, contended=contended, sizes=sizes, at_hand=at_hand,
    )  # fmt: skip
    if callable(strategy):
        solution = _by_function(problem, strategy, np.where(runs[group], -1, rules), ordered, cluster)
    else:
        if strategy not in SEARCHES:
            raise ValueError(f"There is no search {strategy!r}; searches: {', '.join(SEARCHES)}")
        starts = [("rules", rules[first])] if strategy in FROM_RULES else []
        try:
            check(problem)
            check_moments(problem)
            logger.info(
                "Searching for a placement (%s): %s on %s, budget %g s",
                strategy, count_text(problem.nodes, "node"), count_text(problem.devices, "device"), budget_s,
            )  # fmt: skip
            predicted = _with_copies(problem, ordered, running, cluster, at_hand, sizes or Sizes())
            with shown_with(predicted):
                solution = search(problem, budget_s=budget_s, seed=seed, strategy=strategy, starts=starts, exact=exact)
            logger.info(
                "Found a placement (%s): %s predicted%s", solution.history[-1].by, time_text(predicted(solution), exact),
                f", lower bound {time_text(solution.lower_bound)}" if exact else "",
            )  # fmt: skip
            check_assignment(problem, solution.assignment)
        except PeakError as e:
            raise _too_much_at_once(e, problem, ordered, cluster) from None
        except InfeasibleError as e:
            raise _does_not_fit(e, problem, ordered, cluster) from None
    solution = replace(solution, minimized=objective)
    back = [place[node] for node in nodes]
    chosen = problem.group_allowed.sum(axis=1)[problem.group] > 1
    return solution.assignment[back], chosen[back], solution


def searching(
    cluster: Cluster, strategy: Strategy, *, running: Collection[Node] | None = None, feeds: Collection[Tensor] = (),
    budget_s: float = 5.0, seed: int = 0, costs: Profile | None = None, narrow: bool = False,
    objective: Objective = Objective.MAKESPAN, fetches: Collection[Tensor] | None = None, contended: bool = True,
    on_solution: Callable[[Solution], None] | None = None, sizes: Sizes | None = None, at_hand: Collection[Tensor] = (),
    exact: bool = True,
) -> Search | None:  # fmt: skip
    """`assign` as what `placer.rules.place.place` takes for `search`; None for the strategy "rules".

    `on_solution` is given the solution.
    """
    if strategy == "rules":
        return None

    def search(
        nodes: Sequence[Node], groups: Groups, by_rules: npt.NDArray[np.signedinteger]
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        devices, chosen, solution = assign(
            nodes, cluster, groups, by_rules, running=running, feeds=feeds, strategy=strategy, budget_s=budget_s,
            seed=seed, costs=costs, narrow=narrow, objective=objective, fetches=fetches, contended=contended,
            sizes=sizes, at_hand=at_hand, exact=exact,
        )  # fmt: skip
        if on_solution is not None:
            on_solution(solution)
        return devices, chosen

    return search


def topologically(nodes: Sequence[Node]) -> list[Node]:
    """The nodes in order of creation; where a control edge was added against it, behind what they need."""
    inside = {node: i for i, node in enumerate(nodes)}
    against = any(inside.get(c, -1) > i for i, node in enumerate(nodes) for c in node.control_inputs)
    if not against:
        return list(nodes)

    before = {node: [b for b in node.before if b in inside] for node in nodes}  # not back to a loop's begin
    return list(TopologicalSorter(before).static_order())


def _with_copies(
    problem: Problem,
    nodes: Sequence[Node],
    running: Collection[Node] | None,
    cluster: Cluster,
    at_hand: Collection[Tensor],
    sizes: Sizes,
) -> Callable[[Solution], float]:
    """A function that gives a solution's objective with its one-sided reads, which cost nothing in the problem.

    Each device copies a variable's value of another task once, before the first node that needs it.
    """
    runs, values = None if running is None else set(running), set(at_hand)
    place = {node: i for i, node in enumerate(nodes)}
    readers: dict[Tensor, list[int]] = {}
    for i, node in enumerate(nodes):
        for t in dict.fromkeys(node.inputs):
            if t in values and not is_copied(t.op) and (runs is None or node in runs):
                readers.setdefault(t, []).append(i)
    latency, rate = copy_cost(cluster)
    reads = [(place[t.op], found, latency + sizes.bytes(t) / rate) for t, found in readers.items() if t.op in place]

    def predicted(solution: Solution) -> float:
        device, copying = solution.assignment, np.zeros(problem.nodes)
        task = problem.places[device]
        for owner, found, seconds in reads:
            first = {int(device[i]): i for i in reversed(found) if task[i] != task[owner]}
            copying[list(first.values())] += seconds
        if not copying.any():
            return solution.objective
        return replace(problem, seconds=problem.seconds + copying).evaluate(device)

    return predicted


def _by_function(
    problem: Problem,
    strategy: Callable[[Problem], npt.ArrayLike],
    fixed: npt.NDArray[np.signedinteger],
    nodes: Sequence[Node],
    cluster: Cluster,
) -> Solution:
    """The assignment that a function gives; nodes with a device in `fixed`, not -1, have that one anyway."""
    given = np.asarray(strategy(problem))
    name = getattr(strategy, "__name__", repr(strategy))
    if given.shape != (problem.nodes,) or not np.issubdtype(given.dtype, np.integer):
        raise InvalidArgumentError.of(
            f"The strategy {name} must return one integer for each of {problem.nodes} nodes, "
            f"not {given.dtype} of shape {given.shape}",
        )
    if given.min() < 0 or given.max() >= problem.devices:
        raise InvalidArgumentError.of(f"The strategy {name} must return devices from 0 to {problem.devices - 1}")
    assignment = np.where(fixed >= 0, fixed, given).astype(np.int32)
    allowed = problem.group_allowed[problem.group]
    wrong = np.flatnonzero(~allowed[np.arange(problem.nodes), assignment])
    if len(wrong):
        node, names = nodes[wrong[0]], [str(d.name) for d in cluster.devices]
        may = ", ".join(name for name, yes in zip(names, allowed[wrong[0]], strict=True) if yes)
        more = f"; other nodes that are wrong: {len(wrong) - 1}" if len(wrong) > 1 else ""
        raise InvalidArgumentError(
            node, node,
            f"The strategy {name} puts '{node.name}' on {names[assignment[wrong[0]]]}, but it may only be on {may}"
            f"{more}\n  '{node.name}' ({node.type}) requests '{node.device}', created at {node.source}",
        )  # fmt: skip
    broken = problem.violations(assignment)
    if broken:
        raise InvalidArgumentError.of(f"The strategy {name} breaks constraints: {'; '.join(broken)}")
    assignment.flags.writeable = False
    value = problem.evaluate(assignment)
    return Solution(assignment, value, 0.0, (Found(name, value, 0.0),))


def _too_much_at_once(
    e: PeakError, problem: Problem, nodes: Sequence[Node], cluster: Cluster
) -> ResourceExhaustedError:
    node, device = nodes[e.at], cluster.devices[e.device]
    alive = listed((f"'{nodes[i].name}' ({size_text(round(size))})" for i, size in e.alive), NAMED)
    need, have, less = sum_texts(
        round(sum(size for _, size in e.alive)), int(problem.capacity[e.device]), int(np.ceil(e.short))
    )
    what = f"{need} at once: {alive}"
    if e.proven:
        text = f"'{node.name}' ({node.type}) needs {what}; no device that it may be on has more than {have}"
    else:
        text = (
            f"the best placement that was found holds {what}, when '{node.name}' ({node.type}) runs on {device.name}, "
            f"which has {have}"
        )
    return ResourceExhaustedError(
        node, node,
        f"Memory does not suffice at every moment of the step: {text}, {less} too little. Allow more devices, "
        f"give them more memory, or make the batch smaller.\n  '{node.name}' was created at {node.source}",
    )  # fmt: skip


def _does_not_fit(
    e: InfeasibleError, problem: Problem, nodes: Sequence[Node], cluster: Cluster
) -> ResourceExhaustedError:
    heavy = [i for i in e.nodes.tolist() if problem.memory[i] > 0]
    state = [(nodes[i], float(problem.memory[i])) for i in heavy]
    may = [cluster.devices[d] for d in e.devices]
    if e.short and len(np.unique(problem.group[heavy])) == 1:
        return one_too_large(state, may, len(may) == problem.devices)
    return all_too_large(state, may)
