"""The hook that traces steps, and how hooks' options of a step go together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def train(hooks, steps):
    """A loop of so many steps."""
    step = tf.train.get_or_create_global_step()
    work = tf.matmul(tf.random_uniform([8, 8]), tf.random_uniform([8, 8]), name="work")
    with tf.control_dependencies([work.op]):
        op = tf.assign_add(step, 1)
    with tf.train.MonitoredSession(hooks=[*hooks, tf.train.StopAtStepHook(num_steps=steps)]) as session:
        while not session.should_stop():
            session.run(op)


def test_every_so_many_steps_a_trace_is_written(tmp_path: Path):
    train([tf.train.ProfilerHook(save_steps=3, output_dir=str(tmp_path / "traces"))], 8)
    first, second = sorted((tmp_path / "traces").iterdir())
    steps = [int(p.stem.removeprefix("timeline-")) for p in (first, second)]
    assert steps == [3, 6]  # whether the step that a hook fetches is from before or after the update
    events = json.loads(first.read_text())["traceEvents"]
    assert any("work" in json.dumps(e) for e in events)


def test_hooks_that_ask_for_different_options_all_get_theirs(tmp_path: Path):
    seen = []

    class Limit(tf.train.SessionRunHook):
        def before_run(self, run_context):
            return tf.train.SessionRunArgs(None, options=tf.RunOptions(timeout_in_ms=60_000))

        def after_run(self, run_context, run_values):
            seen.append((run_values.options.timeout_in_ms, run_values.options.trace_level))

    train([tf.train.ProfilerHook(save_steps=1, output_dir=str(tmp_path)), Limit()], 2)
    assert seen == [(60_000, 0), (60_000, tf.RunOptions.FULL_TRACE)]


def test_how_often_must_be_said_once():
    with pytest.raises(ValueError, match="exactly one"):
        tf.train.ProfilerHook()
    with pytest.raises(RuntimeError, match="Global step"), tf.train.MonitoredSession(hooks=[tf.train.ProfilerHook(1)]):
        pass
