"""Putting rows where indices say: set them, or add, subtract, multiply, divide, keep the smaller or the larger.

An array is seen as [rows, after]. `count` coordinates say which rows are meant; each is one number, or several (`depth`) along as
many axes of sizes s0, s1... A row for an index that is out of range is left out, as on GPUs in TensorFlow.

Where an index occurs several times, all of its updates count. How, depends on what is done:

    add, sub     by atomic additions, whose order changes the last bits of a sum of floats; memory cannot add narrow types: as below
    update       the last one wins. Each index's last occurrence is its *owner*; only owners write
    the others   the owner goes through all occurrences, in order. An index that occurs once, which most do, costs nothing more

Owners are found in two steps: each occurrence forgets what is noted at its row, then the largest number of an occurrence is noted.
So the notes, one or two words for each row, need not be cleared: rows that are not named are never looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from ..gpu_kernel import Count, Grid, Launch, Routine, Scratch
from .common import address, computed, make

_TILE = 1024  # elements of a tile
_ADDED = (float32, float64, int32, int64, uint32, uint64)  # what memory can add
MOST_COORDINATES = 6

_ITEMS = """    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = place({coordinates}, i, i < count, {sizes})
    m = at >= 0
"""
_ROWS = """    block = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(after, XB)
    row = (block // across) * YB + tl.arange(0, YB)[:, None]
    column = (block % across) * XB + tl.arange(0, XB)[None, :]
    at = place({coordinates}, row, row < count, {sizes})
    m = (at >= 0) & (column < after)
"""
_WRITE = """    owner = tl.load(scratch0 + at, mask=at >= 0, other=-1)
    m = m & (owner == row)
    x = tl.load({update}, mask=m)
    tl.store(out0 + at * after + column, x, mask=m)
"""
_ADD = """    x = tl.load({update}, mask=m)
    tl.atomic_add(out0 + at * after + column, {x}, mask=m, sem="relaxed")
"""
_IN_TURN = """    block = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(after, XB)
    row = block // across
    column = (block % across) * XB + tl.arange(0, XB)
    inside = column < after
    at = place({coordinates}, row, row < count, {sizes})
    if at >= 0:
        if tl.load(scratch0 + at) == row:
            here = out0 + at * after + column
            value = tl.load(here, mask=inside, other=1).to({kind})
            if tl.load(scratch1 + at) == 1:
                value = combined(value, tl.load({update}, mask=inside, other=1).to({kind}))
            else:
                for start in range(0, count, PIECE):
                    i = start + tl.arange(0, PIECE).to(tl.int64)
                    left = place({coordinates}, i, i < count, {sizes}) == at
                    while tl.max(left.to(tl.int32), 0) > 0:
                        row = tl.min(tl.where(left, i, count), 0)
                        value = combined(value, tl.load({update}, mask=inside, other=1).to({kind}))
                        left = left & (i != row)
            tl.store(here, value.to(tl.{name}), mask=inside)
"""
_CLEAR = """    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out0 + i, tl.zeros([BLOCK], out0.dtype.element_ty), mask=i < rows * after)
"""
_COPY = """    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = i < rows * after
    tl.store(out0 + i, tl.load(in0 + i, mask=m), mask=m)
