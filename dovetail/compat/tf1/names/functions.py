"""Small functions of TensorFlow 1's top level that have no better place."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ....api.ops.lookup import tables_initializer
from ....graph.core.build import TensorLike, convert
from ....graph.core.constant_value import static_value
from ....graph.core.default_graph import get_default_graph
from ....graph.core.dtypes import bfloat16, float64, int32, int64
from ....graph.core.graph import Tensor
from ....graph.ops.math.cast import cast
from ....graph.tensors.indexed_slices import IndexedSlices
from ....graph.variables.variable import Variable


class AggregationMethod:
    """How gradients of several uses are added up: here in one way, whatever is asked for."""

    ADD_N = DEFAULT = EXPERIMENTAL_TREE = EXPERIMENTAL_ACCUMULATE_N = 0


def init_scope() -> AbstractContextManager[None]:
    """`Graph.init_scope` on the default graph: a block for what outlives a step."""
    return get_default_graph().init_scope()


def add_to_collections(names: Iterable[str] | str, value: Any) -> None:
    """`Graph.add_to_collections` on the default graph."""
    get_default_graph().add_to_collections(names, value)


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor, a variable, or `IndexedSlices`."""
    return isinstance(x, (Tensor, Variable, IndexedSlices))


def get_static_value(tensor: Any, partial: bool = False) -> np.ndarray[Any, Any] | None:
    """A tensor's value where it is known before anything runs, else None."""
    return static_value(convert(tensor))


def convert_to_tensor_or_indexed_slices(value: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A tensor for anything that stands for one; `IndexedSlices` as they are."""
    return value if isinstance(value, IndexedSlices) else convert(value, dtype, name)


def to_double(x: TensorLike, name: str = "ToDouble") -> Any:
    """`cast` to float64."""
    return cast(x, float64, name)


def to_int32(x: TensorLike, name: str = "ToInt32") -> Any:
    """`cast` to int32."""
    return cast(x, int32, name)


def to_int64(x: TensorLike, name: str = "ToInt64") -> Any:
    """`cast` to int64."""
    return cast(x, int64, name)


def to_bfloat16(x: TensorLike, name: str = "ToBFloat16") -> Any:
    """`cast` to bfloat16."""
    return cast(x, bfloat16, name)


initialize_all_tables = tables_initializer


__all__ = [
    "AggregationMethod",
    "add_to_collections",
    "convert_to_tensor_or_indexed_slices",
    "get_static_value",
    "init_scope",
    "initialize_all_tables",
    "is_tensor",
    "tables_initializer",
    "to_bfloat16",
    "to_double",
    "to_int32",
    "to_int64",
]
