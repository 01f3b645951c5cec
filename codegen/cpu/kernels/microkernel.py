"""The micro-kernel of matrix products and convolutions, as LLVM instructions: a tile of sums that stays in registers.

A tile has MR rows and NR columns of the result, two vectors of the machine side by side. At each step of the summed axis it loads
two vectors of the second factor and one number per row of the first, and multiplies and adds. With 64-byte vectors these are
sixteen accumulators for ten loads, otherwise twelve for eight, which keeps both arithmetic units busy (Goto and van de Geijn,
"Anatomy of High-Performance Matrix Multiplication", 2008; Van Zee and van de Geijn, "BLIS", 2015).

The offset of each row and of each step of the first factor is read from a table. So one kernel multiplies matrices, and is implicit GEMM:
one loop sums all pixels of a piece of an image, or all taps of a window. The tables cost one load in ten, for sixteen products.

The second factor lies in panels, packed or as part of a matrix: NR numbers for each step of the summed axis, which are equally far apart. A
packed panel of at most NR / 2 columns is half as wide (`half_table_tile`).

No function here checks bounds. If a tile has fewer than MR rows, the last row is computed and stored several times, to the same address.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ...target import register_tile
from ...vecmath.intrinsics import instructions

MR = register_tile(4)[0]
NR = {"float32": register_tile(4)[1], "float64": register_tile(8)[1]}
# Steps between two tests of the loop, whose counters would take slots of the arithmetic units.
UNROLLED = 4
SQUARE = 8  # rows and columns that are transposed at a time


def _data(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.make_array(kind)(context, builder, value).data


def _vector_at(builder: Any, data: Any, at: Any, vector: Any) -> Any:
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


def _prefetch(builder: Any, place: Any) -> None:
    """Prefetch what is at an address into the first cache, to write it. An address may be invalid."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.bitcast(place, byte), number(1), number(3), number(1)])


class _Tile:
    """Emits the instructions of a tile.

    Args:
        x: the type of the first factor. lanes: columns of the panel. high: how many rows there are, at most MR.
        columns: how many columns are stored. The others are masked.
    """

    def __init__(self, context: Any, builder: Any, x: Any, lanes: int, high: Any, columns: Any) -> None:
        self.builder, self.lanes = builder, lanes
        self.number, self.word = context.get_value_type(x.dtype), context.get_value_type(types.intp)
        self.vector, self.align = ir.VectorType(self.number, lanes), x.dtype.bitwidth // 8
        self.multiply_add = self.intrinsic("llvm.fmuladd", self.vector, [self.vector] * 3)
        self.everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
        last = builder.sub(high, self.constant(1))
        self.rows = [self.constant(i) for i in range(MR)]
        self.rows = [builder.select(builder.icmp_signed("<", row, last), row, last) for row in self.rows]
        kind = ir.VectorType(self.word, lanes)
        self.mask = builder.icmp_signed("<", ir.Constant(kind, list(range(lanes))), self.spread(columns, kind))
        self.is_whole = builder.icmp_signed("==", columns, self.constant(lanes))
        self.starts: list[Any] = []  # of the first factor, one per row
        self.places: list[Any] = []  # of the result, one per row
        self.totals: list[Any] = []

    def constant(self, value: int) -> Any:
        return ir.Constant(self.word, value)

    def intrinsic(self, name: str, result: Any, arguments: list[Any]) -> Any:
        """A function of LLVM over vectors of the tile's type; `p0` is added where an argument is an address."""
        name = f"{name}.v{self.lanes}f{self.align * 8}" + ".p0" * any(isinstance(a, ir.PointerType) for a in arguments)
        return cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(result, arguments), name)

    def spread(self, value: Any, kind: Any) -> Any:
        """A vector with a number in each lane."""
        unknown = ir.Constant(kind, ir.Undefined)
        single = self.builder.insert_element(unknown, value, ir.IntType(32)(0))
        return self.builder.shuffle_vector(single, unknown, self.everywhere)

    def at_table(self, first: Any, offsets: Any, into: Any, to: Any, targets: Any, k: Any) -> None:
        """Address the rows of the factor and of the result by tables. The entries from `k` on belong to this tile."""
        b = self.builder
        rows = [b.add(k, row) for row in self.rows]
        self.starts = [b.gep(first, [b.load(b.gep(offsets, [row]))]) for row in rows]
        goals = [b.add(to, b.load(b.gep(targets, [row]))) for row in rows]
        self.places = [_vector_at(b, into, goal, self.vector) for goal in goals]

    def begin(self, more: Any) -> None:
        """Start from zeros; or, if `more`, from what the result holds."""
        builder, zeros = self.builder, ir.Constant(self.vector, [0.0] * self.lanes)
        self.totals = [cgutils.alloca_once_value(builder, zeros) for _ in self.places]
        for place, total in zip(self.places, self.totals, strict=True):
            _prefetch(builder, place)
            builder.store(zeros, total)
        with builder.if_then(more):
            self.for_each_place(self.load)

    def for_each_place(self, move: Any) -> None:
        """Move whole vectors; where columns are missing, through the mask."""
        pairs = list(zip(self.places, self.totals, strict=True))
        with self.builder.if_else(self.is_whole) as (whole, part):
            for block, is_masked in ((whole, False), (part, True)):
                with block:
                    for place, total in pairs:
                        move(place, total, is_masked)

    def load(self, place: Any, total: Any, is_masked: bool) -> None:
        b = self.builder
        if is_masked:
            kinds = [place.type, ir.IntType(32), self.mask.type, self.vector]
            function = self.intrinsic("llvm.masked.load", self.vector, kinds)
            zeros = ir.Constant(self.vector, [0.0] * self.lanes)
            b.store(b.call(function, [place, ir.IntType(32)(self.align), self.mask, zeros]), total)
        else:
            b.store(b.load(place, align=self.align), total)

    def store(self, place: Any, total: Any, is_masked: bool) -> None:
        b = self.builder
        if is_masked:
            kinds = [self.vector, place.type, ir.IntType(32), self.mask.type]
            function = self.intrinsic("llvm.masked.store", ir.VoidType(), kinds)
            b.call(function, [b.load(total), place, ir.IntType(32)(self.align), self.mask])
        else:
            b.store(b.load(total), place, align=self.align)

    def panel_row(self, panel: Any, begin: Any, apart: Any, k: Any) -> Any:
        """Row `k` of a panel, whose rows are so far `apart`."""
        at = self.builder.add(begin, self.builder.mul(k, apart))
        return self.builder.load(_vector_at(self.builder, panel, at, self.vector), align=self.align)

    def step(self, move: Any, right: Any) -> None:
        """Add the products of one step; `move`: how far it is from the first step, in elements."""
        builder = self.builder
        for start, total in zip(self.starts, self.totals, strict=True):
            left = self.spread(builder.load(builder.gep(start, [move])), self.vector)
            builder.store(builder.call(self.multiply_add, [left, right, builder.load(total)]), total)


