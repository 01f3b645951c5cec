"""The innermost piece of a convolution's gradient by its filter: a tile of a matrix product whose rows and steps lie anywhere.

It is the tile of `matrix_tile`, MR rows and NR columns in registers. There the rows of the first factor are a fixed distance apart, and so
are their steps; here both are looked up in tables. What is summed may so be all pixels of a piece of an image, whatever its rows and
columns, in one loop: a number of the table is one load among ten, for sixteen products.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .matrix_tile import MR, NR, _data, _own, _vector_at


def _tile(half: bool) -> Any:
    @intrinsic
    def tile(typing_context, x, rows, steps, panel, begin, out, to, places, k, high, count, more):
        """out[to + places[k + i] + j] (+)= sum over s < count of x[rows[k + i] + steps[s]] * panel[begin + s * columns + j].

        For i < high <= MR and all j of the panel's columns (`half`: NR / 2 of them); `more`: add to what is there. Nothing is
        checked. Rows that are too many are those of the last one once more.
        """
        lanes = NR[x.dtype.name] // 2 if half else NR[x.dtype.name]

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            begin, to, k, high, count, more = (args[i] for i in (4, 6, 8, 9, 10, 11))
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
            for goal in goals:
                _own(builder, goal)
            with builder.if_else(more) as (then, otherwise):
                with then:
                    for goal, total in zip(goals, totals, strict=True):
                        builder.store(builder.load(goal, align=align), total)
                with otherwise:
                    for total in totals:
                        builder.store(zeros, total)
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
                for start, total in zip(starts, totals, strict=True):
                    left = builder.load(builder.gep(start, [move]))
                    single = builder.insert_element(unknown, left, ir.IntType(32)(0))
                    spread = builder.shuffle_vector(single, unknown, everywhere)
                    builder.store(builder.call(multiply_add, [spread, right, builder.load(total)]), total)
            for goal, total in zip(goals, totals, strict=True):
                builder.store(builder.load(total), goal, align=align)
            return context.get_dummy_value()

        i = types.intp
        return types.void(x, rows, steps, panel, i, out, i, places, i, i, i, types.boolean), emit

    return tile


tile, half_tile = _tile(False), _tile(True)
