"""What a feature column is: how values of examples become ids, and how ids or numbers become rows of a matrix.

There are two kinds. A *categorical* column gives each example some ids below `num_buckets`, as a matrix `[examples, ids]` with -1 where
an example has fewer. A *dense* column gives each example a row of numbers, `[examples, width]`; it may have a table of its own, such as
an embedding. Some are made of others: a bucketized column is a numeric one's, an embedding a categorical one's.

Columns are values: they hold no variables. Those are made where a column is used (`layers.py`), in the variable scope that is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ....graph.core.build import convert
from ....graph.core.dtypes import DType, bool_, float32, int64, string
from ....graph.core.graph import Tensor
from ....graph.ops.array.creation import ones, zeros_like
from ....graph.ops.array.embedding import embedding_lookup
from ....graph.ops.array.gather import one_hot
from ....graph.ops.array.shapes import expand_dims, reshape, shape
from ....graph.ops.io.parsing import FixedLenFeature, VarLenFeature
from ....graph.ops.math.arithmetic import div_no_nan, maximum, multiply, sqrt
from ....graph.ops.math.cast import cast
from ....graph.ops.math.clip import clip_by_norm
from ....graph.ops.math.compare import greater_equal, where
from ....graph.ops.math.reduce import reduce_sum
from ....graph.ops.sparse.arrange import sparse_tensor_to_dense
from ....graph.tensors.sparse_tensor import SparseTensor
from ....graph.variables.initializers import truncated_normal_initializer
from ....graph.variables.scope import get_variable
from ..ops.hashing import cross_hashed, is_there

COMBINERS = ("sum", "mean", "sqrtn")
Features = Mapping[str, Any]


class FeatureColumn:
    """Base of all columns. `name` tells them apart, and names their variables."""

    name: str

    def parse_spec(self) -> dict[str, Any]:
        """Name -> how `dt.io.parse_example` reads what the column needs."""
        raise NotImplementedError


class CategoricalColumn(FeatureColumn):
    """A column of ids."""

    num_buckets: int

    def ids(self, features: Features) -> Tensor:
        """`[examples, ids]`, int64, -1 where an example has fewer."""
        raise NotImplementedError


class DenseColumn(FeatureColumn):
    """A column of numbers."""

    @property
    def width(self) -> int:
        """Numbers of an example."""
        raise NotImplementedError

    def rows(self, features: Features, trainable: bool = True) -> Tensor:
        """`[examples, width]`, float32. Makes the column's variables in the open variable scope."""
        raise NotImplementedError


def values_of(features: Features, key: str) -> Tensor:
    """The values of a feature, at least `[examples, values]`; where a sparse one has none, -1 or ''.

    Raises:
        ValueError: there is no such feature, or it has no examples.
    """
    if key not in features:
        raise ValueError(f"Feature {key} is not in features dictionary: {', '.join(sorted(map(str, features)))}")
    given = features[key]
    if isinstance(given, SparseTensor):
        return sparse_tensor_to_dense(given, "" if given.dtype.base is string else -1)
    x = convert(given)
    if x.shape.rank == 0:
        raise ValueError(f"Feature (key: {key}) cannot have rank 0: its first axis is that of examples")
    return expand_dims(x, -1) if x.shape.rank == 1 else x


# --- numbers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumericColumn(DenseColumn):
    """See `numeric_column`."""

    key: str
    shape: tuple[int, ...]
    default_value: Any
    dtype: DType
    normalizer_fn: Callable[[Tensor], Any] | None

    @property
    def name(self) -> str:  # type: ignore[override]
        """As `FeatureColumn.name`."""
        return self.key

    @property
    def width(self) -> int:
        """As `DenseColumn.width`."""
        return math.prod(self.shape)

    def parse_spec(self) -> dict[str, Any]:
        """As `FeatureColumn.parse_spec`."""
        return {self.key: FixedLenFeature(self.shape, self.dtype, self.default_value)}

    def numbers(self, features: Features) -> Tensor:
        """`[examples, width]`, as they are given, normalized."""
        if isinstance(features.get(self.key), SparseTensor):
            raise ValueError(f"The feature of column {self.key!r} must be a dense tensor, not a SparseTensor")
        x = values_of(features, self.key)
        if self.normalizer_fn is not None:
            x = convert(self.normalizer_fn(x))
        return reshape(cast(x, float32), [-1, self.width])

    def rows(self, features: Features, trainable: bool = True) -> Tensor:
        """As `DenseColumn.rows`."""
        return self.numbers(features)


