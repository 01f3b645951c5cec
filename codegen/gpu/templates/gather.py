"""Picking rows, and adding rows to where they were picked from: an embedding's two directions.

    gather        in0 params [batch, before, length, after], in1 indices [batch, count] -> out0 [batch, before, count, after]
    gather_nd     in0 params [s0, s1, ..., after], in1 coordinates [count, depth] -> out0 [count, after]
    segment_sum   in0 rows [count, after], in1 indices [count] -> out0 [rows, after]
    segment_of    the same, for the largest, the smallest or the product of the rows

An index that is out of range picks zeros, and a row with such an index is left out, as on GPUs in TensorFlow; on CPUs it is an
error. Rows are added by atomic additions in float32 (or the type itself, if it is wider, or whole): so the last bits of a sum of
floats may differ from run to run. All of that is loops (`table_loops`). Extremes and products are made by one block for each segment,
which looks at all indices.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....graph.core.dtypes import DType
from ...fusion.table_loops import added, converted, kept_in, picked, picked_inside
from ..emit.expr import Names, type_of
from ..emit.schedules import launches, one_after_another
from ..ir import Count, Grid, Routine, Scratch, triton_type
from .scatter import ADDED, beginning
from .text import address, make_launch

_TILE = 1024  # elements of a tile

_COMBINE = """    block = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(after, XB)
    segment = block // across
    column = (block % across) * XB + tl.arange(0, XB)[None, :]
    total = tl.full([YB, XB], {identity}, {kind})
    seen = tl.zeros([YB, 1], tl.int32)
    for start in range(0, count, YB):
        row = start + tl.arange(0, YB).to(tl.int64)[:, None]
        here = tl.load(in1 + row, mask=row < count, other=-1).to(tl.int64) == segment
        m = here & (column < after)
        x = tl.load(in0 + row * after + column, mask=m, other=0).to({kind})
        total = tl.where(m, combined(total, x), total)
        seen = seen | here.to(tl.int32)
    value = tl.reduce(total, 0, combined, keep_dims=True)
    value = tl.where(tl.max(seen, 0, keep_dims=True) > 0, value, tl.full([1, XB], {empty}, {kind}))
    tl.store(out0 + segment * after + column, value.to(tl.{name}), mask=column < after)
"""
_COMBINED = {"prod": "a * b", "max": "maximum(a, b)", "min": "minimum(a, b)"}


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


def segment_of(kind: str, dtype: DType, index: DType, after: int = _TILE) -> Routine:
    """Rows of a segment combined: `max`, `min` or `prod`. A launch gives `count`, `after` and `rows`.

    `after` here: about how large it will be; the result is right for any. A segment without rows gets the type's smallest number, its
    largest one, or 1.

    Raises:
        ValueError: no kernel does this with this type.
    """
    if dtype.name == "bool" or kind not in _COMBINED:
        raise ValueError(f"no kernel makes the {kind} of rows of {dtype.name}")
    edge = dtype.min if kind == "max" else dtype.max
    empty: float | int = 1 if kind == "prod" else float(edge) if dtype.is_floating else int(edge)
    identity = repr(empty)
    if dtype.is_floating and kind != "prod":
        identity = f'float("{"-" if kind == "max" else ""}inf")'
    value = _COMBINED[kind] if dtype.is_floating else _COMBINED[kind].replace("m", "tl.m", 1)
    body = _COMBINE.format(identity=identity, empty=repr(empty), kind=type_of(dtype), name=dtype.name)
    across = min(256, 1 << max(after - 1, 0).bit_length())
    blocks = {"YB": _TILE // across, "XB": across}
    launch = make_launch(
        f"segment_{kind}", body, {"in0": address(dtype), "in1": address(index), "out0": address(dtype)},
        {"count": "i64", "after": "i64", "rows": "i64"}, blocks,
        Grid((Count(("after",), blocks["XB"]), Count(("rows",)))),
        calls=[kind + "imum"] if dtype.is_floating and kind != "prod" else [],
        own=f"@triton.jit\ndef combined(a, b):\n    return {value}\n\n\n",
    )  # fmt: skip
    return Routine((launch,))