def _table_tile(half: bool) -> Any:
    i = types.intp

    @instructions(
        lambda x, rows, steps, panel, begin, apart, out, to, places, k, high, columns, count, more: types.void(
            x, rows, steps, panel, i, i, out, i, places, i, i, i, i, types.boolean
        )
    )
    def table_tile(context, builder, args, *kinds):
        """out[to + places[k + i] + j] (+)= sum over s < count of x[rows[k + i] + steps[s]] * panel[begin + s * apart + j].

        For i < high <= MR and j < columns, of which the panel has NR (`half`: NR / 2); `more`: add to what is there.
        """
        x, begin, apart, to, k, high, columns, count, more = (kinds[0], *(args[i] for i in (4, 5, 7, *range(9, 14))))
        arrays = (_data(context, builder, kinds[i], args[i]) for i in (0, 1, 2, 3, 6, 8))
        first, offsets, moves, second, into, targets = arrays
        lanes = NR[x.dtype.name] // 2 if half else NR[x.dtype.name]
        sums = _Tile(context, builder, x, lanes, high, columns)
        sums.at_table(first, offsets, into, to, targets, k)
        sums.begin(more)
        whole, rest = (f(count, sums.constant(UNROLLED)) for f in (builder.sdiv, builder.srem))
        for begins, times, together in ((sums.constant(0), whole, UNROLLED), (builder.sub(count, rest), rest, 1)):
            with cgutils.for_range(builder, times, intp=sums.word) as loop:
                at = builder.add(begins, builder.mul(loop.index, sums.constant(together)))
                for step in range(together):
                    s = builder.add(at, sums.constant(step))
                    sums.step(builder.load(builder.gep(moves, [s])), sums.panel_row(second, begin, apart, s))
        sums.for_each_place(sums.store)
        return context.get_dummy_value()

    return table_tile


table_tile, half_table_tile = _table_tile(False), _table_tile(True)


def _move(count_of: Any) -> Any:
    @instructions(lambda out, to, x, of: types.void(out, types.intp, x, types.intp))
    def move(context, builder, args, out, to, x, of):
        """out[to + j] = x[of + j] for a fixed number of j."""
        vector = ir.VectorType(context.get_value_type(x.dtype), count_of(x.dtype.name))
        align = x.dtype.bitwidth // 8
        value = builder.load(_vector_at(builder, _data(context, builder, x, args[2]), args[3], vector), align=align)
        builder.store(value, _vector_at(builder, _data(context, builder, out, args[0]), args[1], vector), align=align)
        return context.get_dummy_value()

    return move


move_columns, move_rows = _move(lambda name: NR[name]), _move(lambda name: MR)
"""As many numbers as a panel has columns, and as a tile has rows."""


@instructions(lambda out, to, out_jump, x, of, x_jump: types.void(out, *[types.intp] * 2, x, *[types.intp] * 2))
def transpose(context, builder, args, out, to, out_jump, x, of, x_jump):
    """out[to + i * out_jump + j] = x[of + j * x_jump + i] for i and j < SQUARE, in three rounds of shuffles."""
    word = context.get_value_type(types.intp)
    vector, align = ir.VectorType(context.get_value_type(x.dtype), SQUARE), x.dtype.bitwidth // 8
    into, source = _data(context, builder, out, args[0]), _data(context, builder, x, args[3])

    def places(data: Any, begin: Any, jump: Any) -> Any:
        for i in range(SQUARE):
            yield _vector_at(builder, data, builder.add(begin, builder.mul(jump, ir.Constant(word, i))), vector)

    rows = [builder.load(p, align=align) for p in places(source, args[4], args[5])]
    for distance in (1, 2, 4):  # swap what is off the diagonal of all squares of twice this size
        for i in range(SQUARE):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                low = [k if not k & distance else SQUARE + k - distance for k in range(SQUARE)]
                high = [k + distance if not k & distance else SQUARE + k for k in range(SQUARE)]
                masks = [ir.Constant(ir.VectorType(ir.IntType(32), SQUARE), m) for m in (low, high)]
                rows[i], rows[i + distance] = (builder.shuffle_vector(a, b, mask) for mask in masks)
    for row, place in zip(rows, places(into, args[1], args[2]), strict=True):
        builder.store(row, place, align=align)
    return context.get_dummy_value()
