"""The pictures of the documentation: of a plan's page and of a timeline's page, in a real browser, and of pipelines.

    python docs/pictures.py plan                  # those of docs/guides/plan-page.md: look at them after changing the page
    python docs/pictures.py plan --all FOLDER     # pages and pictures of all sizes and views
    python docs/pictures.py timeline              # those of docs/guides/tracing.md
    python docs/pictures.py pipeline              # those of docs/guides/automatic-placement.md

A browser is Chromium, its driver and selenium; tests/placer/page_browser.py says how to get them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "placer")]  # a checkout needs no install

os.environ["DOVETAIL_PROFILE"] = "none"  # pictures show the same times on every machine

import page_browser  # noqa: E402
import page_plans  # noqa: E402

import dovetail as tf  # noqa: E402
from dovetail.placer.render.timeline import Bar, Chart  # noqa: E402

IMAGES = ROOT / "docs" / "images"
TIMELINE_SIZE = 1200, 380
STAGES, MICRO_BATCHES, BATCH, WIDTH = 4, 8, 4096, 512


class Picture(NamedTuple):
    """One view of one page: a plan of page_plans.py, the node it opens at, and what is clicked then."""

    plan: str
    node: str = ""
    clicks: Sequence[str] = ()
    dark: bool = False


SHOWN = {
    "plan-page-training": Picture("training", "tower_1/MatMul"),
    "plan-page-large": Picture("large", dark=True),
    "plan-page-timeline": Picture("sized", clicks=["#tab-timeline", "#chart .bar.critical:not(.fill-none)"]),
    "plan-page-diff": Picture("compared"),
}
ALL = SHOWN | {
    "50-first": Picture("training"),
    "50-lines": Picture("training", clicks=['[data-do="bundle"]']),
    "50-dark": Picture("training", "model/hidden/weights", dark=True),
    "50-flow": Picture("training", clicks=['[data-do="flow"]']),
    "50-kernel": Picture("training", clicks=["#tab-kernels", "#detail li .link"]),
    "2000-first": Picture("deep"),
    "2000-device": Picture("deep", clicks=['#map g[aria-label^="/job:worker/task:1/GPU:0"]']),
    "2000-node": Picture("deep", "layer_70/MatMul"),
    "2000-timeline": Picture("deep", clicks=["#tab-timeline"], dark=True),
    "2000-table": Picture("deep", clicks=["#tab-nodes", ".heads > :nth-child(6) button"]),
    "2000-channels": Picture("deep", clicks=["#tab-channels", ".rows .row:nth-child(3)"]),
    "100000-first": Picture("large"),
    "100000-channel": Picture("large", clicks=["#map .chip"]),
    "100000-node": Picture("large", "tower_3/block_7/layer_12/MatMul"),
    "flat-first": Picture("flat"),
}


def write(name: str, page: Path) -> None:
    """The page of a plan of page_plans.py; `sized`, `compared`: of the small one with a known batch, and with GPUs beside that."""
    if name not in ("sized", "compared"):
        getattr(page_plans, name)().to_html(page)
        return
    plan = page_plans.training().at(batch=64)
    if name == "sized":
        plan.to_html(page)
    else:
        asked = {"fetches": plan.fetches, "targets": plan.targets, "devices": {"worker": ["cpu:0", "gpu:0"]}}
        tf.place(plan.graph, {"ps": 2, "worker": 2}, **asked).at(batch=64).to_html(page, before=plan)


def take(driver: Any, folder: Path, name: str, picture: Picture, images: Path) -> None:
    """Write a page, bring it to its view, take the picture."""
    page = folder / f"{picture.plan}.html"
    if not page.exists():
        write(picture.plan, page)
    seconds = page_browser.open_page(driver, page, picture.node, dark=picture.dark)
    for selector in picture.clicks:
        driver.find_element("css selector", selector).click()
    time.sleep(0.4)  # the map glides for a fifth of a second
    driver.save_screenshot(str(images / f"{name}.png"))
    print(f"{name}: {page.stat().st_size / 1e6:.2f} MB, open after {seconds:.2f} s")


def plans(folder: Path | None) -> None:
    """Views of plans' pages: those that are shown, or all, and the pages, into a folder."""
    images = folder or IMAGES
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, page_browser.browser(Path(scratch, "profile")) as driver:
        for name, picture in (ALL if folder else SHOWN).items():
            take(driver, folder or Path(scratch), name, picture, images)


