"""Partitioners for `ParameterServerStrategy(variable_partitioner=...)`, under TensorFlow 2's names.

By default they partition along the first axis.
"""

from __future__ import annotations

from typing import Any

from ..graph.variables.partitioned import (
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)


class Partitioner:
    """A function of shape and dtype that returns the number of parts along each axis of a variable."""

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """The number of parts along each axis."""
        raise NotImplementedError


class FixedShardsPartitioner(Partitioner):
    """Partitions into a fixed number of parts, at most the length of the axis.

    Args:
        num_shards: the number of parts.

    >>> FixedShardsPartitioner(2)([10, 3], dt.float32)
    [2, 1]
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        return fixed_size_partitioner(self._num_shards, axis)(shape=shape, dtype=dtype)


class MinSizePartitioner(Partitioner):
    """Partitions into as many parts as possible, each of at least a minimum size.

    Args:
        min_shard_bytes: minimum size of a part in bytes.
        max_shards: maximum number of parts.
        bytes_per_string: assumed size of a string in bytes.

    >>> MinSizePartitioner(min_shard_bytes=4, max_shards=2)([6, 1], dt.float32)
    [2, 1]
    """

    def __init__(self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16) -> None:
        self._min_bytes, self._max_shards, self._text = min_shard_bytes, max_shards, bytes_per_string

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        cut = min_max_variable_partitioner(self._max_shards, axis, self._min_bytes, self._text)
        return cut(shape=shape, dtype=dtype)


class MaxSizePartitioner(Partitioner):
    """Partitions into as few parts as possible, each of at most a maximum size.

    Args:
        max_shard_bytes: maximum size of a part in bytes.
        max_shards: maximum number of parts; None: no limit.
        bytes_per_string: assumed size of a string in bytes.

    >>> MaxSizePartitioner(max_shard_bytes=4)([6, 1], dt.float32)
    [6, 1]
    """

    def __init__(self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16) -> None:
        self._max_bytes, self._max_shards, self._text = max_shard_bytes, max_shards, bytes_per_string

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        cut = variable_axis_size_partitioner(self._max_bytes, axis, self._text, self._max_shards)
        return cut(shape=shape, dtype=dtype)


__all__ = ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner"]
