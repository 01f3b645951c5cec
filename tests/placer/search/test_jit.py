"""The inner loops of searches: kept on disk for as long as no file of theirs changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

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
