"""Writes the values of one element of a CPU kernel as Python expressions. `rows`, `columns` and `loops` write the loops around them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from ....graph.core.dtypes import DType, bfloat16, float16, float32, float64
from ...fusion.range_analysis import is_below_zero
from ...ir.loop_nest import ADD, COSTLY, LoopNest, Value, identity_of
from ...ir.value_writer import OPERATORS, ValueWriter

SHORT = {"float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
          "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "boolean", "float16": "u16", "bfloat16": "u16"}  # fmt: skip
NARROW = (float16, bfloat16)

_OPERATORS = {**OPERATORS, "div": "/", "shl": "<<", "shr": ">>"}
_SIGN = "m.select({0} > {t}(0), {t}(1), m.select({0} < {t}(0), {t}(-1), {0}))"
_FORMS = {
    "floor": ("m.floor({0})",),
    "ceil": ("m.ceil({0})",),
    "round": ("m.rint({0})",),
    "trunc": ("m.trunc({0})",),
    "sqrt": ("m.sqrt({0})",),
    "select": ("m.select({0}, {1}, {2})",),
    "minimum": ("m.fminimum({0}, {1})", "m.select({0} < {1}, {0}, {1})"),
    "maximum": ("m.fmaximum({0}, {1})", "m.select({0} > {1}, {0}, {1})"),
    "neg": ("-{0}", "{t}({t}(0) - {0})"),
    "abs": ("m.fabs({0})", "m.select({0} < {t}(0), {t}({t}(0) - {0}), {0})", "{0}"),
    "sign": (_SIGN, _SIGN, "m.select({0} > {t}(0), {t}(1), {0})"),
    "not": ("not {0}",),
    "invert": ("{t}(~{0})",),
    "isnan": ("{0} != {0}",),
    "isinf": ("m.fabs({0}) == {t}(np.inf)",),
    "isfinite": ("m.fabs({0}) < {t}(np.inf)",),
}
"""Operations as expressions of their operands and of `t`, their type: of floating-point numbers; of integers; of unsigned ones."""


def type_of(dtype: DType) -> str:
    """NumPy's name of an element type in memory."""
    return "bool_" if dtype.is_bool else "uint16" if dtype in NARROW else dtype.name


def literal(value: object, dtype: DType) -> str:
    """A number, as text."""
    if dtype.is_bool:
        return repr(bool(value))
    if dtype.is_floating:
        value = float(value)  # type: ignore[arg-type]
        if not math.isfinite(value):
            return f"{SHORT[dtype.name]}({'np.nan' if math.isnan(value) else 'np.inf' if value > 0 else '-np.inf'})"
    return f"{SHORT[dtype.name]}({value!r})"


def start_of(kind: str, dtype: DType) -> str:
    """The value of a reduction without elements, as text."""
    return literal(identity_of(kind, dtype), dtype)


def combine(kind: str, total: str, x: str, dtype: DType, *, any_order: bool = False) -> str:
    """One step of a reduction."""
    if kind in ("any", "all"):
        return f"{total} {'|' if kind == 'any' else '&'} {x}"
    if kind in ("max", "min"):
        if dtype.is_floating:
            return f"m.f{kind}imum({total}, {x})"
        return f"m.select({x} {'>' if kind == 'max' else '<'} {total}, {x}, {total})"
    sign = "+" if kind == "sum" else "*"
    if not dtype.is_floating:
        return f"{SHORT[dtype.name]}({total} {sign} {x})"
    if any_order:
        return f"m.accumulate{'' if kind == 'sum' else '_product'}({total}, {x})"
    return f"{total} {sign} {x}"


def _cast(x: str, source: DType, to: DType) -> str:
    if to in NARROW:
        if source is float64:  # NumPy rounds to a bfloat16 by way of float32, to a float16 at once
            x = f"m.towards_odd({x})" if to is float16 else f"f32({x})"
        return f"m.to_{to.name}({x})"
    if source in NARROW:
        return f"m.from_{source.name}({x})"
    return f"{x} != {literal(0, source)}" if to.is_bool else f"{SHORT[to.name]}({x})"


@dataclass(frozen=True, slots=True)
class Array:
    """An array of a kernel: its name, and its number, by which `vecmath.memory` tells arrays apart."""

    name: str
    number: int

    def load(self, place: str) -> str:
        """The element at an index of the flat array."""
        return f"m.load({self.name}, {self.number}, {place})"

    def store(self, place: str, value: str) -> str:
        """A line that stores an element."""
        return f"m.store({self.name}, {self.number}, {place}, {value})"


