"""Where a node was made, as texts name it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.graph.core.source_location import UNKNOWN, SourceLine, locate


def test_a_file_below_the_working_folder_is_named_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, beside = tmp_path / "here", tmp_path / "here2"
    (here / "sub").mkdir(parents=True)
    monkeypatch.chdir(here)
    assert str(SourceLine(str(here / "sub" / "train.py"), 7)) == "sub/train.py:7"
    assert str(SourceLine("train.py", 7)) == "train.py:7"
    for elsewhere in (beside / "train.py", tmp_path / "train.py"):
        assert str(SourceLine(str(elsewhere), 7)) == f"{elsewhere}:7"
    assert str(locate(UNKNOWN)) == "<unknown>"
    monkeypatch.chdir("/")
    assert str(SourceLine("/app/train.py", 7)) == "/app/train.py:7"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a working folder cannot be removed")
def test_a_working_folder_that_is_gone_shortens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert str(SourceLine(str(gone / "train.py"), 7)) == f"{gone / 'train.py'}:7"
    finally:
        monkeypatch.chdir(tmp_path)


def test_a_node_keeps_the_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    with dt.Graph().as_default():
        node = dt.placeholder(dt.float32, [2], name="x").op
    assert node.source.file == __file__ and str(node.source) == f"{Path(__file__).name}:{node.source.line}"
