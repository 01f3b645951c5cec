"""Variables spread over parameter servers by `replica_device_setter`, and device blocks inside it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dovetail as tf

CLUSTER = {"ps": 2, "worker": 2}
GPUS = {"worker": ("cpu:0", "gpu:0", "gpu:1")}


def ps(task: int, device: str = "CPU:0") -> str:
    return f"/job:ps/replica:0/task:{task}/device:{device}"


def worker(task: int, device: str) -> str:
    return f"/job:worker/replica:0/task:{task}/device:{device}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tf.LocalCluster]:
    with tf.LocalCluster(CLUSTER, emulate_gpus={"worker": 2}) as started:
        yield started


def setters() -> dict[str, Callable[[], Any]]:
    spec = {"ps": ["a:2221", "b:2221"], "worker": ["a:2222", "b:2222"]}
    return {
        "number of ps tasks": lambda: tf.train.replica_device_setter(ps_tasks=2),
        "cluster": lambda: tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(spec)),
        "cluster as a dict": lambda: tf.train.replica_device_setter(cluster=spec),
    }


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("setter", setters().values(), ids=setters())
def test_five_variables_take_turns(setter: Callable[[], Any], resource: bool) -> None:
    with tf.device(setter()):
        variables = [tf.Variable(float(i), name=f"v{i}", use_resource=resource) for i in range(1, 6)]
    plan = tf.place(None, CLUSTER)
    assert [plan.placement[v.op.name] for v in variables] == [ps(0), ps(1), ps(0), ps(1), ps(0)]
    # What belongs to a variable is with it: its read and its initialisation.
    assert all(plan.placement[v.initializer.name] == plan.placement[v.op.name] for v in variables)
    assert all(plan.placement[v.value().op.name] == plan.placement[v.op.name] for v in variables if not resource)


def test_the_variables_live_in_the_processes_of_the_parameter_servers(
    cluster: tf.LocalCluster, where_it_runs: Callable
) -> None:
    with tf.device(tf.train.replica_device_setter(cluster=cluster.cluster_spec)):
        variables = [tf.Variable(float(i), name=f"sharded_v{i}") for i in range(1, 6)]
    with tf.Session(cluster.target("worker", 0)) as sess:
        found = [where_it_runs(sess, v.op.name + "/read:0") for v in variables]  # not initialised yet
        assert found == [ps(0), ps(1), ps(0), ps(1), ps(0)]
        sess.run(tf.global_variables_initializer())
        assert sess.run(variables) == [1.0, 2.0, 3.0, 4.0, 5.0]
    # A session that sees one parameter server only finds what is there.
    for task, expected in (0, [1.0, 3.0, 5.0]), (1, [2.0, 4.0]):
        there = [v for v in variables if f"/task:{task}" in v.device]
        with tf.Graph().as_default(), tf.device(f"/job:ps/task:{task}"):
            same = [tf.Variable(0.0, name=v.op.name) for v in there]
            config = tf.ConfigProto(device_filters=[f"/job:ps/task:{task}"])
            with tf.Session(cluster.target("ps", task), config=config) as sess:
                assert sess.run(same) == expected


def test_nothing_else_uses_up_a_turn() -> None:
    with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        v1 = tf.Variable(1.0, name="v1")
        change = tf.assign_add(v1, v1 * tf.constant(2.0))
        v2 = tf.Variable(v1.initialized_value() + 1.0, name="v2")
        v3 = tf.Variable(3.0, name="v3")
    plan = tf.place(None, CLUSTER)
    assert [plan.placement[v.op.name] for v in (v1, v2, v3)] == [ps(0), ps(1), ps(0)]
    assert plan.placement[change.op.name] == ps(0)


def test_a_variable_in_an_inner_block_goes_where_the_block_says() -> None:
    with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        v0 = tf.Variable(0.0, name="v0")
        with tf.device("/task:0"):
            inner_task = tf.Variable(1.0, name="inner_task")  # its turn, ps 1, is used up all the same
        with tf.device("/job:worker/task:1"):
            local = tf.Variable(2.0, name="local")  # no ps op any more: it takes no turn
        v3 = tf.Variable(3.0, name="v3")
    placed = tf.place(None, CLUSTER).placement
    got = [placed[v.op.name] for v in (v0, inner_task, local, v3)]
    assert got == [ps(0), ps(0), worker(1, "CPU:0"), ps(0)]


def nested(**setter: Any) -> dict[str, tf.Tensor]:
    with tf.device(tf.train.replica_device_setter(ps_tasks=2, **setter)):
        v1 = tf.Variable(1.0, name="v1")
        v2 = tf.Variable(2.0, name="v2")
        v3 = tf.Variable(3.0, name="v3")
        s = v1 + v2
        with tf.device("/gpu:1"):
            p1 = 2 * s
            with tf.device("/task:1"):
                p2 = 3 * s
    return {"v1": v1.op, "v2": v2.op, "v3": v3.op, "s": s, "p1": p1, "p2": p2}


def test_inner_blocks_say_more_than_the_setter() -> None:
    made = nested()
    asked = {name: x.device for name, x in made.items()}
    assert asked == {
        "v1": "/job:ps/task:0",
        "v2": "/job:ps/task:1",
        "v3": "/job:ps/task:0",
        "s": "/job:worker",
        "p1": "/job:worker/device:GPU:1",
        "p2": "/job:worker/task:1/device:GPU:1",
    }
    placed = tf.place(None, CLUSTER, devices=GPUS).placement
    got = {name: placed[(x.op if isinstance(x, tf.Tensor) else x).name] for name, x in made.items()}
    assert got == {
        "v1": ps(0), "v2": ps(1), "v3": ps(0),
        "s": worker(0, "GPU:0"), "p1": worker(0, "GPU:1"), "p2": worker(1, "GPU:1"),
    }  # fmt: skip


def test_worker_device_changes_where_the_rest_goes() -> None:
    made = nested(worker_device="/job:worker/task:1/cpu:0")
    placed = tf.place(None, CLUSTER, devices=GPUS).placement
    got = {name: placed[(x.op if isinstance(x, tf.Tensor) else x).name] for name, x in made.items()}
    assert got == {
        "v1": ps(0), "v2": ps(1), "v3": ps(0),
        "s": worker(1, "CPU:0"), "p1": worker(1, "GPU:1"), "p2": worker(1, "GPU:1"),
    }  # fmt: skip


def test_nested_blocks_on_running_servers(cluster: tf.LocalCluster, where_it_runs: Callable) -> None:
    made = nested()
    s, p1, p2 = made["s"], made["p1"], made["p2"]
    with tf.Session(cluster.target("worker", 0)) as sess:
        sess.run(tf.global_variables_initializer())
        assert sess.run([s, p1, p2]) == [3.0, 6.0, 9.0]
        plan = tf.place(None, CLUSTER, devices=GPUS, fetches=[p1, p2])
        assert {(c.name, c.source, c.destination) for c in plan.channels} == {
            ("v1/read:0", ps(0), worker(0, "GPU:0")),
            ("v2/read:0", ps(1), worker(0, "GPU:0")),
            ("add:0", worker(0, "GPU:0"), worker(0, "GPU:1")),
            ("add:0", worker(0, "GPU:0"), worker(1, "GPU:1")),
        }

    with tf.Graph().as_default():  # the same blocks on values that can be made to fail
        x = tf.placeholder(tf.float32)
        with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
            s = x + [1.0, 2.0]
            with tf.device("/gpu:1"):
                p1 = s * [1.0, 2.0]
                with tf.device("/task:1"):
                    p2 = s * [1.0, 2.0]
        with tf.Session(cluster.target("worker", 0)) as sess:
            bad = [1.0, 2.0, 3.0]
            assert where_it_runs(sess, s, {x: bad}) == worker(0, "GPU:0")
            assert where_it_runs(sess, p1, {s: bad}) == worker(0, "GPU:1")
            assert where_it_runs(sess, p2, {s: bad}) == worker(1, "GPU:1")
