"""Measured costs: files, how they fill in for analytic ones, and what placing does with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dovetail as dt
from dovetail.placer.cluster.spec import Link
from dovetail.placer.cost import profile as profile_module
from dovetail.placer.cost.profile import fitted_link, measured_nodes
from dovetail.placer.critical_path import Span
from dovetail.placer.simulate import Timeline, step_of

W0, W1 = (f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2))
FOREIGN = "/job:localhost/replica:0/task:0/device:CPU:0"


def profile(nodes: dict[str, dict[str, float]], *links: Link) -> dt.Profile:
    return dt.Profile(nodes, links, 1.0, 3)


def test_a_file_gives_it_back(tmp_path: Path) -> None:
    made = profile({"a": {W0: 1e-3}, "b": {W0: 0.0, W1: 2.5}}, Link("/job:ps", "/job:worker", 1e-4, None))
    made.save(tmp_path / "p.json")
    assert dt.Profile.load(tmp_path / "p.json") == made
    assert [f.name for f in tmp_path.iterdir()] == ["p.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"dovetail profile": 1}, {"nodes": []}, {"nodes": {"a": {W0: -1}}}, {"nodes": {"a": {W0: "x"}}},
        {"nodes": {"a": 3}}, {"links": [{}]}, {"links": 3}, {"shapes": {"a": "x"}}, {"seconds": float("nan")}, {"more": 1},
        {"links": [{"between": ["a"], "latency": 1, "bandwidth": 1}]},
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, change: dict[str, object]) -> None:
    profile({"a": {W0: 1e-3}}).save(tmp_path / "p.json")
    data = json.loads((tmp_path / "p.json").read_text())
    (tmp_path / "p.json").write_text(json.dumps(data | change))
    with pytest.raises(dt.errors.InvalidArgumentError, match=r"p\.json"):
        dt.Profile.load(tmp_path / "p.json")


def test_text_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("hello")
    with pytest.raises(dt.errors.InvalidArgumentError, match=r"p\.json"):
        dt.Profile.load(tmp_path / "p.json")


def applied(nodes: dict[str, dict[str, float]], analytic: list[list[float]], names: str = "ab") -> list[list[float]]:
    rows, kind = profile(nodes).applied(list(names), [W0, W1], np.arange(2, dtype=np.int32), np.array(analytic))
    found: list[list[float]] = rows[kind].tolist()
    return found


def test_what_was_measured_on_a_device_counts_there() -> None:
    assert applied({"a": {W0: 5.0, W1: 7.0}, "b": {W0: 1.0, W1: 2.0}}, [[1, 1], [1, 1]]) == [[5, 1], [7, 2]]


def test_another_device_gets_it_by_what_analytic_costs_say_of_the_two() -> None:
    assert applied({"a": {W0: 5.0}, "b": {W0: 1.0}}, [[1, 1], [3, 2]]) == [[5, 1], [15, 2]]


def test_a_node_that_was_not_measured_is_scaled_as_the_others_are() -> None:
    assert applied({"a": {W0: 10.0}}, [[2, 1], [2, 4]]) == [[10, 5], [10, 20]]


def test_a_node_without_a_kernel_costs_nothing() -> None:
    assert applied({"a": {W0: 0.0}, "b": {W0: 3.0}}, [[2, 1], [2, 1]]) == [[0, 3], [0, 3]]


def test_a_device_of_another_cluster_stands_for_the_first_of_its_type() -> None:
    assert applied({"a": {FOREIGN: 4.0}, "b": {FOREIGN: 6.0}}, [[2, 1], [4, 1]]) == [[4, 6], [8, 6]]


def test_nothing_measured_changes_nothing() -> None:
    assert applied({}, [[2, 1], [4, 1]]) == [[2, 1], [4, 1]]


def test_devices_of_a_kind_share_a_row_unless_a_node_took_another_time_there() -> None:
    devices = [f"/job:w/replica:0/task:{i}/device:CPU:0" for i in range(5)]
    kind, analytic = np.array([0, 0, 0, 0, 1], np.int32), np.array([[1.0, 2.0, 4.0], [2.0, 2.0, 8.0]])

    def found(nodes: dict[str, dict[int, float]]) -> tuple[list[list[float]], int]:
        named = {name: {devices[d]: s for d, s in times.items()} for name, times in nodes.items()}
        rows, of = profile(named).applied(["a", "b", "c"], devices, kind, analytic)
        return rows[of].tolist(), len(rows)

    # a: measured on one device. b: equal on two. Both tell all devices of the kind. c is not measured: 3 of 3 seconds.
    assert found({"a": {0: 1.0}, "b": {1: 2.0, 2: 2.0}}) == ([[1, 2, 4]] * 4 + [[2, 2, 8]], 2)
    # b takes 2 s on device 1 and 4 s on device 2: the others of the kind, the mean.
    table, rows = found({"a": {0: 1.0}, "b": {1: 2.0, 2: 4.0}})
    assert [row[1] for row in table] == [3, 2, 4, 3, 3] and rows == 4


def test_where_devices_with_rows_of_their_own_would_be_too_many_their_kinds_have_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = [f"/job:w/replica:0/task:{i}/device:CPU:0" for i in range(4)]
    measured = profile({"a": {devices[0]: 1.0, devices[1]: 3.0, devices[3]: 5.0}})
    kind, analytic = np.array([0, 0, 0, 1], np.int32), np.array([[1.0], [2.0]])
    exact, of = measured.applied(["a"], devices, kind, analytic)
    assert exact[of][:, 0].tolist() == [1, 3, 2, 5]
    monkeypatch.setattr(profile_module, "STORED", 3)
    rows, of = measured.applied(["a"], devices, kind, analytic)
    assert rows.tolist() == [[2], [5]] and of.tolist() == [0, 0, 0, 1]


@pytest.mark.slow
def test_a_profile_of_one_machine_serves_a_plan_of_many_devices() -> None:
    """With a row for each device, the table of times would have 2e8 numbers."""
    gpu = "/job:localhost/replica:0/task:0/device:GPU:0"
    with dt.Graph().as_default() as graph:
        towers = []
        for i in range(200):
            with dt.device(f"/job:w/task:{i}/gpu:1"), dt.name_scope(f"tower_{i}"):
                x = dt.zeros([2], name="x")
                for k in range(100):
                    x = dt.exp(x, name=f"exp_{k}")
                towers.append(x)
        slow = profile({n.name: {gpu: 1e-3 if "_7/" in n.name else 1e-4} for n in graph.nodes if n.type == "Exp"})
        plan = dt.place(graph, {"w": 1_250}, devices={"w": [f"gpu:{i}" for i in range(8)]}, fetches=towers)
    problem = step_of(plan, costs=slow)[0]
    assert problem.devices == 10_000 and problem.nodes > 20_000 and len(problem.seconds) == 1
    assert dt.simulate(plan, costs=slow).makespan == pytest.approx(0.1, rel=0.01)


def test_a_link_is_found_from_what_crossed_it() -> None:
    points = [(n, 1e-4 + n / 1e9) for n in (4, 100, 1e5, 1e6, 1e8)]
    link = fitted_link("/job:a", "/job:b", points)
    assert link.latency == pytest.approx(1e-4, rel=1e-6) and link.bandwidth == pytest.approx(1e9, rel=1e-6)


def test_one_size_tells_only_one_thing() -> None:
    assert fitted_link("a", "b", [(4, 1e-4), (4, 3e-4), (4, 2e-4)]) == Link("a", "b", 2e-4, None)
    assert fitted_link("a", "b", [(2e6, 1e-3)]) == Link("a", "b", None, 2e9)


def test_a_fused_kernel_s_time_is_divided_by_shares() -> None:
    spans = [Span("b", 0, 0.0, 1.0, ("a", "b")), Span("c", 0, 1.0, 1.5), Span("c", 0, 2.0, 2.5)]
    found = measured_nodes(spans, lambda s: W0, {"a": 3.0, "b": 1.0, "c": 1.0}.__getitem__)
    assert found == {("a", W0): 0.75, ("b", W0): 0.25, ("c", W0): 1.0}


def two_branches() -> tuple[dt.Graph, dt.Tensor]:
    graph = dt.Graph()
    with graph.as_default():
        a, b = (dt.exp(dt.placeholder(dt.float32, [4], name=f"x{i}"), name=f"branch_{i}") for i in range(2))
        return graph, dt.add(a, b, name="end")


def test_a_search_believes_what_was_measured(tmp_path: Path) -> None:
    graph, end = two_branches()
    seconds = {"branch_0": 1.0, "branch_1": 1.0, "end": 1e-6}
    slow = profile({name: {W0: s, W1: s} for name, s in seconds.items()}, Link("", "", 1e-3, 1e9))
    alone = dt.place(graph, {"worker": 2}, fetches=end, strategy="auto")
    assert len(alone.partitions) == 1  # by analytic costs a message costs more than everything else
    split = dt.place(graph, {"worker": 2}, fetches=end, strategy="auto", costs=slow)
    assert split.placement["branch_0"] != split.placement["branch_1"]
    assert split.solution is not None and split.solution.objective == pytest.approx(1.001, rel=1e-3)
    slow.save(tmp_path / "p.json")
    again = dt.place(graph, {"worker": 2}, fetches=end, strategy="auto", costs=tmp_path / "p.json")
    assert again.placement == split.placement
    assert dt.simulate(split, costs=slow).makespan == pytest.approx(1.001, rel=1e-3)
    with pytest.raises(TypeError, match="costs"):
        dt.place(graph, {"worker": 2}, fetches=end, costs=3)  # type: ignore[arg-type]


def test_predicted_and_measured_stand_beside_each_other() -> None:
    graph, end = two_branches()
    plan = dt.place(graph, {"worker": 2}, fetches=end)
    spans = (Span("branch_1", 0, 0.0, 0.5), Span("end", 0, 0.5, 1.5, ("branch_0", "end")), Span("new", 0, 2.0, 3.0))
    measured = Timeline((W0, W1), spans, (), (), (2.5, 0.0), (), 3.0)
    predicted = {s.name: s.finish - s.start for s in dt.simulate(plan).spans}
    found = plan.compare(measured)
    assert found.step.measured == 3.0 and found.step.predicted == dt.simulate(plan).makespan
    rows = {r.name: r for r in found.kernels}
    assert rows["end"].measured == 1.0
    assert rows["end"].predicted == pytest.approx(predicted["branch_0"] + predicted["end"])
    assert found.unplanned == ("new",) and found.not_run == ()
    assert [(d.name, d.measured) for d in found.devices] == [(W0, 2.5)]
    assert "measured 3 s" in str(found) and "branch_1" in str(found)
    empty = plan.compare(Timeline((W0, W1), (), (), (), (0.0, 0.0), (), 0.0))
    assert set(empty.not_run) == {"branch_0", "branch_1", "end"}
