"""The timeline in a real browser, on a page of its own: zoom, move, hover, find, both themes, and no network."""

from __future__ import annotations

import page_browser
import pytest
from page_browser import HOSTILE, find_all, open_page, until

from dovetail.placer.render.text import time_text
from dovetail.placer.render.timeline import Bar, Chart

pytestmark = page_browser.MARKS


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    bars = (
        Bar("/job:a/replica:0/task:0/device:CPU:0", 0.0, 0.4, "dense/MatMul", "kernel", "MatMul, 1.0 MiB", True),
        Bar("/job:a/replica:0/task:0/device:CPU:0", 0.4, 0.9, "waits for x:0", "wait"),
        Bar("a -> b", 0.4, 0.5, "x", "transfer", "12 B"),
        Bar("/job:b/replica:0/task:0/device:CPU:0", 0.5, 0.7, HOSTILE, "kernel", HOSTILE),
    )
    path = tmp_path_factory.mktemp("pages") / "timeline.html"
    Chart("A step", bars, 1.0, (("limited by", "the link"),)).to_html(path)
    return path


def test_the_page_writes_times_as_reports_do(driver, tmp_path):
    Chart("A step", (Bar("a -> b", 0.0, 9.999e-4, "x", "transfer"),), 0.00123456).to_html(tmp_path / "step.html")
    open_page(driver, tmp_path / "step.html")
    shown = driver.find_element("id", "detail").text.splitlines()
    assert shown[shown.index("time") + 1] == time_text(0.00123456) == "1.23 ms"
    ticks = [e.text for e in find_all(driver, "#chart text.soft") if e.text]
    assert "200 µs" in ticks and "1.2 ms" in ticks


def view(driver):
    return driver.execute_script("const d = document.documentElement.dataset; return [+d.from, +d.to]")


def test_it_opens_from_a_file_and_draws_every_track(driver, page):
    open_page(driver, page)
    tracks = [e.text for e in find_all(driver, "#chart text.track")]
    assert tracks == ["/job:a/task:0/CPU:0", "/job:b/task:0/CPU:0", "a → b"]
    assert len(find_all(driver, "#chart .bar")) == 4 and len(find_all(driver, "#chart .bar.critical")) == 1
    assert driver.find_element("id", "detail").text.splitlines()[3:7] == ["time", "1 s", "limited by", "the link"]
    assert driver.title == "A step"  # no name has become part of the page's code
    tabs = [t for t in find_all(driver, "[role=tab]") if t.is_displayed()]
    assert [t.text for t in tabs] == ["Timeline"], "there is no plan to show"


def test_a_long_wait_behind_a_short_kernel_is_drawn_as_a_wait(driver, tmp_path):
    track = "/job:a/replica:0/task:0/device:CPU:0"
    bars = (
        Bar(track, 0.0, 1e-6, "w", "kernel"),
        Bar(track, 1e-6, 0.5, "waits for x:0", "wait"),
        Bar(track, 0.5, 1.0, "y", "kernel"),
    )
    Chart("A step", bars, 1.0).to_html(tmp_path / "step.html")
    open_page(driver, tmp_path / "step.html")
    drawn = [
        ("fill-wait" in e.get_attribute("class"), float(e.get_attribute("width")))
        for e in find_all(driver, "#chart .bar")
    ]
    assert [wait for wait, _ in drawn] == [False, True, False] and drawn[0][1] < 3 < 100 < drawn[1][1]


def test_hovering_tells_what_a_bar_is(driver, page):
    from selenium.webdriver import ActionChains

    open_page(driver, page)
    ActionChains(driver).move_to_element(find_all(driver, "#chart .bar.critical")[0]).perform()
    tip = driver.find_element("id", "tip")
    until(tip.is_displayed)
    assert tip.text == "dense/MatMul\n400 ms, from 0\nMatMul, 1.0 MiB\non the critical path"


def test_it_zooms_by_button_key_and_wheel_and_comes_back(driver, page):
    from selenium.webdriver import ActionChains

    open_page(driver, page)
    a, b = view(driver)
    driver.find_element("css selector", '#bar-tools [data-do="in"]').click()
    c, d = view(driver)
    assert d - c == pytest.approx((b - a) / 2, rel=0.05)
    ActionChains(driver).send_keys("+").perform()
    e, f = view(driver)
    assert f - e == pytest.approx((b - a) / 4, rel=0.05)
    driver.execute_script(
        "document.getElementById('chart').dispatchEvent(new WheelEvent('wheel', {deltaY: -400, clientX: 600, cancelable: true}))"
    )
    g, h = view(driver)
    assert h - g < f - e
    ActionChains(driver).send_keys("0").perform()
    assert view(driver) == pytest.approx([a, b])


def test_a_click_explains_a_bar_a_double_click_goes_there_and_dragging_moves_the_view(driver, page):
    from selenium.webdriver import ActionChains

    open_page(driver, page)
    whole = view(driver)
    find_all(driver, "#chart .fill-transfer.bar")[0].click()
    shown = driver.find_element("id", "detail").text
    assert "Transfer" in shown and "100 ms, from 400 ms" in shown and view(driver) == whole
    ActionChains(driver).double_click(find_all(driver, "#chart .fill-transfer.bar")[0]).perform()
    a, b = view(driver)
    assert 0.3 < a < 0.4 and 0.5 < b < 0.6
    chart = driver.find_element("id", "chart")
    ActionChains(driver).move_to_element(chart).click_and_hold().move_by_offset(-100, 0).release().perform()
    assert view(driver)[0] > a


def test_the_keyboard_goes_along_the_critical_path(driver, page):
    from selenium.webdriver.common.keys import Keys

    open_page(driver, page)
    driver.find_element("id", "chart").send_keys(Keys.ENTER)
    assert driver.find_element("css selector", "#detail h2").text == "dense/MatMul"
    assert find_all(driver, "#chart .bar.chosen.critical") and view(driver)[1] < 0.8


def test_finding_fades_the_others(driver, page):
    open_page(driver, page)
    driver.find_element("id", "search").send_keys("matmul")
    until(lambda: driver.find_element("id", "said").get_attribute("textContent") == "1 found")
    assert len(find_all(driver, "#chart .bar.faded")) == 3


@pytest.mark.parametrize("dark", [False, True])
def test_it_follows_the_theme_and_can_change_it(driver, page, dark):
    open_page(driver, page, dark=dark)
    ground = "return getComputedStyle(document.body).backgroundColor"
    shown = driver.execute_script(ground)
    assert shown == ("rgb(15, 20, 26)" if dark else "rgb(243, 245, 248)")
    driver.find_element("id", "theme").click()
    assert driver.execute_script(ground) != shown
    driver.execute_script("localStorage.clear()")


def test_a_hundred_thousand_bars_are_never_all_drawn(driver, tmp_path):
    bars = tuple(Bar(f"d{i % 8}", i * 1e-5, i * 1e-5 + 5e-5, f"node_{i}", "kernel") for i in range(100_000))
    Chart("large", bars, 1.0).to_html(tmp_path / "large.html")
    open_page(driver, tmp_path / "large.html")
    assert 8 <= len(find_all(driver, "#chart .bar")) < 10_000
    driver.find_element("css selector", '#bar-tools [data-do="in"]').click()
    assert view(driver)[1] - view(driver)[0] < 0.6
