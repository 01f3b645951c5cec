"""Fault injection for tests: the faults in the setting `DOVETAIL_FAULTS`.

The setting is a list of `name:value`, separated by commas:

    save:7              the process kills itself at the seventh file operation of its saves
    kill:run:2          the process kills itself when the second message of kind `run` comes
    freeze:tensors:1    it stops itself (SIGSTOP) when the first message of kind `tensors` comes
    cut:all             no message comes to this process, and none leaves it
    cut:localhost:2222  none leaves it for the task there
    lose:20             every twentieth message that comes or leaves is lost
    delay:30            every message that comes or leaves takes 30 ms longer
    rate:8              and goes at 8 MiB/s
    from:/some/file     read more faults from this file, which may change while the process runs; in a folder, the name of the
                        file is the process id

Nothing here is random: the same setting and the same messages give the same faults.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from .settings import setting

NAMES = ("save", "kill", "freeze", "cut", "lose", "delay", "rate", "from")

_cached: dict[str, tuple[tuple[int, int], Mapping[str, str]]] = {}  # file -> its time and inode, and its faults


def faults() -> Mapping[str, str]:
    """The faults that are active now, by name.

    Raises:
        ValueError: the setting is malformed.
    """
    text = setting("DOVETAIL_FAULTS")
    if not text:
        return {}
    found = _parsed(text)
    return {**found, **_read(found["from"])} if "from" in found else found


def _parsed(text: str) -> dict[str, str]:
    found = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, value = entry.partition(":")
        if name not in NAMES or not value:
            raise ValueError(
                f"DOVETAIL_FAULTS has {entry!r}; each entry is NAME:VALUE, the names are {', '.join(NAMES)}"
            )
        found[name] = value
    return found


def _read(where: str) -> Mapping[str, str]:
    """The current faults of the file. It is checked at each call: a removed fault must not affect the next message."""
    file = Path(where, str(os.getpid())) if Path(where).is_dir() else Path(where)
    was, says = _cached.get(where, ((0, 0), {}))
    with contextlib.suppress(FileNotFoundError):
        stat = file.stat()
        identity = stat.st_mtime_ns, stat.st_ino
        if identity != was:
            says = _parsed(file.read_text("utf-8"))
            _cached[where] = identity, says
    return says
