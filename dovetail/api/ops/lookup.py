"""`dt.lookup`: tables from keys to values, such as a vocabulary.

The node `table.initializer` initializes one table, `dt.lookup.tables_initializer()` all tables. Monitored sessions run the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from ...graph.core.build import apply, convert, make
from ...graph.core.constant_value import static_value
from ...graph.core.default_graph import GraphKeys, get_default_graph, name_scope
from ...graph.core.dtypes import DType, as_dtype, int64, string
from ...graph.core.graph import Node, Tensor
from ...graph.ops.array.identity_and_placeholders import group, no_op
from ...graph.ops.math.arithmetic import add
from ...graph.ops.math.cast import cast
from ...graph.ops.math.compare import equal, where
from ...graph.ops.math.static_operands import as_bytes
from ...graph.ops.state import tables as _tables  # noqa: F401  (defines the ops)
from ...graph.ops.strings.strings import as_string, string_to_hash_bucket_fast, string_to_hash_bucket_strong
from ...graph.tensors.sparse_tensor import SparseTensor


class TextFileIndex:
    """Values of `key_index` and `value_index`: the whole line, or its number, from 0."""

    WHOLE_LINE, LINE_NUMBER = -2, -1


class KeyValueTensorInitializer:
    """Initializes a table with given keys and values.

    Args:
        keys: the keys, of shape [n].
        values: their values, of shape [n].
        key_dtype: dtype of the keys. None: that of `keys`.
        value_dtype: dtype of the values. None: that of `values`.
        name: name scope.
    """

    def __init__(
        self, keys: Any, values: Any, key_dtype: Any = None, value_dtype: Any = None, name: str | None = None
    ) -> None:
        with get_default_graph().init_scope(), name_scope(name or "key_value_init"):
            self.keys: Tensor = convert(keys, key_dtype, name="keys")
            self.values: Tensor = convert(values, value_dtype, name="values")
        self.key_dtype: DType = self.keys.dtype.base
        self.value_dtype: DType = self.values.dtype.base
        self._shared_name = ""

    def initialize(self, table: Any) -> Node:
        """A node that initializes `table`."""
        return make("LookupTableImportV2", (table.resource_handle, self.keys, self.values), None, "table_init")


class TextFileInitializer:
    """Initializes a table from a text file. The task of the table reads the file when the initializer runs.

    If `filename` is a string, tables of the same columns share their contents in a task.

    Args:
        filename: the file name, a string or a tensor.
        key_dtype: dtype of the keys, int64 or string.
        key_index: the column of the keys, from 0, or `TextFileIndex.WHOLE_LINE` or `TextFileIndex.LINE_NUMBER`.
        value_dtype: dtype of the values: int64, string or float32.
        value_index: the column of the values, likewise.
        vocab_size: number of lines to read. None: all.
        delimiter: the separator of columns.
        name: name scope.

    Raises:
        ValueError: the name is empty, or an index is invalid.
        TypeError: the tensor `filename` is not a string.
        NotFoundError: the file does not exist, in the step that runs the initializer.
        InvalidArgumentError: a line lacks the column or has no number there, or the file has too few lines, in that step.
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
        if not isinstance(filename, Tensor) and not filename:
            raise ValueError("Filename required for a table's initializer")
        self.key_dtype: DType = as_dtype(key_dtype).base
        self.value_dtype: DType = as_dtype(value_dtype).base
        for index, dtype, what in ((key_index, self.key_dtype, "key"), (value_index, self.value_dtype, "value")):
            if index < TextFileIndex.WHOLE_LINE:
                raise ValueError(f"Invalid {what} index {index}.")
            if index == TextFileIndex.LINE_NUMBER and dtype is not int64:
                raise ValueError(
                    f"Signature mismatch. {what} must be dtype int64, got {dtype.name}: it is a line's number"
                )
            if index == TextFileIndex.WHOLE_LINE and dtype not in (string, int64):
                raise ValueError(
                    f"Signature mismatch. {what} must be dtype string or int64, got {dtype.name}: it is a line"
                )
        if vocab_size is not None and vocab_size <= 0:
            raise ValueError(f"Invalid vocab_size {vocab_size}.")
        with get_default_graph().init_scope(), name_scope(name or "text_file_init"):
            self._file = convert(str(filename) if isinstance(filename, PurePath) else filename, name="filename")
            if self._file.dtype.base is not string:
                raise TypeError(f"filename must be a string, not {self._file.dtype.name}")
        self._attrs = {
            "key_index": int(key_index), "value_index": int(value_index), "vocab_size": -1 if vocab_size is None else int(vocab_size),
            "delimiter": delimiter,
        }  # fmt: skip
        size = "" if vocab_size is None else f"_{vocab_size}"
        named = not isinstance(filename, Tensor)
        self._shared_name = f"hash_table_{filename}{size}_{key_index}_{value_index}" if named else ""

    def initialize(self, table: Any) -> Node:
        """A node that initializes `table`."""
        attrs = {**self._attrs, "key_dtype": self.key_dtype, "value_dtype": self.value_dtype}
        found = make("InitializeTableFromTextFileV2", (table.resource_handle, self._file), attrs, "table_init")
        if static_value(self._file) is not None:
            get_default_graph().add_to_collection(GraphKeys.ASSET_FILEPATHS, self._file)
        return found


