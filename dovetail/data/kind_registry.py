"""Kinds of data sets: for each, how its elements are walked.

A data set is a description: a kind, parameters, and the data sets that it is made from. Parameters are what a message can carry
(`serialize.py`), or Python functions, which keep it in this process. So the same walk runs in the client and in a worker.

Every endless walk takes elements of a source or a cache without end, so these look whether the step that walks was cancelled
(`graph/resources/cancellation.py`).

A walk may begin at any position: it gives the elements after the first `skip` ones. Most kinds skip elements without making
them. Random choices depend only on the seeds of the walk.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator as Walk
from typing import Any, TypeAlias, TypeVar

from ..graph.resources.cancellation import check_cancelled, unless_cancelled
from .runtime_values import At, Given
from .spec import Element, Structured

LOOK_EVERY = 64  # elements of a quick source
QUICK = frozenset(["range", "tensor_slices"])
"""Sources whose elements do not fail, and that find any of them at once."""


class Described(Structured, ABC):
    """A data set as walks see it; `Dataset` is one.

    Attributes:
        _kind, _params, _inputs: the description. Its structure is None if it was sent. _size: number of elements; infinity: without end;
            None: not known. _given: the tensors whose values a start passes in. _memory: elements that a cache holds.
    """

    _kind: str
    _params: dict[str, Any]
    _inputs: tuple[Described, ...]
    _size: float | None
    _given: tuple[Given, ...]
    _memory: dict[int, list[Element]]
    _options: Any

    @abstractmethod
    def with_elements(self, elements: Given) -> Described:
        """A data set of such elements, which a walk gets under this name: what an element that is a data set becomes in a function."""

    def _walk(self, at: At, skip: int = 0) -> Walk[Element]:
        """Iterates over the elements after the first `skip` ones."""
        found = WALKS[self._kind](self, at, skip)
        if self._kind in QUICK:
            return quick(found)
        return found if self._inputs else map(unless_cancelled, found)


def quick(elements: Walk[Element]) -> Walk[Element]:
    """The elements of a walk that does not go on after an error; it ends if the step is cancelled."""
    return itertools.chain.from_iterable(_pieces(elements))


def _pieces(elements: Walk[Element]) -> Walk[Walk[Element]]:
    """Yields the elements in chunks, one after the other. It checks for cancellation of the step before each chunk."""
    for first in elements:
        check_cancelled()
        yield itertools.chain((first,), itertools.islice(elements, LOOK_EVERY - 1))


WalkOf: TypeAlias = Callable[[Described, At, int], Walk[Element]]
W = TypeVar("W", bound="Callable[..., Any]")

WALKS: dict[str, WalkOf] = {}
"""Name of a kind -> (data set, where, how many elements to leave out) -> its elements."""


def kind(name: str) -> Callable[[W], W]:
    """Registers the iterator function of a kind."""

    def register(walk: W) -> W:
        assert name not in WALKS, name
        WALKS[name] = walk
        return walk

    return register


__all__ = ["QUICK", "WALKS", "WalkOf", "kind", "quick"]
