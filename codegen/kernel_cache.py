"""Compiled CPU kernels on disk, shared by all processes of a user.

A kernel's source text is its identity: it lies in a file named after its hash, together with what decides its meaning (the
source of `vecmath`, the version of Numba), and Numba keeps the machine code beside it, per kind of processor. Files are written
elsewhere and moved into place, so processes that make the same kernel at the same time do not disturb each other.

The folder is private to the user (mode 0700): what lies in it is run.

Numba and LLVM are imported here and below only, when the first kernel is compiled. Compiling takes 0.1 to 1 s a kernel, once per
machine; it happens in one background thread unless somebody waits for it (`compile_now`).
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import logging
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..graph.settings import setting
from .loops import Loops
from .numba_source import NumbaSource, numba_source

logger = logging.getLogger(__name__)

Function = Callable[..., Any]


def folder() -> Path:
    """Where kernels are kept: DOVETAIL_CACHE_DIR, or `dovetail` in the user's cache folder; made if it is not there.

    If that cannot be written to, a folder for this process alone.
    """
    named = str(setting("DOVETAIL_CACHE_DIR"))
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail"
    kernels = base / "numba"
    try:
        kernels.mkdir(parents=True, exist_ok=True, mode=0o700)
        if kernels.stat().st_uid != os.getuid() or kernels.stat().st_mode & 0o022 or not os.access(kernels, os.W_OK):
            raise PermissionError(f"{kernels} is open to others, or not writable")
    except OSError as e:
        return _own_folder(str(e))
    return kernels


@cache
def _own_folder(why: str) -> Path:
    made = Path(tempfile.mkdtemp(prefix="dovetail-"))
    logger.warning("compiled kernels are kept for this process only: %s", why)
    return made


@cache
def versions() -> str:
    """What, beside its text, decides what a kernel does."""
    from importlib import metadata

    vecmath = hashlib.sha256(Path(__file__).with_name("vecmath.py").read_bytes()).hexdigest()[:16]
    return f"vecmath {vecmath}, numba {metadata.version('numba')}"


@cache
def source_of(loops: Loops) -> NumbaSource:
    """The source of a kernel; the same for equal loops."""
    return numba_source(loops, versions())


def path_of(text: str) -> Path:
    """Where a kernel's source lies."""
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    return folder() / key[:2] / f"k{key}.py"


def _put(path: Path, text: str) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "w", encoding="utf-8") as f:
        f.write(text)
    # Numba compares a source's time with that of the machine code: the same for everybody who writes this file.
    os.utime(name, (0, 0))
    Path(name).replace(path)


# --- compiling -------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_functions: dict[str, Function] = {}  # source -> compiled
_compiling = threading.Lock()


def compiled(text: str) -> Function | None:
    """The function of a source that has been compiled, or None."""
    return _functions.get(text)


def compile_now(text: str) -> Function:
    """Compile a source, or load what another process compiled, and wait for it."""
    function = _functions.get(text)
    if function is not None:
        return function
    with _compiling:
        function = _functions.get(text)
        if function is None:
            path = path_of(text)
            _put(path, text)
            function = _functions[text] = _module(path).kernel
    return function


def _module(path: Path) -> ModuleType:
    name = f"_dovetail_kernels.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Numba looks it up by name
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python's own cache would gain nothing: the module is read once
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


class _Compiler:
    """The background thread: made at the first request, stopped in good order when Python ends."""

    def __init__(self) -> None:
        self.todo: queue.SimpleQueue[tuple[str, Callable[[Function], None]] | None] = queue.SimpleQueue()
        self.stopped = False
        self.thread = threading.Thread(target=self.work, name="dovetail-compiler", daemon=True)
        self.thread.start()
        atexit.register(self.stop)

    def work(self) -> None:
        while (item := self.todo.get()) is not None:
            if self.stopped:
                continue
            text, done = item
            try:
                done(compile_now(text))
            except Exception:  # a kernel that does not compile stays with NumPy; that must not end the thread
                logger.exception("a kernel could not be compiled and stays with NumPy:\n%s", text)

    def stop(self) -> None:
        """Finish the kernel at hand, leave the others: LLVM must not be cut off in the middle."""
        self.stopped = True
        self.todo.put(None)
        self.thread.join()


@cache
def _compiler() -> _Compiler:
    return _Compiler()


def compile_soon(text: str, done: Callable[[Function], None]) -> None:
    """Compile a source in the background and hand its function to `done`, in that thread."""
    function = _functions.get(text)
    if function is not None:
        done(function)
        return
    with _lock:
        compiler = _compiler()
    compiler.todo.put((text, done))
