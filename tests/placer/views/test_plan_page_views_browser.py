"""The page of a plan in a real browser: its other views, plans beside each other, frames, and what must stay text."""

from dataclasses import replace

import page_browser
import page_plans
import pytest
from page_browser import HOSTILE, box, complaints, find, find_all, open_page, press, requests, texts, until

import dovetail as dt
from dovetail.graph.io.serialization import extend_from_bytes, graph_to_bytes
from dovetail.placer.render.timeline import Chart
from dovetail.placer.views import plan_page
from dovetail.placer.views.plan_page import write_html

pytestmark = page_browser.MARKS


def test_the_whole_model_is_one_flow_coloured_by_device(driver, pages):
    plan = page_plans.training()
    open_page(driver, pages("training"))
    find(driver, '[data-do="flow"]').click()
    assert not find_all(driver, "#map g.device") and find_all(driver, "#map .edge.remote"), (
        "values that cross stand out"
    )
    assert {"ps:0 CPU:0", "worker:1 CPU:0"} <= set(texts(driver, "#legend span"))
    first, second = (box(driver, f"tower_{i}/,").get_attribute("class").split(" tint-")[1] for i in range(2))
    assert first != second and plan.placement["tower_0/MatMul"] != plan.placement["tower_1/MatMul"]
    press(driver, "m")
    assert len(find_all(driver, "#map g.device")) == 4


def test_the_timeline_predicts_and_measures_side_by_side(driver, tmp_path):
    from selenium.webdriver.common.keys import Keys

    plan = page_plans.training().at(batch=64)
    step = plan.simulate()
    bars = tuple(replace(b, start=2 * b.start, finish=2 * b.finish, op="Op") for b in step.chart().bars)
    plan.to_html(tmp_path / "page.html", measured=Chart("A trace", bars, 2 * step.makespan))
    open_page(driver, tmp_path / "page.html")
    assert find(driver, "#view-timeline").is_displayed(), "what was measured is shown first"
    tracks, labels = texts(driver, "#chart .track"), texts(driver, "#chart text.soft")
    assert {"/job:ps/task:0/CPU:0", "/job:ps/task:1/CPU:0", "worker:0 CPU:0 → ps:0 CPU:0"} <= set(tracks)
    assert [t for t in labels if t in ("predicted", "measured")][:6] == ["predicted", "measured"] * 3
    assert find_all(driver, "#chart .arrow.critical") and len(find_all(driver, "#chart .held")) == 4
    assert {"MatMul", "Op"} <= set(texts(driver, "#bars-legend span"))
    find(driver, '[data-do="colour"]').click()
    assert "tower_0" in texts(driver, "#bars-legend span")
    find(driver, "#search").send_keys("tower_1/hidden", Keys.ENTER)
    assert find(driver, "#detail h2").text == "tower_1/hidden"
    times = dict(zip(texts(driver, "#detail section dt"), texts(driver, "#detail section dd"), strict=True))
    (span,) = [s for s in step.spans if s.name == "tower_1/hidden"]
    for label, factor in (("predicted", 1), ("measured", 2)):
        value, unit = times[label].split()
        assert float(value) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3}[unit] == pytest.approx(
            factor * (span.finish - span.start), rel=1e-2
        )


def test_kernels_are_fusion_groups_over_the_map(driver, pages):
    plan = page_plans.training()
    open_page(driver, pages("training"))
    find(driver, "#tab-kernels").click()
    kernels = [k for d in plan.partitions for k in plan.kernels(d).kernels]
    best = max(kernels, key=lambda k: k.bytes_saved)
    find(driver, "#detail li .link").click()
    inside = [n for n in best.nodes if n in plan.placement]
    assert texts(driver, "#detail li .link") == inside
    lit = [e.get_attribute("aria-label").partition(",")[0] for e in find_all(driver, "#map g.node.lit")]
    assert sorted(lit) == sorted(inside) and len(inside) > 1
    colours = {e.get_attribute("class").split(" tint-")[1].split()[0] for e in find_all(driver, "#map g.node.lit")}
    assert len(colours) == 1 and colours.pop().startswith("hue")
    find(driver, "#detail li .link").click()
    assert "Kernel" in texts(driver, "#detail h3")