Initializer = KeyValueTensorInitializer | TextFileInitializer


class _HashTable:
    """Base of immutable and mutable hash tables."""

    resource_handle: Tensor
    _types: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the table's node, without name scopes."""
        return self.resource_handle.op.name.rpartition("/")[2]

    def size(self, name: str | None = None) -> Tensor:
        """The number of keys, int64."""
        return apply("LookupTableSizeV2", (self.resource_handle,), None, name)

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """All keys and their values, as two tensors in the same order."""
        node = make("LookupTableExportV2", (self.resource_handle,), dict(self._types), name)
        return node.outputs[0], node.outputs[1]


class StaticHashTable(_HashTable):
    """An immutable table from keys to values.

    Args:
        initializer: a `KeyValueTensorInitializer` or `TextFileInitializer`.
        default_value: the value of keys that are not in the table.
        shared_name: tables of one task with the same shared name share their contents.
        name: name of the node.

    Attributes:
        initializer: the node that initializes the table.
        resource_handle: the handle of the table, a tensor.
        default_value: the value of keys that are not in the table, a tensor.

    >>> table = StaticHashTable(KeyValueTensorInitializer(["a", "b"], [1, 2]), default_value=-1)
    >>> table.lookup(dt.constant(["b", "c"]))   # evaluates to [2, -1]
    """

    def __init__(
        self,
        initializer: Initializer,
        default_value: Any,
        shared_name: str | None = None,
        name: str | None = None,
    ) -> None:
        self._types = {"key_dtype": initializer.key_dtype, "value_dtype": initializer.value_dtype}
        graph = get_default_graph()
        with graph.init_scope(), name_scope(name or "hash_table") as scope:
            self.default_value: Tensor = convert(default_value, initializer.value_dtype, name="default_value")
            attrs = {**self._types, "shared_name": shared_name or initializer._shared_name}
            self.resource_handle: Tensor = graph.create("HashTableV2", (), attrs, scope).outputs[0]
            self.initializer: Node = initializer.initialize(self)
        graph.add_to_collection(GraphKeys.TABLE_INITIALIZERS, self.initializer)

    @property
    def init(self) -> Node:
        """The node that initializes the table."""
        return self.initializer

    @property
    def key_dtype(self) -> DType:
        """Dtype of the keys."""
        dtype: DType = self._types["key_dtype"]
        return dtype

    @property
    def value_dtype(self) -> DType:
        """Dtype of the values."""
        dtype: DType = self._types["value_dtype"]
        return dtype

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values of keys: a tensor with the shape of `keys`, or a `SparseTensor` if `keys` is one.

        Raises:
            TypeError: the keys have another dtype than the table.
            FailedPreconditionError: the table has not been initialized, in the step.
        """
        if isinstance(keys, SparseTensor):
            return keys._mapped(lambda values: self.lookup(values, name))
        operands = self.resource_handle, convert(keys, self.key_dtype, name="keys"), self.default_value
        return apply("LookupTableFindV2", operands, dict(self._types), name)


HashTable = StaticHashTable


class HasherSpec(NamedTuple):
    """The hash function that assigns unknown words to buckets (`tf.contrib.lookup`).

    Attributes:
        hasher: "fasthash", or "stronghash" (SipHash).
        key: two integers for "stronghash", else None.
    """

    hasher: str
    key: Sequence[int] | None = None


FastHashSpec = HasherSpec("fasthash")


def StrongHashSpec(key: Sequence[int]) -> HasherSpec:
    """A keyed hash function, whose buckets cannot be predicted without the key.

    Args:
        key: two unsigned integers.

    Raises:
        ValueError: the key does not have two elements.
        TypeError: an element is not an integer.
    """
    if len(key) != 2:
        raise ValueError(f"key must have size 2, got {len(key)}.")
    if not all(isinstance(k, (int, np.integer)) for k in key):
        raise TypeError(f"Invalid key {key!r}. Must be unsigned integer values.")
    return HasherSpec("stronghash", key)


class IdTableWithHashBuckets:
    """Maps the words of a table to their ids, and all other words to hash buckets. The ids of buckets follow those of the table.

    Args:
        table: a table from words, or from int64, to ids from 0 on. None: all words are hashed.
        num_oov_buckets: number of hash buckets.
        hasher_spec: the hash function.
        name: accepted without effect.
        key_dtype: dtype of the keys. None: that of the table, or string. A table of int64 keys accepts int32 and int64.

    Raises:
        ValueError: there are neither buckets nor a table. `lookup` raises it for an unknown hasher.
        TypeError: the ids are not int64, the keys have another dtype than the table, or `hasher_spec` is not a `HasherSpec`.
    """

    def __init__(
        self,
        table: Any,
        num_oov_buckets: int,
        hasher_spec: HasherSpec | None = FastHashSpec,
        name: str | None = None,
        key_dtype: Any = None,
    ) -> None:
        if not isinstance(hasher_spec or FastHashSpec, HasherSpec):
            raise TypeError(f"hasher_spec must be of type HasherSpec, got {hasher_spec!r}")
        if num_oov_buckets < 0 or (table is None and not num_oov_buckets):
            raise ValueError("oov_buckets must be > 0 if no table is supplied.")
        if table is not None and table.value_dtype is not int64:
            raise TypeError(f"Invalid value dtype, expected int64 but got {table.value_dtype.name}.")
        inner = string if table is None else table.key_dtype
        self.key_dtype: DType = inner if key_dtype is None else as_dtype(key_dtype).base
        if not (self.key_dtype.is_integer or self.key_dtype is string):
            raise TypeError(f"Invalid key_dtype, expected integer or string but got {self.key_dtype.name}.")
        if table is not None and inner is not self.key_dtype and not (inner.is_integer and self.key_dtype.is_integer):
            raise TypeError(f"Invalid key_dtype {self.key_dtype.name} for a table of {inner.name}")
        self._buckets, self._table, self._hasher = num_oov_buckets, table, hasher_spec or FastHashSpec

    @property
    def initializer(self) -> Node:
        """The node that initializes the table. Without a table it does nothing."""
        found: Node = no_op() if self._table is None else self._table.initializer
        return found

    @property
    def init(self) -> Node:
        """The node that initializes the table."""
        return self.initializer

    @property
    def resource_handle(self) -> Tensor | None:
        """The handle of the table, or None if there is no table."""
        return None if self._table is None else self._table.resource_handle

    def size(self, name: str | None = None) -> Tensor:
        """The number of ids including buckets, an int64 scalar."""
        known = convert(0, int64) if self._table is None else self._table.size()
        return add(known, convert(self._buckets, int64), name=name)

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The ids of keys: an int64 tensor with the shape of `keys`, or a `SparseTensor` if `keys` is one."""
        if isinstance(keys, SparseTensor):
            return keys._mapped(lambda values: self.lookup(values, name))
        with name_scope(name or "lookup"):
            words = convert(keys, self.key_dtype, name="keys")
            if self.key_dtype is not string:
                words = cast(words, int64)
            if not self._buckets:
                return self._table.lookup(words)
            bucket = self._bucket_of(words if words.dtype.base is string else as_string(words))
            if self._table is None:
                return bucket
            found = self._table.lookup(words)
            missing = equal(found, self._table.default_value)
            return where(missing, add(bucket, cast(self._table.size(), int64)), found)

    def _bucket_of(self, words: Tensor) -> Tensor:
        hasher, key = self._hasher
        if hasher == "fasthash":
            return string_to_hash_bucket_fast(words, self._buckets)
        if hasher == "stronghash" and key is not None:
            return string_to_hash_bucket_strong(words, self._buckets, key)
        raise ValueError(f"Unknown hasher {hasher!r}: use FastHashSpec or StrongHashSpec(key)")


