"""The values of a kernel as expressions in Triton: where an element lies, what it is called, how it is computed.

`nest` says how the tiles of a kernel follow one another; here is what one tile computes, whichever it is.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....graph.core.dtypes import FLOAT8, DType, bfloat16, float16, float32, float64
from ...fusion.range_analysis import is_below_zero, is_part, pairs_of
from ...ir.loop_nest import LoopNest, Scan, Value, identity_of
from ...ir.value_writer import OPERATORS, ValueWriter

NARROW = (float16, bfloat16, *FLOAT8)  # computed in float32
_NAMES = {"bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5"}

WHOLE, LOOPED, PARTIAL = "whole", "looped", "partial"


@dataclass(frozen=True, slots=True)
class Tile:
    """The parameters of a kernel's text other than its loops.

    Attributes:
        form: WHOLE, LOOPED or PARTIAL.
        one_row: the tile has one row (YB is 1), so no row lies outside.
        exact: x is as long as the tile is wide, so no column lies outside.
        one_column: WHOLE without a reduction: one tile spans x, so blocks are counted along y only.
        counters: rows begin at whole counters of random numbers, and so do tiles.
        wide: indices need 64 bits.
    """

    form: str
    one_row: bool = False
    exact: bool = False
    one_column: bool = False
    counters: bool = False
    wide: bool = False


def rows_in(array: str) -> str:
    """The default launch name of a table's number of rows."""
    return f"rows_{array}"


@dataclass(frozen=True, slots=True)
class Names:
    """What a kernel calls things.

    Attributes:
        inputs, outputs: its arrays, in order. For PARTIAL, the outputs are the totals of its reductions, and then arrays.
        sizes: of its axes; one that is always the same is a number in digits.
        counted: sizes whose product is the `count` of the loops: those of the axes that are reduced, or were in the loops
            that these are a part of.
        block: an argument that is the number of the block; empty: the launch's own number is.
        tables: array -> what a launch calls the number of its rows; others are called by `rows_in`.
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


@dataclass(frozen=True, slots=True)
class Sides:
    """The axes along the two sides of a tile."""

    y: tuple[int, ...]
    x: tuple[int, ...]


def sides_of(loops: LoopNest) -> Sides:
    """Which axes are along which side."""
    axes = tuple(range(len(loops.reduced)))
    return Sides(loops.kept_axes, loops.reduced_axes) if loops.reduced_axes else Sides(axes[:-1], axes[-1:])


def stored_as(dtype: DType) -> str:
    """Triton's name of a type in memory."""
    return _NAMES.get(dtype.name, f"tl.{dtype.name}")


def type_of(dtype: DType) -> str:
    """Triton's name of what a value is computed in."""
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


