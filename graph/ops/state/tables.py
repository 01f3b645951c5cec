"""Lookup tables: values by key. Like a queue, a table belongs to a task and outlives the sessions that use it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...core.dtypes import Array, DType, bool_, float32, float64, int32, int64, resource, string
from ...core.errors import FailedPreconditionError, NotFoundError, invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, Trait, define_on_host, typed_attr
from ...core.shape import compatible
from ...formats.atomic_files import path_of
from ...formats.text_lines import lines_of
from ...resources.resource_manager import Context
from ..math.static_operands import as_bytes, need_rank, no_cost
from ..strings.strings import number_of
from .queues import as_resource, define_fact, need_handle

KEYS, VALUES = (int32, int64, string), (float32, float64, int32, int64, string, bool_)


class Table:
    """A table that is filled once. Lookups take no lock.

    Attributes:
        key_dtype: element type of the keys.
        value_dtype: element type of the values.
    """

    def __init__(self, key_dtype: DType, value_dtype: DType) -> None:
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self._lock = threading.Lock()
        self._values: dict[Any, Any] | None = None

    def fill(self, keys: Array, values: Array) -> None:
        """Fill the table. Filling it again with the same content has no effect.

        Raises:
            InvalidArgumentError: a key has two values.
            FailedPreconditionError: the table has other content.
        """
        made: dict[Any, Any] = {}
        for key, value in zip(_plain(keys), _plain(values), strict=True):
            if made.setdefault(key, value) != value:
                raise invalid(
                    f"HashTable has different value for same key. Key {key!r} has {made[key]!r} and trying to add {value!r}"
                )
        with self._lock:
            if self._values is not None and self._values != made:
                raise FailedPreconditionError.of("Table already initialized, with other contents")
            self._values = made

    @property
    def values(self) -> dict[Any, Any]:
        """The content, key -> value. FailedPreconditionError if the table has not been filled."""
        if self._values is None:
            raise FailedPreconditionError.of(
                "Table not initialized: run its initializer, or tables_initializer(), before looking up"
            )
        return self._values

    def find(self, keys: Array, default: Array) -> Array:
        """The value of each key, or the default if the key is missing."""
        values, other = self.values, default.item()
        out = np.empty(keys.shape, self.value_dtype.np)
        out.reshape(-1)[:] = [values.get(k, other) for k in _plain(keys)]
        return out

    def export(self) -> tuple[Array, Array]:
        """All keys, and their values."""
        values = self.values
        return _vector(values.keys(), self.key_dtype), _vector(values.values(), self.value_dtype)


class MutableTable(Table):
    """A table whose keys and values are arrays, and can be inserted and removed.

    Attributes:
        key_shape: the shape of a key.
        value_shape: the shape of a value.
    """

    def __init__(
        self, key_dtype: DType, value_dtype: DType, key_shape: Any, value_shape: Any, forbidden: Sequence[Array]
    ) -> None:
        super().__init__(key_dtype, value_dtype)
        self.key_shape, self.value_shape = tuple(key_shape), tuple(value_shape)
        self._values = {}
        self._forbidden = dict(
            zip(("empty_key", "deleted_key"), (k for key in forbidden for k in self._keys(key)), strict=True)
        )
        if len(set(self._forbidden.values())) < 2:
            raise invalid("Empty and deleted keys must not be equal")

    def _keys(self, keys: Array) -> list[Any]:
        """Keys as tuples, which are hashable. InvalidArgumentError if their shape does not fit."""
        rank = len(self.key_shape)
        if keys.shape[keys.ndim - rank :] != self.key_shape:
            raise invalid(f"Expected key shape {self.key_shape} got {keys.shape}")
        rows = keys.reshape(-1, int(np.prod(self.key_shape)))
        return [tuple(_plain(row)) for row in rows]

    def _checked(self, keys: Array) -> list[Any]:
        found = self._keys(keys)
        for name, key in self._forbidden.items():
            if key in found:
                raise invalid(f"Using the {name} as a table key is not allowed")
        return found

    def fill(self, keys: Array, values: Array) -> None:
        """Replace the content."""
        self._put(keys, values, {})

    def insert(self, keys: Array, values: Array) -> None:
        """Insert keys with their values, or replace the values of keys that exist."""
        self._put(keys, values, None)

    def _put(self, keys: Array, values: Array, kept: dict[Any, Any] | None) -> None:
        """Set the content to `kept` (None means the old content) and these keys. If a key or value is invalid, nothing changes."""
        found = self._checked(keys)
        outer = keys.shape[: keys.ndim - len(self.key_shape)]
        if values.shape != (*outer, *self.value_shape):
            raise invalid(f"Expected shape {[*outer, *self.value_shape]} for value, got {list(values.shape)}")
        with self._lock:
            rows = values.reshape(len(found), *self.value_shape).copy()
            self._values = {**(self.values if kept is None else kept), **dict(zip(found, rows, strict=True))}

    def remove(self, keys: Array) -> None:
        """Remove keys. Missing keys are ignored."""
        removed = set(self._checked(keys))
        with self._lock:
            self._values = {key: value for key, value in self.values.items() if key not in removed}

    def find(self, keys: Array, default: Array) -> Array:
        """The value of each key, or the default if the key is missing."""
        values = self.values
        rows = [values.get(key, default) for key in self._checked(keys)]
        outer = keys.shape[: keys.ndim - len(self.key_shape)]
        out = np.empty((len(rows), *self.value_shape), self.value_dtype.np)
        for at, row in enumerate(rows):
            out[at, ...] = row  # the ellipsis copies the string of a 0-d array, instead of storing the array
        return out.reshape((*outer, *self.value_shape))

    def export(self) -> tuple[Array, Array]:
        """All keys, and their values."""
        values = self.values
        keys = _vector((part for key in values for part in key), self.key_dtype).reshape((len(values), *self.key_shape))
        out = np.empty((len(values), *self.value_shape), self.value_dtype.np)
        for at, value in enumerate(values.values()):
            out[at, ...] = value
        return keys, out


def _vector(items: Iterable[Any], dtype: DType) -> Array:
    found = list(items)
    out = np.empty(len(found), dtype.np)
    out[:] = found
    return out


def _plain(array: Array) -> list[Any]:
    """The elements of an array as Python numbers or bytes."""
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
    typed_attr(attrs, "shared_name", str)
    return [(resource, ())]


def _table(context: Context, *, key_dtype: DType, value_dtype: DType, shared_name: str) -> Table:
    name = shared_name or context.node_name
    found: Table = context.resources.get_or_create(
        context.container, name, Table, lambda: Table(key_dtype, value_dtype)
    )
    if (found.key_dtype, found.value_dtype) != (key_dtype, value_dtype):
        raise invalid(
            f"Table '{name}' is from {found.key_dtype.name} to {found.value_dtype.name}, not from {key_dtype.name} to "
            f"{value_dtype.name}",
            context.node_name,
        )
    return found


define_on_host("HashTableV2", _infer_table, _table, cost=no_cost, traits=Trait.STATE_HANDLE)


def _infer_mutable(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    key, _ = _types(attrs)
    typed_attr(attrs, "shared_name", str)
    for t in inputs:
        if t.dtype.base is not key:
            raise TypeError(f"keys are {key.name}, not {t.dtype.name}")
        if t.dims != attrs["key_shape"]:
            raise ValueError(f"empty_key and deleted_key must have one shape, {attrs['key_shape']}, not {t.dims}")
    return [(resource, ())]


def _mutable(
    context: Context, empty: Array, deleted: Array, *, key_dtype: DType, value_dtype: DType, key_shape: Any, value_shape: Any,
    shared_name: str,
) -> Table:  # fmt: skip
    name = shared_name or context.node_name
    found: Table = context.resources.get_or_create(
        context.container,
        name,
        MutableTable,
        lambda: MutableTable(key_dtype, value_dtype, key_shape, value_shape, (empty, deleted)),
    )
    return found


define_on_host("MutableDenseHashTableV2", _infer_mutable, _mutable, cost=no_cost, traits=Trait.STATE_HANDLE)


def _insert(context: Context, table: Any, keys: Array, values: Array) -> tuple[()]:
    as_resource(table, MutableTable, context).insert(keys, values)
    return ()


def _remove(context: Context, table: Any, keys: Array) -> tuple[()]:
    as_resource(table, MutableTable, context).remove(keys)
    return ()


def _infer_change(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    return []


def _infer_export(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    key, value = _types(attrs)
    return [(key, (None, *attrs.get("key_shape", ()))), (value, (None, *attrs.get("value_shape", ())))]


define_on_host("LookupTableInsertV2", _infer_change, _insert)
define_on_host("LookupTableRemoveV2", _infer_change, _remove)
define_on_host(
    "LookupTableExportV2", _infer_export, lambda context, table, **attrs: as_resource(table, Table, context).export()
)


def _infer_file(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, file = inputs
    need_handle(handle)
    if file.dtype.base is not string:
        raise TypeError(f"the filename must be a string, not {file.dtype.name}")
    need_rank(file.dims, 0, "filename")
    return []


def _from_file(
    context: Context, table: Any, filename: Array, *, key_index: int, value_index: int, vocab_size: int, delimiter: str,
    key_dtype: DType, value_dtype: DType,
) -> tuple[()]:  # fmt: skip
    name = as_bytes(filename.item()).decode()
    try:
        with path_of(name).open("rb") as file:
            lines = list(lines_of(file))
    except OSError as e:
        raise NotFoundError(context.node_name, None, f"{name}; {e.strerror or e}") from e
    if vocab_size >= 0 and len(lines) < vocab_size:
        raise invalid(
            f"Invalid vocab_size in {name}: expected {vocab_size} but got {len(lines)}: the file has {len(lines)} lines",
            context.node_name,
        )
    lines = lines if vocab_size < 0 else lines[:vocab_size]
    if b"" in lines:
        raise invalid(f"Invalid content in {name}: line {lines.index(b'') + 1} is empty", context.node_name)

    def column(index: int, dtype: DType) -> Array:
        return _vector((_part(line, i, index, delimiter, dtype, name) for i, line in enumerate(lines)), dtype)

    found: Table = as_resource(table, Table, context)
    found.fill(column(key_index, key_dtype), column(value_index, value_dtype))
    return ()


def _part(line: bytes, number: int, index: int, delimiter: str, dtype: DType, file: str) -> Any:
    """The part of a line that `index` selects: -2 for the whole line, -1 for its number, or a column."""
    if index == -1:
        return number
    columns = [line] if index == -2 else line.split(delimiter.encode())
    at, text = max(index, 0), line.decode(errors="replace")
    if at >= len(columns):
        raise invalid(
            f"Invalid number of columns in {file} line {number + 1} ({text}) : expected {at + 1} got {len(columns)}"
        )
    if dtype is string:
        return columns[at]
    try:
        return number_of(columns[at].decode(), dtype.np)
    except (ValueError, OverflowError) as e:
        raise invalid(
            f"Field {columns[at].decode(errors='replace')!r} in line {number + 1} of {file} is not a valid {dtype.name}."
        ) from e


define_on_host("InitializeTableFromTextFileV2", _infer_file, _from_file)


def _infer_import(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, keys, values = inputs
    need_handle(handle)
    # a MutableTable checks keys and values itself, which have shapes of their own
    if handle.op.type != "MutableDenseHashTableV2" and not compatible(keys.dims, values.dims):
        raise ValueError(f"there must be a value for each key: {keys.shape} and {values.shape}")
    return []


def _import(context: Context, table: Any, keys: Array, values: Array) -> tuple[()]:
    found: Table = as_resource(table, Table, context)
    if keys.shape != values.shape and not isinstance(found, MutableTable):
        raise invalid(f"{keys.size} keys and {values.size} values", context.node_name)
    found.fill(keys, values)
    return ()


def _infer_find(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, keys, default = inputs
    need_handle(handle)
    key, value = _types(
        {"key_dtype": keys.dtype.base, "value_dtype": default.dtype.base, **attrs}
    )  # TensorFlow's has others
    if keys.dtype.base is not key or default.dtype.base is not value:
        raise TypeError(
            f"the table is from {key.name} to {value.name}, not from {keys.dtype.name} to {default.dtype.name}"
        )
    inner = attrs.get("value_shape")
    if inner is None or keys.dims is None:
        return [(value, keys.dims)]
    return [(value, (*keys.dims[: len(keys.dims) - len(attrs["key_shape"])], *inner))]


def _find(context: Context, table: Any, keys: Array, default: Array, **attrs: Any) -> Array:
    found: Table = as_resource(table, Table, context)
    return found.find(keys, default)


define_on_host("LookupTableImportV2", _infer_import, _import)
define_on_host("LookupTableFindV2", _infer_find, _find)
define_fact("LookupTableSizeV2", Table, int64, lambda table: len(table.values))