class StaticVocabularyTable(IdTableWithHashBuckets):
    """Maps the words of a vocabulary to their ids, and all other words to hash buckets.

    Args:
        initializer: initializer of a table from words, or from int64, to ids from 0 on. None: all words are hashed.
        num_oov_buckets: number of hash buckets, at least 1.
        lookup_key_dtype: dtype of the keys. None: that of the vocabulary, or string.
        name: name of the table's node.

    Raises:
        ValueError: there are no buckets.
        TypeError: the ids are not int64.

    >>> words = KeyValueTensorInitializer(["the", "a"], dt.constant([0, 1], dt.int64))
    >>> StaticVocabularyTable(words, num_oov_buckets=1).lookup(dt.constant(["a", "zebra"]))   # evaluates to [1, 2]
    """

    def __init__(
        self,
        initializer: Initializer | None,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        if num_oov_buckets <= 0:
            raise ValueError("oov_buckets must be > 0.")
        if initializer is not None and initializer.value_dtype is not int64:
            raise TypeError(f"Invalid value dtype, expected int64 but got {initializer.value_dtype.name}.")
        table = None if initializer is None else StaticHashTable(initializer, -1, name=name or "string_to_index")
        super().__init__(table, num_oov_buckets, name=name, key_dtype=lookup_key_dtype)


class DenseHashTable(_HashTable):
    """A mutable table from keys of one shape to values of one shape.

    Args:
        key_dtype: dtype of the keys.
        value_dtype: dtype of the values.
        default_value: the value of keys that are not in the table. Its shape is the shape of each value.
        empty_key: a reserved key that cannot be inserted. Its shape is the shape of each key.
        deleted_key: another reserved key.
        initial_num_buckets: accepted without effect.
        name: name of the node.
        checkpoint: whether savers save the table with the variables, as `<table>-keys` and `<table>-values`.
        shared_name: tables of one task with the same shared name share their contents.

    >>> table = DenseHashTable(dt.int64, dt.float32, 0.0, empty_key=-1, deleted_key=-2)
    >>> session.run(table.insert([7], [0.5]))
    """

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        empty_key: Any,
        deleted_key: Any,
        initial_num_buckets: int | None = None,
        name: str = "MutableDenseHashTable",
        checkpoint: bool = True,
        shared_name: str | None = None,
    ) -> None:
        self.key_dtype: DType = as_dtype(key_dtype).base
        self.value_dtype: DType = as_dtype(value_dtype).base
        graph = get_default_graph()
        with graph.init_scope(), name_scope(name) as scope:
            self.default_value: Tensor = convert(default_value, self.value_dtype, name="default_value")
            kept = [convert(key, self.key_dtype, name=n) for key, n in ((empty_key, "empty"), (deleted_key, "deleted"))]
            self._types = {
                "key_dtype": self.key_dtype, "value_dtype": self.value_dtype, "key_shape": kept[0].dims,
                "value_shape": self.default_value.dims,
            }  # fmt: skip
            attrs = {**self._types, "shared_name": shared_name or ""}
            self.resource_handle: Tensor = graph.create("MutableDenseHashTableV2", kept, attrs, scope).outputs[0]
        if checkpoint:
            graph.add_to_collection(GraphKeys.SAVEABLE_OBJECTS, self)

    def lookup(self, keys: Any, name: str | None = None) -> Tensor:
        """The values of keys. For keys of shape [*n, *key] the shape is [*n, *value]."""
        operands = self.resource_handle, convert(keys, self.key_dtype, name="keys"), self.default_value
        return apply("LookupTableFindV2", operands, dict(self._types), name)

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Node:
        """A node that inserts keys, or replaces their values. InvalidArgumentError: a key is reserved, in the step."""
        operands = convert(keys, self.key_dtype, name="keys"), convert(values, self.value_dtype, name="values")
        return make("LookupTableInsertV2", (self.resource_handle, *operands), None, name)

    insert_or_assign = insert

    def remove(self, keys: Any, name: str | None = None) -> Node:
        """A node that removes keys. It ignores keys that are not in the table."""
        return make(
            "LookupTableRemoveV2", (self.resource_handle, convert(keys, self.key_dtype, name="keys")), None, name
        )

    erase = remove


