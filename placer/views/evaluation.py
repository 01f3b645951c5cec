"""The evaluation of a plan: predicted time, lower bound, bottleneck, and alternatives.

All times are predicted with the costs that `simulate` uses. Under these costs, the lower bound is proven: no placement of these nodes on
these devices is faster. The hint about replicas compares the split with data parallelism: every device of the
fastest kind runs the whole step on its share of the batch, and all of them exchange the updates by ring all-reduce
(each value is sent twice, except one share; Patarasuk and Yuan 2009). Replicas on one machine share its cores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from ..cost.profile import Profile, as_profile
from ..cost.shapes import how_to_give, listed_tensors, shape_options
from ..cost.static import state_bytes
from ..plan_data import PlanData
from ..render.text import short, size_text, time_text
from ..rules.placement import Rule
from ..schedule.pipeline_parallel import PIPELINES, Pipeline
from ..search.problem import Problem
from ..simulate import Timeline, is_exact, plan_timeline, seconds_of, step_of
from .facts import SLOWER, fastest_alone, fits, minimizes_load


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one device in a step.

    Attributes:
        device: its name.
        busy: seconds for which it computes.
        peak: peak memory in bytes.
        capacity: its memory in bytes; infinite if that is not described.
    """

    device: str
    busy: float
    peak: float
    capacity: float


@dataclass(frozen=True, slots=True)
class Hint:
    """A suggestion to use data parallelism: number of replicas, predicted time of a step, and bytes of updates that they exchange."""

    devices: int
    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Bubble:
    """The pipeline that a step runs.

    Attributes:
        pipeline: the pipeline.
        bubble: the idle fraction of its devices' time, from the first pass to the last.
    """

    pipeline: Pipeline
    bubble: float


LISTED = 4
"""Rows of the critical path in a printed report."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `plan.report()`. It prints as text.

    Attributes:
        objective: predicted seconds of one step.
        lower_bound: seconds; no placement of these nodes on these devices is faster. 0 if sizes are unknown: nothing is proven then.
        gap: fraction by which the bound is below the objective.
        found_by: what found the placement: the rules, or a part of the search.
        best_single: (device, seconds) of the fastest step on a single device; None if no device can run all of it.
        critical: (device or link, seconds) on the critical path of the step, longest first. The sum is the predicted time.
        loads: the load of each device that is used, busiest first.
        hint: a suggestion to use data parallelism, if that would be faster; else None.
        pipeline: the pipeline that the step runs, or None.
        machine: whose profile the times rest on; '' if none.
        throughput: (seconds between the starts of overlapping steps, their lower bound), if throughput was the objective; else None.
        unknown: why times and bytes are only lower bounds, and what to do about it; '' if all sizes are known.
    """

    objective: float
    lower_bound: float
    found_by: str
    best_single: tuple[str, float] | None
    critical: tuple[tuple[str, float], ...]
    loads: tuple[Load, ...]
    hint: Hint | None
    pipeline: Bubble | None = None
    unknown: str = ""
    throughput: tuple[float, float] | None = None
    machine: str = ""

    @property
    def gap(self) -> float:
        """The fraction of the objective by which the lower bound is lower; 0 if nothing can be faster."""
        return 1 - self.lower_bound / self.objective if self.objective > 0 else 0.0

    def __str__(self) -> str:
        exact = not self.unknown
        slower = (
            exact
            and not self.throughput
            and self.best_single is not None
            and 0 < self.best_single[1] * SLOWER <= self.objective
        )
        lines = []
        if self.throughput is not None:
            every, bound = self.throughput
            limit = f"; lower bound {time_text(bound)}" if exact else ""
            lines.append(f"predicted throughput: a step every {time_text(every, exact)}, with overlapping steps{limit}")
        lines += [
            f"predicted step time: {time_text(self.objective, exact)}{', slower than one device' * slower}; placed by {self.found_by}"
            + f"; by the profile of {self.machine}" * bool(self.machine)
        ]
        if self.unknown:
            lines.append(f"  {self.unknown}")
        else:
            faster = self.best_single is not None and self.best_single[1] < self.lower_bound
            allowed = " that satisfies the device requests" if faster else ""
            if self.gap < 1e-9:
                lines.append(f"  optimal: equal to the lower bound{f' for any placement{allowed}' * faster}")
            else:
                least = time_text(self.lower_bound)
                lines.append(f"  lower bound for any placement{allowed}: {least}, at most {self.gap:.0%} less")
        if self.best_single is not None:
            device, seconds = self.best_single
            ratio = seconds / self.objective if self.objective > 0 else 1.0
            compared = "the same" if abs(ratio - 1) < 1e-9 else f"{ratio:.2f} times that"
            compared = f", {compared}" if exact else ""
            lines.append(f"  with all nodes on {short(device)}: {time_text(seconds, exact)}{compared}")
        if self.critical and self.objective:
            shown = [(what, s) for what, s in self.critical[:LISTED] if s >= 0.005 * self.objective]
            left = [s for _, s in self.critical[len(shown) :]]
            lines.append("  critical path:")
            lines += [f"    {s / self.objective:>4.0%}  {what}" for what, s in shown]
            if sum(left) >= 0.005 * self.objective:
                lines.append(f"    {sum(left) / self.objective:>4.0%}  {len(left)} more")
        lines.append("  devices:")
        width = max((len(short(load.device)) for load in self.loads), default=0)
        for load in self.loads:
            memory = size_text(round(load.peak), exact)
            if np.isfinite(load.capacity):
                memory += f" of {size_text(round(load.capacity))}"
            share = f"{load.busy / self.objective:.0%}" if self.objective > 0 else "-"
            lines.append(f"    {short(load.device):<{width}}  busy {share:>4}  memory {memory}")
        if self.pipeline is not None:
            p = self.pipeline.pipeline
            lines.append(
                f"  {p.schedule} pipeline of {len(p.stages)} stages, {p.micro_batches} micro-batches: bubble "
                f"{self.pipeline.bubble:.0%} ({p.ideal_bubble:.0%} for stages of equal time); "
                f"micro-batches in flight per stage: {', '.join(map(str, p.held))}"
            )
        if self.hint is not None:
            h = self.hint
            lines.append(
                f"  hint: with data parallelism over {h.devices} devices, a step is predicted to take {time_text(h.seconds)} "
                f"({size_text(round(h.bytes))} of updates exchanged): {self.objective / h.seconds:.1f} times as fast"
            )
        return "\n".join(lines)


