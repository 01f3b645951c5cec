"""Loop nests along one axis of [before, length, after]: running sums and products; the place of an extreme.

Without `across` there is no last axis. A running sum of few and long rows is cut into pieces of PIECE elements, in three nests:
`piece_totals`, a running sum of these without the element itself, and `running_in_pieces`, which begins each piece with it. Elements
behind the end of a row are read as row -1 of a table, and not stored.
"""

from __future__ import annotations

from functools import cache

from ...graph.core.dtypes import DType, bool_, int64
from ..ir.legality import NotFusibleError
from ..ir.loop_nest import LoopNest, LoopNestBuilder, Scan
from .table_loops import kept_in
from .tracer import Symbol, SymbolicMath

PIECE = 8192  # elements


def first_extreme(builder: LoopNestBuilder, kind: str, x: int, position: int, index: DType) -> int:
    """The first position along the reduced axis of the `max` or `min` of x, or of a NaN."""
    apply, dtype = builder.apply, builder.dtype(x)
    if dtype is bool_:
        raise NotFusibleError("places of truth values stay with NumPy")
    found = apply("eq", x, builder.reduce(kind, x))
    if dtype.is_floating:
        found = apply("or", found, apply("isnan", x))
    nowhere = builder.constant(int(int64.max), int64)
    place = builder.reduce("min", apply("select", found, position, nowhere))
    return builder.cast(place, index)


@cache
def running(how: Scan, dtype: DType, across: bool) -> LoopNest:
    """Sums or products of in0 up to each element."""
    builder = LoopNestBuilder([False, True, *[False] * across])
    builder.store(builder.scan(how, builder.load(0, dtype, range(2 + across))), range(2 + across))
    return builder.finish()[0]


def _piece(how: Scan, dtype: DType, across: bool) -> tuple[LoopNestBuilder, int, int]:
    """The space [before, pieces, PIECE, after], the element of in0, and its number among all rows."""
    builder = LoopNestBuilder([False, False, True, *[False] * across])
    row, piece, at = (Symbol(builder, builder.position(axis, int64)) for axis in range(3))
    length, i = Symbol(builder, builder.size("length", int64)), piece * PIECE + at
    number = SymbolicMath.where(i < length, row * length + i, -1)
    x = Symbol(builder, builder.gather(0, dtype, number.number, [3] if across else []))
    x = SymbolicMath.cast(x, kept_in(dtype))
    return builder, (x if how.kind == "sum" else SymbolicMath.where(i < length, x, 1)).number, number.number


@cache
def piece_totals(how: Scan, dtype: DType, across: bool) -> LoopNest:
    """The sum or product of each piece."""
    builder, x, _ = _piece(how, dtype, across)
    builder.store(builder.reduce(how.kind, x), [0, 1, 3][: 2 + across])
    return builder.finish()[0]


@cache
def running_in_pieces(how: Scan, dtype: DType, across: bool) -> LoopNest:
    """Sums or products up to each element; in1: what is before each piece."""
    builder, x, number = _piece(how, dtype, across)
    before = builder.load(1, kept_in(dtype), [0, 1, 3][: 2 + across])
    total = builder.apply({"sum": "add", "prod": "mul"}[how.kind], before, builder.scan(how, x))
    builder.store(builder.cast(total, dtype), [3] if across else [], number)
    return builder.finish()[0]
