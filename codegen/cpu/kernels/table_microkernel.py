"""The innermost piece of a convolution and its gradients: a tile of a matrix product whose rows and steps lie anywhere.

It is the tile of `microkernel`, MR rows and NR columns in registers. There the rows of the first factor are a fixed distance apart, and so
are their steps; here both are looked up in tables. What is summed may so be all pixels of a piece of an image, or all taps of a window,
whatever the image's rows and columns, in one loop: a number of the table is one load among ten, for sixteen products.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from .microkernel import MR, NR, _data, _own, _vector_at


def _tile(half: bool) -> Any:
    def typed(x, rows, steps, panel, out, places, is_expecting):
        lanes = NR[x.dtype.name] // 2 if half else NR[x.dtype.name]

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            begin, to, k, high, columns, count, more = (args[i] for i in (4, 6, 8, 9, 10, 11, 12))
            number, word = context.get_value_type(x.dtype), context.get_value_type(types.intp)
            vector, align = ir.VectorType(number, lanes), x.dtype.bitwidth // 8
            first, moves, second = (_data(context, builder, t, args[i]) for i, t in ((0, x), (2, steps), (3, panel)))
            offsets, into, targets = (
                _data(context, builder, t, args[i]) for i, t in ((1, rows), (5, out), (7, places))
            )
            last = builder.sub(high, ir.Constant(word, 1))
            starts, goals = [], []
            for i in range(MR):
                row = ir.Constant(word, i)
                row = builder.add(k, builder.select(builder.icmp_signed("<", row, last), row, last))
                starts.append(builder.gep(first, [builder.load(builder.gep(offsets, [row]))]))
                goal = builder.add(to, builder.load(builder.gep(targets, [row])))
                goals.append(_vector_at(builder, into, goal, vector))
            zeros = ir.Constant(vector, [0.0] * lanes)
            totals = [cgutils.alloca_once_value(builder, zeros) for _ in goals]
            mask = _first_lanes(builder, columns, lanes)
            is_whole = builder.icmp_signed("==", columns, ir.Constant(word, lanes))
            for goal, total in zip(goals, totals, strict=True):
                _own(builder, goal)
                builder.store(zeros, total)
            with builder.if_then(more), builder.if_else(is_whole) as (whole, part):
                with whole:
                    for goal, total in zip(goals, totals, strict=True):
                        builder.store(builder.load(goal, align=align), total)
                with part:
                    for goal, total in zip(goals, totals, strict=True):
                        builder.store(_load_lanes(builder, goal, vector, align, mask), total)
            multiply_add = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{lanes}f{x.dtype.bitwidth}"
            )
            everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
            unknown = ir.Constant(vector, ir.Undefined)
            with cgutils.for_range(builder, count, intp=word) as loop:
                step = loop.index
                where = builder.add(begin, builder.mul(step, ir.Constant(word, lanes)))
                right = builder.load(_vector_at(builder, second, where, vector), align=align)
                move = builder.load(builder.gep(moves, [step]))
                if is_expecting:
                    _expect(builder, builder.add(args[13], builder.mul(step, args[14])))
                for start, total in zip(starts, totals, strict=True):
                    left = builder.load(builder.gep(start, [move]))
                    single = builder.insert_element(unknown, left, ir.IntType(32)(0))
                    spread = builder.shuffle_vector(single, unknown, everywhere)
                    builder.store(builder.call(multiply_add, [spread, right, builder.load(total)]), total)
            with builder.if_else(is_whole) as (whole, part):
                with whole:
                    for goal, total in zip(goals, totals, strict=True):
                        builder.store(builder.load(total), goal, align=align)
                with part:
                    for goal, total in zip(goals, totals, strict=True):
                        _store_lanes(builder, builder.load(total), goal, vector, align, mask)
            return context.get_dummy_value()

        i = types.intp
        given = (x, rows, steps, panel, i, out, i, places, i, i, i, i, types.boolean)
        return types.void(*given, *((i, i) if is_expecting else ())), emit

    @intrinsic
    def tile(typing_context, x, rows, steps, panel, begin, out, to, places, k, high, columns, count, more):
        """out[to + places[k + i] + j] (+)= sum over s < count of x[rows[k + i] + steps[s]] * panel[begin + s * columns + j].

        For i < high <= MR and j < columns, of which the panel has NR (`half`: NR / 2); `more`: add to what is there. Nothing is
        checked. Rows that are too many are those of the last one once more.
        """
        return typed(x, rows, steps, panel, out, places, False)

    @intrinsic
    def expecting_tile(
        typing_context, x, rows, steps, panel, begin, out, to, places, k, high, columns, count, more, ahead, jump
    ):
        """The same, while memory is asked for that will be read next: at step s the line at the address ahead + s * jump."""
        return typed(x, rows, steps, panel, out, places, True)

    return tile, expecting_tile


def _expect(builder: Any, address: Any) -> None:
    """Ask for a line of memory to be in the second cache; nothing happens where there is none."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, byte), number(0), number(2), number(1)])


def _first_lanes(builder: Any, count: Any, lanes: int) -> Any:
    """A mask of so many lanes."""
    kind = ir.VectorType(count.type, lanes)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), count, ir.IntType(32)(0))
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    spread = builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), everywhere)
    return builder.icmp_signed("<", ir.Constant(kind, list(range(lanes))), spread)


def _load_lanes(builder: Any, place: Any, vector: Any, align: int, mask: Any) -> Any:
    """The lanes of a mask; zeros in others."""
    kind = ir.FunctionType(vector, [vector.as_pointer(), ir.IntType(32), mask.type, vector])
    name = f"llvm.masked.load.v{vector.count}f{align * 8}.p0"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [place, ir.IntType(32)(align), mask, ir.Constant(vector, [0.0] * vector.count)])


def _store_lanes(builder: Any, value: Any, place: Any, vector: Any, align: int, mask: Any) -> None:
    """Those of a mask; no others are touched."""
    kind = ir.FunctionType(ir.VoidType(), [vector, vector.as_pointer(), ir.IntType(32), mask.type])
    name = f"llvm.masked.store.v{vector.count}f{align * 8}.p0"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    builder.call(function, [value, place, ir.IntType(32)(align), mask])


(tile, expecting_tile), (half_tile, expecting_half_tile) = _tile(False), _tile(True)


@intrinsic
def as_written(typing_context, x):
    """An array that is read as one that may be written: then a tile takes either."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return x.copy(readonly=False)(x), emit
