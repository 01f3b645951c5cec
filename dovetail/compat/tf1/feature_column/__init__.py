"""Feature columns: how the values of examples become the input of a model (`dt.feature_column`).

`make` has the public functions, `columns` what a column is, `layers` what makes tensors of them. Only `estimator`
imports it, and programs do.
"""

from .layers import input_layer, linear_model
from .make import (
    bucketized_column,
    categorical_column_with_hash_bucket,
    categorical_column_with_identity,
    categorical_column_with_vocabulary_file,
    categorical_column_with_vocabulary_list,
    crossed_column,
    embedding_column,
    indicator_column,
    make_parse_example_spec,
    numeric_column,
)

__all__ = [
    "bucketized_column",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "indicator_column",
    "input_layer",
    "linear_model",
    "make_parse_example_spec",
    "numeric_column",
]
