"""From loop nests and schedules (`gpu/schedule.py`) to launches: one kernel, or several steps.

Where several blocks share a row, the work is split into steps, each a separate kernel, with the results of reductions in scratch memory:

    for each stage of reductions    totals of pieces of each row, and outputs that are known there; then the reduction of the totals
    at the end                      the other outputs that have all axes, element by element

Only additions to rows of a table are atomic; all other results are bit-identical in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ....graph.core.dtypes import DType
from ...fusion.range_analysis import SOFTMAX, pairs_of
from ...fusion.table_loops import filled, kept_in
from ...ir.loop_nest import ADD, READS, LoopNest, LoopNestBuilder, Store
from ...ir.schedule import GpuSchedule
from ..ir import Count, Grid, Launch, Parameter, Routine, Scratch, TritonKernel, triton_type
from ..schedule import FEW_PIECES, Specialisation, loop_schedules, piece_schedule, sides_of, specialise, totals_schedule
from .expr import Names, numbers_of
from .nest import triton_source


def size_names(loops: LoopNest) -> tuple[str, ...]:
    """The names of the axes' sizes in a launch."""
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
    if facts.splits == 1:
        return whole
    steps = _Steps(loops, names, facts)  # few and long rows: cut into pieces
    for each in loops.passes():
        steps.reduce(each.reductions)
    steps.finish()
    return (Routine(tuple(steps.launches), tuple(steps.scratch)), *whole[: facts.splits <= FEW_PIECES])


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


def _kernels(loops: LoopNest, names: Names, facts: Specialisation) -> list[Launch]:
    types = _types_of(loops, names)
    return [_launch(loops, schedule, names, facts, types) for schedule in loop_schedules(loops, facts)]


def _types_of(loops: LoopNest, names: Names) -> dict[str, str]:
    """Triton's type of each output."""
    stored = [loops.values[s.value].dtype for s in loops.stores]
    return {name: triton_type(t.name) for name, t in zip(names.outputs, stored, strict=True)}


def _grid(loops: LoopNest, schedule: GpuSchedule, names: Names) -> Grid:
    """The blocks of a launch: one for each tile, or, where something is reduced, for each tile of rows, or of pieces of rows."""
    sides = sides_of(loops)
    y, x = (tuple(names.sizes[a] for a in side) for side in (sides.y, sides.x))
    across = x and not loops.reduced_axes and not schedule.spans
    pieces = (Count((), times=schedule.pieces),) if schedule.pieces > 1 else ()
    return Grid((Count(x, schedule.columns),) * bool(across) + (Count(y, schedule.rows),) * bool(y or pieces) + pieces)


def _launch(
    loops: LoopNest, schedule: GpuSchedule, names: Names, facts: Specialisation, types_of: Mapping[str, str]
) -> Launch:
    """A kernel and its blocks. `types_of`: each output's type."""
    text, constants = triton_source(loops, schedule, facts, names)
    types = [*(triton_type(v.dtype.name) for v in loops.loads), *(types_of[name] for name in names.outputs)]
    parameters = [
        Parameter(name, f"*{kind}", True) for name, kind in zip((*names.inputs, *names.outputs), types, strict=True)
    ]
    whole = "i64" if facts.wide else "i32"
    divisible = dict(zip(names.sizes, facts.divisible, strict=True))
    parameters += [Parameter(n, whole, divisible.get(n, False)) for n in names.arguments]
    parameters += [Parameter(n, "i64") for n in numbers_of(loops, names)]
    kernel = TritonKernel("kernel", text, tuple(parameters), constants, schedule.warps)
    return Launch(kernel, _grid(loops, schedule, names), schedule)


# --- several kernels -------------------------------------------------------------------------------------------------