def pages(folder: Path) -> None:
    """Write the page of a traced step, and that of its prediction."""
    with tf.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        x = tf.placeholder(tf.float32, [512, 64], name="x")
        with tf.device("/job:ps/task:0"):
            w = tf.Variable(tf.random_normal([64, 512]), name="w")
        sums = []
        for i in range(2):
            with tf.device(f"/job:worker/task:{i}"):
                sums.append(tf.reduce_sum(tf.nn.relu(tf.matmul(x, w)), name=f"sum_{i}"))
        total = tf.add_n(sums, name="total")
        with tf.Session(cluster.target("worker", 0)) as session:
            session.run(tf.global_variables_initializer())
            session.warmup(total, [x])
            metadata = tf.RunMetadata()
            for _ in range(5):
                session.run(total, {x: [[1.0] * 64] * 512}, tf.RunOptions(trace_level=3), metadata)
            assert metadata.trace is not None
            metadata.trace.to_html(folder / "timeline-trace.html")
            tf.simulate(metadata.trace.plan).to_html(folder / "timeline-predicted.html")


def timelines() -> None:
    """Both pages of timelines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pages(folder)
        with page_browser.browser(folder / "profile", *TIMELINE_SIZE) as driver:
            for page in sorted(folder.glob("*.html")):
                page_browser.open_page(driver, page, dark="predicted" in page.name)
                driver.save_screenshot(str(IMAGES / f"{page.stem}.png"))


def pipeline(schedule: str) -> str:
    """One step of a model of equal stages as an `<svg>` element."""
    with tf.Graph().as_default():
        x = h = tf.placeholder(tf.float32, [BATCH, WIDTH], name="x")
        for i in range(STAGES):
            with tf.device(f"/job:worker/task:{i}"):
                for k in range(2):
                    w = tf.get_variable(f"w{i}_{k}", [WIDTH, WIDTH])
                    h = tf.nn.relu(tf.matmul(h, w))
        with tf.device(f"/job:worker/task:{STAGES - 1}"):
            loss = tf.reduce_mean(tf.square(h))
        descent = tf.train.GradientDescentOptimizer(0.1)
        optimizer = tf.train.PipelineOptimizer(descent, [x], MICRO_BATCHES, schedule, name="p")
        plan = tf.place(None, {"worker": STAGES}, targets=optimizer.minimize(loss))
        predicted = tf.simulate(plan).folded(2)
    chart = predicted.chart(f"One step under {schedule}")
    bars = []
    for bar in chart.bars:
        scope, _, name = bar.name.partition("/")
        # Forward in one colour, backward in another.
        if scope == "p" and "->" not in bar.track and name[:2] in ("F_", "B_"):
            label = name[0] + name.rpartition("_")[2]
            bars.append(Bar(bar.track, bar.start, bar.finish, label, "kernel" if name[0] == "F" else "transfer"))
    return Chart(chart.title, tuple(bars), chart.seconds, chart.facts).to_svg()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("plan", "timeline", "pipeline"))
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="plan: all views, and the pages, into a folder")
    asked = parser.parse_args()
    if asked.what == "pipeline":
        for name in ("gpipe", "1f1b"):
            (IMAGES / f"pipeline-{name}.svg").write_text(pipeline(name) + "\n", encoding="utf-8")
    elif why := page_browser.missing():
        sys.exit(why)
    elif asked.what == "plan":
        plans(asked.all)
    else:
        timelines()


if __name__ == "__main__":
    main()
