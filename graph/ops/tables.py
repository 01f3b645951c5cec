"""Tables in the graph: what belongs to a key, filled once and looked up in steps.

A table lives in its task, like a queue, and outlives the sessions that use it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import DType, bool_, float32, float64, int32, int64, resource, string
from ..errors import FailedPreconditionError, InvalidArgumentError
from ..node import Tensor
from ..opdef import Attrs, Output, Trait, define
from ..shape import compatible
from ..state import Context
from .operands import as_bytes
from .queues import as_resource, free, need_handle, need_text

Array = np.ndarray[Any, Any]

KEYS, VALUES = (int32, int64, string), (float32, float64, int32, int64, string, bool_)


class Table:
    """Values by key. Filled once; looking up needs no lock.

    Attributes:
        key_dtype, value_dtype: element types.
    """

    def __init__(self, key_dtype: DType, value_dtype: DType) -> None:
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self._lock = threading.Lock()
        self._values: dict[Any, Any] | None = None

    def fill(self, keys: Array, values: Array) -> None:
        """Fill it. Again with the same: nothing happens.

        Raises:
            InvalidArgumentError: a key comes with two values. FailedPreconditionError: it is filled with something else.
        """
        made: dict[Any, Any] = {}
        for key, value in zip(_plain(keys), _plain(values), strict=True):
            if made.setdefault(key, value) != value:
                raise InvalidArgumentError(
                    None,
                    None,
                    f"HashTable has different value for same key. Key {key!r} has {made[key]!r} and trying to add {value!r}",
                )
        with self._lock:
            if self._values is not None and self._values != made:
                raise FailedPreconditionError(None, None, "Table already initialized, with other contents")
            self._values = made

    @property
    def values(self) -> dict[Any, Any]:
        """What it holds. FailedPreconditionError: it has not been filled."""
        if self._values is None:
            raise FailedPreconditionError(
                None, None, "Table not initialized: run its initializer, or tables_initializer(), before looking up"
            )
        return self._values

    def find(self, keys: Array, default: Array) -> Array:
        """The value of each key; the default for those that are not there."""
        values, other = self.values, default.item()
        out = np.empty(keys.shape, self.value_dtype.np)
        out.reshape(-1)[:] = [values.get(k, other) for k in _plain(keys)]
        return out


def _plain(array: Array) -> list[Any]:
    """Python's numbers, or bytes."""
    if array.dtype == object:
        return [as_bytes(item) for item in array.reshape(-1)]
    items: list[Any] = array.reshape(-1).tolist()
    return items


def _types(attrs: Attrs) -> tuple[DType, DType]:
    key, value = attrs.get("key_dtype"), attrs.get("value_dtype")
    if key not in KEYS or value not in VALUES:
        raise TypeError(
            f"keys are {', '.join(d.name for d in KEYS)}, values {', '.join(d.name for d in VALUES)}, not {key} and {value}"
        )
    return key, value


def _infer_table(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _types(attrs)
    need_text(attrs, "shared_name")
    return [(resource, ())]


def _table(context: Context, *, key_dtype: DType, value_dtype: DType, shared_name: str) -> Table:
    name = shared_name or context.node_name
    found: Table = context.resources.get_or_create(
        context.container, name, Table, lambda: Table(key_dtype, value_dtype)
    )
    if (found.key_dtype, found.value_dtype) != (key_dtype, value_dtype):
        raise InvalidArgumentError(
            context.node_name, None,
            f"Table '{name}' is from {found.key_dtype.name} to {found.value_dtype.name}, not from {key_dtype.name} to "
            f"{value_dtype.name}",
        )  # fmt: skip
    return found


define(
    "HashTableV2",
    infer=_infer_table,
    reference=_table,
    cost=free,
    traits=Trait.STATEFUL | Trait.STATE_HANDLE,
    device_types=("CPU",),
)


def _infer_import(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, keys, values = inputs
    need_handle(handle)
    if not compatible(keys.dims, values.dims):
        raise ValueError(f"there must be a value for each key: {keys.shape} and {values.shape}")
    return []


def _import(context: Context, table: Any, keys: Array, values: Array) -> tuple[()]:
    found: Table = as_resource(table, Table, context)
    if keys.shape != values.shape:
        raise InvalidArgumentError(context.node_name, None, f"{keys.size} keys and {values.size} values")
    found.fill(keys, values)
    return ()


def _infer_find(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, keys, default = inputs
    need_handle(handle)
    key, value = _types(attrs)
    if keys.dtype.base is not key or default.dtype.base is not value:
        raise TypeError(
            f"the table is from {key.name} to {value.name}, not from {keys.dtype.name} to {default.dtype.name}"
        )
    return [(value, keys.dims)]


def _find(context: Context, table: Any, keys: Array, default: Array, *, key_dtype: DType, value_dtype: DType) -> Array:
    found: Table = as_resource(table, Table, context)
    return found.find(keys, default)


def _infer_size(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    return [(int64, ())]


define("LookupTableImportV2", infer=_infer_import, reference=_import, traits=Trait.STATEFUL, device_types=("CPU",))
define("LookupTableFindV2", infer=_infer_find, reference=_find, traits=Trait.STATEFUL, device_types=("CPU",))
define(
    "LookupTableSizeV2",
    infer=_infer_size,
    reference=lambda context, table: np.asarray(len(as_resource(table, Table, context).values), np.int64),
    cost=free,
    traits=Trait.STATEFUL,
    device_types=("CPU",),
)

__all__ = ["Table"]
