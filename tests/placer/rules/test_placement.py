"""The placement as a value: devices, decisions, and explanations of them."""

import numpy as np
import pytest

import dovetail as dt
from dovetail.placer.cluster.load import make_cluster
from dovetail.placer.rules.place import place
from dovetail.placer.rules.placement import Rule

TASK = "/job:{}/replica:0/task:{}/device:{}:{}"
PS1 = TASK.format("ps", 1, "CPU", 0)
W0, W0G, W0G1 = (TASK.format("worker", 0, *d) for d in (("CPU", 0), ("GPU", 0), ("GPU", 1)))
W1 = TASK.format("worker", 1, "CPU", 0)


@pytest.fixture
def graph():
    with dt.Graph().as_default() as g:
        yield g


def cluster():
    return make_cluster({"ps": 2, "worker": 2}, {"worker": ["cpu:0", "gpu:0", "gpu:1"]}, "/job:worker/task:0")


def test_only_some_nodes(graph):
    a = dt.constant(1.0)
    b = dt.negative(a)
    with dt.device("/job:moon"):
        unwanted = dt.negative(a)
    found = place(graph, cluster(), nodes=[a.op, b.op])
    assert found.as_dict() == {a.op.name: W0G, b.op.name: W0G}
    assert unwanted.op not in found and len(found) == 2
    with pytest.raises(KeyError, match="was not placed"):
        found.device_of(unwanted.op)


def test_explain_names_the_deciding_members_of_a_large_group_and_counts_the_rest(graph):
    v = dt.Variable([1.0], name="v")
    with dt.colocate_with(v):
        for i in range(6):
            dt.add(1.0, 1.0, name=f"with_{i}")
    found = place(graph, cluster())
    text = found.explain("with_5")
    group = found.decision("with_5").group
    (line,) = [at for at in text.splitlines() if "colocation group" in at]
    assert line.startswith("  colocation group: v, ") and line.count(",") == 3
    assert line.endswith(f" and {len(group) - 5} more (all: plan.decisions.decision('with_5').group)")
    assert {"v", "v/Assign", "with_0", "with_5"} <= set(group)


def test_explain(graph):
    with dt.device("/job:worker"), dt.device("/gpu:1"):
        a = dt.add(dt.constant(1.0), dt.constant(1.0), name="a")
    with dt.colocate_with(a):
        dt.add(a, a, name="b")
    text = place(graph, cluster()).explain("b")
    assert text.startswith(f"b -> {W0G1}")
    for part in ("colocated with a", "colocation group: a", "candidate devices", W0G1, "assigned"):
        assert part in text
    text = place(graph, cluster()).explain("a")
    assert text.index("'/device:GPU:1'") < text.index("inside device block '/job:worker'")
    assert f"not {W0}" in text or W0 in text


def test_a_decision_lists_every_device_once(graph):
    with dt.device("/job:worker/cpu:0"):
        a = dt.add(dt.constant(1.0), dt.constant(1.0))
    found = place(graph, cluster())
    d = found.decision(a.op)
    assert d.candidates == (W0, W1) and d.chosen == W0 and d.rule is Rule.FIRST
    assert sorted([*d.candidates, *(r.device for r in d.rejected)]) == sorted(found.devices)
    assert all("is required" in r.reason for r in d.rejected)


def test_each_node_is_told_why_its_own_request_yielded(graph):
    with dt.device("/job:ps/task:1"):
        v = dt.Variable(np.zeros(3, "float32"), use_resource=True, name="v")
    with dt.device("/job:worker"):
        changes = [v.assign(np.ones(3, "float32"), read_value=False, name=name) for name in ("a", "b")]
    reasons = {r.node: r.reason for r in place(graph, cluster()).relaxations}
    for change in changes:
        assert reasons[change.name] == f"'{change.name}' takes a reference to 'v', and is colocated with it"


def test_a_group_with_one_candidate_has_no_other_choice(graph):
    with dt.device("/job:ps/task:1"):
        v = dt.Variable([1.0], name="v")
    with dt.device("/job:worker/task:0"):
        w = dt.Variable([1.0], name="w")
    with dt.device("/job:worker/task:1"):
        change = dt.assign(v, [2.0], name="change")
    found = place(graph, cluster())
    for node in ("v", "v/read", "change"):
        assert found.decision(node).rule is Rule.ONLY and len(found.decision(node).candidates) == 1
    assert found.decision(w.value().op).rule is Rule.GROUP  # a CPU and GPUs
    text = found.explain(change.op)
    assert text.endswith(f"assigned: {PS1}, the only candidate")
    assert "    colocated with v, so device blocks around it do not count\n" in text
