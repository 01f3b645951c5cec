"""Writes one tile of a loop nest: addresses, masks, and the values that depend on its position. `nest` writes the loops over tiles."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...ir.loop_nest import LoopNest, Scan, Value
from ...ir.schedule import GpuSchedule
from ..schedule import Specialisation, sides_of
from .expr import NARROW, ExpressionWriter, Names, start_of, type_of


class TileSpace:
    """Writes the indices, addresses and masks of a tile.

    Attributes:
        flat: tiles have one side only.
        is_looped: the tile goes along x. is_partial: along one of several pieces.
        is_filled: all columns of the current tile are inside the space.
        y, x: the names of the indices along the sides. ny, nx: the sizes of the sides.
    """

    def __init__(self, loops: LoopNest, schedule: GpuSchedule, facts: Specialisation, names: Names) -> None:
        self.loops = loops
        self.schedule = schedule
        self.facts = facts
        self.names = names
        self.sides = sides_of(loops)
        self.flat = not self.sides.y
        self.is_looped = bool(loops.reduced_axes) and not schedule.spans
        self.is_partial = schedule.pieces > 1
        self.is_filled = schedule.spans and facts.exact
        self.first_column = ""
        sides = (self.sides.y, "y"), (self.sides.x, "x")
        self.y, self.x = (f"i{axes[0]}" if len(axes) == 1 else name for axes, name in sides)
        self.ny, self.nx = self.extent(self.sides.y, "ny"), self.extent(self.sides.x, "nx")

    def extent(self, axes: Sequence[int], name: str) -> str:
        """The size of a side."""
        sizes = [self.names.sizes[a] for a in axes]
        return name if len(sizes) > 1 else sizes[0] if sizes else "1"

    def address(self, axes: Sequence[int]) -> str:
        """The offset of the current elements in a flat array with these axes; empty for 0."""
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
        """Axes of joined sides whose own index some array needs."""
        arrays = [v.axes for v in self.loops.values if v.op in ("load", "random", "position")]
        arrays += [self.loops.row_axes(v) for v in self.loops.values if v.op == "gather"]
        arrays += [s.axes for s in self.loops.stores if not self.is_partial or any(a in self.sides.x for a in s.axes)]
        text = " ".join(self.address(axes) for axes in arrays)
        named = {int(a) for a in re.findall(r"\bi(\d+)\b", text)}
        return {a for side in (self.sides.y, self.sides.x) if len(side) > 1 for a in side if a in named}

    def divided(self, side: Sequence[int], linear: str) -> list[str]:
        """The lines that compute the indices of single axes from that of a joined side."""
        needed, lines = self.single_axes(), []
        for at, axis in enumerate(side):
            if axis not in needed:
                continue
            inner = " * ".join(self.names.sizes[a] for a in side[at + 1 :])
            index = f"{linear} // ({inner})" if "*" in inner else f"{linear} // {inner}" if inner else linear
            lines.append(f"i{axis} = {index}" if at == 0 else f"i{axis} = ({index}) % {self.names.sizes[axis]}")
        return lines

    def block_lines(self) -> list[str]:
        """The lines that compute which part of the space a block has."""
        lines: list[str] = []
        side_y, side_x = self.sides.y, self.sides.x
        counted = not self.loops.reduced_axes and not self.schedule.spans
        for side, name in ((side_y, "ny"), (side_x, "nx")):
            if len(side) > 1:
                lines.append(f"{name} = {' * '.join(self.names.sizes[a] for a in side)}")
        if not (side_x or side_y):
            return lines
        block = self.names.block or "tl.program_id(0)"
        block = f"{block}.to(tl.int64)" if self.facts.wide else block
        rows = "[:, None]"
        if self.is_partial:
            lines.append(f"block = {block}")
            lines.append("piece = block % SPLITS")
            lines.append(f"share = tl.cdiv(tl.cdiv({self.nx}, SPLITS), XB) * XB")
            block = "block // SPLITS"
        elif counted and side_y:
            lines.append(f"block = {block}")
            lines.append(f"across = tl.cdiv({self.nx}, XB)")
            self.first_column = "block % across * XB + "
            block = "block // across"
        elif counted:
            self.first_column = f"{block} * XB + "
        if side_y:
            # A tile of one row needs a side of its own all the same: values have the shape [1, XB].
            first = f"({block}) * YB" if " " in block else f"{block} * YB"
            lines.append(f"{self.y} = {first} + tl.arange(0, YB){rows}")
            if self.schedule.rows > 1:
                lines.append(f"my = {self.y} < {self.ny}")
            if len(side_y) > 1:
                lines += self.divided(side_y, "y")
        return lines

    def column_lines(self, first: str = "") -> list[str]:
        """The lines that compute the indices along x of the tile that begins at `first`; empty: of the block's only tile."""
        lines: list[str] = []
        if not self.sides.x:
            return lines
        first, across = first or self.first_column, "" if self.flat else "[None, :]"
        lines.append(f"{self.x} = {first}tl.arange(0, XB){across}")
        for per in sorted({16 // v.dtype.size for v in self.loops.values if v.op == "random" and self.by_counters(v)}):
            begin = f"({first.removesuffix(' + ')}) // {per} + " if first else ""
            lines.append(f"c{per} = {begin}tl.arange(0, XB // {per}){across}")
        if not self.is_filled:
            lines.append(f"mx = {self.x} < {self.nx}")
        if len(self.sides.x) > 1:
            lines += self.divided(self.sides.x, "x")
        return lines

    def mask(self, axes: Sequence[int]) -> str:
        """The mask of a tile's valid elements; empty if all are valid."""
        parts = []
        if any(a in self.sides.y for a in axes) and self.schedule.rows > 1:
            parts.append("my")
        if any(a in self.sides.x for a in axes) and not self.is_filled:
            parts.append("mx")
        return " & ".join(parts)

    def varies_along_x(self, number: int) -> bool:
        """Whether a value varies along x."""
        return any(a in self.sides.x for a in self.loops.values[number].axes)

    def in_row(self, table: str, row: str, axes: Sequence[int]) -> tuple[str, str]:
        """The 64-bit offsets of the current elements in a row of a table, and the mask of valid rows."""
        sizes = self.width(axes)
        inner = self.address(axes)
        where = f"{row}.to(tl.int64) * {sizes} + {inner}" if inner else f"{row}.to(tl.int64)"
        return where, f"({row} >= 0) & ({row} < {self.names.rows_of(table)})"

    def width(self, axes: Sequence[int]) -> str:
        """The product of the sizes of some axes."""
        for side, size in ((self.sides.y, self.ny), (self.sides.x, self.nx)):
            if tuple(axes) == side:
                return size
        sizes = [self.names.sizes[a] for a in axes]
        return f"({' * '.join(sizes)})" if len(sizes) > 1 else "".join(sizes)

    def inside(self, number: int, text: str, start: str) -> str:
        """Values of a tile. Those outside of the space are replaced with `start`."""
        if self.is_filled and self.varies_along_x(number):
            return text
        return f"tl.where({f'{self.x} < {self.nx}' if self.is_filled else 'mx'}, {text}, {start})"

    def reduced(self, text: str, function: str) -> str:
        """A reduction of a tile's rows by a function of two numbers (or sets of numbers)."""
        return f"tl.reduce({text}, {'0' if self.flat else '1'}, {function}{'' if self.flat else ', keep_dims=True'})"

    def by_counters(self, v: Value) -> bool:
        """Whether a tile of random numbers uses whole counters, adjacent along x."""
        x = self.sides.x
        are_whole = (self.flat and not self.loops.reduced_axes) or any(self.facts.divisible[a] for a in x)
        return are_whole and bool(x) and v.axes[-len(x) :] == x


class TileValues:
    """Writes the values of a tile that depend on its position. `writer` writes the others."""

    def __init__(self, space: TileSpace) -> None:
        self.space = space
        self.writer = ExpressionWriter(space.loops, self.placed)

    def placed(self, number: int) -> str:
        """The expression of a value, in Triton."""
        v = self.space.loops.values[number]
        if v.op in ("load", "gather"):
            return self.read(v)
        if v.op == "random":
            return self.random(v)
        if v.op == "scan":
            return self.scan(number, v)
        if v.op == "position":
            text = f"({self.space.address(v.axes)})"
        else:
            text = str(v.data) if v.op == "size" else " * ".join(self.space.names.counted)
            text = f"({text})" if "*" in text else text
        return f"{text}.to({type_of(v.dtype)})"

    def read(self, v: Value) -> str:
        """An element of an input. A row out of range has zeros."""
        space = self.space
        name = space.names.inputs[int(v.data)]
        axes = v.axes if v.op == "load" else space.loops.row_axes(v)
        where, mask = space.address(axes), space.mask(v.axes)
        options = []
        if v.op == "gather":
            where, there = space.in_row(name, self.writer.value(v.args[0]), axes)
            mask = f"{mask} & {there}" if mask else there
            options.append("other=0")
        if mask:
            options.insert(0, f"mask={mask}")
        text = f"tl.load({', '.join([f'{name} + {where}' if where else name, *options])})"
        return f"{text}.to(tl.float32)" if v.dtype in NARROW else text

    def random(self, v: Value) -> str:
        """Random numbers for the current elements' positions in an array with the value's axes."""
        stream = [self.writer.value(a) for a in v.args]
        at = self.space.address(v.axes) or "tl.full((), 0, tl.int32)"
        function = f"{v.data}{8 * v.dtype.size}"
        if not self.space.by_counters(v):
            return f"{function}({', '.join([at, *stream])})"
        per = 16 // v.dtype.size
        before = at.removesuffix(self.space.x)
        row = f"({before.removesuffix(' + ')}) // {per} + " if before else ""
        return f"{v.data}s{8 * v.dtype.size}({', '.join([f'{row}c{per}', *stream])})"

    def scan(self, number: int, v: Value) -> str:
        """A running sum along x. If the block goes along x, `total<number>` is the sum before the tile."""
        (arg,) = v.args
        how: Scan = v.data
        flat = self.space.flat
        start = start_of(how.kind, v.dtype)
        function = "added" if how.kind == "sum" else "product"
        kind, operator = type_of(v.dtype), "+" if how.kind == "sum" else "*"
        shape, axis = ("[XB]", "0") if flat else ("[YB, XB]", "1")
        x = f"x{number}"
        inside = self.space.inside(arg, self.writer.value(arg), start)
        self.writer.line(f"{x} = ({inside} + tl.zeros({shape}, {kind})).to({kind})")
        reverse = ", reverse=True" if how.reverse else ""
        if how.exclusive:
            neutral = f"tl.full({shape}, {start}, {kind})"
            both = f"tl.associative_scan(({x}, {neutral}), {axis}, {function}_before{reverse})"
            self.writer.line(f"all{number}, before{number} = {both}")
            out = f"before{number}"
        else:
            out = f"tl.associative_scan({x}, {axis}, {function}{reverse})"
        if not self.space.is_looped:
            return out
        self.writer.line(f"s{number} = total{number} {operator} {out}")
        self.writer.line(f"total{number} = total{number} {operator} {self.space.reduced(x, function)}")
        return f"s{number}"
