"""From loops and sizes to launches: which forms of a kernel to try, with which tiles, and in how many steps.

Sizes are arguments of a kernel, so one serves all batches. What a kernel does depend on is a `Specialisation`: coarse facts of
the sizes (are they multiples of 16, how many powers of two is a row long, do indices fit 32 bits), so a program meets few. For
each there are a few candidates, the likely best one first; the autotuner measures them on the device.

With few long rows, one block per row would leave most of a GPU idle. Then the work is split into steps, each a separate kernel,
with the results of reductions in scratch memory:

    for each stage of reductions    totals of SPLITS pieces of each row, and outputs that are known there; then the reduction of the totals
    at the end                      the other outputs that have all axes, element by element

Only additions to rows of a table are atomic; all other results are bit-identical in every run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ....graph.core.dtypes import DType
from ...fusion.range_analysis import SOFTMAX, pairs_of
from ...fusion.table_loops import filled, kept_in
from ...ir.loop_nest import ADD, READS, LoopNest, LoopNestBuilder, Store
from ...target import GPU_BLOCKS, GPU_INDEX_MARGIN
from ..ir import Count, Grid, Launch, Parameter, Routine, Scratch, TritonKernel, triton_type
from .expr import Names, numbers_of
from .nest import triton_source
from .tile import LOOPED, PARTIAL, WHOLE, Tile, sides_of

LONGEST_WHOLE = 16384  # elements of a row in one tile: 32 for each of 512 threads
MOST_PIECES = 1024  # of a row: one block adds up their totals
WIDEST = 128  # neighbours along y that a tile has when it goes across them: 512 bytes of float32
FEW_PIECES = 8  # with more, one block for each row has no chance
SHORTEST_PIECE = 4096  # elements of a tile's piece of rows; below it a second kernel costs more than it gains
_POINTS = ((1024, 4), (512, 4), (2048, 8), (4096, 8))  # elements of a tile and warps, when nothing is reduced


@dataclass(frozen=True, slots=True)
class Specialisation:
    """What a kernel's text and promises depend on.

    Attributes:
        divisible: for each axis, whether its size is a multiple of 16: then vectors of elements never cross a row's end.
        row: the power of two that x (see `Sides`) fits into; 0: more than LONGEST_WHOLE.
        exact: whether x is that long.
        kept: where neighbours in memory are neighbours along y, the power of two that y fits into, at most WIDEST; else 0.
        splits: into how many pieces each row is cut; 1: it is not.
        last: where rows are cut, the power of two that the last axis fits into, as `row`, and whether it is that long.
        wide: whether some array has 2**31 elements or more.
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
    row = 1 << max(nx - 1, 0).bit_length()
    kept = min(WIDEST, 1 << max(ny - 1, 0).bit_length()) if _along_y(loops) else 0
    splits = 1
    # A computation along rows (a running sum, say) cannot be split into pieces.
    if loops.reduced_axes and all(v.op != "scan" for v in loops.values):
        rows = kept or max(1, 1024 // row)
        blocks = -(-ny // rows)
        if blocks < GPU_BLOCKS // 2 and nx * rows >= 2 * SHORTEST_PIECE and nx > 256:
            most = min(MOST_PIECES, nx * rows // SHORTEST_PIECE, GPU_BLOCKS // max(blocks, 1))
            splits = 1 << most.bit_length() - 1
    last = (0, False) if splits == 1 else (_power(sizes[-1]), _power(sizes[-1]) == sizes[-1])
    # Masks are for whole tiles: they may reach beyond the space by as much as a tile has.
    wide = math.prod((max(n, 1) for n in sizes), start=1) + GPU_INDEX_MARGIN >= 2**31
    return Specialisation(tuple(n % 16 == 0 for n in sizes), _power(nx), row == nx, splits, wide, kept, last)


def _power(size: int) -> int:
    """The power of two that so many elements fit into; 0: more than LONGEST_WHOLE."""
    power = 1 << max(size - 1, 0).bit_length()
    return power if power <= LONGEST_WHOLE else 0


def size_names(loops: LoopNest) -> tuple[str, ...]:
    """What a launch calls the sizes of the axes."""
    return tuple(f"n{a}" for a in range(len(loops.reduced)))


@lru_cache(maxsize=4096)
def routines(loops: LoopNest, facts: Specialisation) -> tuple[Routine, ...]:
    """Ways to do the work of a fused kernel, the likely best one first. All give the same numbers, but for the order of sums.

    A launch knows `in0`..., `out0`... and `n0`..., see `ir`.
    """
    names = Names(
        tuple(f"in{i}" for i in range(len(loops.loads))),
        tuple(f"out{i}" for i in range(len(loops.stores))),
        size_names(loops),
        tuple(f"n{a}" for a in loops.reduced_axes) if any(v.op == "count" for v in loops.values) else (),
    )
    return _ways(loops, names, facts)


def candidates(loops: LoopNest, names: Names, sizes: Sequence[int]) -> tuple[Routine, ...]:
    """As `routines`, with names of one's own, for axes of these sizes."""
    return _ways(loops, names, specialise(loops, sizes))


def _ways(loops: LoopNest, names: Names, facts: Specialisation) -> tuple[Routine, ...]:
    whole = tuple(Routine((k,)) for k in _kernels(loops, names, facts))
    return whole if facts.splits == 1 else (_in_steps(loops, names, facts), *whole[: facts.splits <= FEW_PIECES])


def fused(loops: LoopNest, sizes: Sequence[int], elements: int = 0) -> tuple[Routine, ...]:
    """Ways to run a fused kernel for axes of these sizes, the likely best one first.

    A launch gives what it gives to `routines`, and, where the loops read rows of input k, or add to rows of output k, `rows_in<k>` or
    `rows_out<k>`. What is added to begins as zero: its `elements` are given, too.
    """
    ways = routines(loops, specialise(loops, sizes))
    if all(s.how != ADD for s in loops.stores):
        return ways
    (table,) = loops.stores  # it is the only output
    cleared = launches(filled(loops.values[table.value].dtype), Names((), ("out0",), ("elements",)), [elements])[0]
    return tuple(Routine((cleared, *way.launches), way.scratch) for way in ways)


def launches(loops: LoopNest, names: Names, sizes: Sequence[int]) -> list[Launch]:
    """Ways to do the work of some loops in one kernel, for axes of about these sizes, with names of one's own."""
    return _kernels(loops, names, specialise(loops, sizes))


def one_after_another(parts: Sequence[Sequence[Launch]], scratch: Sequence[Scratch] = ()) -> tuple[Routine, ...]:
    """Routines that do several things in order, each of which is a list of ways, the likely best one first."""
    count = max(map(len, parts))
    ways = [tuple(part[min(i, len(part) - 1)] for part in parts) for i in range(count)]
    return tuple(Routine(way, tuple(scratch)) for way in dict.fromkeys(ways))


# --- one kernel ------------------------------------------------------------------------------------------------------


def _along_y(loops: LoopNest) -> bool:
    """Whether elements that are neighbours along y are neighbours in memory."""
    return bool(loops.reduced_axes and loops.kept_axes) and loops.kept_axes[-1] > loops.reduced_axes[-1]


def _kernels(loops: LoopNest, names: Names, facts: Specialisation) -> list[Launch]:
    """Candidates for the whole work in one kernel."""
    sides = sides_of(loops)
    y, x = (tuple(names.sizes[a] for a in side) for side in (sides.y, sides.x))
    tile = Tile(WHOLE, wide=facts.wide, counters=any(facts.divisible[a] for a in sides.x))
    if not sides.x and not sides.y:
        return [_launch(loops, tile, names, facts, {}, 1, Grid())]
    if not loops.reduced_axes:
        out = []
        for elements, warps in _POINTS:
            if not y:
                tile = replace(tile, counters=True)
                out.append(_launch(loops, tile, names, facts, {"XB": elements}, warps, Grid((Count(x, elements),))))
                continue
            across = min(facts.row or elements, elements)
            rows = elements // across
            one = bool(facts.row) and facts.row <= elements
            shape = replace(tile, one_row=rows == 1, exact=one and facts.exact, one_column=one)
            grid = Grid((Count(y, rows),) if one else (Count(x, across), Count(y, rows)))
            out.append(_launch(loops, shape, names, facts, {"YB": rows, "XB": across}, warps, grid))
        return list(dict.fromkeys(out))
    out = []
    whole = facts.row and facts.row <= (256 if _along_y(loops) else LONGEST_WHOLE)
    if whole:
        # The last: smaller parts end sooner where rows are few.
        for elements, share in ((1024, 1), (4096, 1), (1024, 4)):
            rows = 1 if not y else (32 if _along_y(loops) else max(1, elements // facts.row))
            shape = replace(tile, one_row=rows == 1, exact=facts.exact)
            blocks = {"YB": rows, "XB": facts.row} if y else {"XB": facts.row}
            warps = _warps(share * rows * facts.row, loops)
            out.append(_launch(loops, shape, names, facts, blocks, warps, Grid((Count(y, rows),) if y else ())))
    if not whole or facts.row >= 2048:
        for rows, across in _tiles(facts)[: 1 if whole else None]:
            shape = replace(tile, form=LOOPED, one_row=rows == 1)
            blocks = {"YB": rows, "XB": across} if y else {"XB": across}
            grid = Grid((Count(y, rows),) if y else ())
            out.append(_launch(loops, shape, names, facts, blocks, _warps(rows * across, loops), grid))
    return list(dict.fromkeys(out))


def _tiles(facts: Specialisation) -> tuple[tuple[int, int], ...]:
    """Rows and columns of tiles that go along x, the likely best first. A thread has 16 elements of one: 64 bytes in flight."""
    if not facts.kept:
        return (1, 2048), (1, 4096), (1, 1024)
    return (facts.kept, 2048 // facts.kept), (32, 64), (facts.kept, 4096 // facts.kept)


def _warps(elements: int, loops: LoopNest) -> int:
    """Warps for a tile: 8 to 32 elements a thread, fewer where normal numbers are drawn, which takes many registers."""
    drawn = any(v.op == "random" and v.data == "normal" for v in loops.values)
    return min(16, max(1, elements // (256 if drawn else 512)))


def _launch(
    loops: LoopNest,
    tile: Tile,
    names: Names,
    facts: Specialisation,
    blocks: dict[str, int],
    warps: int,
    grid: Grid,
    output_types: Sequence[str] | None = None,
) -> Launch:
    text, constants = triton_source(loops, tile, names)
    types = [triton_type(v.dtype.name) for v in loops.loads]
    types += output_types or [triton_type(loops.values[s.value].dtype.name) for s in loops.stores]
    parameters = [
        Parameter(name, f"*{kind}", True) for name, kind in zip((*names.inputs, *names.outputs), types, strict=True)
    ]
    whole = "i64" if facts.wide else "i32"
    divisible = dict(zip(names.sizes, facts.divisible, strict=True))
    parameters += [Parameter(n, whole, divisible.get(n, False)) for n in names.arguments]
    parameters += [Parameter(n, "i64") for n in numbers_of(loops, names)]
    return Launch(
        TritonKernel("kernel", text, tuple(parameters), tuple((c, blocks[c]) for c in constants), warps), grid
    )


# --- several kernels -------------------------------------------------------------------------------------------------


def _in_steps(loops: LoopNest, names: Names, facts: Specialisation) -> Routine:
    """Few and long rows: cut into pieces."""
    steps = _Steps(loops, names, facts)
    for stage in range(max(steps.stages)):
        steps.reduce(stage)
    steps.finish()
    return Routine(tuple(steps.launches), tuple(steps.scratch))


class _Steps:
    """The launches of a routine in several steps, as they are made."""

    def __init__(self, loops: LoopNest, names: Names, facts: Specialisation) -> None:
        self.loops = loops
        self.names = names
        self.facts = facts
        self.sides = sides_of(loops)
        self.stages = loops.stages()
        self.kept = tuple(names.sizes[a] for a in self.sides.y)
        self.pairs = pairs_of(loops)
        self.stored: set[int] = set()  # outputs that are done
        self.given: dict[int, str] = {}  # reductions that are done -> where their results are
        self.launches: list[Launch] = []
        self.scratch: list[Scratch] = []

    def reduce(self, stage: int) -> None:
        """The reductions that can be made after so many: totals of pieces, and the reduction of the totals."""
        loops, facts = self.loops, self.facts
        found = [i for i, v in enumerate(loops.values) if v.op == "reduce" and self.stages[i] == stage + 1]
        late = {p.second for p in self.pairs.values()}
        first = [r for r in found if r not in late]
        if not first:
            return
        totals: dict[int, list[str]] = {}
        types: list[str] = []
        for r in first:
            kind, pair = triton_type(kept_in(loops.values[r].dtype).name), self.pairs.get(r)
            parts = 1 if pair is None else 2 if pair.kind == SOFTMAX else 3
            types += [kind] * parts
            totals[r] = [self.new_scratch(kind, Count((), times=facts.splits)) for _ in range(parts)]
        # The second of a pair is made with the first.
        reductions = sorted([*first, *(self.pairs[r].second for r in first if r in self.pairs)])
        # Outputs that are known while the pieces are read are stored then, without a second read.
        along = [i for i, s in enumerate(loops.stores) if self.is_full(s) and i not in self.stored]
        along = [i for i in along if self.stages[loops.stores[i].value] <= stage]
        self.stored.update(along)
        stores = [Store(r, loops.values[r].axes) for r in reductions] + [loops.stores[i] for i in along]
        part, inputs = self.part(stores)
        rows, across = _tiles(facts)[0]
        counters = any(facts.divisible[a] for a in self.sides.x)
        tile = Tile(PARTIAL, one_row=rows == 1, wide=facts.wide, counters=counters)
        blocks = {"YB": rows, "XB": across, "SPLITS": facts.splits}
        grid = Grid((Count(self.kept, rows), Count((), times=facts.splits)))
        outputs = [*(t for r in first for t in totals[r]), *(self.names.outputs[i] for i in along)]
        types += [triton_type(loops.values[loops.stores[i].value].dtype.name) for i in along]
        called = self.called(part, inputs, outputs, self.names.sizes)
        self.launches.append(_launch(part, tile, called, facts, blocks, _warps(rows * across, part), grid, types))

        # The totals' reduction: over the kept axes, reducing one of pieces.
        types = [triton_type(kept_in(loops.values[r].dtype).name) for r in reductions]
        done = [self.new_scratch(t) for t in types]
        known = {*self.given, *reductions}
        ready = [i for i, s in enumerate(loops.stores) if not self.is_full(s) and i not in self.stored]
        ready = [i for i in ready if self.stages[loops.stores[i].value] and self.behind(loops.stores[i].value) <= known]
        self.stored.update(ready)
        stores = [*(Store(r, loops.kept_axes) for r in reductions), *(loops.stores[i] for i in ready)]
        summary, inputs = self.part(stores, totals)
        rows = max(1, min(16, 4096 // facts.splits)) if self.kept else 1
        tile = Tile(WHOLE, one_row=rows == 1, exact=True, wide=facts.wide)
        blocks = {"YB": rows, "XB": facts.splits}
        grid = Grid((Count(self.kept, rows),) if self.kept else ())
        outputs = [*done, *(self.names.outputs[i] for i in ready)]
        types += [triton_type(loops.values[loops.stores[i].value].dtype.name) for i in ready]
        called = self.called(summary, inputs, outputs, (*self.kept, str(facts.splits)))
        of_kept = replace(facts, divisible=(*(facts.divisible[a] for a in self.sides.y), True))
        warps = _warps(rows * facts.splits, summary)
        self.launches.append(_launch(summary, tile, called, of_kept, blocks, warps, grid, types))
        self.given |= dict(zip(reductions, done, strict=True))

    def behind(self, value: int) -> set[int]:
        """The reductions that a value is made from."""
        return {i for i in self.loops.behind([value]) if self.loops.values[i].op == "reduce"}

    def finish(self) -> None:
        """The outputs that have all axes, element by element."""
        loops = self.loops
        rest = [i for i, s in enumerate(loops.stores) if self.is_full(s) or self.stages[s.value] == 0]
        rest = [i for i in rest if i not in self.stored]
        if rest:
            last, inputs = self.part([loops.stores[i] for i in rest])
            called = self.called(last, inputs, [self.names.outputs[i] for i in rest], self.names.sizes)
            row, exact = self.facts.last
            facts = replace(self.facts, row=row, exact=exact, splits=1)
            self.launches.append(_kernels(replace(last, reduced=(False,) * len(last.reduced)), called, facts)[0])

    def is_full(self, store: Store) -> bool:
        """Whether an output has the reduced axes."""
        return any(a in self.sides.x for a in store.axes)

    def new_scratch(self, kind: str, *more: Count) -> str:
        """Memory for a value of each kept element."""
        name = f"scratch{len(self.scratch)}"
        self.scratch.append(Scratch(name, kind, (*(Count((n,)) for n in self.kept), *more)))
        return name

    def called(self, part: LoopNest, inputs: Sequence[str], outputs: Sequence[str], sizes: tuple[str, ...]) -> Names:
        """What a part calls things."""
        counts = any(v.op == "count" for v in part.values)
        counted = self.names.counted if counts else ()
        return replace(self.names, inputs=tuple(inputs), outputs=tuple(outputs), sizes=sizes, counted=counted)

    def part(
        self, stores: Sequence[Store], totals: Mapping[int, Sequence[str]] | None = None
    ) -> tuple[LoopNest, tuple[str, ...]]:
        """The loops that make these stores only, and the names of their inputs.

        Reductions that are `given` are read: arrays of all kept axes. `totals`: of the pieces of reductions; then the loops go over the
        kept axes, and over an axis of pieces, which they reduce.
        """
        loops, given, pairs = self.loops, self.given, self.pairs
        kept = loops.kept_axes
        place = {axis: at for at, axis in enumerate(range(len(loops.reduced)) if totals is None else kept)}
        every = [place[axis] for axis in kept]
        builder = LoopNestBuilder(loops.reduced if totals is None else [False] * len(kept) + [True])
        apply, reduce = builder.apply, builder.reduce
        inputs: list[str] = []
        number: dict[int, int] = {}

        def load(name: str, dtype: DType, axes: Sequence[int]) -> int:
            inputs.append(name)
            return builder.load(len(inputs) - 1, dtype, axes)

        made = {*given, *(totals or ()), *(pairs[r].second for r in totals or () if r in pairs)}
        for i in loops.behind([s.value for s in stores], made.__contains__):
            v = loops.values[i]
            if totals is not None and i in totals:
                own, pair = [load(name, kept_in(v.dtype), [*every, len(every)]) for name in totals[i]], pairs.get(i)
                if pair is None:
                    number[i] = reduce(v.data, own[0])
                elif pair.kind == SOFTMAX:
                    number[i] = reduce("max", own[0])
                    scale = apply("exp", apply("sub", own[0], number[i]))
                    number[pair.second] = reduce("sum", apply("mul", own[1], scale))
                else:
                    means, rests, counts = own
                    number[i] = reduce("sum", apply("mul", means, counts))
                    away = apply("sub", means, apply("div", number[i], reduce("sum", counts)))
                    moved = apply("mul", counts, apply("mul", away, away))
                    number[pair.second] = reduce("sum", apply("add", rests, moved))
            elif i in given:
                number[i] = load(given[i], kept_in(v.dtype), every)
            elif i not in number:  # the second of a pair is there
                v = replace(v, args=tuple(number[a] for a in v.args), axes=tuple(place[a] for a in v.axes))
                if v.op in READS:
                    inputs.append(self.names.inputs[int(v.data)])
                    v = replace(v, data=len(inputs) - 1)
                number[i] = builder.add(v)
        for s in stores:
            builder.store(number[s.value], [place[a] for a in s.axes])
        return builder.finish(join=False)[0], tuple(inputs)
