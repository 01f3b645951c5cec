"""What a user sees of a wrong program: frames of the program only, the last of them its wrong line, and a text that says what to do.

Each program runs in this process, and its error is reported as Python reports one that nothing catches. The text must be exactly the one
that follows the program in the table.
"""

from __future__ import annotations

import linecache
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import dovetail as dt
from dovetail.graph.core.source_location import HIDDEN, hide_own_frames_when_uncaught

PROGRAMS = (Path(__file__).parent / "wrong_programs.txt").read_text(encoding="utf-8")


def _cases() -> dict[str, tuple[str, str]]:
    """The table: title -> program, text of its error."""
    cases = {}
    for title, program, text in re.findall(
        r"^# (.*)\n((?s:.*?))\n---\n((?s:.*?))\n(?=\n# |\Z)", PROGRAMS, re.MULTILINE
    ):
        cases[title] = program + "\n", text
    return cases


def _reported(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What Python prints of the error of a program."""
    linecache.cache["program.py"] = (len(program), None, program.splitlines(keepends=True), "program.py")
    try:
        exec(compile(program, "program.py", "exec"), {"dt": dt, "tf": dt, "np": np, "__name__": "__main__"})
    except Exception as e:
        assert e.__traceback__ is not None
        error = e.with_traceback(e.__traceback__.tb_next)
    else:
        pytest.fail("the program has no error")
    sys.excepthook(type(error), error, error.__traceback__)
    return capsys.readouterr().err


@pytest.mark.parametrize("title", _cases())
def test_a_wrong_program_is_told_what_is_wrong_at_its_own_line(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, text = _cases()[title]
    monkeypatch.chdir(tmp_path)
    with dt.Graph().as_default():
        said = _reported(program, capsys)
    frames = re.findall(r'^  File "(.*?)", line ', said, re.MULTILINE)
    assert frames
    assert set(frames) == {"program.py"}, said
    after = said[said.rindex('  File "program.py"') :].splitlines(keepends=True)
    start = next(i for i, line in enumerate(after) if i and not line.startswith("    "))
    assert "".join(after[start:]) == f"{text}\n{HIDDEN}\n"


def test_the_frames_are_shown_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DOVETAIL_TRACEBACK", "full")
    assert "/graph/core/graph.py" in _reported("dt.ones([2]) + dt.ones([3])\n", capsys)


def test_an_error_that_passes_no_frame_of_a_program_keeps_its_frames(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        dt.ones([2]) + dt.ones([3])
    except ValueError as e:
        assert e.__traceback__ is not None
        error = e.with_traceback(e.__traceback__.tb_next)
    sys.excepthook(type(error), error, error.__traceback__)
    said = capsys.readouterr().err
    assert "/graph/core/graph.py" in said
    assert HIDDEN not in said


def test_an_error_without_a_frame_of_dovetail_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert HIDDEN not in _reported("1 / 0\n", capsys)


def test_a_shell_of_ipython_shows_the_frames_of_the_program_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        custom_exceptions = ()
        shown = None

        def set_custom_exc(self, kinds, handler):
            self.custom_exceptions, self.handler = kinds, handler

        def showtraceback(self, info, tb_offset):
            self.shown = info

    shell = Shell()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    hide_own_frames_when_uncaught()
    try:
        dt.ones([2]) + dt.ones([3])
    except ValueError as e:
        assert isinstance(e, shell.custom_exceptions)
        shell.handler(shell, type(e), e, e.__traceback__)
    kind, error, entries = shell.shown
    assert kind is type(error) is ValueError
    assert entries.tb_frame.f_code.co_filename == __file__
    assert entries.tb_next is None
