"""The page of a plan in a real browser: its map and tables, what people click, type and see."""

import re

import page_browser
import page_plans
import pytest
from page_browser import box, find, find_all, open_page, press, texts, until

import dovetail as dt

pytestmark = page_browser.MARKS


def test_it_opens_from_a_file_and_shows_every_device(driver, pages):
    open_page(driver, pages("training"))
    assert re.fullmatch(
        r"\d+ nodes · 4 devices · 4 tasks · [\d.]+ MiB between tasks per step · ≥ [\d.]+ [µm]s predicted",
        find(driver, "#summary").text,
    )
    labels = [e.get_attribute("aria-label") for e in find_all(driver, "#map g.device")]
    assert [label.partition(",")[0] for label in labels] == [
        f"/job:{task}/CPU:0" for task in ("worker/task:0", "worker/task:1", "ps/task:0", "ps/task:1")
    ]
    assert find_all(driver, "#map .channel.remote") and "310 KiB" in texts(driver, "#map .chip text")
    assert not find_all(driver, "#opening")


def test_a_click_opens_a_scope_and_a_click_on_its_head_closes_it(driver, pages):
    open_page(driver, pages("training"))
    assert not find_all(driver, '#map g[aria-label^="tower_1/MatMul,"]')
    box(driver, "tower_1/,").click()
    opened = box(driver, "tower_1/, open")
    assert opened.get_attribute("aria-expanded") == "true"
    assert box(driver, "tower_1/MatMul,").get_attribute("class").startswith("node kind-compute")
    assert find(driver, "#detail h2").text == "tower_1/"
    driver.execute_script(
        "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))",
        find(driver, '#map g[aria-label^="tower_1/, open"] .handle'),
    )
    assert not find_all(driver, '#map g[aria-label^="tower_1/MatMul,"]')


def test_a_node_explains_itself_as_the_plan_does(driver, pages):
    plan = page_plans.training()
    name = "model/hidden/weights"
    open_page(driver, pages("training"), name)
    decision, node = plan.decisions.decision(name), plan.graph.get_operation_by_name(name)
    shown = " ".join(find(driver, "#detail").text.split())
    assert find(driver, "#detail h2").text == name and find(driver, "#detail .kind").text == "VariableV2"
    expected = [
        "/job:ps/task:0/CPU:0", decision.rule.text, node.device, f"placer/page_plans.py:{node.source.line}",
        node.source.text, "function replica_device_setter", *decision.group[:3],
    ]  # fmt: skip
    for words in expected:
        assert " ".join(words.split()) in shown
    for rejected in decision.rejected:
        assert rejected.reason in shown and rejected.device.replace("/replica:0", "").replace("/device:", "/") in shown
    assert box(driver, f"{name},").get_attribute("class").endswith("chosen")


def test_hovering_tells_the_same_in_short(driver, pages):
    from selenium.webdriver import ActionChains

    open_page(driver, pages("training"), "model/hidden/weights")

    def hover():  # the map glides to the node first
        ActionChains(driver).move_to_element(box(driver, "model/hidden/weights,")).perform()
        return "model/hidden/weights" in find(driver, "#tip").text

    until(hover)
    tip = find(driver, "#tip").text
    assert "model/hidden/weights" in tip and "the only candidate" in tip
    assert "requested '/job:ps/task:0'" in tip and "in device block function replica_device_setter" in tip


def test_a_channel_lists_its_tensors(driver, pages):
    open_page(driver, pages("large"))
    find(driver, "#map .chip").click()
    assert find(driver, "#detail h2").text == "/job:worker/task:0/GPU:0 → /job:worker/task:0/GPU:1"
    values = texts(driver, "#detail li")
    assert len(values) == 20 and values[0].startswith("shared/weights_0/read:0")
    assert "16.0 KiB" in values[0] and "forwarded inside the task" in values[0]


