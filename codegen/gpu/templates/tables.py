"""Rows of tables: loops (`fusion/table_loops.py`), with the tiles and candidates of all loops.

    gather        in0 params [batch, before, length, after], in1 indices [batch, count] -> out0 [batch, before, count, after]
    gather_nd     in0 params [s0, s1, ..., after], in1 coordinates [count, depth] -> out0 [count, after]
    scatter       rows are set, or added, subtracted, multiplied, divided, or the smaller or the larger ones are kept
    sparse_update, decaying_update   an optimizer's step for the rows that a gradient names, for all rows

Segments' sums, products and extremes are scatters into zeros, and into rows that are still empty.

What is put into is seen as [rows, after]. `count` coordinates say which rows are meant; each is one number, or several (`depth`) along
as many axes of sizes s0, s1... Where an index is out of range, a gather picks zeros and a scatter leaves the row out, as on GPUs in
TensorFlow; on CPUs it is an error.

Where an index occurs several times, all of its updates count. How, depends on what is done:

    add, sub     by atomic additions, whose order changes the last bits of a sum of floats; memory cannot add narrow types: these go as
                 below, or, into zeros, are added in float32
    update       the last one wins: each row's last occurrence is its *owner*, and only owners write
    the others   the owner goes through all occurrences, in order. An index that occurs once, which most do, costs nothing more

Going through occurrences is no loop over one space, and is written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....graph.core.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from ...fusion import table_loops
from ...ir.loop_nest import LoopNest
from ...ir.schedule import GpuSchedule
from ...target import GPU_BLOCK_ELEMENTS
from ..emit.expr import Names, start_of, type_of
from ..emit.launches import candidates, launches, one_after_another
from ..ir import Count, Grid, Launch, Routine, Scratch, triton_type
from .text import address, arguments, make_launch

ADDED = (float32, float64, int32, int64, uint32, uint64)  # the types of atomic additions

_IN_TURN = """    block = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(after, XB)
    row = block // across
    column = (block % across) * XB + tl.arange(0, XB)
    inside = column < after
    at = tl.load({coordinates} + row).to(tl.int64)
    if (at >= 0) & (at < rows):
        if tl.load(scratch0 + at) == row:
            here = out0 + at * after + column
            value = {value}
            if tl.load(scratch1 + at) == 1:
                value = combined(value, tl.load({update}, mask=inside, other=1).to({kind}))
            else:
                for start in range(0, count, PIECE):
                    i = start + tl.arange(0, PIECE).to(tl.int64)
                    left = tl.load({coordinates} + i, mask=i < count, other=-1).to(tl.int64) == at
                    while tl.max(left.to(tl.int32), 0) > 0:
                        row = tl.min(tl.where(left, i, count), 0)
                        value = combined(value, tl.load({update}, mask=inside, other=1).to({kind}))
                        left = left & (i != row)
            tl.store(here, value.to(tl.{name}), mask=inside)
