"""Emits a readable Triton module from a loop nest and its schedule.

A block of a launch works on a tile of [YB, XB] elements. The axes of the space are divided between the tile's two sides:

    nothing is reduced    x is the last axis, y are all others, joined. (Of one axis, or none: x alone, and no y.)
    something is reduced  y are the kept axes, joined, and x are the reduced ones, joined: a block makes YB results

A value that varies along y only is a column [YB, 1], along x only a row [1, XB], along neither a scalar, so Triton broadcasts it. It
does not matter which side is contiguous in memory: Triton assigns elements to threads by their addresses, so rows and columns are
reduced by the same text. Joined indices are split into single axes only if an array has some of the joined axes and not the others;
then once per row of the tile, not per element.

Three forms:

    whole    the tile has all of x. Each value is computed once and stays in registers, whatever the number of reductions
    looped   x is long: the block goes along it once per stage of reductions, with accumulators of the size of a tile, and reads
             its inputs anew (from the second-level cache, if they are still there). Two reductions that one pass can make
             (`pairs`) take one. What is left behind the last full tile is done once more, with a mask
    partial  only the first stage of reductions, and of each row only one of SPLITS pieces: for few and long rows. Totals
             go to scratch memory, and a second kernel reduces those (`schedules`). What it can make along the way it stores

Random numbers are made by counters of Philox, each of which gives four neighbours (`device_math`).

Rows of tables are read, and put back, where their numbers say; a row that is out of range is zero, and is left out. What is added
to rows is added by atomic operations, in any order: only there may the last bits of a sum differ from run to run.

Numbers are those of the CPU's kernels: a product and a sum are two roundings, division and square root are IEEE's, the functions
are those of `vecmath`, NaN and infinities come through. float16 and bfloat16 are widened to float32 when they are read, and
rounded when they are stored or cast. Sums are added in the order of the tile, which depends on its size only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ....graph.core.dtypes import float64
from ...fusion.range_analysis import SOFTMAX, Pair, pairs_of
from ...ir.loop_nest import ADD, MAX, SET, LoopNest, Pass, Value
from ...ir.schedule import GpuSchedule
from ..ir import HEADER
from ..schedule import Specialisation
from .device_math import functions
from .expr import NARROW, Names, numbers_of, start_of, stored_as, type_of
from .tile import TileSpace, TileValues


def triton_source(
    loops: LoopNest, schedule: GpuSchedule, facts: Specialisation, names: Names, kernel: str = "kernel"
) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Write a kernel.

    Returns:
        The module's text, and name and value of the constants that the kernel takes after arrays and sizes.
    """
    lines = _Body(TileSpace(loops, schedule, facts, names)).written()
    blocks = {"YB": schedule.rows, "XB": schedule.columns, "SPLITS": schedule.pieces}
    constants = tuple((c, n) for c, n in blocks.items() if any(c in line for line in lines))
    arguments = [*names.inputs, *names.outputs, *names.arguments, *numbers_of(loops, names)]
    arguments += [names.block] if names.block else []
    arguments += [f"{c}: tl.constexpr" for c, _ in constants]
    text = "".join(
        [
            HEADER,
            functions("\n".join(lines)),
            "# Made by Dovetail from:\n",
            *[f"#   {line}\n" for line in str(loops).splitlines()],
            "@triton.jit\n",
            f"def {kernel}({', '.join(arguments)}):\n",
            *[f"    {line}\n" for line in lines],
        ]
    )
    return text, constants


_STORES = {SET: "tl.store", ADD: "tl.atomic_add", MAX: "tl.atomic_max"}


