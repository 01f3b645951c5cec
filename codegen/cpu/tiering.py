"""Tiered compilation: kernels start on NumPy and are compiled when they have cost enough.

Compiling takes 0.1 to 1 s. Until the references have taken about as long, they do a kernel's work; then the background thread
compiles it and swaps it in. So a first step never waits, and what runs seldom or is small is never compiled. A kernel that is
compiled and kept on disk is loaded much sooner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .jit import Function, compile_now, compile_soon, is_kept

COMPILE_AFTER_S = 0.1  # time on NumPy after which a kernel is worth compiling; a small one compiles in about as much
LOAD_AFTER_S = 0.01  # the same for one that is kept on disk: it loads in a few milliseconds


class TieredKernel:
    """A kernel that runs its reference until it is compiled.

    Args:
        text: the kernel's source text. reference: what does its work until it is compiled.

    Attributes:
        function: the compiled function, or None while NumPy does the work.
        text: the source text.
        spent: seconds that were spent because it is not compiled.
        is_awaited: whether a caller waits for what has to be compiled.
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
        """The source texts of all that it calls."""
        return (self.text,)

    def compile(self) -> None:
        """Compile it now."""
        self.is_awaited = True
        self.function = compile_now(self.text)

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
