"""Where the values of large variables lie: in this process's own memory, or where a runtime lets other processes read them.

A server's variables are read by other processes. If a value lies where those can read it, nothing has to be copied for them
(`runtime/shared_memory.py`). This layer knows no processes: a runtime says where there is such memory (`use`), and `state.py`
asks for it, and whether what lies there may be changed now.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class Memory(Protocol):
    """Memory that others may read."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """An array of undefined content, which refers to a `base` of its own; None: there is no room, or it is small."""

    def may_change(self, base: Any) -> bool:
        """Whether `base` is that of an array which this has made, and nobody else reads it now."""


_used: list[Memory] = []


def use(memory: Memory) -> None:
    """Let the values of variables lie in this memory from now on."""
    _used[:] = [memory]


def kept_copy(value: Array) -> Array:
    """A contiguous copy for a variable to keep, at the best place that there is."""
    if _used and value.dtype.kind != "O":
        found = _used[0].empty(value.shape, value.dtype)
        if found is not None:
            np.copyto(found, value)
            return found
    return np.array(value, order="C")


def may_change(value: Array) -> bool:
    """Whether an array that nobody else refers to may be written into: its memory is its own, and no other process reads it."""
    return value.base is None or any(memory.may_change(value.base) for memory in _used)
