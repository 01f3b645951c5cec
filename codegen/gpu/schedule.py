"""Chooses schedules for GPUs: the tiles of loop nests, products, convolutions, attention and copies, by their sizes and the target.

Each function gives a few candidates, the likely best one first; the autotuner measures them on the device.

Sizes are arguments of a kernel, so one serves all batches. What a loop nest's schedules depend on is a `Specialisation`: coarse facts of
the sizes (are they multiples of 16, how many powers of two is a row long, do indices fit 32 bits), so a program meets few. With few long
rows, one block per row would leave most of a GPU idle. Then several blocks share a row.

The tiles in the tables keep a block's numbers in registers: found by compiling for all targets and reading how many registers spilled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

from ...graph.core.dtypes import DType, float32, float64
from .. import target as machine
from ..ir.loop_nest import LoopNest
from ..ir.schedule import GpuProductSchedule, GpuSchedule
from ..target import Target

# --- loop nests ------------------------------------------------------------------------------------------------------

MOST_PIECES = 1024  # of a row: one block adds up their totals
FEW_PIECES = 8  # with more, one block for each row is never faster
# Elements of a tile and warps, where nothing is reduced.
_POINTS = ((machine.GPU_BLOCK_ELEMENTS, 4), (512, 4), (2048, 8), (4096, 8))


@dataclass(frozen=True, slots=True)
class Sides:
    """The axes along the two sides of a tile: its rows (y) and its columns (x)."""

    y: tuple[int, ...]
    x: tuple[int, ...]


def sides_of(loops: LoopNest) -> Sides:
    """The axes along each side."""
    axes = tuple(range(len(loops.reduced)))
    return Sides(loops.kept_axes, loops.reduced_axes) if loops.reduced_axes else Sides(axes[:-1], axes[-1:])


@dataclass(frozen=True, slots=True)
class Specialisation:
    """What a kernel's text and promises depend on.

    Attributes:
        divisible: for each axis, whether its size is a multiple of 16: then vectors of elements never cross a row's end.
        row: the power of two that x (see `Sides`) fits into; 0: more than GPU_LONGEST_ROW.
        exact: whether x is that long.
        splits: into how many pieces each row is cut; 1: it is not.
        wide: whether some array has 2**31 elements or more.
        kept: where neighbours in memory are neighbours along y, the power of two that y fits into, at most GPU_ROW_NEIGHBOURS; else 0.
        last: where rows are cut, the power of two that the last axis fits into, as `row`, and whether it is that long.
    """

    divisible: tuple[bool, ...]
    row: int
    exact: bool = False
    splits: int = 1
    wide: bool = False
    kept: int = 0
    last: tuple[int, bool] = (0, False)


def specialise(loops: LoopNest, sizes: Sequence[int]) -> Specialisation:
    """The facts of these sizes of the axes that decide which kernels there are."""
    sides = sides_of(loops)
    ny, nx = (math.prod(sizes[a] for a in side) for side in (sides.y, sides.x))
    row = _power(nx)
    kept = min(machine.GPU_ROW_NEIGHBOURS, _power(ny)) if _along_y(loops) else 0
    splits = 1
    # A computation along rows (a running sum, say) cannot be split into pieces.
    if loops.reduced_axes and all(v.op != "scan" for v in loops.values):
        rows = kept or max(1, machine.GPU_BLOCK_ELEMENTS // row)
        blocks = -(-ny // rows)
        if blocks < machine.GPU_BLOCKS // 2 and nx * rows >= 2 * machine.GPU_SHORTEST_PIECE and nx > 256:
            most = min(MOST_PIECES, nx * rows // machine.GPU_SHORTEST_PIECE, machine.GPU_BLOCKS // max(blocks, 1))
            splits = 1 << most.bit_length() - 1
    last = (0, False) if splits == 1 else (_row(sizes[-1]), _row(sizes[-1]) == sizes[-1])
    # Masks are for whole tiles: they may reach beyond the space by as much as a tile has.
    wide = math.prod((max(n, 1) for n in sizes), start=1) + machine.GPU_INDEX_MARGIN >= 2**31
    return Specialisation(tuple(n % 16 == 0 for n in sizes), _row(nx), _row(nx) == nx, splits, wide, kept, last)


def _power(size: int) -> int:
    """The power of two that so many elements fit into."""
    return 1 << max(size - 1, 0).bit_length()


def _row(size: int) -> int:
    """The same of a row; 0: more than GPU_LONGEST_ROW."""
    return power if (power := _power(size)) <= machine.GPU_LONGEST_ROW else 0


def _along_y(loops: LoopNest) -> bool:
    """Whether elements that are neighbours along y are neighbours in memory."""
    return bool(loops.reduced_axes and loops.kept_axes) and loops.kept_axes[-1] > loops.reduced_axes[-1]


def loop_schedules(loops: LoopNest, facts: Specialisation) -> list[GpuSchedule]:
    """Schedules of the whole work in one kernel."""
    sides = sides_of(loops)
    if not sides.x:
        return [GpuSchedule(1, 1, 1)]
    out = []
    if not loops.reduced_axes:
        for elements, warps in _POINTS:
            across = min(facts.row or elements, elements) if sides.y else elements
            out.append(GpuSchedule(elements // across, across, warps, bool(sides.y) and across == facts.row))
        return list(dict.fromkeys(out))
    along_y = _along_y(loops)
    whole = bool(facts.row) and (facts.row <= 256 or not along_y)
    if whole:
        # The last: smaller parts end sooner where rows are few.
        for elements, share in ((1024, 1), (4096, 1), (1024, 4)):
            rows = 1 if not sides.y else 32 if along_y else max(1, elements // facts.row)
            out.append(GpuSchedule(rows, facts.row, _warps(share * rows * facts.row, loops), spans=True))
    if not whole or facts.row >= 2048:
        for rows, across in _tiles(facts)[: 1 if whole else None]:
            out.append(GpuSchedule(rows, across, _warps(rows * across, loops)))
    return list(dict.fromkeys(out))


def piece_schedule(loops: LoopNest, facts: Specialisation) -> GpuSchedule:
    """The schedule of the part of a loop nest that makes totals of pieces of rows."""
    rows, across = _tiles(facts)[0]
    return GpuSchedule(rows, across, _warps(rows * across, loops), pieces=facts.splits)


def totals_schedule(loops: LoopNest, facts: Specialisation) -> GpuSchedule:
    """The schedule of the loops that reduce those totals."""
    rows = max(1, min(16, 4096 // facts.splits)) if loops.kept_axes else 1
    return GpuSchedule(rows, facts.splits, _warps(rows * facts.splits, loops), spans=True)


def _tiles(facts: Specialisation) -> tuple[tuple[int, int], ...]:
    """Rows and columns of tiles that go along x, the likely best first. A thread has 16 elements of one: 64 bytes in flight."""
    if not facts.kept:
        return (1, 2048), (1, 4096), (1, 1024)
    return (facts.kept, 2048 // facts.kept), (32, 64), (facts.kept, 4096 // facts.kept)


def _warps(elements: int, loops: LoopNest) -> int:
    """Warps for a tile: 8 to 32 elements a thread, fewer where normal numbers are drawn, which takes many registers."""
    drawn = any(v.op == "random" and v.data == "normal" for v in loops.values)
    return min(16, max(1, elements // (256 if drawn else 512)))


# --- copies ----------------------------------------------------------------------------------------------------------

# Of one row: elements in the output's order. Else columns go along the axis that is written along, rows along the other.
FLAT_COPY = GpuSchedule(1, machine.GPU_BLOCK_ELEMENTS)
_BOXES = (GpuSchedule(64, 32, 4), GpuSchedule(64, 64, 8), GpuSchedule(256, 16, 8))
_NARROW = 16  # elements of an axis below which tiles along it are mostly empty


def copy_schedules(sides: Sequence[int]) -> tuple[GpuSchedule, ...]:
    """Schedules of a copy of boxes. `sides`: their sizes along the axes of tiles."""
    return (FLAT_COPY, *_BOXES) if min(sides, default=_NARROW) < _NARROW else (*_BOXES, FLAT_COPY)


# --- products --------------------------------------------------------------------------------------------------------

TURNED = 64  # rows and columns of the piece of an operand that a block transposes
_FEWEST_STAGES = 2  # with one, loads would not run beside products
_FEWEST_STEPS = 8  # steps along the inner size below which a split does not pay for its second kernel
_FEWEST_EXACT = 4  # the same for products without matrix instructions, whose steps take longer
_FEW_ROWS = 256  # of the result: with fewer, transposing the second operand costs too much relative to the product
_MOST_STRAIGHT = 3  # of the likely tiles, how many are tried with the second operand transposed, too
_MOST_DESCRIBED = 2  # of the likely tiles, how many are tried with descriptions, too


def _each(*tiles: tuple[int, int, int, int, int]) -> tuple[GpuProductSchedule, ...]:
    """Schedules by m, n, k, warps and stages."""
    return tuple(starmap(GpuProductSchedule, tiles))


_HALF = _each(
    (128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (32, 64, 64, 4, 5), (16, 64, 128, 4, 4),
)  # fmt: skip
_BYTE = (*(replace(t, k=2 * t.k) for t in _HALF[:7]), GpuProductSchedule(16, 64, 256, 4, 3))
_TF32 = _each(
    (128, 128, 32, 8, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4), (64, 64, 32, 4, 4), (32, 64, 32, 4, 4), (16, 64, 64, 4, 4)
)  # fmt: skip
_EXACT = _each(
    (128, 128, 16, 8, 3), (64, 128, 16, 4, 3), (128, 64, 16, 8, 3), (64, 64, 16, 4, 3), (32, 64, 32, 4, 3), (16, 64, 32, 4, 3)
)  # fmt: skip
_DOUBLE = _each((128, 64, 16, 8, 3), (64, 64, 16, 4, 3), (32, 32, 32, 4, 3), (16, 32, 32, 4, 3))


def product_schedules(
    dtype: DType,
    target: Target,
    tf32: bool,
    known: Mapping[str, int],
    describable: bool = False,
    batched: bool = False,
    turned: bool = False,
    staged: int = 0,
    stored: tuple[int, int] | None = None,
) -> list[GpuProductSchedule]:
    """Schedules of a product with operands of a type. Each fits the target's shared memory.

    Args:
        known: sizes that are always the same; others are taken to be large.
        describable: whether operands can be described, see `GpuProductSchedule`.
        batched: whether there is a stack of them.
        turned: whether the second one lies transposed.
        staged: bytes of shared memory for each element of the result that a block needs beside the operands' tiles when it makes
            several tiles: the epilogue of one runs while the operands of the next are loaded.
        stored: bytes of an element of each operand in memory, where prologues make another type of it; None: those of `dtype`.
    """
    exact = dtype.size == 8 or (dtype.size == 4 and not tf32)
    choice = {1: _BYTE, 2: _HALF, 8: _DOUBLE}.get(dtype.size, _TF32 if tf32 else _EXACT)
    m, n, k = (known.get(name, 1 << 14) for name in ("m", "n", "k"))
    room = target.block_shared_bytes
    loaded = stored or (dtype.size, dtype.size)

    def stages(t: GpuProductSchedule, most: int, room: int) -> int:
        """How many stages fit: the last one has the operands as they are multiplied, or in registers; the others as they are stored."""
        one = (t.m * loaded[0] + t.n * loaded[1]) * t.k
        last = (t.m + t.n) * t.k * dtype.size if target.arch >= 90 else 0
        return min(most, 1 + max(0, room - last) // one)

    found = []
    for t in choice:
        too_large = (t.m > 16 and t.m >= 2 * m) or (t.n > 64 and t.n >= 2 * n)
        fitting = replace(t, stages=stages(t, t.stages, room))
        if fitting.stages >= _FEWEST_STAGES and not too_large and fitting not in found:
            found.append(fitting)
    found.sort(key=lambda t: _waste(t, m, n))
    out = []
    for t in found:
        count = -(-m // t.m) * -(-n // t.n) * known.get("batch", 1)
        fewest = t.k * (_FEWEST_EXACT if exact else _FEWEST_STEPS)
        splits = min(machine.H100_MULTIPROCESSORS // count, k // fewest, 16) if count else 1
        if splits > 1:
            out.append(replace(t, splits=1 << (splits.bit_length() - 1)))
        elif describable and t.m >= 64 and len({(x.m, x.n) for x in out if x.described}) < _MOST_DESCRIBED:
            programs = target.multiprocessors  # of the persistent form
            fewer = stages(t, t.stages, room - machine.GPU_BARRIER_BYTES - t.m * t.n * staged)
            if not batched and 0 < programs < count and fewer >= _FEWEST_STAGES:
                out.append(replace(t, described=True, programs=programs, stages=fewer))
            out.append(replace(t, described=True, stages=stages(t, t.stages + 1, room - machine.GPU_BARRIER_BYTES)))
        out.append(t)
    if exact and turned and dtype.size == 4:
        straight = [replace(t, straight=True) for t in out[:_MOST_STRAIGHT]]
        out = straight + out if m >= _FEW_ROWS else out[:1] + straight + out[1:]
    return out


def can_describe(target: Target, dtype: DType, transposed: tuple[bool, bool], known: Mapping[str, int]) -> bool:
    """Whether both operands can be described."""
    beside = "m" if transposed[0] else "k", "k" if transposed[1] else "n"
    return target.has_copy_engine and dtype.size <= 2 and all(known.get(name, 1) % 16 == 0 for name in beside)


def _waste(t: GpuProductSchedule, m: int, n: int) -> float:
    """The work of a product in whole tiles and whole waves of multiprocessors; its unit is arbitrary."""
    high, wide = -(-m // t.m), -(-n // t.n)
    waves = -(-high * wide // machine.H100_MULTIPROCESSORS)
    per_load = t.m * t.n / (t.m + t.n)  # products for each number that is loaded
    return waves * machine.H100_MULTIPROCESSORS * t.m * t.n * (1 + 64 / per_load)


# --- convolutions ----------------------------------------------------------------------------------------------------

# Steps of 64: where a pixel lies is computed for each step, which takes as long as 32 products.
_CONVOLUTIONS = _each(
    (128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (128, 64, 64, 4, 3), (64, 64, 64, 4, 3), (128, 32, 32, 4, 3), (32, 64, 64, 4, 3)
)  # fmt: skip
_CONVOLUTIONS_OF = {
    float32: _each((128, 64, 32, 8, 3), (64, 64, 32, 4, 3), (128, 32, 16, 4, 3), (32, 32, 32, 4, 3)),
    float64: _each((64, 32, 16, 4, 2), (32, 32, 16, 4, 2)),
}


def convolution_schedules(dtype: DType, known: Mapping[str, int], across: str) -> list[GpuProductSchedule]:
    """Schedules of a convolution whose result has columns `across`: none that is mostly outside the result."""
    wide = known.get(across, 1 << 14)
    return [t for t in _CONVOLUTIONS_OF.get(dtype, _CONVOLUTIONS) if t.n <= 32 or t.n < 2 * wide]


def filter_schedules(dtype: DType, taps: int, known: Mapping[str, int]) -> list[GpuProductSchedule]:
    """Schedules of the gradient of a filter with so many taps: with as many blocks for a tile as fill a GPU."""
    high, wide = taps * known.get("channels", 64), known.get("filters", 64)
    positions = math.prod(known.get(n, 32) for n in ("images", "rows", "columns"))
    out = []
    for t in convolution_schedules(dtype, known, "filters"):
        count = -(-high // t.m) * -(-wide // t.n)
        splits = max(1, min(2 * machine.H100_MULTIPROCESSORS // count, positions // (4 * t.k), 64))
        out.append(replace(t, splits=1 << (splits.bit_length() - 1)))
    return list(dict.fromkeys(out))


# --- attention -------------------------------------------------------------------------------------------------------

# By what is computed (`plain` and `masked`: of 16 bits) and the largest size of a head (padded) that they are for. A block keeps m
# positions (queries, or keys where it makes their gradients), and goes along n others at once. A mask's tile takes as many registers as
# the scores.
_FORWARD = {
    ("plain", 64): _each((128, 128, 0, 8, 3), (128, 64, 0, 8, 3), (64, 64, 0, 4, 2)),
    ("plain", 128): _each((128, 64, 0, 8, 3), (128, 128, 0, 8, 2), (64, 64, 0, 4, 2)),
    ("plain", 256): _each((64, 32, 0, 8, 1), (32, 32, 0, 8, 1)),
    ("masked", 64): _each((128, 64, 0, 8, 2), (64, 64, 0, 4, 2)),
    ("masked", 128): _each((128, 32, 0, 8, 2), (64, 32, 0, 4, 2)),
    ("masked", 256): _each((32, 32, 0, 8, 1)),
    ("float32", 64): _each((64, 32, 0, 8, 2), (64, 64, 0, 4, 2), (64, 64, 0, 8, 2)),
    ("float32", 128): _each((32, 32, 0, 8, 1), (16, 32, 0, 8, 2)),
    ("float32", 256): _each((16, 16, 0, 8, 1)),
}
_BACKWARD = {
    ("plain", 64): _each((128, 64, 0, 8, 2), (64, 64, 0, 4, 2), (128, 32, 0, 8, 2), (64, 32, 0, 4, 2)),
    ("plain", 128): _each((128, 32, 0, 8, 2), (64, 32, 0, 4, 2), (128, 64, 0, 8, 1)),
    ("plain", 256): _each((32, 32, 0, 8, 1), (32, 16, 0, 8, 1)),
    ("masked", 64): _each((64, 64, 0, 8, 2), (64, 64, 0, 4, 2), (64, 32, 0, 4, 2)),
    ("masked", 128): _each((64, 32, 0, 8, 2), (32, 32, 0, 4, 2)),
    ("masked", 256): _each((32, 32, 0, 8, 1), (32, 16, 0, 8, 1)),
    ("float32", 64): _each((64, 32, 0, 8, 1), (64, 32, 0, 4, 1), (32, 32, 0, 4, 1)),
    ("float32", 128): _each((32, 16, 0, 8, 1), (16, 16, 0, 4, 1)),
    ("float32", 256): _each((16, 16, 0, 8, 1)),
}


def attention_schedules(dtype: DType, head: int, *, masked: bool, backward: bool) -> tuple[GpuProductSchedule, ...]:
    """Schedules of attention, or of its gradients. `head`: the size of a head as a power of two, 256 at most."""
    kind = "float32" if dtype is float32 else "masked" if masked else "plain"
    return (_BACKWARD if backward else _FORWARD)[kind, max(64, head)]
