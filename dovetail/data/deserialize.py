"""Deserializes the data sets that `serialize.py` wrote.

The input is untrusted. Nothing in it is evaluated as code, and only registered kinds and ops are accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from ..graph.core.dtypes import DType
from ..graph.core.errors import InvalidArgumentError, OpError
from ..graph.core.graph import Graph
from ..graph.core.shape import as_dims
from ..graph.formats.record_format import MalformedError, unpacked
from ..graph.io.serialization import extend_from_bytes
from ..graph.ops.io.iterators import decoders
from .dataset import Dataset
from .function import DatasetFunction, Function
from .kind_registry import ELEMENT_ITERATORS
from .runtime_values import RuntimeInputs
from .spec import Array, Component


def decode(description: bytes, arrays: Sequence[Array]) -> Dataset:
    """Returns the data set of a description. InvalidArgumentError: the description is malformed."""
    try:
        top, count, names, records = unpacked(description)
        found: Dataset = _Reader(names, arrays).read(records)[top]
        found._sent = True
        return found
    except (OpError, MalformedError, msgpack.UnpackException, RecursionError) as e:
        raise InvalidArgumentError.of(f"Malformed description of a data set: {e}") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as e:
        raise InvalidArgumentError.of(f"Malformed description of a data set: {type(e).__name__}: {e}") from None


class _Reader:
    def __init__(self, names: Sequence[Any], arrays: Sequence[Array]) -> None:
        self._names = [RuntimeInputs((), str(name), int(count)) for name, count in names]
        self._arrays = arrays
        self._datasets: list[Dataset] = []

    def read(self, records: Sequence[Any]) -> list[Dataset]:
        for kind, inputs, components, params in records:
            if kind not in ELEMENT_ITERATORS:
                raise MalformedError(f"there is no kind of data set {kind!r}")
            made = [Component(self._dtype(t), as_dims(dims)) for t, dims in components]
            given = {str(k): self._param(v) for k, v in params.items()}
            self._datasets.append(Dataset(kind, None, made, [self._datasets[i] for i in inputs], **given))
        return self._datasets

    def _dtype(self, dtype: Any) -> DType:
        if not isinstance(dtype, DType):
            raise MalformedError(f"{dtype!r} is not an element type")
        return dtype

    def _param(self, value: Any) -> Any:
        if type(value) is not tuple:
            return value
        kind, *parts = value
        match kind:
            case "given":
                return self._names[parts[0]]
            case "array":
                return self._arrays[parts[0]]
            case "function":
                return self._function(*parts)
            case "datasets":
                windows, *function, result = parts
                return DatasetFunction(self._function(*function), self._datasets[result], self._param(windows))
            case "tuple":
                return tuple([self._param(p) for p in parts])
        raise MalformedError(f"unknown kind of parameter {kind!r}")

    def _function(self, data: bytes, inputs: Sequence[str], outputs: Sequence[str], given: int | None) -> Function:
        graph = Graph()
        extend_from_bytes(graph, data)
        given_to, made = ([graph.get_tensor_by_name(name) for name in names] for names in (inputs, outputs))
        return Function(graph, given_to, made, None if given is None else self._names[given])


decoders[:] = [decode]
