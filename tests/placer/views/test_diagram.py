"""Plans as pictures."""

import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from two_servers import CLUSTER

import dovetail as dt
from dovetail.placer.pipeline import place
from dovetail.placer.views import diagram


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


def test_nothing_to_run_is_drawn_as_nothing():
    with dt.Graph().as_default() as g:
        plan = place(g, CLUSTER)
    ET.fromstring(plan.to_svg(graphviz=False))
    assert plan.to_dot().count("->") == 0 and "0 nodes" in str(plan)
