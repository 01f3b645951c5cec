"""Picking rows, and adding rows to where they were picked from: an embedding's two directions.

    gather        in0 params [batch, before, length, after], in1 indices [batch, count] -> out0 [batch, before, count, after]
    gather_nd     in0 params [s0, s1, ..., after], in1 coordinates [count, depth] -> out0 [count, after]
    segment_sum   in0 rows [count, after], in1 indices [count] -> out0 [rows, after]
    segment_of    the same, for the largest, the smallest or the product of the rows

An index that is out of range picks zeros, and a row with such an index is left out, as on GPUs in TensorFlow; on CPUs it is an
error. Rows are added by atomic additions in float32 (or the type itself, if it is wider, or whole): so the last bits of a sum of
floats may differ from run to run. For extremes and products each segment looks at all indices. All of that is loops
(`fusion/table_loops.py`, `fusion/row_loops.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ....graph.core.dtypes import DType
from ...fusion.row_loops import segments
from ...fusion.table_loops import added, converted, kept_in, picked, picked_inside
from ...ir.legality import SUPPORTED
from ..emit.expr import Names
from ..emit.schedules import candidates, launches, one_after_another
from ..ir import Count, Routine, Scratch, triton_type
from .scatter import ADDED, beginning


def gather(dtype: DType, index: DType, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
    """Ways to pick, the likely best one first.

    A launch gives the sizes `batch`, `before`, `length`, `count` and `after`. `sizes`: the same; for other ones the ways are right,
    too, as long as it is as true of them that `batch` and `before` are 1.
    """
    inputs, tables = ("in0", "in1"), {"in0": "rows"}
    if sizes["batch"] == sizes["before"] == 1:
        names = Names(inputs, ("out0",), ("count", "after"), tables={"in0": "length"})
        return one_after_another([launches(picked(dtype, index), names, (sizes["count"], sizes["after"]))])
    loops = picked_inside(dtype, index, sizes["batch"] > 1)
    axes = [n for n in ("batch", "before", "count", "after") if n != "batch" or sizes["batch"] > 1]
    return one_after_another(
        [launches(loops, Names(inputs, ("out0",), tuple(axes), tables=tables), [sizes[n] for n in axes])]
    )


def gather_nd(dtype: DType, index: DType, depth: int, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
    """Ways to pick slices by coordinates of `depth` numbers. A launch gives `scattering.launch_sizes`, of which `sizes` are some."""
    names = Names(("in0", "in1"), ("out0",), ("count", "after"), tables={"in0": "rows", "in1": "numbers"})
    return one_after_another([launches(picked(dtype, index, depth), names, (sizes["count"], sizes["after"]))])


def segment_sum(dtype: DType, index: DType, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
    """Ways to add. A launch gives the sizes `count`, `after` and `rows`, of which `sizes` are some, and `elements`: those of the result.

    Raises:
        ValueError: memory cannot add this type: integers of 8 and 16 bits.
    """
    check_segment_sum(dtype)
    kept = kept_in(dtype)
    to = "out0" if kept is dtype else "scratch0"
    names = Names(("in0", "in1"), (to,), ("count", "after"), tables={to: "rows"})
    parts = [
        *beginning("cleared", kept, sizes, to),
        launches(added(dtype, index), names, (sizes["count"], sizes["after"])),
    ]
    if kept is dtype:
        return one_after_another(parts)
    rounded = Names(("scratch0",), ("out0",), ("elements",))
    parts.append(launches(converted(kept, dtype), rounded, (sizes["rows"] * sizes["after"],))[:1])
    return one_after_another(
        parts, [Scratch("scratch0", triton_type(kept.name), (Count(("rows",)), Count(("after",))))]
    )


def check_segment_sum(dtype: DType) -> None:
    """ValueError where no kernel adds rows of this type."""
    if kept_in(dtype) not in ADDED:
        raise ValueError(f"rows of {dtype.name} cannot be added in memory")


def segment_of(kind: str, dtype: DType, index: DType, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
    """Ways to combine the rows of a segment: `max`, `min` or `prod`. A launch gives `count`, `after` and `rows`, which are `sizes`.

    A segment without rows gets the type's smallest number, its largest one, or 1.
    """
    check_segment_of(kind, dtype)
    axes = ("rows", "count", *(("after",) if sizes["after"] > 1 else ()))
    names = Names(("in0", "in1"), ("out0",), axes, tables={"in0": "count"})
    return candidates(segments(kind, dtype, index, len(axes) > 2), names, [sizes[a] for a in axes])


def check_segment_of(kind: str, dtype: DType) -> None:
    """ValueError where no kernel combines rows of this type."""
    if dtype.is_bool or dtype not in SUPPORTED or kind not in ("max", "min", "prod"):
        raise ValueError(f"no kernel makes the {kind} of rows of {dtype.name}")
