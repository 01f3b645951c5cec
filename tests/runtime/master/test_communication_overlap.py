"""Where collectives begin: right behind what makes their last input, in their order; all else stays where it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

import dovetail as tf
from dovetail.codegen.ir.partition import AwaitNode, SendTensor
from dovetail.distribute import reduction
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.graph import Node
from dovetail.graph.ops.state import collectives
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.partitioned_graph import Partitioned
from dovetail.placer.partition.prune import needed
from dovetail.runtime.master.lowering import LEAST_WORK, lower_partitions, overlap_collectives
from dovetail.runtime.worker.registration import pack_partitions, unpack_partitions

CPU = "/job:worker/replica:0/task:0/device:CPU:0"
MEMBERS = [CPU, "/job:worker/replica:0/task:1/device:CPU:0"]
LARGE = [LEAST_WORK // 4]


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as fresh:
        yield fresh


def made(name: str, dims: list[int] = LARGE) -> tf.Tensor:
    return tf.random_uniform(dims, name=name)


def reduced(value: tf.Tensor, name: str) -> tf.Tensor:
    return collectives.all_reduce(value, MEMBERS, 0, name=name)


def cut_of(targets: Iterable[tf.Tensor | Node]) -> Partitioned:
    nodes = [t if isinstance(t, tf.Operation) else t.op for t in targets]
    return partition(needed(tf.get_default_graph(), targets=nodes), lambda n: CPU)


def steps(*targets: tf.Tensor | Node) -> list[str]:
    """The steps but for constants, and what makes random numbers' shapes."""
    cut = cut_of(targets)
    found = overlap_collectives(cut.partitions[CPU], cut)
    return [
        f"await {what.name}" if kind == "await" else what.name if isinstance(what, Node) else kind
        for kind, what in found
        if not (isinstance(what, Node) and "/" in what.name) and not (isinstance(what, Node) and what.type == "Const")
    ]


def test_each_begins_behind_its_last_input_and_is_awaited_where_it_stood() -> None:
    c, b, a = made("c"), made("b"), made("a")
    cb, ra = collectives.all_reduce([c, b], MEMBERS, 0, name="cb"), reduced(a, "ra")
    end = tf.group(cb[0] + 1.0, ra + 1.0, name="end")
    assert steps(end) == ["c", "b", "cb", "a", "ra", "await cb", "await ra", "add", "add_1", "end"]


def test_they_keep_their_order() -> None:
    b, a = made("b"), made("a")
    ra, rb, z = reduced(a, "ra"), reduced(b, "rb"), made("z")
    assert steps(ra, rb, z) == ["b", "a", "ra", "rb", "z", "await ra", "await rb"]
    placed = tf.get_variable("placed", initializer=np.zeros(LARGE, np.float32), use_resource=False)
    stays = collectives.all_reduce(placed._ref(), MEMBERS, 0, name="stays")
    assert steps(stays, reduced(b, "rc"), z)[-2:] == ["stays", "rc"]


def test_what_begins_where_it_is_awaited_is_one_step() -> None:
    b, a = made("b"), made("a")
    assert steps(reduced(b + a, "r") + 1.0) == ["b", "a", "add", "r", "add_1"]


def test_what_little_could_run_beside_stays() -> None:
    b, a = made("b"), made("a", [100])
    assert steps(reduced(b, "r"), a) == ["b", "a", "r"]


def test_control_edges_hold() -> None:
    b, log, a = made("b"), tf.no_op("log"), made("a")
    with tf.control_dependencies([log]):
        rb = reduced(b, "rb")
    with tf.control_dependencies([rb]):
        after = tf.no_op("after")
    assert steps(after, a) == ["b", "log", "rb", "a", "await rb", "after"]


def test_fed_values_are_there_from_the_start() -> None:
    x = tf.placeholder(tf.float32, LARGE, name="x")
    r, a = reduced(x, "r"), made("a")
    nodes = needed(tf.get_default_graph(), targets=[r.op, a.op], feeds=[x])
    cut = partition(nodes, lambda n: CPU, feeds=[x])
    found = overlap_collectives(cut.partitions[CPU], cut)
    assert found[0] == ("node", r.op) and found[-1] == ("await", r.op)


