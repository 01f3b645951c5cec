"""Buffer donation: whether a kernel may write its result into the memory of one of its inputs.

The compiler finds inputs that a program does not need after a kernel (`fusion/inplace.py`). When the kernel runs, such an array may
still have other references: a fetched result, a message in flight, a variable, a loop, a view. Reference counts show this.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

from ...graph.resources.buffer_pool import LARGE, buffers


def is_held_once(inputs: tuple[Any, ...], i: int) -> bool:
    """Whether only the calling program holds references to a kernel's argument and its memory.

    The kernel itself must call this, with the tuple of all arguments, because it counts references.
    """
    x = inputs[i]
    references = sys.getrefcount(x)
    alone, piece_alone = _counts()
    if references != alone or type(x) is not np.ndarray or not x.flags.carray:
        return False
    return x.base is None or buffers.is_own(x.base) and sys.getrefcount(x.base) == piece_alone


class _Probe:
    """A stand-in for a kernel that counts references as `is_held_once` does."""

    def __call__(self, *inputs: Any) -> tuple[int, int]:
        return self.count(inputs, 0)

    def count(self, inputs: tuple[Any, ...], i: int) -> tuple[int, int]:
        x = inputs[i]
        references = sys.getrefcount(x)
        return references, sys.getrefcount(x.base)


@cache
def _counts() -> tuple[int, int]:
    """The reference counts of an array, and of its memory, that only a program holds.

    Measured once, in a call like that of `runtime.step`: Python versions differ in the references that a call holds.
    """
    kernel, which = _Probe(), (0,)
    slots: list[Any] = [buffers.empty((LARGE,), np.dtype(np.uint8))]
    return kernel(*[slots[i] for i in which])
