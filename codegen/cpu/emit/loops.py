"""Writes the loops of CPU kernels, the values that are computed in blocks before a loop, and nests without reductions.

    random numbers      one counter gives four neighbours, so a block of them is computed at once, as vectors
    running sums        along rows: the summands are computed as vectors, the sums step by step, and their users as vectors again

A block has `CpuSchedule.block` elements at most and stays in the first cache; random numbers of several short rows share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from ...ir.loop_nest import READS, Value
from ...ir.schedule import CpuSchedule
from .expr import Array, ElementWriter, combine, literal, start_of

Ends: TypeAlias = tuple[str, str]
"""Where a loop starts and ends, as expressions."""


class LoopWriter:
    """Writes loops around what an `ElementWriter` writes, as a schedule says.

    Attributes:
        element: writes the bodies of loops. loops: its loop nest. schedule: of the loops. along: the axis of the innermost loops.
        saved: value -> the array that has it for later passes.
    """

    def __init__(self, element: ElementWriter, schedule: CpuSchedule) -> None:
        self.element = element
        self.loops = element.loops
        self.schedule = schedule
        self.along = -1 if schedule.along is None else schedule.along
        self.saved: dict[int, Array] = {}
        self._blocks: dict[int, Array] = {}  # random value or running sum -> the array with a block of it

    def kept_values(self, numbers: Iterable[int]) -> list[int]:
        """The kept values that these need directly, without loads and constants."""

        def is_kept(i: int) -> bool:
            return not self.loops.is_full(i) and self.loops.values[i].op not in ("load", "constant", "count")

        return list(filter(is_kept, self.loops.backward_slice(numbers, is_kept)))

    def ends(self, axis: int) -> Ends:
        """The part of an axis that a call of the kernel has."""
        return ("lo", "hi") if axis == self.schedule.shared else ("0", f"n{axis}")

    def header(self, axis: int, ends: Ends | None = None) -> str:
        """A loop along an axis; along the whole part that the call has, unless `ends` says otherwise."""
        start, end = self.ends(axis) if ends is None else ends
        if self._goes_back(axis):
            return f"for i{axis} in range({end} - 1, {start} - 1, -1):"
        return f"for i{axis} in range({end if start == '0' else f'{start}, {end}'}):"

    def block_header(self, ends: Ends) -> str:
        """A loop over the blocks of the innermost axis; `at` is where one begins."""
        (start, end), block = ends, self.schedule.block
        if self._goes_back(self.along):
            return f"for at in range(({end} - 1) // {block} * {block}, -1, -{block}):"
        return f"for at in range({start}, {end}, {block}):"

    def _goes_back(self, axis: int) -> bool:
        """Whether loops along an axis go from its end, as the running sums along it do."""
        return self.loops.backwards and self.loops.reduced[axis]

    def innermost(self, ends: Ends, body: Callable[[], None]) -> None:
        """Write an innermost loop. That of a short row is unrolled, so that LLVM vectorizes over several rows."""
        if not self.schedule.unrolled:
            self.element.nest([self.header(self.along, ends)], body)
        for i in range(self.schedule.unrolled):
            self.element.line(f"i{self.along} = {i}")
            self.element.nest([], body)

    def prepared(self, ends: Ends, roots: Iterable[int], body: Callable[[], None]) -> None:
        """Write an innermost loop that needs the values `roots`, and before it a block of each value that is made in blocks."""
        if not self.made_in_blocks(roots):
            self.innermost(ends, body)
            return

        def block() -> None:
            self.innermost(("at", self.prepare(roots, ends[1])), body)

        self.element.nest([self.block_header(ends)], block)

    def made_in_blocks(self, roots: Iterable[int]) -> list[int]:
        """The unknown values that the roots depend on and that are made in blocks of the innermost axis."""
        drawn = [i for i in self.not_known(roots, "random") if self.along in self.loops.values[i].axes]
        return sorted(drawn + (self.not_known(roots, "scan") if self.loops.reduced[self.along] else []))

    def not_known(self, roots: Iterable[int], op: str) -> list[int]:
        """The unknown values with operation `op` that the roots depend on."""
        return self.element.not_known(roots, op, self.saved)

    def prepare(self, roots: Iterable[int], end: str) -> str:
        """Write the blocks at position `at`, up to `end` at most. Returns the end as an expression."""
        found, limit = self.made_in_blocks(roots), f"min(at + {self.schedule.block}, {end})"
        if not found:
            return limit
        self.element.line(f"end = {limit}")
        for i in found:
            v = self.loops.values[i]
            is_random = v.op == "random"
            if i not in self._blocks:
                size = f"{self.schedule.block}{' + r.MARGIN' * is_random}"
                self._blocks[i] = self.element.new_scratch(f"{v.op}{i}", size, v.dtype)
                if is_random:
                    self.element.scratch.append(f"    base{i} = have{i} = 0")
            (self._draw if is_random else self._run_along)(i, v, self._blocks[i])
            self.element.known[i] = self._blocks[i].load(f"i{self.along} {f'+ at{i}' if is_random else '- at'}")
        return "end"

    def _draw(self, i: int, v: Value, block: Array) -> None:
        """Write a block of random numbers, unless an earlier one has them. A block of short rows has numbers of the next rows, too."""
        line, most, last = self.element.line, self.schedule.block, self.along
        stream, whole = ", ".join(self.element.value(a) for a in v.args), " * ".join(f"n{a}" for a in v.axes)
        ahead = f"min({most} if n{last} <= {most // 8} else 0, {whole} - first)"
        make = f"r.{v.data}{8 * v.dtype.size}({block.name}, first, have{i} - first, {stream})"
        line(f"first = {self.element.index(v.axes, last='at')}")
        line(f"if first < base{i} or first + end - at > have{i}:")
        line(f"    have{i} = first + max(end - at, {ahead})")
        line(f"    base{i} = first - {make}")
        line(f"at{i} = first - base{i} - at")

    def _run_along(self, i: int, v: Value, block: Array) -> None:
        """Write a block of a running sum: first the summands, as vectors, then the steps, one by one."""
        element, how = self.element, v.data

        def summed() -> None:
            self.read_saved(element.index(self.loops.reduced_axes))
            element.line(block.store(f"i{self.along} - at", element.value(v.args[0])))

        def step() -> None:
            element.line(f"x = {block.load('k')}")
            steps = [f"total{i} = {combine(how.kind, f'total{i}', 'x', v.dtype)}", block.store("k", f"total{i}")]
            for line in reversed(steps) if how.exclusive else steps:
                element.line(line)

        element.nest([f"for i{self.along} in range(at, end):"], summed)
        element.nest([f"for k in range({'end - at - 1, -1, -1' if how.reverse else 'end - at'}):"], step)

    def start_down(self, i: int) -> None:
        """Start a running sum down columns. Its totals are a vector."""
        v = self.loops.values[i]
        if i not in self._blocks:
            self._blocks[i] = self.element.new_scratch(f"scan{i}", f"n{self.along}", v.dtype)
        self.element.line(self._blocks[i].store(f"i{self.along}", start_of(v.data.kind, v.dtype)))

    def run_down(self, i: int) -> None:
        """A step of a running sum down columns."""
        v, place = self.loops.values[i], f"i{self.along}"
        how, element, totals = v.data, self.element, self._blocks[i]
        element.line(f"total{i} = {totals.load(place)}")
        element.line(f"v{i} = {combine(how.kind, f'total{i}', element.value(v.args[0]), v.dtype)}")
        element.line(totals.store(place, f"v{i}"))
        element.known[i] = f"total{i}" if how.exclusive else f"v{i}"

    def read_saved(self, place: str) -> None:
        """From here on, read saved values from their arrays, at this index."""
        for number, array in self.saved.items():
            self.element.known[number] = array.load(place)


def write_pointwise(writer: LoopWriter) -> None:
    """Write the loops of a nest without reductions."""
    element, loops = writer.element, writer.loops

    def body() -> None:
        for number, v in enumerate(loops.values):
            if v.op in READS and v.data < element.in_place:
                element.value(number)  # before it is overwritten
        for output in range(len(loops.stores)):
            element.put(output)

    if not loops.reduced:
        body()
        return
    inner = partial(writer.prepared, writer.ends(writer.along), [s.value for s in loops.stores], body)
    element.nest([writer.header(a) for a in loops.kept_axes[:-1]], inner)


def write_table(writer: LoopWriter) -> None:
    """Write sums into the rows of a table. The call for rows lo to hi scans all inputs and adds those of these rows."""
    element, loops = writer.element, writer.loops
    ((store,), (table,)) = loops.stores, element.targets
    assert store.row is not None
    width = " * ".join(f"n{a}" for a in store.axes) or "1"
    zero = literal(0, loops.values[store.value].dtype)
    element.nest([f"for k in range(lo * {width}, hi * {width}):"], lambda: element.line(table.store("k", zero)))
    placed = loops.values[store.row].axes
    rest = [a for a in range(len(loops.reduced)) if a not in placed]

    def row(number: int) -> None:
        name, body = element.value(number), partial(element.put, 0)
        if rest:
            body = partial(writer.prepared, writer.ends(writer.along), [store.value], body)
        element.nest([f"if lo <= {name} < hi:", *map(writer.header, rest[:-1])], body)

    element.nest(map(writer.header, placed), partial(row, store.row))
