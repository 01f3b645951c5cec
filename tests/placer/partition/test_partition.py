"""Cutting a placed graph: who gets what, in which order."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from random_graphs import A0, A1, B0, B1, placed_graphs

import dovetail as dt
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.graph import Node
from dovetail.placer.cluster.load import make_cluster
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.partitioned_graph import task_of
from dovetail.placer.partition.prune import needed
from dovetail.placer.rules.place import place

SHORT = {"a0": A0, "a1": A1, "b0": B0, "b1": B1}
ALL = make_cluster(dict.fromkeys("abc", 1), {j: ["cpu:0", "cpu:1"] for j in "abc"}, "/job:a/task:0")
SHORT_OF = {v: k for k, v in SHORT.items()}


@pytest.fixture
def graph():
    with dt.Graph().as_default() as g:
        yield g


def on(short):
    """A device block, by the short names above."""
    return dt.device(SHORT[short])


def cut(graph, *, fetches=(), targets=None, feeds=(), copies=False):
    """Steps as text: `{"a0": ["c", "c:0 >b0"], "b0": ["<c:0", "d"]}`, and the whole result."""
    if targets is None:
        targets = [] if fetches else [n for n in graph.nodes if n.type != "Placeholder"]
    nodes = needed(graph, fetches, targets, feeds)
    found = partition(nodes, lambda n: n.device, feeds=feeds, fetches=fetches, copies=copies)
    short, text = SHORT_OF, {}
    for device, p in found.partitions.items():
        steps = text[short[device]] = []
        for kind, what in p.steps:
            if kind == "node":
                steps.append(what.name)
            elif kind == "send":
                steps.append(f"{what.name} >{short[what.destination]}")
            else:
                steps.append(f"<{what.name}")
    return text, found


def test_one_device_needs_no_channel(graph):
    with on("a0"):
        c = dt.constant(1.0, name="c")
        dt.negative(c, name="n")
    text, found = cut(graph)
    assert text == {"a0": ["c", "n"]} and found.channels == []


def test_sent_right_after_it_is_made_received_right_before_use(graph):
    with on("a0"):
        c = dt.constant(np.zeros((3, 4), "float32"), name="c")
        dt.negative(c, name="n")
    with on("b0"):
        d = dt.constant(1.0, name="d")
        dt.negative(d, name="e")
        dt.add(c, d, name="s")
    text, found = cut(graph)
    assert text == {"a0": ["c", "c:0 >b0", "n"], "b0": ["d", "e", "<c:0", "s"]}
    (channel,) = found.channels
    assert (channel.source, channel.destination, channel.bytes, channel.control) == (A0, B0, 48, False)
    assert channel.dims == (3, 4) and channel.dtype is dt.float32 and channel.relays is None
    assert channel.crosses_tasks


def test_a_tensor_crosses_once_per_device(graph):
    with on("a0"):
        c = dt.constant(1.0, name="c")
    with on("b0"):
        x = dt.add(c, c, name="x")
        dt.add(x, c, name="y")
    text, _ = cut(graph)
    assert text == {"a0": ["c", "c:0 >b0"], "b0": ["<c:0", "x", "y"]}


def test_each_task_has_its_own_copy_of_a_small_constant(graph):
    with on("a0"):
        c, large = dt.constant(1.0, name="c"), dt.constant(np.ones(257, "float32"), name="large")
    with on("a1"):
        x = dt.negative(c, name="x")  # within a task it is passed on
    with on("b0"):
        y = dt.add(c, large, name="y")
    with on("b1"), dt.control_dependencies([c.op]):
        z = dt.negative(c, name="z")
    text, found = cut(graph, fetches=[x, y, z], copies=True)
    assert text == {
        "a0": ["c", "c:0 >a1", "large", "large:0 >b0"],
        "a1": ["<c:0", "x"],
        "b0": ["c", "<large:0", "y"],
        "b1": ["c", "z"],
    }
    text, _ = cut(graph, fetches=[z], copies=True)
    assert text == {"b1": ["c", "z"]}  # nobody needs it where it was placed
    text, _ = cut(graph, fetches=[c, z], copies=True)
    assert text == {"a0": ["c"], "b1": ["c", "z"]}
    text, found = cut(graph, fetches=[z], feeds=[c], copies=True)
    assert "c:0" in found.partitions[B1].feeds and "c" not in text["b1"]


def test_a_constant_that_waits_for_something_is_sent(graph):
    with on("a0"):
        first = dt.no_op("first")
        with dt.control_dependencies([first]):
            c = dt.constant(1.0, name="c")
    with on("b0"):
        n = dt.negative(c, name="n")
    text, _ = cut(graph, fetches=[n], copies=True)
    assert text == {"a0": ["first", "c", "c:0 >b0"], "b0": ["<c:0", "n"]}


def test_two_devices_of_a_remote_task_share_one_message_over_the_network(graph):
    with on("a0"):
        c = dt.constant(1.0, name="c")
    with on("b1"):
        dt.negative(c, name="x")
    with on("b0"):
        dt.negative(c, name="y")
    with on("a1"):
        dt.negative(c, name="z")
    text, found = cut(graph)
    assert text == {
        "a0": ["c", "c:0 >b1", "c:0 >a1"],
        "b1": ["<c:0", "c:0 >b0", "x"],
        "b0": ["<c:0", "y"],
        "a1": ["<c:0", "z"],
    }
    assert sum(c.crosses_tasks for c in found.channels) == 1
    assert [c.relays for c in found.channels] == [None, 0, None]


def test_outputs_cross_one_by_one(graph):
    with on("a0"):
        two = graph.create("PartitionTwo", [dt.constant(1.0, name="c")], {}, "two").outputs
    with on("a1"):
        dt.negative(two[1], name="x")
    text, _ = cut(graph)
    assert text == {"a0": ["c", "two", "two:1 >a1"], "a1": ["<two:1", "x"]}


def test_control_edges_cross_as_empty_messages(graph):
    with on("a0"):
        c = dt.constant(1.0, name="c")
    with on("b0"), dt.control_dependencies([c]):
        dt.no_op("n")
        dt.no_op("m")
    text, found = cut(graph)
    assert text == {"a0": ["c", "^c >b0"], "b0": ["<^c", "n", "m"]}
    (channel,) = found.channels
    assert (channel.control, channel.bytes, channel.dtype, channel.dims) == (True, 0, None, ())


def test_a_value_and_a_control_edge_are_two_messages(graph):
    with on("a0"):
        c = dt.constant(1.0, name="c")
    with on("b0"):
        dt.negative(c, name="x")
        with dt.control_dependencies([c]):
            dt.no_op("n")
    text, _ = cut(graph)
    assert text == {"a0": ["c", "c:0 >b0", "^c >b0"], "b0": ["<c:0", "x", "<^c", "n"]}


def test_a_reference_sends_its_value_at_the_time_of_each_use(graph):
    with on("a0"):
        v = dt.Variable(np.zeros(2, "float32"), name="v")
    place_ = v.handle
    with on("b0"):
        before = graph.create("Identity", [place_], {}, "before").outputs[0]
    with on("a0"):
        change = dt.assign_add(v, np.ones(2, "float32"), name="change")
    with on("b0"), dt.control_dependencies([change]):
        after = graph.create("Identity", [place_], {}, "after").outputs[0]
    text, found = cut(graph, fetches=[before, after])
    a, b = text["a0"], text["b0"]
    assert [s for s in a if ">" in s or s == "change"] == ["v:0 >b0", "change", "^change >b0", "v:0 >b0"]
    assert b == ["<v:0", "before", "<v:0", "<^change", "after"]
    assert all(not c.dtype.is_ref for c in found.channels if not c.control)
    assert {c.bytes for c in found.channels if not c.control} == {8}


# --- feeds and fetches ------------------------------------------------------------------------------------


def test_fed_values_never_cross_between_devices(graph):
    with on("a0"):
        p = dt.placeholder("float32", name="p")
        x = dt.negative(p, name="x")
    with on("b0"):
        y = dt.negative(p, name="y")
    text, found = cut(graph, fetches=[x, y, p], feeds=[p])
    assert text == {"a0": ["x"], "b0": ["y"]}
    assert [(q.feeds, q.fetches) for q in found.partitions.values()] == [
        (("p:0",), ("x:0",)),
        (("p:0",), ("y:0",)),
    ]


def test_a_fed_tensor_cuts_the_graph(graph):
    with on("a0"):
        a = dt.constant(1.0, name="a")
        b = dt.negative(a, name="b")
    with on("b0"):
        c = dt.negative(b, name="c")
    text, found = cut(graph, fetches=[c], feeds=[b])
    assert text == {"b0": ["c"]} and found.partitions[B0].feeds == ("b:0",)


def test_a_fed_node_that_is_needed_otherwise_still_runs(graph):
    with on("a0"):
        two = graph.create("PartitionTwo", [dt.constant(1.0, name="c")], {}, "two").outputs
        x = dt.add(two[0], two[1], name="x")
    text, found = cut(graph, fetches=[x], feeds=[two[0]])
    assert text == {"a0": ["c", "two", "x"]} and found.partitions[A0].feeds == ("two:0",)


def test_control_edges_from_a_fed_placeholder_are_satisfied(graph):
    with on("a0"):
        p = dt.placeholder("float32", name="p")
        c = dt.negative(dt.constant(1.0, name="k"), name="c")
    with on("b0"), dt.control_dependencies([p, c]):
        n = dt.no_op("n")
    text, _ = cut(graph, targets=[n], feeds=[p, c])
    # `c` is fed as well, but only a placeholder has nothing to run: the control edge from `c` waits for it.
    assert text == {"a0": ["k", "c", "^c >b0"], "b0": ["<^c", "n"]}
    assert cut(graph, targets=[p.op], feeds=[p])[0] == {}


def test_float32_may_cross_as_bfloat16(graph):
    with on("a0"):
        c = dt.constant(np.zeros((3, 4), "float32"), name="c")
        d = dt.constant(np.zeros(5, "float64"), name="d")
        i = dt.constant([1, 2], name="i")
        v = dt.Variable(np.zeros(2, "float32"), name="v")
    with on("b0"), dt.control_dependencies([i]):
        for t in (c, d, i, v.handle):
            graph.create("Identity", [t], {}, f"{t.op.name}_there")
    with on("b1"):
        dt.negative(c, name="relayed")
    nodes = needed(graph, targets=graph.nodes)
    narrow = partition(nodes, lambda n: n.device, enable_bfloat16_sendrecv=True)
    found = {(c.name, SHORT_OF[c.destination]): (c.dtype and c.dtype.name, c.bytes) for c in narrow.channels}
    assert found == {
        ("c:0", "b0"): ("bfloat16", 24),
        ("c:0", "b1"): ("bfloat16", 24),
        ("d:0", "b0"): ("float64", 40),
        ("i:0", "b0"): ("int32", 8),
        ("v:0", "b0"): ("bfloat16", 4),
        ("^i", "b0"): (None, 0),
    }
    wide = partition(nodes, lambda n: n.device)
    for device, p in wide.partitions.items():
        assert [(kind, what.name) for kind, what in p.steps] == [
            (kind, what.name) for kind, what in narrow.partitions[device].steps
        ]
    assert {c.dtype.name for c in wide.channels if c.dtype} == {"float32", "float64", "int32"}


def test_fetching_twice_returns_once(graph):
    with on("a0"):
        c = dt.constant(1.0, name="c")
    _, found = cut(graph, fetches=[c, c])
    assert found.partitions[A0].fetches == ("c:0",)


def test_only_what_is_needed(graph):
    with on("a0"):
        a = dt.constant(1.0, name="a")
        b = dt.negative(a, name="b")
        dt.negative(b, name="unused")
        with dt.control_dependencies([b]):
            d = dt.constant(1.0, name="d")
    assert [n.name for n in needed(graph, [d])] == ["a", "b", "d"]
    assert [n.name for n in needed(graph, [], [b.op])] == ["a", "b"]


def test_late_control_edges_change_the_order(graph):
    with on("a0"):
        a = dt.constant(1.0, name="a")
        b = dt.constant(1.0, name="b")
        dt.add(a, b, name="c")
    a.op._add_control_input(b.op)
    assert [n.name for n in needed(graph, [], graph.nodes)] == ["b", "a", "c"]


# --- properties -------------------------------------------------------------------------------------------


@given(placed_graphs())
def test_joining_the_partitions_gives_the_graph_back(example):
    g, fetches, targets, feeds = example
    nodes = needed(g, fetches, targets, feeds)
    found = partition(nodes, lambda n: n.device, feeds=feeds, fetches=fetches)
    fed = {t.name for t in feeds}

    # Every node is in one partition, that of its device, in the global order.
    position = {n: i for i, n in enumerate(nodes)}
    assert sorted(n.index for p in found.partitions.values() for n in p.nodes) == sorted(n.index for n in nodes)
    for device, p in found.partitions.items():
        assert all(n.device == device for n in p.nodes)
        assert [position[n] for n in p.nodes] == sorted(position[n] for n in p.nodes)

    # One receive per send, at the devices that the channel names; ids are its position.
    sends = [(c.id, p.device) for p in found.partitions.values() for c in p.sends]
    receives = [(c.id, p.device) for p in found.partitions.values() for c in p.receives]
    assert sorted(sends) == [(c.id, c.source) for c in found.channels]
    assert sorted(receives) == [(c.id, c.destination) for c in found.channels]
    assert [c.id for c in found.channels] == list(range(len(found.channels)))

    # No value is delivered twice, but reads of a place, which may differ.
    refs = {t.name for n in nodes for t in n.outputs if t.dtype.is_ref}
    shared = [(c.name, c.destination) for c in found.channels if c.name not in refs]
    assert len(shared) == len(set(shared))
    network = [(c.name, task_of(c.destination)) for c in found.channels if c.crosses_tasks and c.name not in refs]
    assert len(network) == len(set(network))

    # What a step takes is there: made before, received before, or fed; and nothing is received in vain.
    for p in found.partitions.values():
        here, used = set(fed), set()
        for kind, what in p.steps:
            if isinstance(what, Node):
                takes = [t.name for t in what.inputs]
                takes += [
                    f"^{c.name}" for c in what.control_inputs if c.type != "Placeholder" or f"{c.name}:0" not in fed
                ]
                assert set(takes) <= here
                used |= set(takes)
                here |= {t.name for t in what.outputs} | {f"^{what.name}"}
            elif kind == "send":
                assert what.name in here
                used.add(what.name)
            else:
                here.add(what.name)
        assert {c.name for c in p.receives} <= used
        assert set(p.feeds) == used & {t.name for t in feeds}
        assert set(p.fetches) <= here
    wanted = {t.name for t in fetches} - fed
    returned = [f for p in found.partitions.values() for f in p.fetches]
    assert len(returned) == len(wanted) and set(returned) == wanted


@given(placed_graphs())
def test_the_edges_of_the_joined_partitions_are_those_of_the_graph(example):
    g, fetches, targets, feeds = example
    nodes = needed(g, fetches, targets, feeds)
    check_edges(nodes, partition(nodes, lambda n: n.device, feeds=feeds, fetches=fetches), feeds)


@given(placed_graphs(flow=True))
def test_loops_and_branches_are_joined_too(example):
    g, fetches, targets, feeds = example
    g.finalize()
    fetches = [t for t in fetches if g.is_fetchable(t)]
    placed = place(g, ALL, allow_soft_placement=True)
    nodes = needed(g, fetches, targets, feeds)
    found = partition(nodes, placed.device_of, feeds=feeds, fetches=fetches)
    check_edges(nodes, found, feeds)
    assert sorted(n.index for p in found.partitions.values() for n in p.nodes) == sorted(n.index for n in nodes)
    ends = {"sends": "source", "receives": "destination"}
    for end, at in ends.items():
        seen = [(c.id, p.device) for p in found.partitions.values() for c in getattr(p, end)]
        assert sorted(seen) == [(c.id, getattr(c, at)) for c in found.channels]
    refs = {t.name for n in nodes for t in n.outputs if t.dtype.is_ref}
    shared = [(c.name, c.destination) for c in found.channels if c.name not in refs]
    assert len(shared) == len(set(shared)), "delivered twice"
    inside = {id(c): part for p in found.partitions.values() for c, part in loop_of_channels(p, "recv")}
    for p in found.partitions.values():  # both ends of a channel are in the same loop, and the channel says so
        for c, part in loop_of_channels(p, "send"):
            assert part == inside[id(c)] == c.loop


def loop_of_channels(p, kind):
    """The channels of a partition, each with the name of the loop around its end here."""
    around = []
    for k, what in p.steps:
        if k == "loop":
            around.append(what.name)
        elif k == "end":
            around.pop()
        elif k == kind:
            yield what, around[-1] if around else None


def check_edges(nodes, found, feeds):
    """Follow every value that a node takes back through the channels, knowing only partitions: it ends at its maker."""
    fed = {t.name for t in feeds}
    made = {d: {t.name: n for n in p.nodes for t in n.outputs} for d, p in found.partitions.items()}
    for d, p in found.partitions.items():
        made[d] |= {f"^{n.name}": n for n in p.nodes}
    brought = {d: {c.name: c for c in p.receives} for d, p in found.partitions.items()}

    def maker(device, value):
        seen = set()
        while value not in made[device]:
            assert device not in seen, "a value goes round in circles"
            seen.add(device)
            device = brought[device][value].source
        return made[device][value]

    joined = {
        (maker(d, value), value, n)
        for d, p in found.partitions.items()
        for n in p.nodes
        for value in [t.name for t in n.inputs if t.name not in fed]
    }
    assert joined == {(t.op, t.name, n) for n in nodes for t in n.inputs if t.name not in fed}
    ran = set(nodes)
    waits = {
        (maker(d, f"^{c.name}"), n)
        for d, p in found.partitions.items()
        for n in p.nodes
        for c in n.control_inputs
        if c in ran
    }
    assert waits == {(c, n) for n in nodes for c in n.control_inputs if c in ran}


@given(placed_graphs())
def test_no_partitions_wait_for_each_other(example):
    """Run all in turn, each stopping at a receive whose send has not happened: all must reach their end."""
    g, fetches, targets, feeds = example
    found = partition(needed(g, fetches, targets, feeds), lambda n: n.device, feeds=feeds, fetches=fetches)
    at = dict.fromkeys(found.partitions, 0)
    sent = set()
    moved = True
    while moved:
        moved = False
        for device, p in found.partitions.items():
            while at[device] < len(p.steps):
                kind, what = p.steps[at[device]]
                if kind == "recv" and what.id not in sent:
                    break
                if kind == "send":
                    sent.add(what.id)
                at[device] += 1
                moved = True
    assert all(at[d] == len(p.steps) for d, p in found.partitions.items())


REQUESTS = [
    "",
    "/job:a",
    "/job:b",
    "/task:0",
    "/cpu:1",
    "/job:b/cpu:0",
    "/gpu:0",
    "/job:moon",
    "/job:a-b",
    "/job:a/cpu:9",
]


@given(st.data())
def test_placing_is_a_function(data):
    """Twice the same, changes nothing, satisfies what is asked unless told, and fails only as it says."""
    cluster = make_cluster(
        {"a": 1, "b": 2}, {"a": ["cpu:0", "cpu:1"], "b": ["cpu:0", "cpu:1", "gpu:0"]}, "/job:b/task:1"
    )
    with dt.Graph().as_default() as g:
        tensors = [dt.constant(1.0)]
        for i in range(data.draw(st.integers(1, 12))):
            with g.device(data.draw(st.sampled_from(REQUESTS[:7] * 6 + REQUESTS))):
                if data.draw(st.booleans()) and i:
                    with g.colocate_with(data.draw(st.sampled_from(tensors))):
                        tensors.append(dt.identity(data.draw(st.sampled_from(tensors))))
                else:
                    x = dt.add(data.draw(st.sampled_from(tensors)), data.draw(st.sampled_from(tensors)))
                    tensors += [x, dt.shape(x)] if data.draw(st.booleans()) else [x]
            tensors = [t for t in tensors if t.dtype is dt.float32]
    soft = data.draw(st.booleans())
    before = [(n.name, n.device, n.colocation) for n in g.nodes]
    results = []
    for _ in range(2):
        try:
            results.append(place(g, cluster, allow_soft_placement=soft))
        except InvalidArgumentError as e:
            results.append(e)
    assert [(n.name, n.device, n.colocation) for n in g.nodes] == before
    first, second = results
    if isinstance(first, InvalidArgumentError):
        assert isinstance(second, InvalidArgumentError) and str(first) == str(second)
        assert first.op in g.nodes and f"'{first.op.name}'" in str(first)
        return
    assert first.as_dict() == second.as_dict() and first.relaxations == second.relaxations
    relaxed = {r.node for r in first.relaxations}
    assert soft or not relaxed
    for node in g.nodes:
        d = first.decision(node)
        assert d.chosen in d.candidates
        assert not set(d.candidates) & {r.device for r in d.rejected}
        assert {first.device_of(n) for n in d.group} == {d.chosen}
        assert node.name in relaxed or d.chosen.startswith(node.device.split("/")[0])
