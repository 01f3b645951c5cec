"""The micro-kernels of depthwise convolutions and of their filter gradients, in LLVM: a vector of contiguous channels.

Sums stay in registers over the whole window, or over a row of pixels: COLUMNS pixels of a result at a time, which share the loads of
the filter; or TAPS taps of a filter's gradient, which share the loads of the result's gradient.
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

COLUMNS, TAPS = 4, 3
LANES = {"float32": 16 if WIDE else 8, "float64": 8 if WIDE else 4}


class _Vectors:
    """Loads and stores vectors at any index of flat arrays."""

    def __init__(self, context: Any, builder: Any, kind: Any, size: int) -> None:
        lanes = LANES[kind.dtype.name]
        self.context, self.builder = context, builder
        self.word = context.get_value_type(types.intp)
        self.vector, self.align = ir.VectorType(context.get_value_type(kind.dtype), lanes), kind.dtype.bitwidth // 8
        name = f"llvm.fma.v{lanes}f{kind.dtype.bitwidth}"
        signature = ir.FunctionType(self.vector, [self.vector] * 3)
        self.multiply_add = cgutils.get_or_insert_function(builder.module, signature, name)
        zeros = ir.Constant(self.vector, [0.0] * lanes)
        self.totals = [cgutils.alloca_once_value(builder, zeros) for _ in range(size)]
        for total in self.totals:
            builder.store(zeros, total)

    def data(self, kind: Any, value: Any) -> Any:
        return self.context.make_array(kind)(self.context, self.builder, value).data

    def place(self, data: Any, at: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(data, [at]), self.vector.as_pointer())

    def load(self, data: Any, at: Any) -> Any:
        return self.builder.load(self.place(data, at), align=self.align)

    def store(self, value: Any, data: Any, at: Any) -> None:
        self.builder.store(value, self.place(data, at), align=self.align)

    def places(self, begin: Any, jump: Any, count: Any) -> list[Any]:
        """Where the vectors of each total begin; where there are fewer, those that are too many are the last once more."""
        builder, out = self.builder, []
        last = builder.sub(count, ir.Constant(self.word, 1))
        for i in range(len(self.totals)):
            number = ir.Constant(self.word, i)
            number = builder.select(builder.icmp_signed("<", number, last), number, last)
            out.append(builder.add(begin, builder.mul(number, jump)))
        return out

    def add(self, i: int, left: Any, right: Any) -> None:
        """Add products to a total."""
        total = self.totals[i]
        self.builder.store(self.builder.call(self.multiply_add, [left, right, self.builder.load(total)]), total)


@intrinsic
def convolve_channels(typing_context, x, at, x_jump, w, tap, y, to, y_jump, columns, high, wide, row, column, channels):
    """y[to + c * y_jump + j] = sum over a < high and b < wide of x[at + c * x_jump + a * row + b * column + j] * w[tap + (a * wide + b) *
    channels + j], for c < columns <= COLUMNS and a vector of j. Nothing is checked."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, at, x_jump, _, tap, _, to, y_jump, columns, high, wide, row, column, channels = args
        v = _Vectors(context, builder, x, COLUMNS)
        first, second, into = v.data(x, args[0]), v.data(w, args[3]), v.data(y, args[5])
        starts, places = v.places(at, x_jump, columns), v.places(to, y_jump, columns)
        with cgutils.for_range(builder, high, intp=v.word) as a, cgutils.for_range(builder, wide, intp=v.word) as b:
            number = builder.add(builder.mul(a.index, wide), b.index)
            right = v.load(second, builder.add(tap, builder.mul(number, channels)))
            move = builder.add(builder.mul(a.index, row), builder.mul(b.index, column))
            for i, start in enumerate(starts):
                v.add(i, v.load(first, builder.add(start, move)), right)
        for total, place in zip(v.totals, places, strict=True):
            v.store(builder.load(total), into, place)
        return context.get_dummy_value()

    i = types.intp
    return types.void(x, i, i, w, i, y, i, i, i, i, i, i, i, i), emit


@intrinsic
def sum_channels(typing_context, x, at, x_jump, y, by, y_jump, columns, w, to, w_jump, taps, tap_jump):
    """w[to + b * w_jump + j] += sum over c < columns of x[at + b * tap_jump + c * x_jump + j] * y[by + c * y_jump + j], for
    b < taps <= TAPS and a vector of j. Nothing is checked."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, at, x_jump, _, by, y_jump, columns, _, to, w_jump, taps, tap_jump = args
        v = _Vectors(context, builder, x, TAPS)
        first, second, into = v.data(x, args[0]), v.data(y, args[3]), v.data(w, args[7])
        starts, places = v.places(at, tap_jump, taps), v.places(to, w_jump, taps)
        with cgutils.for_range(builder, columns, intp=v.word) as c:
            right = v.load(second, builder.add(by, builder.mul(c.index, y_jump)))
            move = builder.mul(c.index, x_jump)
            for i, start in enumerate(starts):
                v.add(i, v.load(first, builder.add(start, move)), right)
        before = [v.load(into, place) for place in places]  # all, before one is written: some may be the same
        for total, place, value in zip(v.totals, places, before, strict=True):
            v.store(builder.fadd(value, builder.load(total)), into, place)
        return context.get_dummy_value()

    i = types.intp
    return types.void(x, i, i, y, i, i, i, w, i, i, i, i), emit