def evaluate(
    plan: PlanData,
    costs: Profile | str | os.PathLike[str] | None = None,
    *,
    contended: bool = True,
    client: bool = False,
) -> Evaluation:
    """Evaluate a plan; the arguments are those of `simulate`."""
    from ..search.bounds import lower_bound  # a field has this name

    if not any(p.nodes for p in plan.partitions.values()):  # all that is fetched is fed
        return Evaluation(0.0, 0.0, _finder(plan), None, (), (), None)
    problem, assignment, names, devices = step_of(plan, costs=costs, contended=contended, client=client)
    step = plan_timeline(plan, problem, assignment, names, devices)
    single = fastest_alone(problem, names, plan, as_profile(costs), client)
    known = step.makespan
    if single is not None and _may_have_all(plan, single[0]):
        known = min(known, single[1])
    solution = plan.solution if plan.solution is not None and plan.solution.is_of_step else None
    proven = 0.0 if solution is None else solution.lower_bound
    bound = lower_bound(problem, proven=proven if costs is None else 0.0, known=known)
    loads = [
        Load(name, busy, peak, float(capacity))
        for name, busy, peak, capacity in zip(devices, step.busy, step.peak, problem.capacity, strict=True)
        if busy > 0 or peak > 0
    ]
    critical = sorted(((short(what), seconds) for what, seconds in step.spent.items()), key=lambda item: -item[1])
    found = Evaluation(
        step.makespan, bound, _finder(plan), single, tuple(critical),
        tuple(sorted(loads, key=lambda load: -load.busy)), None, _bubble(plan, step),
        machine="" if costs is not None or plan.cluster.calibration is None else str(plan.cluster.calibration),
    )  # fmt: skip
    if minimizes_load(plan) and solution is not None:
        found = replace(found, throughput=(solution.objective, min(proven, known)))
    if not is_exact(plan, as_profile(costs)):
        return replace(found, lower_bound=0.0, unknown=_unknown(plan))
    hint = _replicas(plan, problem)
    best = min(step.makespan, single[1] if single is not None else step.makespan)
    if hint is None or hint.seconds > 0.9 * best:  # predictions are not so good that less would mean anything
        return found
    return replace(found, hint=hint)


