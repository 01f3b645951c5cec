"""Compiled CPU kernels, kept on disk and shared by all processes of a user.

A kernel's source text is its identity: it is in a file named after the hash of the text, of the source of the functions that it
calls, and of the version of Numba. Numba keeps the machine code next to it, per kind of processor. `artifact_cache` has the folder,
and writes files atomically, so processes can make the same kernel at once.

Numba and LLVM are loaded when the first kernel is compiled. Compiling takes 0.1 to 1 s per kernel, once per machine, in a
background thread unless a caller waits for it (`compile_now`).
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import logging
import queue
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import artifact_cache

logger = logging.getLogger(__name__)

Function = Callable[..., Any]


def folder() -> Path:
    """Where CPU kernels are kept: see `artifact_cache`."""
    return artifact_cache.folder("numba")


def path_of(text: str) -> Path:
    """The path of a kernel's source file."""
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    return folder() / key[:2] / f"k{key}.py"


def is_kept(text: str) -> bool:
    """Whether a source has been compiled before, by this process or another one: then having it takes a few milliseconds."""
    if text in _functions:
        return True
    path = path_of(text)
    return path.exists() and any((path.parent / "__pycache__").glob(f"{path.stem}.*.nbi"))


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
            artifact_cache.put(path, text.encode())
            function = _functions[text] = _module(path).kernel
    return function


def _module(path: Path) -> ModuleType:
    name = f"_dovetail_kernels.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Numba looks it up by name
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python's own cache has no use: the module is read once
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


class _Compiler:
    """The background thread: made at the first request, stopped in good order when Python ends."""

    def __init__(self) -> None:
        self.todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.stopped = False
        self.thread = threading.Thread(target=self.work, name="dovetail-compiler", daemon=True)
        self.thread.start()
        atexit.register(self.stop)

    def work(self) -> None:
        while (item := self.todo.get()) is not None:
            if self.stopped:
                continue
            try:
                item()
            except Exception:  # the next items must run all the same
                logger.exception("what was to be made in the background could not be; all goes on without it")

    def stop(self) -> None:
        """Finish the current kernel and drop the others: LLVM must not be interrupted."""
        self.stopped = True
        self.todo.put(None)
        self.thread.join()


@cache
def _compiler() -> _Compiler:
    return _Compiler()


def in_background(work: Callable[[], None]) -> None:
    """Have something done by the thread that compiles, when all that it was given before is done."""
    with _lock:
        compiler = _compiler()
    compiler.todo.put(work)


def compile_soon(text: str, done: Callable[[Function], None]) -> None:
    """Compile a source in the background and hand its function to `done`, in that thread."""
    function = _functions.get(text)
    if function is not None:
        done(function)
        return

    def work() -> None:
        try:
            done(compile_now(text))
        except Exception:
            logger.exception("a kernel could not be compiled and stays with NumPy:\n%s", text)

    in_background(work)
