"""Values that a data set receives when an iterator starts.

A data set of arrays has all its values when the program describes it. A data set of tensors (placeholders, or tensors that its functions
capture) receives their values each time an iterator starts. The context of the iteration holds them, so two iterators of one data set may
use different values at the same time.
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
from ..graph.core.source_location import at_caller
from ..graph.ops.random.random_common import get_seed
from ..graph.resources.resource_manager import Resources
from .spec import Array, Component, as_array, component_of

Seeds: TypeAlias = tuple[int, ...]


class RuntimeInputs:
    """Tensors whose values arrive when an iterator starts. Without tensors: a key for values that another iterator passes in.

    Attributes:
        tensors: graph tensors; empty in a process that received the description.
        count: number of values.
        name: name of the first tensor, for error messages.
    """

    __slots__ = ("count", "name", "tensors")

    def __init__(self, tensors: Sequence[Tensor] = (), name: str = "", count: int | None = None) -> None:
        self.tensors = tuple(tensors)
        self.count = len(self.tensors) if count is None else count
        self.name = name or (self.tensors[0].name if tensors else "")


@dataclass(frozen=True, slots=True)
class IterationContext:
    """What one iteration over a data set needs to know.

    Attributes:
        seeds: the seed of the start, then the number of the round or of the input at each nesting level.
        values: the runtime values.
        task: the resources of the task, which hold the state of functions.
        sloppy: whether parallel calls may return elements in any order.
        sent: whether another process sent the data set.
    """

    seeds: Seeds
    values: Mapping[RuntimeInputs, Sequence[Any]] = field(default_factory=dict)
    task: Resources = field(default_factory=Resources)
    sloppy: bool = False
    sent: bool = False

    def child(self, number: int) -> IterationContext:
        """Returns the context of a part of the iteration: a round, or one of several data sets."""
        return replace(self, seeds=(*self.seeds, number))

    def with_values(self, values: Mapping[RuntimeInputs, Sequence[Any]]) -> IterationContext:
        """Returns the context with more values."""
        return replace(self, values={**self.values, **values})

    def values_of(self, given: RuntimeInputs) -> Sequence[Any]:
        """Returns the values of runtime inputs. FailedPreconditionError: there are none, as after a checkpoint was restored."""
        found = self.values.get(given)
        if found is None:
            raise FailedPreconditionError.of(
                f"The data set needs the value of {given.name}. Before the first element, run iterator.initializer and feed what it "
                "needs. A checkpoint does not hold this value, so after a restore the iterator starts from the beginning",
            )
        return found

    def check_file(self, name: str) -> None:
        """Raises PermissionDeniedError if another process sent the data set and may not use this file here."""
        folders = self.task.data_folders
        if not self.sent or folders is None:
            return
        path = Path(name).resolve()
        if not any(path.is_relative_to(Path(folder).resolve()) for folder in folders):
            raise PermissionDeniedError.of(
                f"{name}: this server has no keys, so data sets of other processes may use only files in the folders of "
                f"DOVETAIL_DATA_FILES ({':'.join(folders) or 'none'}). Start it with that setting, or with keys",
            )

    def int_of(self, number: IntInput) -> int:
        """Returns an integer that may be a runtime input."""
        return int(self.values_of(number)[0]) if isinstance(number, RuntimeInputs) else number

    def random(self, seed: IntInput | None, rounds: bool = True) -> np.random.Generator:
        """Returns the random generator of a kind of data set. Equal seeds give equal numbers."""
        started, *others = self.seeds
        key = [started if seed is None else self.int_of(seed), *(others if rounds else ())]
        return np.random.default_rng([int(k) & (2**64 - 1) for k in key])

    def call_number(self, index: int) -> int:
        """Returns the number of a function's call on the element at `index`. Each round has other numbers."""
        rounds = self.seeds[1:]
        if not any(rounds):
            return index
        mixed = hashlib.blake2b(repr((rounds, index)).encode(), digest_size=5).digest()
        return int.from_bytes(mixed, "little")


IntInput: TypeAlias = "int | RuntimeInputs"


def int_input(value: Any) -> IntInput:
    """Returns an integer argument, which may be a tensor."""
    found = static_value_or_tensor(value)
    if isinstance(found, (str, bytes)):
        raise TypeError(f"Expected a whole number, got the text {found!r}: use int(...){at_caller()}")
    return RuntimeInputs([found]) if isinstance(found, Tensor) else int(found)


def static_int(number: IntInput) -> int | None:
    """Returns the integer, or None if it is a runtime input."""
    return None if isinstance(number, RuntimeInputs) else number


def seed_of(seed: Any) -> IntInput | None:
    """Returns the seed of a random kind of data set: `seed`, or one derived from the graph's seed; None: the seed of each start."""
    if seed is not None:
        return int_input(seed)
    first, second = get_seed(None)
    if first is None or second is None:
        return None
    graph = get_default_graph()
    graph.functions += 1  # so that the next one has another seed
    return (first << 31 | second) + (graph.functions << 62) & (2**63 - 1)


class Source:
    """Values of which some may be tensors. Their types and shapes are known now, their arrays when an iterator starts.

    Attributes:
        arrays: the arrays, with None for each tensor.
        components: the type and shape of each value.
        given: the tensors; None if there are none.
    """

    __slots__ = ("arrays", "components", "given")

    def __init__(self, values: Sequence[Any]) -> None:
        found = [static_value_or_tensor(v) for v in values]
        late = [v for v in found if isinstance(v, Tensor)]
        self.arrays: tuple[Array | None, ...] = tuple([None if isinstance(v, Tensor) else as_array(v) for v in found])
        self.given = RuntimeInputs(late) if late else None
        self.components = [
            Component(v.dtype.base, v.dims) if isinstance(v, Tensor) else component_of(as_array(v)) for v in found
        ]


def source_arrays(
    context: IterationContext, arrays: Sequence[Array | None], given: RuntimeInputs | None
) -> list[Array]:
    """Returns the arrays of a `Source` in an iteration."""
    late = iter(context.values_of(given) if given is not None else ())
    return [next(late) if a is None else a for a in arrays]


def static_value_or_tensor(value: Any) -> Any:
    """Returns the static value of an argument, or the tensor if only a step can compute it."""
    if isinstance(value, list) and any(isinstance(v, Tensor) for v in value):
        value = convert(value)
    if not isinstance(value, Tensor) and not hasattr(value, "_as_tensor"):
        return value
    tensor = convert(value)
    found = static_value(tensor)
    return tensor if found is None else np.asarray(found)
