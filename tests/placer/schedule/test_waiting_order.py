"""What may wait for another step stands as late in a step's order as it can, and state stays where it is."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

import dovetail as tf
from dovetail.graph.core.opdef import Trait
from dovetail.placer.cluster.spec import Cluster, local_devices
from dovetail.placer.partition.prune import needed
from dovetail.placer.rules.place import place


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def order(targets):
    nodes = [t if isinstance(t, tf.Operation) else t.op for t in targets]
    return [n.name for n in needed(tf.get_default_graph(), targets=nodes)]


def test_what_does_not_need_it_runs_before_it():
    q = tf.FIFOQueue(3, tf.float32, shapes=[[]])
    got = q.dequeue(name="got")
    after = tf.identity(got * 2, name="after")
    free = tf.identity(tf.constant(1.0), name="free")
    put = q.enqueue(free, name="put")
    names = order([after, free, put])
    assert names.index("free") < names.index("put") < names.index("got") < names.index("after")


def test_waits_that_follow_each_other_stay_in_order():
    q = tf.FIFOQueue(3, tf.float32, shapes=[[]])
    first = q.dequeue(name="first")
    back = q.enqueue(first + 1, name="back")
    with tf.control_dependencies([back]):
        second = q.dequeue(name="second")
    other = q.dequeue(name="other")
    names = order([second, other])
    assert names.index("first") < names.index("back") < names.index("second")
    assert names.index("other") < names.index("back")  # it is in the first wave


def test_without_waits_the_order_is_that_of_creation():
    a = tf.constant(1.0, name="a")
    c = tf.add(a, tf.constant(2.0, name="b"), name="c")
    assert order([c]) == ["a", "b", "c"]


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 30), max_size=3)), min_size=1, max_size=30))
def test_the_order_obeys_all_edges_and_nothing_waits_in_vain(described):
    with tf.Graph().as_default() as graph:
        q = tf.FIFOQueue(3, tf.float32, shapes=[[]])
        made = []
        for kind, before in described:
            with tf.control_dependencies([made[i % len(made)] for i in before] if made else []):
                made.append(tf.no_op() if kind == 0 else q.enqueue(1.0) if kind == 1 else q.dequeue().op)
        nodes = needed(graph, targets=made)
        at = {n: i for i, n in enumerate(nodes)}
        assert set(made) <= set(nodes)
        assert all(at[b] < at[n] for n in nodes for b in n.before)
        waits = [n for n in nodes if Trait.BLOCKING in n.opdef.traits]
        for n in nodes:
            if n in waits:
                continue
            needs, todo = set(), [n]
            while todo:
                for b in todo.pop().before:
                    if b not in needs:
                        needs.add(b)
                        todo.append(b)
            if not any(w in needs for w in waits):
                assert all(at[n] < at[w] for w in waits)


# --- where queues are -------------------------------------------------------------------------------------------------


def devices_of(cluster):
    placement = place(tf.get_default_graph(), cluster, allow_soft_placement=False)
    return {n.name: placement.device_of(n) for n in tf.get_default_graph().nodes}


@pytest.fixture
def cluster():
    tasks = [f"/job:{job}/replica:0/task:{i}" for job in ("worker", "ps") for i in range(2)]
    return Cluster(tuple(d for t in tasks for d in local_devices(t, emulated_gpus=1)), master=tasks[0])


PS1 = "/job:ps/replica:0/task:1/device:CPU:0"


def test_who_takes_the_handle_goes_where_the_queue_is(cluster):
    with tf.device("/job:ps/task:1"):
        q = tf.FIFOQueue(3, tf.float32, shapes=[[]], name="q")
    with tf.device("/job:worker/task:1/device:GPU:0"):
        q.enqueue(tf.constant(1.0, name="value"), name="put")
        tf.identity(q.dequeue(name="got"), name="used")
    a = devices_of(cluster)
    assert a["q"] == a["put"] == a["got"] == PS1
    assert a["value"] == a["used"] == "/job:worker/replica:0/task:1/device:GPU:0"


def test_the_setter_deals_out_variables_and_accumulators_but_no_queues(cluster):
    with tf.device(tf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:1")):
        tf.FIFOQueue(3, tf.float32, name="q")
        tf.get_variable("v", [2])
        tf.ConditionalAccumulator(tf.float32, name="a").take_grad(1, name="take")
    a = devices_of(cluster)
    assert a["q"] == "/job:worker/replica:0/task:1/device:CPU:0"
    assert a["a"] == a["take"] == PS1
