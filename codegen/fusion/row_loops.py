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
from .tracer import Symbol, SymbolicLoops, SymbolicMath

PIECE = 8192  # elements

_math = SymbolicMath()


def first_extreme(kind: str, x: Symbol, position: Symbol, index: DType) -> Symbol:
    """The first position along the reduced axis of the `max` or `min` of x, or of a NaN."""
    if x.type is bool_:
        raise NotFusibleError("places of truth values stay with NumPy")
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
