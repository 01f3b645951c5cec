"""To which accumulators another task could add: those that a step only adds to, with what that task has made."""

import pytest

import dovetail as tf
from dovetail.placer.cluster.load import as_cluster
from dovetail.placer.partition.one_sided_accumulates import added, added_to, direct_additions
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.prune import needed
from dovetail.placer.rules.place import place

MOST = 1 << 20
W0, W1 = (f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2))


@pytest.fixture(autouse=True)
def fresh_graph():
    with tf.Graph().as_default():
        yield


def accumulator(ps=0, size=4, **more):
    with tf.device(f"/job:ps/task:{ps}"):
        return tf.ConditionalAccumulator(tf.float32, [size] if size else None, **more)


def gradient(worker=0, size=4, device="cpu:0"):
    with tf.device(f"/job:worker/task:{worker}/{device}"):
        return tf.square(tf.placeholder(tf.float32, [size]))


def step(worker=0):
    with tf.device(f"/job:worker/task:{worker}"):
        return tf.identity(tf.placeholder(tf.int64, []))


def found(*targets, devices=None, most=MOST, fed=()):
    """Accumulator -> the device that could add to it."""
    graph = tf.get_default_graph()
    cluster = as_cluster({"ps": 2, "worker": 2}, devices, None)
    feeds = {*fed, *(n.outputs[0] for n in graph.nodes if n.type == "Placeholder")}
    nodes = needed(graph, targets=[getattr(t, "op", t) for t in targets], feeds=feeds)
    placed = place(graph, cluster)
    additions = direct_additions(nodes, placed.device_of, cluster, feeds, most)
    cut = partition(nodes, added(additions, placed.device_of), feeds=feeds)
    told = added_to(cut.partitions, placed.device_of)
    assert told == {n: a.by for a in additions for n in (a.accumulator, *a.additions)}
    return {a.accumulator.name: a.by for a in additions}


def test_additions_go_to_where_gradients_are_made():
    a, b = accumulator(0, name="a"), accumulator(1, name="b")
    g = gradient(1)
    assert found(a.apply_grad(g, step(1)), b.apply_grad(g, step(1))) == {"a": W1, "b": W1}


def test_a_step_that_is_a_constant_is_copied():
    with tf.device("/job:worker/task:0"):
        assert found(accumulator(name="a").apply_grad(gradient(), tf.constant(3, tf.int64))) == {"a": W0}


def test_what_waits_for_additions_stays():
    a = accumulator(name="a")
    with tf.device("/job:ps/task:0"):
        queue = tf.FIFOQueue(3, [tf.int64], [[]])
        with tf.control_dependencies([a.apply_grad(gradient(), step())]):
            token = queue.dequeue()
    assert found(token) == {"a": W0}


def test_several_additions_of_one_task():
    a = accumulator(name="a")
    assert found(a.apply_grad(gradient(), step()), a.apply_grad(gradient(), step())) == {"a": W0}


def taken(a):
    return a.apply_grad(gradient(), step()), a.take_grad(1)


def counted(a):
    return a.apply_grad(gradient(), step()), a.num_accumulated()


def of_two(a):
    return a.apply_grad(gradient(0), step()), a.apply_grad(gradient(1), step(1))


def of_both(a):
    return (a.apply_grad(gradient(0), step(1)),)


def made_there(a):
    with tf.device("/job:ps/task:0"):
        return (a.apply_grad(tf.square(gradient()), step()),)


def waits_there(a):
    g, s = gradient(), step()
    with tf.device("/job:ps/task:0"):
        before = tf.get_variable("v", [3], initializer=tf.zeros_initializer()).assign([1.0, 2.0, 3.0])
    with tf.control_dependencies([before]):
        return (a.apply_grad(g, s),)


def fed_step(a):
    return (a.apply_grad(gradient(), tf.placeholder(tf.int64, [])),)


def in_a_branch(a):
    g, s = gradient(), step()
    return (tf.cond(tf.reduce_sum(g) > 0, lambda: tf.group(a.apply_grad(g, s)), tf.no_op),)


@pytest.mark.parametrize("make", [taken, counted, of_two, of_both, made_there, waits_there, fed_step, in_a_branch])
def test_what_is_more_than_adding_what_one_task_has_made_stays(make):
    assert found(*make(accumulator())) == {}


def test_sizes():
    assert found(accumulator(size=0).apply_grad(gradient(), step())) == {}
    assert found(accumulator(size=100, name="a").apply_grad(gradient(size=100), step()), most=464) == {"a": W0}
    assert found(accumulator(size=100).apply_grad(gradient(size=100), step()), most=463) == {}


def test_a_task_that_also_uses_a_gpu_sends():
    devices = {"worker": ["cpu:0", "gpu:0"], "ps": ["cpu:0"]}
    a = accumulator()
    assert found(a.apply_grad(gradient(device="gpu:0"), step()), devices=devices) == {}


def test_what_is_of_the_same_task_is_left_alone():
    a = accumulator()
    with tf.device("/job:ps/task:0"):
        x = tf.square(tf.placeholder(tf.float32, [4]))
        s = tf.identity(tf.placeholder(tf.int64, []))
    assert found(a.apply_grad(x, s)) == {}
