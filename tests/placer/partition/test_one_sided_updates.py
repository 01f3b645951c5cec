"""Whose part of a step another task could run: whole parts that only read and update variables, beside one other task."""

import pytest

import dovetail as tf
from dovetail.placer.cluster.load import as_cluster
from dovetail.placer.partition.one_sided_updates import direct_updates, moved
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.prune import needed
from dovetail.placer.rules.place import place

MOST = 1 << 20


@pytest.fixture(autouse=True)
def fresh_graph():
    with tf.Graph().as_default():
        yield


def task(name, index=0):
    return f"/job:{name}/replica:0/task:{index}"


def variable(name, ps, size=4, **more):
    with tf.device(f"/job:ps/task:{ps}"):
        return tf.get_variable(name, [size], initializer=tf.zeros_initializer(), **more)


def gradient(worker, size=4, device="cpu:0"):
    with tf.device(f"/job:worker/task:{worker}/{device}"):
        return tf.square(tf.placeholder(tf.float32, [size]))


def found(*targets, jobs=None, devices=None, staying=(), most=MOST, **more):
    """The parts that could be moved: task -> device; and those to whose places that needs."""
    graph = tf.get_default_graph()
    cluster = as_cluster(jobs or {"ps": 2, "worker": 2}, devices, None)
    nodes = needed(graph, targets=[getattr(t, "op", t) for t in targets])
    placed = place(graph, cluster, **more)
    updates = direct_updates(nodes, placed.device_of, cluster, set(), most, staying)
    device_of = moved(updates, placed.device_of)
    cut = partition(nodes, device_of)
    by = {u.task: u.by for u in updates}
    assert not any(d.rpartition("/device")[0] in by for d in cut.partitions)  # a part is moved as a whole, or not
    return by, [p[1:] for u in updates for _, p in u.variables]


W0, W1 = task("worker") + "/device:CPU:0", task("worker", 1) + "/device:CPU:0"


def test_a_parameter_servers_part_goes_to_its_worker():
    v = variable("v", 1, use_resource=True)
    up = v.assign_add(gradient(1))
    assert found(up) == ({task("ps", 1): W1}, [("", "v")])


def test_parameter_servers_that_exchange_go_together():
    a, b = variable("a", 0), variable("b", 1)
    first = a.assign_add(gradient(0))
    with tf.control_dependencies([first]):
        second = b.assign_sub(tf.ones([4]))
    assert found(second) == ({task("ps"): W0, task("ps", 1): W0}, [("", "a"), ("", "b")])
    assert found(second, staying={task("ps", 1)}) == ({}, [])  # the other one would exchange with two then
    assert found(second, staying={task("ps")})[0] == {task("ps", 1): task("ps") + "/device:CPU:0"}


def test_a_worker_that_only_groups_updates_does_them():
    a, b, count = variable("a", 0), variable("b", 1), variable("count", 0)
    with tf.device("/job:worker/task:0"):
        both = tf.group(a.assign_add(tf.ones([4])), b.assign_add(tf.ones([4])))
    with tf.control_dependencies([both]):
        counted = count.assign_add(tf.ones([4]))
    assert found(counted)[0] == {task("ps"): W0, task("ps", 1): W0}  # without the group no task but the two takes part


def test_several_workers_have_it_stay():
    v = variable("v", 0)
    assert found(tf.group(v.assign_add(gradient(0)), v.assign_add(gradient(1))))[0] == {}
    other = variable("other", 1)  # which is one worker's alone
    ups = [v.assign_add(gradient(0)), v.assign_add(gradient(1)), other.assign_add(gradient(1))]
    assert found(*ups)[0] == {task("ps", 1): W1}


def test_nobody_else_in_the_step_has_it_stay():
    v = variable("v", 0)
    with tf.device("/job:ps/task:0"):
        assert found(v.assign_add(tf.ones([4])))[0] == {}


def test_a_part_that_only_reads_or_stores_stays():
    v = variable("v", 0)
    with tf.device("/job:worker/task:0"):
        assert found(tf.square(v))[0] == {}
    assert found(v.assign(gradient(0)))[0] == {}


def test_what_only_reads_goes_along_with_whom_it_exchanges():
    a, b = variable("a", 0), variable("b", 1)
    with tf.device("/job:worker/task:0"):
        up = a.assign_add(tf.square(b))  # `b` is read directly anyhow
    assert found(up)[0] == {task("ps"): W0}
    with tf.device("/job:ps/task:0"):
        up = a.assign_add(gradient(0) + b)
    assert found(up)[0] == {task("ps"): W0, task("ps", 1): W0}


@pytest.mark.parametrize("where", ["gradient", "beside"])
def test_gpus_send_their_gradients(where):
    v = variable("v", 0)
    devices = {"worker": ["cpu:0", "gpu:0"], "ps": ["cpu:0"]}
    up = v.assign_add(gradient(0, device="gpu:0" if where == "gradient" else "cpu:0"))
    targets = [up] if where == "gradient" else [up, gradient(0, device="gpu:0")]
    assert found(*targets, devices=devices)[0] == {}


def test_large_variables_and_those_of_unknown_shape_stay():
    v = variable("v", 0, 100)
    up = v.assign_add(gradient(0, 100))
    assert found(up, most=399)[0] == {} and found(up, most=400)[0] == {task("ps"): W0}
    with tf.device("/job:ps/task:0"):
        unknown = tf.Variable(tf.zeros([4]), validate_shape=False, name="unknown")
        assert found(unknown.assign_add(gradient(0)))[0] == {}


def test_small_arithmetic_goes_along_and_large_does_not():
    v = variable("v", 0)
    with tf.device("/job:ps/task:0"):
        small = v.assign_add(gradient(0) * 0.5 + 1.0)
    assert found(small)[0] == {task("ps"): W0}
    wide = variable("wide", 0, 1000)
    with tf.device("/job:ps/task:0"):
        large = wide.assign_add(gradient(0, 1000) * 0.5)
    assert found(large)[0] == {}


def test_optimizers_go_with_their_slots():
    w = variable("w", 0)
    with tf.device(tf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:0")):
        loss = tf.reduce_sum(tf.square(w) * gradient(0))
        train = tf.train.AdamOptimizer().minimize(loss, global_step=tf.train.get_or_create_global_step())
    by, places = found(train)
    assert set(by.values()) == {W0} and task("ps") in by
    assert {"w", "w/Adam", "w/Adam_1", "beta1_power", "beta2_power", "global_step"} == {name for _, name in places}
