"""Files that are there whole or not at all, whatever kills the process or the machine.

A file is written under another name, flushed to the disk, renamed, and the rename flushed too. A reader sees the old file or the
new one. Each of these steps is a *point*: with `DOVETAIL_FAULTS=save:N` the process kills itself at the Nth, which is how the
tests find out that no point is a bad one.
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

from .faults import faults

_points = itertools.count(1)


def point() -> None:
    """A point at which a save may be killed."""
    if faults().get("save") == str(next(_points)):
        os.kill(os.getpid(), signal.SIGKILL)


def write_durably(path: Path, write: Callable[[Path], None]) -> None:
    """Make a file: `write` is given the name under which it is to be written first.

    Raises:
        OSError: what the file system says; nothing is left then.
    """
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    point()
    try:
        partial.touch()
        point()
        write(partial)
        point()
        _flush(partial)
        point()
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    point()
    _flush(path.parent)
    point()


def write_bytes_durably(path: Path, content: bytes) -> None:
    """Make a file of these bytes. Errors as of `write_durably`."""

    def write(partial: Path) -> None:
        partial.write_bytes(content)

    write_durably(path, write)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    point()
    path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


__all__ = ["point", "remove", "write_durably"]
