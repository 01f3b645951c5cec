"""The state of an accumulator to which several processes add.

The state is one byte array, which is shared like a variable's value (`shared_storage.py`). It is double-buffered and has a lock, which is
released if the process that holds it ends.

    gradients since the last take | the accumulator's step | unused, up to 64 bytes | the sum

A process that adds a gradient writes the whole state into the other buffer, and one store switches the buffers. So if it is killed, its
gradient has been added completely or not at all. A take works in the same way. Setting the step stores one word.

Only the accumulator's own task waits for gradients. It publishes the number that it waits for, outside the value, before it reads the
count. Other processes read that number after they have added a gradient and released the lock. If there are enough gradients, they wake
the task by a message. So no gradient is missed. A process may be killed before it wakes the task, so the task also polls.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Final

import numpy as np

from ..core.dtypes import Array
from ..core.reference_counts import ONLY_ITEM
from ..core.shape import element_count
from .shared_storage import SharedSumValue

HEAD: Final = 64  # bytes before the sum
_COUNT, _STEP = range(2)
_BUFFERS: Final = 2


def state_bytes(dims: tuple[int | None, ...] | None, dtype: np.dtype[Any]) -> int | None:
    """The size of the state in bytes. None if the shape is unknown or has no elements."""
    count = element_count(dims)
    return HEAD + count * dtype.itemsize if count else None


def encode_state(total: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], *words: int) -> Array:
    """The bytes of a state. `words` are the number of gradients and the step."""
    found = np.zeros(HEAD + int(np.prod(shape)) * dtype.itemsize, np.uint8)
    found[: 8 * len(words)].view(np.int64)[:] = words
    if total is not None:
        found[HEAD:].view(dtype).reshape(shape)[...] = total
    return found


class SharedAccumulator:
    """The state of an accumulator to which several processes add. As a context manager, it takes the lock.

    Args:
        opened: the shared value that holds the state.
        shape: shape of the sum.
        dtype: type of the sum.
    """

    def __init__(self, opened: SharedSumValue, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.opened = opened
        self._shape, self._dtype = shape, dtype
        self._views: list[tuple[Array, memoryview, Array]] = []  # the buffers, each with its words and its sum
        self._result: list[Array] = []  # the result of the last take

    def __enter__(self) -> SharedAccumulator:
        self.opened.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.release()

    def _views_of(self, buffer: Array) -> tuple[Array, memoryview, Array]:
        """A buffer, its words, and its sum."""
        for found in self._views:
            if found[0] is buffer:
                return found
        found = buffer, self._words(buffer), buffer[HEAD:].view(self._dtype).reshape(self._shape)
        self._views = [*self._views[1 - _BUFFERS :], found]
        return found

    # --- with the lock held ------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of gradients since the last take."""
        return self._views_of(self.opened.both()[0])[1][_COUNT]

    @property
    def step(self) -> int:
        """The accumulator's step."""
        return self._views_of(self.opened.both()[0])[1][_STEP]

    @step.setter
    def step(self, step: int) -> None:
        self._views_of(self.opened.both()[0])[1][_STEP] = step

    def add(self, gradient: Array, local_step: int) -> int:
        """Add a gradient of the sum's shape, and return the new count. Drops a stale gradient, and returns 0."""
        old, new = self.opened.both()
        _, words, total = self._views_of(old)
        if local_step < words[_STEP]:
            return 0
        _, new_words, new_total = self._views_of(new)
        count = words[_COUNT] + 1
        if count == 1:
            np.copyto(new_total, gradient)
        else:
            np.add(total, gradient, out=new_total)
        new_words[:] = words
        new_words[_COUNT] = count
        self.opened.end()
        return count

    def take(self, is_mean: bool) -> Array:
        """The sum or mean of all gradients since the last take. Resets the count and advances the step."""
        old, new = self.opened.both()
        _, words, total = self._views_of(old)
        _, new_words, _ = self._views_of(new)
        result = self._own()
        if is_mean:
            np.true_divide(total, np.asarray(words[_COUNT]).astype(self._dtype), out=result)
        else:
            np.copyto(result, total)
        result.flags.writeable = False
        new_words[:] = words
        new_words[_COUNT], new_words[_STEP] = 0, words[_STEP] + 1
        self.opened.end()
        return result

    def _own(self) -> Array:
        """An array for the result. That of the last take is reused if nothing else refers to it."""
        held = self._result
        if not held or getrefcount(held[0]) > ONLY_ITEM:
            held[:] = [np.empty(self._shape, self._dtype)]
        held[0].flags.writeable = True
        return held[0]

    # --- without the lock ---------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Whether there are enough gradients for the take for which the task waits."""
        wanted = self.opened.wanted
        if not wanted:
            return False
        now = self.opened.glance()
        return now is not None and self._words(now)[_COUNT] >= wanted

    def wake(self) -> None:
        """Wake the accumulator's task."""
        self.opened.wake()

    @staticmethod
    def _words(buffer: Array) -> memoryview:
        return buffer.data[:HEAD].cast("q")

    def close(self) -> tuple[int, int, Array | None]:
        """End the sharing, and return count, step and sum."""
        value = self.opened.close()
        _, words, total = self._views_of(value)
        count, step = words[_COUNT], words[_STEP]
        self._views.clear()
        return count, step, np.array(total) if count else None
