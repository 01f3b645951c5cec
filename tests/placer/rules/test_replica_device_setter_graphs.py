"""`replica_device_setter` in graphs: what gets a turn, what keeps its device, what blocks around and inside change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dovetail as dt

CLUSTER = dt.train.ClusterSpec({"ps": ["ps0:2222", "ps1:2222"], "worker": ["w0:2222", "w1:2222", "w2:2222"]})
MOON = dt.train.ClusterSpec({"sun": ["s0:2222", "s1:2222", "s2:2222"], "moon": ["m0:2222", "m1:2222"]})

BOTH_KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


@pytest.fixture(autouse=True)
def graph() -> Iterator[dt.Graph]:
    with dt.Graph().as_default() as g:
        yield g


def setter(**arguments: Any) -> Any:
    return dt.device(dt.train.replica_device_setter(**arguments))


def canonical(device: str) -> str:
    return dt.DeviceSpec.from_string(device).to_string()


def check(expected: str, *variables: Any) -> None:
    """Both the variables and their initialisers are there."""
    for v in variables:
        assert v.device == v.initializer.device == canonical(expected)


@BOTH_KINDS
@pytest.mark.parametrize("form", ["spec", "dict", "def"])
def test_variables_go_to_the_tasks_in_turn(form: str, use_resource: bool) -> None:
    cluster = {"spec": CLUSTER, "dict": CLUSTER.as_dict(), "def": CLUSTER.as_cluster_def()}[form]
    with setter(cluster=cluster):
        v = dt.Variable([1, 2], use_resource=use_resource)
        w = dt.Variable([2, 1], use_resource=use_resource)
        a = v + w
    check("/job:ps/task:0", v)
    check("/job:ps/task:1", w)
    assert a.device == "/job:worker"


def test_five_variables_over_two_servers() -> None:
    with setter(ps_tasks=2):
        tasks = [dt.Variable(float(i)).device for i in range(5)]
    assert tasks == [f"/job:ps/task:{i}" for i in (0, 1, 0, 1, 0)]


def test_blocks_inside_name_a_device() -> None:
    with setter(cluster=CLUSTER):
        with dt.device("/cpu:0"):
            v = dt.Variable([1, 2])
        w = dt.Variable([2, 1])
        with dt.device("/cpu:0"):
            a = v + w
    check("/job:ps/task:0/cpu:0", v)
    check("/job:ps/task:1", w)
    assert a.device == "/job:worker/device:CPU:0"


def test_blocks_inside_name_a_job() -> None:
    with setter(cluster=CLUSTER):
        v = dt.Variable([1, 2])
        with dt.device("/job:moon"):
            w = dt.Variable([2, 1])  # takes no turn
            with dt.device("/job:ps"):  # the job of the parameter servers gets a task
                x = dt.Variable([0, 1])
        a = v + w + x
    check("/job:ps/task:0", v)
    check("/job:moon", w)
    check("/job:ps/task:1", x)
    assert a.device == "/job:worker"


def test_blocks_inside_name_a_task_and_a_turn_is_used_up() -> None:
    with setter(ps_tasks=3):
        with dt.device("/task:2"):
            v = dt.Variable([1.0])
            s = dt.constant(1.0)
        w = dt.Variable([1.0])
    check("/job:ps/task:2", v)
    check("/job:ps/task:1", w)
    assert s.device == "/job:worker/task:2"


def test_nested_blocks_as_the_books_show_them() -> None:
    with setter(ps_tasks=2):
        v1, v2 = dt.Variable(1.0), dt.Variable(2.0)
        s = v1 + v2
        with dt.device("/gpu:1"):
            p1 = 2 * s
            with dt.device("/task:1"):
                p2 = 3 * s
    assert [x.device for x in (v1, v2, s, p1, p2)] == [
        "/job:ps/task:0", "/job:ps/task:1", "/job:worker", "/job:worker/device:GPU:1", "/job:worker/task:1/device:GPU:1",
    ]  # fmt: skip


def test_a_ps_device_without_a_job_gets_no_task() -> None:
    with setter(ps_tasks=1, ps_device="/cpu:0"):
        v = dt.Variable([1, 2])
        with dt.device("/job:moon"):
            w = dt.Variable([2, 1])
        a = v + w
    check("/cpu:0", v)
    check("/job:moon/cpu:0", w)
    assert a.device == "/job:worker"


def test_without_merging_a_block_inside_has_the_last_word() -> None:
    with setter(cluster=CLUSTER, merge_devices=False):
        v = dt.Variable([1, 2])
        with dt.device("/job:ps"):  # no task then
            w = dt.Variable([2, 1])
        a = v + w
    check("/job:ps/task:0", v)
    check("/job:ps", w)
    assert a.device == "/job:worker"


@pytest.mark.parametrize("more", ["", "/cpu:0"])
def test_jobs_may_have_other_names(more: str) -> None:
    with setter(ps_device=f"/job:moon{more}", worker_device="/job:sun", cluster=MOON.as_cluster_def()):
        v, w = dt.Variable([1, 2]), dt.Variable([2, 1])
        a = v + w
    check(f"/job:moon/task:0{more}", v)
    check(f"/job:moon/task:1{more}", w)
    assert a.device == "/job:sun"


@pytest.mark.parametrize(
    ("arguments", "variable", "other"),
    [
        ({"worker_device": ""}, "/job:ps/task:0", ""),
        ({"worker_device": None}, "/job:ps/task:0", ""),
        ({"ps_device": ""}, "/job:worker", "/job:worker"),
        ({"ps_device": None}, "/job:worker", "/job:worker"),
        ({"worker_device": "/job:worker/task:7/gpu:0"}, "/job:ps/task:0", "/job:worker/task:7/device:GPU:0"),
        ({"ps_ops": ["NoOp"]}, "/job:worker", "/job:worker"),
        ({"ps_strategy": lambda op: 7}, "/job:ps/task:7", "/job:worker"),
    ],
)
def test_arguments(arguments: dict[str, Any], variable: str, other: str) -> None:
    with setter(ps_tasks=2, **arguments):
        v, c = dt.Variable([1.0]), dt.constant(1.0)
    assert (v.device, c.device) == (variable, other)


# --- blocks around ------------------------------------------------------------------------------------------------


def test_blocks_around_fill_only_unset_fields() -> None:
    with dt.device("/job:o/task:9/gpu:3"), setter(ps_tasks=2):
        v, c = dt.Variable([1.0]), dt.constant(1.0)
    check("/job:ps/task:0/gpu:3", v)
    assert c.device == "/job:worker/task:9/device:GPU:3"


def test_a_setter_inside_another_has_the_first_say() -> None:
    with setter(ps_tasks=2, worker_device="/job:worker/gpu:0"), setter(ps_tasks=3, worker_device="/job:worker/task:1"):
        v, c = dt.Variable([1.0]), dt.constant(1.0)
        w = dt.Variable([1.0])
    check("/job:ps/task:0", v)
    check("/job:ps/task:1", w)
    assert c.device == "/job:worker/task:1/device:GPU:0"


@pytest.mark.parametrize("arguments", [{}, {"ps_tasks": 0}, {"cluster": {"worker": ["w0:1"]}}])
def test_no_servers_clear_the_blocks_around(arguments: dict[str, Any]) -> None:
    assert dt.train.replica_device_setter(**arguments) is None
    with dt.device("/job:x"), setter(**arguments):
        assert dt.constant(1.0).device == ""
        with dt.device("/gpu:0"):
            assert dt.constant(1.0).device == "/device:GPU:0"


# --- what takes a turn --------------------------------------------------------------------------------------------


def tasks_of(*variables: Any) -> list[int]:
    return [dt.DeviceSpec.from_string(v.device).task for v in variables]


@BOTH_KINDS
def test_reads_changes_and_constants_take_no_turn(use_resource: bool) -> None:
    with setter(ps_tasks=4):
        v = dt.Variable([1.0], use_resource=use_resource)
        v.read_value()
        dt.assign(v, v + 1.0)
        dt.assign_add(v, [1.0])
        dt.identity(v)
        dt.global_variables_initializer()
        w = dt.Variable([1.0], use_resource=use_resource)
    assert tasks_of(v, w) == [0, 1]


@BOTH_KINDS
def test_untrainable_and_local_variables_and_the_global_step_take_one(use_resource: bool) -> None:
    with setter(ps_tasks=9), dt.variable_scope("", use_resource=use_resource):
        found = [
            dt.Variable([1.0], trainable=False, use_resource=use_resource),
            dt.get_variable("local", [1], collections=[dt.GraphKeys.LOCAL_VARIABLES]),
            dt.train.get_or_create_global_step(),
            dt.get_variable("last", [1]),
        ]
        dt.train.get_or_create_global_step()  # found, not made
        found.append(dt.get_variable("very_last", [1]))
    assert tasks_of(*found) == [0, 1, 2, 3, 4]


@BOTH_KINDS
def test_each_part_of_a_variable_takes_one(use_resource: bool) -> None:
    with setter(ps_tasks=3), dt.variable_scope("", use_resource=use_resource):
        v = dt.get_variable("v", [10, 2], partitioner=dt.fixed_size_partitioner(4))
        w = dt.get_variable("w", [10, 2])
    assert tasks_of(*v, w) == [0, 1, 2, 0, 1]


@BOTH_KINDS
def test_adam_s_slots_and_powers_take_turns_and_slots_stay_with_their_variable(use_resource: bool) -> None:
    with setter(ps_tasks=10):
        v = dt.Variable([1.0], use_resource=use_resource)  # 0
        w = dt.Variable([1.0], use_resource=use_resource)  # 1
        adam = dt.train.AdamOptimizer()
        adam.minimize(dt.reduce_sum(v * w))
        last = dt.Variable([1.0], use_resource=use_resource)
    slots = {name: [adam.get_slot(x, name) for x in (v, w)] for name in adam.get_slot_names()}
    assert sorted(slots) == ["m", "v"]
    for pair in slots.values():
        assert [s.device for s in pair] == [v.device, w.device]
    powers = [x for x in dt.global_variables() if "power" in x.op.name]
    # TensorFlow puts the powers beside the first variable; they and the four slots have taken six turns.
    assert [p.device for p in powers] == [v.device] * 2
    assert tasks_of(v, w, last) == [0, 1, 8]


def test_a_variable_that_is_colocated_takes_a_turn_all_the_same() -> None:
    with setter(ps_tasks=9):
        v = dt.Variable([1.0])  # 0
        with dt.colocate_with(v.op):
            w = dt.Variable([1.0])  # takes 1, and gets 0
            c = dt.constant(1.0)  # the setter stands outside, and is asked for variables only
        y = dt.Variable([1.0])
    assert w.device == c.device == v.device
    assert tasks_of(v, y) == [0, 2]


def test_the_same_setter_goes_on_counting_in_another_block() -> None:
    function = dt.train.replica_device_setter(ps_tasks=3)
    found = []
    for _ in range(2):
        with dt.device(function):
            found += [dt.Variable([1.0]), dt.Variable([1.0])]
    assert tasks_of(*found) == [0, 1, 2, 0]


@BOTH_KINDS
def test_rows_are_looked_up_beside_the_parts_and_put_together_on_the_worker(use_resource: bool) -> None:
    with setter(ps_tasks=3):
        parts = dt.get_variable("p", [12, 2], partitioner=dt.fixed_size_partitioner(3), use_resource=use_resource)
        ids = dt.placeholder(dt.int32, [4])
        rows = dt.nn.embedding_lookup(parts, ids, partition_strategy="div", name="e")
        gradients = dt.gradients(rows, list(parts))
    made = [o for o in dt.get_default_graph().get_operations() if o.name.startswith("e")]
    gathers = [o for o in made if "Gather" in o.type]
    assert [o.device for o in gathers] == [f"/job:ps/task:{i}" for i in range(3)]
    assert [o.colocation_groups() for o in gathers] == [[f"loc:@p/part_{i}".encode()] for i in range(3)]
    others = [o for o in made if o.type in ("DynamicPartition", "ParallelDynamicStitch")]
    assert len(others) == 3 and {o.device for o in [*others, rows.op]} == {"/job:worker"}
    for g in gradients:  # rows with their numbers, not tables
        assert isinstance(g, dt.IndexedSlices)
        assert (g.values.device, g.indices.device) == ("/job:worker", "/job:worker")


def test_two_clients_agree() -> None:
    """Between-graph replication: whoever builds the graph puts each variable on the same task."""

    def build(worker: int) -> dict[str, str]:
        with dt.Graph().as_default(), setter(cluster=CLUSTER, worker_device=f"/job:worker/task:{worker}"):
            x = dt.placeholder(dt.float32, [None, 4])
            for i, units in enumerate((8, 8, 2)):
                with dt.variable_scope(f"layer{i}"):
                    w = dt.get_variable("w", [int(x.shape[1]), units])
                    b = dt.get_variable("b", [units], initializer=dt.zeros_initializer())
                    x = dt.nn.relu(dt.matmul(x, w) + b)
            assert x.device == f"/job:worker/task:{worker}"
            return {v.op.name: v.device for v in dt.global_variables()}

    assert build(0) == build(2)
    assert set(build(0).values()) == {"/job:ps/task:0", "/job:ps/task:1"}
