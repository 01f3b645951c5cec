"""The state of an accumulator to which several processes add.

The state is one byte array, shared like a variable's value (`shared_storage.py`): double-buffered, under a lock that is released when its
holder ends.

    gradients since the last take | the accumulator's step | unused, up to 64 bytes | the sum

A process that adds a gradient writes the whole state into the other buffer, and one store switches the buffers. So a process that
is killed has added its gradient or has not. A take works in the same way. Setting the step stores one word.

Only the accumulator's own task waits for gradients. It publishes the number that it waits for, outside of the value, before it reads the
count. Other processes read that number after they have added a gradient and released the lock, and wake the task by a message if there
are enough. So one of the two always notices. A process may be killed before that, so the task also polls from time to time.
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
_PLACES: Final = 2


def state_bytes(dims: tuple[int | None, ...] | None, dtype: np.dtype[Any]) -> int | None:
    """Size of the state. None: the shape is not known, or has no elements."""
    count = element_count(dims)
    return HEAD + count * dtype.itemsize if count else None


def encode_state(total: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], *words: int) -> Array:
    """The bytes of a state. `words`: gradients and step."""
    found = np.zeros(HEAD + int(np.prod(shape)) * dtype.itemsize, np.uint8)
    found[: 8 * len(words)].view(np.int64)[:] = words
    if total is not None:
        found[HEAD:].view(dtype).reshape(shape)[...] = total
    return found


class SharedAccumulator:
    """The state of an accumulator to which several processes add. A context manager that takes the lock.

    Args:
        opened: the shared value that holds the state.
        shape, dtype: shape and type of the sum.
    """

    def __init__(self, opened: SharedSumValue, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.opened = opened
        self._shape, self._dtype = shape, dtype
        self._seen: dict[int, tuple[Array, memoryview, Array]] = {}  # cached views of each buffer
        self._result: list[Array] = []  # the result of the last take

    def __enter__(self) -> SharedAccumulator:
        self.opened.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.release()

    def _in(self, place: Array) -> tuple[Array, memoryview, Array]:
        """A buffer, its words, and its sum."""
        found = self._seen.get(id(place))
        if found is None or found[0] is not place:
            if len(self._seen) >= _PLACES:
                self._seen.clear()
            words = self._words(place)
            found = self._seen[id(place)] = place, words, place[HEAD:].view(self._dtype).reshape(self._shape)
        return found

    # --- with the lock held ------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Gradients since the last take."""
        return self._in(self.opened.both()[0])[1][_COUNT]

    @property
    def step(self) -> int:
        """The accumulator's step."""
        return self._in(self.opened.both()[0])[1][_STEP]

    @step.setter
    def step(self, step: int) -> None:
        self._in(self.opened.both()[0])[1][_STEP] = step

    def add(self, gradient: Array, local_step: int) -> int:
        """Add a gradient of the sum's shape, and return the new count. 0: the gradient was stale and is dropped."""
        old, new = self.opened.both()
        _, words, total = self._in(old)
        if local_step < words[_STEP]:
            return 0
        _, new_words, new_total = self._in(new)
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
        _, words, total = self._in(old)
        _, new_words, _ = self._in(new)
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
        """An array for the result: that of the last take, if nothing refers to it."""
        held = self._result
        if not held or getrefcount(held[0]) > ONLY_ITEM:
            held[:] = [np.empty(self._shape, self._dtype)]
        held[0].flags.writeable = True
        return held[0]

    # --- without the lock ---------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Whether there are enough gradients for the take that its task waits for."""
        wanted = self.opened.wanted
        if not wanted:
            return False
        now = self.opened.glance()
        return now is not None and self._words(now)[_COUNT] >= wanted

    def wake(self) -> None:
        """Wake its task."""
        self.opened.wake()

    @staticmethod
    def _words(place: Array) -> memoryview:
        return place.data[:HEAD].cast("q")

    def close(self) -> tuple[int, int, Array | None]:
        """End the sharing, and return count, step and sum."""
        value = self.opened.close()
        _, words, total = self._in(value)
        count, step = words[_COUNT], words[_STEP]
        self._seen.clear()
        return count, step, np.array(total) if count else None