def _may_have_all(plan: PlanData, device: str) -> bool:
    """Whether each node of the step may be on this device."""
    reasons, number = plan.decisions.reasons, plan.decisions.devices.index(device)
    used = np.unique(reasons.demand_of[[n.index for n in plan.partitioned.nodes]])
    return all(number in reasons.demands[k].candidates for k in used.tolist())


def _unknown(plan: PlanData) -> str:
    """Why the numbers of a plan are lower bounds."""
    tensors = plan.unknown_sizes
    if not tensors:
        return "the number of iterations of its loops is unknown and counts as 1, so no bound is proven"
    return (
        f"unknown sizes count as 1, so no bound is proven: {listed_tensors(tensors, plan.sizes)}. "
        f"Give them: plan.at({how_to_give(tensors, plan.sizes)}), or {shape_options(tensors, plan.sizes)}"
    )


def alternatives(plan: PlanData, node: str) -> list[tuple[str, float]]:
    """The predicted time of the step with a node's group on each other candidate device: (device, seconds), best first.

    The time is infinite if the step would not fit into the devices' memory.
    """
    problem, assignment, names, devices = step_of(plan)
    decision = plan.decisions.decision(node)
    group = [names.index(name) for name in decision.group if name in set(names)]
    out = []
    for device in decision.candidates:
        if device != decision.chosen and group:
            moved = assignment.copy()
            moved[group] = devices.index(device)
            out.append((device, seconds_of(problem, moved) if fits(problem, moved) else np.inf))
    return sorted(out, key=lambda pair: pair[1])


def alternatives_text(plan: PlanData, node: str) -> list[str]:
    """The alternatives as text: the gain of the search's choice."""
    others = alternatives(plan, node)
    if not others:
        return []
    problem, assignment, names, devices = step_of(plan)
    here = seconds_of(problem, assignment)
    exact = is_exact(plan)
    lines = [f"  predicted step time there: {time_text(here, exact)}; on other candidates:"]
    for device, seconds in others[:4]:
        change = f"{seconds / here - 1:+.1%}" if here > 0 else "the same"
        result = f"{time_text(seconds, exact)} ({change})" if np.isfinite(seconds) else "does not fit its memory"
        lines.append(f"    {short(device)}: {result}")
    if len(others) > 4:
        lines.append(f"    and {len(others) - 4} more, none faster than these")
    return lines


def _bubble(plan: PlanData, step: Timeline) -> Bubble | None:
    for pipeline in plan.graph.get_collection(PIPELINES):
        marks = tuple(f"{pipeline.name}/{kind}_" for kind in "FB")
        passes = [s for s in step.spans if s.name.startswith(marks)]
        if passes:
            whole = max(s.finish for s in passes) - min(s.start for s in passes)
            used = len({s.device for s in passes}) * whole
            return Bubble(pipeline, 1 - sum(s.finish - s.start for s in passes) / used if used > 0 else 0.0)
    return None


def _finder(plan: PlanData) -> str:
    if plan.solution is None:
        return "search" if (plan.decisions.rules == Rule.SEARCHED).any() else "the rules"
    history = plan.solution.history
    return f"search ({history[-1].by})" if history else "search"


def _replicas(plan: PlanData, problem: Problem) -> Hint | None:
    """Data parallelism on all devices of the kind that runs the whole step fastest; None where nothing is trained."""
    updated = sum(
        state_bytes(t.op)[0]
        for p in plan.partitions.values()
        for n in p.nodes
        if n.type.startswith(("Apply", "ResourceApply"))
        for t in n.inputs[:1]
    )
    total = problem.seconds.sum(axis=1)
    kind = int(total.argmin())
    members = np.flatnonzero(problem.device_class == kind)
    k = len(members)
    if not updated or k < 2:
        return None
    places, there = np.unique(problem.places[members], return_counts=True)
    inside = np.ix_(places, places)
    linked = ~np.diag(there == 1)  # a device by itself has no link to its own place
    slowest, far = (float(of[inside][linked].max()) for of in (problem.link_per_byte, problem.link_latency))
    exchange = 2 * (k - 1) * (updated / k * slowest + far)
    work = float(total[kind])
    if problem.host is not None and problem.used is not None:
        hosts = problem.host[members]
        together = int(np.unique(hosts[hosts >= 0], return_counts=True)[1].max(initial=0))
        if together > 1:  # all run the same node at once
            work = float((problem.seconds[kind] * np.maximum(1.0, together * problem.used / problem.shared)).sum())
    return Hint(k, work / k + exchange, float(updated))
