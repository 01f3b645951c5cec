"""Buffer donation: whether a kernel may write its result into the memory of one of its inputs.

The compiler finds inputs that a program does not need after a kernel (`fusion/inplace.py`). Others may still hold such an array when the
kernel runs: a user who fetched it, a message on its way, a variable, a loop, a view. Reference counts tell.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

from ...graph.resources.buffer_pool import LARGE, buffers


def is_held_once(inputs: tuple[Any, ...], i: int) -> bool:
    """Whether nobody holds an argument of a kernel, or its memory, but the program that calls the kernel.

    To be called with the tuple of all arguments, by the kernel itself: references are counted.
    """
    x = inputs[i]
    references = sys.getrefcount(x)
    alone, piece_alone = _counts()
    if references != alone or type(x) is not np.ndarray or not x.flags.carray:
        return False
    return x.base is None or buffers.is_own(x.base) and sys.getrefcount(x.base) == piece_alone


class _Probe:
    """Stands for a kernel: counts references as `is_held_once` does."""

    def __call__(self, *inputs: Any) -> tuple[int, int]:
        return self.count(inputs, 0)

    def count(self, inputs: tuple[Any, ...], i: int) -> tuple[int, int]:
        x = inputs[i]
        references = sys.getrefcount(x)
        return references, sys.getrefcount(x.base)


@cache
def _counts() -> tuple[int, int]:
    """How many references there are to an array, and to the piece of memory that it lies in, which only a program holds.

    Counted once, in a call as `runtime.step` makes it: versions of Python differ in what holds a reference during a call.
    """
    kernel, which = _Probe(), (0,)
    slots: list[Any] = [buffers.empty((LARGE,), np.dtype(np.uint8))]
    return kernel(*[slots[i] for i in which])
