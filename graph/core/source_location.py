"""Source locations in the user's program.

Every node records the line that made it. Recording must be cheap (making a node takes about 10 microseconds), so only the code object
and the instruction offset are stored; the line number is computed on request.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from .settings import setting

P = ParamSpec("P")
R = TypeVar("R")

# The recorded location: the code and instruction offset, or file and line after it was sent to another process.
Origin: TypeAlias = tuple[CodeType | str, int]


class RecordedFile(str):
    """The name of a file of another process, with those of its lines that were sent with it (`texts`, by number)."""

    __slots__ = ("texts",)

    def __init__(self, name: str) -> None:
        self.texts: dict[int, str] = {}


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a user's program: `file`, `line` (from 1; 0 when unknown).

    `is_local`: whether this process ran it. A file that only a message names is never read: the sender could name any file.
    """

    file: str
    line: int
    is_local: bool = field(default=True, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The source text of the line, stripped; empty if the file is not available."""
        if isinstance(self.file, RecordedFile):
            return self.file.texts.get(self.line, "")
        return linecache.getline(self.file, self.line).strip() if self.is_local else ""

    def __str__(self) -> str:
        """The file, relative to the working folder if it lies below, and the line: `train.py:7`."""
        if not self.line:
            return "<unknown>"
        with contextlib.suppress(OSError):  # the working folder may be gone
            return f"{self.file.removeprefix(f'{Path.cwd()}{os.sep}')}:{self.line}"
        return f"{self.file}:{self.line}"


UNKNOWN: Origin = ("", 0)
HIDDEN = "(frames of Dovetail are hidden; DOVETAIL_TRACEBACK=full shows them)"


def _own_folders() -> tuple[str, ...]:
    parent = Path(__file__).absolute().parent.parent.parent  # not resolved: code objects name files as they were found
    if (parent / "__init__.py").exists():  # installed: everything lies under dovetail/
        return (f"{parent}{os.sep}",)
    names = ("graph", "placer", "codegen", "runtime", "dovetail")  # a checkout: the five folders lie side by side
    return tuple(f"{parent / name}{os.sep}" for name in names)


_OWN = _own_folders()
# File name -> whether it is part of Dovetail; a dict look-up beats a prefix test. A block that Dovetail opens
# through `contextlib` is the user's, whose line is further out.
_is_own: dict[str, bool] = {contextlib.__file__: True}


def is_own(file: str) -> bool:
    """Whether a file is part of Dovetail."""
    own = _is_own.get(file)
    if own is None:
        own = _is_own[file] = file.startswith(_OWN)
    return own


def hide_own_frames(error: BaseException) -> None:
    """Remove the frames of Dovetail and of Python's imports from the traceback of an error, unless DOVETAIL_TRACEBACK is "full".

    The tracebacks of its `__cause__` and `__context__` are shortened as well. A note at the end of the traceback tells this.
    """
    if setting("DOVETAIL_TRACEBACK") == "full":
        return
    left, seen, hidden = [error], set(), False
    while left:
        part = left.pop()
        seen.add(id(part))
        entries = []
        entry = part.__traceback__
        while entry is not None:
            entries.append(entry)
            entry = entry.tb_next
        shown = None
        for entry in reversed(entries):
            file = entry.tb_frame.f_code.co_filename
            # `dataclass` makes methods of its own, whose file is "<string>".
            made = file == "<string>" and str(entry.tb_frame.f_globals.get("__name__")).startswith("dovetail.")
            if made or is_own(file):
                hidden = True
            elif not file.startswith("<frozen "):
                shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        part.__traceback__ = shown
        left += [e for e in (part.__cause__, part.__context__) if e is not None and id(e) not in seen]
    if hidden and HIDDEN not in getattr(error, "__notes__", ()):
        error.add_note(HIDDEN)


def shows_users_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: tracebacks of its errors have no frames of Dovetail (see `hide_own_frames`)."""

    @functools.wraps(function)
    def shortened(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as e:
            hide_own_frames(e)
            raise

    return shortened


def hide_own_frames_when_uncaught() -> None:
    """Install `hide_own_frames` for errors that nothing catches: in `sys.excepthook`, and in IPython if this is one of its shells.

    So it applies to every function and method of Dovetail, and costs nothing until there is an error. Errors that pass no frame of a
    user's program, such as those of the servers, keep all frames.
    """
    previous = sys.excepthook

    def shorten(error: BaseException) -> None:
        files = {entry.f_code.co_filename for entry, _ in traceback.walk_tb(error.__traceback__)}
        if isinstance(error, Exception) and not all(is_own(f) or f.startswith("<frozen ") for f in files):
            hide_own_frames(error)

    def report(kind: type[BaseException], error: BaseException, entries: TracebackType | None) -> None:
        shorten(error)
        previous(kind, error, error.__traceback__)

    def report_in_shell(
        shell: Any, kind: Any, error: BaseException, entries: Any, tb_offset: int | None = None
    ) -> None:
        shorten(error)
        shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)

    sys.excepthook = report
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((Exception,), report_in_shell)


def caller() -> Origin:
    """The innermost location on the call stack that is not inside Dovetail."""
    frame: FrameType | None = sys._getframe(2)
    known = _is_own.get
    while frame is not None:
        code = frame.f_code
        own = known(code.co_filename)
        if own is None:
            own = is_own(code.co_filename)
        if not own:
            return code, frame.f_lasti
        frame = frame.f_back
    return UNKNOWN


def locate(origin: Origin) -> SourceLine:
    """The file and line of a location from `caller`."""
    code, at = origin
    if isinstance(code, str):
        return SourceLine(code, at, is_local=False)
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            return SourceLine(code.co_filename, line)
    return SourceLine(code.co_filename, code.co_firstlineno)


def at_line(origin: Origin) -> str:
    """The end of an error's text that names the user's line, and shows its code; empty if the line is not known."""
    line = locate(origin)
    if not line.line:
        return ""
    return f"\n  at {line}" + (f"\n    {line.text}" if line.text else "")


def at_caller() -> str:
    """`at_line` of the innermost location that is not inside Dovetail."""
    return at_line(caller())


def warn_caller(text: str) -> None:
    """Warn the user (UserWarning), at the line of their program that called Dovetail."""
    line = locate(caller())
    warnings.warn_explicit(text, UserWarning, line.file, line.line)
