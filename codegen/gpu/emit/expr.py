"""Writes values of loop nests as expressions in Triton; the names of kernels' arguments.

Values that depend on the position of a tile (loads, positions, random numbers, running sums) are written by a function that the kernel
gives: `tile` has the one of loop nests, `templates/text.py` that of epilogues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....graph.core.dtypes import FLOAT8, DType, bfloat16, float16, float32, float64
from ...fusion.range_analysis import is_below_zero, is_part
from ...ir.loop_nest import LoopNest, Value, identity_of
from ...ir.value_writer import OPERATORS, ValueWriter

NARROW = (float16, bfloat16, *FLOAT8)  # computed in float32
_NAMES = {"bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5"}


def rows_in(array: str) -> str:
    """The default launch name of a table's number of rows."""
    return f"rows_{array}"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a kernel's arrays and sizes.

    Attributes:
        inputs, outputs: its arrays, in order. If several blocks share a row, the first outputs are the totals of its reductions.
        sizes: of its axes. A constant size is written in digits.
        counted: sizes whose product is the `count` of the loops: those of the axes that are reduced, also by another kernel.
        block: the argument with the block's number; empty: the number in the launch.
        tables: array -> the name of its number of rows; other arrays use `rows_in`.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]
    counted: tuple[str, ...] = ()
    block: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)

    def rows_of(self, array: str) -> str:
        """The size that is the number of rows of a table."""
        return self.tables.get(array, rows_in(array))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The sizes that are arguments of the kernel."""
        return tuple(dict.fromkeys(n for n in (*self.sizes, *self.counted) if not n.isdigit()))


def numbers_of(loops: LoopNest, names: Names) -> tuple[str, ...]:
    """The 64-bit launch parameters of loops other than the sizes of axes: row counts of tables, and sizes by name."""
    asked = [names.rows_of(names.inputs[int(v.data)]) for v in loops.values if v.op == "gather"]
    asked += [names.rows_of(names.outputs[i]) for i, s in enumerate(loops.stores) if s.row is not None]
    asked += [str(v.data) for v in loops.values if v.op == "size"]
    return tuple(n for n in dict.fromkeys(asked) if n not in names.arguments)


def stored_as(dtype: DType) -> str:
    """Triton's name of a type in memory."""
    return _NAMES.get(dtype.name, f"tl.{dtype.name}")


def type_of(dtype: DType) -> str:
    """Triton's name of the type that values of a type are computed in."""
    if dtype in NARROW:
        return "tl.float32"
    return "tl.int1" if dtype.is_bool else f"tl.{dtype.name}"


def number_of(value: Any, dtype: DType) -> str:
    """A number, as text."""
    if dtype.is_bool:
        return repr(bool(value))
    if not dtype.is_floating:
        return repr(int(value))
    number = float(value)
    if not math.isfinite(number):
        return f'float("{number}")' if number == number else 'float("nan")'
    return str(np.float32(number)) if dtype is float32 and float(np.float32(number)) == number else repr(number)


def start_of(kind: str, dtype: DType) -> str:
    """The identity element of a reduction."""
    if kind in ("any", "all"):
        return str(int(kind == "all"))
    return number_of(identity_of(kind, dtype), dtype)


PLACED = frozenset(("load", "gather", "random", "position", "size", "count", "scan"))
"""Ops whose values depend on the position of the tile, or on sizes of the launch."""


