"""Schedules: how a loop nest or a product runs on a machine. A schedule is a value that prints; the machine's code generator chooses it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

# --- CPUs ------------------------------------------------------------------------------------------------------------


class CpuLoops(Enum):
    """The forms of loops for a CPU."""

    POINTWISE = "pointwise"  # nothing is reduced: the axes in order
    ROWS = "rows"  # for each kept element, passes along the reduced axes
    COLUMNS = "columns"  # passes with the last kept axis inside, where reductions are vectors
    TABLE = "table"  # each thread scans all elements, and adds those of its own rows of a table


@dataclass(frozen=True, slots=True)
class CpuSchedule:
    """How a CPU runs a loop nest (`codegen/cpu/schedule.py` chooses). Prints as one line:

        rows: threads share d0, vectors along d1, blocks of 4096, saves v3

    Attributes:
        loops: the form of the loops.
        shared: the axis that threads share; None: there is none. The threads of a TABLE share the table's rows.
        along: the axis that the innermost loops go along; None: there is none.
        unrolled: how many elements that axis has, if these loops are unrolled; else 0.
        tile: elements of that axis that are processed at a time; 0: all. In ROWS, threads share these pieces of what is reduced, and the
            one that finishes last combines their partial results. If POINTWISE, all: they are so few that vectors must fit them.
        block: elements of that axis that are summed in their own type before a wider one takes the total; as many random numbers, and
            steps of running sums, are computed before the loop that uses them. 0: there are none.
        saved: values that one pass over a row saves for later ones, which compute all others again.
    """

    loops: CpuLoops
    shared: int | None
    along: int | None
    unrolled: int = 0
    tile: int = 0
    block: int = 0
    saved: tuple[int, ...] = ()

    @property
    def has_pieces(self) -> bool:
        """Whether threads share tiles of what is reduced."""
        return self.loops is CpuLoops.ROWS and self.tile > 0

    def __str__(self) -> str:
        shared = "one thread" if self.shared is None else f"threads share d{self.shared}"
        shared = "threads share the rows of the table" if self.loops is CpuLoops.TABLE else shared
        parts = [f"{shared} in pieces of {self.tile}" if self.has_pieces else shared]
        if self.along is not None:
            tiles = f" in tiles of {self.tile}" if self.tile and not self.has_pieces else ""
            unrolled = f"d{self.along} unrolled {self.unrolled} times"
            parts.append(unrolled if self.unrolled else f"vectors along d{self.along}{tiles}")
        parts += [f"blocks of {self.block}"] if self.block else []
        parts += [f"saves {', '.join(f'v{i}' for i in self.saved)}"] if self.saved else []
        return f"{self.loops.value}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class CpuProductSchedule:
    """How a CPU makes a product or a convolution (`codegen/cpu/schedule.py` chooses). Prints as one line:

        tiles of 8x32x256, boxes of 1x28x56 pixels and 2 panels, 8 units on 2 threads, windows copied

    The rows of a matrix are the pixels of one image of one row.

    Attributes:
        tile: rows and columns of the sums that stay in registers; steps of the sum for which the second factor is packed at a time.
        box: images, rows and columns of the result, and panels of its channels, of one unit of work. A panel is as wide as a tile.
        units: units of work, which threads share.
        threads: how many.
        scratch: elements of each thread's packing buffers.
        held: of a gradient by the filter, images and rows of them that are summed at a time; else (0, 0).
        is_packed: the first factor is not contiguous along the sum, and is packed.
        copies_windows: windows reach beyond the image: what a box sees is copied, with zeros around it.
    """

    tile: tuple[int, int, int]
    box: tuple[int, int, int, int]
    units: int
    threads: int
    scratch: int
    held: tuple[int, int] = (0, 0)
    is_packed: bool = False
    copies_windows: bool = False

    def __str__(self) -> str:
        *pixels, panels = self.box
        parts = [f"tiles of {_sides(self.tile)}", f"boxes of {_sides(pixels)} pixels and {_count(panels, 'panel')}"]
        parts.append(f"{_count(self.units, 'unit')} on {_count(self.threads, 'thread')}")
        parts += [f"sums of {_count(self.held[0], 'image')} by {_count(self.held[1], 'row')}"] * any(self.held)
        return ", ".join(parts + ["first factor packed"] * self.is_packed + ["windows copied"] * self.copies_windows)


# --- GPUs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuSchedule:
    """How a GPU runs a loop nest (`codegen/gpu/schedule.py` chooses): each block makes a tile of rows x columns. Prints as one line:

        tiles of 4x256, whole rows, 4 warps

    Columns go along the reduced axes, or, where nothing is reduced, along the last axis; rows along the others.

    Attributes:
        rows, columns: elements of a tile. Without another axis there is one row.
        warps: of a block.
        spans: a tile has all columns. Else it goes along those that are reduced, once for each stage of reductions; where nothing is
            reduced, tiles lie beside one another.
        pieces: how many blocks share a row that is reduced. Then only the first stage is done, and another kernel reduces its totals.
        stages: of tiles that are loaded ahead.
    """

    rows: int
    columns: int
    warps: int = 4
    spans: bool = False
    pieces: int = 1
    stages: ClassVar[int] = 3

    def __str__(self) -> str:
        parts = [f"tiles of {self.rows}x{self.columns}"] + ["whole rows"] * self.spans
        return ", ".join(parts + [f"{self.pieces} pieces of rows"] * (self.pieces > 1) + [_count(self.warps, "warp")])


@dataclass(frozen=True, slots=True)
class GpuProductSchedule:
    """How a GPU makes a product: each block makes tiles of m x n, in steps of k along the inner size. Prints as one line:

        tiles of 128x64x32, 4 warps, 3 stages

    Attention is a product of queries (m) and keys (n), whose inner size, a head, is not cut: k is 0.

    Attributes:
        m, n, k: elements along each side of a tile.
        warps: of a block.
        stages: of operand tiles that are loaded ahead.
        splits: how many blocks share a tile of the result, each with a part of the inner size.
        described: operand tiles are fetched by the GPU's copy engine (TMA), from a description of the matrix, instead of by
            addresses that threads compute. From sm_90 on; rows in memory must begin at multiples of 16 bytes.
        programs: how many blocks share all tiles, each making several; 0: a block for each tile. Operands are described.
        straight: the second operand, which is stored transposed, is first transposed in memory.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    splits: int = 1
    described: bool = False
    programs: int = 0
    straight: bool = False

    def __str__(self) -> str:
        sides = _sides(side for side in (self.m, self.n, self.k) if side)
        parts = [f"tiles of {sides}", _count(self.warps, "warp"), _count(self.stages, "stage")]
        parts += [f"k split over {self.splits} blocks"] * (self.splits > 1)
        parts += ["by the copy engine"] * self.described
        parts += [f"{self.programs} persistent blocks"] * (self.programs > 0)
        return ", ".join(parts + ["second operand transposed first"] * self.straight)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _sides(lengths: Iterable[int]) -> str:
    return "x".join(map(str, lengths))
