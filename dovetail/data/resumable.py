"""Iterators that continue after an error. As in TensorFlow, an error belongs to one element. A generator would end with it.

Python's `map`, `filter`, `enumerate` and `zip` also continue. `itertools.islice` and `chain.from_iterable` do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import call, itemgetter
from typing import Generic, TypeVar

from ..graph.resources.cancellation import is_cancelled

T = TypeVar("T")


class StepIterator(Generic[T]):
    """An iterator whose `__next__` is a function. The function returns the next element or raises StopIteration."""

    def __init__(self, step: Callable[[], T]) -> None:
        self._step: Callable[[], T] | None = step

    def __iter__(self) -> StepIterator[T]:
        return self

    def __next__(self) -> T:
        if self._step is None:
            raise StopIteration
        return self._step()

    def close(self) -> None:
        """End the iteration, and release the iterators that the function refers to."""
        self._step = None


def skip_elements(walk: Iterator[T], skip: int) -> Iterator[T]:
    """Skips the first elements. An element that fails counts: its error was raised when it was first taken."""
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

    return StepIterator(step)


def first(walk: Iterator[T], count: int) -> Iterator[T]:
    """Yields the first `count` elements. An element that fails does not count."""
    left = count

    def step() -> T:
        nonlocal left
        if left <= 0:
            raise StopIteration
        element = next(walk)
        left -= 1
        return element

    return StepIterator(step)


def flatten_iterators(walks: Iterator[Iterator[T]]) -> Iterator[T]:
    """Yields the elements of several iterators, one iterator after the other."""
    current: Iterator[T] = iter(())

    def step() -> T:
        nonlocal current
        while True:
            try:
                return next(current)
            except StopIteration:
                current = next(walks)

    return StepIterator(step)


def chain_lazily(walk: Iterator[T], rest: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Yields the elements of an iterator, then those of `rest()`, which is called at the end of the first one."""
    return flatten_iterators(map(call, (lambda: walk, rest)))


def filter_numbered(walk: Iterator[T], keep: Callable[[int, T], bool]) -> Iterator[T]:
    """Yields the elements for which `keep(number, element)` is true. Elements that fail have no number."""
    return map(itemgetter(1), filter(lambda pair: keep(*pair), enumerate(walk)))
