"""Symbolic operands: a scalar body called with them records its arithmetic as loop IR.

So an elementwise op needs no lowering rule: the body that NumPy runs on arrays also gives its part of a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from ...graph.core.dtypes import FLOAT8, DType, bool_, float64, int32, int64
from ...graph.core.scalar_math import NumpyMath
from ..ir.loop_nest import COSTLY, FLOAT32_ONLY, SET, SUPPORTED, LoopNest, LoopNestBuilder, NotFusibleError, Scan

_MOST_POWERS = 4  # the largest n for which x ** n becomes a product: within 2 units in the last place of the power
_VECTORISED = COSTLY | {"sqrt", "floor", "ceil", "round", "trunc", "abs", "sign", "isnan", "isinf", "isfinite"}
_UFUNCS = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "div", np.negative: "neg", np.power: "pow",
    np.left_shift: "shl", np.right_shift: "shr", np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge",
    np.equal: "eq", np.not_equal: "ne", np.bitwise_and: "bitand", np.bitwise_or: "bitor", np.bitwise_xor: "bitxor",
    np.invert: "invert", np.logical_and: "and", np.logical_or: "or", np.logical_xor: "xor", np.logical_not: "not",
    np.minimum: "minimum", np.maximum: "maximum",
    **{ufunc: name for name, ufunc in vars(NumpyMath).items() if isinstance(ufunc, np.ufunc) and name in _VECTORISED},
}  # fmt: skip
_OF_TRUTHS = {"bitand": "and", "bitor": "or", "bitxor": "xor", "invert": "not"}


class Symbol(np.lib.mixins.NDArrayOperatorsMixin):
    """A symbolic number in a scalar body, or in the rule of an optimizer. Arithmetic on it, NumPy's too, appends to the loop IR."""

    __slots__ = ("builder", "number")

    def __init__(self, builder: LoopNestBuilder, number: int) -> None:
        self.builder = builder
        self.number = number

    @property
    def type(self) -> DType:
        """Its element type."""
        return self.builder.dtype(self.number)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type, as an array has it."""
        return self.type.np

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Symbol:
        if ufunc in (np.floor_divide, np.remainder):
            raise NotFusibleError("division with a remainder stays with NumPy, which checks for zero")
        # A loop ignores where a result is stored.
        if ufunc not in _UFUNCS or method != "__call__" or options.keys() - {"out"}:
            raise NotFusibleError(f"numpy.{ufunc.__name__} has no vectorised form")
        # np.asarray wraps objects of unknown type
        given = [x if isinstance(x, Symbol) else np.asarray(x).item() for x in inputs]
        op = _UFUNCS[ufunc]
        if len(given) > 1:
            given = list(_same_type(self.builder, *given))
        if op == "div" and not self.type.is_floating:
            raise NotFusibleError("division of integers stays with NumPy, which checks for zero")
        return _power(*given) if op == "pow" else _applied(_OF_TRUTHS.get(op, op) if self.type is bool_ else op, *given)

    def __bool__(self) -> bool:
        raise NotFusibleError("its scalar body has an `if`")

    def reduced(self, kind: str) -> Symbol:
        """The reduction over all reduced axes."""
        return Symbol(self.builder, self.builder.reduce(kind, self.number))

    def scanned(self, how: Scan) -> Symbol:
        """The running sum or product along a row, up to each element."""
        return Symbol(self.builder, self.builder.scan(how, self.number))


def _applied(op: str, *args: Symbol) -> Symbol:
    x = args[0]
    if op in FLOAT32_ONLY and (x.type is float64 or not x.type.is_floating):
        raise NotFusibleError(f"{op} of {x.type.name} stays with NumPy")
    return Symbol(x.builder, x.builder.apply(op, *[a.number for a in args]))


def _power(x: Symbol, y: Symbol) -> Symbol:
    """x ** y; a product for small constant integers y."""
    n = y.builder.constant_of(y.number)
    if n is None or not 1 <= n <= _MOST_POWERS or n != int(n):
        return _applied("pow", x, y)
    return reduce(lambda product, _: _applied("mul", product, x), range(int(n) - 1), x)


def _same_type(builder: LoopNestBuilder, a: Any, b: Any) -> tuple[Symbol, Symbol]:
    """Both as symbols of one type; a Python number takes the other's."""
    if not isinstance(a, Symbol):
        a = literal(builder, a, b.type)
    if not isinstance(b, Symbol):
        b = literal(builder, b, a.type)
    if a.type is not b.type:
        raise NotFusibleError(f"its scalar body mixes {a.type.name} and {b.type.name}")
    return a, b