"""


def launch_sizes(rows: int, after: int, count: int, dims: Sequence[int]) -> dict[str, int]:
    """What a launch of a scatter gives: of an array [rows, after] whose coordinates, `count` of them, go along axes of sizes `dims`."""
    whole = {"elements": rows * after, "updated": count * after, "numbers": count * len(dims)}
    return {"rows": rows, "after": after, "count": count, **whole, **{f"s{d}": n for d, n in enumerate(dims)}}


def gather(dtype: DType, index: DType, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
    """Candidates of a gather, the likely best one first.

    A launch gives the sizes `batch`, `before`, `length`, `count` and `after`. `sizes`: likely ones. The candidates are right for others,
    too, unless `batch` and `before` are both 1 in only one of the two.
    """
    inputs, tables = ("in0", "in1"), {"in0": "rows"}
    if sizes["batch"] == sizes["before"] == 1:
        names = Names(inputs, ("out0",), ("count", "after"), tables={"in0": "length"})
        return candidates(table_loops.picked(dtype, index), names, (sizes["count"], sizes["after"]))
    loops = table_loops.picked_inside(dtype, index, sizes["batch"] > 1)
    axes = [n for n in ("batch", "before", "count", "after") if n != "batch" or sizes["batch"] > 1]
    return candidates(loops, Names(inputs, ("out0",), tuple(axes), tables=tables), [sizes[n] for n in axes])


def gather_nd(dtype: DType, index: DType, depth: int, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
    """Ways to pick slices by coordinates of `depth` numbers. A launch gives `launch_sizes`, of which `sizes` are some."""
    names = Names(("in0", "in1"), ("out0",), ("count", "after"), tables={"in0": "rows", "in1": "numbers"})
    return candidates(table_loops.picked(dtype, index, depth), names, (sizes["count"], sizes["after"]))


def scatter(
    kind: str,
    dtype: DType,
    index: DType,
    sizes: Mapping[str, int],
    depth: int = 1,
    *,
    begin: str = "there",
    names: tuple[str, str] = ("in1", "in2"),
    single: bool = False,
    out: str = "out0",
) -> tuple[Routine, ...]:
    """Ways to put rows into `out`, the likely best one first.

    Args:
        kind: update, add, sub, mul, div, min or max.
        index: type of the coordinates.
        sizes: `launch_sizes` of the launch; the ways are right for any others, too.
        depth: how many numbers a coordinate has.
        begin: what `out` holds before: `there`: what is there already; `copied`: `in0`; `cleared`: zeros; `empty`: rows are made of their
            updates alone, and those without one are the type's smallest number (of max), its largest one (min), or 1 (mul).
        names: of the coordinates, and of the updates.
        single: there is one number for all updates, not a row for each.
        out: of sums only: the array's name, where it is not `out0`.

    Raises:
        ValueError: no kernel does this with this type.
    """
    check_scatter(kind, dtype, depth)
    coordinates, updates = names
    space = sizes["count"], sizes["after"]
    axes = ("count", "after")
    tables = {out: "rows", "scratch0": "rows", "scratch1": "rows", coordinates: "numbers"}
    kept = table_loops.kept_in(dtype)
    if kind in ("add", "sub") and (dtype in ADDED or (begin == "cleared" and kept in ADDED)):
        to = out if kept is dtype else "scratch0"
        loops = table_loops.added(dtype, index, depth, negative=kind == "sub", single=single)
        sums = launches(loops, Names((updates, coordinates), (to,), axes, tables=tables), space)
        parts = [*_beginning(begin, kept, sizes, to), sums]
        if kept is dtype:
            return one_after_another(parts)
        rounded = Names((to,), (out,), ("elements",))
        parts.append(launches(table_loops.converted(kept, dtype), rounded, (sizes["rows"] * sizes["after"],))[:1])
        return one_after_another(parts, [Scratch(to, triton_type(kept.name), (Count(("rows",)), Count(("after",))))])
    edge = {"max": dtype.min, "min": dtype.max}.get(kind, 1) if begin == "empty" else 0
    begun = _beginning(begin, dtype, sizes, value=float(edge) if dtype.is_floating else int(edge))
    if kind == "update":
        owning, scratch = owners(index, depth, coordinates, sizes)
        loops = table_loops.put_by_owners(dtype, index, depth, single=single)
        last = Names((updates, coordinates, "scratch0"), ("out0",), axes, tables=tables)
        return one_after_another([*begun, *owning, launches(loops, last, space)], scratch)
    parts = begun
    scratch = []
    if depth > 1:
        flat = Names((coordinates,), ("scratch2",), ("count",), tables=tables)
        parts = [*parts, launches(table_loops.rows_of(index, depth), flat, space[:1])[:1]]
        scratch.append(Scratch("scratch2", "i64", (Count(("count",)),)))
        index, coordinates = int64, "scratch2"
    owning, noted = owners(index, 1, coordinates, sizes, counted=True)
    start = start_of({"mul": "prod"}.get(kind, kind), dtype) if begin == "empty" else ""
    in_turn = _in_turn(kind, dtype, index, coordinates, updates, sizes["after"], start, single=single)
    return one_after_another([*parts, *owning, [in_turn]], [*noted, *scratch])


def sparse_update(
    loops: LoopNest, places: int, gradient: int, dtype: DType, index: DType, sizes: Mapping[str, int]
) -> tuple[Routine, ...]:
    """Ways to make an optimizer's step for the rows [count, after] that a gradient names, the likely best one first.

    Rows that are named several times have one step, with the sum of their gradients: these are added up where the owner's own stands,
    and the owners make the steps.

    A launch gives a node's inputs in0, in1... (the places, numbers, the gradient's rows, the indices, numbers), the outputs out0, out1...,
    which may be the places, and `sizes`. Only the rows that are named are written.

    Args:
        loops: the rule, of `update_loops.sparse_update` with sums. places: how many of its inputs are variables. gradient: which
            input that is.
        dtype: of the gradient. index: of the indices.
        sizes: `launch_sizes`; the ways are right for any others, too.
    """
    kept, indices = table_loops.kept_in(dtype), f"in{gradient + 1}"
    space, axes = (sizes["count"], sizes["after"]), ("count", "after")
    tables = {"scratch0": "rows", "scratch1": "count", indices: "numbers"}
    owning, notes = owners(index, 1, indices, sizes)
    cleared = launches(table_loops.filled(kept), Names((), ("scratch1",), ("updated",)), (space[0] * space[1],))[:1]
    sums = Names((f"in{gradient}", indices, "scratch0"), ("scratch1",), axes, tables=tables)
    summed = launches(table_loops.added_to_owners(dtype, index), sums, space)
    inputs = [f"in{i}" for i in range(len(loops.loads) - 1) if i != gradient + 1] + [indices]  # as the loops have them
    inputs[gradient] = "scratch1"
    outputs = tuple(f"out{i}" for i in range(places))
    tables |= dict.fromkeys((*inputs[:places], *outputs), "rows")
    step = launches(loops, Names((*inputs, "scratch0"), outputs, axes, tables=tables), space)
    scratch = Scratch("scratch1", triton_type(kept.name), (Count(("count",)), Count(("after",))))
    return one_after_another([*owning, cleared, summed, step], [*notes, scratch])


def decaying_update(
    loops: LoopNest, places: int, gradient: int, dtype: DType, index: DType, sizes: Mapping[str, int]
) -> tuple[Routine, ...]:
    """As `sparse_update`, of all rows: those of the gradient are added up to a dense one, in scratch memory. `loops`: the dense rule."""
    names = f"in{gradient + 1}", f"in{gradient}"
    (sums, *_) = scatter("add", dtype, index, sizes, begin="cleared", names=names, out="scratch1")
    inputs = [f"in{i}" for i in range(len(loops.loads) + 1) if i != gradient + 1]
    inputs[gradient] = "scratch1"
    step = Names(tuple(inputs), tuple(f"out{i}" for i in range(places)), ("elements",))
    scratch = Scratch("scratch1", triton_type(dtype.name), (Count(("rows",)), Count(("after",))))
    return tuple(
        Routine((*sums.launches, launch), (*sums.scratch, scratch))
        for launch in launches(loops, step, (sizes["elements"],))
    )


def check_scatter(kind: str, dtype: DType, depth: int = 1) -> None:
    """ValueError where no kernel does such a scatter; KeyError for a type that kernels cannot have."""
    address(dtype)
    if kind not in _COMBINED and kind != "update":
        raise ValueError(f"no scatter is of the kind {kind!r}")
    if not 1 <= depth <= table_loops.MOST_COORDINATES or dtype.name == "bool" and kind != "update":
        raise ValueError(f"no kernel scatters {dtype.name} at coordinates of {depth} numbers")
    if kind == "div" and not dtype.is_floating:
        raise ValueError(f"elements of {dtype.name} are not divided")


def owners(
    index: DType, depth: int, coordinates: str, sizes: Mapping[str, int], *, counted: bool = False
) -> tuple[list[list[Launch]], list[Scratch]]:
    """Kernels that note for each row that is named which occurrence owns it, in `scratch0`, and with `counted` how many there
    are, in `scratch1`. Both hold int32, for `rows` rows; of `count` coordinates there are less than 2**31."""
    notes = ("scratch0", "scratch1") if counted else ("scratch0",)
    tables = {**dict.fromkeys(notes, "rows"), coordinates: "numbers"}
    names = Names((coordinates,), notes, ("count",), tables=tables)
    ways = [
        launches(make_loops(index, depth, counted=counted), names, (sizes["count"],))[:1]
        for make_loops in (table_loops.forget, table_loops.claim)
    ]
    return ways, [Scratch(note, "i32", (Count(("rows",)),)) for note in notes]


def _beginning(
    begin: str, dtype: DType, sizes: Mapping[str, int], out: str = "out0", value: float = 0
) -> list[list[Launch]]:
    """The kernel that makes what rows are put into."""
    if begin == "there":
        return []
    loops = table_loops.converted(dtype, dtype) if begin == "copied" else table_loops.filled(dtype, value)
    # The whole array is one axis to this kernel, whose size is a product.
    names = Names(("in0",) if begin == "copied" else (), (out,), ("elements",))
    return [launches(loops, names, (sizes["rows"] * sizes["after"],))[:1]]


def _in_turn(
    kind: str, dtype: DType, index: DType, coordinates: str, updates: str, after: int, start: str, *, single: bool
) -> Launch:
    """The kernel in which owners go through all occurrences of their rows. `start`: what these begin with; empty: what is there."""
    across = min(GPU_BLOCK_ELEMENTS, max(32, min(256, 1 << max(after - 1, 0).bit_length())))
    computed = type_of(dtype)
    body = _IN_TURN.format(
        coordinates=coordinates,
        update=f"{updates} + (row + column) * 0" if single else f"{updates} + row * after + column",
        value=f"tl.full([XB], {start}, {computed})" if start else f"tl.load(here, mask=inside, other=1).to({computed})",
        kind=computed,
        name=dtype.name,
    )
    arrays = {coordinates: address(index), updates: address(dtype), "scratch0": "*i32", "scratch1": "*i32"}
    parameters = arguments(arrays | {"out0": address(dtype)}, "rows", "after", "count")
    grid = Grid((Count(("after",), across), Count(("count",))))
    constants, own, schedule = (("XB", across), ("PIECE", 512)), _combined(kind, dtype), GpuSchedule(1, across)
    return make_launch(f"scatter_{kind}", body, parameters, constants, grid, schedule, own=own, contract=False)


_COMBINED = {"add": "a + b", "sub": "a - b", "mul": "a * b", "div": "", "min": "", "max": ""}


def _combined(kind: str, dtype: DType) -> str:
    """The text of the function that puts an update to a value."""
    value = _COMBINED[kind]
    if kind == "div":
        value = "a / b" if dtype is float64 else "tl.div_rn(a, b)"
    elif not value:
        value = f"{kind}imum(a, b)" if dtype.is_floating else f"tl.{kind}imum(a, b)"
    return f"@triton.jit\ndef combined(a, b):\n    return {value}\n\n\n"
