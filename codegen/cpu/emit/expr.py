"""The values of a CPU kernel as Python expressions: an element's index, its name, and its computation.

`nest` decides how loops follow one another, `blocks` what is computed before the innermost one. Here is what one element is, wherever
the loops are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ....graph.core.dtypes import DType, bfloat16, float16, float32, float64
from ...fusion.range_analysis import WRITTEN_OUT, is_below_zero
from ...ir.loop_nest import ADD, COSTLY, LoopNest, Value, identity_of
from ...ir.value_writer import OPERATORS, ValueWriter

SHORT = {"float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
          "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "boolean", "float16": "u16", "bfloat16": "u16"}  # fmt: skip
NARROW = (float16, bfloat16)

_OPERATORS = {**OPERATORS, "div": "/", "shl": "<<", "shr": ">>"}
_SAME_NAME = {"floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc", "sqrt": "sqrt"}


def type_of(dtype: DType) -> str:
    """Numba's name of the elements of an array."""
    return "boolean" if dtype.is_bool else "uint16" if dtype in NARROW else dtype.name


def literal(value: object, dtype: DType) -> str:
    """A number, as text."""
    if dtype.is_bool:
        return repr(bool(value))
    if dtype.is_floating:
        number = float(value)  # type: ignore[arg-type]
        if not math.isfinite(number):
            return f"{SHORT[dtype.name]}({'np.nan' if math.isnan(number) else 'np.inf' if number > 0 else '-np.inf'})"
        return f"{SHORT[dtype.name]}({number!r})"
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


