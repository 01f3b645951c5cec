"""The functions by which programs name columns: they check, and make the values of `columns.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ....graph.core.dtypes import as_dtype, float32, int64, string
from ....graph.core.graph import Tensor
from ....graph.formats.text_lines import vocabulary_of
from ....graph.ops.array.creation import zeros_like
from ....graph.ops.math.compare import less, where
from ....graph.ops.strings.strings import as_string, string_to_hash_bucket_fast
from ..ops.hashing import vocabulary_index
from .columns import (
    COMBINERS,
    BucketizedColumn,
    CategoricalColumn,
    CrossedColumn,
    EmbeddingColumn,
    FeatureColumn,
    IndicatorColumn,
    KeyedColumn,
    NumericColumn,
    VocabularyFileColumn,
)


def numeric_column(
    key: str,
    shape: Any = (1,),
    default_value: Any = None,
    dtype: Any = float32,
    normalizer_fn: Callable[[Tensor], Any] | None = None,
) -> NumericColumn:
    """Numbers as they are.

    Args:
        key: the feature's name.
        shape: of an example's value; it becomes a row.
        default_value: for records that lack it.
        dtype: the feature's; numbers are cast to float32.
        normalizer_fn: what is done with them first.

    >>> numeric_column("age", normalizer_fn=lambda x: (x - 40.0) / 15.0)
    """
    dims = (shape,) if isinstance(shape, int) else tuple(int(d) for d in shape)
    if any(d < 1 for d in dims):
        raise ValueError(f"shape dimensions must be greater than 0, not {dims}")
    found = as_dtype(dtype)
    if not (found.is_integer or found.is_floating):
        raise ValueError(f"dtype must be convertible to float. dtype: {found.name}, key: {key}")
    if normalizer_fn is not None and not callable(normalizer_fn):
        raise TypeError(f"normalizer_fn must be a callable. Given: {normalizer_fn}")
    default = tuple(default_value) if isinstance(default_value, list) else default_value
    return NumericColumn(_key(key), dims, default, found, normalizer_fn)


def bucketized_column(source_column: NumericColumn, boundaries: Sequence[float]) -> BucketizedColumn:
    """The interval in which a number lies: below the first boundary, from it to below the second one, and so on.

    >>> bucketized_column(numeric_column("age"), [18, 30, 65])   # 4 buckets
    """
    if not isinstance(source_column, NumericColumn):
        raise ValueError(f"source_column must be a column generated with numeric_column(). Given: {source_column}")
    if len(source_column.shape) > 1:
        raise ValueError(f"source_column must be one-dimensional column. Given: {source_column}")
    limits = tuple(float(b) for b in boundaries)
    if not limits or any(a >= b for a, b in zip(limits, limits[1:], strict=False)):
        raise ValueError(f"boundaries must be a sorted list. Given: {list(boundaries)}")
    return BucketizedColumn(source_column, limits)


def categorical_column_with_identity(key: str, num_buckets: int, default_value: int | None = None) -> KeyedColumn:
    """Whole numbers that are ids themselves.

    Args:
        key: the feature's name.
        num_buckets: ids are smaller.
        default_value: the id in place of others; without it they are as if they were not there.
    """
    count = _count(num_buckets, "num_buckets")
    if default_value is not None and not 0 <= default_value < count:
        raise ValueError(f"default_value {default_value} not in range [0, {count}), column_name {key}")

    def to_ids(x: Tensor) -> Tensor:
        return where(
            less(x, zeros_like(x) + count), x, zeros_like(x) + (-1 if default_value is None else default_value)
        )

    return KeyedColumn(_key(key), count, int64, to_ids)


def categorical_column_with_hash_bucket(key: str, hash_bucket_size: int, dtype: Any = string) -> KeyedColumn:
    """Text, each by its hash: several may share an id. With an integer type, whole numbers, by the hash of their text."""
    count, found = _count(hash_bucket_size, "hash_bucket_size"), as_dtype(dtype)
    _check_kind(found, key)
    if found is string:
        return KeyedColumn(_key(key), count, found, lambda x: string_to_hash_bucket_fast(x, count))
    return KeyedColumn(_key(key), count, found, lambda x: string_to_hash_bucket_fast(as_string(x), count))


def categorical_column_with_vocabulary_list(
    key: str, vocabulary_list: Iterable[Any], dtype: Any = None, default_value: int = -1, num_oov_buckets: int = 0
) -> KeyedColumn:
    """Text or whole numbers, by their place in a list.

    Args:
        key: the feature's name.
        vocabulary_list: each value once.
        dtype: of them; None: as they are.
        default_value: the id of others; -1: as if they were not there.
        num_oov_buckets: or so many ids behind those of the list, by hash.
    """
    entries = [e.item() if hasattr(e, "item") else e for e in vocabulary_list]
    if not entries:
        raise ValueError(f"vocabulary_list [] must be non-empty, column_name: {key}")
    if len(set(entries)) != len(entries):
        raise ValueError(f"Duplicate keys in vocabulary_list {entries}, column_name: {key}")
    if num_oov_buckets and default_value != -1:
        raise ValueError(f"Can't specify both num_oov_buckets and default_value in {key}.")
    if num_oov_buckets < 0:
        raise ValueError(f"Invalid num_oov_buckets {num_oov_buckets} in {key}.")
    found = as_dtype(dtype) if dtype is not None else int64 if isinstance(entries[0], int) else string
    _check_kind(found, key)
    size = len(entries) + num_oov_buckets

    def to_ids(x: Tensor) -> Tensor:
        return vocabulary_index(x, entries, default_value, num_oov_buckets)

    return KeyedColumn(_key(key), size, found, to_ids)


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: Any,
    vocabulary_size: int | None = None,
    num_oov_buckets: int = 0,
    default_value: int | None = None,
    dtype: Any = string,
) -> VocabularyFileColumn:
    """As `categorical_column_with_vocabulary_list`; a line of the file for each value, of which `vocabulary_size` are taken."""
    lines = vocabulary_of(vocabulary_file)
    if vocabulary_size is not None:
        if len(lines) < vocabulary_size:
            raise ValueError(f"Invalid vocabulary_size in {key}: {vocabulary_size}; {vocabulary_file} has {len(lines)}")
        lines = lines[:vocabulary_size]
    found = as_dtype(dtype)
    entries = lines if found is string else [int(line) for line in lines]
    default = -1 if default_value is None else default_value
    made = categorical_column_with_vocabulary_list(key, entries, found, default, num_oov_buckets)
    return VocabularyFileColumn(
        made.key, made.num_buckets, made.dtype, made.to_ids, str(vocabulary_file), len(lines), num_oov_buckets, default
    )


def crossed_column(keys: Iterable[Any], hash_bucket_size: int, hash_key: int | None = None) -> CrossedColumn:
    """All combinations of an example's values of several features, each by its hash.

    Args:
        keys: names of features (text or whole numbers), or categorical columns; not those by hash.
        hash_bucket_size: ids are smaller.
        hash_key: another one spreads them otherwise.

    >>> crossed_column([bucketized_column(age, [30, 60]), "city"], 1000)
    """
    given = tuple(keys)
    if len(given) < 2:
        raise ValueError(f"keys must be a list with length > 1. Given: {given}")
    for key in given:
        if not isinstance(key, (str, CategoricalColumn)):
            raise ValueError(
                "Unsupported key type. All keys must be either string, or categorical column except "
                f"categorical_column_with_hash_bucket. Given: {key}"
            )
    return CrossedColumn(given, _count(hash_bucket_size, "hash_bucket_size"), hash_key)


def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """How often an example has each id of a categorical column: a row of zeros and ones, mostly."""
    return IndicatorColumn(_categorical(categorical_column))


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> EmbeddingColumn:
    """A row of a table for each id, learned; those of an example's ids are combined to one.

    Args:
        categorical_column: what gives the ids.
        dimension: numbers of a row.
        combiner: "mean", "sum" or "sqrtn" (by the root of their number).
        initializer: of the table; None: normal numbers, truncated, of deviation 1 / sqrt(dimension).
        max_norm: rows that are longer are cut to this length first.
        trainable: whether the table is trained.
    """
    if dimension is None or dimension < 1:
        raise ValueError(f"Invalid dimension {dimension}.")
    if combiner not in COMBINERS:
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', not {combiner!r}")
    if initializer is not None and not callable(initializer):
        raise ValueError(f"initializer must be callable if specified. Embedding of column_name: {categorical_column}")
    return EmbeddingColumn(_categorical(categorical_column), int(dimension), combiner, initializer, max_norm, trainable)


def make_parse_example_spec(feature_columns: Iterable[FeatureColumn]) -> dict[str, Any]:
    """What `dt.io.parse_example` needs to read what columns need.

    >>> features = dt.io.parse_example(serialized, make_parse_example_spec(columns))
    """
    out: dict[str, Any] = {}
    for column in feature_columns:
        for key, value in checked(column).parse_spec().items():
            if out.setdefault(key, value) != value:
                raise ValueError(
                    f"feature_columns contain different parse_spec for key {key}. Given {value} and {out[key]}"
                )
    return out


def checked(column: Any) -> FeatureColumn:
    """A feature column. ValueError: it is none."""
    if not isinstance(column, FeatureColumn):
        raise ValueError(
            f"Items of feature_columns must be a FeatureColumn. Given (type {type(column).__name__}): {column}"
        )
    return column


def _categorical(column: Any) -> CategoricalColumn:
    if not isinstance(column, CategoricalColumn):
        raise ValueError(f"Needs a categorical column, such as categorical_column_with_identity gives. Given: {column}")
    return column


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"key must be a string. Got: type {type(key).__name__}:{key}.")
    return key


def _count(value: Any, what: str) -> int:
    if value is None or value < 1:
        raise ValueError(f"{what} must be at least 1, not {value}")
    return int(value)


def _check_kind(dtype: Any, key: str) -> None:
    if dtype is not string and not dtype.is_integer:
        raise ValueError(f"dtype must be string or integer. dtype: {dtype.name}, column_name: {key}")


__all__ = [
    "bucketized_column", "categorical_column_with_hash_bucket", "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file", "categorical_column_with_vocabulary_list", "checked", "crossed_column", "embedding_column",
    "indicator_column", "make_parse_example_spec", "numeric_column",
]  # fmt: skip