def test_search_lists_the_best_matches_and_goes_to_one(driver, pages):
    from selenium.webdriver.common.keys import Keys

    open_page(driver, pages("large"))
    press(driver, "/", *"tower_3/block_7/layer_12/ma")
    found = texts(driver, "#results [role=option] .name")
    assert found == ["tower_3/block_7/layer_12/MatMul"] and texts(driver, "#results mark") == [
        "tower_3/block_7/layer_12/Ma"
    ]
    press(driver, Keys.ENTER)
    chosen = box(driver, "tower_3/block_7/layer_12/MatMul,")
    assert chosen.get_attribute("class").endswith("lit chosen")
    assert find(driver, "#results").get_attribute("hidden") is not None

    def is_in_view():
        at = driver.execute_script(
            "const r = arguments[0].getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]",
            chosen,
        )
        return 0 < at[0] < at[1] < page_browser.WIDTH - 340 and 50 < at[2] < at[3] < page_browser.HEIGHT

    until(is_in_view)
    assert driver.execute_script("return document.activeElement === arguments[0]", chosen)


def test_search_says_when_nothing_is_found(driver, pages):
    open_page(driver, pages("training"))
    find(driver, "#search").send_keys("no such node")
    assert texts(driver, "#results p") == ["No node has “no such node” in its name or op"]


def test_search_finds_letters_in_order_where_no_name_has_them_together(driver, pages):
    open_page(driver, pages("training"))
    find(driver, "#search").send_keys("hid wei rd")
    assert texts(driver, "#results .name")[0] == "model/hidden/weights/read"
    assert texts(driver, "#results p") == ["No node has “hid wei rd” in its name or op; like it: 2 nodes"]


def test_the_page_says_which_program_and_cluster_it_is_about(driver, pages):
    open_page(driver, pages("training"))
    assert find(driver, "h1").text == "page_plans.py" and driver.title.endswith(" · page_plans.py")
    facts = dict(zip(texts(driver, "#detail dt"), texts(driver, "#detail dd"), strict=True))
    assert facts["cluster"] == "2 ps, 2 worker"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d, by Dovetail .+", facts["written"])


def test_the_keyboard_is_enough(driver, pages):
    from selenium.webdriver.common.keys import Keys

    open_page(driver, pages("training"))
    driver.execute_script("document.querySelector('#map g[tabindex=\"0\"]').focus()")

    def at():
        return driver.execute_script("return document.activeElement.getAttribute('aria-label')")

    start = at()
    press(driver, Keys.ARROW_DOWN)
    assert at() != start
    for _ in range(12):
        if at().startswith("tower_0/,"):
            break
        press(driver, Keys.ARROW_DOWN)
    press(driver, Keys.ENTER)
    assert at().startswith("tower_0/, open"), "the focus stays with what was opened"
    press(driver, Keys.ARROW_DOWN, Keys.ENTER)
    assert find(driver, "#detail h2").text == at().partition(",")[0] == "tower_0/MatMul"
    press(driver, Keys.ESCAPE)
    assert find(driver, "#detail .kind").text == "Plan"
    assert find(driver, "#map").get_attribute("tabindex") is None
    assert len(find_all(driver, '#map g[tabindex="0"]')) == 1, "one stop for the tab key, whatever is open"


def test_zoom_and_fit(driver, pages):
    open_page(driver, pages("training"))

    def scale():
        return float(re.search(r"scale\(([\d.]+)\)", find(driver, "#map .stage").get_attribute("transform"))[1])

    first = scale()
    find(driver, '[data-do="in"]').click()
    assert scale() == pytest.approx(1.3 * first, rel=1e-3)
    find(driver, '[data-do="fit"]').click()
    until(lambda: scale() == pytest.approx(first, rel=1e-3))


def test_bundles_fall_apart_into_lines_between_boxes(driver, pages):
    open_page(driver, pages("training"))
    # A plan of few channels shows them all.
    if find(driver, '[data-do="bundle"]').get_attribute("aria-pressed") == "false":
        find(driver, '[data-do="bundle"]').click()
    bundled = len(find_all(driver, "#map .channel"))
    find(driver, '[data-do="bundle"]').click()
    assert len(find_all(driver, "#map .channel")) > bundled
    assert find(driver, '[data-do="bundle"]').get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_follows_the_system_until_it_is_chosen(driver, pages, dark):
    open_page(driver, pages("training"), dark=dark)

    def is_dark():
        color = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", color)[:3])) < 200

    assert is_dark() == dark
    find(driver, "#theme").click()
    assert is_dark() != dark and find(driver, "#theme").text == ("Dark" if dark else "Light")
    driver.execute_script("localStorage.clear()")


