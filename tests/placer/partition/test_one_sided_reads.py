"""Direct reads: which values may be read where they lie, and what is left of the sender's part then."""

import numpy as np
import pytest

import dovetail as dt
from dovetail.placer.cluster.load import make_cluster
from dovetail.placer.partition.control_edges import bypassed_noops
from dovetail.placer.partition.one_sided_access import AssumedAccess, at_hand
from dovetail.placer.partition.one_sided_reads import direct_reads, read_directly
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.prune import needed

PS, PS_GPU = "/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:0/device:GPU:0"
WORKER, OTHER = "/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:1/device:CPU:0"
WORKER_GPU = "/job:worker/replica:0/task:0/device:GPU:0"
MOST = 1 << 20


@pytest.fixture(autouse=True)
def graph():
    with dt.Graph().as_default() as g:
        yield g


def variable(name="v", shape=(3,), dtype=dt.float32, device=PS, **more):
    with dt.device(device):
        return dt.get_variable(name, shape, dtype, initializer=dt.zeros_initializer(), **more)


def cut_of(fetches=(), targets=(), feeds=(), narrow=False):
    """The cut of a step as the master makes it, and the names of what can be read directly."""
    g = dt.get_default_graph()
    targets = [t.op if isinstance(t, dt.Tensor) else t for t in targets]
    nodes = needed(g, fetches, targets, feeds)
    bypassed = bypassed_noops(nodes, lambda n: n.device)
    cut = partition(
        nodes, lambda n: n.device, fetches=fetches, feeds=feeds, bypassed=bypassed, enable_bfloat16_sendrecv=narrow
    )
    reads = direct_reads(cut, nodes, set(feeds), MOST, lambda n: n.device)
    made = read_directly(cut, reads, {*targets, *(t.op for t in fetches)}, bypassed)
    return cut, made, sorted(r.channel.name for r in reads)


def names(fetches=(), targets=(), **more):
    return cut_of(fetches, targets, **more)[2]


def steps(cut):
    """Device -> steps as text."""
    return {
        device: [what.name if kind == "node" else f"{kind} {what.name}" for kind, what in part.steps]
        for device, part in cut.partitions.items()
    }


@pytest.mark.parametrize("resource", [False, True])
def test_a_bare_variable_is_read_first_of_all_and_its_owner_has_nothing_to_do(resource):
    v = variable(use_resource=resource)
    with dt.device(PS):
        value = v.read_value() if resource else v
    with dt.device(WORKER):
        y = dt.add(value, dt.constant([1.0, 2.0, 3.0], name="x"), name="y")
    cut, made, found = cut_of([y])
    (channel,) = [c for c in cut.channels if c.source == PS]
    assert found == [channel.name]
    assert list(made.partitions) == [WORKER]
    assert steps(made)[WORKER][0] == f"read {channel.name}"
    assert made.channels[channel.id].direct and not cut.channels[channel.id].direct
    assert made.partitions[WORKER].nodes == cut.partitions[WORKER].nodes


def test_a_place_is_read_for_each_who_takes_its_value():
    with dt.device(PS):
        place = dt.Variable(np.zeros(3, np.float32))._ref_or_handle()
    with dt.device(WORKER):
        y = dt.negative(place) + dt.square(place)
    _, made, found = cut_of([y])
    assert found == [place.name, place.name]
    assert [s for s in steps(made)[WORKER] if s.startswith("read")] == [f"read {place.name}"] * 2


def test_training_reads_what_it_then_changes():
    v = variable()
    with dt.device(WORKER):
        loss = dt.reduce_sum(dt.square(v - 1.0))
        train = dt.train.GradientDescentOptimizer(0.1).minimize(loss)
    for node in dt.get_default_graph().nodes:
        if not node.device:
            node._set_device(WORKER)
        if "ApplyGradientDescent" in node.type:
            node._set_device(PS)
    _, made, found = cut_of(targets=[train])
    assert found == ["v/read:0"]
    owner = steps(made)[PS]
    assert "v" in owner and "v/read" not in owner and not any(s.startswith("send v") for s in owner)


def test_who_is_needed_otherwise_still_runs():
    v = variable()
    with dt.device(WORKER):
        y = dt.negative(v, name="y")
    with dt.device(PS):
        z = dt.square(v, name="z")
    read = v.op.graph.get_operation_by_name("v/read")
    assert steps(cut_of([y, z])[1])[PS] == ["v", "v/read", "z"]
    assert steps(cut_of([y], [read])[1])[PS] == ["v", "v/read"]
    assert steps(cut_of([y, read.outputs[0]])[1])[PS] == ["v", "v/read"]
    with dt.device(PS), dt.control_dependencies([read]):
        after = dt.no_op("after")
    assert steps(cut_of([y], [after])[1])[PS] == ["v", "v/read", "after"]


def test_a_change_that_may_come_first_keeps_the_order():
    v = variable()
    with dt.device(WORKER):
        y = dt.negative(v, name="y")
        other = dt.constant([1.0, 1.0, 1.0])
    with dt.device(PS):
        by_itself = dt.assign_add(v, [1.0, 1.0, 1.0])
        of_a_constant = dt.assign_add(v, other)  # which may be made here as well
        after = dt.assign_add(v, y)
        after_twice = dt.assign_add(v, dt.square(y))
    assert names([y], [by_itself]) == []
    assert names([y], [of_a_constant]) == []
    assert names([y], [after]) == names([y], [after, after_twice]) == ["v/read:0"]
    assert names([y], [after, by_itself]) == []


