"""Texts of values, and what is printed in a step."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def run(fetches):
    with tf.Session() as session:
        return session.run(fetches)


@pytest.mark.parametrize(
    ("value", "summarize", "text"),
    [
        (np.arange(10), 3, "[0 1 2 ... 7 8 9]"),
        (np.arange(10), 1, "[0 ... 9]"),
        (np.arange(7), -1, "[0 1 2 3 4 5 6]"),
        (np.arange(6), 3, "[0 1 2 3 4 5]"),
        (np.arange(8).reshape(4, 2), 1, "[[0 1]\n ...\n [6 7]]"),
        (np.zeros((2, 1, 1), np.float32), 3, "[[[0]]\n\n [[0]]]"),
        (np.array(2.5, np.float32), 3, "2.5"),
        (np.array([True, False]), 3, "[1 0]"),
        (["a", "b"], 3, '["a" "b"]'),
        ([], 3, "[]"),
    ],
)
def test_values_as_text(value, summarize, text):
    assert run(tf.strings.format("<{}>", [value], summarize=summarize)).decode() == f"<{text}>"


def test_as_many_values_as_places():
    assert run(tf.strings.format("%% and %%", [1, "x"], placeholder="%%")) == b'1 and "x"'
    with pytest.raises(ValueError, match="2 placeholders, there are 1 inputs"):
        tf.strings.format("{} {}", [1])


def test_a_step_prints(capsys):
    x = tf.range(10)
    sp = tf.SparseTensor([[0, 1]], [5], [1, 2])
    printed = tf.print("x is", x, {"b": x[:2], "a": (1, "{}")}, output_stream=sys.stdout, sep="|", end="!\n")
    with tf.control_dependencies([printed]):
        y = x * 2
    run([y, tf.print(sp), tf.print(tf.constant("text"), summarize=None)])
    found = capsys.readouterr()
    assert found.out == "x is|[0 1 2 ... 7 8 9]|{'a': (1, '{}'), 'b': [0 1]}!\n"
    lines = found.err.splitlines()
    assert "text" in lines and "'SparseTensor(indices=[[0 1]], values=[5], shape=[1 2])'" in lines


def test_other_streams(tmp_path, caplog):
    file = tmp_path / "printed"
    with caplog.at_level(logging.INFO, "dovetail"):
        run([tf.print(1, output_stream=f"file://{file}"), tf.print("told", output_stream=tf.logging.warning)])
    assert file.read_text() == "1\n"
    assert ("dovetail", logging.WARNING, "told") in caplog.record_tuples
    with pytest.raises(ValueError, match="Unsupported output stream"):
        tf.print(1, output_stream="screen")
