"""On-disk cache of compiled kernels: a private folder with atomically written files.

A file's name is a hash of everything that its contents depend on, so a file never changes and needs no lock. If two processes make
the same file at the same time, both write a temporary file and rename it; either result is correct. `alone` spares them the work.

The folder is private to the user (mode 0700), because its files are executed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from ..graph.core.settings import cache_folder
from ..graph.formats.atomic_files import locked

logger = logging.getLogger(__name__)

# The longest wait for another process that makes the same kernel: it may have been stopped. The slowest kernels compile in 7 s.
WAIT_S = 10.0


def folder(part: str) -> Path:
    """The cache folder of one kind of kernel: in DOVETAIL_CACHE_DIR, or in `dovetail` in the user's cache folder.

    Creates the folder if needed. If it is not writable, returns a temporary folder for this process.
    """
    kernels = cache_folder() / part
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
    """Write a file atomically, unless it exists. `anew`: also overwrite an existing file."""
    if path.exists() and not anew:
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as f:
        f.write(data)
    # Some compilers compare a source's time with that of the compiled file, so every writer sets the same time.
    os.utime(name, (0, 0))
    Path(name).replace(path)


@contextlib.contextmanager
def alone(path: Path, is_made: bool) -> Iterator[None]:
    """A context manager in which one process at a time makes what belongs to `path`. Others wait, for at most `WAIT_S`, and find it made.

    Tasks of a cluster on one machine need the same kernels at the same time. `is_made`: whether it is there already; then this waits only
    while another process still makes it. A process that ends loses the lock.
    """
    lock = path.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        if not is_made or lock.exists():
            with contextlib.suppress(OSError):  # where files can't be locked, each makes its own
                lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                held.enter_context(locked(lock, WAIT_S))
        yield


def load_module(name: str, path: Path, text: str) -> ModuleType:
    """The module of a source text. The text is kept at `path`, where compilers look for a function's source."""
    put(path, text.encode())
    module = ModuleType(name)
    module.__file__ = str(path)
    code = compile(text, path, "exec", dont_inherit=True)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
