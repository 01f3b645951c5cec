"""Rows of tables as loops: picked where numbers say, and put there.

A table is [rows, after]. Its rows are named by `count` numbers, or by coordinates of several numbers, along as many axes. One that
is out of range names no row: what is picked there is zero, and what is put there is left out.

Where several put something into one row, sums need no order (`ADD`). Who must be alone is made the *owner* of a row: the last one who
names it. Owners are found by two loops: each one forgets what is noted at its row (`forget`), then the largest place of those who
name it is noted (`claim`). So notes need not be cleared: rows that nobody names are never looked at.
"""

from __future__ import annotations

from functools import cache

from ...graph.core.dtypes import DType, bfloat16, float16, float32, int32, int64
from ..ir.loop_nest import ADD, MAX, LoopNest, LoopNestBuilder

MOST_COORDINATES = 6


def kept_in(dtype: DType) -> DType:
    """What sums of a type are kept in: narrow floats would be rounded at each."""
    return float32 if dtype in (float16, bfloat16) else dtype


# --- numbers of rows -------------------------------------------------------------------------------------------------


def row_of(builder: LoopNestBuilder, position: int, index: DType, depth: int) -> int:
    """The row that the coordinates at the current place of axis 0 name; -1 where one is out of range.

    Args:
        position: of the input with the coordinates; of several numbers each, it is a table of single numbers.
        depth: how many numbers they have. Of several, a launch gives the sizes s0, s1... of the axes that they go along.
    """
    if depth == 1:
        return builder.load(position, index, [0])
    first = builder.apply("mul", builder.position(0, int64), builder.constant(depth, int64))
    row = builder.constant(0, int64)
    right: int | None = None
    for d in range(depth):
        place = builder.apply("add", first, builder.constant(d, int64)) if d else first
        number = _as_int64(builder, builder.gather(position, index, place, []))
        size = builder.size(f"s{d}", int64)
        inside = in_range(builder, number, size)
        right = inside if right is None else builder.apply("and", right, inside)
        row = builder.apply("add", builder.apply("mul", row, size), number) if d else number
    assert right is not None
    return builder.apply("select", right, row, builder.constant(-1, int64))


def in_range(builder: LoopNestBuilder, number: int, size: int) -> int:
    """Whether a number is the place of something."""
    positive = builder.apply("ge", number, builder.constant(0, builder.dtype(number)))
    return builder.apply("and", positive, builder.apply("lt", number, size))


def owned_row(builder: LoopNestBuilder, row: int, owners: int) -> int:
    """The row, where the current place of axis 0 is its owner, and -1 elsewhere.

    `owners`: the input with the owner of each row.
    """
    owner = _as_int64(builder, builder.gather(owners, int32, row, []))
    is_own = builder.apply("eq", owner, builder.position(0, int64))
    # Of a row that is out of range there is no owner: what was read is 0, and so is one place.
    return builder.apply("select", is_own, _as_int64(builder, row), builder.constant(-1, int64))


def _as_int64(builder: LoopNestBuilder, number: int) -> int:
    return number if builder.dtype(number) is int64 else builder.apply("cast", number, dtype=int64)


# --- loops -----------------------------------------------------------------------------------------------------------


@cache
def filled(dtype: DType, value: int = 0) -> LoopNest:
    """Some number everywhere."""
    builder = LoopNestBuilder([False])
    builder.store(builder.constant(value, dtype), [0])
    return builder.finish()[0]


@cache
def converted(dtype: DType, to: DType) -> LoopNest:
    """A copy, as another type or the same."""
    builder = LoopNestBuilder([False])
    x = builder.load(0, dtype, [0])
    builder.store(x if to is dtype else builder.apply("cast", x, dtype=to), [0])
    return builder.finish()[0]


@cache
def rows_of(index: DType, depth: int) -> LoopNest:
    """The rows that coordinates name, as numbers."""
    builder = LoopNestBuilder([False])
    builder.store(_as_int64(builder, row_of(builder, 0, index, depth)), [0])
    return builder.finish()[0]


@cache
def picked(dtype: DType, index: DType, depth: int = 1) -> LoopNest:
    """Rows of a table.

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
    """Slices along an inner axis: of [batch, before, length, after], with numbers [batch, count], [batch, before, count, after].

    The space is all of that; without `batched`, there is no batch. A launch gives `before` and `length`.
    """
    axes = range(4 if batched else 3)
    *first, before, count, after = axes
    builder = LoopNestBuilder([False for _ in axes])
    at = _as_int64(builder, builder.load(1, index, [*first, count]))
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
    """Rows added to a table where numbers say.

    Args:
        negative: they are subtracted. single: one number is added to all of the rows that are named.

    >>> print(added(float32, int32))
    loops over d0, d1
      v0: float32[d0, d1] = load in0
      v1: int32[d0] = load in1
      add out0[v1, d1] += v0
    """
    builder = LoopNestBuilder([False, False])
    x = builder.load(0, dtype, [] if single else [0, 1])
    kept = kept_in(dtype)
    x = x if kept is dtype else builder.apply("cast", x, dtype=kept)
    x = builder.apply("sub", builder.constant(0, kept), x) if negative else x
    builder.store(x, [1], row_of(builder, 1, index, depth), ADD)
    return builder.finish()[0]


@cache
def forget(index: DType, depth: int = 1, *, counted: bool = False) -> LoopNest:
    """What is noted at rows that are named is no owner; with `counted`, a second note is that nobody named it yet."""
    builder = LoopNestBuilder([False])
    row = row_of(builder, 0, index, depth)
    builder.store(builder.constant(-1, int32), [], row)
    if counted:
        builder.store(builder.constant(0, int32), [], row)
    return builder.finish()[0]


@cache
def claim(index: DType, depth: int = 1, *, counted: bool = False) -> LoopNest:
    """The owner of each row that is named; with `counted`, also how often it is.

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
    """Rows put into a table, each by its owner; `in2` says who these are."""
    builder = LoopNestBuilder([False, False])
    row = owned_row(builder, row_of(builder, 1, index, depth), 2)
    builder.store(builder.load(0, dtype, [] if single else [0, 1]), [1], row)
    return builder.finish()[0]


@cache
def added_to_owners(dtype: DType, index: DType) -> LoopNest:
    """Rows added where the owner of what they are for has its own; `in2` says who these are."""
    builder = LoopNestBuilder([False, False])
    x = builder.load(0, dtype, [0, 1])
    kept = kept_in(dtype)
    at = builder.load(1, index, [0])
    # A row that is out of range has no owner; what was read for it is 0, which is somebody's place.
    owner = builder.gather(2, int32, at, [])
    inside = in_range(builder, _as_int64(builder, at), builder.size("rows", int64))
    owner = builder.apply("select", inside, owner, builder.constant(-1, int32))
    builder.store(x if kept is dtype else builder.apply("cast", x, dtype=kept), [1], owner, ADD)
    return builder.finish()[0]