def test_the_tabs_of_what_is_left_out_say_why_and_how_to_get_it(driver, tmp_path, monkeypatch):
    plan = page_plans.training()
    monkeypatch.setattr(plan_page, "PREDICTED", 10)
    monkeypatch.setattr(plan_page, "COMPILED", 10)
    plan.to_html(tmp_path / "page.html")
    plan.to_html(tmp_path / "complete.html", complete=True)
    open_page(driver, tmp_path / "page.html")
    for view in ("timeline", "kernels"):
        find(driver, f"#tab-{view}").click()
        note = find(driver, "#view-left-out")
        assert note.is_displayed() and "88 nodes" in note.text and "plan.to_html(path, complete=True)" in note.text
        assert not find(driver, "#view-map").is_displayed() and not find(driver, "#view-timeline").is_displayed()
    find(driver, "#search").send_keys("tower_1/MatMul")
    assert find(driver, "#view-map").is_displayed() and find(driver, "#results [role=option]").is_displayed()
    find(driver, "#tab-nodes").click()
    assert not note.is_displayed() and find(driver, "#view-table").is_displayed()
    open_page(driver, tmp_path / "complete.html")
    find(driver, "#tab-timeline").click()
    assert find_all(driver, "#chart .bar") and not find(driver, "#view-left-out").is_displayed()
    find(driver, "#tab-kernels").click()
    assert "kernels of" in find(driver, "#detail").text


def test_two_plans_stand_side_by_side(driver, tmp_path):
    before = page_plans.training()
    gpus = {"worker": ["cpu:0", "gpu:0"]}
    after = dt.place(before.graph, {"ps": 2, "worker": 2}, fetches=before.fetches, targets=before.targets, devices=gpus)
    after.to_html(tmp_path / "diff.html", before=before)
    open_page(driver, tmp_path / "diff.html")
    assert texts(driver, "#map .pane.title") == ["Before", "After"]
    assert find(driver, "#detail h2").text == f"{len(before.diff(after).moved)} nodes moved"
    assert "/job:worker/task:0/CPU:0 → /job:worker/task:0/GPU:0" in find(driver, "#detail").text
    old, new = (
        e.get_attribute("class").split(" tint-")[1] for e in find_all(driver, '#map g[aria-label^="tower_0/,"]')
    )
    same = [e.get_attribute("class").split("lit")[0] for e in find_all(driver, '#map g[aria-label^="model/,"]')]
    assert old != new and same[0] == same[1]
    find(driver, "#tab-map").click()
    assert not find_all(driver, "#map .pane") and find_all(driver, "#map g.device")


def test_the_head_counts_devices_that_only_hold_variables_as_the_panel_does(driver, tmp_path):
    with dt.Graph().as_default():
        with dt.device("/job:ps"):
            v = dt.get_variable("v", [4])
        with dt.device("/job:worker"):
            plan = dt.place(dt.negative(v), {"ps": 1, "worker": 1})
    plan.to_html(tmp_path / "plan.html")
    open_page(driver, tmp_path / "plan.html")
    assert find(driver, "#summary").text.startswith("1 node · 2 devices · 2 tasks")
    assert "1 node on 2 devices" in find(driver, "#detail").text


def test_control_edges_between_two_devices_are_one_dashed_line(driver, tmp_path):
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:0"):
            steps = [dt.assign(dt.get_variable(f"v{i}", [8]), dt.ones([8])).op for i in range(6)]
        with dt.device("/job:worker/task:1"), dt.control_dependencies(steps):
            z = dt.random_uniform([16], name="z")
        with dt.device("/job:worker/task:0"):
            plan = dt.place(dt.add(z, 1.0), {"worker": 2})
    plan.to_html(tmp_path / "plan.html")
    open_page(driver, tmp_path / "plan.html")
    lines = find_all(driver, "#map .channel")
    assert ["control" in e.get_attribute("class").split() for e in lines].count(True) == 1 and len(lines) == 2
    assert sorted(texts(driver, "#map .chip text")) == ["64 B", "control"]
    next(e for e in find_all(driver, "#map .chip") if e.text == "control").click()
    assert find(driver, "#detail h2").text == "/job:worker/task:0/CPU:0 → /job:worker/task:1/CPU:0"
    facts = dict(zip(texts(driver, "#detail dt"), texts(driver, "#detail dd"), strict=True))
    assert facts == {"per step": "control", "tensors": "0", "control": "6"}
    assert texts(driver, "#detail li .link") == [c.name for c in plan.channels if c.control]
    find(driver, "#tab-channels").click()
    assert texts(driver, "#view-table .row:not(.heads) div:nth-child(2)").count("control edge") == 6


