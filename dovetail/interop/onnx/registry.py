"""How a node of an ONNX model becomes nodes of a graph: one function per op of the standard.

An importer gets a `Call`, which says what the model's node asks for, and the tensors that it takes; one that the node leaves
out is None. It gives the tensor that the node makes, or a sequence of them; one that is not made may be None.

    @imports("Trilu")
    def trilu(call: Call, x: Tensor, k: Tensor | None = None) -> Tensor: ...

An op without an importer is still understood where the standard defines it by others.
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
"""Inputs whose values an op must know when the graph is built: weights used there become constants."""


class UnsupportedError(Exception):
    """The importer does not support this node; the text says why."""


class Body(Protocol):
    """A graph inside a node: a branch, or what a loop repeats."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Build it."""

    def result_types(self, inputs: Sequence[tuple[DType, Dims]]) -> list[tuple[DType, Dims]]:
        """Types and shapes of its outputs for inputs of these types and shapes; the graph stays as it is."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a node of the model asks for.

    Attributes:
        op: its op, such as `Conv`. name: its name in the model. opset: the version of the standard that the model is written in.
        attrs: its attributes as Python values; tensors are arrays, graphs are `Body`.
        inputs: the tensors that it takes. wanted: for each output, whether it has a consumer.
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

    def wants(self, index: int) -> bool:
        """Whether an output has a consumer."""
        return index < len(self.wanted) and self.wanted[index]

    def known(self, tensor: Tensor | None, what: str) -> Array | None:
        """The value of an input that must be known when the graph is built; None where the node leaves it out.

        Raises:
            UnsupportedError: it is not known.
        """
        if tensor is None:
            return None
        value = static_value(tensor)
        if value is None:
            raise UnsupportedError(f"{what} is known only when the graph runs")
        return value

    def numbers(self, name: str, tensor: Tensor | None = None) -> list[int] | None:
        """Returns integers that older models give as an attribute and newer ones as an input; None if the node omits both."""
        if tensor is None:
            given = self.attr(name)
            return None if given is None else [int(v) for v in given]
        value = self.known(tensor, name)
        return None if value is None else [int(v) for v in value.ravel()]

    def dims(self, tensor: Tensor, what: str = "the input") -> tuple[int | None, ...]:
        """The sizes of a tensor whose rank must be known.

        Raises:
            UnsupportedError: it is not.
        """
        if tensor.dims is None:
            raise UnsupportedError(f"the rank of {what} is not known")
        return tensor.dims

    def only(self, name: str, *allowed: Any) -> Any:
        """Returns an attribute that must have one of these values; the first one is the default."""
        value = self.attr(name, allowed[0])
        if value not in allowed:
            raise UnsupportedError(f"{name}={value!r}; it can be {', '.join(map(repr, allowed))}")
        return value


def imports(*ops: str, static: Sequence[int] = ()) -> Callable[[Importer], Importer]:
    """Registers a function as the importer of these ops; `static` are the inputs whose values it must know."""

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


def positive(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        ValueError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank
