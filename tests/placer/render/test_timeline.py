"""The picture of a timeline: rows, axis, the still drawing, and what the page holds."""

from __future__ import annotations

import base64
import gzip
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, strategies as st

import dovetail as dt
from dovetail.placer.render.text import time_text
from dovetail.placer.render.timeline import POINTS, TICKS, Bar, Chart, MemoryTrack, packed_charts, ticks_of
from dovetail.placer.simulate import simulate

SVG = "{http://www.w3.org/2000/svg}"


def chart(*bars: tuple[str, float, float], **more: object) -> Chart:
    return Chart("A step", tuple(Bar(track, a, b, f"{track}@{a}", "kernel") for track, a, b in bars), 10.0)


def test_bars_that_overlap_get_rows_of_their_own() -> None:
    found = chart(("d", 0, 4), ("d", 1, 2), ("d", 2, 3), ("d", 3.5, 5), ("d", 4, 6)).tracks["d"]
    assert [[b.start for b in row] for row in found] == [[0, 4], [1, 2, 3.5]]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=40))
def test_rows_never_overlap_and_are_as_few_as_can_be(times: list[tuple[int, int]]) -> None:
    rows = chart(*[("d", a, a + n) for a, n in times]).tracks["d"]
    for row in rows:
        assert all(a.finish <= b.start for a, b in zip(row, row[1:], strict=False))
    most = max(sum(a <= t < a + n for a, n in times) for t, _ in times)
    assert len(rows) == most


def test_devices_come_before_links() -> None:
    assert list(chart(("a -> b", 0, 1), ("b", 2, 3), ("a", 1, 2)).tracks) == ["a", "b", "a -> b"]


@given(st.floats(1e-9, 1e6))
def test_the_axis_has_some_round_marks(seconds: float) -> None:
    marks = ticks_of(seconds)
    assert 3 <= len(marks) <= 9 and marks[0] == 0 and marks[-1] <= seconds * (1 + 1e-9)
    assert re.fullmatch(r"[125]0*e[+-]\d+", f"{marks[1]:.0e}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (5e-10, "0.5 ns"),
        (2.5e-6, "2.5 µs"),
        (0.00125, "1.25 ms"),
        (61.2, "61.2 s"),
        (12345.6, "12346 s"),
        (9.999e-4, "1 ms"),
    ],
)
def test_times_are_told_in_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_the_still_picture_has_a_bar_with_a_text_for_each() -> None:
    drawn = ElementTree.fromstring(chart(("/job:a/replica:0/task:0/device:CPU:0", 0, 4), ("b", 5, 10)).to_svg())
    tips = [t.text for t in drawn.iter(f"{SVG}title")]
    assert len(tips) == 2 and tips[1] == "b@5: 5 s from 5 s"
    texts = [t.text for t in drawn.iter(f"{SVG}text")]
    assert "/job:a/task:0/CPU:0" in texts and "10 s" in texts


def test_bars_too_narrow_to_see_are_drawn_as_one() -> None:
    many = chart(*[("d", i * 1e-5, i * 1e-5 + 1e-6) for i in range(100_000)])
    drawn = many.to_svg()
    assert drawn.count("<rect") < 2500 and " more: " in drawn


def test_hostile_names_stay_text() -> None:
    bad = "</title><script>alert(1)</script>"
    made = Chart(bad, (Bar(bad, 0, 1, bad, "kernel", bad),), 1.0, ((bad, bad),))
    assert "<script" not in made.to_svg()
    page = made.page()
    assert page.count("<script") == 2 and "alert(1)" not in page.replace("&lt;script&gt;alert(1)", "")


def test_the_page_needs_nothing_and_holds_all_bars() -> None:
    page = chart(("d", 0, 4), ("d", 1, 2)).page()
    assert not re.search(r"(src|href)=", page) and "default-src 'none'" in page
    data = re.search(r'id="data">([^<]*)<', page)
    assert data is not None
    raw = gzip.decompress(base64.b64decode(data[1]))
    size = int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4 : 4 + size])
    _, offset, count = head["columns"]["chart0.start"]
    starts = np.frombuffer(raw, "<u4", count, 4 + size + offset) / TICKS * 10.0
    assert starts.tolist() == pytest.approx([0, 1]) and head["charts"][0]["tracks"] == [["d", 2]]


def test_a_long_track_keeps_its_peak() -> None:
    at = np.linspace(0, 10, 50_000)
    held = np.random.default_rng(0).random(50_000) * 1000
    held[12_345] = 5000
    _, columns = packed_charts([("", Chart("", (), 10.0, memory=(MemoryTrack("d", at, held),)))])
    assert len(columns["chart0.memoryAt"]) <= POINTS + 1 and max(columns["chart0.memoryBytes"]) == 5000


def test_the_memory_of_a_simulated_step_rises_to_its_peak() -> None:
    with dt.Graph().as_default() as graph:
        big = dt.ones([1000, 100], name="big") * 2.0
        y = dt.reduce_sum(dt.exp(big), name="end")
    line = simulate(dt.place(graph, {"worker": 1}, fetches=y))
    assert [held.max() for _, held in line.memory] == list(line.peak) and line.peak[0] >= 2 * 400_000
    ((device, at, held, exact),) = [(m.device, m.at, m.bytes, m.exact) for m in line.chart().memory]
    assert (
        device == line.devices[0]
        and (np.diff(at) >= 0).all()
        and at[-1] <= line.makespan
        and exact
        and held[-1] == held.min()
    )


def test_a_simulated_step_draws_its_devices_links_and_critical_chain(tmp_path: object) -> None:
    graph = dt.Graph()
    with graph.as_default():
        with dt.device("/job:worker/task:0"):
            x = dt.ones([256, 256]) @ dt.ones([256, 256])
        with dt.device("/job:worker/task:1"):
            y = dt.reduce_sum(x @ x, name="end")
    line = simulate(dt.place(graph, {"worker": 2}, fetches=y))
    made = line.chart()
    assert list(made.tracks)[-1] == "/job:worker/task:0/CPU:0 -> /job:worker/task:1/CPU:0"
    assert {b.kind for b in made.bars} == {"kernel", "transfer"}
    assert any(b.name == "end" and b.critical for b in made.bars)
    line.to_html(tmp_path / "t.html")  # type: ignore[operator]
    assert (tmp_path / "t.html").stat().st_size > 5000  # type: ignore[operator]
    assert line._repr_html_() == line.to_svg() == made.to_svg()