def _ids(
    fill: Initializer,
    num_oov_buckets: int,
    hasher_spec: HasherSpec | None,
    default_value: Any,
    key_dtype: DType,
    name: str | None,
) -> StaticHashTable | IdTableWithHashBuckets:
    table = StaticHashTable(fill, default_value, name=name or "string_to_index")
    if num_oov_buckets <= 0:
        return table
    return IdTableWithHashBuckets(table, num_oov_buckets, hasher_spec, key_dtype=key_dtype)


def index_table_from_tensor(
    vocabulary_list: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: HasherSpec | None = FastHashSpec,
    dtype: Any = string,
    name: str | None = None,
) -> StaticHashTable | IdTableWithHashBuckets:
    """A table from the words of a list to their indices (`tf.contrib.lookup`).

    Args:
        vocabulary_list: words or integers, of shape [n].
        num_oov_buckets: number of hash buckets for other words. 0: other words get the default value.
        default_value: the index of other words if there are no buckets.
        hasher_spec: the hash function of the buckets.
        dtype: dtype of the words.
        name: name of the table's node.

    Raises:
        ValueError: the list is empty, or the number of buckets is negative.
    """
    if vocabulary_list is None:
        raise ValueError("vocabulary_list must be specified.")
    if num_oov_buckets < 0:
        raise ValueError(f"num_oov_buckets must be greater or equal than 0, got {num_oov_buckets}.")
    words = convert(vocabulary_list, as_dtype(dtype).base)
    count = words.shape.num_elements()
    if not count:
        raise ValueError("vocabulary_list must not be empty, and its size must be known")
    keys = cast(words, int64) if words.dtype.base.is_integer else words
    fill = KeyValueTensorInitializer(keys, np.arange(count))
    return _ids(fill, num_oov_buckets, hasher_spec, default_value, words.dtype.base, name)