class ExpressionWriter(ValueWriter):
    """Writes the values of a loop nest as lines of Triton.

    `placed` gives the expression of a value whose op is in PLACED, by its number. It may write lines first.
    """

    def __init__(self, loops: LoopNest, placed: Callable[[int], str]) -> None:
        super().__init__(loops)
        self.placed = placed

    def constant(self, v: Value) -> str:
        """As `ValueWriter.constant`."""
        return f"tl.full((), {number_of(v.data, v.dtype)}, {type_of(v.dtype)})"

    def operands(self, v: Value, plain: bool) -> list[str]:
        """Names of a value's operands. A constant is written as a number if it gets the right type: in `plain` expressions, or float32."""
        out = []
        for a in v.args:
            operand = self.loops.values[a]
            others = [self.loops.values[b] for b in v.args if b != a]
            typed = any(o.op != "constant" and o.dtype is operand.dtype for o in others)
            simple = operand.op == "constant" and typed and (plain or operand.dtype is float32)
            out.append(number_of(operand.data, operand.dtype) if simple else self.value(a))
        return out

    def expression(self, number: int) -> str:
        """The expression of a value, in Triton."""
        v = self.loops.values[number]
        if v.op in PLACED:
            return self.placed(number)
        if v.op in OPERATORS:
            a, b = self.operands(v, plain=True)
            return f"{a} {OPERATORS[v.op]} {b}"
        args = self.operands(v, plain=False)
        source = self.loops.values[v.args[-1]].dtype
        double, narrow = source is float64, v.dtype in NARROW
        width = 64 if double else 32
        a, b, c = (*args, "", "")[:3]
        if narrow and v.op in ("exp", "tanh"):
            return f"{v.op}_narrow({a})"
        if narrow and v.op == "div" and is_part(self.loops, v):
            return f"part_narrow({a}, {b})"
        if v.op == "exp" and v.dtype is float32 and is_below_zero(self.loops, v.args[0]):
            return f"exp_below32({a})"
        if v.op in ("shl", "shr"):
            return shift(v, a, b)
        if v.op == "cast":
            return cast(a, source, v.dtype)
        of_type = "" if source.is_floating else "tl."
        one, minus = (f"tl.full((), {n}, {type_of(source)})" for n in (1, -1))
        simple = {
            "div": f"{a} / {b}" if double else f"tl.div_rn({a}, {b})",
            "select": f"tl.where({a}, {b}, {c})",
            "minimum": f"{of_type}minimum({a}, {b})",
            "maximum": f"{of_type}maximum({a}, {b})",
            "sign": f"tl.where({a} > 0, {one}, {a if source.is_unsigned else f'tl.where({a} < 0, {minus}, {a})'})",
            "neg": f"-{a}",
            "not": f"~{a}",
            "invert": f"~{a}",
            "abs": f"tl.abs({a})",
            "sqrt": f"tl.sqrt({a})" if double else f"tl.sqrt_rn({a})",
            "isnan": f"{a} != {a}",
            "isinf": f'tl.abs({a}) == float("inf")',
            "isfinite": f'tl.abs({a}) < float("inf")',
            "floor": f"floor({a})",
            "ceil": f"ceil({a})",
            "trunc": f"trunc({a})",
            "round": f"rint{width}({a})",
        }
        return simple.get(v.op) or f"{v.op}{width}({', '.join(self.as_blocks(v))})"

    def as_blocks(self, v: Value) -> list[str]:
        """Names of a value's operands for a function that reads their bits, and so takes no plain numbers."""
        values = [self.loops.values[a] for a in v.args]
        other = next((a for a, x in zip(v.args, values, strict=True) if x.op != "constant"), None)
        return [
            self.value(a)
            if x.op != "constant" or other is None
            else f"tl.zeros_like({self.value(other)}) + {number_of(x.data, x.dtype)}"
            for a, x in zip(v.args, values, strict=True)
        ]


def shift(v: Value, a: str, by: str) -> str:
    """A shift by as many bits as there are, or more, leaves nothing, as in NumPy; of a negative number to the right, -1."""
    bits = 8 * v.dtype.size
    if v.op == "shl" or v.dtype.is_unsigned:
        zero = f"tl.full((), 0, {type_of(v.dtype)})"
        return f"tl.where({by} < {bits}, {a} {'<<' if v.op == 'shl' else '>>'} {by}, {zero})"
    return f"{a} >> tl.minimum({by}, tl.full((), {bits - 1}, {type_of(v.dtype)}))"


def cast(a: str, source: DType, target: DType) -> str:
    """A value as another type."""
    if target.is_bool:
        return f"{a} != 0"
    if target in NARROW:
        return f"{a}.to({stored_as(target)}).to(tl.float32)"
    return f"{a}.to({type_of(target)})"
