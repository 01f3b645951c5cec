"""Compiled CPU kernels, kept on disk and shared by all processes of a user.

A kernel's source text is its identity: it is in a file named after the hash of the text, of the source of the functions that it
calls, and of the version of Numba. Numba keeps the machine code next to it, per kind of processor. `artifact_cache` has the folder,
and writes files atomically; of processes that need the same kernel at once, one compiles it.

Numba and LLVM are loaded when the first kernel is compiled. Compiling takes 0.1 to 1 s per kernel, once per machine, in a
background thread unless a caller waits for it (`compile_now`).

Tiered compilation (`TieredKernel`): until the references have taken about as long as that, they do a kernel's work; then the background
thread compiles it and swaps it in. So a first step never waits, and what runs seldom or is small is never compiled. A kernel that is
compiled and kept on disk is loaded much sooner.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .. import artifact_cache

logger = logging.getLogger(__name__)

COMPILE_AFTER_S = 0.1  # time on NumPy after which a kernel is worth compiling; a small one compiles in about as much
LOAD_AFTER_S = 0.01  # the same for one that is kept on disk: it loads in a few milliseconds

Function = Callable[..., Any]


def folder() -> Path:
    """Where CPU kernels are kept: see `artifact_cache`."""
    return artifact_cache.folder("numba")


def path_of(text: str) -> Path:
    """The path of a kernel's source file."""
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    return folder() / key[:2] / f"k{key}.py"


def is_kept(text: str) -> bool:
    """Whether a source has been compiled before, by this or another process. Then it loads in a few milliseconds."""
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
            _keep_stdout()
            with artifact_cache.alone(path, is_kept(text)):
                module = artifact_cache.load_module(f"_dovetail_kernels.{path.stem}", path, text)
            function = _functions[text] = module.kernel
    return function


@cache
def _keep_stdout() -> None:
    """Turn off the colours of Numba's errors.

    While it compiles, Numba makes many errors and drops them. With colorama, each replaces `sys.stdout` for a moment, and then puts the
    old one back: what the program prints meanwhile in a block that redirects its output would be lost.
    """
    from numba.core import errors  # heavy

    marks: Any = errors.termcolor()
    marks._markup = lambda text, *style: text


class _Compiler:
    """The background thread that compiles. It starts at the first request, and stops cleanly when Python ends."""

    def __init__(self) -> None:
        self.todo: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
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
                logger.exception("work in the background failed; the program goes on without its result")

    def stop(self) -> None:
        """Finish the current kernel and drop the others: LLVM must not be interrupted."""
        self.stopped = True
        self.todo.put(None)
        self.thread.join()


@cache
def _compiler() -> _Compiler:
    return _Compiler()


def in_background(work: Callable[[], Any]) -> None:
    """Queue work for the thread that compiles."""
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


class TieredKernel:
    """A kernel that runs its reference until it is compiled.

    Args:
        text: the kernel's source text. reference: does the work until it is compiled.

    Attributes:
        function: the compiled function, or None while NumPy does the work.
        text: the source text.
        spent: seconds of the reference so far.
        is_awaited: whether a caller waits for it to be compiled.
    """

    def __init__(self, text: str, reference: Callable[..., Any]) -> None:
        self.function: Function | None = None
        self.text = text
        self.is_awaited = False
        self._reference = reference
        self.spent = 0.0
        self._asked = False
        self._limit = min(LOAD_AFTER_S, COMPILE_AFTER_S)  # seconds on NumPy before the next decision

    @property
    def sources(self) -> tuple[str, ...]:
        """The source texts of the functions that it calls."""
        return (self.text,)

    def compile(self) -> None:
        """Compile it now."""
        self.is_awaited = True
        self._swap_in(compile_now(self.text))

    def _on_numpy(self, inputs: Sequence[Any]) -> Any:
        began = time.perf_counter()
        result = self._reference(*inputs)
        self.cost(time.perf_counter() - began)
        return result

    def cost(self, seconds: float) -> None:
        """Add time that was spent because it is not compiled. After enough of it, its compilation is requested in the background, once."""
        self.spent += seconds
        if self.spent > self._limit and not self._asked:
            if self._limit < COMPILE_AFTER_S and not is_kept(self.text):
                self._limit = COMPILE_AFTER_S
            else:
                self._asked = True
                compile_soon(self.text, self._swap_in)

    def _swap_in(self, function: Function) -> None:
        self.function = function
