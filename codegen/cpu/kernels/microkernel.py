"""The innermost pieces of a matrix product, as LLVM instructions: a tile in registers, and how its operands are laid out.

A tile has MR rows and NR columns of the product, two vectors of the machine side by side. While it runs over the summed axis it
reads two vectors of the second factor and one number per row of the first, and multiplies and adds: on a machine with 64-byte
vectors sixteen accumulators for ten loads, on others twelve for eight, which keeps both arithmetic units busy all the time (Goto
and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008; Van Zee and van de Geijn, "BLIS", 2015).

The first factor is read where it lies if its rows are contiguous along the summed axis, else from a copy in which MR rows are
interleaved. The second factor lies in panels: all steps of the summed axis one after the other, NR numbers each; a panel of at
most NR / 2 columns is half as wide.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...vecmath import WIDE

MR = 8 if WIDE else 6
NR = {"float32": 32 if WIDE else 16, "float64": 16 if WIDE else 8}
SQUARE = 8  # rows and columns that are transposed at a time


def _data(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.make_array(kind)(context, builder, value).data


def _vector_at(builder: Any, data: Any, at: Any, vector: Any) -> Any:
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


def _own(builder: Any, place: Any) -> None:
    """Ask for a line of memory that will be written to be in the first cache; nothing happens where there is none."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.bitcast(place, byte), number(1), number(3), number(1)])


def _ask(builder: Any, place: Any, size: int) -> None:
    """Ask for memory that will be read soon to be in the second cache."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    place = builder.bitcast(place, byte)
    for line in range(0, size, 64):
        there = builder.gep(place, [ir.Constant(ir.IntType(64), line)])
        builder.call(function, [there, number(0), number(2), number(1)])


class _Sums:
    """Writes a tile's instructions: what all kinds have in common, with `numbers` that say where its operands are."""

    def __init__(self, context: Any, builder: Any, x: Any, lanes: int, first: Any, into: Any, numbers: Any) -> None:
        at, row_jump, self.jump, high, self.steps, to, out_jump, self.more = numbers
        self.builder, self.lanes = builder, lanes
        self.number, self.word = context.get_value_type(x.dtype), context.get_value_type(types.intp)
        self.vector, self.align = ir.VectorType(self.number, lanes), x.dtype.bitwidth // 8
        self.multiply_add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(self.vector, [self.vector] * 3), f"llvm.fmuladd.v{lanes}f{x.dtype.bitwidth}"
        )
        last = builder.sub(high, self.constant(1))
        rows = []
        for i in range(MR):
            row = self.constant(i)
            rows.append(builder.select(builder.icmp_signed("<", row, last), row, last))
        self.starts = [builder.gep(first, [builder.add(at, builder.mul(row, row_jump))]) for row in rows]
        self.places = [
            _vector_at(builder, into, builder.add(to, builder.mul(row, out_jump)), self.vector) for row in rows
        ]
        self.totals: list[Any] = []

    def constant(self, value: int) -> Any:
        return ir.Constant(self.word, value)

    def begin(self) -> None:
        """Zeros, or what is there."""
        builder, zeros = self.builder, ir.Constant(self.vector, [0.0] * self.lanes)
        self.totals = [cgutils.alloca_once_value(builder, zeros) for _ in self.places]
        for place in self.places:
            _own(builder, place)
        with builder.if_else(self.more) as (then, otherwise):
            with then:
                for place, total in zip(self.places, self.totals, strict=True):
                    builder.store(builder.load(place, align=self.align), total)
            with otherwise:
                for total in self.totals:
                    builder.store(zeros, total)

    def row_of(self, data: Any, begin: Any, k: Any, jump: Any) -> Any:
        """Where a row of the second factor is."""
        return _vector_at(self.builder, data, self.builder.add(begin, self.builder.mul(k, jump)), self.vector)

    def step(self, k: Any, right: Any) -> None:
        """Add the products of one step."""
        builder = self.builder
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        unknown = ir.Constant(self.vector, ir.Undefined)
        move = builder.mul(k, self.jump)
        for start, total in zip(self.starts, self.totals, strict=True):
            left = builder.load(builder.gep(start, [move]))
            single = builder.insert_element(unknown, left, ir.IntType(32)(0))
            spread = builder.shuffle_vector(single, unknown, everywhere)
            builder.store(builder.call(self.multiply_add, [spread, right, builder.load(total)]), total)

    def end(self) -> None:
        """Write the sums."""
        for place, total in zip(self.places, self.totals, strict=True):
            self.builder.store(self.builder.load(total), place, align=self.align)


def _tile(half: bool) -> Any:
    @intrinsic
    def tile(typing_context, x, at, row_jump, jump, high, steps, panel, begin, out, to, out_jump, more):
        """out[to + i * out_jump + j] (+)= sum over k < steps of x[at + i * row_jump + k * jump] * panel[begin + k * columns + j].

        For i < high <= MR and all j of the panel's columns (`half`: NR / 2 of them); `more`: add to what is there. Nothing is
        checked. Rows that are too many are those of the last one once more.
        """
        lanes = NR[x.dtype.name] // 2 if half else NR[x.dtype.name]

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, at, row_jump, jump, high, steps, _, begin, _, to, out_jump, more = args
            first, second, into = (_data(context, builder, k, args[i]) for i, k in ((0, x), (6, panel), (8, out)))
            numbers = (at, row_jump, jump, high, steps, to, out_jump, more)
            sums = _Sums(context, builder, x, lanes, first, into, numbers)
            sums.begin()
            with cgutils.for_range(builder, steps, intp=sums.word) as loop:
                place = sums.row_of(second, begin, loop.index, sums.constant(lanes))
                sums.step(loop.index, builder.load(place, align=sums.align))
            sums.end()
            return context.get_dummy_value()

        i = types.intp
        return types.void(x, i, i, i, i, i, panel, i, out, i, i, types.boolean), emit

    return tile


