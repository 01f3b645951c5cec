"""Ops that only old programs use are defined when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dovetail as tf

LOADS = """
import sys
import dovetail as dt
from dovetail.graph.core import opdef
assert "SetSize" not in opdef._REGISTRY and "dovetail.compat.tf1.ops" not in sys.modules
graph = dt.load_graph(sys.argv[1])
with dt.Session(graph=graph) as session:
    print(session.run("size:0").tolist())
"""


def test_a_saved_graph_defines_the_old_ops_that_it_has(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        tf.identity(tf.sets.size(tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [1, 2, 2], [2, 2])), name="size")
    tf.save_graph(graph, tmp_path / "sets.dtg")
    told = subprocess.run(
        [sys.executable, "-c", LOADS, tmp_path / "sets.dtg"], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[2, 1]"
