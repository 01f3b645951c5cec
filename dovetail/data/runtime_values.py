"""Values that a data set gets when it starts: what an iterator's initializer finds, or is fed.

A data set of arrays is complete when it is described. One of tensors (placeholders, or what functions of it capture) gets their values
each time an iterator starts. A walk carries them with it (`At`), so iterators of one data set may go through different values at the
same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..graph.core.build import convert
from ..graph.core.constant_value import static_value
from ..graph.core.default_graph import get_default_graph
from ..graph.core.errors import FailedPreconditionError, PermissionDeniedError
from ..graph.core.graph import Tensor
from ..graph.ops.random.random_common import get_seed
from ..graph.resources.resource_manager import Resources
from .spec import Array, Component, as_array, component_of

Seeds: TypeAlias = tuple[int, ...]


class Given:
    """Tensors whose values a start passes in. Without tensors: a name for a value that another walk passes in.

    Attributes:
        tensors: of the graph; none where the description was sent. count: how many. name: of the first one.
    """

    __slots__ = ("count", "name", "tensors")

    def __init__(self, tensors: Sequence[Tensor] = (), name: str = "", count: int | None = None) -> None:
        self.tensors = tuple(tensors)
        self.count = len(self.tensors) if count is None else count
        self.name = name or (self.tensors[0].name if tensors else "")


@dataclass(frozen=True, slots=True)
class At:
    """What a walk goes by.

    Attributes:
        seeds: that of the start, then the number of the round or of the part at each level where there are several.
        values: what the start has brought. task: where functions find their state.
        sloppy: whether parallel calls may give their elements in any order. sent: whether another process has sent the data set.
    """

    seeds: Seeds
    values: Mapping[Given, Sequence[Any]] = field(default_factory=dict)
    task: Resources = field(default_factory=Resources)
    sloppy: bool = False
    sent: bool = False

    def into(self, number: int) -> At:
        """The same for a part of the walk: a round, or one of several data sets."""
        return replace(self, seeds=(*self.seeds, number))

    def with_values(self, values: Mapping[Given, Sequence[Any]]) -> At:
        """The same with more values."""
        return replace(self, values={**self.values, **values})

    def of(self, given: Given) -> Sequence[Any]:
        """The values. FailedPreconditionError: the start has brought none, as after a checkpoint was restored."""
        found = self.values.get(given)
        if found is None:
            raise FailedPreconditionError.of(
                f"The data set is made from {given.name}: run iterator.initializer, and feed what it needs, before the first "
                "element; an iterator that a checkpoint has restored begins anew with that",
            )
        return found

    def check_file(self, name: str) -> None:
        """PermissionDeniedError: another process has sent the data set, and this one does not use such files for others."""
        folders = self.task.data_folders
        if not self.sent or folders is None:
            return
        path = Path(name).resolve()
        if not any(path.is_relative_to(Path(folder).resolve()) for folder in folders):
            raise PermissionDeniedError.of(
                f"{name}: this server has no keys, so it uses no files for data sets of other processes but in the folders of "
                f"DOVETAIL_DATA_FILES ({':'.join(folders) or 'none'}). Start it with that set, or with keys",
            )

    def number(self, number: Number) -> int:
        """A whole number that may come with the start."""
        return int(self.of(number)[0]) if isinstance(number, Given) else number

    def random(self, seed: Number | None, rounds: bool = True) -> np.random.Generator:
        """What a kind of data set draws from: the same numbers for the same seeds."""
        started, *others = self.seeds
        key = [started if seed is None else self.number(seed), *(others if rounds else ())]
        return np.random.default_rng([int(k) & (2**64 - 1) for k in key])

    def call_number(self, index: int) -> int:
        """The number of a function's call on the element of this index; each round has others."""
        rounds = self.seeds[1:]
        if not any(rounds):
            return index
        mixed = hashlib.blake2b(repr((rounds, index)).encode(), digest_size=5).digest()
        return int.from_bytes(mixed, "little")


Number: TypeAlias = "int | Given"


def whole_number(value: Any) -> Number:
    """A number that may be a tensor."""
    found = known(value)
    return Given([found]) if isinstance(found, Tensor) else int(found)


def as_known(number: Number) -> int | None:
    """The number, if it is known before the start."""
    return None if isinstance(number, Given) else number


def seed_of(seed: Any) -> Number | None:
    """The seed of a random kind of data set: its own, or one that follows from the graph's seed; None: that of each start."""
    if seed is not None:
        return whole_number(seed)
    first, second = get_seed(None)
    if first is None or second is None:
        return None
    graph = get_default_graph()
    graph.functions += 1  # the next one has another seed
    return (first << 31 | second) + (graph.functions << 62) & (2**63 - 1)


class Source:
    """Values of which some may be tensors: their types and shapes now, their arrays when they are walked.

    Attributes:
        arrays: the arrays, with None for each tensor. given: the tensors.
    """

    __slots__ = ("arrays", "components", "given")

    def __init__(self, values: Sequence[Any]) -> None:
        found = [known(v) for v in values]
        late = [v for v in found if isinstance(v, Tensor)]
        self.arrays: tuple[Array | None, ...] = tuple([None if isinstance(v, Tensor) else as_array(v) for v in found])
        self.given = Given(late) if late else None
        self.components = [
            Component(v.dtype.base, v.dims) if isinstance(v, Tensor) else component_of(as_array(v)) for v in found
        ]


def arrays_of(at: At, arrays: Sequence[Array | None], given: Given | None) -> list[Array]:
    """The arrays of a `Source` in a walk."""
    late = iter(at.of(given) if given is not None else ())
    return [next(late) if a is None else a for a in arrays]


def known(value: Any) -> Any:
    """The value, or the tensor whose value only a step gives."""
    if isinstance(value, list) and any(isinstance(v, Tensor) for v in value):
        value = convert(value)
    if not isinstance(value, Tensor) and not hasattr(value, "_as_tensor"):
        return value
    tensor = convert(value)
    found = static_value(tensor)
    return tensor if found is None else np.asarray(found)


__all__ = ["At", "Given", "Number", "Seeds", "Source", "arrays_of", "as_known", "known", "seed_of", "whole_number"]
