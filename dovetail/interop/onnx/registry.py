"""The table of importers: for each op of the ONNX standard, a function that builds a node of a model in the graph.

An importer receives a `Call`, which describes the model's node, and the input tensors. An omitted input is None. It returns the output
tensor or a sequence of them. An unused output may be None.

    @imports("Trilu")
    def trilu(call: Call, x: Tensor, k: Tensor | None = None) -> Tensor: ...

An op needs no importer if the standard defines it as a function of other ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from ...graph.core.build import constant
from ...graph.core.constant_value import static_value
from ...graph.core.dtypes import DType, int64
from ...graph.core.graph import Tensor
from ...graph.core.shape import Dims

Array: TypeAlias = np.ndarray[Any, Any]
Made: TypeAlias = Tensor | Sequence[Tensor | None]
Importer: TypeAlias = Callable[..., Made]

IMPORTERS: dict[str, Importer] = {}
STATIC: dict[str, frozenset[int]] = {}
"""Op -> the inputs that must be static when the graph is built. Weights that are used there become constants."""


class UnsupportedError(Exception):
    """A node cannot be imported or exported. The message is the reason."""


class Body(Protocol):
    """A subgraph of a node: a branch, or the body of a loop."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Builds the subgraph on these inputs."""

    def result_types(self, inputs: Sequence[tuple[DType, Dims]]) -> list[tuple[DType, Dims]]:
        """Returns the types and shapes of the outputs, for inputs of these types and shapes. The graph is unchanged."""


@dataclass(frozen=True, slots=True)
class Call:
    """A node of a model.

    Attributes:
        op: the op, such as `Conv`.
        name: the node's name in the model.
        opset: the model's version of the standard.
        attrs: the attributes as Python values. Tensors are arrays, and graphs are `Body`.
        inputs: the input tensors.
        wanted: for each output, whether it has a consumer.
    """

    op: str
    name: str
    opset: int
    attrs: Mapping[str, Any]
    inputs: Sequence[Tensor | None]
    wanted: Sequence[bool]

    def attr(self, name: str, default: Any = None) -> Any:
        """Returns an attribute, or the default if the node omits it."""
        return self.attrs.get(name, default)

    def is_used(self, index: int) -> bool:
        """Whether an output has a consumer."""
        return index < len(self.wanted) and self.wanted[index]

    def static(self, tensor: Tensor | None, what: str) -> Array | None:
        """Returns the value of an input that must be static; None if the node omits it. UnsupportedError: it is not static."""
        if tensor is None:
            return None
        value = static_value(tensor)
        if value is None:
            raise UnsupportedError(f"{what} is known only when the graph runs")
        return value

    def ints(self, name: str, tensor: Tensor | None = None) -> list[int] | None:
        """Returns integers that are an attribute in older models and an input in newer ones; None if the node omits both."""
        if tensor is None:
            given = self.attr(name)
            return None if given is None else [int(v) for v in given]
        value = self.static(tensor, name)
        return None if value is None else [int(v) for v in value.ravel()]

    def dims(self, tensor: Tensor, what: str = "the input") -> tuple[int | None, ...]:
        """Returns the sizes of a tensor whose rank must be known. UnsupportedError: it is unknown."""
        if tensor.dims is None:
            raise UnsupportedError(f"the rank of {what} is not known")
        return tensor.dims

    def choice(self, name: str, *allowed: Any) -> Any:
        """Returns an attribute that must have one of these values. The first one is the default."""
        value = self.attr(name, allowed[0])
        if value not in allowed:
            raise UnsupportedError(f"{name}={value!r} is not supported, only {', '.join(map(repr, allowed))}")
        return value


def imports(*ops: str, static: Sequence[int] = ()) -> Callable[[Importer], Importer]:
    """Registers a function as the importer of these ops. `static`: the inputs that must be static."""

    def register(function: Importer) -> Importer:
        for op in ops:
            IMPORTERS[op] = function
            STATIC[op] = frozenset(static)
        return function

    return register


def imports_as(function: Callable[..., Any], *ops: str) -> None:
    """Registers a function of the graph as the importer of an op with the same inputs."""
    imports(*ops)(lambda call, *inputs: function(*inputs))


def imports_by(**ops: Callable[..., Made]) -> None:
    """Registers importers as functions of the call and of the input tensors."""
    for op, make in ops.items():
        imports(op)(make)


def int64s(values: Any) -> Tensor:
    """Returns a constant of int64, the standard's type of sizes, axes and indices."""
    return constant(np.array(values, np.int64), int64)


def normalize_axis(axis: int, rank: int) -> int:
    """Returns an axis counted from the front. ValueError: there is no such axis."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank
