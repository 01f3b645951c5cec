"""Serializes data sets, so that they run in another process. `deserialize.py` is the inverse.

A description is a list of records in topological order. A record has the kind of a data set, the numbers of its inputs, its components
and its parameters. Functions are written as graphs (`graph/io/serialization.py`). Arrays are kept beside the description.
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
from .kind_registry import DatasetBase
from .runtime_values import RuntimeInputs
from .spec import Array

LIMIT = 1 << 20
"""The largest size, in bytes, of arrays that are sent without a request. Placing the iterator on a task requests it."""


class NotSerializableError(Exception):
    """A data set cannot leave this process. The message names the part that cannot."""


def encode(dataset: DatasetBase) -> tuple[bytes, tuple[Array, ...]]:
    """Returns a description and its arrays. NotSerializableError: the data set has Python functions."""
    writer = _Writer()
    for given in dataset._runtime_inputs:
        writer.name(given)
    top = writer.dataset(dataset)
    names = [(g.name, g.count) for g in writer.names]
    return _pack((top, len(dataset._runtime_inputs), names, writer.records)), tuple(writer.arrays)


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=lambda v: extension(v, []))
    return packed


class _Writer:
    def __init__(self) -> None:
        self.names: dict[RuntimeInputs, int] = {}
        self.arrays: list[Array] = []
        self.records: list[Any] = []
        self._datasets: dict[DatasetBase, int] = {}

    def name(self, given: RuntimeInputs) -> int:
        return self.names.setdefault(given, len(self.names))

    def dataset(self, dataset: DatasetBase) -> int:
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
        if isinstance(value, RuntimeInputs):
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
        raise NotSerializableError(
            "a Python function (from_generator)" if callable(value) else f"its {key} ({type(value).__name__})"
        )

    def function(self, function: Function) -> tuple[Any, ...]:
        for node in function.graph.nodes:
            if Trait.HOST_ONLY in node.opdef.traits:
                raise NotSerializableError(f"'{node.name}' ({node.type}), created at {node.source}")
        names = [[t.name for t in tensors] for tensors in (function.inputs, function.outputs)]
        given = None if function.given is None else self.name(function.given)
        return graph_to_bytes(function.graph), *names, given
