"""Compares plans instruction by instruction: those that ran with those that `dt.place` makes of a cluster's description."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dovetail as dt
from dovetail.graph.core.graph import Node
from dovetail.placer.partition.partitioned_graph import Channel


def instructions(plan: dt.Plan) -> dict[str, Any]:
    """Device -> what it runs, in order: nodes, sends, receives, reads and marks of loops; and its feeds and fetches."""

    def one(kind: str, what: Any) -> tuple[Any, ...]:
        if isinstance(what, Node):
            return (what.name,)
        return (kind, *what) if isinstance(what, Channel) else (kind, what.name)

    return {d: ([one(*s) for s in p.steps], p.feeds, p.fetches) for d, p in plan.partitions.items()}


def assert_placed_alike(ran: dt.Plan, cluster: Any, **options: Any) -> dt.Plan:
    """Whether `dt.place` makes the plan that ran, from a description of the cluster alone. Returns its plan."""
    plan = dt.place(
        ran.graph, cluster, fetches=ran.fetches, targets=ran.targets, feeds=ran.feeds, shapes=ran.sizes.given,
        master=ran.cluster.master, **options,
    )  # fmt: skip
    assert instructions(plan) == instructions(ran)
    assert plan.channels == ran.channels
    assert {
        n.name: plan.placement[n.name] for p in plan.partitions.values() for n in p.nodes
    }.items() <= ran.placement.items()
    assert (plan.access.used, plan.access.refused) == (ran.access.used, ran.access.refused)
    return plan


def assert_simulates_its_channels(plan: dt.Plan) -> None:
    """Whether the simulation of a plan runs exactly its nodes, and sends what its channels carry, each value over the channel's link."""
    if not any(p.nodes for p in plan.partitions.values()):
        return
    step = plan.simulate()
    assert Counter((s.name, step.devices[s.device]) for s in step.spans) == Counter(
        (n.name, d) for d, p in plan.partitions.items() for n in p.nodes
    )
    found = Counter((t.name, step.devices[t.source], step.devices[t.destination], t.bytes) for t in step.transfers)
    assert found == Counter((c.maker, c.source, c.destination, c.bytes) for c in plan.channels)


def assert_transfers_are_planned(trace: Any) -> None:
    """Whether the trace of a step without branches and loops has exactly the transfers of its plan, with the bytes that are known."""
    assert_simulates_its_channels(trace.plan)
    planned = Counter((c.name, c.source, c.destination, c.direct) for c in trace.plan.channels)
    assert Counter((t.name, t.source, t.destination, t.direct) for t in trace.transfers) == planned
    known = {(c.name, c.destination): c.bytes for c in trace.plan.channels if c.is_exact}
    moved = {(t.name, t.destination): t.bytes for t in trace.transfers}
    assert known == {key: moved[key] for key in known}