class _Steps:
    """Builds the launches of a routine in several steps."""

    def __init__(self, loops: LoopNest, names: Names, facts: Specialisation) -> None:
        self.loops = loops
        self.names = names
        self.facts = facts
        self.sides = sides_of(loops)
        behind = (loops.backward_slice([s.value]) for s in loops.stores)
        # The reductions behind each output.
        self.behind = [{i for i in of if loops.values[i].op == "reduce"} for of in behind]
        self.kept = tuple(names.sizes[a] for a in self.sides.y)
        self.pairs = pairs_of(loops)
        self.stored: set[int] = set()  # outputs that are done
        self.given: dict[int, str] = {}  # reductions that are done -> where their results are
        self.launches: list[Launch] = []
        self.scratch: list[Scratch] = []
        self.types = _types_of(loops, names)

    def reduce(self, found: Sequence[int]) -> None:
        """The reductions of a pass: totals of pieces, and the reduction of the totals."""
        loops, facts = self.loops, self.facts
        late = {p.second for p in self.pairs.values()}
        first = [r for r in found if r not in late]
        if not first:
            return
        totals: dict[int, list[str]] = {}
        for r in first:
            pair = self.pairs.get(r)
            parts = 1 if pair is None else 2 if pair.kind == SOFTMAX else 3
            totals[r] = [self.new_scratch(r, Count((), times=facts.splits)) for _ in range(parts)]
        # The second of a pair is made with the first.
        reductions = sorted([*first, *(self.pairs[r].second for r in first if r in self.pairs)])
        # Outputs that are known while the pieces are read are stored then, without a second read.
        along = self.left({*self.given}, full=True)
        stores = [Store(r, loops.values[r].axes) for r in reductions]
        part, names = self.part(stores, [t for r in first for t in totals[r]], along)
        self.launches.append(_launch(part, piece_schedule(part, facts), names, facts, self.types))

        # The totals' reduction: over the kept axes, reducing one of pieces.
        done = {r: self.new_scratch(r) for r in reductions}
        known = {*self.given, *reductions}
        ready = [i for i in self.left(known, full=False) if self.behind[i]]
        stores = [Store(r, loops.kept_axes) for r in reductions]
        summary, names = self.part(stores, list(done.values()), ready, totals)
        of_kept = replace(facts, divisible=(*(facts.divisible[a] for a in self.sides.y), True), exact=True)
        self.launches.append(_launch(summary, totals_schedule(summary, facts), names, of_kept, self.types))
        self.given |= done

    def left(self, known: set[int], *, full: bool) -> list[int]:
        """The outputs left that need only these reductions, and have the reduced axes (`full`) or not."""
        has_reduced = [any(a in self.sides.x for a in s.axes) for s in self.loops.stores]
        ready = [i for i, of in enumerate(self.behind) if of <= known and i not in self.stored]
        return [i for i in ready if has_reduced[i] == full]

    def finish(self) -> None:
        """Write the outputs that are left, element by element."""
        rest = [i for i in range(len(self.behind)) if i not in self.stored]
        if rest:
            last, names = self.part([], [], rest)
            row, exact = self.facts.last
            facts = replace(self.facts, row=row, exact=exact, splits=1)
            self.launches.append(_kernels(replace(last, reduced=(False,) * len(last.reduced)), names, facts)[0])

    def new_scratch(self, reduction: int, *more: Count) -> str:
        """Memory for a value of each kept element."""
        name = f"scratch{len(self.scratch)}"
        kind = self.types[name] = triton_type(kept_in(self.loops.values[reduction].dtype).name)
        self.scratch.append(Scratch(name, kind, (*(Count((n,)) for n in self.kept), *more)))
        return name

    def part(
        self,
        stores: Sequence[Store],
        to: Sequence[str],
        outputs: Sequence[int],
        totals: Mapping[int, Sequence[str]] | None = None,
    ) -> tuple[LoopNest, Names]:
        """The loops that make these stores, to scratch memory, and these outputs only, and what they call things.

        Reductions that are `given` are read: arrays of all kept axes. `totals`: of the pieces of reductions; then the loops go over the
        kept axes, and over an axis of pieces, which they reduce.
        """
        self.stored.update(outputs)
        stores = [*stores, *(self.loops.stores[i] for i in outputs)]
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
        for i in loops.backward_slice([s.value for s in stores], made.__contains__):
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
        part, names = builder.finish(join=False)[0], self.names
        sizes = names.sizes if totals is None else (*self.kept, str(self.facts.splits))
        counted = names.counted if any(v.op == "count" for v in part.values) else ()
        arrays = (*to, *(names.outputs[i] for i in outputs))
        return part, replace(names, inputs=tuple(inputs), outputs=arrays, sizes=sizes, counted=counted)