def index_to_string_table_from_tensor(
    vocabulary_list: Sequence[Any], default_value: str = "UNK", name: str | None = None
) -> StaticHashTable:
    """A table from indices to the words of a list (`tf.contrib.lookup`)."""
    if vocabulary_list is None:
        raise ValueError("vocabulary_list must be specified.")
    words = convert(vocabulary_list, string)
    ids = np.arange(words.shape.num_elements() or 0)
    return StaticHashTable(KeyValueTensorInitializer(ids, words), default_value, name=name or "index_to_string")


def _check_file(vocabulary_file: Any, vocab_size: int | None) -> None:
    if not isinstance(vocabulary_file, Tensor) and not vocabulary_file:
        raise ValueError("vocabulary_file must be specified and must not be empty.")
    if vocab_size is not None and vocab_size < 1:
        known = static_value(vocabulary_file) if isinstance(vocabulary_file, Tensor) else None
        file = vocabulary_file if known is None else as_bytes(known.item()).decode()
        raise ValueError(f"vocab_size must be greater than 0, got {vocab_size}. vocabulary_file: {file}")


def index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: HasherSpec | None = FastHashSpec,
    key_dtype: Any = string,
    name: str | None = None,
    key_column_index: int = TextFileIndex.WHOLE_LINE,
    value_column_index: int = TextFileIndex.LINE_NUMBER,
    delimiter: str = "\t",
) -> StaticHashTable | IdTableWithHashBuckets:
    """A table from the words of a file to ids (`tf.contrib.lookup`). By default each line is a word, and its id is the line number, from 0.

    Args:
        vocabulary_file: the file name, a string or a tensor.
        num_oov_buckets: number of hash buckets for other words. 0: other words get the default value.
        vocab_size: number of lines to read. None: all.
        default_value: the id of other words if there are no buckets.
        hasher_spec: the hash function of the buckets.
        key_dtype: dtype of the words, string or an integer dtype.
        name: name of the table's node.
        key_column_index: the column of the words, from 0, or a `TextFileIndex`.
        value_column_index: the column of the ids, likewise.
        delimiter: the separator of columns.

    Raises:
        ValueError: the file name is empty, or a number is out of range.
        TypeError: the keys are neither strings nor integers.
    """
    _check_file(vocabulary_file, vocab_size)
    if num_oov_buckets < 0:
        raise ValueError(f"num_oov_buckets must be greater or equal than 0, got {num_oov_buckets}.")
    kind = as_dtype(key_dtype).base
    if not (kind.is_integer or kind is string):
        raise TypeError("Only integer and string keys are supported.")
    inner = int64 if kind.is_integer else string
    fill = TextFileInitializer(
        vocabulary_file, inner, key_column_index, int64, value_column_index, vocab_size, delimiter
    )
    return _ids(fill, num_oov_buckets, hasher_spec, default_value, kind, name)


