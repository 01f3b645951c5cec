"""Synchronous training of several client processes, by an accumulator and a queue of tokens on the parameter server."""

import json
import sys
from pathlib import Path

import pytest

import dovetail as tf

ROUNDS = 25
SCRIPT = Path(__file__).parent / "scripts" / "synchronous.py"


@pytest.mark.slow
def test_all_workers_take_each_step_together(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), str(ROUNDS)]
    with tf.LocalCluster({"ps": 1, "worker": 3}, programs={"worker": command}) as cluster:
        (tmp_path / "go").touch()
        assert cluster.wait("worker", 45) == [0, 0, 0]
    reports = [json.loads((tmp_path / f"worker{i}.json").read_text()) for i in range(3)]
    for seen in reports:
        assert [step for step, _, _ in seen] == list(range(1, ROUNDS + 1))
        for step, low, high in seen:
            assert low == high  # no update is seen half
            # Gradients 1, 2 and 3 have the mean 2. Who reads may see one round more: the others need not wait for it.
            assert any(abs(low + 0.2 * s) < 1e-3 for s in (step, step + 1)), (step, low)
