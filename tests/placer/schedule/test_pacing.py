"""Sends are held back while their receiver is far behind, and nobody waits for ever because of it."""

from hypothesis import given, strategies as st
from random_graphs import A0, A1, B0, B1, C0, placed_graphs

import dovetail as dt
from dovetail.placer.cluster.load import make_cluster
from dovetail.placer.partition.one_sided_reads import direct_reads, read_directly
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.prune import needed
from dovetail.placer.rules.place import place
from dovetail.placer.schedule.pacing import AHEAD, EPOCHS, schedule_receives, start_times

CLUSTER = make_cluster(dict.fromkeys("abc", 1), {j: ["cpu:0", "cpu:1"] for j in "abc"}, "/job:a/task:0")


def steps_of(cut):
    return {device: p.steps for device, p in cut.partitions.items()}


def text(cut):
    """Steps as text, by device: `>` send, `<` receive, `~` before what tells the pace."""
    signs = {"node": "", "send": ">", "recv": "<"}
    return {
        device: [f"{'~' * getattr(what, 'paces', False)}{signs[kind]}{what.name}" for kind, what in p.steps]
        for device, p in cut.partitions.items()
    }


def two_chains(length, uses):
    """`a` makes one value after another; `b` goes its own way, and takes the value of number i at its step `uses[i]`."""
    with dt.Graph().as_default() as g:
        with dt.device(A0):
            made = [dt.constant(1.0, name="m0")]
            for i in range(1, len(uses)):
                made.append(dt.negative(made[-1], name=f"m{i}"))
        with dt.device(B0):
            x = dt.constant(1.0, name="x0")
            for i in range(1, length):
                taken = [m for m, at in zip(made, uses, strict=True) if at == i]
                x = dt.add_n([x, *taken], name=f"x{i}") if taken else dt.negative(x, name=f"x{i}")
    return partition(needed(g, [x]), lambda n: n.device, fetches=[x])


def test_start_times():
    cut = two_chains(4, [2])
    assert text(cut) == {A0: ["m0", ">m0:0"], B0: ["x0", "x1", "<m0:0", "x2", "x3"]}
    assert start_times(steps_of(cut)) == {A0: [0, 1], B0: [0, 1, 2, 3, 4]}
    late = two_chains(2, [None] * 5 + [1])
    assert start_times(steps_of(late))[B0] == [0, 7, 8]  # received one later than sent, at 6


def test_a_receive_behind_a_one_sided_read():
    with dt.Graph().as_default() as g:
        with dt.device(A0):
            v = dt.get_variable("v", [2], initializer=dt.zeros_initializer())
        with dt.device(C0):
            made = dt.constant([1.0, 2.0], name="made")
        with dt.device(B0):
            y = dt.add(v, made, name="y")
    nodes = needed(g, [y])
    cut = partition(nodes, lambda n: n.device, fetches=[y])
    cut = read_directly(cut, direct_reads(cut, nodes, set(), 100, lambda n: n.device), {y.op}, {})
    assert [kind for kind, _ in steps_of(cut)[B0]] == ["read", "recv", "node"]
    assert start_times(steps_of(cut))[B0] == [0, 2, 3]
    assert schedule_receives(cut) is cut


def test_what_is_needed_soon_is_sent_at_once():
    cut = two_chains(8, [AHEAD - 1])
    assert schedule_receives(cut) is cut


def test_what_is_needed_late_waits_for_the_pace():
    cut = schedule_receives(two_chains(12, [9, 9, None, None]))
    # m0 and m1 are received at 9 and 10, so in epochs 9 and 10: when b has run x3 and x4.
    assert text(cut) == {
        A0: ["m0", "m1", "~<^x3", ">m0:0", "~<^x4", ">m1:0"],
        B0: ["x0", "x1", "x2", "x3", "~>^x3", "x4", "~>^x4", *[f"x{i}" for i in range(5, 9)], "<m0:0", "<m1:0", "x9",
             "x10", "x11"],
    }  # fmt: skip
    pace = cut.channels[2]
    assert (pace.source, pace.destination, pace.bytes, pace.control) == (B0, A0, 0, True)


def test_a_long_part_has_a_hundred_epochs():
    length = 10 * EPOCHS
    cut = schedule_receives(two_chains(length, list(range(1, length))))
    paces = [c for c in cut.channels if c.paces]
    assert EPOCHS / 2 < len(paces) <= EPOCHS - AHEAD


def test_what_the_sender_knows_is_not_told_again():
    """`a` takes a value that `b` makes late: what it sends after that needs no pace."""
    with dt.Graph().as_default() as g:
        with dt.device(B0):
            x = dt.constant(1.0, name="x0")
            for i in range(1, 12):
                x = dt.negative(x, name=f"x{i}")
        with dt.device(A0):
            y = dt.negative(x, name="y")
        with dt.device(B0):
            z = dt.negative(y, name="z")
    cut = partition(needed(g, [z]), lambda n: n.device, fetches=[z])
    assert not any(c.paces for c in schedule_receives(cut).channels)