def index_to_string_table_from_file(
    vocabulary_file: Any,
    vocab_size: int | None = None,
    default_value: str = "UNK",
    name: str | None = None,
    key_column_index: int = TextFileIndex.LINE_NUMBER,
    value_column_index: int = TextFileIndex.WHOLE_LINE,
    delimiter: str = "\t",
) -> StaticHashTable:
    """A table from ids to the words of a file (`tf.contrib.lookup`). Arguments and errors are as in `index_table_from_file`."""
    _check_file(vocabulary_file, vocab_size)
    fill = TextFileInitializer(
        vocabulary_file, int64, key_column_index, string, value_column_index, vocab_size, delimiter
    )
    return StaticHashTable(fill, default_value, name=name or "index_to_string")


def tables_initializer(name: str = "init_all_tables") -> Node:
    """A node that initializes every table in the collection `GraphKeys.TABLE_INITIALIZERS`."""
    found = get_default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS)
    return group(*found, name=name) if found else no_op(name=name)


class _Experimental:
    """`dt.lookup.experimental`."""

    DenseHashTable = DenseHashTable


experimental = _Experimental()

__all__ = [
    "DenseHashTable",
    "HashTable",
    "IdTableWithHashBuckets",
    "KeyValueTensorInitializer",
    "StaticHashTable",
    "StaticVocabularyTable",
    "TextFileIndex",
    "TextFileInitializer",
    "experimental",
    "index_table_from_file",
    "index_table_from_tensor",
    "index_to_string_table_from_file",
    "index_to_string_table_from_tensor",
    "tables_initializer",
]
