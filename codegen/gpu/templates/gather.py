"""Picking rows of a table: loops (`fusion/table_loops.py`).

    gather        in0 params [batch, before, length, after], in1 indices [batch, count] -> out0 [batch, before, count, after]
    gather_nd     in0 params [s0, s1, ..., after], in1 coordinates [count, depth] -> out0 [count, after]

An index that is out of range picks zeros, as on GPUs in TensorFlow; on CPUs it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....graph.core.dtypes import DType
from ...fusion.table_loops import picked, picked_inside
from ..emit.expr import Names
from ..emit.schedules import launches, one_after_another
from ..ir import Routine


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
    """Ways to pick slices by coordinates of `depth` numbers. A launch gives `scatter.launch_sizes`, of which `sizes` are some."""
    names = Names(("in0", "in1"), ("out0",), ("count", "after"), tables={"in0": "rows", "in1": "numbers"})
    return one_after_another([launches(picked(dtype, index, depth), names, (sizes["count"], sizes["after"]))])