class ElementWriter(ValueWriter):
    """The lines of a kernel's body, as far as they are about values where the loops are."""

    def __init__(self, loops: LoopNest, in_place: int = 0, row: int = 0) -> None:
        super().__init__(loops)
        self.in_place = in_place
        # Elements of a row that is written out.
        self.row = row if row <= WRITTEN_OUT and len(loops.reduced_axes) < 2 else 0
        self.short_rows = row > self.row
        self.depth = 1
        self.arrays = len(loops.loads) + len(loops.stores)  # and then the scratch arrays
        self.scratch: list[str] = []
        self.aside: dict[int, int] = {}  # spilled value -> its scratch array
        self.buffered: dict[int, int] = {}  # random value or running sum -> the array with a block of it
        self.partial: dict[int, DType] = {}  # reduction -> what pieces of it are noted as
        self.places: dict[int, int] = {}  # reduction -> the array in which they are
        # Output -> the array that has its elements until they are put in their places.
        self.put_into: dict[int, int] = {}
        self.innermost = len(loops.reduced) - 1

    def new_scratch(self, name: str, size: str, dtype: DType) -> int:
        """A vector of the kernel's own; its number among the arrays."""
        self.scratch.append(f"    {name} = np.empty({size}, np.{'bool_' if dtype.is_bool else type_of(dtype)})")
        self.arrays += 1
        return self.arrays - 1

    def index(self, axes: Iterable[int], row: str = "", last: str = "") -> str:
        """Where the current element is in a flat array that has these axes; or in a table, in this row.

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
        """What a value is, in Python."""
        v = self.loops.values[number]
        if v.op == "load":
            if v.data < self.in_place:
                return f"m.load(out{v.data}, {len(self.loops.loads) + v.data}, {self.index(v.axes)})"
            return f"m.load(in{v.data}, {v.data}, {self.index(v.axes)})"
        if v.op == "gather":
            if v.data < self.in_place:
                place = self.index(self.loops.row_axes(v), self.value(v.args[0]))
                return f"m.load(out{v.data}, {len(self.loops.loads) + v.data}, {place})"
            read = self.read(v)
            if not self.loops.may_be_absent(v):
                return read
            return f"m.select({self.value(v.args[0])} < 0, {literal(0, v.dtype)}, {read})"
        short = SHORT[v.dtype.name]
        if v.op == "size":
            return f"{short}({v.data})"
        if v.op == "position":
            return f"{short}(i{v.axes[0]})"
        if v.op == "count":
            return f"{short}({' * '.join(f'n{a}' for a in self.loops.reduced_axes) or '1'})"
        if v.op == "select" and self.loops.is_absent_unless(v.args[1], v.args[0]):
            here, other = self.value(v.args[0]), self.value(v.args[2])
            return f"m.select({here}, {self.read(self.loops.values[v.args[1]])}, {other})"
        args = [self.value(a) for a in v.args]
        if v.op == "random":
            name = f"single{number}"  # a piece of one number: it varies along no inner loop
            if number not in self.buffered:
                self.buffered[number] = self.new_scratch(name, "1 + r.MARGIN", v.dtype)
            at = f"r.{v.data}{8 * v.dtype.size}({name}, {self.index(v.axes)}, 1, {', '.join(args)})"
            return f"m.load({name}, {self.buffered[number]}, {at})"
        source = self.loops.values[v.args[-1]].dtype
        floating = source.is_floating
        if v.op in _OPERATORS:
            text = f"{args[0]} {_OPERATORS[v.op]} {args[1]}"
            return text if v.dtype.is_bool or v.dtype.is_floating else f"{short}({text})"
        if v.op == "exp" and v.dtype is float32 and is_below_zero(self.loops, v.args[0]):
            return f"m.exp_below32({args[0]})"
        if v.op in COSTLY:
            return f"m.{v.op}{8 * v.dtype.size}({', '.join(args)})"
        if v.op in _SAME_NAME:
            return f"m.{_SAME_NAME[v.op]}({args[0]})"
        (a, *rest) = args
        if v.op == "select":
            return f"m.select({a}, {', '.join(rest)})"
        if v.op in ("minimum", "maximum"):
            if floating:
                return f"m.f{v.op}({a}, {rest[0]})"
            return f"m.select({a} {'<' if v.op == 'minimum' else '>'} {rest[0]}, {a}, {rest[0]})"
        if v.op == "neg":
            return f"-{a}" if floating else f"{short}({short}(0) - {a})"
        if v.op == "abs":
            if floating or source.is_unsigned:
                return f"m.fabs({a})" if floating else a
            return f"m.select({a} < {short}(0), {short}({short}(0) - {a}), {a})"
        if v.op == "sign":
            below = f"m.select({a} < {short}(0), {short}(-1), {a})" if not source.is_unsigned else a
            return f"m.select({a} > {short}(0), {short}(1), {below})"
        if v.op == "cast":
            if v.dtype in NARROW:
                if source is float64:  # NumPy rounds to a bfloat16 by way of float32, to a float16 at once
                    a = f"m.towards_odd({a})" if v.dtype is float16 else f"f32({a})"
                return f"m.to_{v.dtype.name}({a})"
            if source in NARROW:
                return f"m.from_{source.name}({a})"
            if v.dtype.is_bool:
                return f"{a} != {literal(0, source)}"
            return f"{short}({a})"
        return {
            "not": f"not {a}",
            "invert": f"{short}(~{a})" if v.op == "invert" else "",
            "isnan": f"{a} != {a}",
            "isinf": f"m.fabs({a}) == {SHORT[source.name]}(np.inf)",
            "isfinite": f"m.fabs({a}) < {SHORT[source.name]}(np.inf)",
        }[v.op]

    def read(self, v: Value) -> str:
        """An element of a table; any other one where its row is absent."""
        row = self.value(v.args[0])
        row = f"max({row}, 0)" if self.loops.may_be_absent(v) else row
        return f"m.load(in{v.data}, {v.data}, {self.index(self.loops.row_axes(v), row)})"

    def put(self, output: int) -> None:
        """Store an output's current element."""
        store = self.loops.stores[output]
        if output in self.put_into:
            place = f"i{self.loops.kept_axes[-1]} - at"
            self.line(f"m.store(put{output}, {self.put_into[output]}, {place}, {self.value(store.value)})")
            return
        array = f"out{output}, {len(self.loops.loads) + output}"
        place = self.index(store.axes, "" if store.row is None else self.value(store.row))
        value = self.value(store.value)
        if store.how == ADD:
            value = combine("sum", f"m.load({array}, {place})", value, self.loops.values[store.value].dtype)
        self.line(f"m.store({array}, {place}, {value})")
