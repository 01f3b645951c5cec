"""Sums that several processes add to: the state of an accumulator where others reach it.

It is one value of bytes, opened as a variable's is (`shared_storage.py`): two places, of which one has it, under a lock that ends with its
holder.

    gradients since the last take | the accumulator's step | its task's bell: two words | unused, up to 64 bytes | the sum

Whoever adds a gradient writes all of it anew, into the other place, and one store makes that the value. So a process that is killed
has added its gradient or has not. So does who takes the sum; who sets the step alone stores that word.

Who waits for gradients does so in the accumulator's own task. It tells how many it waits for, outside of the value, before it looks
how many there are; others look at that when they have added and let go of the lock, and ring the bell where there are enough. So
either the one or the other sees it. A process may be killed before it has rung: the task looks again from time to time.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from ..core.shape import element_count
from .shared_storage import OpenedSum

Array = np.ndarray[Any, Any]

HEAD: Final = 64  # bytes before the sum
_COUNT, _STEP, _BELL = range(3)
_PLACES: Final = 2
_LISTED: Final = 2  # references to an array that only a list, and the call that asks, hold


def bytes_of(dims: tuple[int | None, ...] | None, dtype: np.dtype[Any]) -> int | None:
    """How many bytes the state takes; None: its size is not known, or nothing is summed."""
    count = element_count(dims)
    return HEAD + count * dtype.itemsize if count else None


def state_of(total: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], *words: int) -> Array:
    """The bytes of a state. `words`: gradients, step, and the two of the bell."""
    found = np.zeros(HEAD + int(np.prod(shape)) * dtype.itemsize, np.uint8)
    found[: 8 * len(words)].view(np.int64)[:] = words
    if total is not None:
        found[HEAD:].view(dtype).reshape(shape)[...] = total
    return found


class SharedSum:
    """The state of an accumulator that several processes add to. Entered by whoever adds or takes, one at a time.

    Args:
        opened: where it is. shape, dtype: of the sum.
    """

    def __init__(self, opened: OpenedSum, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.opened = opened
        self._shape, self._dtype = shape, dtype
        self._seen: dict[int, tuple[Array, memoryview, Array]] = {}  # what is in each place
        self._result: list[Array] = []  # what was taken last

    def __enter__(self) -> SharedSum:
        self.opened.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.release()

    def _in(self, place: Array) -> tuple[Array, memoryview, Array]:
        """A place, its words, and its sum."""
        found = self._seen.get(id(place))
        if found is None or found[0] is not place:
            if len(self._seen) >= _PLACES:
                self._seen.clear()
            words = self._words(place)
            found = self._seen[id(place)] = place, words, place[HEAD:].view(self._dtype).reshape(self._shape)
        return found

    # --- for who has entered it ------------------------------------------------------------------------------------

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
        """Add a gradient of the sum's shape: how many there are now; 0: it was stale, and is dropped."""
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
        """The sum or mean of what there is; and begin anew, with the next step."""
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
        """An array for what is taken: that of the last time, if nobody holds it."""
        held = self._result
        if not held or sys.getrefcount(held[0]) > _LISTED:
            held[:] = [np.empty(self._shape, self._dtype)]
        held[0].flags.writeable = True
        return held[0]

    # --- for everybody ---------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Whether somebody may wait in its task for no more gradients than there are: to be asked without having entered it."""
        wanted = self.opened.wanted
        if not wanted:
            return False
        now = self.opened.glance()
        return now is not None and self._words(now)[_COUNT] >= wanted

    def ring(self) -> None:
        """Wake its task."""
        now = self.opened.glance()
        if now is not None:
            words = self._words(now)
            self.opened.ring((words[_BELL], words[_BELL + 1]))

    @staticmethod
    def _words(place: Array) -> memoryview:
        return place.data[:HEAD].cast("q")

    def close(self) -> tuple[int, int, Array | None]:
        """Let no other process reach it any more: gradients, step and sum. `opened.closed` is to be called then."""
        value = self.opened.close()
        _, words, total = self._in(value)
        count, step = words[_COUNT], words[_STEP]
        self._seen.clear()
        return count, step, np.array(total) if count else None


__all__ = ["HEAD", "SharedSum", "bytes_of", "state_of"]
