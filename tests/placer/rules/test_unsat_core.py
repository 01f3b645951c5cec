"""Smallest contradictions, and suggestions that work when they are followed."""

import re
from functools import reduce
from itertools import combinations
from operator import and_

import numpy as np
import pytest
from hypothesis import given, strategies as st

import dovetail as dt
from dovetail.graph.core.device import DeviceSpec
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.opdef import define
from dovetail.placer.cluster.load import make_cluster
from dovetail.placer.rules.place import place
from dovetail.placer.rules.unsat_core import Member, members, nearest, smallest_contradiction

define(
    "ConflictCpuOnly",
    infer=lambda i, a: [(i[0].dtype.base, i[0].dims)],
    reference=lambda x: x,
    device_types=("CPU",),
)

CLUSTER = make_cluster({"ps": 2, "worker": 2}, {"worker": ["cpu:0", "gpu:0", "gpu:1"]}, "/job:worker/task:0")
WAY = re.compile(r"^  request '(?P<spec>[^']*)' for '(?P<node>[^']*)': then .* can be on (?P<device>\S+)$", re.M)


@given(st.lists(st.integers(0, 63), max_size=7))
def test_a_smallest_contradiction_is_one_and_there_is_no_smaller(masks):
    with dt.Graph().as_default():
        node = dt.constant(1.0).op
    group = [Member(node, DeviceSpec(), m, 63, node.index) for m in masks]
    found = smallest_contradiction(group)
    agree = not masks or reduce(and_, masks)
    assert bool(found) != bool(agree)
    if found:
        assert not reduce(and_, (m.allowed for m in found))
        smaller = (c for size in range(1, len(found)) for c in combinations(masks, size))
        assert all(reduce(and_, c) for c in smaller)


def test_large_groups_are_still_reduced():
    with dt.Graph().as_default():
        node = dt.constant(1.0).op
    every = (1 << 64) - 1
    group = [Member(node, DeviceSpec(), every & ~(1 << i), every, 0) for i in range(64)]
    assert len(smallest_contradiction(group)) == 64  # each forbids one device: all of them are needed
    assert len(smallest_contradiction([*group, Member(node, DeviceSpec(), 1, every, 0)])) == 2


@pytest.mark.parametrize(
    ("request_", "device", "differs"),
    [
        ("/job:worker/task:0/gpu:5", "/job:worker/replica:0/task:0/device:GPU:0", ["device_index"]),
        ("/job:worker/task:9/gpu:1", "/job:worker/replica:0/task:0/device:GPU:1", ["task"]),
        ("/job:ps/task:1/gpu:0", "/job:ps/replica:0/task:1/device:CPU:0", ["device_type"]),
        ("/job:moon/task:1", "/job:ps/replica:0/task:1/device:CPU:0", ["job"]),
        ("/replica:3/job:ps", "/job:ps/replica:0/task:0/device:CPU:0", ["replica"]),
        ("", "/job:worker/replica:0/task:0/device:GPU:0", []),
        # a slip in a job's name
        ("/job:sp/task:1", "/job:ps/replica:0/task:1/device:CPU:0", ["job"]),
        ("/job:pss/task:7", "/job:ps/replica:0/task:0/device:CPU:0", ["task", "job"]),
        ("/job:wroker/task:1", "/job:worker/replica:0/task:1/device:GPU:0", ["job"]),
    ],
)
def test_the_nearest_device(request_, device, differs):
    found = nearest(DeviceSpec.from_string(request_), (1 << 8) - 1, CLUSTER)
    assert found is not None and (str(found[0]), found[1]) == (device, differs)
    assert nearest(DeviceSpec(), 0, CLUSTER) is None


REQUESTS = ["", "/job:ps", "/job:ps/task:1", "/job:worker", "/task:1", "/gpu:0", "/job:moon", "/task:7",
            "/cpu:3", "/job:worker/task:1/gpu:1", "/device:TPU:0"]  # fmt: skip
