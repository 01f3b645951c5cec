"""Warnings, differences, pictures: each on a plan made to show it, and silent on one that is well."""

import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import dovetail as dt
from dovetail.placer.pipeline import place
from dovetail.placer.views import diagram
from dovetail.placer.views.diff import Changed, Moved

PS0, PS1, W0, W1 = (
    f"/job:{j}/replica:0/task:{t}/device:CPU:0" for j, t in (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1))
)
CLUSTER = {"ps": 2, "worker": 2}


def kinds(plan):
    return [w.kind for w in plan.check()]


def model(balanced=True, reads=1):
    """Two tables on two servers, worked on by two workers."""
    with dt.Graph().as_default() as g:
        made = []
        for i in range(2):
            with dt.device(f"/job:ps/task:{i if balanced else 0}"):
                v = dt.Variable(np.zeros((200, 200), "float32"), use_resource=True, name=f"v{i}")
            with dt.device(f"/job:worker/task:{i}"):
                made.append(dt.add_n([dt.matmul(v.read_value(), v.read_value()) for _ in range(reads)]))
    return g, made


def test_a_good_plan_has_no_warnings():
    with dt.Graph().as_default() as g:
        made = []
        for i in range(2):
            with dt.device(f"/job:ps/task:{i}"):
                v = dt.Variable(np.zeros((200, 200), "float32"), name=f"v{i}")
            with dt.device(f"/job:worker/task:{i}"):
                made.append(dt.matmul(v, v))
    assert place(g, CLUSTER, fetches=made).check() == []


@pytest.mark.parametrize("far", [False, True])
def test_a_loop_that_crosses_in_every_iteration(far):
    with dt.Graph().as_default() as g, dt.device("/job:worker/task:0"):

        def body(i, x):
            with dt.device("/job:worker/task:1" if far else None):
                x = dt.add(x, x, name="double")
            return i + 1, x

        _, x = dt.while_loop(lambda i, x: i < 5, body, [0, dt.ones([4])], name="grow")
    found = [w for w in place(g, CLUSTER, fetches=x).check() if w.kind == "loop"]
    assert bool(found) == far
    for warning in found:  # x there, x back, and whether there is another iteration
        assert (warning.bytes, set(warning.devices)) == (33, {W0, W1})
        assert (
            "'grow/while_context' sends 3 messages (33 B) between /job:worker/task:0, /job:worker/task:1"
            in warning.text
        )
        assert {"grow/double", "grow/LoopCond"} <= set(warning.nodes)


def test_reading_a_variable_again_and_again():
    g, made = model(reads=2)
    found = [w for w in place(g, CLUSTER, fetches=made).check() if w.kind == "read-again"]
    assert [(w.nodes, w.bytes, w.devices) for w in found] == [
        (("v0",), 480_000, (PS0, W0)),
        (("v1",), 480_000, (PS1, W1)),
    ]
    assert "'v0' is read 4 times by /job:worker/task:0" in found[0].text and "468.8 KiB" in found[0].text
    assert str(found[0]) == f"read-again: {found[0].text}"


def test_a_server_that_holds_most():
    g, made = model(balanced=False)
    (found,) = [w for w in place(g, CLUSTER, fetches=made).check() if w.kind == "uneven-bytes"]
    assert found.devices == (PS0,) and found.nodes == ("v0", "v1") and found.bytes == 160_000
    assert "holds 100% of the 312.5 KiB" in found.text


def test_idle_tasks_and_cards():
    g, made = model()
    devices = {"worker": ["cpu:0", "gpu:0"]}
    found = [w for w in place(g, CLUSTER, fetches=made[:1], devices=devices).check() if w.kind == "idle"]
    assert [w.text.split(" does")[0] for w in found] == ["/job:worker/task:1"]  # ps/task:1 holds a variable
    with dt.Graph().as_default() as g, dt.device("/cpu:0"):
        dt.matmul(np.ones((2, 2)), np.ones((2, 2)))
    (found,) = place(g, {"worker": 1}, devices=devices).check()
    assert "/job:worker/task:0/GPU:0 does nothing, while" in found.text and found.kind == "idle"


def test_uneven_work():
    with dt.Graph().as_default() as g:
        for i, n in enumerate([200, 10, 10]):
            with dt.device(f"/job:worker/task:{i}"):
                dt.matmul(dt.ones((n, n)), dt.ones((n, n)))
    (found,) = place(g, {"worker": 3}).check()
    assert found.kind == "uneven-work" and found.devices == (W0,) and "3.0 times the mean of the 3" in found.text


def test_a_constant_that_is_sent_in_each_step():
    with dt.Graph().as_default() as g:
        with dt.device("/job:ps/task:0"):
            c = dt.constant(np.zeros(1 << 16, "float32"), name="c")
        with dt.device("/job:worker/task:0"):
            dt.negative(c)
    (found, *_) = place(g, CLUSTER).check()
    assert (found.kind, found.nodes, found.bytes) == ("constant-sent", ("c",), 1 << 18)


