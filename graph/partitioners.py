"""Partitioners: into how many parts to cut a variable.

A partitioner is a function `(shape, dtype)` that gives the number of parts along each axis, such as `[4, 1]`
for four bands of rows; at most one of them is above 1. `get_variable` and `variable_scope` take one, and make
a variable of several parts (`partitioned.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .dtypes import DType, as_dtype, string
from .shape import Dims, as_dims, is_static, text

Partitioner = Callable[..., list[int]]


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """A given number of parts along an axis; as many as the axis is long where that is less.

    >>> fixed_size_partitioner(4)(shape=[10, 4])
    [4, 1]
    """

    def partitioner(shape: Any, **unused: Any) -> list[int]:
        sizes = _sizes(shape)
        return _along(sizes, axis, min(num_shards, sizes[_checked(axis, sizes)]))

    return partitioner


def variable_axis_size_partitioner(
    max_shard_bytes: int, axis: int = 0, bytes_per_string_element: int = 16, max_shards: int | None = None
) -> Partitioner:
    """As few parts along an axis as keep each within a number of bytes; a part is at least one row.

    Args:
        max_shard_bytes: the most bytes of a part.
        axis: where to cut.
        bytes_per_string_element: what an element of type string counts.
        max_shards: the most parts, even where they then are larger; None: any number.

    Raises:
        ValueError: a number is not positive.

    >>> variable_axis_size_partitioner(64)(shape=[10, 4], dtype="float32")   # 16 bytes a row, 4 rows a part
    [3, 1]
    """
    if max_shard_bytes < 1 or bytes_per_string_element < 1:
        raise ValueError(
            "Both max_shard_bytes and bytes_per_string_element must be positive. Currently, "
            f"max_shard_bytes is {max_shard_bytes} and bytes_per_string_element is {bytes_per_string_element}"
        )
    if max_shards is not None and max_shards < 1:
        raise ValueError(f"max_shards must be positive. Currently, max_shards is {max_shards}")

    def partitioner(shape: Any, dtype: Any) -> list[int]:
        sizes = _sizes(shape)
        rows = sizes[_checked(axis, sizes)]
        row_bytes = math.prod(sizes) // max(rows, 1) * _element_bytes(dtype, bytes_per_string_element)
        rows_per_part = max(1, max_shard_bytes // max(row_bytes, 1))
        parts = math.ceil(rows / rows_per_part)
        return _along(sizes, axis, parts if max_shards is None else min(max_shards, parts))

    return partitioner


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
) -> Partitioner:
    """As many parts along an axis as there are pieces of `min_slice_size` bytes, up to a limit: small
    variables stay whole.

    Args:
        max_partitions: the most parts.
        axis: where to cut.
        min_slice_size: bytes for which one more part is worth it.
        bytes_per_string_element: what an element of type string counts.

    Raises:
        ValueError: a number is not positive.

    >>> min_max_variable_partitioner(100, min_slice_size=1000)(shape=[100, 16], dtype="float32")
    [7, 1]
    """
    for name, value in (
        ("max_partitions", max_partitions),
        ("min_slice_size", min_slice_size),
        ("bytes_per_string_element", bytes_per_string_element),
    ):
        if value < 1:
            raise ValueError(f"{name} must be positive. Currently, {name} is {value}")

    def partitioner(shape: Any, dtype: Any) -> list[int]:
        sizes = _sizes(shape)
        total = math.prod(sizes) * _element_bytes(dtype, bytes_per_string_element)
        wanted = -(-total // min_slice_size)
        return _along(sizes, axis, max(1, min(sizes[_checked(axis, sizes)], max_partitions, wanted)))

    return partitioner


def _sizes(shape: Any) -> list[int]:
    dims: Dims = as_dims(shape)
    if dims is None or not is_static(dims):
        raise ValueError(f"shape is not fully defined: {text(dims)}")
    return [d for d in dims if d is not None]


def _checked(axis: int, sizes: list[int]) -> int:
    if not -len(sizes) <= axis < len(sizes):
        raise ValueError(f"Cannot partition variable along axis {axis} when shape is only {text(tuple(sizes))}")
    return axis


def _along(sizes: list[int], axis: int, parts: int) -> list[int]:
    counts = [1] * len(sizes)
    counts[axis] = parts
    return counts


def _element_bytes(dtype: Any, bytes_per_string_element: int) -> int:
    found: DType = as_dtype(dtype).base
    return bytes_per_string_element if found is string else int(found.size)