def literal(builder: LoopNestBuilder, value: Any, dtype: DType) -> Symbol:
    if isinstance(value, float) and not dtype.is_floating:
        raise NotFusibleError(f"its scalar body mixes {dtype.name} and fractions")
    rounded = np.asarray(value, dtype.np).item()  # 0.1 changes in float32
    return Symbol(builder, builder.constant(rounded, dtype))


class SymbolicMath(NumpyMath):
    """The math namespace that scalar bodies get here: most of NumPy's functions take symbols."""

    erf, erfc, lgamma = (staticmethod(partial(_applied, name)) for name in ("erf", "erfc", "lgamma"))

    @staticmethod
    def digamma(x: Symbol) -> Symbol:
        """Refuses: there is no vectorised form."""
        raise NotFusibleError("digamma has no vectorised form")

    @staticmethod
    def where(condition: Symbol, a: Any, b: Any) -> Symbol:
        """`a` where the condition holds, else `b`."""
        return _applied("select", condition, *_same_type(condition.builder, a, b))

    @staticmethod
    def full_like(x: Symbol, value: Any) -> Symbol:
        """A number of x's type."""
        return literal(x.builder, value, x.type)

    @staticmethod
    def cast(x: Symbol, dtype: DType) -> Symbol:
        """x as another type."""
        if x.type is not dtype and dtype not in SUPPORTED and dtype not in FLOAT8:
            raise NotFusibleError(f"{dtype.name} stays with NumPy")
        if x.type is not dtype and x.type.is_floating and not (dtype.is_floating or dtype in (bool_, int32, int64)):
            raise NotFusibleError(
                f"a cast to {dtype.name} stays with NumPy, which decides what a value out of range becomes"
            )
        return Symbol(x.builder, x.builder.cast(x.number, dtype))


class SymbolicLoops:
    """Writes a loop nest as arithmetic on symbols: a new one over a space, or more of one that a builder has begun."""

    def __init__(self, space: Sequence[bool] | LoopNestBuilder) -> None:
        self.builder = space if isinstance(space, LoopNestBuilder) else LoopNestBuilder(space)

    def load(self, position: int, dtype: DType, axes: Iterable[int]) -> Symbol:
        """An element of an input."""
        return Symbol(self.builder, self.builder.load(position, dtype, axes))

    def gather(self, position: int, dtype: DType, row: Symbol, axes: Iterable[int] = ()) -> Symbol:
        """An element of the row with the number `row` of a table, which is an input; its elements lie along `axes`."""
        return Symbol(self.builder, self.builder.gather(position, dtype, row.number, axes))

    def size(self, name: str, dtype: DType = int64) -> Symbol:
        """A number that a launch gives."""
        return Symbol(self.builder, self.builder.size(name, dtype))

    def position(self, axis: int, dtype: DType = int64) -> Symbol:
        """Where an element is along an axis."""
        return Symbol(self.builder, self.builder.position(axis, dtype))

    def constant(self, value: bool | int | float, dtype: DType) -> Symbol:
        """A number."""
        return Symbol(self.builder, self.builder.constant(value, dtype))

    def store(self, value: Symbol, axes: Iterable[int], row: Symbol | None = None, how: str = SET) -> None:
        """An output; of a table, into this row."""
        self.builder.store(value.number, axes, None if row is None else row.number, how)

    def finish(self) -> LoopNest:
        """The nest."""
        return self.builder.finish()[0]
