"""Partitioned variables and partitioners.

A partitioner is a function `(shape, dtype)` that returns the number of parts along each axis, such as `[4, 1]` for
four blocks of rows. At most one number is above 1. `get_variable` and `variable_scope` take a partitioner. They make a
partitioned variable, which is split along an axis into variables that may be on different devices.

A variable `v` of n parts is n variables `v/part_0`, `v/part_1`, ..., each with its own initializer, slots and
device. Each part has `size // n` rows, and each of the first `size % n` parts has one more. `replica_device_setter`
assigns the parts to the parameter servers round-robin.

If the variable is used as a tensor, its parts are concatenated, so each use sends all parts. To read only some
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
from ..core.shape import TensorShape, static_sizes, text
from ..ops.array.concat_stack import concat, split
from ..ops.array.identity_and_placeholders import group, identity

Partitioner = Callable[..., list[int]]


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """A partitioner with a fixed number of parts along an axis, but not more than the size of the axis.

    Args:
        num_shards: number of parts.
        axis: the axis to split.

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
    """A partitioner with as few parts as possible that have at most `max_shard_bytes` each. A part has at least one row.

    Args:
        max_shard_bytes: maximum size of a part in bytes.
        axis: the axis to split.
        bytes_per_string_element: assumed size in bytes of an element of type string.
        max_shards: maximum number of parts, which has precedence over `max_shard_bytes`. None means no limit.

    Raises:
        ValueError: a number is not positive.

    >>> variable_axis_size_partitioner(64)(shape=[10, 4], dtype="float32")   # 16 bytes per row, 4 rows per part
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
    """A partitioner with one part for each `min_slice_size` bytes, up to a limit. It does not split small variables.

    Args:
        max_partitions: maximum number of parts.
        axis: the axis to split.
        min_slice_size: bytes per part.
        bytes_per_string_element: assumed size in bytes of an element of type string.

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
    return static_sizes(shape, "shape is not fully defined: {}")


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


# --- slices -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SaveSliceInfo:
    """The slice of a partitioned variable that a part is. Checkpoints store it, so that they can be restored with other partitions.

    Attributes:
        full_name: name of the partitioned variable.
        full_shape: shape of the partitioned variable.
        var_offset: first index of the slice, for each axis.
        var_shape: shape of the slice.
    """

    full_name: str
    full_shape: list[int]
    var_offset: list[int]
    var_shape: list[int]

    @property
    def spec(self) -> str:
        """The slice as text in TensorFlow's form: the full shape, then `offset,length` for each axis.

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
        var_offset: first index of the part, for each axis.

    Raises:
        TypeError: an attribute is not a list.
        ValueError: their lengths differ, or an offset is out of range.
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
        """The first index of a part of shape `shape` along the split axis, or 0 if no axis is split."""
        axis = self.single_slice_dim(shape)
        return 0 if axis is None else self.var_offset[axis]

    def single_slice_dim(self, shape: Sequence[int]) -> int | None:
        """The axis along which a part of shape `shape` is shorter than the variable, or None.

        Raises:
            TypeError: `shape` is not a list.
            ValueError: `shape` does not fit into the variable, or is shorter along several axes.
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
    """The number of parts along each axis, after a check.

    Raises:
        ValueError: `partitions` is not a sequence of one number per axis, an axis has no part or more parts than elements, or several
            axes are split.
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
    """The offset and the shape of each part, in order.

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
    """The split axis, or 0 if no axis is split."""
    return next((i for i, p in enumerate(partitions) if p > 1), 0)


# --- the variable -------------------------------------------------------------------------------------------
class PartitionedVariable(TensorOperators[Tensor]):
    """A partitioned variable. As a tensor it is the concatenation of its parts. An iteration over it returns the parts.

    `get_variable(..., partitioner=)` makes one.

    Args:
        name: name of the whole variable.
        shape: shape of the whole variable.
        dtype: element type.
        variable_list: the parts, each with its `save_slice_info`.
        partitions: number of parts along each axis.

    Raises:
        TypeError: `variable_list` or `partitions` is not a list.
        ValueError: there are no parts, or a part is not a slice of this variable.

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
        """The parts' names without `/part_k`."""
        return self._name

    @property
    def dtype(self) -> DType:
        """The element type."""
        dtype: DType = self._dtype
        return dtype

    @property
    def shape(self) -> TensorShape:
        """The shape of the whole variable."""
        return self._shape

    def get_shape(self) -> TensorShape:
        """As `shape` (TensorFlow 1's spelling)."""
        return self._shape

    @property
    def graph(self) -> Graph:
        """The graph of the parts."""
        graph: Graph = self._parts[0].graph
        return graph

    @property
    def initializer(self) -> Node:
        """The node that initializes all parts."""
        if self._initializer is None:
            graph = self.graph
            with graph.as_default(), graph.control_dependencies(None), graph.name_scope(None):
                self._initializer = group(*[v.initializer for v in self._parts], name=f"{self._name}/init")
        return self._initializer

    def get_partitions(self) -> list[int]:
        """The number of parts along each axis."""
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
            f"{self!r} cannot be indexed: use list(v)[i] for a part, or v.as_tensor()[i] for a slice of the whole value"
        )

    def as_tensor(self) -> Tensor:
        """The value of the whole variable. The new node ignores `control_dependencies` blocks."""
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
        """Store a value. Returns the results of the parts' `assign`.

        Args:
            value: the value of the whole variable, or a list or partitioned variable with a value for each part.
            use_locking: accepted for compatibility with TensorFlow. Each part changes atomically.
            name: name of the nodes.
            read_value: as for `Variable.assign`.

        Raises:
            ValueError: the value has another shape or number of parts.
        """
        return self._change(lambda part, v: part.assign(v, use_locking, name, read_value), value)

    def assign_add(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> list[Any]:
        """Add a value, with the arguments and result of `assign`. Each part changes atomically, but not all parts together."""
        return self._change(lambda part, v: part.assign_add(v, use_locking, name, read_value), value)

    def assign_sub(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> list[Any]:
        """Subtract a value, with the arguments and result of `assign_add`."""
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
