"""The innermost loops of CPU kernels, and what is computed in blocks of the axis before them.

    random numbers      one counter gives four neighbours, so a block of them is computed at once, as vectors
    running sums        along rows: the summands are computed as vectors, the sums step by step, and their users as vectors again

A block has BLOCK elements at most and stays in the first cache; random numbers of several short rows share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...ir.loop_nest import Scan, Value
from .expr import ElementWriter, combine

BLOCK = 4096  # elements of a row that are added in the row's own type: long enough for speed, short enough for accuracy


class BlockWriter(ElementWriter):
    """The lines of a kernel's body, as far as they are about its innermost loops."""

    def inner(self, axis: int, ends: str, roots: Iterable[int], body: Callable[[], None]) -> None:
        """The innermost loop, from a start to an end. `roots`: the values that it needs; blockwise ones are computed before the loop."""
        found = self.made_in_blocks(roots)
        if not found:
            self.along(axis, ends, body)
            return
        end = ends.split(", ")[1]

        def block() -> None:
            self.line(f"end = min(at + {BLOCK}, {end})")
            self.prepare(found)
            self.nest([self.header(axis, "at, end")], body)

        self.nest([self.block_header(axis, ends)], block)

    def along(self, axis: int, ends: str, body: Callable[[], None]) -> None:
        """A loop along the innermost axis; for a short row written out, for then LLVM makes vectors of several rows."""
        if not self.row:
            self.nest([self.header(axis, ends)], body)
        for i in range(self.row):
            self.line(f"i{axis} = {i}")
            self.nest([], body)

    def header(self, axis: int, ends: str) -> str:
        """A loop along an axis."""
        start, end = ends.split(", ", 1)
        if self.goes_back(axis):
            return f"for i{axis} in range({end} - 1, {start} - 1, -1):"
        return f"for i{axis} in range({ends.removeprefix('0, ')}):"

    def block_header(self, axis: int, ends: str) -> str:
        """A loop over the blocks of an axis; `at` is where one begins."""
        start, end = ends.split(", ")
        if self.goes_back(axis):
            return f"for at in range(({end} - 1) // {BLOCK} * {BLOCK}, -1, -{BLOCK}):"
        return f"for at in range({start}, {end}, {BLOCK}):"

    def goes_back(self, axis: int) -> bool:
        """Whether loops along an axis go from its end, as the running sums along it do."""
        return self.loops.backwards and self.loops.reduced[axis]

    def made_in_blocks(self, roots: Iterable[int]) -> list[int]:
        """The values that are made in blocks of the innermost axis, of those that these are made of and that are not known."""
        values, inner = self.loops.values, self.innermost
        drawn = [i for i in self.not_known(roots, "random") if inner in values[i].axes]
        return sorted(drawn + (self.not_known(roots, "scan") if self.loops.reduced[inner] else []))

    def not_known(self, roots: Iterable[int], op: str) -> list[int]:
        """The values of one kind that these are made of, and that are not known."""

        def is_known(i: int) -> bool:
            return i in self.known or i in self.aside or self.loops.values[i].op == "reduce"

        found = self.loops.behind(roots, is_known)
        return [i for i in found if self.loops.values[i].op == op and not is_known(i)]

    def prepare(self, numbers: Iterable[int]) -> None:
        """Make a block of values, from position `at` of the innermost axis up to `end`."""
        for i in numbers:
            v = self.loops.values[i]
            name = f"{v.op}{i}"
            if i not in self.buffered:
                size = f"{BLOCK} + r.MARGIN" if v.op == "random" else f"{BLOCK}"
                self.buffered[i] = self.new_scratch(name, size, v.dtype)
                if v.op == "random":
                    self.scratch.append(f"    base{i} = have{i} = 0")
            if v.op == "random":
                self.draw(i, v)
            else:
                self.run_along(i, v)
            begin = f"+ at{i}" if v.op == "random" else "- at"
            self.known[i] = f"m.load({name}, {self.buffered[i]}, i{self.innermost} {begin})"

    def draw(self, i: int, v: Value) -> None:
        """A block of random numbers, if there is none from before; where rows are short, the next ones' at once."""
        stream = ", ".join(self.value(a) for a in v.args)
        last, whole = self.innermost, " * ".join(f"n{a}" for a in v.axes)
        ahead = f"min({BLOCK} if n{last} <= {BLOCK // 8} else 0, {whole} - first)"
        make = f"r.{v.data}{8 * v.dtype.size}(random{i}, first, have{i} - first, {stream})"
        self.line(f"first = {self.index(v.axes, last='at')}")
        self.line(f"if first < base{i} or first + end - at > have{i}:")
        self.line(f"    have{i} = first + max(end - at, {ahead})")
        self.line(f"    base{i} = first - {make}")
        self.line(f"at{i} = first - base{i} - at")

    def run_along(self, number: int, v: Value) -> None:
        """A block of a running sum: what is summed, as vectors, and then one step after the other."""
        place, last = f"scan{number}, {self.buffered[number]}", self.innermost
        how: Scan = v.data

        def summed() -> None:
            self.fetch_aside("row", self.index(self.loops.reduced_axes))
            self.line(f"m.store({place}, i{last} - at, {self.value(v.args[0])})")

        def step() -> None:
            total = f"total{number}"
            self.line(f"x = m.load({place}, k)")
            steps = [f"{total} = {combine(how.kind, total, 'x', v.dtype)}", f"m.store({place}, k, {total})"]
            for line in reversed(steps) if how.exclusive else steps:
                self.line(line)

        self.nest([f"for i{last} in range(at, end):"], summed)
        self.nest([f"for k in range({'end - at - 1, -1, -1' if how.reverse else 'end - at'}):"], step)

    def run_down(self, number: int, v: Value, last: int) -> None:
        """A step of a running sum down columns. Its totals are a vector."""
        place, how, total = f"scan{number}, {self.buffered[number]}, i{last}", v.data, f"total{number}"
        self.line(f"{total} = m.load({place})")
        self.line(f"v{number} = {combine(how.kind, total, self.value(v.args[0]), v.dtype)}")
        self.line(f"m.store({place}, v{number})")
        self.known[number] = total if how.exclusive else f"v{number}"

    def fetch_aside(self, name: str, place: str) -> None:
        """From here on, read spilled values from their scratch arrays."""
        for number, array in self.aside.items():
            self.known[number] = f"m.load({name}{number}, {array}, {place})"
