"""All_reduces of gradients begin during the backward pass: what a trace of two real workers shows, and the same numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import dovetail as tf

SCRIPT = Path(__file__).parent / "scripts" / "overlap.py"


def result(lines: Any) -> Any:
    seen = []
    for line in lines:
        text = line.decode()
        if text.startswith("RESULT "):
            return json.loads(text.removeprefix("RESULT "))
        seen.append(text)
    raise AssertionError("no result; the process said:\n" + "".join(seen))


def overlap() -> bool:
    """Run the program on two workers; whether in both all_reduces ran during the backward pass."""
    with tf.LocalCluster(
        {"worker": 2}, programs={"worker": [sys.executable, str(SCRIPT)]}, piped=["worker"]
    ) as cluster:
        found = [result(cluster.process("worker", i).stdout) for i in range(2)]
    shown = True
    for (weights, ran), (weights_after, ran_after) in found:
        assert weights == weights_after == found[0][0][0]
        reduces = [r for r in ran if r[1] == "CollectiveReduce"]
        assert len(reduces) == 3  # one for each layer
        last = next(start for node, _, start, _ in ran if node == "gradients/layer0_grad/MatMul_1")
        begins = sorted(start for _, _, start, _ in reduces)
        shown = shown and begins[1] < last < begins[2]  # the last layers', before the first layer's gradient is made
        last = next(end for node, _, _, end in ran_after if node == "gradients/layer0_grad/MatMul_1")
        assert all(start > last for _, op, start, _ in ran_after if op == "CollectiveReduce")
    return shown


@pytest.mark.slow
def test_all_reduces_begin_during_the_backward_pass_and_give_the_same_bits() -> None:
    assert any(overlap() for _ in range(5))  # a machine with no core to spare runs later what was begun
