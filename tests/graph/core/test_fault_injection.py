"""Faults on purpose: what the setting says, and when."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dovetail.graph.core.fault_injection import faults


def test_no_faults_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_FAULTS", raising=False)
    assert faults() == {}


def test_a_list_of_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_FAULTS", "save:7, kill:run:2,cut:localhost:2222")
    assert faults() == {"save": "7", "kill": "run:2", "cut": "localhost:2222"}


@pytest.mark.parametrize("text", ["sav:7", "cut", "delay:"])
def test_a_fault_that_does_not_exist_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_FAULTS", text)
    with pytest.raises(ValueError, match="each entry is NAME:VALUE, the names are save, kill"):
        faults()


def test_a_file_of_faults_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "faults"
    monkeypatch.setenv("DOVETAIL_FAULTS", f"delay:5,from:{file}")
    assert faults()["delay"] == "5" and "cut" not in faults()  # the file need not be there yet
    file.write_text("cut:all,delay:7")
    assert faults() == {"delay": "7", "cut": "all", "from": str(file)}
    time.sleep(0.02)  # a change is seen by the file's time
    file.write_text("")
    assert faults()["delay"] == "5" and "cut" not in faults()


def test_a_folder_has_a_file_for_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_FAULTS", f"from:{tmp_path}")
    (tmp_path / "1").write_text("cut:all")
    assert "cut" not in faults()
    (tmp_path / str(os.getpid())).write_text("lose:3")
    assert faults()["lose"] == "3"