class ExpressionWriter(ValueWriter):
    """The elementwise values of a loop nest as lines of Triton. Subclasses say how inputs are read, and random numbers drawn."""

    def constant(self, v: Value) -> str:
        """As `ValueWriter.constant`."""
        return f"tl.full((), {number_of(v.data, v.dtype)}, {type_of(v.dtype)})"

    def operands(self, v: Value, plain: bool) -> list[str]:
        """Names of a value's operands. Numbers are written as such if that is `plain` enough to give them the right type."""
        out = []
        for a in v.args:
            operand = self.loops.values[a]
            others = [self.loops.values[b] for b in v.args if b != a]
            typed = any(o.op != "constant" and o.dtype is operand.dtype for o in others)
            simple = operand.op == "constant" and typed and (plain or operand.dtype is float32)
            out.append(number_of(operand.data, operand.dtype) if simple else self.value(a))
        return out

    def expression(self, number: int) -> str:
        """What an elementwise value is, in Triton."""
        v = self.loops.values[number]
        if v.op == "load":
            return self.read(v)
        if v.op in OPERATORS:
            a, b = self.operands(v, plain=True)
            return f"{a} {OPERATORS[v.op]} {b}"
        if v.op == "random":
            return self.random(v)
        args = self.operands(v, plain=False)
        source = self.loops.values[v.args[-1]].dtype
        double = source is float64
        width = 64 if double else 32
        a, rest = args[0], args[1:]
        if v.dtype in NARROW and v.op in ("exp", "tanh"):
            return f"{v.op}_narrow({a})"
        if v.op == "div" and v.dtype in NARROW and is_part(self.loops, v):
            return f"part_narrow({a}, {rest[0]})"
        if v.op == "exp" and v.dtype is float32 and is_below_zero(self.loops, v.args[0]):
            return f"exp_below32({a})"
        if v.op == "div":
            return f"{a} / {rest[0]}" if double else f"tl.div_rn({a}, {rest[0]})"
        if v.op == "select":
            return f"tl.where({a}, {rest[0]}, {rest[1]})"
        if v.op in ("minimum", "maximum"):
            return f"{'' if source.is_floating else 'tl.'}{v.op}({a}, {rest[0]})"
        if v.op in ("shl", "shr"):
            return self.shift(v, a, rest[0])
        if v.op == "cast":
            return self.cast(a, source, v.dtype)
        if v.op == "sign":
            one, minus = (f"tl.full((), {n}, {type_of(source)})" for n in (1, -1))
            below = a if source.is_unsigned else f"tl.where({a} < 0, {minus}, {a})"
            return f"tl.where({a} > 0, {one}, {below})"
        simple = {
            "neg": f"-{a}",
            "not": f"~{a}",
            "invert": f"~{a}",
            "abs": f"tl.abs({a})",
            "sqrt": f"tl.sqrt({a})" if double else f"tl.sqrt_rn({a})",
            "isnan": f"{a} != {a}",
            "isinf": f'tl.abs({a}) == float("inf")',
            "isfinite": f'tl.abs({a}) < float("inf")',
        }.get(v.op)
        if simple is not None:
            return simple
        if v.op in ("floor", "ceil", "trunc"):
            return f"{v.op}({a})"
        if v.op == "round":
            return f"rint{width}({a})"
        return f"{v.op}{width}({', '.join(self.as_blocks(v))})"

    def as_blocks(self, v: Value) -> list[str]:
        """Names of a value's operands for a function that looks at their bits, and so takes no plain numbers."""
        values = [self.loops.values[a] for a in v.args]
        other = next((a for a, x in zip(v.args, values, strict=True) if x.op != "constant"), None)
        return [
            self.value(a)
            if x.op != "constant" or other is None
            else f"tl.zeros_like({self.value(other)}) + {number_of(x.data, x.dtype)}"
            for a, x in zip(v.args, values, strict=True)
        ]

    @abstractmethod
    def read(self, v: Value) -> str:
        """The elements of an input."""

    @abstractmethod
    def random(self, v: Value) -> str:
        """Random numbers at the elements' positions."""

    @staticmethod
    def shift(v: Value, a: str, by: str) -> str:
        """A shift by as many bits as there are, or more, leaves nothing, as in NumPy; of a negative number to the right, -1."""
        bits = 8 * v.dtype.size
        if v.op == "shl" or v.dtype.is_unsigned:
            zero = f"tl.full((), 0, {type_of(v.dtype)})"
            return f"tl.where({by} < {bits}, {a} {'<<' if v.op == 'shl' else '>>'} {by}, {zero})"
        return f"{a} >> tl.minimum({by}, tl.full((), {bits - 1}, {type_of(v.dtype)}))"

    @staticmethod
    def cast(a: str, source: DType, target: DType) -> str:
        """A value as another type."""
        if target.is_bool:
            return f"{a} != 0"
        if target in NARROW:
            return f"{a}.to({stored_as(target)}).to(tl.float32)"
        return f"{a}.to({type_of(target)})"


