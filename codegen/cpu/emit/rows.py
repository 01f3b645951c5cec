"""The loops of a CPU kernel over rows: for one kept element, a pass over the reduced axes per stage of reductions.

Sums of floating-point numbers are added in blocks (`b<number>`), whose totals (`t<number>`) are added in float64 if they are float32.
What a later pass needs is saved in memory if the schedule says so, and computed again otherwise.

A reduction of everything goes in pieces that threads share. Each stores its partial results, and the last piece to finish adds them up.
"""

from __future__ import annotations

from functools import partial

from ....graph.core.dtypes import DType, float32, float64
from ...fusion.range_analysis import passes_over_nan
from ...ir.loop_nest import Pass, Value
from .expr import Array, combine, start_of
from .loops import LoopWriter


def total_type(v: Value) -> DType:
    """The type of the total of a reduction's blocks or pieces."""
    return float64 if v.data == "sum" and v.dtype is float32 else v.dtype


class RowWriter:
    """Writes the loops over rows."""

    def __init__(self, writer: LoopWriter) -> None:
        self.writer = writer
        self.element = writer.element
        self.loops = writer.loops
        self.schedule = writer.schedule
        self.place = self.element.index(self.loops.reduced_axes)  # in a saved row
        self.ends = writer.ends(writer.along)

    def write(self) -> None:
        """Write the loops."""
        pieces = ["for part in range(lo, hi):"] * self.schedule.has_pieces
        self.element.nest(pieces or map(self.writer.header, self.loops.kept_axes), self._write_row)

    def _write_row(self) -> None:
        if self.schedule.has_pieces:
            self.element.line(f"stop = min((part + 1) * {self.schedule.tile}, n0)")
            self.ends = f"part * {self.schedule.tile}", "stop"
        for each in self.loops.passes():
            if each.roots:
                self._write_pass(each)
            for o in each.after:
                self.element.put(o)

    def _write_pass(self, each: Pass) -> None:
        element, loops, writer = self.element, self.loops, self.writer
        axes, reduced = loops.reduced_axes, {r: loops.values[r] for r in each.reductions}
        in_blocks = any(v.data in ("sum", "prod") and v.dtype.is_floating for v in reduced.values())
        prefix = "t" if in_blocks else "v"
        needed = set(loops.backward_slice(each.roots, lambda i: loops.values[i].op == "reduce"))
        length = " * ".join(f"n{a}" for a in axes)
        new = {
            i: element.new_scratch(f"row{i}", length, loops.values[i].dtype)
            for i in self.schedule.saved
            if i in needed and i not in writer.saved
        }
        for r, v in reduced.items():
            element.line(f"{prefix}{r} = {start_of(str(v.data), total_type(v))}")
        for k in writer.kept_values(each.roots):
            element.value(k)  # before the loop that uses it, once
        for s in writer.not_known(each.roots, "scan"):
            element.line(f"total{s} = {start_of(loops.values[s].data.kind, loops.values[s].dtype)}")
        headers = [writer.header(a, ("0", f"n{a}")) for a in axes[:-1]]
        if in_blocks:
            headers += [] if self.schedule.unrolled else [writer.block_header(self.ends)]
            element.nest(headers, partial(self._write_block, each, reduced, new))
        else:
            body = partial(self._write_element, each, new, prefix)
            element.nest(headers, partial(writer.prepared, self.ends, each.roots, body))
        writer.saved.update(new)
        if self.schedule.has_pieces:
            self._combine_pieces(prefix)
        for r, v in reduced.items():
            if in_blocks:
                element.line(f"v{r} = t{r}" if total_type(v) is v.dtype else f"v{r} = f32(t{r})")
            element.known[r] = f"v{r}"

    def _write_block(self, each: Pass, reduced: dict[int, Value], new: dict[int, Array]) -> None:
        """Write a block of a row. Its totals are added to those of the row."""
        for r, v in reduced.items():
            self.element.line(f"b{r} = {start_of(str(v.data), v.dtype)}")
        end = self.writer.prepare(each.roots, f"n{self.writer.along}")
        self.writer.innermost(("at", end), partial(self._write_element, each, new, "b"))
        for r, v in reduced.items():
            x = f"b{r}" if total_type(v) is v.dtype else f"f64(b{r})"
            self.element.line(f"t{r} = {combine(str(v.data), f't{r}', x, v.dtype)}")

    def _write_element(self, each: Pass, new: dict[int, Array], prefix: str) -> None:
        """Write what a pass does with one element: save it, add it to the totals, store it."""
        element, loops = self.element, self.loops
        self.writer.read_saved(self.place)
        for number, array in new.items():
            element.line(array.store(self.place, element.value(number)))
        for r in each.reductions:
            v, total = loops.values[r], f"{prefix}{r}"
            x = element.value(v.args[0])
            combined = combine(str(v.data), total, x, v.dtype, any_order=True)
            element.line(f"{total} = {f'm.larger({total}, {x})' if passes_over_nan(loops, r) else combined}")
        for o in each.outputs:
            element.put(o)

    def _combine_pieces(self, prefix: str) -> None:
        """Write the end of a piece: it stores its partial results. The last piece to finish combines those of all pieces, in order."""
        element, tile = self.element, self.schedule.tile
        for r, part in element.parts.items():
            element.line(part.store("part", f"{prefix}{r}"))
        element.line(f"pieces = max(1, (n0 + {tile - 1}) // {tile})")
        element.line("if count_up(done, 0, 1) == pieces - 1:")
        element.depth += 1
        for r, part in element.parts.items():
            v, total = self.loops.values[r], f"{prefix}{r}"
            dtype, kind = total_type(v), str(v.data)
            element.line(f"{total} = {start_of(kind, dtype)}")
            element.line("for other in range(pieces):")
            element.line(f"    {total} = {combine(kind, total, part.load('other'), dtype)}")
