"""How nodes of a graph become nodes of an ONNX model: one function per op.

An exporter gets a `Writer` and a node, emits nodes of the standard, and says what the node's outputs are called in the model.

    @exports("Square")
    def square(w: Writer, node: Node) -> Names:
        return w.emit("Mul", w.input(node, 0), w.input(node, 0))

An array whose value is known when the model is written, a constant or a variable's, is transformed then: a filter is
transposed once, not by a node of the model.
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
    """Registers ops of the graph that are ops of the standard with the same inputs."""
    for mine, theirs in ops.items():
        exports(mine)(_same(theirs))


def exports_by(**ops: Exporter) -> None:
    """Registers exporters that are functions of one expression."""
    for op, function in ops.items():
        exports(op)(function)


def exports_composed(**ops: Callable[..., Names]) -> None:
    """Registers exporters that are functions of the writer, the node, and the names of all its inputs."""
    for op, function in ops.items():
        exports(op)(_composed(function))


def _composed(function: Callable[..., Names]) -> Exporter:
    @wraps(function)
    def exporter(w: Writer, node: Node) -> Names:
        return function(w, node, *(w.name(t) for t in node.inputs))

    return exporter


def _same(op: str) -> Exporter:
    return lambda w, node: w.emit(op, *(w.name(t) for t in node.inputs))


def _message(name: str, value: Any) -> Any:
    """Returns an array as a message."""
    found = np.asarray(value)
    if found.dtype == object:
        text = [v if isinstance(v, bytes) else str(v).encode() for v in found.ravel()]
        return onnx("helper").make_tensor(name, onnx().TensorProto.STRING, found.shape, text)
    return onnx("numpy_helper").from_array(np.ascontiguousarray(found).reshape(found.shape), name)


@dataclass(slots=True)
class Writer:
    """The model while it is written.

    Attributes:
        names: the tensors' names in the model. values: arrays of known tensors: constants, and current values of variables.
        nodes, arrays: those of the model so far. makers: for each of its nodes, the name of the graph's node.
        scope: the name of the node that is written. taken: names in use.
    """

    names: dict[Tensor, str] = field(default_factory=dict)
    values: dict[Tensor, Array] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    makers: list[str] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)
    scope: str = ""
    taken: set[str] = field(default_factory=set)

    # --- what a node takes ---------------------------------------------------------------------------------------

    def name(self, tensor: Tensor) -> str:
        """Returns a tensor's name in the model. A tensor with a known value becomes an array of the model at first use."""
        if tensor not in self.names:
            if tensor not in self.values:
                raise UnsupportedError(f"'{tensor.name}' is an output of {tensor.op.type} that ONNX does not have")
            self.names[tensor] = self._array_of(tensor, self.values[tensor], self._title(tensor))
        return self.names[tensor]

    def input(self, node: Node, index: int) -> str:
        """Returns the name of an input of a node."""
        return self.name(node.inputs[index])

    def known(self, tensor: Tensor, what: str) -> Array:
        """A value that the model must hold as a number.

        Raises:
            UnsupportedError: it is known only when the graph runs.
        """
        value = self.value(tensor)
        if value is None:
            raise UnsupportedError(f"{what} is known only when the graph runs")
        return value

    def value(self, tensor: Tensor) -> Array | None:
        """Returns a tensor's value if it is known, else None."""
        return self.values[tensor] if tensor in self.values else static_value(tensor)

    def numbers(self, node: Node, index: int, what: str) -> list[int]:
        """Returns an input as integers; UnsupportedError if they are known only when the graph runs."""
        return [int(v) for v in self.known(node.inputs[index], what).ravel()]

    def rank(self, tensor: Tensor) -> int:
        """Returns a tensor's rank; UnsupportedError if it is unknown."""
        if tensor.dims is None:
            raise UnsupportedError(f"the rank of '{tensor.name}' is not known")
        return len(tensor.dims)

    # --- what it makes -------------------------------------------------------------------------------------------

    def array(self, value: Any, name: str = "") -> str:
        """Adds a constant to the model."""
        made = self.fresh(name or f"{self.scope}/constant")
        self.nodes.append(
            onnx("helper").make_node(
                "Constant", [], [made], self.fresh(f"{made}/Constant"), value=_message(made, value)
            )
        )
        self.makers.append(self.scope)
        return made

    def _title(self, tensor: Tensor) -> str:
        """Returns the name of an array; the value of a variable has the variable's name."""
        reads = tensor.op.inputs and tensor.op.type in ("Identity", "ReadVariableOp")
        return tensor.op.inputs[0].op.name if reads else tensor.op.name

    def _array_of(self, tensor: Tensor, value: Any, name: str) -> str:
        """Writes a constant as a constant and a variable as an initializer, so that readers can distinguish trained values."""
        if tensor.op.type == "Const":
            return self.array(value, name)
        made = self.fresh(name)
        self.arrays[made] = _message(made, value)
        return made

    def int64s(self, values: Any) -> str:
        """Returns an array of int64, the standard's type of sizes, axes and indices."""
        return self.array(np.asarray(values, np.int64))

    def like(self, value: Any, tensor: Tensor) -> str:
        """Returns a number of a tensor's type."""
        return self.array(np.asarray(value, tensor.dtype.base.np))

    def emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Adds a node to the model. Returns the name of its output."""
        return self.emit_many(1, op, *inputs, **attrs)[0]

    def emit_many(self, count: int, op: str, *inputs: str, **attrs: Any) -> list[str]:
        """Add a node with `count` outputs to the model. Returns their names."""
        outputs = [self.fresh(f"{self.scope}/{op}") for _ in range(count)]
        self.nodes.append(onnx("helper").make_node(op, list(inputs), outputs, self.fresh(self.scope), **attrs))
        self.makers.append(self.scope)
        return outputs

    def fresh(self, name: str) -> str:
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

    def moved(self, tensor: Tensor, order: Sequence[int]) -> str:
        """Permutes the axes of a tensor; a known value is permuted when the model is written."""
        if tensor in self.values:
            return self._array_of(tensor, self.values[tensor].transpose(order), f"{self._title(tensor)}_moved")
        return self.emit("Transpose", self.name(tensor), perm=list(order))

    def turned(self, name: str, order: Sequence[int]) -> str:
        """Permutes the axes of a value of the model."""
        return self.emit("Transpose", name, perm=list(order))

    def attr(self, node: Node, name: str) -> Any:
        """Returns an attribute of a node of the graph."""
        attrs: Mapping[str, Any] = node.attrs
        return attrs[name]
