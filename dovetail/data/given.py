"""Tensors as the source of a data set: what an iterator's initializer is given is what it starts with.

A data set of arrays is complete when it is described. One of tensors, most often placeholders, gets their values each time the
initializer of an iterator runs: they are kept under the seed of that start, the first of the seeds with which its pipeline is walked,
so iterators of one data set may go through different values at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..graph.build import convert
from ..graph.errors import FailedPreconditionError
from ..graph.node import Tensor
from ..graph.static_value import static_value
from .spec import Array, Component, as_array, component_of

Seeds: TypeAlias = tuple[int, ...]


class Given:
    """Tensors, and their values for each start."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tuple(tensors)
        self._values: dict[int, Sequence[Array]] = {}

    def of(self, seeds: Seeds) -> Sequence[Array]:
        """The values with which this walk was started. FailedPreconditionError: there are none, as after a checkpoint was restored."""
        found = self._values.get(seeds[0])
        if found is None:
            raise FailedPreconditionError(
                None, None,
                f"The data set is made from {self.tensors[0].name}: run iterator.initializer, and feed what it needs, before the first "
                "element; an iterator that a checkpoint has restored begins anew with that",
            )  # fmt: skip
        return found

    def keep(self, seed: int, values: Sequence[Array]) -> None:
        """The values of a start."""
        self._values[seed] = values

    def forget(self, seed: int) -> None:
        """No walk of this start is needed any more."""
        self._values.pop(seed, None)


class Source:
    """Values of which some may be tensors: their types and shapes now, their arrays when they are walked."""

    def __init__(self, values: Sequence[Any]) -> None:
        known = [_known(v) for v in values]
        self._arrays: list[Array | None] = [None if isinstance(v, Tensor) else as_array(v) for v in known]
        late = [v for v in known if isinstance(v, Tensor)]
        self.given = (Given(late),) if late else ()
        self.components = [
            Component(v.dtype.base, v.dims) if isinstance(v, Tensor) else component_of(as_array(v)) for v in known
        ]

    def of(self, seeds: Seeds) -> list[Array]:
        """The arrays of a walk."""
        late = iter(self.given[0].of(seeds) if self.given else ())
        return [next(late) if a is None else a for a in self._arrays]


def whole_number(value: Any) -> tuple[Callable[[Seeds], int], int | None, tuple[Given, ...]]:
    """A number that may be a tensor: what gives it in a walk, the number if it is known, and whose values it needs."""
    found = _known(value)
    if not isinstance(found, Tensor):
        known = int(found)
        return lambda seeds: known, known, ()
    given = Given([found])
    return lambda seeds: int(given.of(seeds)[0]), None, (given,)


def _known(value: Any) -> Any:
    """The value, or the tensor whose value only a step will tell."""
    if not isinstance(value, Tensor) and not hasattr(value, "_as_tensor"):
        return value
    tensor = convert(value)
    found = static_value(tensor)
    return tensor if found is None else np.asarray(found)


__all__ = ["Given", "Source", "whole_number"]