class ElementWriter(ValueWriter):
    """Writes the values of one element, with its loads and stores.

    Args:
        loops: the loop nest, as its kernel computes it. in_place: how many outputs overwrite the inputs of the same numbers.
        pieces: whether the kernel takes an array of partial results for each reduction.

    Attributes:
        sources, targets: the arrays that it reads, and those that it writes. parts: reduction -> the array of its partial results.
        scratch: lines that allocate the kernel's own arrays.
    """

    def __init__(self, loops: LoopNest, in_place: int = 0, *, pieces: bool = False) -> None:
        super().__init__(loops)
        self.depth = 1
        self.in_place = in_place
        self.scratch: list[str] = []
        self._arrays = itertools.count()
        self._single: dict[int, Array] = {}  # random value -> the array with it
        self.sources = [self._array(f"in{i}") for i in range(len(loops.loads))]
        self.targets = [self._array(f"out{i}") for i in range(len(loops.stores))]
        self.sources[:in_place] = self.targets[:in_place]
        self.parts = {r: self._array(f"part{r}") for r in (loops.passes()[0].reductions if pieces else ())}

    def _array(self, name: str) -> Array:
        return Array(name, next(self._arrays))

    def new_scratch(self, name: str, size: str, dtype: DType) -> Array:
        """An array of the kernel's own."""
        self.scratch.append(f"    {name} = np.empty({size}, np.{type_of(dtype)})")
        return self._array(name)

    def index(self, axes: Iterable[int], row: str = "", last: str = "") -> str:
        """The index of the current element in a flat array with these axes; or in a table, in this row.

        `last`: the index along the last axis, if it is not the current one.
        """
        out = row
        places = {a: f"i{a}" for a in axes}
        if last:
            places[max(places)] = last
        for a, i in places.items():
            out = f"({out}) * n{a} + {i}" if "+" in out else f"{out} * n{a} + {i}" if out else i
        return out or "0"

    def constant(self, v: Value) -> str:
        """As `ValueWriter.constant`."""
        return literal(v.data, v.dtype)

    def expression(self, number: int) -> str:
        """The expression of a value, in Python."""
        v = self.loops.values[number]
        if v.op == "load":
            return self.sources[int(v.data)].load(self.index(v.axes))
        if v.op == "gather":
            return self.read(v, literal(0, v.dtype))
        short = SHORT[v.dtype.name]
        if v.op == "size":
            return f"{short}({v.data})"
        if v.op == "position":
            return f"{short}(i{v.axes[0]})"
        if v.op == "count":
            return f"{short}({' * '.join(f'n{a}' for a in self.loops.reduced_axes) or '1'})"
        if v.op == "select" and self.loops.is_absent_unless(v.args[1], v.args[0]):
            return self.read(self.loops.values[v.args[1]], self.value(v.args[2]))
        args = [self.value(a) for a in v.args]
        if v.op == "random":
            name = f"single{number}"  # a piece of one number: it varies along no inner loop
            if number not in self._single:
                self._single[number] = self.new_scratch(name, "1 + r.MARGIN", v.dtype)
            made = f"r.{v.data}{8 * v.dtype.size}({name}, {self.index(v.axes)}, 1, {', '.join(args)})"
            return self._single[number].load(made)
        if v.op == "exp" and v.dtype is float32 and is_below_zero(self.loops, v.args[0]):
            return f"m.exp_below32({args[0]})"
        if v.op in COSTLY:
            return f"m.{v.op}{8 * v.dtype.size}({', '.join(args)})"
        source = self.loops.values[v.args[-1]].dtype
        if v.op == "cast":
            return _cast(args[0], source, v.dtype)
        if v.op in _OPERATORS:
            text = f"{args[0]} {_OPERATORS[v.op]} {args[1]}"
            return text if v.dtype.is_bool or v.dtype.is_floating else f"{short}({text})"
        forms = _FORMS[v.op]
        which = 0 if source.is_floating else -1 if source.is_unsigned or source.is_bool else min(1, len(forms) - 1)
        return forms[which].format(*args, t=SHORT[source.name])

    def read(self, v: Value, other: str) -> str:
        """An element of a table; the `other` one where its row is absent."""
        row, array, axes = self.loops.values[v.args[0]], self.sources[int(v.data)], self.loops.row_axes(v)
        if not self.loops.may_be_absent(v):
            return array.load(self.index(axes, self.value(v.args[0])))
        here = self.value(row.args[0])
        if len(self.loops.reduced) - 1 in row.axes:
            # A branch: LLVM makes loads with masks of it, and gathers of computed places.
            return f"{array.load(self.index(axes, self.value(row.args[1])))} if {here} else {other}"
        return f"m.select({here}, {array.load(self.index(axes, f'max({self.value(v.args[0])}, 0)'))}, {other})"

    def put(self, output: int) -> None:
        """Store an output's current element."""
        store, array = self.loops.stores[output], self.targets[output]
        place = self.index(store.axes, "" if store.row is None else self.value(store.row))
        value = self.value(store.value)
        if store.how == ADD:
            value = combine("sum", array.load(place), value, self.loops.values[store.value].dtype)
        self.line(array.store(place, value))
