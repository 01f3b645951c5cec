"""The loops of a CPU kernel: one nest for each form of `CpuLoops`. `rows` and `columns` have those with reductions.

`loops` writes single loops, and `expr` what is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...ir.loop_nest import READS, LoopNest
from ...ir.schedule import CpuLoops, CpuSchedule
from .columns import ColumnWriter
from .expr import ElementWriter, literal
from .loops import LoopWriter
from .rows import RowWriter


def write_nest(loops: LoopNest, schedule: CpuSchedule, in_place: int) -> ElementWriter:
    """Write the body of a kernel; gives the writer, which has its lines and arrays."""
    assert not (in_place and any(loops.reduced)), "a reduction reads again what is overwritten"
    element = ElementWriter(loops, in_place, pieces=schedule.has_pieces)
    _WRITERS[schedule.loops](LoopWriter(element, schedule))
    element.lines[:0] = element.scratch
    return element


def _write_pointwise(writer: LoopWriter) -> None:
    """Nothing is reduced."""
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


def _write_table(writer: LoopWriter) -> None:
    """Sums into the rows of a table: the call for rows lo to hi scans all inputs, and adds the elements of these rows."""
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


_WRITERS: dict[CpuLoops, Callable[[LoopWriter], None]] = {
    CpuLoops.POINTWISE: _write_pointwise,
    CpuLoops.ROWS: lambda writer: RowWriter(writer).write(),
    CpuLoops.COLUMNS: lambda writer: ColumnWriter(writer).write(),
    CpuLoops.TABLE: _write_table,
}
