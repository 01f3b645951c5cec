"""What a search takes into account beside kernels: narrow channels, the client, the ends of transfers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.placer.cluster.spec import Link
from dovetail.placer.search import from_graph
from dovetail.placer.search.from_graph import CLIENT, HANDLING
from dovetail.placer.simulate import step_of

CPU = "/job:w/replica:0/task:{}/device:CPU:0"
SLOW = {"w": [{"name": "cpu:0", "flops": 1e9}]}


def profile(*links: Link) -> dt.Profile:
    return dt.Profile({}, links, 1.0, 1)


def two_products() -> Any:
    """Two that could run side by side, if a value of 1 MiB crosses before, and one meanwhile."""
    x = dt.random_uniform([512, 512], seed=1, name="x")
    return dt.add(dt.matmul(x, x, name="left"), dt.matmul(x, x, name="right"), name="both")


def test_values_that_cross_as_bfloat16_take_half_the_time() -> None:
    # A product takes 0.27 s; with 1 MiB at 3 MB/s on the way there the second device does not pay, with half of it, it does.
    link = Link("/job:w/task:0", "/job:w/task:1", 1e-4, 3e6)
    with dt.Graph().as_default():
        both = two_products()
        options: dict[str, Any] = {
            "devices": SLOW,
            "fetches": both,
            "strategy": "auto",
            "costs": profile(link),
            "budget_s": 0.2,
        }
        wide = dt.place(None, {"w": 2}, **options)
        narrow = dt.place(None, {"w": 2}, enable_bfloat16_sendrecv=True, **options)
        assert (len(wide.partitions), len(narrow.partitions)) == (1, 2)
        assert narrow.solution is not None
        predicted = dt.simulate(narrow, costs=profile(link))
        assert predicted.makespan == pytest.approx(narrow.solution.objective)
        assert {t.bytes for t in predicted.transfers} == {512 * 512 * 2}
        assert min(predicted.peak) >= 2 * 2**20  # where it is used it is float32 again


def test_latency_counts_what_the_client_gives_and_takes() -> None:
    near, far = Link(CLIENT, "/job:w/task:1", 1e-4, 1e9), Link(CLIENT, "/job:w/task:0", 1e-3, 1e7)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [512, 512], name="x")
        y = dt.reduce_sum(dt.matmul(x, x), name="y")
        options: dict[str, Any] = {"devices": SLOW, "fetches": y, "strategy": "auto", "costs": profile(near, far)}
        plan = dt.place(None, {"w": 2}, objective="latency", **options)
        assert set(plan.partitions) == {CPU.format(1)}
        seen, alone = (dt.simulate(plan, costs=profile(near, far), client=c).makespan for c in (True, False))
        assert seen - alone == pytest.approx(2e-4 + (2**20 + 4) / 1e9)
        assert plan.solution is not None and plan.solution.objective == pytest.approx(seen, rel=1e-4)
        report = plan.report(costs=profile(near, far), client=True)
        assert report.objective == pytest.approx(seen)
        assert sum(s for _, s in report.critical) == pytest.approx(seen)
        assert sum(s for what, s in report.critical if "client" in what) == pytest.approx(2e-4 + (2**20 + 4) / 1e9)


def test_throughput_balances_loads_where_a_step_would_not_gain() -> None:
    with dt.Graph().as_default():
        h = dt.random_uniform([256, 256], seed=1)
        for i in range(4):  # a chain: no step is faster on two devices
            h = dt.matmul(h, h, name=f"m{i}")
        options: dict[str, Any] = {"devices": SLOW, "fetches": h, "strategy": "auto", "budget_s": 0.3}
        assert len(dt.place(None, {"w": 2}, **options).partitions) == 1
        assert len(dt.place(None, {"w": 2}, objective="throughput", **options).partitions) == 2
        with pytest.raises(ValueError, match="no objective 'speed'; objectives: makespan, latency, throughput"):
            dt.place(None, {"w": 2}, objective="speed", **options)


def test_a_transfer_keeps_both_ends_busy() -> None:
    with dt.Graph().as_default():
        with dt.device("/task:0"):
            x = dt.random_uniform([1024], seed=1, name="x")
            after = dt.exp(x, name="after")
        with dt.device("/task:1"):
            y = dt.exp(x, name="y")
        plan = dt.place(None, {"w": 2}, fetches=[after, y])
        seconds = {s.name: s.finish - s.start for s in dt.simulate(plan).spans}
        handled = HANDLING[0] + 4096 / HANDLING[1]
        assert seconds["after"] == pytest.approx(seconds["y"]) and seconds["y"] > handled


def test_links_are_shared_unless_told_otherwise() -> None:
    with dt.Graph().as_default():
        with dt.device("/task:0"):
            made = [dt.random_uniform([256, 1024], seed=i, name=f"made_{i}") for i in range(3)]
            with dt.control_dependencies([m.op for m in made]):
                sent = [dt.identity(m) for m in made]
        with dt.device("/task:1"):
            total = dt.add_n([dt.reduce_sum(s) for s in sent])
        plan = dt.place(None, {"w": 2}, fetches=total, costs=None)
        slow = profile(Link("/job:w/task:0", "/job:w/task:1", 0.0, 1e6))
        shared, alone = (dt.simulate(plan, costs=slow, contended=c).makespan for c in (True, False))
        assert shared == pytest.approx(3 * 2**20 / 1e6, rel=0.01) and alone == pytest.approx(2**20 / 1e6, rel=0.01)


def test_a_profile_may_be_made_of_several() -> None:
    one = dt.Profile(
        {"a": {CPU.format(0): 1.0}, "b": {CPU.format(0): 2.0}},
        (Link("/job:w/task:0", "/job:w/task:1", 1.0, None),),
        4.0,
        5,
    )
    other = dt.Profile({"a": {CPU.format(1): 3.0}, "b": {CPU.format(0): 7.0}}, (), 2.0, 9)
    both = one | other
    assert both.nodes == {"a": {CPU.format(0): 1.0, CPU.format(1): 3.0}, "b": {CPU.format(0): 7.0}}
    assert (both.links, both.seconds, both.steps) == (one.links, 2.0, 9)
    assert dt.Profile.from_text(both.to_text()) == both
    assert np.isfinite(both.seconds)


def test_a_client_as_near_to_all_devices_takes_a_row_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [256, 256])
        with dt.device("/job:w/task:1"):
            y = dt.matmul(x, x)
        with dt.device("/job:w/task:2"):
            z = dt.reduce_sum(y)
        plan = dt.place([y, z], {"w": 3})
    stored, whole = step_of(plan, client=True)[0], dt.simulate(plan, client=True)
    monkeypatch.setattr(from_graph, "STORED", 0)
    shared, again = step_of(plan, client=True)[0], dt.simulate(plan, client=True)
    assert again == whole and whole.makespan > dt.simulate(plan).makespan
    for a, b in ((stored.fed_at, shared.fed_at), (stored.back_after, shared.back_after)):
        assert a is not None and b is not None and b.strides[0] == 0 and np.array_equal(a, b) and a.any()
    near = step_of(plan, client=True, costs=profile(Link(CLIENT, "/job:w/task:1", 1e-6, 1e9)))[0]
    assert near.fed_at is not None and near.fed_at[1].max() < near.fed_at[0].max()
