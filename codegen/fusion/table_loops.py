"""Loop nests of gathers, scatters and segment sums over the rows of a table.

A table is [rows, after]. Its rows are named by `count` indices, or by coordinates of several numbers along as many axes. An index out
of range names no row: a gather gives zero there, and a scatter skips it.

If several indices name one row, sums need no order (`ADD`). A scatter that must be exclusive uses the *owner* of each row: the last
index that names it. Two loops find the owners: `forget` resets the entry of each named row, then `claim` stores the largest position
of the indices that name it. So the array of owners is never cleared: entries of rows without an index are never read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...graph.core.dtypes import DType, bfloat16, bool_, float16, float32, int32, int64
from ..ir.loop_nest import ADD, MAX, LoopNest, LoopNestBuilder, NotFusibleError, Scan
from .tracer import Symbol, SymbolicLoops, SymbolicMath

MOST_COORDINATES = 6
_math = SymbolicMath()


def kept_in(dtype: DType) -> DType:
    """The accumulator type of a type's sums: narrow floats would be rounded at each addition."""
    return float32 if dtype in (float16, bfloat16) else dtype


# --- numbers of rows -------------------------------------------------------------------------------------------------


def row_of(loops: SymbolicLoops, position: int, index: DType, depth: int) -> Symbol:
    """The row that the coordinates at the current position of axis 0 name; -1 if one is out of range.

    Args:
        position: position of the input with the coordinates; with several numbers each, it is a flat table of numbers.
        depth: numbers per coordinate. If several, a launch gives the sizes s0, s1... of their axes.
    """
    if depth == 1:
        return loops.load(position, index, [0])
    first = loops.position(0) * depth
    row: Any = None
    right: Any = None
    for d in range(depth):
        number = _math.cast(loops.gather(position, index, first + d if d else first), int64)
        size = loops.size(f"s{d}")
        inside = in_range(number, size)
        row, right = (number, inside) if row is None else (row * size + number, right & inside)
    return _math.where(right, row, -1)


def in_range(number: Symbol, size: Symbol) -> Any:
    """Whether a number is a valid position."""
    return (number >= 0) & (number < size)


def owned_row(loops: SymbolicLoops, row: Symbol, owners: int) -> Symbol:
    """The row, if the current position of axis 0 is its owner; else -1.

    `owners`: the input with the owner of each row.
    """
    owner = _math.cast(loops.gather(owners, int32, row), int64)
    # A row out of range has no owner. The value read for it is 0, which is also a valid position.
    return _math.where(owner == loops.position(0), _math.cast(row, int64), -1)


# --- loops -----------------------------------------------------------------------------------------------------------


@cache
def filled(dtype: DType, value: float = 0) -> LoopNest:
    """One constant in every element."""
    loops = SymbolicLoops([False])
    loops.store(loops.constant(value, dtype), [0])
    return loops.finish()


@cache
def converted(dtype: DType, to: DType) -> LoopNest:
    """A copy, in another type or the same."""
    loops = SymbolicLoops([False])
    loops.store(_math.cast(loops.load(0, dtype, [0]), to), [0])
    return loops.finish()


@cache
def rows_of(index: DType, depth: int) -> LoopNest:
    """The row indices that coordinates name."""
    loops = SymbolicLoops([False])
    loops.store(_math.cast(row_of(loops, 0, index, depth), int64), [0])
    return loops.finish()


@cache
def picked(dtype: DType, index: DType, depth: int = 1) -> LoopNest:
    """Gathers rows of a table.

    >>> print(picked(float32, int32))
    loops over d0, d1
      v0: int32[d0] = load in1
      v1: float32[d0, d1] = gather in0[v0, d1]
      store out0[d0, d1] = v1
    """
    loops = SymbolicLoops([False, False])
    loops.store(loops.gather(0, dtype, row_of(loops, 1, index, depth), [1]), [0, 1])
    return loops.finish()


@cache
def picked_inside(dtype: DType, index: DType, batched: bool) -> LoopNest:
    """Gathers along an inner axis: from [batch, before, length, after] with indices [batch, count] to [batch, before, count, after].

    The iteration space is that of the result. Without `batched` there is no batch axis. A launch gives `before` and `length`.
    """
    axes = range(4 if batched else 3)
    *first, before, count, after = axes
    loops = SymbolicLoops([False for _ in axes])
    at, length, outer = loops.load(1, index, [*first, count]), loops.size("length"), loops.position(before)
    at = _math.cast(at, int64)
    if batched:
        outer = loops.position(0) * loops.size("before") + outer
    row = _math.where(in_range(at, length), outer * length + at, -1)
    loops.store(loops.gather(0, dtype, row, [after]), axes)
    return loops.finish()


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
    loops = SymbolicLoops([False, False])
    x = _math.cast(loops.load(0, dtype, [] if single else [0, 1]), kept_in(dtype))
    loops.store(0 - x if negative else x, [1], row_of(loops, 1, index, depth), ADD)
    return loops.finish()


