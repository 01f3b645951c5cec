"""The differences between two plans."""

from two_servers import CLUSTER, PS0, PS1, W1, model

import dovetail as dt
from dovetail.placer.pipeline import place
from dovetail.placer.views.diff import Changed, Moved


def test_what_moved_and_what_it_costs():
    first, made = model()
    a = place(first, CLUSTER, fetches=made)
    second, made = model(balanced=False)
    b = place(second, CLUSTER, fetches=made)
    diff = a.diff(b)
    assert Moved("v1", PS1, PS0) in diff.moved and {m.node.split("/")[0] for m in diff.moved} >= {"v1"}
    assert Changed(f"{PS1} -> {W1}", 320_000, 0) in diff.traffic
    assert Changed(f"{PS0} -> {W1}", 0, 320_000) in diff.traffic
    assert set(diff.memory) == {Changed(PS0, 160_000, 320_000), Changed(PS1, 160_000, 0)}
    assert (diff.added, diff.removed, diff.newly_run, diff.no_longer_run) == ((), (), (), ())
    text = str(diff)
    assert "/job:ps/task:1/CPU:0 -> /job:ps/task:0/CPU:0" in text and "-312.5 KiB" in text
    assert max(map(len, text.splitlines())) <= 100
    back = b.diff(a)
    assert {(m.node, m.after, m.before) for m in diff.moved} == {(m.node, m.before, m.after) for m in back.moved}


def test_what_only_one_has():
    g, made = model()
    before = place(g, CLUSTER, fetches=made)
    with g.as_default(), dt.device("/job:ps/task:0"):
        n = dt.negative(made[0], name="more")
    after = place(g, CLUSTER, fetches=[made[0], n])
    diff = before.diff(after)
    assert diff.added == ("more",) and after.diff(before).removed == ("more",)
    assert "MatMul_1" in diff.no_longer_run and "MatMul_1" in after.diff(before).newly_run
    assert "Only in the second plan: 1 node" in str(diff)


def test_the_same_plan_has_no_differences():
    g, made = model()
    diff = place(g, CLUSTER, fetches=made).diff(place(g, CLUSTER, fetches=made))
    assert not diff and str(diff) == "no differences"