tile, half_tile = _tile(False), _tile(True)


@intrinsic
def first_tile(
    typing_context, x, at, row_jump, jump, high, steps, b, source, source_jump, panel, begin, out, to, out_jump, more
):
    """A tile that takes the second factor from where it lies, b[source + k * source_jump + j], and lays out the panel on the way.

    The panel's stores go where the tile has nothing to do otherwise.
    """
    lanes = NR[x.dtype.name]

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, at, row_jump, jump, high, steps, _, source, source_jump, _, begin, _, to, out_jump, more = args
        arrays = ((0, x), (6, b), (9, panel), (11, out))
        first, second, laid, into = (_data(context, builder, k, args[i]) for i, k in arrays)
        numbers = (at, row_jump, jump, high, steps, to, out_jump, more)
        sums = _Sums(context, builder, x, lanes, first, into, numbers)
        sums.begin()
        with cgutils.for_range(builder, steps, intp=sums.word) as loop:
            k = loop.index
            right = builder.load(sums.row_of(second, source, k, source_jump), align=sums.align)
            builder.store(right, sums.row_of(laid, begin, k, sums.constant(lanes)), align=sums.align)
            sums.step(k, right)
        sums.end()
        return context.get_dummy_value()

    i = types.intp
    return types.void(x, i, i, i, i, i, b, i, i, panel, i, out, i, i, types.boolean), emit


@intrinsic
def tile_ahead(
    typing_context, x, at, row_jump, jump, high, steps, panel, begin, b, next, next_jump, few, out, to, out_jump, more
):
    """A tile that asks for `few` rows of the next panel on the way, which begin at b[next + k * next_jump]."""
    lanes = NR[x.dtype.name]

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, at, row_jump, jump, high, steps, _, begin, _, next, next_jump, few, _, to, out_jump, more = args
        arrays = ((0, x), (6, panel), (8, b), (12, out))
        first, second, following, into = (_data(context, builder, k, args[i]) for i, k in arrays)
        numbers = (at, row_jump, jump, high, steps, to, out_jump, more)
        sums = _Sums(context, builder, x, lanes, first, into, numbers)

        def step(k: Any) -> None:
            place = sums.row_of(second, begin, k, sums.constant(lanes))
            sums.step(k, builder.load(place, align=sums.align))

        sums.begin()
        some = builder.icmp_signed(">", few, sums.constant(0))
        every = builder.sdiv(steps, builder.select(some, few, sums.constant(1)))
        with cgutils.for_range(builder, few, intp=sums.word) as turn:
            _ask(builder, sums.row_of(following, next, turn.index, next_jump), lanes * sums.align)
            begun = builder.mul(turn.index, every)
            with cgutils.for_range(builder, every, intp=sums.word) as loop:
                step(builder.add(begun, loop.index))
        done = builder.mul(few, every)
        with cgutils.for_range(builder, builder.sub(steps, done), intp=sums.word) as loop:
            step(builder.add(done, loop.index))
        sums.end()
        return context.get_dummy_value()

    i = types.intp
    return types.void(x, i, i, i, i, i, panel, i, b, i, i, i, out, i, i, types.boolean), emit


def _move(count_of: Any) -> Any:
    @intrinsic
    def move(typing_context, out, to, x, of):
        """out[to + j] = x[of + j] for a fixed number of j."""

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = ir.VectorType(context.get_value_type(x.dtype), count_of(x.dtype.name))
            align = x.dtype.bitwidth // 8
            value = builder.load(_vector_at(builder, _data(context, builder, x, args[2]), args[3], vector), align=align)
            builder.store(
                value, _vector_at(builder, _data(context, builder, out, args[0]), args[1], vector), align=align
            )
            return context.get_dummy_value()

        return types.void(out, types.intp, x, types.intp), emit

    return move


move_columns, move_rows = _move(lambda name: NR[name]), _move(lambda name: MR)
"""As many numbers as a panel has columns, and as a tile has rows."""


@intrinsic
def transpose(typing_context, out, to, out_jump, x, of, x_jump):
    """out[to + i * out_jump + j] = x[of + j * x_jump + i] for i and j < SQUARE, in three rounds of shuffles."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
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

    i = types.intp
    return types.void(out, i, i, x, i, i), emit


# --- units of work ---------------------------------------------------------------------------------------------------


@intrinsic
def count_up(typing_context, counters, place, by):
    """Add to a counter, at once for all threads; what it was before."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.gep(_data(context, builder, counters, args[0]), [args[1]])
        return builder.atomic_rmw("add", at, args[2], "seq_cst")

    return types.int64(counters, types.intp, types.int64), emit


@intrinsic
def count_now(typing_context, counters, place):
    """A counter as it is at this moment."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.gep(_data(context, builder, counters, args[0]), [args[1]]), "acquire", 8)

    return types.int64(counters, types.intp), emit
