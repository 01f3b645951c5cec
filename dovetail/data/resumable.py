"""Walks that go on after an error: it belongs to one element, as in TensorFlow. A generator ends with its first error.

`map`, `filter`, `enumerate` and `zip` go on, too; `itertools.islice` and `chain.from_iterable` do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator as Walk
from operator import call, itemgetter
from typing import Generic, TypeVar

from ..graph.resources.cancellation import is_cancelled

T = TypeVar("T")


class Steps(Generic[T]):
    """A walk by a function that gives the next element, or raises StopIteration."""

    def __init__(self, step: Callable[[], T]) -> None:
        self._step: Callable[[], T] | None = step

    def __iter__(self) -> Steps[T]:
        return self

    def __next__(self) -> T:
        if self._step is None:
            raise StopIteration
        return self._step()

    def close(self) -> None:
        """End the walk, and release the walks that it takes elements from."""
        self._step = None


def after(walk: Walk[T], skip: int) -> Walk[T]:
    """A walk without its first elements. One that fails counts, too: its error was raised when it was taken the first time."""
    if skip <= 0:
        return walk
    left = skip

    def step() -> T:
        nonlocal left
        while left:
            left -= 1
            try:
                next(walk)
            except StopIteration:
                raise
            except Exception:
                if is_cancelled():
                    raise
        return next(walk)

    return Steps(step)


def first(walk: Walk[T], count: int) -> Walk[T]:
    """The first elements of a walk. One that fails does not count."""
    left = count

    def step() -> T:
        nonlocal left
        if left <= 0:
            raise StopIteration
        element = next(walk)
        left -= 1
        return element

    return Steps(step)


def flattened(walks: Walk[Walk[T]]) -> Walk[T]:
    """The elements of walks, one walk after the other."""
    current: Walk[T] = iter(())

    def step() -> T:
        nonlocal current
        while True:
            try:
                return next(current)
            except StopIteration:
                current = next(walks)

    return Steps(step)


def then(walk: Walk[T], rest: Callable[[], Walk[T]]) -> Walk[T]:
    """A walk, and after its end another one, which is made then."""
    return flattened(map(call, (lambda: walk, rest)))


def filtered(walk: Walk[T], keep: Callable[[int, T], bool]) -> Walk[T]:
    """The elements that a function of their number and themselves keeps. Elements that fail have no number."""
    return map(itemgetter(1), filter(lambda pair: keep(*pair), enumerate(walk)))


__all__ = ["Steps", "after", "filtered", "first", "flattened", "then"]
