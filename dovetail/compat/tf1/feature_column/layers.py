"""Where columns become part of a model: `input_layer`, and `linear_model`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ....graph.core.dtypes import float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import concat
from ....graph.ops.linalg.linalg import matmul
from ....graph.ops.math.arithmetic import add_n
from ....graph.variables.initializers import zeros_initializer
from ....graph.variables.partitioned import PartitionedVariable
from ....graph.variables.scope import get_variable, variable_scope
from .columns import CategoricalColumn, DenseColumn, Features, combined
from .make import checked


def input_layer(
    features: Features,
    feature_columns: Any,
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, list[Any]] | None = None,
) -> Tensor:
    """What dense columns give, beside each other in the order of their names: float32 `[examples, width]`.

    Args:
        features: name -> tensor or `SparseTensor`.
        feature_columns: numeric, bucketized, indicator and embedding columns.
        weight_collections: accepted.
        trainable: whether tables are trained.
        cols_to_vars: gets each column's variables.

    Raises:
        ValueError: a column is none, or is categorical: put an embedding or indicator column around it.

    >>> net = input_layer(features, [numeric_column("age"), embedding_column(city, 8)])
    """
    with variable_scope(None, "input_layer"):
        rows = []
        for column in _sorted(feature_columns):
            if not isinstance(column, DenseColumn):
                raise ValueError(
                    "Items of feature_columns must be dense columns. You can wrap a categorical column with an embedding_column or "
                    f"indicator_column. Given: {column}"
                )
            with variable_scope(None, _scope_name(column.name)) as scope:
                rows.append(column.rows(features, trainable))
                _note(cols_to_vars, column, scope)
        return rows[0] if len(rows) == 1 else concat(rows, 1)


def linear_model(
    features: Features,
    feature_columns: Any,
    units: int = 1,
    sparse_combiner: str = "sum",
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, list[Any]] | None = None,
) -> Tensor:
    """A weighted sum of what columns give, and a bias: float32 `[examples, units]`. All weights begin with zero.

    Args:
        features: as of `input_layer`.
        feature_columns: numeric and categorical columns, bucketized ones among them.
        units: numbers of an example.
        sparse_combiner: how the weights of an example's ids are combined: "sum", "mean", "sqrtn".
        weight_collections: accepted.
        trainable: whether weights are trained.
        cols_to_vars: gets each column's variables, and "bias".
    """
    with variable_scope(None, "linear_model"):
        sums = []
        for column in _sorted(feature_columns):
            with variable_scope(None, _scope_name(column.name)) as scope:
                if isinstance(column, CategoricalColumn):
                    weights = _zeros("weights", [column.num_buckets, units], trainable)
                    sums.append(combined(weights, column.ids(features), sparse_combiner))
                elif isinstance(column, DenseColumn):
                    weights = _zeros("weights", [column.width, units], trainable)
                    sums.append(matmul(column.rows(features, trainable), weights))
                _note(cols_to_vars, column, scope)
        bias = _zeros("bias_weights", [units], trainable)
        if cols_to_vars is not None:
            cols_to_vars["bias"] = list(bias) if isinstance(bias, PartitionedVariable) else [bias]
        total: Tensor = (sums[0] if len(sums) == 1 else add_n(sums)) + bias
        return total


def _zeros(name: str, size: list[int], trainable: bool) -> Any:
    return get_variable(name, size, float32, zeros_initializer(), trainable=trainable)


def _sorted(feature_columns: Any) -> list[Any]:
    """Columns in the order of their names. ValueError: there are none, or two of one name."""
    given = [feature_columns] if not isinstance(feature_columns, Iterable) else list(feature_columns)
    columns = sorted((checked(c) for c in given), key=lambda c: c.name)
    if not columns:
        raise ValueError("feature_columns must not be empty.")
    for a, b in zip(columns, columns[1:], strict=False):
        if a.name == b.name:
            raise ValueError(f"Duplicate feature column name found for columns: {a} and {b}.")
    return columns


def _scope_name(name: str) -> str:
    """A name that a scope may have."""
    clean = "".join(c if c.isalnum() or c in "_.-" else "_" for c in name)
    return clean if clean[:1].isalnum() or clean[:1] == "." else f".{clean}"


def _note(cols_to_vars: dict[Any, list[Any]] | None, column: Any, scope: Any) -> None:
    if cols_to_vars is not None:
        cols_to_vars[column] = list(scope.global_variables())


__all__ = ["input_layer", "linear_model"]
