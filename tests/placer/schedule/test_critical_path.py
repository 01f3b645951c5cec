"""What others wait for longest comes first: in programs, and among sends; and what a user can tell apart keeps its order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_graphs import placed_graphs

import dovetail as dt
from dovetail.graph.core.graph import Node
from dovetail.placer.partition.partitioned_graph import Channel
from dovetail.placer.schedule import critical_path
from dovetail.placer.schedule.critical_path import order_by_rank
from dovetail.placer.simulate import simulate

CPU = "/job:w/replica:0/task:{}/device:CPU:0"
ONES = np.ones([256, 256], np.float32)


def late_seed() -> tuple[dt.Tensor, dt.Tensor]:
    """Task 0 has work of its own, and makes what task 1 works on; that is written down last."""
    with dt.device("/job:w/task:0"):
        x = dt.constant(ONES)
        own = x
        for _ in range(4):
            own = dt.matmul(own, x)
        seed = dt.multiply(x, 2.0, name="seed")
    with dt.device("/job:w/task:1"):
        far = seed
        for _ in range(4):
            far = dt.matmul(far, far)
    return own, far


def steps_of(plan: dt.Plan, task: int) -> list[str]:
    """What a task does, in order: nodes, and `> task` for what it sends."""
    told = []
    for kind, what in plan.partitions[CPU.format(task)].steps:
        if isinstance(what, Node):
            told.append(what.name)
        elif kind == "send" and isinstance(what, Channel):
            told.append(f"> {what.destination.split('task:')[1][0]}")
    return told


def test_what_another_device_waits_for_is_made_and_sent_before_local_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with dt.Graph().as_default() as graph:
        own, far = late_seed()
        plan = dt.place(graph, {"w": 2}, fetches=[own, far])
        monkeypatch.setattr(critical_path, "MOST", 0)
        written = dt.place(graph, {"w": 2}, fetches=[own, far])
    first = [s for s in steps_of(plan, 0) if s.startswith(("MatMul", ">"))]
    assert first[0] == "> 1"
    assert [s for s in steps_of(written, 0) if s.startswith(("MatMul", ">"))][-1] == "> 1"
    assert simulate(plan).makespan < 0.7 * simulate(written).makespan


def test_of_sends_that_are_ready_together_the_most_urgent_leaves_first() -> None:
    with dt.Graph().as_default() as graph:
        with dt.device("/job:w/task:0"):
            x = dt.multiply(dt.constant(ONES), 2.0)
        ends = []
        for task, length in ((1, 1), (2, 6), (3, 3)):
            with dt.device(f"/job:w/task:{task}"):
                y = x
                for _ in range(length):
                    y = dt.matmul(y, x)
                ends.append(y)
        plan = dt.place(graph, {"w": 4}, fetches=ends)
    assert [s for s in steps_of(plan, 0) if s.startswith(">")] == ["> 2", "> 3", "> 1"]


def test_the_order_of_creation_stays_where_another_gains_nothing() -> None:
    with dt.Graph().as_default() as graph:
        with dt.device("/job:w/task:0"):
            x = dt.constant(ONES)
            chain = x
            for _ in range(5):
                chain = dt.matmul(chain, x)
            aside = dt.add(x, 1.0)
        with dt.device("/job:w/task:1"):
            end = dt.matmul(chain, chain)
        plan = dt.place(graph, {"w": 2}, fetches=[aside, end])
        names = [n.name for part in plan.partitions.values() for n in part.nodes]
        assert names == sorted(names, key=lambda n: graph.get_operation_by_name(n).index)


def test_effects_and_state_keep_their_order() -> None:
    seen: list[int] = []

    def told(number: int) -> dt.Tensor:
        def tell(x: np.ndarray) -> np.ndarray:
            seen.append(number)
            return x

        return dt.py_func(tell, [dt.constant(1.0)], dt.float32)

    with dt.Graph().as_default() as graph, dt.device("/cpu:0"):
        v = dt.get_variable("v", [256, 256], initializer=dt.ones_initializer(), use_resource=True)
        x = v.read_value()
        own = x
        for _ in range(4):
            own = dt.matmul(own, x)
        first = told(1)
        changed = dt.assign_add(v, own)
        second = told(2)
        after = v.read_value() * 1.0
        with dt.device("/cpu:1"):
            far = second * dt.ones([256, 256])
            for _ in range(6):
                far = dt.matmul(far, far)
            far += after
        config = dt.ConfigProto(device_count={"CPU": 2})
        with dt.Session(graph=graph, config=config) as session:
            session.run(v.initializer)
            session.run([first, far, changed])
    assert seen == [1, 2]


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(placed_graphs(("/cpu:0", "/cpu:1", "/cpu:2"), flow=True))
def test_results_do_not_depend_on_it(drawn) -> None:
    graph, fetches, targets, feeds = drawn
    found = []
    with graph.as_default():
        initial, variables = dt.global_variables_initializer(), dt.global_variables()
    for most in (0, critical_path.MOST):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(critical_path, "MOST", most)
            patch.setattr(critical_path, "WORTH", -1.0)
            with dt.Session(graph=graph, config=dt.ConfigProto(device_count={"CPU": 3})) as session:
                defaults = {n.outputs[0]: [1.0, 3.0] for n in graph.nodes if n.type == "Placeholder"}
                session.run(initial, defaults)
                fed = {**defaults, **{t: np.full(t.shape.as_list(), 2.0, np.float32) for t in feeds}}
                values = session.run([fetches, targets], fed)[0]
                found.append([*values, *session.run([v.value() for v in variables], defaults)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(placed_graphs(("/cpu:0", "/cpu:1", "/cpu:2"), flow=True))
def test_every_order_is_one_in_which_inputs_come_first(drawn) -> None:
    graph, fetches, targets, feeds = drawn
    jobs = {job: ["cpu:0", "cpu:1", "cpu:2"] for job in "abc"}
    before, critical_path.WORTH = critical_path.WORTH, -1.0  # whatever it gains
    try:
        plan = dt.place(graph, {"a": 1, "b": 1, "c": 1}, devices=jobs, fetches=fetches, targets=targets, feeds=feeds)
    finally:
        critical_path.WORTH = before
    nodes = [n for part in plan.partitions.values() for n in part.nodes]
    assert len(nodes) == len(set(nodes))
    for part in plan.partitions.values():
        place = {n: i for i, n in enumerate(part.nodes)}
        for node in part.nodes:
            for b in node.before:
                assert b not in place or place[b] < place[node] or b is node.back_edge
    sent, received = set(), set()
    for part in plan.partitions.values():
        sent |= {what.id for kind, what in part.steps if kind == "send"}
        received |= {what.id for kind, what in part.steps if kind == "recv"}
    assert sent == received == {c.id for c in plan.channels}
    if nodes:
        assert len(simulate(plan).spans) == len(nodes)  # no program waits for another for ever


def test_large_and_single_device_steps_cost_nothing() -> None:
    with dt.Graph().as_default() as graph:
        dt.add(dt.constant(1.0), 1.0)
        nodes = list(graph.nodes)
        assert order_by_rank(nodes, lambda n: CPU.format(0), None).upward_rank == {}  # type: ignore[arg-type]
