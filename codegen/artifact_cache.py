"""Compiled kernels on disk: a private folder, and files that are put there whole or not at all.

What is kept is named after a hash of everything that decides what it is, so a file never changes and needs no lock: processes
that make the same one at the same time both write it elsewhere and move it into place, and either is right.

The folder is private to the user (mode 0700): what lies in it is run.
"""

from __future__ import annotations

import logging
import os
import tempfile
from functools import cache
from pathlib import Path

from ..graph.core.settings import setting

logger = logging.getLogger(__name__)


def folder(part: str) -> Path:
    """Where one kind of kernel is kept: in DOVETAIL_CACHE_DIR, or in `dovetail` in the user's cache folder.

    It is made if it is not there. If it cannot be written to, a folder for this process alone.
    """
    named = str(setting("DOVETAIL_CACHE_DIR"))
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail"
    kernels = base / part
    try:
        kernels.mkdir(parents=True, exist_ok=True, mode=0o700)
        if kernels.stat().st_uid != os.getuid() or kernels.stat().st_mode & 0o022 or not os.access(kernels, os.W_OK):
            raise PermissionError(f"{kernels} is open to others, or not writable")
    except OSError as e:
        return _own_folder(part, str(e))
    return kernels


@cache
def _own_folder(part: str, why: str) -> Path:
    made = Path(tempfile.mkdtemp(prefix=f"dovetail-{part}-"))
    logger.warning("compiled kernels are kept for this process only: %s", why)
    return made


def put(path: Path, data: bytes, *, anew: bool = False) -> None:
    """Write a file, unless it is there (or even then: `anew`). It appears at once, with all of its contents."""
    if path.exists() and not anew:
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as f:
        f.write(data)
    # Some compare a source's time with that of what was compiled from it: the same for everybody who writes this file.
    os.utime(name, (0, 0))
    Path(name).replace(path)
