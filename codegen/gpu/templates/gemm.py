"""Matrix products: one matrix or a stack of them, either operand transposed, with elementwise work before and after.

A program makes one tile of the result: it goes along the inner size in steps of BK and adds up products of tiles in registers.
Three things make that fast. Programs that run at the same time should use the same operand tiles, so that these stay in the L2
cache: tiles are numbered in groups of GROUP rows. The next tiles are loaded while the present ones are multiplied: Triton does
that, `num_stages` deep. And where the result has too few tiles to fill a GPU but the inner size is long, SPLITS programs share
one tile ("split-k"): each writes its sum to scratch memory, and a second kernel adds them up, always in the same order, so that a
result does not depend on which program was first.

On GPUs with a copy engine for tiles (TMA, from sm_90 on) two more forms compete. *Described* operands are fetched by that engine. In
the *persistent* form there are only as many programs as processors, and each makes one tile after the other: the first loads of
a tile run beside the stores of the one before, which the engine writes, too.

Exact products of float32 have no matrix instructions: a thread multiplies numbers that it reads from shared memory, four columns of
the second operand beside four rows of the first. The columns of neighbouring threads must lie side by side there, or all threads of a
warp read the same banks, and wait for each other. In a second operand that lies transposed they are far apart. The *straight* form
turns that operand in memory first: for many rows that costs little beside the product.

Operands and result are contiguous. Launch names: `in0` (a), `in1` (b), then what prologues and epilogue read: of `prologue_a`, of
`prologue_b`, of `epilogue`; `out0`...; sizes as `product_sizes` gives them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....graph.core.dtypes import DType, float32, float64
from ...ir.loop_nest import TileLoops, plain
from ...ir.schedule import GpuProductSchedule, GpuSchedule
from ...target import GPU_FLOAT8_SUMS, Target
from ..emit.expr import stored_as
from ..ir import Count, Grid, Launch, Parameter, Routine, Scratch, triton_type
from ..schedule import TURNED, can_describe, product_schedules
from .text import Constants, EpilogueWriter, TilePosition, address, dot, inside, lines, make_launch, parts_added

_LONG = 1 << 23  # a row this long, times a position in a tile, may not fit 32 bits

_COUNTED = ("tiles_m = tl.cdiv(m, BM)", "tiles_n = tl.cdiv(n, BN)")


def product_sizes(
    a: Sequence[int], b: Sequence[int], transpose_a: bool = False, transpose_b: bool = False
) -> dict[str, int]:
    """The sizes that a launch needs, from the operands' shapes.

    Args:
        a, b: rank 2, or 3 with the stack's length first; a stack of one is used for all matrices of the other.

    Raises:
        ValueError: the shapes do not fit.

    >>> product_sizes((5, 2, 3), (1, 3, 4))
    {'m': 2, 'n': 4, 'k': 3, 'batch': 5, 'a_step': 6, 'b_step': 0}
    """
    m, k = reversed(a[-2:]) if transpose_a else a[-2:]
    inner, n = reversed(b[-2:]) if transpose_b else b[-2:]
    counts = [math.prod(s[:-2]) for s in (a, b)]
    if k != inner or len(a) > 3 or len(b) > 3 or (counts[0] != counts[1] and 1 not in counts):
        raise ValueError(f"matrix sizes do not match: {tuple(a)} times {tuple(b)}")
    batch = counts[0] if counts[1] == 1 else counts[1]
    steps = (0 if counts[0] == 1 else m * k, 0 if counts[1] == 1 else k * n)
    return {"m": m, "n": n, "k": k, "batch": batch, "a_step": steps[0], "b_step": steps[1]}


def matmul(
    a: DType,
    b: DType,
    *,
    target: Target,
    transpose_a: bool = False,
    transpose_b: bool = False,
    batched: bool = False,
    epilogue: TileLoops | None = None,
    prologue_a: TileLoops | None = None,
    prologue_b: TileLoops | None = None,
    tf32: bool = False,
    known: Mapping[str, int] | None = None,
    at: Sequence[GpuProductSchedule] | None = None,
) -> list[Routine]:
    """Candidates for a @ b, the likely best one first.

    Args:
        a, b: element types: float32, float64, float16, bfloat16, or float8 (e4m3fn, e5m2).
        transpose_a, transpose_b: the operand lies transposed in memory: a is [k, m], b is [n, k].
        batched: stacks: a is [batch, m, k], b is [batch, k, n], or one matrix for all.
        epilogue: from the product, float32 over ([batch,] m, n), to the outputs. None: rounded to a's type; left as it is for float8.
            Products of float64 have none.
        prologue_a, prologue_b: from an operand over ([batch,] m, k), ([batch,] k, n), to the one that is multiplied.
        tf32: products of float32 may be made from 10 bits of each factor.
        known: sizes that never change. Multiples of 16 give vector loads.
        at: the schedules to use instead of `product_schedules`.

    Raises:
        ValueError: no kernel can do this.
    """
    known = known or {}
    left, right = (e.outputs[0] if e else d for e, d in ((prologue_a, a), (prologue_b, b)))
    _check(left, right, target)
    rank = 3 if batched else 2
    if epilogue is None:
        epilogue = plain(a if a.size > 1 else float32, rank, computed=added(a))
    writer = _Product(
        (a, b), (left, right), (transpose_a, transpose_b), batched, epilogue, (prologue_a, prologue_b), tf32, known
    )
    describable = a.size == b.size and can_describe(target, a, (transpose_a, transpose_b), known)
    staged, stored = writer.staged_bytes(target), (a.size, b.size)
    likely = at or product_schedules(left, target, tf32, known, describable, batched, transpose_b, staged, stored)
    return [writer.routine(t) for t in likely]


def added(dtype: DType) -> DType:
    """The type that products of elements are added up in."""
    return float64 if dtype is float64 else float32


def _check(left: DType, right: DType, target: Target) -> None:
    is_one_type = left is right and left.name in ("float32", "float64", "float16", "bfloat16")
    if not is_one_type and {left.name, right.name} - {"float8_e4m3fn", "float8_e5m2"}:
        raise ValueError(f"no kernel multiplies {left.name} with {right.name}")
    if left.size == 1 and not target.has_float8:
        raise ValueError(f"{target} has no products of {left.name}")


@dataclass(frozen=True, slots=True)
class _Product:
    """Writes the kernels of one product."""

    stored: tuple[DType, DType]
    multiplied: tuple[DType, DType]
    transposed: tuple[bool, bool]
    batched: bool
    epilogue: TileLoops
    prologues: tuple[TileLoops | None, TileLoops | None]
    tf32: bool
    known: Mapping[str, int]
    operands: tuple[str, str] = ("in0", "in1")  # where they are

    def routine(self, tile: GpuProductSchedule) -> Routine:
        if tile.straight:
            rest = replace(self, transposed=(self.transposed[0], False), operands=("in0", "scratch1"))
            made = rest.routine(replace(tile, straight=False))
            count = (*([Count(("batch",))] if self.batched else []), Count(("k",)), Count(("n",)))
            turned = Scratch("scratch1", triton_type(self.stored[1].name), count)
            return Routine((self.turn(), *made.launches), (*made.scratch, turned))
        blocks = (Count(("m",), tile.m), Count(("n",), tile.n), Count(("batch",)) if self.batched else Count(()))
        grid = Grid((Count((), times=tile.programs),)) if tile.programs else Grid(blocks)
        if tile.splits == 1:
            return Routine((self.product(tile, grid),))
        split = replace(grid, y=(Count((), times=tile.splits),))
        names = ("batch", "m", "n") if self.batched else ("m", "n")
        first_input = 2 + sum(len(e.extra) for e in self.prologues if e)
        part = self.product(tile, split)
        return parts_added(part, tile.splits, self.epilogue, first_input, names, self.known)

    # --- pieces ------------------------------------------------------------------------------------------------------

    def turn(self) -> Launch:
        """The second operand from [n, k] to [k, n]; one that a whole stack shares is written several times, the same each time."""
        matrix = "matrix * b_step + " if self.batched else ""
        text = lines(
            "across, down = tl.cdiv(n, BLOCK), tl.cdiv(k, BLOCK)",
            "number = tl.program_id(0)",
            ["matrix = (number // (across * down)).to(tl.int64)"] if self.batched else [],
            "columns = number % across * BLOCK + tl.arange(0, BLOCK)",
            "inner = number // across % down * BLOCK + tl.arange(0, BLOCK)",
            f"tile = tl.load(in1 + {matrix}columns[:, None].to(tl.int64) * k + inner[None, :],",
            "               mask=(columns < n)[:, None] & (inner < k)[None, :])",
            f"tl.store(scratch1 + {matrix}inner[:, None].to(tl.int64) * n + columns[None, :], tl.trans(tile),",
            "         mask=(inner < k)[:, None] & (columns < n)[None, :])",
        )
        kind = address(self.stored[1])
        arrays = Parameter("in1", kind, True), Parameter("scratch1", kind, True)
        parameters = (*arrays, *self.sizes("n", "k", "b_step"))
        blocks = (Count(("n",), TURNED), Count(("k",), TURNED), Count(("batch",)) if self.batched else Count(()))
        schedule = GpuSchedule(TURNED, TURNED)
        return make_launch("matmul_turned", text, parameters, (("BLOCK", TURNED),), Grid(blocks), schedule)

    def sizes(self, *names: str) -> tuple[Parameter, ...]:
        """Parameters for sizes; those of a stack where there is one."""
        steps = [n for n in names if self.batched or n not in ("batch", "a_step", "b_step")]
        return tuple(Parameter(n, "i64" if n.endswith("step") else "i32", self.divisible(n)) for n in steps)

    def divisible(self, name: str) -> bool:
        """Whether a size is known to be a multiple of 16."""
        inner = {"a_step": ("m", "k"), "b_step": ("k", "n")}.get(name, (name,))
        return any(self.known.get(n, 1) % 16 == 0 for n in inner)

    def place(self) -> TilePosition:
        masks = ("(rows < m)[:, None]", "(columns < n)[None, :]")
        return self.stacked(("rows[:, None]", "columns[None, :]"), ("m", "n"), masks)

    def stacked(self, index: tuple[str, str], sizes: tuple[str, str], masks: tuple[str, str]) -> TilePosition:
        """A place in a matrix, or in one matrix of a stack."""
        if not self.batched:
            return TilePosition(index, sizes, masks)
        return TilePosition(("matrix", *index), ("batch", *sizes), ("", *masks))

    def product(self, tile: GpuProductSchedule, grid: Grid) -> Launch:
        """The kernel that multiplies, and ends with the epilogue unless sums of several programs are still to be added."""
        even = self.known.get("k", 1) % (tile.k * tile.splits) == 0
        loads, prologues = [], []
        first_input = 2
        for which, name in enumerate("ab"):
            load, prologue = self.operand(which, name, first_input, even, tile.described)
            loads += load
            if prologue:
                prologues.append(prologue)
                first_input += len(prologue.parameters)
        epilogue = EpilogueWriter(self.epilogue, first_input)
        if tile.splits > 1:
            offset = "(rows[:, None] * n + columns[None, :])"
            start = f"{'(' if self.batched else ''}tl.program_id(1).to(tl.int64){' * batch + matrix)' if self.batched else ''} * m * n"
            mask = "(rows < m)[:, None] & (columns < n)[None, :]"
            ending = [f"tl.store(scratch0 + {start} + {offset}, total, mask={mask})"]
            outputs: tuple[Parameter, ...] = (Parameter("scratch0", address(added(self.multiplied[0])), True),)
        else:
            ending = self.described_store(epilogue) if tile.programs else epilogue.store("total", self.place())
            outputs = (*epilogue.parameters, *epilogue.results())
        parameters = (
            *(Parameter(n, address(d), True) for n, d in zip(self.operands, self.stored, strict=True)),
            *(p for w in prologues for p in w.parameters),
            *outputs,
            *self.sizes("m", "n", "k", "a_step", "b_step", *(["batch"] if tile.splits > 1 else [])),
        )
        constants: Constants = (("BM", tile.m), ("BN", tile.n), ("BK", tile.k), ("GROUP", 8))
        constants += (("SPLITS", tile.splits),) if tile.splits > 1 else ()
        name = "matmul_part" if tile.splits > 1 else "matmul"
        # Hopper adds products of float8 with fewer bits than float32 has: not for longer than this
        short = f", max_num_imprecise_acc={min(tile.k, GPU_FLOAT8_SUMS)}" if self.multiplied[0].size == 1 else ""
        start_tile = [
            [*_COUNTED, "number = tl.program_id(0)", *self.numbering()],
            self.descriptions() if tile.described else self.starts(),
        ]
        make_tile = (
            f"total = tl.zeros([BM, BN], {stored_as(added(self.multiplied[0]))})",
            self.before_split(tile),
            inside(
                f"for start in range({'0, k' if tile.splits == 1 else 'begin, tl.minimum(begin + share, k)'}, BK):",
                loads,
                f"total = {dot('a', 'b', 'total', self.multiplied[0], self.tf32, short)}",
                [] if tile.described else self.next_step(),
            ),
            ["rows = tile_m.to(tl.int64) * BM + tl.arange(0, BM)", "columns = tile_n * BN + tl.arange(0, BN)"]
            if any("rows" in text or "columns" in text for text in ending)
            else [],
            ending,
        )
        if tile.programs:
            constants += (("PROGRAMS", tile.programs),)
            loop = "for turn in tl.range(0, tl.cdiv(tiles_m * tiles_n - tl.program_id(0), PROGRAMS), flatten=True):"
            before = [*_COUNTED, *self.descriptions(), *self.described_output(epilogue)]
            number = "number = tl.program_id(0) + turn * PROGRAMS"
            body = lines(before, inside(loop, number, self.numbering(), *make_tile))
        else:
            body = lines(*start_tile, *make_tile)
        return make_launch(name, body, parameters, constants, grid, tile)

    def numbering(self) -> list[str]:
        matrix = ["matrix = (number // (tiles_m * tiles_n)).to(tl.int64)", "number %= tiles_m * tiles_n"]
        return [
            *(matrix if self.batched else []),
            "# tiles in groups of GROUP rows: programs that run together share operands in L2",
            "first = number // (GROUP * tiles_n) * GROUP",
            "high = tl.minimum(tiles_m - first, GROUP)",
            "tile_m = first + number % (GROUP * tiles_n) % high",
            "tile_n = number % (GROUP * tiles_n) // high",
        ]

    def inner_strides(self) -> tuple[str, str]:
        """The stride along k of each operand; empty: 1."""
        return ("m" if self.transposed[0] else ""), ("" if self.transposed[1] else "n")

    def starts(self) -> list[str]:
        """The lines that compute the addresses of the first tiles."""
        out = ["inner = tl.arange(0, BK)", "below = tl.arange(0, BM)", "beside = tl.arange(0, BN)"]
        a_stack, b_stack = ("matrix * a_step + ", "matrix * b_step + ") if self.batched else ("", "")
        _, b = self.operands
        if self.transposed[0]:
            out.append(f"a_tile = in0 + {a_stack}tile_m * BM + below[:, None] + {self.far('inner[None, :]', 'm')} * m")
        else:
            start = f"{a_stack}tile_m.to(tl.int64) * BM * k"
            out.append(f"a_tile = in0 + {start} + {self.far('below[:, None]', 'k')} * k + inner[None, :]")
        if self.transposed[1]:
            start = f"{b_stack}tile_n.to(tl.int64) * BN * k"
            out.append(f"b_tile = {b} + {start} + inner[:, None] + {self.far('beside[None, :]', 'k')} * k")
        else:
            rows = self.far("inner[:, None]", "n")
            out.append(f"b_tile = {b} + {b_stack}tile_n * BN + {rows} * n + beside[None, :]")
        return out

    def far(self, positions: str, size: str) -> str:
        """Positions in a tile that are multiplied by a size: in 32 bits where that is known to suffice."""
        return positions if self.known.get(size, _LONG) < _LONG else f"{positions}.to(tl.int64)"

    def next_step(self) -> list[str]:
        strides = [f"{s}.to(tl.int64) * BK" if s else "BK" for s in self.inner_strides()]
        return [f"{name}_tile += {stride}" for name, stride in zip("ab", strides, strict=True)]

    def descriptions(self) -> list[str]:
        """The lines that describe the operands to the copy engine, which fetches zeros beyond their ends."""
        out = ["inner = tl.arange(0, BK)", "below = tl.arange(0, BM)", "beside = tl.arange(0, BN)"]
        shapes = (("k, m", "BK, BM") if self.transposed[0] else ("m, k", "BM, BK"),
                  ("n, k", "BN, BK") if self.transposed[1] else ("k, n", "BK, BN"))  # fmt: skip
        for i, (name, (shape, block)) in enumerate(zip("ab", shapes, strict=True)):
            start = f"{self.operands[i]} + matrix * {name}_step" if self.batched else self.operands[i]
            strides = f"[{shape.split(', ')[1]}, 1]"
            out.append(f"{name}_matrix = tl.make_tensor_descriptor({start}, [{shape}], {strides}, [{block}])")
        return out

    def staged_bytes(self, target: Target) -> int:
        """Shared memory for each element of the result that a program of several tiles needs beside the operands' tiles.

        The copy engine takes the result from there. And registers hold a product in another order than loads and stores of whole
        rows need, so it passes through shared memory where such are beside it. Found by compiling for both targets.
        """
        epilogue = EpilogueWriter(self.epilogue, 0)
        if not self.described_output(epilogue):
            return 4
        read = [len(epilogue.work.original(v.axes)) for v in epilogue.work.extra]
        if target.arch >= 100 and read and max(read) < 2:
            return 6
        return 4 if any(n == 2 for n in read) else 2

    def described_output(self, epilogue: EpilogueWriter) -> list[str]:
        """The output for the copy engine; nothing where it is not one matrix whose rows begin at multiples of 16 bytes."""
        stores = epilogue.work.loops.stores
        whole = len(stores) == 1 and epilogue.work.original(stores[0].axes) == (0, 1)
        if not whole or epilogue.work.outputs[0].size != 2 or self.known.get("n", 1) % 16:
            return []
        return ["out0_matrix = tl.make_tensor_descriptor(out0, [m, n], [n, 1], [BM, BN])"]

    def described_store(self, epilogue: EpilogueWriter) -> list[str]:
        """The lines that compute the output and write it, by the copy engine where that can."""
        if not self.described_output(epilogue):
            return epilogue.store("total", self.place())
        computed, (value,) = epilogue.compute("total", self.place())
        name = stored_as(epilogue.work.outputs[0])
        return [*computed, f"out0_matrix.store([tile_m * BM, tile_n * BN], {value}.to({name}))"]

    def before_split(self, tile: GpuProductSchedule) -> list[str]:
        """The lines that find this program's share of the inner size."""
        if tile.splits == 1:
            return []
        share = ["share = tl.cdiv(tl.cdiv(k, BK), SPLITS) * BK", "begin = tl.program_id(1) * share"]
        if tile.described:
            return share
        a, b = (f" * {s}" if s else "" for s in self.inner_strides())
        return [*share, f"a_tile += begin.to(tl.int64){a}", f"b_tile += begin.to(tl.int64){b}"]

    def operand(
        self, which: int, name: str, first_input: int, even: bool, described: bool
    ) -> tuple[list[str], EpilogueWriter | None]:
        """The lines that load a tile, and do the work of the prologue on it."""
        outer = ("(below < m - tile_m * BM)[:, None]", "(beside < n - tile_n * BN)[None, :]")[which]
        along = ("(inner < k - start)[None, :]", "(inner < k - start)[:, None]")[which]
        mask = outer if even else f"{outer} & {along}"
        if described:
            outer_start = ("tile_m * BM", "tile_n * BN")[which]
            down = (which == 0) != self.transposed[which]  # whether the inner size lies along memory
            at = f"{outer_start}, start" if down else f"start, {outer_start}"
            flip = ".T" if self.transposed[which] else ""
            out = [f"{name} = {name}_matrix.load([{at}]){flip}"]
        else:
            out = [f"{name} = tl.load({name}_tile, mask={mask}, other=0.0)"]
        edge = self.prologues[which]
        if edge is None:
            return out, None
        writer = EpilogueWriter(edge, first_input)
        if self.stored[which].size < 4:
            out.append(f"{name} = {name}.to(tl.float32)")
        index = (("(tile_m.to(tl.int64) * BM + below)[:, None]", "(start + inner)[None, :]"),
                 ("(start + inner).to(tl.int64)[:, None]", "(tile_n * BN + beside)[None, :]"))[which]  # fmt: skip
        masks = (outer, "" if even else along)
        place = self.stacked(index, (("m", "k"), ("k", "n"))[which], masks if which == 0 else (masks[1], masks[0]))
        computed, (value,) = writer.compute(name, place, prefix=name)
        out += computed
        if not even and any(v.op not in ("load", "cast") for v in edge.loops.values):
            value = f"tl.where({along}, {value}, 0.0)"
        out.append(f"{name} = {value}.to({stored_as(self.multiplied[which])})")
        return out, writer