@dataclass(frozen=True, slots=True)
class BucketizedColumn(DenseColumn, CategoricalColumn):
    """See `bucketized_column`."""

    source_column: NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        """As `FeatureColumn.name`."""
        return f"{self.source_column.name}_bucketized"

    @property
    def _buckets(self) -> int:
        return len(self.boundaries) + 1

    @property
    def num_buckets(self) -> int:  # type: ignore[override]
        """As `CategoricalColumn.num_buckets`: each number of an example has buckets of its own."""
        return self._buckets * self.source_column.width

    @property
    def width(self) -> int:
        """As `DenseColumn.width`."""
        return self.num_buckets

    def parse_spec(self) -> dict[str, Any]:
        """As `FeatureColumn.parse_spec`."""
        return self.source_column.parse_spec()

    def buckets(self, features: Features) -> Tensor:
        """The bucket of each number, `[examples, numbers]`."""
        x = expand_dims(self.source_column.numbers(features), -1)
        return reduce_sum(cast(greater_equal(x, convert(self.boundaries, float32)), int64), -1)

    def ids(self, features: Features) -> Tensor:
        """As `CategoricalColumn.ids`."""
        return self.buckets(features) + [i * self._buckets for i in range(self.source_column.width)]

    def rows(self, features: Features, trainable: bool = True) -> Tensor:
        """As `DenseColumn.rows`: a one for the bucket of each number."""
        return reshape(one_hot(self.buckets(features), self._buckets), [-1, self.width])


# --- ids --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyedColumn(CategoricalColumn):
    """A categorical column of one feature: what its values become ids by, `to_ids`.

    Attributes:
        key: the feature's name. num_buckets: ids are smaller. dtype: of the feature's values.
        to_ids: values, and which of them are there -> ids.
    """

    key: str
    num_buckets: int
    dtype: DType
    to_ids: Callable[[Tensor], Tensor]

    @property
    def name(self) -> str:  # type: ignore[override]
        """As `FeatureColumn.name`."""
        return self.key

    def parse_spec(self) -> dict[str, Any]:
        """As `FeatureColumn.parse_spec`."""
        return {self.key: VarLenFeature(self.dtype)}

    def ids(self, features: Features) -> Tensor:
        """As `CategoricalColumn.ids`."""
        x = values_of(features, self.key)
        is_text = x.dtype.base is string
        if is_text != (self.dtype is string):
            raise ValueError(
                f"Column {self.key!r} is for values of type {self.dtype.name}, and the feature is {x.dtype.base.name}"
            )
        if not is_text and not x.dtype.base.is_integer:
            raise ValueError(
                f"Feature {self.key!r} of a categorical column must be text or integers, not {x.dtype.name}"
            )
        x = reshape(x, [shape(x)[0], -1])
        found = self.to_ids(x if is_text else cast(x, int64))
        return where(is_there(x), found, zeros_like(found) - 1)


@dataclass(frozen=True, slots=True)
class VocabularyFileColumn(KeyedColumn):
    """A categorical column whose values are the lines of a file.

    Attributes:
        vocabulary_file: the file. vocabulary_size: how many of its lines count. num_oov_buckets: how many ids others share.
        default_value: the id of others.
    """

    vocabulary_file: str
    vocabulary_size: int
    num_oov_buckets: int
    default_value: int