def test_the_table_sorts_filters_and_explains(driver, pages):
    open_page(driver, pages("training"))
    find(driver, "#tab-nodes").click()

    def column(number):
        return texts(driver, f".rows .row > :nth-child({number})")

    def head(title):
        return next(h for h in find_all(driver, ".heads > div") if h.text.split(" ")[0] == title)

    titles = [h.text for h in find_all(driver, ".heads > div")]
    assert titles == ["Name", "Op", "Device", "Requested", "Rule", "Stored", "Work", "Runs"]
    head("Name").find_element("css selector", "button").click()
    assert column(1) == sorted(column(1)) and head("Name").get_attribute("aria-sort") == "ascending"
    head("Name").find_element("css selector", "button").click()
    assert column(1) == sorted(column(1), reverse=True)
    head("Stored").find_element("css selector", "button").click()
    assert column(6)[:5] == ["306 KiB", "3.9 KiB", "400 B", "40 B", ""] and column(1)[0] == "model/hidden/weights"
    find(driver, "#search").send_keys("MATMUL_1")
    assert all("MatMul_1" in name for name in column(1)) and find(driver, "#view-table .count").text.startswith(
        f"{len(column(1))} of "
    )
    find_all(driver, ".rows .row")[1].click()
    assert find(driver, "#detail h2").text == column(1)[1]
    find(driver, "#detail .action").click()
    assert find(driver, "#view-map").is_displayed() and box(driver, find(driver, "#detail h2").text)


def test_the_table_of_channels(driver, pages):
    plan = page_plans.training()
    open_page(driver, pages("training"))
    find(driver, "#tab-channels").click()
    assert find(driver, "#view-table .count").text == f"{len(plan.channels)} channels"
    assert texts(driver, ".rows .row > :nth-child(1)") == [c.name for c in plan.channels]
    find_all(driver, ".rows .row")[0].click()
    assert plan.channels[0].name in find(driver, "#detail").text


def test_the_table_of_devices_marks_what_depends_on_unknown_sizes(driver, tmp_path):
    with dt.Graph().as_default():
        with dt.device("/job:worker/task:0"):
            h = dt.square(dt.placeholder(dt.float32, [None, 256]))
        with dt.device("/job:worker/task:1"):
            plan = dt.place(dt.negative(h), {"worker": 2})
    plan.to_html(tmp_path / "plan.html")
    open_page(driver, tmp_path / "plan.html")
    find(driver, "#tab-devices").click()
    rows = [row.text.split("\n") for row in find_all(driver, ".rows .row")]
    assert [row[-2:] for row in rows] == [["≥ 1.0 KiB", "0 B"], ["0 B", "≥ 1.0 KiB"]]


def test_a_hundred_thousand_nodes_are_never_all_drawn(driver, pages):
    open_page(driver, pages("large"))
    assert len(find_all(driver, "#map g[aria-label]")) < 100
    for label in (
        "/job:worker/task:1/GPU:1,",
        "tower_3/block_0 … 49",
        "tower_3/block_0 … 9",
        "tower_3/block_0/",
    ):
        driver.execute_script(
            "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))",
            box(driver, label).find_element("css selector", ".card"),
        )
        assert len(find_all(driver, "#map g[aria-label]")) < 150
    find(driver, "#tab-nodes").click()
    assert len(find_all(driver, ".rows .row")) < 60, "only the rows in the window exist"
    driver.execute_script("const g = document.querySelector('.grid'); g.scrollTop = g.scrollHeight")
    until(lambda: "total" in texts(driver, ".rows .row > :nth-child(1)"))


