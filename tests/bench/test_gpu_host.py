"""The benchmark of a GPU's host: with a driver that does nothing it captures what it says, and needs no GPU."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"

PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import gpu_host
from dovetail.codegen.gpu.driver.device import device

def measured(step, rounds):
    before = sum(s.replays for s in device(0).pool.graphs)
    step()
    replayed.append(sum(s.replays for s in device(0).pool.graphs) - before)
    return 1e-6, None

gpu_host.measure, replayed = measured, []
for row, count in zip(gpu_host.rows(quick=True), replayed, strict=False):
    print(row.name, count, sep=": ")
"""


def test_it_captures_what_it_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(BENCH)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "empty step of a session in this process: 0",
        "training step, mlp, batch 64: captured: 1",
        "training step, mlp, batch 64: launch by launch: 0",
        "training step, mlp, batch 64: captured, fed and fetched: 1",
    ]
