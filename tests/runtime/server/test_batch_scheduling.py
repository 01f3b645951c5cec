"""A server's threads are scheduled so that who is woken displaces nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="needs Linux")

PROGRAM = """
import os
import dovetail as dt
for thread in os.listdir("/proc/self/task"):  # whatever it has from the process that started it
    os.sched_setscheduler(int(thread), os.{before}, os.sched_param(0))
server = dt.train.Server({{"a": ["localhost:0"]}}, "a", 0)
print(*{{os.sched_getscheduler(int(t)) for t in os.listdir("/proc/self/task")}})
server.stop()
"""


def policies(before: str = "SCHED_OTHER", **environment: str) -> list[int]:
    """The policies of the threads of a process with a server, where the first was `before`."""
    program = PROGRAM.format(before=before)
    command = [sys.executable, "-c", program]
    root = Path(__file__).resolve().parents[3]
    out = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, cwd=root, check=True
    )
    return [int(word) for word in out.stdout.split()]


def test_a_server_s_threads_are_batch_work() -> None:
    assert os.SCHED_BATCH in policies() and os.SCHED_BATCH not in policies(DOVETAIL_SCHED_BATCH="0")


def test_what_somebody_has_chosen_stays() -> None:
    assert policies(before="SCHED_IDLE") == [os.SCHED_IDLE]
