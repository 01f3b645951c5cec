"""The loops of a CPU kernel over columns: passes over the reduced axes with the last kept axis inside, so reductions are vectors along it.

Without a tile, the loops go as memory lies. Short rows are processed some at a time: a vector has the same element of several rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ...ir.loop_nest import Pass
from .expr import Array, combine, start_of
from .loops import LoopWriter


class ColumnWriter:
    """Writes the loops over columns."""

    def __init__(self, writer: LoopWriter) -> None:
        self.writer = writer
        self.element = writer.element
        self.loops = writer.loops
        self.stages = writer.loops.stages()
        self.vectors = writer.saved  # kept value or reduction -> its vector
        self.axis, self.tile = writer.along, writer.schedule.tile
        self.ends = ("at", "end") if self.tile else writer.ends(self.axis)
        self.place = f"i{self.axis} - at" if self.tile else f"i{self.axis}"  # in a vector
        self.length = str(self.tile) if self.tile else f"n{self.axis}"  # of a vector
        self._gathered: dict[int, Array] = {}  # load -> the elements of some rows
        # Output -> the array that has its elements until they are put in their places.
        self._puts: dict[int, Array] = {}

    def write(self) -> None:
        """Write the loops."""
        headers = [self.writer.header(a) for a in self.loops.kept_axes[:-1]]
        if self.tile:
            start, end = self.writer.ends(self.axis)
            headers.append(f"for at in range({start}, {end}, {self.tile}):")
        self.element.nest(headers, self._write_columns)

    def _write_columns(self) -> None:
        if self.tile:
            self.element.line(f"end = min(at + {self.tile}, {self.writer.ends(self.axis)[1]})")
        for each in self.loops.passes():
            scans = self._start_pass(each)
            if each.roots:
                body = partial(self._write_element, scans, each.reductions, each.outputs)
                inner = partial(self.writer.prepared, self.ends, each.roots, body)
                if self.tile:
                    inner = partial(self._over_rows, each, inner)
                self.element.nest([self.writer.header(a, ("0", f"n{a}")) for a in self.loops.reduced_axes], inner)
            if each.after:
                roots = [self.loops.stores[o].value for o in each.after]
                self.writer.prepared(self.ends, roots, partial(self._write_element, (), (), each.after))

    def _start_pass(self, each: Pass) -> list[int]:
        """Write the loop before a pass: it computes the kept values that it needs and starts its sums. Gives the running ones."""
        element, loops = self.element, self.loops
        kept = [k for k in self.writer.kept_values(each.roots) if k not in self.vectors]
        for k in kept:
            if self.axis not in loops.values[k].axes and self.stages[k] == 0:
                element.value(k)  # one number for all elements of the vectors
        kept = [k for k in kept if k not in element.known]
        scans = self.writer.not_known(each.roots, "scan")

        def start() -> None:
            self.writer.read_saved(self.place)
            for s in scans:
                self.writer.start_down(s)
            for k in kept:
                name = element.value(k)
                element.line(self._vector(k).store(self.place, name))
            for r in each.reductions:
                v = loops.values[r]
                element.line(self._vector(r).store(self.place, start_of(str(v.data), v.dtype)))

        if each.reductions or kept or scans:
            self.writer.prepared(self.ends, kept, start)
        return scans

    def _vector(self, number: int) -> Array:
        if number not in self.vectors:
            dtype = self.loops.values[number].dtype
            self.vectors[number] = self.element.new_scratch(f"col{number}", self.length, dtype)
        return self.vectors[number]

    def _write_element(self, scans: Iterable[int], reductions: Iterable[int], outputs: Iterable[int]) -> None:
        """Write what a pass does with one element: steps of running sums and of reductions, and stores."""
        element = self.element
        self.writer.read_saved(self.place)
        for s in scans:
            self.writer.run_down(s)
        for r in reductions:
            v, vector = self.loops.values[r], self.vectors[r]
            total = combine(str(v.data), vector.load(self.place), element.value(v.args[0]), v.dtype)
            element.line(vector.store(self.place, total))
        for o in outputs:
            if o in self._puts:
                element.line(self._puts[o].store(self.place, element.value(self.loops.stores[o].value)))
            else:
                element.put(o)

    def _over_rows(self, each: Pass, inner: partial[None]) -> None:
        """Write a pass over the same element of several rows. Separate loops gather the elements and scatter the results.

        LLVM does not vectorize over such strides; the loop between works on contiguous elements.
        """
        element, loops = self.element, self.loops
        header, row = [self.writer.header(self.axis, self.ends)], element.index(loops.reduced_axes)
        there = f"{row if row.isidentifier() else f'({row})'} * {self.tile} + {self.place}"
        for number in self.writer.not_known(each.roots, "load"):
            v = loops.values[number]
            if not loops.is_full(number) or self.axis not in v.axes:
                continue
            if number not in self._gathered:  # later passes find it there
                length = " * ".join(f"n{a}" for a in loops.reduced_axes)
                got = self._gathered[number] = element.new_scratch(f"got{number}", f"{self.tile} * {length}", v.dtype)
                element.nest(header, partial(element.line, got.store(there, element.expression(number))))
            element.known[number] = self._gathered[number].load(there)
        dtypes = {o: loops.values[loops.stores[o].value].dtype for o in each.outputs}
        self._puts = {o: element.new_scratch(f"put{o}", self.length, dtype) for o, dtype in dtypes.items()}
        inner()
        for o, array in self._puts.items():
            line = element.targets[o].store(element.index(loops.stores[o].axes), array.load(self.place))
            element.nest(header, partial(element.line, line))
        self._puts = {}