class TileWriter(ExpressionWriter):
    """The lines of a kernel's body, as far as they are about the values in one tile."""

    def __init__(self, loops: LoopNest, tile: Tile, names: Names) -> None:
        super().__init__(loops)
        self.tile = tile
        self.names = names
        self.sides = sides_of(loops)
        self.flat = not self.sides.y  # tiles have one side only
        self.pairs = {} if tile.form == WHOLE else pairs_of(loops, whole=tile.form != PARTIAL)
        self.is_filled = tile.exact  # no column of the current tile lies outside
        sides = (self.sides.y, "y"), (self.sides.x, "x")
        self.y, self.x = (f"i{axes[0]}" if len(axes) == 1 else name for axes, name in sides)  # indices along the sides
        self.ny, self.nx = self.extent(self.sides.y, "ny"), self.extent(self.sides.x, "nx")

    def extent(self, axes: Sequence[int], name: str) -> str:
        """How many elements a side has."""
        sizes = [self.names.sizes[a] for a in axes]
        return name if len(sizes) > 1 else sizes[0] if sizes else "1"

    # --- where elements are ----------------------------------------------------------------------------------------

    def address(self, axes: Sequence[int]) -> str:
        """Where the current elements are in a flat array that has these axes; empty for its beginning."""
        terms: list[tuple[str, str]] = []  # index and size
        rest = list(axes)
        while rest:
            for side, linear, size in ((self.sides.y, self.y, self.ny), (self.sides.x, self.x, self.nx)):
                if len(side) > 1 and tuple(rest[: len(side)]) == side:
                    terms.append((linear, size))
                    rest = rest[len(side) :]
                    break
            else:
                axis = rest.pop(0)
                terms.append((f"i{axis}", self.names.sizes[axis]))
        out = ""
        for index, size in terms:
            out = f"({out}) * {size} + {index}" if "+" in out else f"{out} * {size} + {index}" if out else index
        return out

    def single_axes(self) -> set[int]:
        """Axes of joined sides that some array needs by themselves."""
        arrays = [v.axes for v in self.loops.values if v.op in ("load", "random", "position")]
        arrays += [self.loops.row_axes(v) for v in self.loops.values if v.op == "gather"]
        arrays += [
            s.axes for s in self.loops.stores if self.tile.form != PARTIAL or any(a in self.sides.x for a in s.axes)
        ]
        text = " ".join(self.address(axes) for axes in arrays)
        named = {int(a) for a in re.findall(r"\bi(\d+)\b", text)}
        return {a for side in (self.sides.y, self.sides.x) if len(side) > 1 for a in side if a in named}

    def divide(self, side: Sequence[int], linear: str) -> None:
        """Single axes' indices from a joined one."""
        needed = self.single_axes()
        for at, axis in enumerate(side):
            if axis not in needed:
                continue
            inner = " * ".join(self.names.sizes[a] for a in side[at + 1 :])
            index = f"{linear} // ({inner})" if "*" in inner else f"{linear} // {inner}" if inner else linear
            self.line(f"i{axis} = {index}" if at == 0 else f"i{axis} = ({index}) % {self.names.sizes[axis]}")

    def mask(self, axes: Sequence[int]) -> str:
        """The mask of a tile's valid elements; empty if all are valid."""
        parts = []
        if any(a in self.sides.y for a in axes) and not self.tile.one_row:
            parts.append("my")
        if any(a in self.sides.x for a in axes) and not self.is_filled:
            parts.append("mx")
        return " & ".join(parts)

    def varies_along_x(self, number: int) -> bool:
        return any(a in self.sides.x for a in self.loops.values[number].axes)

    # --- values ----------------------------------------------------------------------------------------------------

    def expression(self, number: int) -> str:
        """What a value is, in Triton."""
        v = self.loops.values[number]
        if v.op == "gather":
            return self.read(v)
        if v.op == "position":
            return f"({self.address(v.axes)}).to({type_of(v.dtype)})"
        if v.op == "size":
            return f"{v.data}.to({type_of(v.dtype)})"
        if v.op == "count":
            product = " * ".join(self.names.counted)
            return f"({product}).to({type_of(v.dtype)})" if "*" in product else f"{product}.to({type_of(v.dtype)})"
        return self.scan(number, v) if v.op == "scan" else super().expression(number)

    def read(self, v: Value) -> str:
        """An element of an input; of a table, that of a row which is out of range is zero."""
        name = self.names.inputs[int(v.data)]
        axes = v.axes if v.op == "load" else self.loops.row_axes(v)
        where, mask = self.address(axes), self.mask(v.axes)
        options = []
        if v.op == "gather":
            where, there = self.in_row(name, self.value(v.args[0]), axes)
            mask = f"{mask} & {there}" if mask else there
            options.append("other=0")
        if mask:
            options.insert(0, f"mask={mask}")
        text = f"tl.load({', '.join([f'{name} + {where}' if where else name, *options])})"
        return f"{text}.to(tl.float32)" if v.dtype in NARROW else text

    def in_row(self, table: str, row: str, axes: Sequence[int]) -> tuple[str, str]:
        """The 64-bit offsets of the current elements in a row of a table, and the mask of valid rows."""
        sizes = self.width(axes)
        inner = self.address(axes)
        where = f"{row}.to(tl.int64) * {sizes} + {inner}" if inner else f"{row}.to(tl.int64)"
        return where, f"({row} >= 0) & ({row} < {self.names.rows_of(table)})"

    def width(self, axes: Sequence[int]) -> str:
        """How many elements lie along some axes."""
        for side, size in ((self.sides.y, self.ny), (self.sides.x, self.nx)):
            if tuple(axes) == side:
                return size
        sizes = [self.names.sizes[a] for a in axes]
        return f"({' * '.join(sizes)})" if len(sizes) > 1 else "".join(sizes)

    def random(self, v: Value) -> str:
        """Numbers at the current elements' places in an array with the value's axes."""
        stream = [self.value(a) for a in v.args]
        at = self.address(v.axes) or "tl.full((), 0, tl.int32)"
        function = f"{v.data}{8 * v.dtype.size}"
        if not self.by_counters(v):
            return f"{function}({', '.join([at, *stream])})"
        per = 16 // v.dtype.size
        before = at.removesuffix(self.x)
        row = f"({before.removesuffix(' + ')}) // {per} + " if before else ""
        return f"{v.data}s{8 * v.dtype.size}({', '.join([f'{row}c{per}', *stream])})"

    def inside(self, number: int, text: str, start: str) -> str:
        """Values of a tile, with those outside of the space as if they were not there."""
        if self.is_filled and self.varies_along_x(number):
            return text
        return f"tl.where({f'{self.x} < {self.nx}' if self.is_filled else 'mx'}, {text}, {start})"

    def scan(self, number: int, v: Value) -> str:
        """A running sum along x; `total<number>` is what came before the tile, where one goes along x."""
        (arg,) = v.args
        how: Scan = v.data
        start = start_of(how.kind, v.dtype)
        function = "added" if how.kind == "sum" else "product"
        kind, operator = type_of(v.dtype), "+" if how.kind == "sum" else "*"
        shape, axis = ("[XB]", "0") if self.flat else ("[YB, XB]", "1")
        x = f"x{number}"
        inside = self.inside(arg, self.value(arg), start)
        self.line(f"{x} = ({inside} + tl.zeros({shape}, {kind})).to({kind})")
        reverse = ", reverse=True" if how.reverse else ""
        if how.exclusive:
            neutral = f"tl.full({shape}, {start}, {kind})"
            self.line(
                f"all{number}, before{number} = "
                f"tl.associative_scan(({x}, {neutral}), {axis}, {function}_before{reverse})"
            )
            out = f"before{number}"
        else:
            out = f"tl.associative_scan({x}, {axis}, {function}{reverse})"
        if self.tile.form != LOOPED:
            return out
        self.line(f"s{number} = total{number} {operator} {out}")
        at = "0" if self.flat else "1"
        keep = "" if self.flat else ", keep_dims=True"
        self.line(f"total{number} = total{number} {operator} tl.reduce({x}, {at}, {function}{keep})")
        return f"s{number}"

    def scans(self, roots: Sequence[int]) -> list[int]:
        """The running sums that these are made of, and that are not known."""
        found = self.loops.behind(roots, lambda i: i in self.known or self.loops.values[i].op == "reduce")
        return [i for i in found if self.loops.values[i].op == "scan" and i not in self.known]

    def by_counters(self, v: Value) -> bool:
        """Whether a random value's tile is made of whole counters, next to one another along x."""
        x = self.sides.x
        return self.tile.counters and bool(x) and v.axes[-len(x) :] == x
