"""`dt.lookup`: tables from keys to values, such as a vocabulary.

A table is filled by its `initializer`, or with all others by `dt.tables_initializer()`, which monitored sessions run by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .graph.build import apply, convert, make
from .graph.default_graph import get_default_graph, name_scope
from .graph.dtypes import DType, as_dtype, int64, string
from .graph.errors import NotFoundError
from .graph.graph_keys import GraphKeys
from .graph.node import Node, Tensor
from .graph.ops import tables as _tables  # noqa: F401  (defines the ops)
from .graph.ops.arithmetic import add
from .graph.ops.cast import cast
from .graph.ops.compare import equal, where
from .graph.ops.strings import as_string, number_of, string_to_hash_bucket_fast
from .graph.sparse_tensor import SparseTensor


class TextFileIndex:
    """Which part of a line is a key or a value."""

    WHOLE_LINE, LINE_NUMBER = -2, -1


class KeyValueTensorInitializer:
    """What fills a table: keys and values.

    Args:
        keys, values: as many of one as of the other. key_dtype, value_dtype: their types; None: their own.
    """

    def __init__(
        self, keys: Any, values: Any, key_dtype: Any = None, value_dtype: Any = None, name: str | None = None
    ) -> None:
        with name_scope(name or "key_value_init"):
            self.keys: Tensor = convert(keys, key_dtype, name="keys")
            self.values: Tensor = convert(values, value_dtype, name="values")

    @property
    def key_dtype(self) -> DType:
        """Type of the keys."""
        return self.keys.dtype.base

    @property
    def value_dtype(self) -> DType:
        """Type of the values."""
        return self.values.dtype.base


class TextFileInitializer(KeyValueTensorInitializer):
    """What fills a table from a file of the client's, which is read now.

    Args:
        filename: the file. key_dtype, value_dtype: int64 or string, or float32 for values.
        key_index, value_index: what of each line: a column, `TextFileIndex.WHOLE_LINE` or `TextFileIndex.LINE_NUMBER`, from 0.
        vocab_size: only so many lines; None: all. delimiter: between columns.

    Raises:
        NotFoundError: the file is not there. ValueError: a line has no such column, the file fewer lines, or what is there is no number.
    """

    def __init__(
        self,
        filename: Any,
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
    ) -> None:
        try:
            lines = Path(str(filename)).read_text(encoding="utf-8").splitlines()
        except OSError as e:
            raise NotFoundError(None, None, f"{filename}; {e.strerror}") from e
        if vocab_size is not None and len(lines) < vocab_size:
            raise ValueError(f"vocab_size is {vocab_size}, and {filename} has {len(lines)} lines")
        lines = lines[:vocab_size]

        def column(index: int, dtype: DType) -> Any:
            return np.array(
                [_part(line, i, index, delimiter, dtype, filename) for i, line in enumerate(lines)], dtype.np
            )

        key, value = as_dtype(key_dtype).base, as_dtype(value_dtype).base
        super().__init__(column(key_index, key), column(value_index, value), key, value, name)


def _part(line: str, number: int, index: int, delimiter: str, dtype: DType, filename: Any) -> Any:
    if index == TextFileIndex.LINE_NUMBER:
        return number
    columns = [line] if index == TextFileIndex.WHOLE_LINE else line.split(delimiter)
    at = max(index, 0)
    if at >= len(columns):
        raise ValueError(
            f"Invalid number of columns in {filename} line {number + 1} ({line}) : expected {at + 1} got {len(columns)}"
        )
    if dtype is string:
        return columns[at].encode()
    try:
        return number_of(columns[at], dtype.np)
    except (ValueError, OverflowError) as e:
        raise ValueError(
            f"Field {columns[at]!r} in line {number + 1} of {filename} is not a valid {dtype.name}."
        ) from e


class StaticHashTable:
    """A table that is filled once.

    Args:
        initializer: a `KeyValueTensorInitializer` or `TextFileInitializer`. default_value: what belongs to other keys.

    Attributes:
        initializer: the node that fills it. resource_handle: the handle. default_value: as given, a tensor.

    >>> table = StaticHashTable(KeyValueTensorInitializer(["a", "b"], [1, 2]), default_value=-1)
    >>> table.lookup(dt.constant(["b", "c"]))   # evaluates to [2, -1]
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer,
        default_value: Any,
        shared_name: str | None = None,
        name: str | None = None,
    ) -> None:
        self._types = {"key_dtype": initializer.key_dtype, "value_dtype": initializer.value_dtype}
        graph = get_default_graph()
        with name_scope(name or "hash_table"):
            self.default_value: Tensor = convert(default_value, initializer.value_dtype, name="default_value")
            self.resource_handle: Tensor = graph.create(
                "HashTableV2", (), {**self._types, "shared_name": shared_name or ""}, "table"
            ).outputs[0]
            operands = (self.resource_handle, initializer.keys, initializer.values)
            self.initializer: Node = make("LookupTableImportV2", operands, None, "table_init")
        graph.add_to_collection(GraphKeys.TABLE_INITIALIZERS, self.initializer)

    @property
    def init(self) -> Node:
        """The node that fills it."""
        return self.initializer

    @property
    def name(self) -> str:
        """Name of the node that makes it."""
        return self.resource_handle.op.name

    @property
    def key_dtype(self) -> DType:
        """Type of the keys."""
        return self._types["key_dtype"]

    @property
    def value_dtype(self) -> DType:
        """Type of the values."""
        return self._types["value_dtype"]

    def size(self, name: str | None = None) -> Tensor:
        """How many keys it has, int64."""
        return apply("LookupTableSizeV2", (self.resource_handle,), None, name)

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values of keys: a tensor of their shape, or a `SparseTensor` for one.

        Raises:
            TypeError: keys of another type. FailedPreconditionError, in a step: the table has not been filled.
        """
        if isinstance(keys, SparseTensor):
            return keys._mapped(lambda values: self.lookup(values, name))
        operands = self.resource_handle, convert(keys, self.key_dtype, name="keys"), self.default_value
        return apply("LookupTableFindV2", operands, dict(self._types), name)


HashTable = StaticHashTable


class StaticVocabularyTable:
    """Ids of words: those of a vocabulary, and behind these buckets for all other words.

    Args:
        initializer: from words (or int64) to ids from 0 on; None: only buckets. num_oov_buckets: how many.
        lookup_key_dtype: type of the keys where there is no initializer.

    Raises:
        ValueError: no buckets. TypeError: ids that are not int64.
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer | None,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        if num_oov_buckets <= 0:
            raise ValueError("oov_buckets must be > 0.")
        if initializer is not None and initializer.value_dtype is not int64:
            raise TypeError(f"Invalid value dtype, expected int64 but got {initializer.value_dtype.name}.")
        self._buckets = num_oov_buckets
        self._table = None if initializer is None else StaticHashTable(initializer, -1, name=name or "string_to_index")
        self._known = 0 if initializer is None else initializer.keys.shape.num_elements()
        key_dtype = initializer.key_dtype if initializer is not None else lookup_key_dtype or string
        self.key_dtype: DType = as_dtype(key_dtype).base

    @property
    def initializer(self) -> Node | None:
        """The node that fills it; None: there is nothing to fill."""
        return None if self._table is None else self._table.initializer

    init = initializer

    def size(self, name: str | None = None) -> Tensor:
        """How many ids there are, int64."""
        known = convert(0, int64) if self._table is None else self._table.size()
        return add(known, convert(self._buckets, int64), name=name)

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The ids of keys, int64, of their shape; of a `SparseTensor` a `SparseTensor`."""
        if isinstance(keys, SparseTensor):
            return keys._mapped(lambda values: self.lookup(values, name))
        with name_scope(name or "lookup"):
            words = convert(keys, self.key_dtype, name="keys")
            bucket = string_to_hash_bucket_fast(words if self.key_dtype is string else as_string(words), self._buckets)
            if self._table is None:
                return bucket
            found = self._table.lookup(words)
            return where(equal(found, convert(-1, int64)), add(bucket, cast(self._table.size(), int64)), found)


IdTableWithHashBuckets = StaticVocabularyTable


def index_table_from_tensor(
    vocabulary_list: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = None,
    dtype: Any = string,
    name: str | None = None,
) -> StaticHashTable | StaticVocabularyTable:
    """Ids of the words of a list: their places in it; others get the default, or one of the buckets behind (`tf.contrib.lookup`)."""
    words = convert(vocabulary_list, as_dtype(dtype).base)
    count = words.shape.num_elements()
    if not count:
        raise ValueError("vocabulary_list must not be empty, and its size must be known")
    ids = KeyValueTensorInitializer(words, np.arange(count))
    if num_oov_buckets > 0:
        return StaticVocabularyTable(ids, num_oov_buckets, name=name)
    return StaticHashTable(ids, default_value, name=name or "string_to_index")


def index_to_string_table_from_tensor(
    vocabulary_list: Sequence[Any], default_value: str = "UNK", name: str | None = None
) -> StaticHashTable:
    """Words by their places in a list (`tf.contrib.lookup`)."""
    words = convert(vocabulary_list, string)
    ids = np.arange(words.shape.num_elements() or 0)
    return StaticHashTable(KeyValueTensorInitializer(ids, words), default_value, name=name or "index_to_string")


def index_table_from_file(
    vocabulary_file: Any,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    key_dtype: Any = string,
    name: str | None = None,
) -> StaticHashTable | StaticVocabularyTable:
    """Ids of the words of a file, one a line: the numbers of their lines, from 0 (`tf.contrib.lookup`)."""
    line, number = TextFileIndex.WHOLE_LINE, TextFileIndex.LINE_NUMBER
    ids = TextFileInitializer(vocabulary_file, key_dtype, line, int64, number, vocab_size)
    if num_oov_buckets > 0:
        return StaticVocabularyTable(ids, num_oov_buckets, name=name)
    return StaticHashTable(ids, default_value, name=name or "string_to_index")


__all__ = [
    "HashTable",
    "IdTableWithHashBuckets",
    "KeyValueTensorInitializer",
    "StaticHashTable",
    "StaticVocabularyTable",
    "TextFileIndex",
    "TextFileInitializer",
    "index_table_from_file",
    "index_table_from_tensor",
    "index_to_string_table_from_tensor",
]