def test_a_node_is_drawn_on_each_device_that_runs_it(driver, tmp_path):
    from selenium.webdriver import ActionChains

    with dt.Graph().as_default():
        with dt.device("/job:ps"):
            w = dt.get_variable("w", [8, 8])
        with dt.device("/job:worker/task:0"):
            a = dt.constant([1.0] * 8, name="a")
            x = dt.matmul(w, w) * a
            update = dt.assign_add(w, x, name="update")
        with dt.device("/job:worker/task:1"):
            plan = dt.place([update.op, dt.negative(a, name="y")], {"ps": 1, "worker": 2})
    assert plan.moved_parts, "the worker changes the variable in the server's memory"
    plan.to_html(tmp_path / "plan.html")
    open_page(driver, tmp_path / "plan.html")
    assert "copies of constants: 1" in find(driver, "#detail").text
    dashed = [e.get_attribute("class") for e in find_all(driver, "#map .channel")]
    assert dashed == ["channel remote control"] and texts(driver, "#map .chip text") == ["in place"]
    find(driver, "#map .chip").click()
    assert find(driver, "#detail .kind").text == "One-sided updates" and texts(driver, "#detail li") == ["w"]
    for node, assigned, ran_on in (
        ("a", "worker:0", ["worker:0", "worker:1"]),
        ("w", "ps:0", ["worker:0"]),
        ("update", "ps:0", ["worker:0"]),
    ):
        open_page(driver, tmp_path / "plan.html", node)
        tags = [f"/job:{task.replace(':', '/task:')}/CPU:0" for task in (assigned, *ran_on)]
        assert texts(driver, "#detail .tag")[: len(tags)] == tags
        while folded := find_all(driver, '#map g.device[aria-expanded="false"]'):
            driver.execute_script("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", folded[0])
        assert len(find_all(driver, f'#map g.node[aria-label^="{node},"]')) == len(ran_on)

    def tip():  # the map glides to the node first
        ActionChains(driver).move_to_element(box(driver, "update,")).perform()
        return find(driver, "#tip").text

    until(lambda: "AssignAdd on /job:ps/task:0/CPU:0\nruns on /job:worker/task:0/CPU:0\n" in tip())
    find(driver, "#tab-devices").click()
    assert [row.text.split("\n")[1] for row in find_all(driver, ".rows .row")] == [
        str(len(plan.partitions[str(d.name)].nodes) if str(d.name) in plan.partitions else 0)
        for d in plan.cluster.devices
    ]


def test_initializers_are_hidden_until_asked_for(driver, tmp_path):
    with dt.Graph().as_default() as graph:
        v = dt.Variable(dt.zeros([3], name="first"), name="v")
        dt.add(v, 1.0, name="y")
    dt.place(graph, {"worker": 1}).to_html(tmp_path / "whole.html")
    open_page(driver, tmp_path / "whole.html")

    def labels():
        return " ".join(e.get_attribute("aria-label") for e in find_all(driver, "#map g.node"))

    assert "y," in labels() and "Assign" not in labels() and "first" not in labels()
    find(driver, '[data-do="initializers"]').click()
    assert "v/Assign," in labels() and "first," in labels()
    open_page(driver, tmp_path / "whole.html", "v/Assign")
    assert "v/Assign," in labels() and find(driver, "#detail h2").text == "v/Assign"