def test_a_change_that_waits_for_the_reader_comes_later():
    v, w = variable(), variable("w")
    with dt.device(WORKER):
        y = dt.negative(v, name="y")
    with dt.device(OTHER):
        z = dt.square(y, name="z")
    with dt.device(PS):
        with dt.control_dependencies([y]):
            told = dt.assign_add(v, [1.0, 1.0, 1.0])
        through_another = dt.assign_add(v, z)
        of_another = dt.assign_add(w, [1.0, 1.0, 1.0])
    for change in (told, through_another, of_another):
        assert names([y], [change]) == ["v/read:0"]


def test_what_is_read_after_a_change_is_sent_after_it():
    v = variable()
    with dt.device(WORKER):
        y = dt.negative(v, name="y")
    with dt.device(PS):
        change = dt.assign_add(v, y)
    with dt.device(WORKER), dt.control_dependencies([change]):
        again = v.read_value()
    assert names([again]) == ["v/read:0"]  # for `y`; what is read again is not the same value
    assert names([y, again]) == ["v/read:0"]


def test_what_another_reader_makes_says_nothing_of_this_one():
    v = variable()
    with dt.device(WORKER):
        y = dt.negative(v, name="y")
    with dt.device(OTHER):
        z = dt.square(v, name="z")
    with dt.device(PS):
        change = dt.assign_add(v, z)
    cut, made, found = cut_of([y, z], [change])
    assert found == ["v/read:0"]
    assert {d: [s for s in t if "v/read:0" in s] for d, t in steps(made).items()} == {
        PS: ["send v/read:0"], WORKER: ["recv v/read:0"], OTHER: ["read v/read:0"],
    }  # fmt: skip


def test_another_node_of_the_same_variable_changes_it():
    shared = variable("shared")
    same = dt.get_default_graph().create("VariableV2", [], {**shared.op.attrs, "shared_name": "shared"}, "same")
    same._set_device(PS)
    with dt.device(WORKER):
        y = dt.negative(shared)
    with dt.device(PS):
        change = dt.assign_add(same.outputs[0], [1.0, 1.0, 1.0])
        first = dt.assign(shared, [0.0, 0.0, 0.0])
        chained = dt.assign_add(first, [1.0, 1.0, 1.0])
    assert names([y]) == ["shared/read:0"]
    assert names([y], [change]) == []
    assert names([y], [chained]) == []


def test_what_is_no_bare_variable_is_sent():
    v = variable()
    with dt.device(PS):
        with dt.control_dependencies([dt.no_op()]):
            waiting = v.read_value()
        assigned = dt.assign(v, [1.0, 2.0, 3.0])
        computed = dt.square(v)
    with dt.device(WORKER):
        for tensor in (waiting, assigned, computed):
            assert names([dt.negative(tensor)]) == []


def test_what_the_sender_was_sent_itself_is_in_no_memory_of_its_own():
    v = variable()
    with dt.device(WORKER):
        passed_on = dt.identity(v)
    with dt.device(OTHER):
        y = dt.negative(passed_on)
    assert names([y]) == ["v/read:0"]
    cluster = make_cluster({"ps": 1, "worker": 2})
    free = at_hand(dt.get_default_graph().nodes, cluster, AssumedAccess(cluster, True), ())
    assert {v._snapshot, passed_on} & free == {v._snapshot}


@pytest.mark.parametrize("owner, reader", [(PS_GPU, WORKER), (PS, WORKER_GPU), (PS, PS_GPU)])
def test_only_cpus_of_different_tasks_read_directly(owner, reader):
    v = variable(device=owner)
    with dt.device(reader):
        y = dt.negative(v)
    assert names([y]) == []


def test_only_values_that_are_not_too_large_and_cross_as_they_are():
    large, words = variable("large", [MOST // 4 + 1]), variable("words", [2], dt.string)
    with dt.device(PS):
        unknown = dt.Variable([1.0], name="unknown", validate_shape=False)
    fits = variable("fits", [MOST // 4])
    with dt.device(WORKER):
        ys = [dt.identity(v) for v in (large, words, unknown, fits)]
    assert names(ys) == ["fits/read:0"]
    assert names(ys, narrow=True) == []
    assert names([dt.negative(ys[3])], feeds=[fits._snapshot]) == []


def test_not_in_branches_and_loops_but_beside_them():
    v, w = variable(), variable("w")
    with dt.device(WORKER):
        p = dt.placeholder(dt.bool, [], name="p")
        branch = dt.cond(p, lambda: dt.negative(v), lambda: dt.square(w))
        loop = dt.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + v), [0, dt.square(w)])[1]
    for node in dt.get_default_graph().nodes:
        if not node.device:
            node._set_device(WORKER)
    for fetch in (branch, loop):
        cut, made, found = cut_of([fetch], feeds=[p])
        assert all(c.loop is None for c in made.channels if c.direct)
        assert {c.name for c in made.channels if c.direct} == set(found)
    assert names([loop]) == ["v/read:0", "w/read:0"]  # both cross before the loop


def test_no_variables_nothing_to_do():
    with dt.device(PS):
        x = dt.constant(1.0)
    with dt.device(WORKER):
        y = x + 1.0
    cut, made, found = cut_of([y])
    assert found == [] and made is cut
