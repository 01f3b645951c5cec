"""The pictures of docs/tracing.md, taken in a real browser: what to look at after changing the timeline's page.

    python docs/timeline_page.py

It needs Chromium, its driver and selenium; tests/placer/page_browser.py says how to get them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "placer")]  # a checkout needs no install

import page_browser  # noqa: E402

import dovetail as tf  # noqa: E402

IMAGES = ROOT / "docs" / "images"
SIZE = 1200, 380


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


def main() -> None:
    """Take both pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pages(folder)
        with page_browser.browser(folder / "profile", *SIZE) as driver:
            for page in sorted(folder.glob("*.html")):
                page_browser.open_page(driver, page, dark="predicted" in page.name)
                driver.save_screenshot(str(IMAGES / f"{page.stem}.png"))


if __name__ == "__main__":
    main()
