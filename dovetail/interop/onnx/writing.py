"""The table of exporters: for each op of the graph, a function that writes a node as nodes of an ONNX model.

An exporter receives a `Writer` and a node, emits nodes of the standard, and returns the names of the node's outputs in the model.

    @exports("Square")
    def square(w: Writer, node: Node) -> Names:
        return w.emit("Mul", w.input(node, 0), w.input(node, 0))

The values of constants and variables are known when the model is written. They are transformed then: for example, a filter is transposed
once, and not by a node of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.constant_value import static_value
from ...graph.core.dtypes import DType, int64
from ...graph.core.graph import Node, Tensor
from .messages import element_number, onnx
from .registry import Array, UnsupportedError

Names: TypeAlias = str | Sequence[str]
Exporter: TypeAlias = Callable[["Writer", Node], Names]

EXPORTERS: dict[str, Exporter] = {}


def exports(*ops: str) -> Callable[[Exporter], Exporter]:
    """Registers a function as the exporter of these ops."""

    def register(function: Exporter) -> Exporter:
        for op in ops:
            EXPORTERS[op] = function
        return function

    return register


def exports_as(**ops: str) -> None:
    """Registers ops of the graph that have a counterpart in the standard with the same inputs."""
    for mine, theirs in ops.items():
        exports(mine)(_same(theirs))


def exports_by(**ops: Exporter) -> None:
    """Registers exporters as functions of the writer and the node."""
    for op, function in ops.items():
        exports(op)(function)


def exports_composed(**ops: Callable[..., Names]) -> None:
    """Registers exporters as functions of the writer, the node, and the names of all its inputs."""
    for op, function in ops.items():
        exports(op)(_composed(function))


def _composed(function: Callable[..., Names]) -> Exporter:
    @wraps(function)
    def exporter(w: Writer, node: Node) -> Names:
        return function(w, node, *(w.name(t) for t in node.inputs))

    return exporter


def _same(op: str) -> Exporter:
    return lambda w, node: w.emit(op, *(w.name(t) for t in node.inputs))


def tensor_message(name: str, value: Any) -> Any:
    """Returns an array as a message."""
    return onnx("numpy_helper").from_array(np.asarray(value), name)


@dataclass(slots=True)
class Writer:
    """A model that is being written.

    Attributes:
        names: the tensors' names in the model.
        values: the values of constants and variables.
        nodes: the nodes of the model.
        makers: for each node of the model, the name of the graph's node.
        arrays: the initializers of the model, by name.
        scope: the name of the graph's node that is being written.
        taken: the names in use.
    """

    names: dict[Tensor, str] = field(default_factory=dict)
    values: dict[Tensor, Array] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    makers: list[str] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)
    scope: str = ""
    taken: set[str] = field(default_factory=set)

    # --- inputs --------------------------------------------------------------------------------------------------

    def name(self, tensor: Tensor) -> str:
        """Returns a tensor's name in the model. A tensor with a known value becomes an array of the model at first use."""
        if tensor not in self.names:
            if tensor not in self.values:
                raise UnsupportedError(f"'{tensor.name}' is an output of {tensor.op.type} that ONNX does not have")
            self.names[tensor] = self._array_of(tensor, self.values[tensor], self._array_name(tensor))
        return self.names[tensor]

    def input(self, node: Node, index: int) -> str:
        """Returns the name of an input of a node."""
        return self.name(node.inputs[index])

    def static(self, tensor: Tensor, what: str) -> Array:
        """Returns the value of a tensor that must be static. UnsupportedError: it is not static."""
        value = self.value(tensor)
        if value is None:
            raise UnsupportedError(f"{what} is known only when the graph runs")
        return value

    def value(self, tensor: Tensor) -> Array | None:
        """Returns a tensor's value if it is known, else None."""
        return self.values[tensor] if tensor in self.values else static_value(tensor)

    def ints(self, node: Node, index: int, what: str) -> list[int]:
        """Returns an input as integers. UnsupportedError: it is not static."""
        return [int(v) for v in self.static(node.inputs[index], what).ravel()]

    def rank(self, tensor: Tensor) -> int:
        """Returns a tensor's rank. UnsupportedError: it is unknown."""
        if tensor.dims is None:
            raise UnsupportedError(f"the rank of '{tensor.name}' is not known")
        return len(tensor.dims)

    # --- outputs -------------------------------------------------------------------------------------------------

    def array(self, value: Any, name: str = "") -> str:
        """Adds a constant to the model."""
        made = self.unique_name(name or f"{self.scope}/constant")
        self.nodes.append(
            onnx("helper").make_node(
                "Constant", [], [made], self.unique_name(f"{made}/Constant"), value=tensor_message(made, value)
            )
        )
        self.makers.append(self.scope)
        return made

    def _array_name(self, tensor: Tensor) -> str:
        """Returns the name of an array. The value of a variable has the variable's name."""
        reads = tensor.op.inputs and tensor.op.type in ("Identity", "ReadVariableOp")
        return tensor.op.inputs[0].op.name if reads else tensor.op.name

    def _array_of(self, tensor: Tensor, value: Any, name: str) -> str:
        """Writes a constant as a node and a variable as an initializer, so that readers can distinguish trained values."""
        if tensor.op.type == "Const":
            return self.array(value, name)
        made = self.unique_name(name)
        self.arrays[made] = tensor_message(made, value)
        return made

    def int64s(self, values: Any) -> str:
        """Returns an array of int64, the standard's type of sizes, axes and indices."""
        return self.array(np.asarray(values, np.int64))

    def constant_like(self, value: Any, tensor: Tensor) -> str:
        """Adds a constant with a tensor's element type to the model."""
        return self.array(np.asarray(value, tensor.dtype.base.np))

    def emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Adds a node to the model. Returns the name of its output."""
        return self.emit_many(1, op, *inputs, **attrs)[0]

    def emit_many(self, count: int, op: str, *inputs: str, **attrs: Any) -> list[str]:
        """Adds a node with `count` outputs to the model. Returns their names."""
        outputs = [self.unique_name(f"{self.scope}/{op}") for _ in range(count)]
        self.nodes.append(onnx("helper").make_node(op, list(inputs), outputs, self.unique_name(self.scope), **attrs))
        self.makers.append(self.scope)
        return outputs

    def unique_name(self, name: str) -> str:
        """Returns an unused name."""
        made, i = name, 0
        while made in self.taken:
            i += 1
            made = f"{name}_{i}"
        self.taken.add(made)
        return made

    def cast(self, name: str, to: DType) -> str:
        """Casts a value to another type."""
        return self.emit("Cast", name, to=element_number(to))

    def sizes(self, tensor: Tensor) -> str:
        """Casts a shape, an axis or indices to int64, as the standard requires."""
        value = self.value(tensor)
        if value is not None:
            return self.int64s(value)
        return self.name(tensor) if tensor.dtype.base is int64 else self.cast(self.name(tensor), int64)

    def transpose(self, tensor: Tensor, order: Sequence[int]) -> str:
        """Permutes the axes of a tensor. A known value is permuted now, and another one by a node."""
        if tensor in self.values:
            return self._array_of(tensor, self.values[tensor].transpose(order), f"{self._array_name(tensor)}_moved")
        return self.emit("Transpose", self.name(tensor), perm=list(order))

    def transpose_name(self, name: str, order: Sequence[int]) -> str:
        """Permutes the axes of a value of the model by a node."""
        return self.emit("Transpose", name, perm=list(order))

    def attr(self, node: Node, name: str) -> Any:
        """Returns an attribute of a node of the graph."""
        attrs: Mapping[str, Any] = node.attrs
        return attrs[name]
