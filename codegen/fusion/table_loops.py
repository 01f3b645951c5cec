"""Loop nests of gathers, scatters and segment sums over the rows of a table.

A table is [rows, after]. Its rows are named by `count` indices, or by coordinates of several numbers along as many axes. An index out
of range names no row: a gather gives zero there, and a scatter skips it.

If several indices name one row, sums need no order (`ADD`). A scatter that must be exclusive uses the *owner* of each row: the last
index that names it. Two loops find the owners: `forget` resets the entry of each named row, then `claim` stores the largest position
of the indices that name it. So the array of owners is never cleared: entries of rows without an index are never read.
"""

from __future__ import annotations

from functools import cache

from ...graph.core.dtypes import DType, bfloat16, float16, float32, int32, int64
from ..ir.loop_nest import ADD, MAX, LoopNest, LoopNestBuilder

MOST_COORDINATES = 6


def kept_in(dtype: DType) -> DType:
    """The accumulator type of a type's sums: narrow floats would be rounded at each addition."""
    return float32 if dtype in (float16, bfloat16) else dtype


# --- numbers of rows -------------------------------------------------------------------------------------------------


def row_of(builder: LoopNestBuilder, position: int, index: DType, depth: int) -> int:
    """The row that the coordinates at the current position of axis 0 name; -1 if one is out of range.

    Args:
        position: position of the input with the coordinates; with several numbers each, it is a flat table of numbers.
        depth: numbers per coordinate. If several, a launch gives the sizes s0, s1... of their axes.
    """
    if depth == 1:
        return builder.load(position, index, [0])
    first = builder.apply("mul", builder.position(0, int64), builder.constant(depth, int64))
    row = builder.constant(0, int64)
    right: int | None = None
    for d in range(depth):
        place = builder.apply("add", first, builder.constant(d, int64)) if d else first
        number = builder.cast(builder.gather(position, index, place, []), int64)
        size = builder.size(f"s{d}", int64)
        inside = in_range(builder, number, size)
        right = inside if right is None else builder.apply("and", right, inside)
        row = builder.apply("add", builder.apply("mul", row, size), number) if d else number
    assert right is not None
    return builder.apply("select", right, row, builder.constant(-1, int64))


def in_range(builder: LoopNestBuilder, number: int, size: int) -> int:
    """Whether a number is a valid position."""
    positive = builder.apply("ge", number, builder.constant(0, builder.dtype(number)))
    return builder.apply("and", positive, builder.apply("lt", number, size))


def owned_row(builder: LoopNestBuilder, row: int, owners: int) -> int:
    """The row, if the current position of axis 0 is its owner; else -1.

    `owners`: the input with the owner of each row.
    """
    owner = builder.cast(builder.gather(owners, int32, row, []), int64)
    is_own = builder.apply("eq", owner, builder.position(0, int64))
    # A row out of range has no owner. The value read for it is 0, which is also a valid position.
    return builder.apply("select", is_own, builder.cast(row, int64), builder.constant(-1, int64))


# --- loops -----------------------------------------------------------------------------------------------------------


@cache
def filled(dtype: DType, value: float = 0) -> LoopNest:
    """One constant in every element."""
    builder = LoopNestBuilder([False])
    builder.store(builder.constant(value, dtype), [0])
    return builder.finish()[0]


@cache
def converted(dtype: DType, to: DType) -> LoopNest:
    """A copy, in another type or the same."""
    builder = LoopNestBuilder([False])
    x = builder.load(0, dtype, [0])
    builder.store(builder.cast(x, to), [0])
    return builder.finish()[0]


@cache
def rows_of(index: DType, depth: int) -> LoopNest:
    """The row indices that coordinates name."""
    builder = LoopNestBuilder([False])
    builder.store(builder.cast(row_of(builder, 0, index, depth), int64), [0])
    return builder.finish()[0]


@cache
def picked(dtype: DType, index: DType, depth: int = 1) -> LoopNest:
    """Gathers rows of a table.

    >>> print(picked(float32, int32))
    loops over d0, d1
      v0: int32[d0] = load in1
      v1: float32[d0, d1] = gather in0[v0, d1]
      store out0[d0, d1] = v1
    """
    builder = LoopNestBuilder([False, False])
    builder.store(builder.gather(0, dtype, row_of(builder, 1, index, depth), [1]), [0, 1])
    return builder.finish()[0]


