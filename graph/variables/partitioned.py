"""Partitioned variables and partitioners.

A partitioner is a function `(shape, dtype)` that returns the number of parts along each axis, such as `[4, 1]` for
four blocks of rows; at most one number is above 1. `get_variable` and `variable_scope` take one, and make a
partitioned variable: one table, split along an axis into variables that may be on different devices.

A variable `v` of n parts is n variables `v/part_0`, `v/part_1`, ..., each with its own initializer, slots and
device. `size // n` rows go to each, and one more to each of the first `size % n`. A `replica_device_setter`
sees n variables, so it assigns the parts to the parameter servers round-robin.

If the variable is used as a tensor, its parts are concatenated: every part is sent, every time. To read only some
rows, use `embedding_lookup`, which reads from the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.build import convert
from ..core.dtypes import DType, as_dtype, string
from ..core.graph import Graph, Node, Tensor
from ..core.operators import TensorOperators
from ..core.shape import Dims, TensorShape, as_dims, is_static, text
from ..ops.array.concat_stack import concat, split
from ..ops.array.identity_and_placeholders import group, identity

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


# --- the cut ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SaveSliceInfo:
    """Which slice of which variable a part is. Checkpoints keep it, so that another cut can be restored.

    Attributes:
        full_name: name of the whole variable.
        full_shape: its shape.
        var_offset: where the slice begins, for each axis.
        var_shape: how long it is, for each axis.
    """

    full_name: str
    full_shape: list[int]
    var_offset: list[int]
    var_shape: list[int]

    @property
    def spec(self) -> str:
        """The slice as text: the full shape, then `offset,length` for each axis.

        >>> SaveSliceInfo("v", [10, 4], [0, 0], [4, 4]).spec
        '10 4 0,4:0,4'
        """
        axes = ":".join(f"{o},{n}" for o, n in zip(self.var_offset, self.var_shape, strict=True))
        return f"{' '.join(map(str, self.full_shape))} {axes}"

    def __str__(self) -> str:
        return self.spec


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The position of a part in the whole variable, for its initializer.

    Attributes:
        full_shape: shape of the whole variable.
        var_offset: where the part begins, for each axis.

    Raises:
        TypeError: no lists.
        ValueError: their lengths differ, or an offset lies outside.
    """

    full_shape: list[int]
    var_offset: list[int]

    def __post_init__(self) -> None:
        for name in ("full_shape", "var_offset"):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)):
                raise TypeError(f"`{name}` must be a sequence (like tuple or list) instead of {type(value).__name__}")
        if len(self.var_offset) != len(self.full_shape):
            raise ValueError(
                f"Expected equal length, but `var_offset` is of length {len(self.var_offset)} while "
                f"full_shape is of length {len(self.full_shape)}."
            )
        for offset, size in zip(self.var_offset, self.full_shape, strict=True):
            if not 0 <= offset < size:
                raise ValueError(
                    f"Expected 0 <= offset < shape but found offset={offset}, shape={size} for "
                    f"var_offset={self.var_offset}, full_shape={self.full_shape}"
                )

    def single_offset(self, shape: Sequence[int]) -> int:
        """Where a part of that shape begins along the axis that is cut; 0 when none is."""
        axis = self.single_slice_dim(shape)
        return 0 if axis is None else self.var_offset[axis]

    def single_slice_dim(self, shape: Sequence[int]) -> int | None:
        """The axis along which a part of that shape is shorter than the whole; None when it is the whole.

        Raises:
            TypeError: no list.
            ValueError: no part of this variable, or shorter along several axes.
        """
        if not isinstance(shape, (list, tuple)):
            raise TypeError(f"`shape` must be a sequence (like tuple or list) instead of {type(shape).__name__}")
        if len(shape) != len(self.full_shape):
            raise ValueError(
                f"Expected equal length, but received shape={shape} of length {len(shape)} while "
                f"self.full_shape={self.full_shape} is of length {len(self.full_shape)}."
            )
        for axis, (offset, length, size) in enumerate(zip(self.var_offset, shape, self.full_shape, strict=True)):
            if offset + length > size:
                raise ValueError(
                    f"With self.var_offset={self.var_offset}, a partition of shape={shape} would exceed "
                    f"self.full_shape={self.full_shape} in dimension {axis}."
                )
        cut = [i for i, (a, b) in enumerate(zip(shape, self.full_shape, strict=True)) if a != b]
        if len(cut) > 1:
            raise ValueError(
                f"Cannot use single_slice_dim() with shape={shape} and self.full_shape={self.full_shape} "
                f"since slice dim could be either dimension {cut[0]} or {cut[1]}."
            )
        return cut[0] if cut else None


