"""Sizes that a graph leaves open, told by what is fed."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as dt
from dovetail.placer.cluster.spec import Link
from dovetail.placer.cost.shapes import sizes_of


def test_fed_shapes_tell_the_sizes_of_what_depends_on_them() -> None:
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [None, 8], name="x")
        y = dt.matmul(x, dt.ones([8, 3]), name="y")
        dt.reduce_sum(y, name="static")
        dt.boolean_mask(y, dt.reduce_sum(y, 1) > 0)
        found = sizes_of(list(graph.nodes), {x: (5, 8)})
        assert found["x:0"] == 5 * 8 * 4 and found["y:0"] == 5 * 3 * 4 and "static:0" not in found
        assert not any(
            "mask" in name and graph.get_tensor_by_name(name).op.type in ("Where", "GatherV2") for name in found
        )


def test_a_profile_has_them_and_transfers_and_memory_follow() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 256], name="x")
        with dt.device("/task:0"):
            y = dt.exp(x, name="y")
        with dt.device("/task:1"):
            z = dt.reduce_sum(y, name="z")
        sizes = sizes_of([y.op, z.op], {x: (1024, 256)})
        costs = dt.Profile({}, (Link("/job:w/task:0", "/job:w/task:1", 0.0, 1e6),), 1.0, 1, sizes)
        plan = dt.place(None, {"w": 2}, fetches=z)
        line = dt.simulate(plan, costs=costs)
        assert [t.bytes for t in line.transfers] == [2**20]
        assert line.makespan > 2**20 / 1e6 and min(line.peak) >= 2**20
        assert dt.simulate(plan).makespan < 1e-3
        assert dt.Profile.from_text(costs.to_text()).sizes == {"x:0": 2**20, "y:0": 2**20}


@pytest.mark.slow
def test_profiling_finds_them() -> None:
    with dt.Graph().as_default(), dt.Session() as session:
        x = dt.placeholder(dt.float32, [None, 4], name="x")
        y = dt.exp(x, name="y")
        profile = dt.profile(session, dt.reduce_sum(y), {x: np.ones((7, 4))}, steps=2)
        assert profile.sizes == {"x:0": 112, "y:0": 112}
