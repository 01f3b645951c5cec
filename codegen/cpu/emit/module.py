"""Emits a readable Numba module from a loop nest and its schedule.

A kernel is a function of its arguments' words (`vecmath.launched`) and of the range `[lo, hi)` of what threads share. The arguments are
flat arrays (inputs, then outputs) and the sizes of the axes.

Code is compiled as written: no fast-math flags, integers wrap around, NaN and infinities behave as in NumPy. Two things differ
from NumPy, within stated bounds: the functions of `vecmath`, and the order of sums in a row, which are added in blocks whose totals
are added in float64.

float16 and bfloat16 exist in memory only, as arrays of their bits. A kernel computes in float32, and rounds where it stores them and
where a cast asks for it (`_widened`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from ....graph.core.dtypes import DType, float32, float64, int32, int64
from ...ir.loop_nest import READS, LoopNest, LoopNestBuilder, Value
from ...ir.schedule import CpuLoops, CpuSchedule
from .columns import ColumnWriter
from .expr import NARROW, SHORT, ElementWriter, type_of
from .instantiate import versions
from .loops import LoopWriter, write_pointwise, write_table
from .rows import RowWriter, total_type


@dataclass(frozen=True, slots=True)
class NumbaSource:
    """A generated module.

    Attributes:
        text: the module; its function is called `kernel`.
        schedule: the schedule that it follows. `lo` and `hi` are a range of what its threads share.
        partial: where these are pieces of what is reduced, the types of the vectors that the kernel takes after its outputs, with one
            element for each piece. After them comes a counter of finished pieces, initially 0.
    """

    text: str
    schedule: CpuSchedule
    partial: tuple[DType, ...] = ()


@cache
def source_of(loops: LoopNest, schedule: CpuSchedule, in_place: int = 0) -> NumbaSource:
    """Write a kernel; cached, so equal loops share it.

    The first `in_place` outputs share memory with the inputs of the same numbers. The kernel does not read these arguments;
    they are there for the caller's convenience. Such a kernel is pointwise, so each element is read before it is written.
    """
    described = "\n".join(f"#   {line}" for line in str(loops).splitlines())
    loops, legal = _legal(loops, schedule)
    assert not (in_place and any(loops.reduced)), "a reduction reads again what is overwritten"
    element = ElementWriter(loops, in_place, pieces=schedule.has_pieces)
    writer = LoopWriter(element, legal)
    match schedule.loops:
        case CpuLoops.POINTWISE:
            write_pointwise(writer)
        case CpuLoops.ROWS:
            RowWriter(writer).write()
        case CpuLoops.COLUMNS:
            ColumnWriter(writer).write()
        case CpuLoops.TABLE:
            write_table(writer)
    length = schedule.unrolled or schedule.tile * (schedule.loops is CpuLoops.POINTWISE)
    used = {SHORT[v.dtype.name] for v in loops.values} - {"boolean"} | {"f64"}
    widths = [f"{short} = np.{name}" for name, short in SHORT.items() if short in used and "float16" not in name]
    draws = any(v.op == "random" for v in loops.values)
    partial = {r: total_type(loops.values[r]) for r in element.parts}
    arrays = [(f"in{i}", v.dtype) for i, v in enumerate(loops.loads)]
    arrays += [(f"out{i}", loops.values[s.value].dtype) for i, s in enumerate(loops.stores)]
    arrays += [(f"part{r}", dtype) for r, dtype in partial.items()] + [("done", int64)] * bool(partial)
    numbers = [*(f"n{i}" for i in range(len(loops.reduced))), *loops.sizes]
    lines = [
        "# Made by Dovetail from:",
        described,
        f"# for {versions()}",
        "import numpy as np",
        "",
        "from dovetail.codegen import vecmath as m",
        *(["from dovetail.codegen.cpu.emit import philox as r"] if draws else []),
        *(["from dovetail.codegen.cpu.native.machine import count_up"] if partial else []),
        "",
        *widths,
        "",
        "",
        "@m.launched",
        "def kernel(words, lo, hi):",
        *[f"    {name} = m.vector(words, {2 * i}, np.{type_of(dtype)})" for i, (name, dtype) in enumerate(arrays)],
        *[f"    {name} = m.word(words, {2 * len(arrays) + i})" for i, name in enumerate(numbers)],
        "    m.wide_vectors()",
        *([f"    n{schedule.along} = {length}"] if length else []),
        *element.scratch,
        *element.lines,
        "",
    ]
    return NumbaSource("\n".join(lines), schedule, tuple(partial.values()))


def _legal(loops: LoopNest, schedule: CpuSchedule) -> tuple[LoopNest, CpuSchedule]:
    """The loops as Numba computes them: narrow floats, and indices that are computed from sizes, are widened."""
    if not loops.sizes and not any(v.dtype in NARROW for v in loops.values):
        return loops, schedule

    def write(builder: LoopNestBuilder, v: Value) -> int:
        if v.dtype in NARROW:
            return _widened(builder, v)
        return builder.add(_with_wide_place(builder, v) if loops.sizes else v)

    legal, numbers = loops.rewritten(write)
    return legal, replace(schedule, saved=tuple(sorted(numbers[i] for i in schedule.saved)))


def _with_wide_place(builder: LoopNestBuilder, v: Value) -> Value:
    """A value with indices in int64, like addresses, if they are computed from sizes. Else LLVM could not find neighbours."""

    def widened(number: int) -> int:
        if builder.dtype(number) is not int32:
            return number
        constant = builder.constant_of(number)
        return builder.cast(number, int64) if constant is None else builder.constant(constant, int64)

    is_place = v.op in ("position", "size") or any(builder.dtype(a) is int64 for a in v.args)
    data = [a for a in v.args if builder.dtype(a) is int32 and builder.constant_of(a) is None]
    if is_place and data and v.dtype.is_bool:  # elements are compared as they are
        return replace(v, args=tuple(a if a in data else builder.cast(a, int32) for a in v.args))
    if is_place and v.op not in (*READS, "cast"):
        return replace(v, args=tuple(map(widened, v.args)), dtype=int64 if v.dtype is int32 else v.dtype)
    return v


def _widened(builder: LoopNestBuilder, v: Value) -> int:
    """Adds a value of a narrow type, which exists only in memory and in casts from and to float32."""
    if v.op == "cast" and builder.dtype(v.args[0]) not in (float32, float64):
        v = replace(v, args=(builder.cast(v.args[0], float32),))
    elif v.op not in (*READS, "cast"):
        v = replace(v, dtype=float32)
    return builder.cast(builder.add(v), float32)
