"""Descriptions of data sets as bytes, so that they run in another process.

A description is a list of data sets, each after those that it is made from: kind, numbers of those, components, and parameters.
Graphs of functions are written as graphs are (`graph/io/serialization.py`); arrays lie beside the description. `deserialize.py` reads it.
"""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from ..graph.core.dtypes import DType
from ..graph.core.opdef import Trait
from ..graph.formats.record_format import extension
from ..graph.io.serialization import graph_to_bytes
from .function import DatasetFunction, Function
from .kind_registry import Described
from .runtime_values import Given
from .spec import Array

LIMIT = 1 << 20
"""Bytes of arrays that go into the graph with a description, unless the program places the iterator in another task."""


class BoundError(Exception):
    """A data set cannot leave this process; the text says what of it."""


def encode(dataset: Described) -> tuple[bytes, tuple[Array, ...]]:
    """A description, and its arrays. BoundError: it has Python functions."""
    writer = _Writer()
    for given in dataset._given:
        writer.name(given)
    top = writer.dataset(dataset)
    names = [(g.name, g.count) for g in writer.names]
    return _pack((top, len(dataset._given), names, writer.records)), tuple(writer.arrays)


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=lambda v: extension(v, []))
    return packed


class _Writer:
    def __init__(self) -> None:
        self.names: dict[Given, int] = {}
        self.arrays: list[Array] = []
        self.records: list[Any] = []
        self._datasets: dict[Described, int] = {}

    def name(self, given: Given) -> int:
        return self.names.setdefault(given, len(self.names))

    def dataset(self, dataset: Described) -> int:
        if dataset not in self._datasets:
            inputs = [self.dataset(d) for d in dataset._inputs]
            params = {k: self.param(k, v) for k, v in dataset._params.items()}
            components = [(c.dtype, c.dims) for c in dataset._components]
            self.records.append((dataset._kind, inputs, components, params))
            self._datasets[dataset] = len(self.records) - 1
        return self._datasets[dataset]

    def param(self, key: str, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str, bytes, DType)):
            return value
        if isinstance(value, Given):
            return ("given", self.name(value))
        if isinstance(value, np.ndarray):
            self.arrays.append(value)
            return ("array", len(self.arrays) - 1)
        if isinstance(value, Function):
            return ("function", *self.function(value))
        if isinstance(value, DatasetFunction):
            return (
                "datasets",
                self.param(key, value.windows),
                *self.function(value.function),
                self.dataset(value.result),
            )
        if type(value) is tuple:
            return ("tuple", *[self.param(key, v) for v in value])
        raise BoundError(
            "a Python function (from_generator)" if callable(value) else f"its {key} ({type(value).__name__})"
        )

    def function(self, function: Function) -> tuple[Any, ...]:
        for node in function.graph.nodes:
            if Trait.HOST_ONLY in node.opdef.traits:
                raise BoundError(f"'{node.name}' ({node.type}), created at {node.source}")
        names = [[t.name for t in tensors] for tensors in (function.inputs, function.outputs)]
        given = None if function.given is None else self.name(function.given)
        return graph_to_bytes(function.graph), *names, given


__all__ = ["LIMIT", "BoundError", "encode"]
