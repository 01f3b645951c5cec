"""LLVM's intrinsics as functions for compiled code, and decorators that say how functions are compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..target import vector_bytes

f32, f64, i32, i64 = np.float32, np.float64, np.int32, np.int64

inner = partial(njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""`njit` without wrappers for Python and C, for functions that only compiled code calls. This saves a tenth of the compile time."""

launched = njit(
    "void(intp, intp, intp)", no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", cache=True
)
"""Compiles a kernel: `kernel(words, lo, hi)` is called by launch tables alone. It finds its arguments at the address `words`
(`memory.vector`, `memory.word`), and does the part from `lo` to `hi` of its work."""


def vectorisable(function: Callable[..., Any]) -> Any:
    return inner(fastmath={"contract"}, forceinline=True, error_model="numpy")(function)


def instructions(typed: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """A function for compiled code, from one that emits it: `emit(context, builder, values, *types)`, for the arguments' values and types.

    `typed`: gives the signature for these types; None, or an error of Numba's: there is no such function.
    """

    def decorated(emit: Callable[..., Any]) -> Any:
        def typing(typing_context: Any, *kinds: Any) -> Any:
            signature = typed(*kinds)
            return signature and (signature, lambda context, builder, _, values: emit(context, builder, values, *kinds))

        names, kind = ["typing_context", *inspect.signature(typed).parameters], inspect.Parameter.POSITIONAL_OR_KEYWORD
        typing.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        typing.__name__, typing.__doc__ = emit.__name__, emit.__doc__
        return intrinsic(typing)

    return decorated


# --- functions -------------------------------------------------------------------------------------------------------


def _llvm(name: str, operands: int) -> Any:
    """A function of floating numbers that LLVM knows itself, and so vectorises."""

    def emit(context, builder, values, *_):
        number = values[0].type
        function_type = ir.FunctionType(number, [number] * operands)
        return builder.call(builder.module.declare_intrinsic(name, [number], function_type), values)

    if operands == 1:
        return instructions(lambda x: x(x) if isinstance(x, types.Float) else None)(emit)
    return instructions(lambda x, y: x(x, x) if isinstance(x, types.Float) and x == y else None)(emit)


floor, ceil, rint, trunc = (_llvm(f"llvm.{n}", 1) for n in ("floor", "ceil", "rint", "trunc"))
fabs, sqrt = _llvm("llvm.fabs", 1), _llvm("llvm.sqrt", 1)
copysign = _llvm("llvm.copysign", 2)
fmaximum, fminimum = _llvm("llvm.maximum", 2), _llvm("llvm.minimum", 2)  # NaN when either is NaN
larger = _llvm("llvm.maxnum", 2)  # the other one when one is NaN: a third of the instructions


@instructions(lambda x, y, z: x(x, x, x) if isinstance(x, types.Float) and x == y == z else None)
def fused(context, builder, values, *_):
    """x * y + z, rounded once."""
    return builder.fma(*values)


@instructions(lambda condition, a, b: a(condition, a, a) if isinstance(condition, types.Boolean) and a == b else None)
def select(context, builder, values, *_):
    """`a if condition else b`, without a branch: both are computed."""
    return builder.select(*values)


def _bitcast(source: Any, target: Any) -> Any:
    @instructions(lambda x: target(source) if x == source else None)
    def bitcast(context, builder, values, *_):
        return builder.bitcast(values[0], context.get_value_type(target))

    return bitcast


bits32, of_bits32 = _bitcast(types.float32, types.int32), _bitcast(types.int32, types.float32)
bits64, of_bits64 = _bitcast(types.float64, types.int64), _bitcast(types.int64, types.float64)


@intrinsic
def polynomial(typing_context, x, *coefficients):
    """A polynomial in x by Horner's scheme; its coefficients are numbers, that of the highest power first."""

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        kinds = signature.args[1]
        numbers = [context.cast(builder, builder.extract_value(args[1], i), kind, x) for i, kind in enumerate(kinds)]
        total = numbers[0]
        for number in numbers[1:]:
            total = builder.fadd(builder.fmul(total, args[0], flags=("contract",)), number, flags=("contract",))
        return total

    return (x(x, types.StarArgTuple(coefficients)), emit) if isinstance(x, types.Float) else None


def in_float64(function: Any) -> Any:
    """A function of float64 for float32."""

    def rounded(x):
        return f32(function(f64(x)))

    return vectorisable(rounded)


@vectorisable
def quotient32(a, b):
    """a / b, for b from 2**-60 to 2**60. Correctly rounded here, and nearly always on GPUs, where it needs no call."""
    return a / b


# --- attributes of functions -----------------------------------------------------------------------------------------


def _attribute(text: str) -> Any:
    """A function that adds an attribute of LLVM to its caller."""

    @instructions(lambda: types.void())
    def mark(context, builder, values):
        if text:
            set.add(builder.function.attributes, text)  # llvmlite itself knows no attributes that have a value
        return context.get_dummy_value()

    return mark


wide_vectors = _attribute('"prefer-vector-width"="512"' if vector_bytes() == 64 else "")
"""Let the caller use vectors of 64 bytes, where LLVM prefers 32: some processors lower their clock for wide vectors. Kernels run long
enough to gain."""

stay_apart = _attribute("noinline")
"""Keep the caller from being inlined: the alias scopes of its arrays hold in it alone."""


# --- sums and products in any order ------------------------------------------------------------------------------------

# A sum is vectorised by adding in another order. Only these functions allow that; the rest of a kernel keeps its order.


@inner(fastmath={"reassoc", "nsz"}, forceinline=True)
def accumulate(total, x):
    """total + x, in any order."""
    return total + x


@inner(fastmath={"reassoc", "nsz"}, forceinline=True)
def accumulate_product(total, x):
    """total * x, in any order."""
    return total * x
