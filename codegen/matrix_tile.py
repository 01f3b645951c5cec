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

from .vecmath import WIDE

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
            number, word = context.get_value_type(x.dtype), context.get_value_type(types.intp)
            vector, align = ir.VectorType(number, lanes), x.dtype.bitwidth // 8
            arrays = ((0, x), (6, panel), (8, out))
            first, second, into = (_data(context, builder, kind, args[i]) for i, kind in arrays)
            last = builder.sub(high, ir.Constant(word, 1))
            rows = []
            for i in range(MR):
                row = ir.Constant(word, i)
                rows.append(builder.select(builder.icmp_signed("<", row, last), row, last))
            starts = [builder.gep(first, [builder.add(at, builder.mul(row, row_jump))]) for row in rows]
            places = [_vector_at(builder, into, builder.add(to, builder.mul(row, out_jump)), vector) for row in rows]
            zeros = ir.Constant(vector, [0.0] * lanes)
            totals = [cgutils.alloca_once_value(builder, zeros) for _ in rows]
            for place in places:
                _own(builder, place)
            with builder.if_else(more) as (then, otherwise):
                with then:
                    for place, total in zip(places, totals, strict=True):
                        builder.store(builder.load(place, align=align), total)
                with otherwise:
                    for total in totals:
                        builder.store(zeros, total)
            multiply_add = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{lanes}f{x.dtype.bitwidth}"
            )
            everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
            unknown = ir.Constant(vector, ir.Undefined)
            with cgutils.for_range(builder, steps, intp=word) as loop:
                k = loop.index
                where = builder.add(begin, builder.mul(k, ir.Constant(word, lanes)))
                right = builder.load(_vector_at(builder, second, where, vector), align=align)
                move = builder.mul(k, jump)
                for start, total in zip(starts, totals, strict=True):
                    left = builder.load(builder.gep(start, [move]))
                    single = builder.insert_element(unknown, left, ir.IntType(32)(0))
                    spread = builder.shuffle_vector(single, unknown, everywhere)
                    builder.store(builder.call(multiply_add, [spread, right, builder.load(total)]), total)
            for place, total in zip(places, totals, strict=True):
                builder.store(builder.load(total), place, align=align)
            return context.get_dummy_value()

        i = types.intp
        return types.void(x, i, i, i, i, i, panel, i, out, i, i, types.boolean), emit

    return tile


tile, half_tile = _tile(False), _tile(True)


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
