"""The registry of kinds of data sets. Each kind has a function that iterates over its elements.

A data set is a description: a kind, parameters, and input data sets. `serialize.py` writes its parameters into a message, except Python
functions, which keep the data set in this process. So the same function iterates in the client and in a worker.

An iteration may begin at any position: it yields the elements after the first `skip` ones. Most kinds skip elements without making them.
Random choices depend only on the seeds of the iteration.

Sources and caches check whether the step was cancelled (`graph/resources/cancellation.py`). Every endless iteration takes elements from
one of these, so it ends when its step is cancelled.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from ..graph.resources.cancellation import check_cancelled, unless_cancelled
from .runtime_values import IterationContext, RuntimeInputs
from .spec import Element, Structured

# Elements of a fast source between two checks for cancellation.
CANCELLATION_INTERVAL = 64
RANDOM_ACCESS_KINDS = frozenset(["range", "tensor_slices"])
"""Sources that reach any element in constant time, and whose elements do not fail."""


class DatasetBase(Structured, ABC):
    """The description of a data set. `Dataset` adds the public methods.

    Attributes:
        _kind: name of the kind.
        _params: its parameters.
        _inputs: the input data sets.
        _size: number of elements; infinity: endless; None: unknown.
        _runtime_inputs: tensors whose values arrive when an iterator starts.
        _memory: elements that a cache holds, by the seed of the start.
        _structure: None in a process that received the description.
    """

    _kind: str
    _params: dict[str, Any]
    _inputs: tuple[DatasetBase, ...]
    _size: float | None
    _runtime_inputs: tuple[RuntimeInputs, ...]
    _memory: dict[int, list[Element]]
    _options: Any

    @abstractmethod
    def with_elements(self, elements: RuntimeInputs) -> DatasetBase:
        """Returns a data set whose elements are passed in at run time under the key `elements`.

        In a function, it stands for an element that is a data set.
        """

    def _iterate(self, context: IterationContext, skip: int = 0) -> Iterator[Element]:
        """Iterates over the elements after the first `skip` ones."""
        found = ELEMENT_ITERATORS[self._kind](self, context, skip)
        if self._kind in RANDOM_ACCESS_KINDS:
            return stop_when_cancelled(found)
        return found if self._inputs else map(unless_cancelled, found)


def stop_when_cancelled(elements: Iterator[Element]) -> Iterator[Element]:
    """Yields the elements of an iterator, and stops if the step is cancelled. It does not continue after an error."""
    return itertools.chain.from_iterable(_chunks(elements))


def _chunks(elements: Iterator[Element]) -> Iterator[Iterator[Element]]:
    """Yields the elements in chunks, and checks for cancellation of the step before each chunk."""
    for first in elements:
        check_cancelled()
        yield itertools.chain((first,), itertools.islice(elements, CANCELLATION_INTERVAL - 1))


MakeIterator: TypeAlias = Callable[[DatasetBase, IterationContext, int], Iterator[Element]]
F = TypeVar("F", bound="Callable[..., Any]")

ELEMENT_ITERATORS: dict[str, MakeIterator] = {}
"""Name of a kind -> a function (data set, context, number of elements to skip) -> iterator over its elements."""


def kind(name: str) -> Callable[[F], F]:
    """Registers the iterator function of a kind."""

    def register(walk: F) -> F:
        assert name not in ELEMENT_ITERATORS, name
        ELEMENT_ITERATORS[name] = walk
        return walk

    return register
