"""Measuring a step: it is run and traced some times, and what nodes and links took becomes a `Profile` that plans load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from ..graph.core.opdef import Cost
from ..placer.cost.profile import Profile, fitted_link, measured_nodes
from ..placer.cost.shapes import sizes_of
from ..placer.partition.partitioned_graph import task_of
from ..placer.plan import Plan
from ..placer.search.from_graph import TYPICAL
from .config import RunMetadata, RunOptions
from .fetches import parse_feeds
from .session import Session
from .trace import Trace

WARM_STEPS = 2  # before those that count: connections are made, caches filled


def profile(session: Session, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, *, steps: int = 20) -> Profile:
    """Run a step some times and measure what its nodes and links take.

    All kernels are compiled before. The step does what it does: variables that it trains are trained.

    Args:
        session: where it runs. fetches, feed_dict: as `session.run` takes them.
        steps: how many count; medians are taken over them.

    Returns:
        Seconds of each node on its device (a fused kernel's time is divided among its nodes by their analytic costs), and
        the latency and bandwidth of each link between tasks over which values of different sizes went, and the sizes that values had
        where the graph leaves them open.

    Raises:
        ValueError: `steps` is less than 1. Otherwise what `session.run` raises.

    >>> dt.profile(session, train_op, feeds).save("step.profile.json")
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    session.warmup(fetches, feed_dict)
    for _ in range(WARM_STEPS):
        session.run(fetches, feed_dict)
    traces = []
    for _ in range(steps):
        metadata = RunMetadata()
        session.run(fetches, feed_dict, RunOptions(trace_level=RunOptions.FULL_TRACE), metadata)
        if metadata.trace is None:
            raise ValueError("The step runs nothing: all that is fetched is fed")
        traces.append(metadata.trace)
    plan = traces[0].plan
    fed = {
        plan.graph.get_tensor_by_name(name): tuple(value.shape)
        for name, value in parse_feeds(session.graph, feed_dict).items()
    }
    nodes = sorted((n for p in plan.partitions.values() for n in p.nodes), key=lambda n: n.index)
    return replace(profile_of(traces), sizes=sizes_of(nodes, fed))


def profile_of(traces: list[Trace]) -> Profile:
    """What traced runs of one step measured."""
    plan = traces[0].plan
    shares = _Shares(plan)
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    crossed: dict[tuple[str, str], dict[tuple[str, str], list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for trace in traces:
        line = trace.timeline
        found = measured_nodes(line.spans, lambda s, names=line.devices: names[s.device], shares)  # type: ignore[misc]
        for key, seconds in found.items():
            taken[key].append(seconds)
        for t in trace.transfers:
            a, b = sorted((task_of(t.source), task_of(t.destination)))
            if a != b:
                crossed[a, b][t.name, t.destination].append((float(t.bytes), t.finish - t.start))
    # Nodes of the step that no kernel ran took no time.
    nodes: dict[str, dict[str, float]] = {
        n.name: {device: 0.0} for device, p in plan.partitions.items() for n in p.nodes
    }
    # Of a node the best time counts: others that use the machine can only make it look slower, and they hold up another node in
    # each step. In some steps it may not have run: in a branch that was not taken.
    usual = {key: min(times) * len(times) / len(traces) for key, times in taken.items()}
    at_work = _at_work(traces)
    for (name, device), seconds in usual.items():
        together = sum(s for (_, d), s in usual.items() if d == device)
        nodes.setdefault(name, {})[device] = seconds * (at_work[device] / together if together > 0 else 1.0)
    links = []
    for (a, b), values in sorted(crossed.items()):
        # A value may have waited for others that travelled with it: the quickest of its journeys tells the link.
        points = [min(found, key=lambda p: p[1]) for found in values.values()]
        links.append(fitted_link(a, b, points))
    return Profile(nodes, tuple(links), median(t.seconds for t in traces), len(traces))


def _at_work(traces: list[Trace]) -> dict[str, float]:
    """Device -> seconds of a step in which it does not wait: in kernels, and between them; the median.

    What nodes take is scaled until they take together what their device takes.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for trace in traces:
        for device in {k.device for k in trace.kernels}:
            spans = [(k.start, k.finish) for k in trace.kernels if k.device == device]
            first, last = min(s for s, _ in spans), max(f for _, f in spans)
            waited = sum(max(0.0, min(w.finish, last) - max(w.start, first)) for w in trace.waits if w.device == device)
            found[device].append(max(last - first - waited, 0.0))
    return {device: median([*seconds, *[0.0] * (len(traces) - len(seconds))]) for device, seconds in found.items()}


class _Shares:
    """Analytic seconds of a node on a common processor: how a fused kernel's time is divided."""

    def __init__(self, plan: Plan) -> None:
        self._graph = plan.graph

    def __call__(self, name: str) -> float:
        if name not in self._graph:
            return 0.0
        node = self._graph.get_operation_by_name(name)
        flops, moved = Cost(*node.opdef.cost_of(node))
        speed = TYPICAL["CPU"]
        return max(flops / speed.flops, moved / speed.bandwidth)