class _Body:
    """Writes the body of one kernel: the loop over tiles, reductions over them, and stores."""

    def __init__(self, space: TileSpace) -> None:
        self.space = space
        self.loops, self.names, self.sides = space.loops, space.names, space.sides
        self.writer = TileValues(space).writer
        self.line, self.value, self.inside = self.writer.line, self.writer.value, space.inside
        self.pairs = pairs_of(self.loops, whole=not space.is_partial) if space.is_looped else {}

    def put(self, output: int) -> None:
        """Store an output's elements. Rows out of range are left out."""
        store = self.loops.stores[output]
        v = self.loops.values[store.value]
        value = self.value(store.value)
        target = self.names.outputs[output - len(self.loops.stores)]  # behind the totals of PARTIAL, which may be more
        if store.row is None:
            where, mask = self.space.address(store.axes), self.space.mask(store.axes)
        else:
            where, there = self.space.in_row(target, self.value(store.row), store.axes)
            mask = self.space.mask(self.loops.axes_of(store))
            mask = f"{mask} & {there}" if mask else there
        arguments = [f"{target} + {where}" if where else target]
        arguments.append(f"{value}.to({stored_as(v.dtype)})" if v.dtype in NARROW else value)
        arguments += [f"mask={mask}"] if mask else []
        # Atomic additions into one row come in any order; no reader sees the row before the kernel ends.
        arguments += [] if store.how == SET else ['sem="relaxed"']
        self.line(f"{_STORES[store.how]}({', '.join(arguments)})")

    # --- reductions ------------------------------------------------------------------------------------------------

    def over_tile(self, v: Value, text: str) -> str:
        """A reduction of a tile's rows."""
        kind, dtype = str(v.data), v.dtype
        at = "0" if self.space.flat else "1, keep_dims=True"
        if kind in ("any", "all"):
            return f"tl.{'max' if kind == 'any' else 'min'}({text}, {at}) != 0"
        if kind == "prod" or (kind in ("max", "min") and dtype.is_floating):
            done = self.space.reduced(text, "product" if kind == "prod" else f"{kind}imum")
        else:
            done = f"tl.{kind}({text}, {at})"
        return done if dtype.is_floating else f"{done}.to({type_of(dtype)})"

    def accumulated(self, v: Value, total: str, x: str) -> str:
        """A tile of totals, with one more tile."""
        kind, dtype = str(v.data), v.dtype
        start = start_of(kind, dtype)
        if kind in ("any", "all"):
            return f"{total} {'|' if kind == 'any' else '&'} {self.inside(v.args[0], f'{x}.to(tl.int32)', start)}"
        if kind in ("max", "min"):
            new = f"{'' if dtype.is_floating else 'tl.'}{kind}imum({total}, {x})"
            return self.inside(v.args[0], new, total)
        text = f"{total} {'+' if kind == 'sum' else '*'} {self.inside(v.args[0], x, start)}"
        return text if dtype.is_floating else f"({text}).to({type_of(dtype)})"

    def reductions(self, each: Pass) -> list[int]:
        """The reductions of a pass, without the second of a pair, which is computed with the first."""
        late = {p.second for p in self.pairs.values()}
        return [i for i in each.reductions if i not in late]

    # --- the body --------------------------------------------------------------------------------------------------

    def written(self) -> list[str]:
        self.writer.lines += self.space.block_lines()
        if not self.space.is_looped:
            self.writer.lines += self.space.column_lines()
            self.whole()
        else:
            self.looped()
        return self.writer.lines

    def whole(self) -> None:
        for each in self.loops.passes():
            for o in (*each.outputs, *each.after):
                self.put(o)
            for r in self.reductions(each):
                v = self.loops.values[r]
                x = self.value(v.args[0])
                if v.data in ("any", "all"):
                    x = f"{x}.to(tl.int32)"
                x = self.inside(v.args[0], x, start_of(str(v.data), v.dtype))
                self.line(f"v{r} = {self.over_tile(v, x)}")
                self.writer.known[r] = f"v{r}"

    def looped(self) -> None:
        """Write one pass over x per stage."""
        for each in self.loops.passes()[: 1 if self.space.is_partial else None]:
            reductions = self.reductions(each)
            if reductions or each.outputs:
                self.one_pass(reductions, each.outputs)
            for o in () if self.space.is_partial else each.after:
                self.put(o)

    def one_pass(self, reductions: Sequence[int], outputs: Sequence[int]) -> None:
        values = self.loops.values
        roots = [values[r].args[0] for r in reductions] + [self.loops.stores[o].value for o in outputs]
        for k in self.constant_along_x(roots):
            self.value(k)
        shape = "[XB]" if self.space.flat else "[YB, XB]"
        scans = self.writer.not_known(roots, "scan")  # the running sums that these are made of
        for r in reductions:
            v = values[r]
            kind = "tl.int32" if v.data in ("any", "all") else type_of(v.dtype)
            pair = self.pairs.get(r)
            if pair is None or pair.kind == SOFTMAX:
                self.line(f"t{r} = tl.full({shape}, {start_of(str(v.data), v.dtype)}, {kind})")
            for name in () if pair is None else ("sum",) if pair.kind == SOFTMAX else ("mean", "rest"):
                self.line(f"{name}{r} = tl.zeros({shape}, {kind})")
            if self.is_variance(r):  # how many each element of the tile has seen: all as many, before a mask
                self.line(f"seen{r} = tl.full({shape if scans else '()'}, 0.0, {kind})")
        for i in scans:
            v, column = values[i], "()" if self.space.flat else "[YB, 1]"
            self.line(f"total{i} = tl.full({column}, {start_of(v.data.kind, v.dtype)}, {type_of(v.dtype)})")

        def body() -> None:
            if self.loops.backwards:
                self.line(f"start = (tl.cdiv({self.space.nx}, XB) - 1) * XB - back")
            for line in self.space.column_lines("start + "):
                self.line(line)
            for r in reductions:
                pair = self.pairs.get(r)
                x = self.value(values[r].args[0])
                if pair is None:
                    self.line(f"t{r} = {self.accumulated(values[r], f't{r}', x)}")
                else:
                    self.accumulate_pair(pair, x)
            for o in outputs:
                self.put(o)

        first, last = "0", self.space.nx
        if self.space.is_partial:
            first, last = "first", "last"
            self.line("first = piece * share")
            self.line(f"last = tl.minimum(first + share, {self.space.nx})")
        if scans:
            name = "back" if self.loops.backwards else "start"
            self.writer.nest([f"for {name} in range({first}, {last}, XB):"], body)
        else:
            self.full_tiles(first, last, body, [f"seen{r}" for r in reductions if self.is_variance(r)], shape)
        totals: list[str] = []
        for r in reductions:
            pair = self.pairs.get(r)
            if pair is None:
                self.line(f"v{r} = {self.over_tile(values[r], f't{r}')}")
                self.writer.known[r] = f"v{r}"
                totals.append(f"v{r}")
            else:
                totals += self.finish_pair(pair)
        if self.space.is_partial:
            where = f"{self.space.y} * SPLITS + piece" if self.sides.y else "piece"
            mask = "" if self.space.schedule.rows == 1 or not self.sides.y else ", mask=my"
            for name, total in zip(self.names.outputs, totals, strict=False):
                self.line(f"tl.store({name} + {where}, {total}{mask})")

    def is_variance(self, reduction: int) -> bool:
        pair = self.pairs.get(reduction)
        return pair is not None and pair.kind != SOFTMAX

    def full_tiles(self, first: str, last: str, body: Callable[[], None], counts: Sequence[str], shape: str) -> None:
        """Write a loop over full tiles, without masks, so that their loads can be pipelined; then the rest, with a mask.

        `counts`: scalars that become tiles of this `shape` for the rest.
        """
        whole = f"tl.maximum({last} - {first}, 0)" if self.space.is_partial else last
        rounded = f"{whole} // XB * XB"
        self.line(f"whole = {rounded if first == '0' else f'{first} + {rounded}'}")
        self.space.is_filled = True
        self.writer.nest([f"for start in range({first}, whole, XB):"], body)
        self.space.is_filled = False
        for name in counts:
            self.line(f"{name} = {name} + tl.zeros({shape}, {name}.dtype)")

        def rest() -> None:
            self.line("start = whole")
            body()

        self.writer.nest([f"if whole < {last}:"], rest)

    def accumulate_pair(self, pair: Pair, x: str) -> None:
        """Add a tile to two reductions at once, element by element, as if each element had a row of its own."""
        r = pair.first
        zero_if_outside = self.inside(pair.of, "1.0", "0.0")
        if pair.kind == SOFTMAX:
            exp = self.exponential(self.loops.values[r])
            low = 'float("-inf")'
            self.line(f"x{r} = {self.inside(pair.of, x, low)}")
            self.line(f"top{r} = maximum(t{r}, x{r})")
            # While nothing but -inf was seen, there is nothing to subtract.
            self.line(f"less{r} = tl.where(top{r} == {low}, 0.0, top{r})")
            self.line(f"sum{r} = sum{r} * {exp}(t{r} - less{r}) + {exp}(x{r} - less{r})")
            self.line(f"t{r} = top{r}")
            return
        divide = "{} / {}" if self.loops.values[r].dtype is float64 else "tl.div_rn({}, {})"
        self.line(f"seen{r} = seen{r} + {'1.0' if self.space.is_filled else zero_if_outside}")
        self.line(f"away{r} = {x} - mean{r}")
        if self.space.is_filled:  # one division for the whole tile
            one = f"tl.full((), 1.0, {type_of(self.loops.values[r].dtype)})"
            self.line(f"part{r} = {divide.format(one, f'seen{r}')}")
            moved = f"mean{r} + away{r} * part{r}"
        else:
            moved = f"mean{r} + {divide.format(f'away{r}', f'seen{r}')}"
        self.line(f"mean{r} = {self.inside(pair.of, moved, f'mean{r}')}")
        self.line(f"rest{r} = {self.inside(pair.of, f'rest{r} + away{r} * ({x} - mean{r})', f'rest{r}')}")

    @staticmethod
    def exponential(v: Value) -> str:
        """The function for exponentials of numbers that are at most 0."""
        return "exp64" if v.dtype is float64 else "exp_narrow" if v.dtype in NARROW else "exp_below32"

    def finish_pair(self, pair: Pair) -> list[str]:
        """Reduce the tiles of a pair. Returns the names of the results."""
        r = pair.first
        v = self.loops.values[r]
        if pair.kind == SOFTMAX:
            exp = self.exponential(v)
            self.line(f"v{r} = {self.over_tile(v, f't{r}')}")
            top = f"v{r}"
            # A piece may be empty, and a row of -inf alone is known as such only at the end.
            if self.space.is_partial:
                self.line(f'less{r} = tl.where(v{r} == float("-inf"), 0.0, v{r})')
                top = f"less{r}"
            parts = f"sum{r} * {exp}(t{r} - {top})"
            self.line(f"v{pair.second} = {self.over_tile(self.loops.values[pair.second], parts)}")
            self.writer.known |= {r: f"v{r}", pair.second: f"v{pair.second}"}
            return [f"v{r}", f"v{pair.second}"]
        names = f"mean{r}, rest{r}, seen{r}"
        self.line(f"{names} = {self.space.reduced(f'({names})', 'joined')}")
        self.writer.known |= {pair.mean: f"mean{r}", pair.second: f"rest{r}", r: f"mean{r}"}
        return [f"mean{r}", f"rest{r}", f"seen{r}"]

    def constant_along_x(self, numbers: Iterable[int]) -> list[int]:
        """The values that these need and that do not vary along x, so that they are computed once, before a loop."""
        values, varies = self.loops.values, self.space.varies_along_x
        found = self.loops.backward_slice(numbers, lambda i: not varies(i))
        return [i for i in found if not varies(i) and values[i].op not in ("constant", "reduce")]
