"""The tests' watchdog: a wait without an end becomes a failure with all stacks, a long computation does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WAITS = """
import subprocess, sys, threading

def test_wait():
    child = subprocess.Popen([sys.executable, "-c", "import time\\ndef child_waits(): time.sleep(600)\\nchild_waits()"])
    threading.Event().wait(600)

def test_computes():
    import time
    end = time.monotonic() + 3
    while time.monotonic() < end:
        pass
"""


@pytest.mark.slow
def test_a_wait_fails_with_all_stacks(tmp_path: Path) -> None:
    for name in ("conftest.py", "watchdog.py"):
        (tmp_path / name).write_text((Path(__file__).parent / name).read_text())
    (tmp_path / "test_inner.py").write_text(WAITS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_inner.py"],
        cwd=tmp_path,
        env=os.environ | {"DOVETAIL_TEST_WAIT_S": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    text = ran.stdout + ran.stderr
    assert "the test waited for 2 s" in text
    assert "in test_wait" in text  # this process's stack
    assert "in child_waits" in text  # the child's
    assert "1 failed, 1 passed" in text
