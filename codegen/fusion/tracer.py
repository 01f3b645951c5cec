"""Symbolic operands: a scalar body called with them records its arithmetic as loop IR.

So an elementwise op needs no lowering rule: the body that NumPy runs on arrays also gives its part of a kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.core.dtypes import FLOAT8, DType, bool_, float64, int32, int64
from ..ir.legality import SUPPORTED, NotFusibleError
from ..ir.loop_nest import COSTLY, FLOAT32_ONLY, LoopNestBuilder

_MOST_POWERS = 4  # the largest n for which x ** n becomes a product: within 2 units in the last place of the power
_NAMES = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor", "logical_not": "not"}
_OF_TWO = frozenset(["and", "or", "xor", "minimum", "maximum"])
_OF_ONE = COSTLY | {"sqrt", "floor", "ceil", "round", "trunc", "abs", "sign", "not", "isnan", "isinf", "isfinite"}


class Symbol:
    """A symbolic number in a scalar body. Arithmetic on it appends to the loop IR."""

    __slots__ = ("builder", "number")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: LoopNestBuilder, number: int) -> None:
        self.builder = builder
        self.number = number

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.builder.dtype(self.number)

    def _with(self, op: str, other: Any, swapped: bool = False) -> Symbol:
        a, b = (other, self) if swapped else (self, other)
        return _binary(op, a, b)

    def __add__(self, other: Any) -> Symbol:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Symbol:
        return self._with("add", other, True)

    def __sub__(self, other: Any) -> Symbol:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Symbol:
        return self._with("sub", other, True)

    def __mul__(self, other: Any) -> Symbol:
        return self._with("mul", other)

    def __rmul__(self, other: Any) -> Symbol:
        return self._with("mul", other, True)

    def __truediv__(self, other: Any) -> Symbol:
        return self._with("div", other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return self._with("div", other, True)

    def __floordiv__(self, other: Any) -> Symbol:
        raise NotFusibleError("division with a remainder stays with NumPy, which checks for zero")

    __rfloordiv__ = __mod__ = __rmod__ = __floordiv__

    def __lshift__(self, other: Any) -> Symbol:
        return self._with("shl", other)

    def __rshift__(self, other: Any) -> Symbol:
        return self._with("shr", other)

    def __and__(self, other: Any) -> Symbol:
        return self._with("and" if self.dtype is bool_ else "bitand", other)

    def __or__(self, other: Any) -> Symbol:
        return self._with("or" if self.dtype is bool_ else "bitor", other)

    def __xor__(self, other: Any) -> Symbol:
        return self._with("xor" if self.dtype is bool_ else "bitxor", other)

    def __lt__(self, other: Any) -> Symbol:
        return self._with("lt", other)

    def __le__(self, other: Any) -> Symbol:
        return self._with("le", other)

    def __gt__(self, other: Any) -> Symbol:
        return self._with("gt", other)

    def __ge__(self, other: Any) -> Symbol:
        return self._with("ge", other)

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]
        return self._with("eq", other)

    def __ne__(self, other: object) -> Symbol:  # type: ignore[override]
        return self._with("ne", other)

    def __neg__(self) -> Symbol:
        return _unary("neg", self)

    def __invert__(self) -> Symbol:
        return _unary("not" if self.dtype is bool_ else "invert", self)

    def __bool__(self) -> bool:
        raise NotFusibleError("its scalar body has an `if`")


def _same_type(builder: LoopNestBuilder, a: Any, b: Any) -> tuple[Symbol, Symbol]:
    """Both as symbols of one type; a Python number takes the other's."""
    if not isinstance(a, Symbol):
        a = literal(builder, a, b.dtype)
    if not isinstance(b, Symbol):
        b = literal(builder, b, a.dtype)
    if a.dtype is not b.dtype:
        raise NotFusibleError(f"its scalar body mixes {a.dtype.name} and {b.dtype.name}")
    return a, b


def literal(builder: LoopNestBuilder, value: Any, dtype: DType) -> Symbol:
    if isinstance(value, float) and not dtype.is_floating:
        raise NotFusibleError(f"its scalar body mixes {dtype.name} and fractions")
    return Symbol(builder, builder.constant(python_number(value, dtype), dtype))


def python_number(value: Any, dtype: DType) -> bool | int | float:
    """`value` rounded to a type: 0.1 changes in float32."""
    number: bool | int | float = np.asarray(value, dtype.np).item()
    return number


def _binary(op: str, a: Any, b: Any) -> Symbol:
    builder = (a if isinstance(a, Symbol) else b).builder
    x, y = _same_type(builder, a, b)
    if op == "div" and not x.dtype.is_floating:
        raise NotFusibleError("division of integers stays with NumPy, which checks for zero")
    return Symbol(builder, builder.apply(op, x.number, y.number))


def _unary(op: str, x: Symbol) -> Symbol:
    if op in FLOAT32_ONLY:
        _check_precision(op, x)
    return Symbol(x.builder, x.builder.apply(op, x.number))


def _check_precision(op: str, x: Symbol) -> None:
    if x.dtype is float64 or not x.dtype.is_floating:
        raise NotFusibleError(f"{op} of {x.dtype.name} stays with NumPy")


class SymbolicMath:
    """The math namespace that scalar bodies get here: see `graph.scalar_math` for what each function means."""

    def __getattr__(self, name: str) -> Any:
        op = _NAMES.get(name, name)
        if op in _OF_TWO:
            return lambda a, b: _binary(op, a, b)
        if op in _OF_ONE:
            return lambda x: _unary(op, x)
        raise NotFusibleError(f"{name} has no vectorised form")

    @staticmethod
    def where(condition: Symbol, a: Any, b: Any) -> Symbol:
        """`a` where the condition holds, else `b`."""
        x, y = _same_type(condition.builder, a, b)
        return Symbol(x.builder, x.builder.apply("select", condition.number, x.number, y.number))

    @staticmethod
    def full_like(x: Symbol, value: Any) -> Symbol:
        """A number of x's type."""
        return literal(x.builder, value, x.dtype)

    @staticmethod
    def rsqrt(x: Symbol) -> Symbol:
        """1 / sqrt(x)."""
        return 1 / _unary("sqrt", x)

    @staticmethod
    def cast(x: Symbol, dtype: DType) -> Symbol:
        """x as another type."""
        if x.dtype is dtype:
            return x
        if dtype not in SUPPORTED and dtype not in FLOAT8:
            raise NotFusibleError(f"{dtype.name} stays with NumPy")
        if x.dtype.is_floating and not (dtype.is_floating or dtype in (bool_, int32, int64)):
            raise NotFusibleError(f"what does not fit {dtype.name} becomes what NumPy makes of it")
        return Symbol(x.builder, x.builder.apply("cast", x.number, dtype=dtype))

    @staticmethod
    def pow(x: Symbol, y: Symbol) -> Symbol:
        """x ** y; a product for small constant integers y."""
        n = y.builder.constant_of(y.number) if isinstance(y, Symbol) else y
        if n is None or not 1 <= n <= _MOST_POWERS or n != int(n):
            _check_precision("pow", x)
            return _binary("pow", x, y)
        product = x
        for _ in range(int(n) - 1):
            product = product * x
        return product
