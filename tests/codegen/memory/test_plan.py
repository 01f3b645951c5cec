"""Memory plans: lifetimes, the peak, and places in the arena that never overlap."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from reference_interpreter import execution_order

import dovetail as dt
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.fusion.optimizer_loops import writes_in_place
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.memory.plan import MemoryPlan, places, plan_memory


def plan_of(fetches: Any, feeds: Any, *, fused: bool = False) -> MemoryPlan:
    order = execution_order([t.op for t in fetches], dict.fromkeys(feeds))
    steps = tuple(n for n in order if n.type != "Placeholder")
    partition = PartitionGraph(
        "/device:CPU:0", steps, tuple((t.name, t) for t in feeds), tuple((t.name, t) for t in fetches)
    )
    return plan_memory(
        fuse(partition, small=True).steps if fused else partition.steps, feeds, fetches, writes_in_place=writes_in_place
    )


def test_a_chain_holds_two_of_its_tensors_at_once() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [256])
        y = x
        for _ in range(10):
            y = dt.exp(y)
        plan = plan_of([y], [x])
    assert (plan.peak_bytes, places(plan.lifetimes)[1], plan.exact) == (2048, 2048, True)
    assert plan_of([y], [x], fused=True).peak_bytes == 2048  # what goes in and what comes out: nothing between


def test_views_live_in_what_they_show() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [4, 64])
        flat = dt.reshape(dt.exp(x), [256])
        plan = plan_of([flat + 1.0, flat], [x])
    assert [(v.tensor.op.type, v.bytes) for v in plan.lifetimes] == [
        ("Placeholder", 1024),
        ("Exp", 1024),
        ("AddV2", 1024),
    ]
    assert plan.lifetimes[1].last == plan.lifetimes[2].last  # fetched by way of its view


def test_what_is_alive_at_the_peak_is_told() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [10])
        big = dt.tile(x, [100])
        plan = plan_of([dt.reduce_sum(dt.exp(big))], [x])
    assert [v.tensor.op.type for v in plan.largest(2)] == ["Tile", "Exp"]
    assert plan.peak_bytes == 8000


@pytest.mark.parametrize("use_resource", [False, True])
def test_an_update_needs_room_only_beside_what_is_still_needed(use_resource: bool) -> None:
    def peak(*, keeps_the_old_value: bool) -> int:
        with dt.Graph().as_default() as graph:
            w = dt.Variable(np.zeros(4096, np.float32), use_resource=use_resource)
            gradient = dt.placeholder(dt.float32, [4096])
            old = w.read_value() if use_resource else dt.identity(w)
            with graph.control_dependencies([old]):
                step = dt.assign_sub(w, gradient) if not use_resource else w.assign_sub(gradient)
            with graph.control_dependencies([step]):
                y = dt.reduce_sum(old) if keeps_the_old_value else dt.reduce_sum(gradient)
            return plan_of([y], [gradient]).peak_bytes

    gradient = 4 * 4096
    assert gradient <= peak(keeps_the_old_value=False) < gradient + 100
    assert 2 * gradient <= peak(keeps_the_old_value=True) < 2 * gradient + 100


def test_unknown_sizes_are_told() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 16])
        plan = plan_of([dt.exp(x)], [x])
    assert not plan.exact
    assert plan.peak_bytes == 128


@pytest.mark.parametrize("seed", range(20))
def test_places_never_overlap_and_the_peak_is_a_lower_bound(seed: int) -> None:
    choose = random.Random(seed)
    with dt.Graph().as_default():
        tensors: list[Any] = [dt.placeholder(dt.float32, [choose.choice((16, 100, 1000))]) for _ in range(3)]
        feeds = list(tensors)
        for _ in range(40):
            a = choose.choice(tensors)
            tensors.append(
                dt.exp(a) if choose.random() < 0.5 else dt.tile(a, [choose.choice((1, 2, 3))])[: choose.choice((7, 50))]
            )
        fetches = choose.sample(tensors[3:], 4)
        plan = plan_of(fetches, feeds)
    offsets, size = places(plan.lifetimes)
    for (x, at), (y, there) in itertools.combinations(zip(plan.lifetimes, offsets, strict=True), 2):
        together = x.first <= y.last and y.first <= x.last
        assert not together or at + x.bytes <= there or there + y.bytes <= at
    assert plan.peak_bytes <= size
    most = max(sum(x.bytes for x in plan.lifetimes if x.first <= i <= x.last) for i in range(200))
    assert plan.peak_bytes == most
    assert size <= 1.3 * most + 64 * len(plan.lifetimes)
    assert np.all(np.array(offsets) % 64 == 0)