@dataclass(frozen=True, slots=True)
class CrossedColumn(CategoricalColumn):
    """See `crossed_column`."""

    keys: tuple[Any, ...]
    num_buckets: int
    hash_key: int | None

    @property
    def name(self) -> str:  # type: ignore[override]
        """As `FeatureColumn.name`."""
        return "_X_".join(sorted(self._leaves()))

    def _leaves(self) -> list[str]:
        out: list[str] = []
        for key in self.keys:
            out += key._leaves() if isinstance(key, CrossedColumn) else [key if isinstance(key, str) else key.name]
        return out

    def parse_spec(self) -> dict[str, Any]:
        """As `FeatureColumn.parse_spec`."""
        out: dict[str, Any] = {}
        for key in self.keys:
            out |= {key: VarLenFeature(string)} if isinstance(key, str) else key.parse_spec()
        return out

    def _values(self, features: Features) -> list[tuple[bool, Tensor, Tensor]]:
        """For each leaf, whether it is a dense feature, its values, and which of them are there: of a feature itself, all that it has."""
        out: list[tuple[bool, Tensor, Tensor]] = []
        for key in self.keys:
            if isinstance(key, CrossedColumn):
                out += key._values(features)
            elif isinstance(key, str):
                x = values_of(features, key)
                given = features[key]
                is_dense = not isinstance(given, SparseTensor)
                there = ones(shape(x), bool_)
                if isinstance(given, SparseTensor):
                    each = SparseTensor(given.indices, ones(shape(given.values), bool_), given.dense_shape)
                    there = sparse_tensor_to_dense(each, False)
                out.append((is_dense, x if x.dtype.base is string else cast(x, int64), there))
            else:
                found = key.ids(features)
                out.append((False, found, is_there(found)))
        return out

    def ids(self, features: Features) -> Tensor:
        """As `CategoricalColumn.ids`."""
        # TensorFlow's op takes sparse values first, whatever the order of the keys: other orders have other hashes.
        leaves = sorted(self._values(features), key=lambda of_leaf: of_leaf[0])
        values, present = [x for _, x, _ in leaves], [there for _, _, there in leaves]
        return cross_hashed(values, self.num_buckets, self.hash_key, present=present)


# --- rows by ids ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndicatorColumn(DenseColumn):
    """See `indicator_column`."""

    categorical_column: CategoricalColumn

    @property
    def name(self) -> str:  # type: ignore[override]
        """As `FeatureColumn.name`."""
        return f"{self.categorical_column.name}_indicator"

    @property
    def width(self) -> int:
        """As `DenseColumn.width`."""
        return self.categorical_column.num_buckets

    def parse_spec(self) -> dict[str, Any]:
        """As `FeatureColumn.parse_spec`."""
        return self.categorical_column.parse_spec()

    def rows(self, features: Features, trainable: bool = True) -> Tensor:
        """As `DenseColumn.rows`: how often an example has each id."""
        return reduce_sum(one_hot(self.categorical_column.ids(features), self.width), 1)


@dataclass(frozen=True, slots=True)
class EmbeddingColumn(DenseColumn):
    """See `embedding_column`."""

    categorical_column: CategoricalColumn
    dimension: int
    combiner: str
    initializer: Any
    max_norm: float | None
    trainable: bool

    @property
    def name(self) -> str:  # type: ignore[override]
        """As `FeatureColumn.name`."""
        return f"{self.categorical_column.name}_embedding"

    @property
    def width(self) -> int:
        """As `DenseColumn.width`."""
        return self.dimension

    def parse_spec(self) -> dict[str, Any]:
        """As `FeatureColumn.parse_spec`."""
        return self.categorical_column.parse_spec()

    def rows(self, features: Features, trainable: bool = True) -> Tensor:
        """As `DenseColumn.rows`."""
        initializer = self.initializer or truncated_normal_initializer(0.0, 1 / math.sqrt(self.dimension))
        size = [self.categorical_column.num_buckets, self.dimension]
        table = get_variable("embedding_weights", size, float32, initializer, trainable=self.trainable and trainable)
        return combined(table, self.categorical_column.ids(features), self.combiner, self.max_norm)


def combined(table: Any, ids: Tensor, combiner: str, max_norm: float | None = None) -> Tensor:
    """The rows of a table (or its parts) at the ids of each example, as one row: zeros for an example without any."""
    there = cast(greater_equal(ids, zeros_like(ids)), float32)
    rows = embedding_lookup(table, maximum(ids, zeros_like(ids)), partition_strategy="div")
    if max_norm is not None:
        rows = clip_by_norm(rows, max_norm, axes=[-1])
    total = reduce_sum(multiply(rows, expand_dims(there, -1)), 1)
    if combiner == "sum":
        return total
    count = reduce_sum(there, 1, keepdims=True)
    return div_no_nan(total, count if combiner == "mean" else sqrt(count))


__all__ = [
    "COMBINERS", "BucketizedColumn", "CategoricalColumn", "CrossedColumn", "DenseColumn", "EmbeddingColumn", "FeatureColumn", "Features",
    "IndicatorColumn", "KeyedColumn", "NumericColumn", "VocabularyFileColumn", "combined", "values_of",
]  # fmt: skip