def test_inside_a_task_nothing_is_held_back():
    with dt.Graph().as_default() as g:
        with dt.device(A0):
            m = dt.constant(1.0)
        with dt.device(A1):
            x = dt.constant(1.0)
            for _ in range(20):
                x = dt.negative(x)
            x = dt.add(x, m)
    cut = partition(needed(g, [x]), lambda n: n.device, fetches=[x])
    assert schedule_receives(cut) is cut


def cut_of(example):
    g, fetches, targets, feeds = example
    g.finalize()
    fetches = [t for t in fetches if g.is_fetchable(t)]
    placed = place(g, CLUSTER, allow_soft_placement=True)
    return partition(needed(g, fetches, targets, feeds), placed.device_of, feeds=feeds, fetches=fetches)


DEVICES = (A0, B0, B1, C0)


def allowed_after(before):
    """Channel -> the node that its receiver must have run before it may be sent, by the rule itself."""
    times = start_times(steps_of(before))
    found = {}
    for device, p in before.partitions.items():
        starts = times[device]
        length = starts[-1] // EPOCHS + 1
        for (kind, what), start in zip(p.steps, starts, strict=True):
            if kind == "recv" and what.crosses_tasks and start // length >= AHEAD:
                limit = start // length - AHEAD
                early = [w for (k, w), t in zip(p.steps, starts, strict=True) if k == "node" and t // length <= limit]
                found[what.id] = early[-1] if early else None
    return found


@given(placed_graphs(DEVICES), st.randoms(use_true_random=False))
def test_nobody_is_sent_to_far_ahead(example, chance):
    before = cut_of(example)
    rule = allowed_after(before)
    refs = {t.name for n in example[0].nodes for t in n.outputs if t.dtype.is_ref}
    has_run = set()
    for device, (kind, what) in in_any_order(schedule_receives(before), chance):
        if kind == "node":
            has_run.add(what)
        elif kind == "send" and not what.paces and what.name not in refs and rule.get(what.id) is not None:
            assert rule[what.id] in has_run, (device, what)


@given(placed_graphs(DEVICES, flow=True), st.randoms(use_true_random=False))
def test_nobody_waits_for_ever(example, chance):
    cut = schedule_receives(cut_of(example))
    assert len(list(in_any_order(cut, chance))) == sum(len(p.steps) for p in cut.partitions.values())


def in_any_order(cut, chance):
    """Run all parts, loops once, one step of one of them at a time, as long as any can go on; yields what was done."""
    at, sent = dict.fromkeys(cut.partitions, 0), set()
    while True:
        able = []
        for device, p in cut.partitions.items():
            kind, what = p.steps[at[device]] if at[device] < len(p.steps) else ("end", None)
            if at[device] < len(p.steps) and (kind != "recv" or what.id in sent):
                able.append(device)
        if not able:
            return
        device = chance.choice(able)
        kind, what = cut.partitions[device].steps[at[device]]
        at[device] += 1
        if kind == "send":
            sent.add(what.id)
        yield device, (kind, what)


@given(placed_graphs(DEVICES, flow=True))
def test_nothing_else_changes(example):
    before = cut_of(example)
    cut = schedule_receives(before)
    assert cut.channels[: len(before.channels)] == before.channels and cut.predicated == before.predicated
    assert all(c.paces and c.control for c in cut.channels[len(before.channels) :])
    assert [c.id for c in cut.channels] == list(range(len(cut.channels)))
    for end in ("sends", "receives"):
        place_of = "source" if end == "sends" else "destination"
        found = [(c.id, p.device) for p in cut.partitions.values() for c in getattr(p, end)]
        assert sorted(found) == [(c.id, getattr(c, place_of)) for c in cut.channels]
    for device, p in cut.partitions.items():
        was = before.partitions[device]
        assert (p.feeds, p.fetches) == (was.feeds, was.fetches)
        stays = [s for s in p.steps if s[0] != "send" and not getattr(s[1], "paces", False)]
        assert stays == [s for s in was.steps if s[0] != "send"]
        place_of_send = {what.id: i for i, (kind, what) in enumerate(p.steps) if kind == "send"}
        for i, (kind, what) in enumerate(was.steps):  # a send moves to a later place, behind what stood before it
            if kind == "send" and i:
                assert all(p.steps.index(s) < place_of_send[what.id] for s in was.steps[:i] if s[0] != "send")


def test_where_a_step_may_wait_for_itself_nothing_is_held_back():
    """What `b` dequeues is enqueued by `a`, behind a send that would wait for `b`: no edge of the graph tells."""
    with dt.Graph().as_default() as g:
        with dt.device(A0):
            queue = dt.FIFOQueue(5, [dt.float32], shapes=[[]])
            made = dt.negative(dt.constant(1.0, name="made"))
        with dt.device(B0):
            x = dt.constant(1.0)
            for _ in range(10):
                x = dt.negative(x)
            x = x + made
        with dt.device(A0):
            filled = queue.enqueue([made])
    cut = partition(needed(g, [x], [filled]), lambda n: n.device or A0, fetches=[x])
    assert schedule_receives(cut) is cut
    without = partition(needed(g, [x]), lambda n: n.device or A0, fetches=[x])
    assert schedule_receives(without) is not without