PROGRAMS = st.lists(
    st.tuples(
        st.sampled_from(REQUESTS),
        st.sampled_from(["add", "cpu", "var", "change"]),
        st.integers(0, 20),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)


def build(program):
    """A graph of nodes `n0`, `n1`, ..., some colocated with an earlier one, some changing a variable."""
    with dt.Graph().as_default() as g:
        nodes, variables = [], []
        zeros = {"dtype": dt.float32, "value": np.zeros(2, "float32")}
        for i, (request, kind, other, colocated) in enumerate(program):
            with g.device(request or None):
                peer = nodes[other % len(nodes)] if nodes and colocated else None
                if kind == "var":
                    made = g.create("VarHandleOp", [], {"dtype": dt.float32, "shape": (2,), "shared_name": ""}, f"n{i}")
                    variables.append(made)
                elif kind == "change" and variables:
                    v = variables[other % len(variables)]
                    value = g.create("Const", [], dict(zeros), f"c{i}")
                    made = g.create(
                        "AssignVariableOp",
                        [v.outputs[0], value.outputs[0]],
                        {"validate_shape": False},
                        f"n{i}",
                    )
                else:
                    value = g.create("Const", [], dict(zeros), f"c{i}")
                    op = "ConflictCpuOnly" if kind == "cpu" else "Neg"
                    made = g.create(op, [value.outputs[0]], {}, f"n{i}")
            if peer is not None:
                made.colocation = (peer.name,)
            nodes.append(made)
    return g


@given(PROGRAMS)
def test_following_the_suggestions_leads_to_a_placement(program):
    for _ in range(3 * len(program)):
        g = build(program)
        try:
            place(g, CLUSTER)
            return
        except InvalidArgumentError as e:
            ways = list(WAY.finditer(str(e)))
            text = str(e)
        if not ways:
            assert "none that changes only one request" in text
            return
        i = int(ways[0]["node"][1:]) if ways[0]["node"][0] == "n" else None
        at = i if i is not None else int(ways[0]["node"][1:])
        was = DeviceSpec.from_string(program[at][0])
        now = DeviceSpec.from_string(ways[0]["spec"])
        assert now != was, text
        program = [*program[:at], (str(now), *program[at][1:]), *program[at + 1 :]]
    raise AssertionError("the suggestions go round in circles")


def test_who_has_its_request_from_another_is_not_blamed():
    with dt.Graph().as_default() as g:
        with dt.device("/job:ps/task:0"):
            a = dt.negative(1.0, name="a")
        with dt.device("/job:ps/task:1"):
            b = dt.negative(1.0, name="b")
        with dt.colocate_with(a), dt.colocate_with(b):
            dt.negative(1.0, name="c")
    found = members([g.get_operation_by_name("c")], CLUSTER)
    assert [(m.node.name, str(m.request), m.follows) for m in found] == [
        ("b", "/job:ps/task:1", b.op.index),
        ("c", "", b.op.index),
    ]
    with pytest.raises(InvalidArgumentError) as e:
        place(g, CLUSTER)
    joined, told = str(e.value).split("These requests conflict:")
    assert "'c/x' (Const) is colocated with a, b; created at " in joined and 'name="c")' in joined
    assert told.index("'a' (Neg) requests") < told.index("'b' (Neg) requests") < told.index("Possible fixes")
    assert "<- requests task 0" in told and "<- requests task 1" in told
    assert "  request '/job:ps/task:1' for 'a': then all 3 can be on /job:ps/replica:0/task:1/device:CPU:0" in told
    assert "  with allow_soft_placement=True the colocation is ignored" in told


def test_a_task_may_have_more_cpu_devices():
    with dt.Graph().as_default() as g, dt.device("/job:ps/task:0/cpu:2"):
        dt.negative(1.0, name="a")
    with pytest.raises(InvalidArgumentError) as e:
        place(g, CLUSTER)
    wanted = (
        'give /job:ps/replica:0/task:0 so many CPU devices: ConfigProto(device_count={"CPU": 3}), as config= of its'
    )
    assert wanted in str(e.value).split("Possible fixes:\n  ")[1].splitlines()[0]


def test_what_soft_placement_would_do_is_true():
    with dt.Graph().as_default() as g, dt.device("/job:worker/task:1/gpu:7"):
        dt.negative(1.0, name="a")
    with pytest.raises(InvalidArgumentError) as e:
        place(g, CLUSTER)
    promised = re.search(r"with allow_soft_placement=True it can be on (\S+)", str(e.value))
    assert promised and place(g, CLUSTER, allow_soft_placement=True).device_of("a") == promised[1]


def test_nothing_to_suggest_where_no_device_can_run_it():
    with dt.Graph().as_default() as g:
        x = dt.negative(1.0, name="x")
        with dt.colocate_with(x.op):
            g.create("ConflictCpuOnly", [x], {}, "cpu")
        with dt.device("/gpu:0"):
            pass
    gpus = make_cluster({"a": 1}, {"a": ["gpu:0"]})
    with pytest.raises(InvalidArgumentError, match="No OpKernel was registered to support Op 'ConflictCpuOnly'"):
        place(g, gpus)


def test_a_block_that_no_node_could_obey_is_shown_where_it_was_overridden():
    with dt.Graph().as_default() as graph, dt.device("/job:a-b/task:1"), dt.device("/job:ps/cpu:7"):
        dt.constant(1.0, name="c")
    with pytest.raises(InvalidArgumentError) as e:
        place(graph, CLUSTER)
    assert e.value.op.name == "c" and "explicitly assigned to /job:ps/task:1/device:CPU:7" in e.value.message
    outer, inner = "inside device block '/job:a-b/task:1'", "inside device block '/job:ps/device:CPU:7'"
    assert outer in e.value.message and re.search(f"{inner} .*<- requests .*index 7", e.value.message)


def test_a_job_that_this_process_alone_does_not_have_needs_a_cluster():
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:1"):
            y = dt.negative(dt.constant(1.0), name="y")
        with dt.Session() as session, pytest.raises(dt.errors.InvalidArgumentError) as e:
            session.run(y)
        assert 'dt.compile(cluster={"worker": 2})' in str(e.value)
        with pytest.raises(dt.errors.InvalidArgumentError) as e:
            dt.place(y, {"ps": 1})
        assert "dt.compile" not in str(e.value)