def checked_partitions(partitions: Any, full_shape: Sequence[int]) -> list[int]:
    """The number of parts along each axis, if a variable of this shape can be cut so.

    Raises:
        ValueError: no sequence of one number per axis, none or more parts than an axis is long, or more than
            one axis to cut.
    """
    if not isinstance(partitions, (list, tuple)):
        raise ValueError(f"Partitioner must return a sequence, but saw: {partitions}")
    shape = text(tuple(full_shape))
    if len(partitions) != len(full_shape):
        raise ValueError(
            f"Partitioner returned a partition list that does not match the Variable's rank: {partitions} vs. {shape}"
        )
    if any(p < 1 for p in partitions):
        raise ValueError(f"Partitioner returned zero partitions for some axes: {partitions}")
    if sum(p > 1 for p in partitions) > 1:
        raise ValueError(f"Can only slice a variable along one dimension: shape: {shape}, partitioning: {partitions}")
    for count, size in zip(partitions, full_shape, strict=True):
        if count > max(size, 1):
            raise ValueError(f"Cannot create {count} slices for size {size}. shape: {shape}, slicing: {partitions}")
    return [int(p) for p in partitions]


def slices(full_shape: Sequence[int], partitions: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """(offset, shape) of each part, in order.

    >>> list(slices([5, 2], [2, 1]))
    [([0, 0], [3, 2]), ([3, 0], [2, 2])]
    """
    axis = cut_axis(partitions)
    length, longer = divmod(full_shape[axis], partitions[axis])
    start = 0
    for i in range(partitions[axis]):
        offset, shape = [0] * len(full_shape), list(full_shape)
        offset[axis], shape[axis] = start, length + (i < longer)
        start += shape[axis]
        yield offset, shape


def cut_axis(partitions: Sequence[int]) -> int:
    """The axis that is cut; the first when none is."""
    return next((i for i, p in enumerate(partitions) if p > 1), 0)


# --- the variable -------------------------------------------------------------------------------------------
class PartitionedVariable(TensorOperators[Tensor]):
    """A partitioned variable. It can be used wherever a tensor can, as the whole value; iterating over it
    returns its parts. Made by `get_variable(..., partitioner=)`.

    Args:
        name: name of the whole.
        shape: its shape.
        dtype: its element type.
        variable_list: the parts, each with its `save_slice_info`.
        partitions: how many parts there are along each axis.

    Raises:
        TypeError: no lists.
        ValueError: no parts, or parts that are not the slices of this variable.

    >>> table = get_variable("table", [1000, 16], partitioner=fixed_size_partitioner(4))
    >>> [part.name for part in table]
    ['table/part_0:0', 'table/part_1:0', 'table/part_2:0', 'table/part_3:0']
    """

    def __init__(
        self, name: str, shape: Any, dtype: Any, variable_list: Sequence[Any], partitions: Sequence[int]
    ) -> None:
        if not isinstance(variable_list, (list, tuple)):
            raise TypeError(f"variable_list is not a list or tuple: {variable_list}")
        if not isinstance(partitions, (list, tuple)):
            raise TypeError(f"partitions is not a list or tuple: {partitions}")
        if not all(p >= 1 for p in partitions):
            raise ValueError(f"partition values must be positive: {partitions}")
        if not variable_list:
            raise ValueError("variable_list may not be empty")
        if any(v.save_slice_info is None for v in variable_list):
            raise ValueError(f"All variables must have a save_slice_info available: {[v.name for v in variable_list]}")
        self._shape = TensorShape(shape)
        sizes = self._shape.as_list()
        if len(sizes) != len(partitions):
            raise ValueError(f"len(shape) != len(partitions): {sizes} vs. {partitions}")
        if any(v.save_slice_info.full_shape != sizes for v in variable_list):
            raise ValueError(
                f"All variables' full shapes must match shape: {sizes}; but full shapes were: "
                f"{[v.save_slice_info.full_shape for v in variable_list]}"
            )
        self._name = name
        self._dtype = dtype
        self._partitions = list(partitions)
        self._parts = sorted(variable_list, key=lambda v: v.save_slice_info.var_offset)
        self._initializer: Node | None = None
        self._fetched: Tensor | None = None

    @property
    def name(self) -> str:
        """Name of the whole: the parts' names without `/part_k`."""
        return self._name

    @property
    def dtype(self) -> DType:
        """Its element type."""
        dtype: DType = self._dtype
        return dtype

    @property
    def shape(self) -> TensorShape:
        """Shape of the whole."""
        return self._shape

    def get_shape(self) -> TensorShape:
        """Shape of the whole (TF1's spelling)."""
        return self._shape

    @property
    def graph(self) -> Graph:
        """The graph it belongs to."""
        graph: Graph = self._parts[0].graph
        return graph

    @property
    def initializer(self) -> Node:
        """The node that gives all parts their initial values."""
        if self._initializer is None:
            graph = self.graph
            with graph.as_default(), graph.control_dependencies(None), graph.name_scope(None):
                self._initializer = group(*[v.initializer for v in self._parts], name=f"{self._name}/init")
        return self._initializer

    def get_partitions(self) -> list[int]:
        """How many parts there are along each axis."""
        return list(self._partitions)

    def _get_partitions(self) -> list[int]:
        return self.get_partitions()

    def _get_variable_list(self) -> list[Any]:
        return list(self._parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, key: Any) -> Tensor:
        raise TypeError(
            f"{self!r} cannot be indexed: write list(v)[i] for a part, or v.as_tensor()[i] for a slice of "
            "the whole value"
        )

    def as_tensor(self) -> Tensor:
        """The whole value: a new node that joins all parts, and does not wait for control edges around it."""
        graph = self.graph
        with graph.as_default(), graph.control_dependencies(None):
            whole = self._parts[0]
            if len(self._parts) > 1:
                with graph.name_scope(f"{self._name}/ConcatPartitions/"):
                    whole = concat(self._parts, cut_axis(self._partitions))
            with graph.name_scope(None):
                joined: Tensor = identity(convert(whole), name=self._name)
        return joined

    def _as_tensor(self) -> Tensor:
        return self.as_tensor()

    def _as_graph_element(self) -> Tensor:
        if self._fetched is None:
            self._fetched = self.as_tensor()
        return self._fetched

    def assign(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> list[Any]:
        """Store a value, and return the results of the parts' `assign`.

        Args:
            value: for the whole, which is split as the variable is; or a list or partitioned variable with
                one value for each part.

        Raises:
            ValueError: the value does not fit.
        """
        return self._change(lambda part, v: part.assign(v, use_locking, name, read_value), value)

    def assign_add(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> list[Any]:
        """Add a value; arguments and result as for `assign`. Each part changes atomically, the whole does not."""
        return self._change(lambda part, v: part.assign_add(v, use_locking, name, read_value), value)

    def assign_sub(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> list[Any]:
        """Subtract a value; arguments and result as for `assign_add`."""
        return self._change(lambda part, v: part.assign_sub(v, use_locking, name, read_value), value)

    def _change(self, change: Callable[[Any, Any], Any], value: Any) -> list[Any]:
        if isinstance(value, (list, PartitionedVariable)):
            values = list(value)
            if len(values) != len(self._parts):
                raise ValueError(f"{self!r} has {len(self._parts)} parts and needs as many values, not {len(values)}")
        else:
            axis = cut_axis(self._partitions)
            sizes = [v.save_slice_info.var_shape[axis] for v in self._parts]
            with self.graph.as_default():
                whole = convert(value, self._dtype.base, name="value")
                values = split(whole, sizes, axis) if len(self._parts) > 1 else [whole]
        return [change(part, v) for part, v in zip(self._parts, values, strict=True)]

    def __repr__(self) -> str:
        return (
            f"<dt.PartitionedVariable '{self._name}' shape={self._shape} dtype={self._dtype.name} "
            f"parts={len(self._parts)}>"
        )
