"""The pictures of the pipelines in docs/automatic-placement.md: a predicted step under each schedule.

python docs/pipeline_page.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout needs no install

import dovetail as tf  # noqa: E402
from dovetail.placer.render.timeline import Bar, Chart  # noqa: E402

STAGES, MICRO_BATCHES, BATCH, WIDTH = 4, 8, 4096, 512


def picture(schedule: str) -> str:
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
        if (
            scope == "p" and "->" not in bar.lane and name[:2] in ("F_", "B_")
        ):  # forward in one colour, backward in another
            label = name[0] + name.rpartition("_")[2]
            bars.append(Bar(bar.lane, bar.start, bar.finish, label, "kernel" if name[0] == "F" else "transfer"))
    return Chart(chart.title, tuple(bars), chart.seconds, chart.facts).to_svg()


if __name__ == "__main__":
    for name in ("gpipe", "1f1b"):
        (ROOT / "docs" / "images" / f"pipeline-{name}.svg").write_text(picture(name) + "\n", encoding="utf-8")
