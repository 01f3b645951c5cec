"""Picking rows, and adding rows to where they were picked from: an embedding's two directions.

    gather        in0 params [batch, before, length, after], in1 indices [batch, count] -> out0 [batch, before, count, after]
    gather_nd     in0 params [s0, s1, ..., after], in1 coordinates [count, depth] -> out0 [count, after]
    segment_sum   in0 rows [count, after], in1 indices [count] -> out0 [segments, after]
    segment_of    the same, for the largest, the smallest or the product of the rows

An index that is out of range picks zeros, and a row with such an index is left out, as on GPUs in TensorFlow; on CPUs it is an
error. Rows are added by atomic additions in float32 (or the type itself, if it is wider, or whole): so the last bits of a sum of
floats may differ from run to run. Extremes and products are made by one block for each segment, which looks at all indices.
"""

from __future__ import annotations

from ...graph.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from ..gpu_kernel import Count, Grid, Routine, Scratch, triton_type
from .common import NARROW, address, computed, make
from .scattering import placed

_TILE = 1024  # elements of a tile
_ADDED = (float32, float64, int32, int64, uint32, uint64)

_GATHER = """    block = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(after, XB)
    row = (block // across) * YB + tl.arange(0, YB)[:, None]
    column = (block % across) * XB + tl.arange(0, XB)[None, :]
    there = row < batch * before * count
    outer = row // count
    at = tl.load(in1 + (outer // before) * count + row % count, mask=there, other=-1).to(tl.int64)
    right = (at >= 0) & (at < length)
    inside = column < after
    x = tl.load(in0 + (outer * length + at) * after + column, mask=there & right & inside, other=0)
    tl.store(out0 + row * after + column, x, mask=there & inside)
"""
_GATHER_ND = """    block = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(after, XB)
    row = (block // across) * YB + tl.arange(0, YB)[:, None]
    column = (block % across) * XB + tl.arange(0, XB)[None, :]
    there = row < count
    at = place(in1, row, there, {sizes})
    inside = column < after
    x = tl.load(in0 + at * after + column, mask=(at >= 0) & inside, other=0)
    tl.store(out0 + row * after + column, x, mask=there & inside)
"""
_ADD = """    block = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(after, XB)
    row = (block // across) * YB + tl.arange(0, YB)[:, None]
    column = (block % across) * XB + tl.arange(0, XB)[None, :]
    there = row < count
    at = tl.load(in1 + row, mask=there, other=-1).to(tl.int64)
    m = there & (at >= 0) & (at < segments) & (column < after)
    x = tl.load(in0 + row * after + column, mask=m)
    tl.atomic_add({to} + at * after + column, x{cast}, mask=m, sem="relaxed")
"""
_CLEAR = """    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store({to} + i, tl.zeros([BLOCK], {kind}), mask=i < segments * after)
"""
_ROUND = """    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = i < segments * after
    tl.store(out0 + i, tl.load(scratch0 + i, mask=m).to(tl.{kind}), mask=m)
"""
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


def gather(dtype: DType, index: DType, after: int = _TILE) -> Routine:
    """Pick. A launch gives the sizes `batch`, `before`, `length`, `count` and `after`.

    `after` here: about how large it will be. The tile is made to suit; the result is right for any.
    """
    blocks = _blocks(after)
    arrays = {"in0": address(dtype), "in1": address(index), "out0": address(dtype)}
    sizes = dict.fromkeys(("batch", "before", "length", "count", "after"), "i64")
    grid = Grid((Count(("after",), blocks["XB"]), Count(("batch", "before", "count"), blocks["YB"])))
    return Routine((make("gather", _GATHER, arrays, sizes, blocks, grid),))


def gather_nd(dtype: DType, index: DType, depth: int, after: int = _TILE) -> Routine:
    """Pick slices by coordinates of `depth` numbers. A launch gives `count`, `after` and the sizes of `scattering.sizes_of`.

    For `after` see `gather`.
    """
    blocks = _blocks(after)
    named = [f"s{d}" for d in range(depth)]
    arrays = {"in0": address(dtype), "in1": address(index), "out0": address(dtype)}
    grid = Grid((Count(("after",), blocks["XB"]), Count(("count",), blocks["YB"])))
    body = _GATHER_ND.format(sizes=", ".join(named))
    sizes = dict.fromkeys(("count", "after", *named), "i64")
    return Routine((make("gather_nd", body, arrays, sizes, blocks, grid, own=placed(depth)),))


def _blocks(after: int) -> dict[str, int]:
    """The sides of a tile: no wider than rows are long."""
    across = min(256, 1 << max(after - 1, 0).bit_length())
    return {"YB": _TILE // across, "XB": across}


def segment_sum(dtype: DType, index: DType, after: int = _TILE) -> Routine:
    """Add. A launch gives the sizes `count`, `after` and `segments`. For `after` see `gather`.

    Raises:
        ValueError: memory cannot add this type: integers of 8 and 16 bits.
    """
    if dtype not in _ADDED and dtype not in NARROW:
        raise ValueError(f"rows of {dtype.name} cannot be added in memory")
    kept = float32 if dtype in NARROW else dtype
    to = "scratch0" if dtype in NARROW else "out0"
    every = Grid((Count(("segments", "after"), 1024),))
    blocks = _blocks(after)
    whole = {"segments": "i64", "after": "i64"}
    add = _ADD.format(to=to, cast=".to(tl.float32)" if dtype in NARROW else "")
    launches = [
        make("clear", _CLEAR.format(to=to, kind=f"tl.{kept.name}"), {to: address(kept)}, whole, {"BLOCK": 1024}, every),
        make(
            "add", add, {"in0": address(dtype), "in1": address(index), to: address(kept)},
            {"count": "i64", "after": "i64", "segments": "i64"}, blocks,
            Grid((Count(("after",), blocks["XB"]), Count(("count",), blocks["YB"]))),
        ),
    ]  # fmt: skip
    if dtype not in NARROW:
        return Routine(tuple(launches))
    arrays = {"scratch0": address(kept), "out0": address(dtype)}
    launches.append(make("rounded", _ROUND.format(kind=dtype.name), arrays, whole, {"BLOCK": 1024}, every))
    scratch = Scratch("scratch0", triton_type(kept.name), (Count(("segments",)), Count(("after",))))
    return Routine(tuple(launches), (scratch,))


def segment_of(kind: str, dtype: DType, index: DType, after: int = _TILE) -> Routine:
    """Rows of a segment combined: `max`, `min` or `prod`. Sizes as of `segment_sum`.

    A segment without rows gets the type's smallest number, its largest one, or 1.

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
    body = _COMBINE.format(identity=identity, empty=repr(empty), kind=computed(dtype), name=dtype.name)
    blocks = _blocks(after)
    launch = make(
        f"segment_{kind}", body, {"in0": address(dtype), "in1": address(index), "out0": address(dtype)},
        {"count": "i64", "after": "i64", "segments": "i64"}, blocks,
        Grid((Count(("after",), blocks["XB"]), Count(("segments",)))),
        calls=[kind + "imum"] if dtype.is_floating and kind != "prod" else [],
        own=f"@triton.jit\ndef combined(a, b):\n    return {value}\n\n\n",
    )  # fmt: skip
    return Routine((launch,))