"""


def placed(depth: int) -> str:
    """The text of `place`: the row that a coordinate means, -1 for one out of range."""
    sizes = [f"s{d}" for d in range(depth)]
    lines = [
        "@triton.jit",
        f"def place(coordinates, i, there, {', '.join(sizes)}):",
        "    at = i * 0",
        "    right = there",
    ]
    for d, size in enumerate(sizes):
        where = f"i * {depth} + {d}" if depth > 1 else "i"
        lines += [
            f"    c = tl.load(coordinates + {where}, mask=there, other=-1).to(tl.int64)",
            f"    right = right & (c >= 0) & (c < {size})",
            f"    at = at * {size} + c",
        ]
    return "\n".join([*lines, "    return tl.where(right, at, -1)\n\n\n"])


def sizes_of(dims: Sequence[int]) -> dict[str, int]:
    """The sizes of the axes that coordinates go along, by name."""
    return {f"s{d}": n for d, n in enumerate(dims)}


def owners(
    index: DType, depth: int, coordinates: str, *, counted: bool
) -> tuple[tuple[Launch, ...], tuple[Scratch, ...]]:
    """Kernels that note for each row that is named which occurrence owns it, in `scratch0`, and with `counted` how many there
    are, in `scratch1`. Both hold int32, for `rows` rows; of `count` coordinates there are less than 2**31."""
    notes = ("scratch0", "scratch1") if counted else ("scratch0",)
    arrays = {coordinates: address(index), **dict.fromkeys(notes, "*i32")}
    numbers = {"count": "i64", **{f"s{d}": "i64" for d in range(depth)}}
    items = _ITEMS.format(coordinates=coordinates, sizes=", ".join(f"s{d}" for d in range(depth)))
    grid = Grid((Count(("count",), 256),))
    forget = "    tl.store(scratch0 + at, -1, mask=m)\n"
    claim = '    tl.atomic_max(scratch0 + at, i.to(tl.int32), mask=m, sem="relaxed")\n'
    if counted:
        forget += "    tl.store(scratch1 + at, 0, mask=m)\n"
        claim += '    tl.atomic_add(scratch1 + at, 1, mask=m, sem="relaxed")\n'
    launches = tuple(
        make(name, items + body, arrays, numbers, {"BLOCK": 256}, grid, own=placed(depth))
        for name, body in (("forget", forget), ("claim", claim))
    )
    return launches, tuple(Scratch(note, "i32", (Count(("rows",)),)) for note in notes)


def scatter(
    kind: str,
    dtype: DType,
    index: DType,
    depth: int = 1,
    *,
    begin: str = "there",
    names: tuple[str, str] = ("in1", "in2"),
    single: bool = False,
    after: int = _TILE,
) -> Routine:
    """Put rows into `out0`. A launch gives the sizes `rows`, `after`, `count`, and those of `sizes_of`.

    Args:
        kind: update, add, sub, mul, div, min or max.
        index: type of the coordinates.
        depth: how many numbers a coordinate has.
        begin: what `out0` holds before: `there`: what is there already; `copied`: `in0`; `cleared`: zeros.
        names: of the coordinates, and of the updates.
        single: there is one number for all updates, not a row for each.
        after: about how long a row will be; the result is right for any.

    Raises:
        ValueError: no kernel does this with this type.
    """
    if kind not in _COMBINED and kind != "update":
        raise ValueError(f"no scatter is of the kind {kind!r}")
    if not 1 <= depth <= MOST_COORDINATES or dtype.name == "bool" and kind != "update":
        raise ValueError(f"no kernel scatters {dtype.name} at coordinates of {depth} numbers")
    coordinates, updates = names
    numbers = {"after": "i64", "count": "i64", **{f"s{d}": "i64" for d in range(depth)}}
    fill = {
        "coordinates": coordinates,
        "sizes": ", ".join(f"s{d}" for d in range(depth)),
        "update": f"{updates} + (row + column) * 0" if single else f"{updates} + row * after + column",
        "kind": computed(dtype),
        "name": dtype.name,
    }
    arrays = {coordinates: address(index), updates: address(dtype)}
    out = {"out0": address(dtype)}
    across = min(256, 1 << max(after - 1, 0).bit_length())
    blocks = {"YB": _TILE // across, "XB": across}
    tiles = Grid((Count(("after",), blocks["XB"]), Count(("count",), blocks["YB"])))
    launches = _begun(begin, dtype)
    rows = _ROWS.format(**fill)
    if kind in ("add", "sub") and dtype in _ADDED:
        body = rows + _ADD.format(**fill, x="x" if kind == "add" else "tl.zeros_like(x) - x")
        launches += (make(f"scatter_{kind}", body, arrays | out, numbers, blocks, tiles, own=placed(depth)),)
        return Routine(launches)
    owning, scratch = owners(index, depth, coordinates, counted=kind != "update")
    notes = {s.name: "*i32" for s in scratch}
    if kind == "update":
        body = rows + _WRITE.format(**fill)
        last = make("scatter_update", body, arrays | notes | out, numbers, blocks, tiles, own=placed(depth))
    else:
        across = min(_TILE, max(32, across))
        last = make(
            f"scatter_{kind}",
            _IN_TURN.format(**fill),
            arrays | notes | out,
            numbers,
            {"XB": across, "PIECE": 512},
            Grid((Count(("after",), across), Count(("count",)))),
            calls=[kind + "imum"] if kind in ("min", "max") and dtype.is_floating else [],
            own=placed(depth) + _combined(kind, dtype),
        )
    return Routine((*launches, *owning, last), scratch)


def _begun(begin: str, dtype: DType) -> tuple[Launch, ...]:
    """The kernel that makes what rows are put into."""
    if begin == "there":
        return ()
    whole = {"rows": "i64", "after": "i64"}
    grid = Grid((Count(("rows", "after"), 1024),))
    if begin == "cleared":
        return (make("clear", _CLEAR, {"out0": address(dtype)}, whole, {"BLOCK": 1024}, grid),)
    return (make("copy", _COPY, {"in0": address(dtype), "out0": address(dtype)}, whole, {"BLOCK": 1024}, grid),)


_COMBINED = {"add": "a + b", "sub": "a - b", "mul": "a * b", "div": "", "min": "", "max": ""}


def _combined(kind: str, dtype: DType) -> str:
    """The text of the function that puts an update to a value."""
    if kind == "div" and not dtype.is_floating:
        raise ValueError(f"elements of {dtype.name} are not divided")
    value = _COMBINED[kind]
    if kind == "div":
        value = "a / b" if dtype is float64 else "tl.div_rn(a, b)"
    elif not value:
        value = f"{kind}imum(a, b)" if dtype.is_floating else f"tl.{kind}imum(a, b)"
    return f"@triton.jit\ndef combined(a, b):\n    return {value}\n\n\n"