def test_a_small_one_does_not_hold_up_a_large_one() -> None:
    """The gradients of a bias have a bucket of their own where a layer's weights fill one."""
    bias, w1, w0 = made("bias", [100]), made("w1"), made("w0")
    reduces = [reduced(bias, "rbias"), reduced(w1, "r1"), reduced(w0, "r0")]
    order = ["bias", "rbias", "w1", "r1", "w0", "r0", "await rbias", "await r1", "await r0"]
    assert steps(tf.group(*reduces, name="end")) == [*order, "end"]


def test_places_and_barriers_stay() -> None:
    v = tf.get_variable("v", initializer=np.zeros(LARGE, np.float32), use_resource=False)
    kept = [reduced(v._ref() if hasattr(v, "_ref") else v, "rv")]
    barrier = collectives.barrier(MEMBERS, 0, name="barrier")
    assert not [x for x in steps(*kept, barrier, made("a")) if x.startswith("await")]


def test_in_loops_and_branches_they_stay() -> None:
    x = made("x")
    looped = tf.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, reduced(v, "rl") + 0.0), [tf.constant(0), x])[1]
    branch = tf.cond(x[0] > 0.5, lambda: reduced(x, "ry") + 0.0, lambda: x + 0.0)
    after = reduced(looped, "after")
    found = cut_of([looped, branch, after, made("late")])
    told = overlap_collectives(found.partitions[CPU], found)
    assert [what.name for kind, what in told if kind == "await" and isinstance(what, Node)] == ["after"]
    kinds = [kind for kind, _ in told]
    begins = next(i for i, (kind, what) in enumerate(told) if isinstance(what, Node) and what is after.op)
    assert kinds.index("end") < begins  # what a loop gives is there when it has ended


def test_units_travel() -> None:
    b, a = made("b"), made("a")
    rb = reduced(b, "rb")
    (partition,) = unpack_partitions(pack_partitions(lower_partitions(cut_of([rb, a]), tf.get_default_graph())))
    (awaited,) = [i for i, s in enumerate(partition.steps) if isinstance(s, AwaitNode)]
    (begun,) = [i for i, s in enumerate(partition.steps) if isinstance(s, Node) and s.name == "rb"]
    assert begun < awaited and partition.steps[awaited].node is partition.steps[begun]  # type: ignore[union-attr]


def test_a_message_cannot_await_what_does_not_run_beside() -> None:
    b, a = made("b"), made("a")
    (partition,) = lower_partitions(cut_of([reduced(b, "rb"), a]), tf.get_default_graph())
    wait = next(s for s in partition.steps if isinstance(s, AwaitNode))
    at = partition.steps.index(wait)
    too_late = [*partition.steps[:at], SendTensor(0, wait.node.outputs[0], MEMBERS[1]), wait]
    for wrong in ([*partition.steps, wait], [*partition.steps, AwaitNode(a.op)], too_late):
        message = pack_partitions([type(partition)(partition.device, tuple(wrong), partition.feeds, partition.fetches)])
        with pytest.raises(InvalidArgumentError, match="is awaited, but is no asynchronous kernel"):
            unpack_partitions(message)


def test_each_replica_s_gradients_leave_during_its_own_backward_pass() -> None:
    """Of several GPUs in one process, under `NcclAllReduce`: the last layer's are under way before the first layer's are made."""
    gpus = ["/device:GPU:0", "/device:GPU:1"]
    size = 300  # a layer's weights are large enough to begin early; buckets hold all three, but for the limit below
    strategy = tf.distribute.MirroredStrategy(gpus, cross_device_ops=tf.distribute.NcclAllReduce())
    with strategy.scope():

        def replica() -> Node:
            h = x = tf.random_uniform([64, size])
            for i in range(3):
                h = tf.matmul(h, tf.get_variable(f"w{i}", [size, size]), name=f"layer{i}")
            return tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(h - x)))

        before, reduction.BUCKET_BYTES = reduction.BUCKET_BYTES, size * size * 4
        try:
            train = strategy.group(strategy.run(replica))
        finally:
            reduction.BUCKET_BYTES = before
    cut = partition(needed(tf.get_default_graph(), targets=[train]), lambda n: n.device or gpus[0])
    for device in gpus:
        found = overlap_collectives(cut.partitions[device], cut)
        order = [what for kind, what in found if kind == "node" and isinstance(what, Node)]
        begins = [i for i, node in enumerate(order) if node.type == "CollectiveReduce"]
        made = [i for i, node in enumerate(order) if node.type == "MatMul" and "grad" in node.name]
        assert len(begins) == 3 and begins[0] < max(made)