@cache
def forget(index: DType, depth: int = 1, *, counted: bool = False) -> LoopNest:
    """Resets the entries of the named rows to "no owner"; with `counted`, also their counts to 0."""
    loops = SymbolicLoops([False])
    row = row_of(loops, 0, index, depth)
    for value in (-1, 0) if counted else (-1,):
        loops.store(loops.constant(value, int32), [], row)
    return loops.finish()


@cache
def claim(index: DType, depth: int = 1, *, counted: bool = False) -> LoopNest:
    """Finds the owner of each named row; with `counted`, also how often it is named.

    >>> print(claim(int32))
    loops over d0
      v0: int32[d0] = load in0
      v1: int32[d0] = position
      max out0[v0] max= v1
    """
    loops = SymbolicLoops([False])
    row = row_of(loops, 0, index, depth)
    loops.store(loops.position(0, int32), [], row, MAX)
    if counted:
        loops.store(loops.constant(1, int32), [], row, ADD)
    return loops.finish()


@cache
def put_by_owners(dtype: DType, index: DType, depth: int = 1, *, single: bool = False) -> LoopNest:
    """Stores rows into a table, each by its owner; `in2` holds the owners."""
    loops = SymbolicLoops([False, False])
    row = owned_row(loops, row_of(loops, 1, index, depth), 2)
    loops.store(loops.load(0, dtype, [] if single else [0, 1]), [1], row)
    return loops.finish()


@cache
def added_to_owners(dtype: DType, index: DType) -> LoopNest:
    """Adds rows at the position of the owner of their row; `in2` holds the owners."""
    loops = SymbolicLoops([False, False])
    x, at = loops.load(0, dtype, [0, 1]), loops.load(1, index, [0])
    # A row out of range has no owner. The value read for it is 0, which is also a valid position.
    owner = loops.gather(2, int32, at)
    owner = _math.where(in_range(_math.cast(at, int64), loops.size("rows")), owner, -1)
    loops.store(_math.cast(x, kept_in(dtype)), [1], owner, ADD)
    return loops.finish()


# --- loops along one axis --------------------------------------------------------------------------------------------
# Without `across` there is no last axis. A running sum of few and long rows is cut into pieces of PIECE elements, in three nests:
# `piece_totals`, a running sum of these without the element itself, and `running_in_pieces`, which begins each piece with it. Elements
# behind the end of a row are read as row -1 of a table, and not stored.


PIECE = 8192  # elements


def first_extreme(kind: str, x: Symbol, position: Symbol, index: DType) -> Symbol:
    """The first position along the reduced axis of the `max` or `min` of x, or of a NaN."""
    if x.type is bool_:
        raise NotFusibleError("positions of booleans stay with NumPy")
    found = x == x.reduced(kind)
    if x.type.is_floating:
        found = found | _math.isnan(x)
    return _math.cast(_math.where(found, position, int(int64.max)).reduced("min"), index)


@cache
def running(how: Scan, dtype: DType, across: bool) -> LoopNest:
    """Sums or products of in0 up to each element."""
    builder = LoopNestBuilder([False, True, *[False] * across])
    builder.store(builder.scan(how, builder.load(0, dtype, range(2 + across))), range(2 + across))
    return builder.finish()[0]


def _piece(how: Scan, dtype: DType, across: bool) -> tuple[SymbolicLoops, Symbol, Symbol]:
    """The space [before, pieces, PIECE, after], the element of in0, and its number among all rows."""
    loops = SymbolicLoops([False, False, True, *[False] * across])
    row, piece, at = map(loops.position, range(3))
    length, i = loops.size("length"), piece * PIECE + at
    number = _math.where(i < length, row * length + i, -1)
    x = _math.cast(loops.gather(0, dtype, number, [3] if across else []), kept_in(dtype))
    return loops, x if how.kind == "sum" else _math.where(i < length, x, 1), number


@cache
def piece_totals(how: Scan, dtype: DType, across: bool) -> LoopNest:
    """The sum or product of each piece."""
    loops, x, _ = _piece(how, dtype, across)
    loops.store(x.reduced(how.kind), [0, 1, 3][: 2 + across])
    return loops.finish()


@cache
def running_in_pieces(how: Scan, dtype: DType, across: bool) -> LoopNest:
    """Sums or products up to each element; in1: what is before each piece."""
    loops, x, number = _piece(how, dtype, across)
    before = loops.load(1, kept_in(dtype), [0, 1, 3][: 2 + across])
    inside = x.scanned(how)
    total = before + inside if how.kind == "sum" else before * inside
    loops.store(_math.cast(total, dtype), [3] if across else [], number)
    return loops.finish()
