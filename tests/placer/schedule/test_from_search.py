"""The order of a searched plan: that of the search's clock, and still one that keeps what results depend on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_graphs import placed_graphs

import dovetail as dt
from dovetail.graph.core.graph import Node
from dovetail.placer.cluster.load import as_cluster
from dovetail.placer.schedule import critical_path
from dovetail.placer.schedule.from_search import execution_order
from dovetail.placer.simulate import simulate, step_of, timeline

TWO = {job: ["cpu:0", "cpu:1"] for job in "abc"}
CPU = "/job:w/replica:0/task:{}/device:CPU:0"
SLOW = {"w": [{"name": "cpu:0", "flops": 1e9}]}


def zigzag() -> tuple[dt.Graph, dict[str, int], list[Node]]:
    """In the order of creation, device 0 waits for b while c could run there."""
    graph = dt.Graph()
    with graph.as_default():
        x = dt.constant(np.ones([256, 256], np.float32), name="x")
        a = dt.matmul(x, x, name="a")
        b = dt.matmul(a, a, name="b")
        d = dt.matmul(b, b, name="d")
        c = dt.matmul(x, x, name="c")
        dt.add(c, d, name="e")
    where = {"x": 0, "a": 0, "b": 1, "d": 0, "c": 0, "e": 0}
    return graph, where, list(graph.nodes)


def ordered(nodes: Sequence[Node], where: dict[str, int]) -> list[str]:
    cluster = as_cluster({"w": 2}, SLOW, None)
    return [n.name for n in execution_order(nodes, lambda n: CPU.format(where[n.name]), cluster)]


def test_a_device_does_not_wait_while_it_could_run_something() -> None:
    _, where, nodes = zigzag()
    found = ordered(nodes, where)
    assert found.index("c") < found.index("d") and sorted(found) == sorted(where)


def test_a_plan_follows_it_and_takes_as_long_as_the_search_said() -> None:
    graph, where, _ = zigzag()
    fetch = graph.get_tensor_by_name("e:0")
    placed = np.array([where[n.name] for n in graph.nodes])
    plan = dt.place(graph, {"w": 2}, devices=SLOW, fetches=fetch, strategy=lambda problem: placed)
    assert plan.solution is not None
    assert simulate(plan).makespan == pytest.approx(plan.solution.objective)
    names = [n.name for n in plan.partitions[CPU.format(0)].nodes]
    assert names.index("c") < names.index("d")


def test_a_plan_is_predicted_as_its_programs_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critical_path, "MOST", 0)  # so it keeps the order of creation
    with dt.Graph().as_default() as graph:
        x = dt.constant(np.ones([256, 256], np.float32))
        with dt.device("/task:0"):
            a = dt.matmul(x, x)
        with dt.device("/task:1"):
            b = dt.matmul(a, a)
        with dt.device("/task:0"):
            d = dt.matmul(b, b)
            c = dt.matmul(x, x, name="late")
        plan = dt.place(graph, {"w": 2}, devices=SLOW, fetches=[c, d])
        problem, assignment, names, devices = step_of(plan)
        free = timeline(problem, assignment, names, devices).makespan
        # The last product stands behind the one that waits for the other device.
        assert simulate(plan).makespan > free * 1.25


def test_what_changes_state_keeps_its_place() -> None:
    with dt.Graph().as_default() as graph:
        v = dt.Variable(np.ones([256, 256], np.float32), name="v")
        w = dt.get_variable("w", [], initializer=dt.zeros_initializer(), use_resource=True)
        slow = dt.matmul(dt.ones([256, 256]), dt.ones([256, 256]), name="slow")
        far = dt.matmul(slow, slow, name="far")
        first = dt.assign(v, far, name="first")  # waits for the other device
        second = dt.assign(v, slow, name="second")  # could run before
        read = v.read_value().op.name
        seen = [w.read_value(), dt.assign_add(w, 1.0), w.read_value()]
        nodes = list(graph.nodes)
        names = ordered(nodes, {n.name: int(n.name == "far") for n in nodes})
        state = [n for n in names if n in ("first", "second", read)]
        assert state == ["first", "second", read]
        reads = [n.name for n in nodes if n.type in ("ReadVariableOp", "AssignAddVariableOp", "AssignVariableOp")]
        assert [n for n in names if n in reads] == reads and len(seen) == 3 and first is not second


def test_graphs_with_loops_and_queues_keep_theirs() -> None:
    with dt.Graph().as_default() as graph:
        dt.while_loop(lambda i: i < 3, lambda i: i + 1, [0])
        nodes = list(graph.nodes)
        cluster = as_cluster({"w": 2}, SLOW, None)
        assert execution_order(nodes, lambda n: CPU.format(n.index % 2), cluster) == nodes
    with dt.Graph().as_default() as graph:
        queue = dt.FIFOQueue(2, dt.float32)
        queue.enqueue(1.0)
        queue.dequeue()
        nodes = list(graph.nodes)
        assert execution_order(nodes, lambda n: CPU.format(n.index % 2), cluster) == nodes


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(placed_graphs(flow=True))
def test_a_prediction_runs_each_node_once_behind_its_inputs_and_in_its_programs_order(drawn) -> None:
    graph, fetches, targets, feeds = drawn
    plan = dt.place(graph, {"a": 1, "b": 1, "c": 1}, devices=TWO, fetches=fetches, targets=targets, feeds=feeds)
    if not plan.partitions:
        return
    step = simulate(plan)
    spans = {(step.devices[s.device], s.name): s for s in step.spans}
    of_node = {name: s for (_, name), s in spans.items()}  # for those that one device has
    # Read as it is before the step.
    in_place = {(c.name, c.destination) for c in plan.channels if c.direct and not c.control}
    for device, part in plan.partitions.items():
        starts = [spans[str(device), n.name].start for n in part.nodes]
        assert starts == sorted(starts)
        for node in part.nodes:
            before = [
                t.op
                for t in node.inputs
                if t not in feeds and t.op is not node.back_edge and (t.name, str(device)) not in in_place
            ]
            for b in [*before, *node.control_inputs]:
                made = spans.get((str(device), b.name)) or of_node.get(b.name)
                assert made is None or made.finish <= spans[str(device), node.name].start + 1e-9
    assert len(spans) == len(step.spans) == sum(len(p.nodes) for p in plan.partitions.values())


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(placed_graphs(("/cpu:0", "/cpu:1", "/cpu:2"), flow=True))
def test_results_do_not_depend_on_the_order(drawn) -> None:
    graph, fetches, targets, feeds = drawn
    found = []
    with graph.as_default():
        initial, variables = dt.global_variables_initializer(), dt.global_variables()
    for strategy in ("rules", "heft"):
        config = dt.ConfigProto(device_count={"CPU": 3}, placement_strategy=strategy)
        with dt.Session(graph=graph, config=config) as session:
            defaults = {n.outputs[0]: [1.0, 3.0] for n in graph.nodes if n.type == "Placeholder"}
            session.run(initial, defaults)  # what makes a variable may wait for a placeholder
            fed = {**defaults, **{t: np.full(t.shape.as_list(), 2.0, np.float32) for t in feeds}}
            values = session.run([fetches, targets], fed)[0]
            found.append([*values, *session.run([v.value() for v in variables], defaults)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_small_constant_is_on_each_device_that_needs_it_and_travels_to_none() -> None:
    with dt.Graph().as_default() as graph:
        c = dt.constant([1.0, 2.0], name="c")
        with dt.device("/task:0"):
            here = dt.add(c, dt.placeholder(dt.float32, [2], name="x"), name="here")
        with dt.device("/task:1"):
            there = dt.multiply(here, c, name="there")
        plan = dt.place(graph, {"w": 2}, devices=SLOW, fetches=there, feeds="x:0")
    assert [channel.name for channel in plan.channels] == ["here:0"]
    step = simulate(plan)
    assert sorted((s.name, s.device) for s in step.spans) == [("c", 0), ("c", 1), ("here", 0), ("there", 1)]
    assert [t.name for t in step.transfers] == ["here"]
    assert "copied to /job:w/task:1" in plan.explain("c")
