"""Lists like the repeated fields of TensorFlow's messages, to which programs add elements with `add`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_T = TypeVar("_T")


class Repeated(list[_T]):
    """A list that creates its elements.

    >>> jobs = Repeated(make=dict)
    >>> jobs.add(name="worker")["tasks"] = 2
    >>> jobs
    [{'name': 'worker', 'tasks': 2}]
    """

    def __init__(self, elements: Iterable[_T] = (), make: Callable[..., Any] = dict) -> None:
        super().__init__(elements)
        self._make = make

    def add(self, **fields: Any) -> _T:
        """A new element at the end."""
        made: _T = self._make(**fields)
        self.append(made)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Repeated, (list(self), self._make)

    def __deepcopy__(self, memo: dict[int, Any]) -> Repeated[_T]:
        return Repeated(copy.deepcopy(list(self), memo), self._make)