def test_many_devices_are_folded_into_tasks_and_ranges_of_tasks(driver, pages):
    open_page(driver, pages("fleet"))

    def labels():
        return [e.get_attribute("aria-label").partition(",")[0] for e in find_all(driver, "#map g.group")]

    def click(label):
        script = "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        driver.execute_script(script, box(driver, label).find_element("css selector", ".handle, .card"))

    ranges = [f"/job:worker/task:{i} … {i + 9}" for i in range(0, 120, 10)]
    assert labels() == ranges
    assert find(driver, "#map g.group").get_attribute("aria-label").startswith(f"{ranges[0]}, 10 tasks · 40 devices, ")
    lines = len(find_all(driver, "#map .channel"))
    assert lines == 2 * 12, "one line from each ps to each range"
    click(ranges[3])
    assert labels() == [*ranges[:3], *(f"/job:worker/task:{i}" for i in range(30, 40)), *ranges[4:]]
    assert find(driver, "#detail h2").text == ranges[3]
    click("/job:worker/task:34,")
    devices = [e.get_attribute("aria-label").partition(",")[0] for e in find_all(driver, "#map g.device:not(.group)")]
    assert devices == [
        *(f"/job:worker/task:34/GPU:{i}" for i in range(4)),
        "/job:ps/task:0/CPU:0",
        "/job:ps/task:1/CPU:0",
    ]
    assert len(find_all(driver, "#map g[aria-label]")) < 60
    click(f"{ranges[3]}, open")
    assert labels() == ranges and len(find_all(driver, "#map .channel")) == lines


def test_tasks_and_devices_are_found_by_name(driver, pages):
    from selenium.webdriver.common.keys import Keys

    open_page(driver, pages("fleet"))
    press(driver, "/", *"task:77")
    assert texts(driver, "#results .name")[0] == "/job:worker/task:77"
    press(driver, *"/gpu:2")
    assert texts(driver, "#results .name") == ["/job:worker/task:77/GPU:2"]
    press(driver, Keys.ENTER)
    assert find(driver, "#detail h2").text == "/job:worker/task:77/GPU:2"
    assert box(driver, "/job:worker/task:77/GPU:2,").get_attribute("class").endswith("chosen")
    open_page(driver, pages("fleet"), "tower_99_3/MatMul")
    assert box(driver, "tower_99_3/MatMul,").get_attribute("class").endswith("lit chosen")
    shown = find(driver, "#detail").text
    assert "'/job:worker/task:99/device:GPU:3' is required" in shown and "… and 475 more" in shown
    find(driver, "#tab-devices").click()
    find(driver, "#search").send_keys("worker:5 gpu:1")
    assert texts(driver, ".rows .row > :nth-child(1)") == ["/job:worker/task:5/GPU:1"]
    find(driver, ".rows .row").click()
    find(driver, "#detail .action").click()
    until(lambda: box(driver, "/job:worker/task:5/GPU:1,").is_displayed())


def test_a_flat_graph_is_folded_into_ranges(driver, pages):
    open_page(driver, pages("flat"))
    labels = [e.get_attribute("aria-label") for e in find_all(driver, "#map g.scope:not(.open)")]
    ranges = ["add … 999", *(f"add_{i}000 … {i}999" for i in range(1, 5))]
    assert [label.partition(",")[0] for label in labels] == ranges


def test_labels_do_not_cover_each_other(driver, pages):
    """Boxes of one parent, and labels of lines, keep clear of each other, whatever is open."""
    script = """
      const rects = [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect());
      let hits = 0;
      for (let i = 0; i < rects.length; i++) for (let j = 0; j < i; j++) {
        const a = rects[i], b = rects[j];
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        if (wide > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1) hits++;
      }
      return [rects.length, hits];"""
    for name, node in [
        ("training", ""),
        ("deep", ""),
        ("large", ""),
        ("training", "tower_1/MatMul"),
        ("deep", "layer_70/MatMul"),
    ]:
        open_page(driver, pages(name), node)
        for selector in (
            "#map .chip rect",
            "#map .node .card, #map .scope:not(.open) .card",
            "#map .titles text, #map .node text, #map .scope:not(.open) text",
        ):
            count, hits = driver.execute_script(script, selector)
            assert hits == 0 and count > 0 or count == 0, (name, node, selector, hits)