def test_a_notebook_shows_the_page_in_a_frame(driver, tmp_path):
    page = "<!DOCTYPE html><body>" + page_plans.training()._repr_html_()
    (tmp_path / "notebook.html").write_text(page, encoding="utf-8")
    driver.get((tmp_path / "notebook.html").as_uri())
    driver.switch_to.frame(find(driver, "iframe"))
    until(lambda: driver.execute_script("return document.documentElement.dataset.ready") == "yes", 30)
    assert len(find_all(driver, "#map g.device")) == 4
    find(driver, "#tab-timeline").click()
    assert find_all(driver, "#chart .bar")
    driver.switch_to.default_content()


def test_hostile_names_stay_text(driver, tmp_path):
    """No such name can be given here, but it can come in a graph that somebody else has made."""
    plain = {HOSTILE: "x" * len(HOSTILE), "__proto__": "p" * len("__proto__")}
    with dt.Graph().as_default() as harmless:
        with dt.device("/job:ps"):
            v = dt.Variable([1.0], name=plain[HOSTILE])
        with dt.device("/job:worker"):
            dt.add(v, 1.0, name=f"{plain[HOSTILE]}/b")
            dt.add(v, 2.0, name=plain["__proto__"])
            dt.add(v, 3.0, name="constructor")
    data = graph_to_bytes(harmless)
    for hostile, name in plain.items():
        data = data.replace(name.encode(), hostile.encode())
    graph = dt.Graph()
    extend_from_bytes(graph, data)
    write_html(dt.place(graph, {"ps": 1, "worker": 1}), tmp_path / "hostile.html")
    open_page(driver, tmp_path / "hostile.html")
    find(driver, "#search").send_keys("onerror")
    assert HOSTILE in texts(driver, "#results .name")
    find(driver, "#results [role=option]").click()
    assert HOSTILE in find(driver, "#detail h2").text
    find(driver, "#search").clear()
    find(driver, "#tab-nodes").click()
    assert {HOSTILE, "__proto__", "constructor"} <= set(texts(driver, ".rows .name"))
    assert not find_all(driver, "img") and driver.title.startswith("Plan: ")


def test_a_script_that_gets_in_is_not_run(driver, pages, tmp_path):
    """The content security policy, by itself: a page into which a script was put by hand."""
    page = pages("training").read_text(encoding="utf-8")
    bad = page.replace(
        "<body>",
        "<body><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">",
    )
    (tmp_path / "bad.html").write_text(bad, encoding="utf-8")
    open_page(driver, tmp_path / "bad.html")
    assert driver.title.startswith("Plan: ")
    assert any("Content Security Policy" in text for text in complaints(driver))
    requests(driver)


def test_it_can_be_read_on_a_small_screen(driver, pages):
    open_page(driver, pages("large"))
    script = "return [...document.querySelectorAll('#map .device text')].map(e => e.getBoundingClientRect())"
    sizes = [rect["height"] for rect in driver.execute_script(script)]
    assert min(sizes) > 8, "the first view is never so small that it has to be zoomed"
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [480, 600, 920, 1400])
def test_nothing_is_cut_or_covered_in_a_frame_of_any_width(driver, pages, width):
    """In a narrow frame the head takes more lines, and titles leave the badge out."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 480, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        open_page(driver, pages("training"))
        script = """
          const shown = (selector) => [...document.querySelectorAll(selector)].filter((e) => getComputedStyle(e).visibility !== "hidden"
            && getComputedStyle(e).display !== "none").map((e) => e.getBoundingClientRect());
          const hit = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
          const summary = document.querySelector("#summary"), titles = shown("#map .titles text");
          return [summary.scrollWidth <= summary.clientWidth, document.documentElement.scrollWidth <= innerWidth,
            titles.some((a, i) => titles.slice(0, i).some((b) => hit(a, b))),
            shown("#legend").some((a) => shown("#map .device .card, #tools button").some((b) => hit(a, b))),
            shown("header").some((a) => shown("main").some((b) => hit(a, b)))];
        """
        assert driver.execute_script(script) == [True, True, False, False, False]
    finally:
        metrics = {"width": page_browser.WIDTH, "height": page_browser.HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