def test_the_dearest_comes_first():
    g, made = model(balanced=False, reads=2)
    sizes = [w.bytes for w in place(g, CLUSTER, fetches=made).check()]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) > 2


# --- differences ------------------------------------------------------------------------------------------


def test_what_moved_and_what_it_costs():
    first, made = model()
    a = place(first, CLUSTER, fetches=made)
    second, made = model(balanced=False)
    b = place(second, CLUSTER, fetches=made)
    diff = a.diff(b)
    assert Moved("v1", PS1, PS0) in diff.moved and {m.node.split("/")[0] for m in diff.moved} >= {"v1"}
    assert Changed(f"{PS1} -> {W1}", 320_000, 0) in diff.traffic
    assert Changed(f"{PS0} -> {W1}", 0, 320_000) in diff.traffic
    assert set(diff.held) == {Changed(PS0, 160_000, 320_000), Changed(PS1, 160_000, 0)}
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


# --- pictures ---------------------------------------------------------------------------------------------


def small_plan():
    with dt.Graph().as_default() as g:
        with dt.device("/job:ps/task:0"):
            v = dt.Variable(np.zeros((3, 4), "float32"), name='odd"&<name'.replace('"&<', "_"))
        with dt.device("/job:worker/task:1"), dt.control_dependencies([v.initializer]):
            y = dt.negative(v, name="y")
    return place(g, CLUSTER, fetches=y)


def large_plan():
    with dt.Graph().as_default() as g:
        x = dt.constant(1.0)
        for i in range(100):
            with dt.device(f"/job:{'ps' if i % 3 else 'worker'}/task:{i % 2}"):
                x = dt.negative(x, name=f"layer_{i}/n")
    return place(g, CLUSTER)


@pytest.mark.parametrize("make", [small_plan, large_plan])
def test_our_own_drawing(make):
    plan = make()
    root = ET.fromstring(plan.to_svg(graphviz=False))
    names = {"s": "http://www.w3.org/2000/svg"}
    titles = [t.text for t in root.iterfind(".//s:title", names)]
    assert [t for t in titles if "->" not in t] == sorted(plan.partitions)
    arrows = [t for t in titles if "->" in t]
    assert len(arrows) == len({(c.source, c.destination) for c in plan.channels})
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = [
        [float(r.get(k)) for k in ("x", "y", "width", "height")]
        for r in root.iterfind(".//s:rect[@class='device']", names)
    ]
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
    for i, a in enumerate(boxes):  # no box lies over another
        for b in boxes[:i]:
            assert a[0] + a[2] <= b[0] or b[0] + b[2] <= a[0] or a[1] + a[3] <= b[1] or b[1] + b[3] <= a[1]
    assert plan.to_svg(graphviz=False) == plan.to_svg(graphviz=False)


def test_few_nodes_are_drawn_one_by_one_many_by_device():
    dot = small_plan().to_dot()
    assert '"odd_name" -> "odd_name/Assign"' in dot and 'label="48 B"' in dot and "style=dashed" in dot
    assert dot.count("subgraph") == 4
    dot = large_plan().to_dot()
    assert '"layer_3/n"' not in dot and dot.count(" -> ") == len(
        {(c.source, c.destination) for c in large_plan().channels}
    )
    assert "layer* (" in dot


def test_graphviz_is_used_where_it_is(tmp_path, monkeypatch):
    fake = tmp_path / "dot"
    fake.write_text("#!/bin/sh\ncat > /dev/null\necho '<?xml?>'\necho '<svg>by graphviz</svg>'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(fake))
    assert small_plan().to_svg().strip() == "<svg>by graphviz</svg>"
    fake.write_text("#!/bin/sh\ncat > /dev/null\necho 'no memory' >&2\nexit 1\n")
    with pytest.raises(dt.errors.InternalError, match="no memory"):
        small_plan().to_svg()
    monkeypatch.setattr(diagram.shutil, "which", lambda name: None)
    assert 'class="plan"' in small_plan().to_svg()
    with pytest.raises(FileNotFoundError, match="not installed"):
        small_plan().to_svg(graphviz=True)


def test_notebooks_show_tables_and_a_picture():
    html = large_plan()._repr_html_()
    assert html.count("<table") == 3 and html.count("<svg") == 1 and ">layer*</td>" in html
    assert html.count('<td style="text-align: left') and html.count('<td style="text-align: right')
    ET.fromstring(html)


def test_nothing_to_run_is_drawn_as_nothing():
    with dt.Graph().as_default() as g:
        plan = place(g, CLUSTER)
    ET.fromstring(plan.to_svg(graphviz=False))
    assert plan.to_dot().count("->") == 0 and "0 nodes" in str(plan)
