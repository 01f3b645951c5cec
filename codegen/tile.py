"""The innermost piece of a convolution: a small tile of a matrix product, held in registers.

A tile has ROWS rows and as many columns as fit two of the machine's vectors. While it runs over the summed axis it keeps one
accumulator per row, reads one vector of the second factor and one number per row of the first, and multiplies and adds: twelve
arithmetic instructions for eight loads on a machine with 32-byte vectors, which is what its units can do (Goto and van de Geijn,
"Anatomy of High-Performance Matrix Multiplication", 2008; BLIS). Numba would keep such an array in memory, so the tile is
written as LLVM instructions.

The first factor is not laid out anew: each row begins anywhere (`offsets`), and the summed axis is three loops with strides of
their own. So the rows can be what windows see of an image, without an "im2col". The second factor lies in panels: all steps of
the summed axis one after the other, LANES numbers each (`panels`).
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ROWS = 6
LANES = {np.dtype(np.float32): 16, np.dtype(np.float64): 8}  # columns: 64 bytes of them


def _sum(context, builder, dtype, x, offsets, steps, strides, panel, at):
    """Emit the loops; one accumulator per row, in memory that LLVM turns into registers."""
    number = context.get_value_type(dtype)
    lanes = LANES[np.dtype(dtype.name)]
    vector = ir.VectorType(number, lanes)
    word = context.get_value_type(types.intp)
    zero = ir.Constant(word, 0)

    starts = [builder.gep(x, [o]) for o in offsets]
    second = builder.gep(panel, [at])
    totals = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * lanes)) for _ in range(ROWS)]
    for total in totals:  # the allocation is at the function's start, the tile may be in a loop
        builder.store(ir.Constant(vector, [0.0] * lanes), total)
    step = cgutils.alloca_once_value(builder, zero)
    builder.store(zero, step)
    multiply_add = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{lanes}f{dtype.bitwidth}"
    )
    lanes_mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    with cgutils.for_range(builder, steps[0], intp=word) as outer:
        first = builder.mul(outer.index, strides[0])
        with cgutils.for_range(builder, steps[1], intp=word) as middle:
            between = builder.add(first, builder.mul(middle.index, strides[1]))
            with cgutils.for_range(builder, steps[2], intp=word) as inner:
                k = builder.load(step)
                where = builder.bitcast(
                    builder.gep(second, [builder.mul(k, ir.Constant(word, lanes))]), vector.as_pointer()
                )
                right = builder.load(where, align=dtype.bitwidth // 8)
                move = builder.add(between, builder.mul(inner.index, strides[2]))
                for begin, total in zip(starts, totals, strict=True):
                    left = builder.load(builder.gep(begin, [move]))
                    single = builder.insert_element(ir.Constant(vector, ir.Undefined), left, ir.IntType(32)(0))
                    spread = builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), lanes_mask)
                    builder.store(builder.call(multiply_add, [spread, right, builder.load(total)]), total)
                builder.store(builder.add(k, ir.Constant(word, 1)), step)
    return totals, vector


def _data(context, builder, kind, value):
    return context.make_array(kind)(context, builder, value).data


_THREE, _ROWS = types.UniTuple(types.intp, 3), types.UniTuple(types.intp, ROWS)


@intrinsic
def tile(typing_context, x, offsets, steps, strides, panel, at, out):
    """out[i, j] = sum over k0, k1, k2 of x[offsets[i] + k0 s0 + k1 s1 + k2 s2] * panel[at + LANES * k + j], k counting all steps.

    `x`, `panel`, `out`: contiguous vectors of one floating type; `offsets`: ROWS integers; `steps`, `strides`: three integers,
    the last one innermost. `out` holds ROWS * LANES numbers. Nothing is checked.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        first, second = _data(context, builder, x, args[0]), _data(context, builder, panel, args[4])
        into = _data(context, builder, out, args[6])
        unpacked = (cgutils.unpack_tuple(builder, args[i], n) for i, n in ((1, ROWS), (2, 3), (3, 3)))
        totals, vector = _sum(context, builder, x.dtype, first, *unpacked, second, args[5])
        for i, total in enumerate(totals):
            at = ir.Constant(context.get_value_type(types.intp), i * vector.count)
            where = builder.bitcast(builder.gep(into, [at]), vector.as_pointer())
            builder.store(builder.load(total), where, align=x.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(x, _ROWS, _THREE, _THREE, panel, types.intp, out), emit


def panels(b: Any, dtype: Any) -> Any:
    """A matrix `[k, columns]` as the second factor: `[panels * k * LANES]`, with zeros where columns are missing."""
    lanes = LANES[np.dtype(dtype)]
    k, columns = b.shape
    count = -(-columns // lanes)
    if columns % lanes:
        out = np.zeros((count, k, lanes), dtype)
        for p in range(count):
            part = b[:, p * lanes : (p + 1) * lanes]
            out[p, :, : part.shape[1]] = part
        return out.ravel()
    return np.ascontiguousarray(b.reshape(k, count, lanes).transpose(1, 0, 2), dtype).ravel()