@cache
def picked_inside(dtype: DType, index: DType, batched: bool) -> LoopNest:
    """Gathers along an inner axis: from [batch, before, length, after] with indices [batch, count] to [batch, before, count, after].

    The iteration space is that of the result. Without `batched` there is no batch axis. A launch gives `before` and `length`.
    """
    axes = range(4 if batched else 3)
    *first, before, count, after = axes
    builder = LoopNestBuilder([False for _ in axes])
    at = builder.cast(builder.load(1, index, [*first, count]), int64)
    length = builder.size("length", int64)
    outer = builder.position(before, int64)
    if batched:
        batch = builder.apply("mul", builder.position(0, int64), builder.size("before", int64))
        outer = builder.apply("add", batch, outer)
    row = builder.apply("add", builder.apply("mul", outer, length), at)
    row = builder.apply("select", in_range(builder, at, length), row, builder.constant(-1, int64))
    builder.store(builder.gather(0, dtype, row, [after]), axes)
    return builder.finish()[0]


@cache
def added(dtype: DType, index: DType, depth: int = 1, *, negative: bool = False, single: bool = False) -> LoopNest:
    """Adds rows to the indexed rows of a table.

    Args:
        negative: subtract the rows.
        single: add one number to all indexed rows.

    >>> print(added(float32, int32))
    loops over d0, d1
      v0: float32[d0, d1] = load in0
      v1: int32[d0] = load in1
      add out0[v1, d1] += v0
    """
    builder = LoopNestBuilder([False, False])
    kept = kept_in(dtype)
    x = builder.cast(builder.load(0, dtype, [] if single else [0, 1]), kept)
    x = builder.apply("sub", builder.constant(0, kept), x) if negative else x
    builder.store(x, [1], row_of(builder, 1, index, depth), ADD)
    return builder.finish()[0]


@cache
def forget(index: DType, depth: int = 1, *, counted: bool = False) -> LoopNest:
    """Resets the entries of the named rows to "no owner"; with `counted`, also their counts to 0."""
    builder = LoopNestBuilder([False])
    row = row_of(builder, 0, index, depth)
    builder.store(builder.constant(-1, int32), [], row)
    if counted:
        builder.store(builder.constant(0, int32), [], row)
    return builder.finish()[0]


@cache
def claim(index: DType, depth: int = 1, *, counted: bool = False) -> LoopNest:
    """Finds the owner of each named row; with `counted`, also how often it is named.

    >>> print(claim(int32))
    loops over d0
      v0: int32[d0] = load in0
      v1: int32[d0] = position
      max out0[v0] max= v1
    """
    builder = LoopNestBuilder([False])
    row = row_of(builder, 0, index, depth)
    builder.store(builder.position(0, int32), [], row, MAX)
    if counted:
        builder.store(builder.constant(1, int32), [], row, ADD)
    return builder.finish()[0]


@cache
def put_by_owners(dtype: DType, index: DType, depth: int = 1, *, single: bool = False) -> LoopNest:
    """Stores rows into a table, each by its owner; `in2` holds the owners."""
    builder = LoopNestBuilder([False, False])
    row = owned_row(builder, row_of(builder, 1, index, depth), 2)
    builder.store(builder.load(0, dtype, [] if single else [0, 1]), [1], row)
    return builder.finish()[0]


@cache
def added_to_owners(dtype: DType, index: DType) -> LoopNest:
    """Adds rows at the position of the owner of their row; `in2` holds the owners."""
    builder = LoopNestBuilder([False, False])
    x = builder.load(0, dtype, [0, 1])
    at = builder.load(1, index, [0])
    # A row out of range has no owner. The value read for it is 0, which is also a valid position.
    owner = builder.gather(2, int32, at, [])
    inside = in_range(builder, builder.cast(at, int64), builder.size("rows", int64))
    owner = builder.apply("select", inside, owner, builder.constant(-1, int32))
    builder.store(builder.cast(x, kept_in(dtype)), [1], owner, ADD)
    return builder.finish()[0]
