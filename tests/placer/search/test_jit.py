"""The inner loops of searches: kept on disk for as long as no file of theirs changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from dovetail.placer.search import jit


def test_the_cache_goes_by_the_content_of_the_whole_folder(tmp_path: Path) -> None:
    for name, text in (("loops.py", "one"), ("more.py", "two")):
        (tmp_path / name).write_text(text)
    before = jit._stamp.__wrapped__(tmp_path)
    (tmp_path / "loops.py").touch()
    assert jit._stamp.__wrapped__(tmp_path) == before  # a fresh clone has other times
    (tmp_path / "more.py").write_text("six")
    assert jit._stamp.__wrapped__(tmp_path) != before

    machine = cast(Any, jit.seeded).machine
    assert machine._cache._cache_file._source_stamp == jit._stamp()


def test_interpreted_and_compiled_loops_give_the_same() -> None:
    states = [int(jit.seeded(7))]
    with jit.interpreted():
        assert int(jit.seeded(7)) == states[0] and states[0] > 0
        expected = jit.next_random(states[0])
    assert jit.next_random(states[0]) == expected


PROGRAM = """
import numba
from dovetail.placer.search import jit
print("ready", flush=True)
input()
jit.seeded(7)
print(sum(jit.seeded.machine.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_of_processes_that_start_at_once_one_compiles_a_loop(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    started = [subprocess.Popen([sys.executable, "-c", PROGRAM], **cast(Any, pipes)) for _ in range(3)]
    assert [cast(Any, each.stdout).readline() for each in started] == ["ready\n"] * 3
    for each in started:
        cast(Any, each.stdin).write("go\n")
        cast(Any, each.stdin).flush()
    assert sorted(each.communicate()[0] for each in started) == ["0\n", "0\n", "1\n"]
    assert not list(tmp_path.rglob("*.lock"))
