"""Code emission for CPUs: a loop nest in, a readable Numba module out.

A kernel is a function of flat arrays (inputs, then outputs), the sizes of the axes, and the range `[lo, hi)` of the axis that is
split between threads. Three nests of loops serve all kernels:

    pointwise   nothing is reduced: the axes in order
    rows        the last axis is reduced: for each kept element, one pass over the reduced axes per stage of reductions. Costly
                values that a later pass needs are kept in a buffer, the rest is recomputed
    columns     the last axis is kept: each pass goes over the reduced axes outside and the last axis inside, as memory lies,
                and reductions accumulate in vectors. So do rows of 16 to 32 elements with a costly number of their own, such as the
                logarithm of a sum, some at a time: a vector has the same element of several. The loops along shorter rows, whose
                length is known, are written out

`blocks` writes what is computed before the innermost loop (random numbers, running sums along rows). A running sum down columns is
a vector of totals. Sums into the rows of a table have a nest of their own: each thread adds the elements of its rows.

Code is compiled as written: no fast-math flags, integers wrap around, NaN and infinities behave as in NumPy. Two things differ
from NumPy, within stated bounds: the functions of `vecmath`, and the order of sums in a row, which are added in blocks whose totals
are added in float64.

float16 and bfloat16 exist in memory only, as arrays of their bits. A kernel computes in float32, and rounds where it stores them and
where a cast asks for it (`_widened`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial

from ....graph.core.dtypes import DType, float32, float64, int32, int64
from ...fusion.range_analysis import passes_over_nan
from ...ir.loop_nest import ADD, COSTLY, READS, LoopNest, LoopNestBuilder, Value
from .blocks import BLOCK, BlockWriter
from .expr import NARROW, SHORT, combine, literal, start_of, type_of
from .instantiate import versions

ROWS = -1
"""The split of a kernel that adds to a table: each thread has some rows of the table, and adds their elements in order."""

SOME_ROWS = 512
"""Short rows that are processed at a time: vectors of this length stay in the L1 cache."""

PARTS = -2
"""The split of a kernel that reduces everything: pieces of PART elements. The thread that finishes last adds up the partial results."""

PART = 1 << 16
"""Elements of such a piece; a constant, so that a result does not depend on the number of threads."""

HEADER = '@njit(SIGNATURE, nogil=True, no_cfunc_wrapper=True, error_model="numpy", cache=True)\ndef kernel('
"""How the function in a kernel's text begins."""


@dataclass(frozen=True, slots=True)
class NumbaSource:
    """A generated module.

    Attributes:
        text: the module; its function is called `kernel`.
        split: the axis that `lo` and `hi` are a range of; None when the kernel cannot be split, ROWS where they are rows of the table
            that it adds to, PARTS where they are pieces of what is reduced.
        partial: with PARTS, the types of the vectors that the kernel takes after its outputs, with one element for each piece. After
            them comes a counter of finished pieces, initially 0.
        sizes: the names of the numbers that it takes after the sizes of its axes.
    """

    text: str
    split: int | None
    partial: tuple[DType, ...] = ()
    sizes: tuple[str, ...] = ()


@cache
def joined(sources: tuple[NumbaSource, ...]) -> str:
    """The text of one kernel, or of several in one module, in which `kernel` is a tuple of functions."""
    if len(sources) == 1:
        return sources[0].text
    texts = [re.sub(r"\b(SIGNATURE|kernel)\b(?=[ ,(])", rf"\1_{i}", s.text) for i, s in enumerate(sources)]
    return "\n".join([*texts, f"kernel = {', '.join(f'kernel_{i}' for i in range(len(sources)))}", ""])


@cache
def source_of(loops: LoopNest, in_place: int = 0, row: int = 0, split: int = 0) -> NumbaSource:
    """The source of a kernel whose first `in_place` outputs overwrite its first inputs; cached, so equal loops share it."""
    return numba_source(loops, versions(), in_place, row, split)


def numba_source(loops: LoopNest, made_for: str = "", in_place: int = 0, row: int = 0, split: int = 0) -> NumbaSource:
    """Write a kernel. `made_for` becomes part of the text, because the text depends on it.

    The first `in_place` outputs share memory with the inputs of the same numbers. The kernel does not read these arguments;
    they are there for the caller's convenience. Such a kernel is pointwise, so each element is read before it is written.
    `row`: see `range_analysis.short_row`. `split`: which of the kept axes may be split.
    """
    described = "\n".join(f"#   {line}" for line in str(loops).splitlines())
    loops = _with_wide_places(_widened(loops))
    assert not (in_place and any(loops.reduced)), "a reduction reads again what is overwritten"
    writer = _Writer(loops, in_place, row)
    divided = writer.write(split)
    used = sorted({SHORT[v.dtype.name] for v in loops.values} - {"boolean"})
    widths = [
        f"{short} = np.{name}"
        for name, short in SHORT.items()
        if (short in used or short == "f64") and name not in ("float16", "bfloat16")
    ]
    draws = any(v.op == "random" for v in loops.values)
    arrays = [f"types.Array(types.{type_of(v.dtype)}, 1, 'C', readonly=True)" for v in loops.loads]
    arrays += [f"types.Array(types.{type_of(loops.values[s.value].dtype)}, 1, 'C')" for s in loops.stores]
    arrays += [f"types.Array(types.{type_of(dtype)}, 1, 'C')" for dtype in writer.partial.values()]
    arrays += ["types.Array(types.int64, 1, 'C')"] * bool(writer.partial)
    ints = len(loops.reduced) + len(loops.sizes) + 2
    names = [f"in{i}" for i in range(len(loops.loads))] + [f"out{i}" for i in range(len(loops.stores))]
    names += [*(f"part{r}" for r in writer.partial), *(["done"] if writer.partial else [])]
    names += [f"n{i}" for i in range(len(loops.reduced))] + [*loops.sizes, "lo", "hi"]
    text = "\n".join(
        [
            "# Made by Dovetail from:",
            described,
            *([f"# for {made_for}"] if made_for else []),
            "import numpy as np",
            "from numba import njit, types",
            "",
            "from dovetail.codegen import vecmath as m",
            *(["from dovetail.codegen.cpu.emit import philox as r"] if draws else []),
            *(["from dovetail.codegen.cpu.native.machine import count_up"] if writer.partial else []),
            "",
            *widths,
            "",
            "SIGNATURE = types.void(",
            *[f"    {a}," for a in arrays],
            f"    *[types.intp] * {ints},",
            ")",
            "",
            "",
            f"{HEADER}{', '.join(names)}):",
            "    m.wide_vectors()",
            *([f"    n{writer.innermost} = {writer.row}"] if writer.row else []),
            *writer.lines,
            "",
        ]
    )
    return NumbaSource(text, divided, tuple(writer.partial.values()), loops.sizes)


def _with_wide_places(loops: LoopNest) -> LoopNest:
    """The same loops with places that are computed from sizes in int64, as addresses are: else LLVM could not tell neighbours."""

    def widened(builder: LoopNestBuilder, number: int) -> int:
        if builder.dtype(number) is not int32:
            return number
        constant = builder.constant_of(number)
        return builder.cast(number, int64) if constant is None else builder.constant(constant, int64)

    def write(builder: LoopNestBuilder, v: Value) -> int:
        is_place = v.op in ("position", "size") or any(builder.dtype(a) is int64 for a in v.args)
        data = [a for a in v.args if builder.dtype(a) is int32 and builder.constant_of(a) is None]
        args = v.args
        if is_place and data and v.dtype.is_bool:  # elements are compared as they are
            args = tuple(a if a in data else builder.cast(a, int32) for a in args)
        elif is_place and v.op not in (*READS, "cast"):
            args = tuple(widened(builder, a) for a in args)
            v = replace(v, dtype=int64) if v.dtype is int32 else v
        return builder.add(replace(v, args=args))

    return loops.rewritten(write) if loops.sizes else loops


def _widened(loops: LoopNest) -> LoopNest:
    """The same loops with narrow floats only in memory, and in casts from and to float32."""

    def write(builder: LoopNestBuilder, v: Value) -> int:
        if v.dtype not in NARROW:
            return builder.add(v)
        if v.op == "cast" and builder.dtype(v.args[0]) not in (float32, float64):
            v = replace(v, args=(builder.cast(v.args[0], float32),))
        elif v.op not in (*READS, "cast"):
            v = replace(v, dtype=float32)
        return builder.cast(builder.add(v), float32)

    return loops.rewritten(write) if any(v.dtype in NARROW for v in loops.values) else loops


class _Writer(BlockWriter):
    """The lines of one kernel's body."""

    def is_in_parts(self) -> bool:
        """Whether all there is is reduced, once, along one axis, so that threads can reduce pieces of it."""
        loops = self.loops
        if len(loops.reduced) != 1 or not loops.reduced[0] or max(self.stages) != 1:
            return False
        full = [s for s in loops.stores if s.axes]
        return all(self.stages[s.value] == 0 for s in full) and not any(v.op == "scan" for v in loops.values)

    def write(self, which: int = 0) -> int | None:
        """Write the body; the axis that can be split: the kept one with this number, where threads do not share it otherwise."""
        if any(s.how == ADD for s in self.loops.stores):
            self.added()
            self.lines[:0] = self.scratch
            return ROWS
        loops = self.loops
        kept, reduced = loops.kept_axes, loops.reduced_axes
        columns = bool(reduced and kept) and (kept[-1] > reduced[-1] or self.short_rows)
        outer = kept[:-1] if columns or not reduced else kept
        split = kept[which] if kept else None

        def ends(axis: int) -> str:
            return "lo, hi" if axis == split else f"0, n{axis}"

        def some_rows() -> None:
            self.line(f"end = min(at + {SOME_ROWS}, {ends(kept[-1]).split(', ')[1]})")
            self.columns(
                lambda axis: "at, end" if axis == kept[-1] else ends(axis), f"i{kept[-1]} - at", str(SOME_ROWS)
            )

        headers = [self.header(a, ends(a)) for a in outer]
        if self.is_in_parts():
            for r in self.reductions(0):
                self.partial[r] = float64 if (v := loops.values[r]).data == "sum" and v.dtype is float32 else v.dtype
                self.places[r] = self.arrays
                self.arrays += 1
            self.nest(["for part in range(lo, hi):"], self.rows)
            split = PARTS
        elif self.short_rows:
            self.nest([*headers, f"for at in range({ends(kept[-1])}, {SOME_ROWS}):"], some_rows)
        elif columns:
            self.nest(headers, lambda: self.columns(ends, f"i{kept[-1]}", f"n{kept[-1]}"))
        else:
            self.nest(headers, self.rows if reduced else lambda: self.pointwise(ends))
        self.lines[:0] = self.scratch
        return split

    def added(self) -> None:
        """Sums into the rows of a table: the call for rows lo to hi scans all inputs, and adds the elements of these rows."""
        (store,) = self.loops.stores
        assert store.row is not None and not any(self.loops.reduced)
        width = " * ".join(f"n{a}" for a in store.axes) or "1"
        zero = literal(0, self.loops.values[store.value].dtype)
        self.nest([f"for k in range(lo * {width}, hi * {width}):"], lambda: self.line(
            f"m.store(out0, {len(self.loops.loads)}, k, {zero})"
        ))  # fmt: skip
        placed = self.loops.values[store.row].axes
        rest = [a for a in range(len(self.loops.reduced)) if a not in placed]

        def row() -> None:
            assert store.row is not None
            number = self.value(store.row)
            outer = [self.header(a, f"0, n{a}") for a in rest[:-1]]
            body = partial(self.put, 0)
            if rest:
                body = partial(self.inner, rest[-1], f"0, n{rest[-1]}", [store.value], body)
            self.nest([f"if lo <= {number} < hi:", *outer], body)

        self.nest([self.header(a, f"0, n{a}") for a in placed], row)

    def pointwise(self, ends: Callable[[int], str]) -> None:
        """The innermost loop without reductions."""

        def body() -> None:
            for number, v in enumerate(self.loops.values):
                if v.op in READS and v.data < self.in_place:
                    self.value(number)
            for output in range(len(self.loops.stores)):
                self.put(output)

        if not self.loops.reduced:
            body()
            return
        self.inner(self.innermost, ends(self.innermost), [s.value for s in self.loops.stores], body)

    def kept_values(self, numbers: Iterable[int]) -> list[int]:
        """The values without reduced axes that these need directly, loads and constants left out."""

        def is_kept(i: int) -> bool:
            return not self.loops.is_full(i) and self.loops.values[i].op not in ("load", "constant", "count")

        return list(filter(is_kept, self.loops.behind(numbers, is_kept)))

    def later_uses(self, stage: int) -> set[int]:
        """Full values of up to this stage that are costly, random, or gathered from here and there, and that a later pass needs."""
        loops = self.loops

        def is_spilled(i: int) -> bool:
            v = loops.values[i]
            scattered = v.op == "gather" and loops.is_full(v.args[0]) and v.dtype not in NARROW
            costly = v.op in COSTLY or v.op in ("random", "scan") or scattered
            return loops.is_full(i) and costly and self.stages[i] <= stage

        later = range(stage + 1, max(self.stages) + 1)
        roots = [r for s in later for r in self.roots(self.reductions(s), self.outputs(s, full=True))]
        found = loops.behind(roots, lambda i: is_spilled(i) or loops.values[i].op == "reduce")
        return set(filter(is_spilled, found))

    def roots(self, reductions: Iterable[int], outputs: Iterable[int]) -> list[int]:
        """What these reductions take, and what these outputs are."""
        loops = self.loops
        return [loops.values[r].args[0] for r in reductions] + [loops.stores[o].value for o in outputs]

    def rows(self) -> None:
        """For one kept element: a pass over the reduced axes per stage."""
        axes = self.loops.reduced_axes
        length = " * ".join(f"n{a}" for a in axes)
        aside = self.aside
        loops = self.loops
        ends = f"0, n{axes[-1]}"

        def is_reduced(i: int) -> bool:
            return loops.values[i].op == "reduce"

        if self.partial:
            self.line(f"stop = min((part + 1) * {PART}, n0)")
            ends = f"part * {PART}, stop"

        for stage in range(max(self.stages) + 1):
            reductions, outputs = self.reductions(stage), self.outputs(stage, full=True)
            if reductions or outputs:
                in_blocks = any(
                    loops.values[r].data in ("sum", "prod") and loops.values[r].dtype.is_floating for r in reductions
                )
                roots = self.roots(reductions, outputs)
                needed = set(loops.behind(roots, is_reduced))
                to_put = {
                    i: self.new_scratch(f"row{i}", length, loops.values[i].dtype)
                    for i in sorted(self.later_uses(stage) - aside.keys())
                    if i in needed
                }
                for r in reductions:
                    v = loops.values[r]
                    wide = in_blocks and v.data == "sum" and v.dtype is float32
                    self.line(
                        f"{'t' if in_blocks else 'v'}{r} = {'f64(0.0)' if wide else start_of(str(v.data), v.dtype)}"
                    )
                headers = [self.header(a, f"0, n{a}") for a in axes[:-1]]
                # Kept values are computed before the loop that uses them, once.
                for k in self.kept_values(roots):
                    self.value(k)
                for s in self.not_known(roots, "scan"):
                    self.line(f"total{s} = {start_of(loops.values[s].data.kind, loops.values[s].dtype)}")

                def one_pass(
                    prefix: str,
                    reductions: list[int] = reductions,
                    outputs: list[int] = outputs,
                    to_put: dict[int, int] = to_put,
                ) -> None:
                    self.fetch_aside("row", self.index(axes))
                    for number, array in to_put.items():
                        self.line(f"m.store(row{number}, {array}, {self.index(axes)}, {self.value(number)})")
                    for r in reductions:
                        v = loops.values[r]
                        x = self.value(v.args[0])
                        total = f"{prefix}{r}"
                        combined = combine(str(v.data), total, x, v.dtype, any_order=True)
                        self.line(f"{total} = {f'm.larger({total}, {x})' if passes_over_nan(loops, r) else combined}")
                    for o in outputs:
                        self.put(o)

                if in_blocks:
                    headers += [] if self.row else [self.block_header(axes[-1], ends)]
                    self.blocks(headers, axes[-1], reductions, roots, one_pass)
                else:
                    self.nest(headers, partial(self.inner, axes[-1], ends, roots, partial(one_pass, "v")))
                aside.update(to_put)
                if self.partial:
                    self.added_up("t" if in_blocks else "v")
                for r in reductions:
                    v = loops.values[r]
                    if in_blocks:
                        self.line(f"v{r} = f32(t{r})" if v.data == "sum" and v.dtype is float32 else f"v{r} = t{r}")
                    self.known[r] = f"v{r}"
            for o in self.outputs(stage, full=False):
                self.put(o)

    def added_up(self, prefix: str) -> None:
        """After a piece of a reduction: store its partial result. The last piece to finish combines all partial results in order."""
        for r in self.partial:
            self.line(f"m.store(part{r}, {self.places[r]}, part, {prefix}{r})")
        self.line(f"pieces = max(1, (n0 + {PART - 1}) // {PART})")
        self.line("if count_up(done, 0, 1) == pieces - 1:")
        self.depth += 1
        for r, dtype in self.partial.items():
            kind, total = str(self.loops.values[r].data), f"{prefix}{r}"
            self.line(f"{total} = {start_of(kind, dtype)}")
            self.line("for other in range(pieces):")
            other = f"m.load(part{r}, {self.places[r]}, other)"
            self.line(f"    {total} = {combine(kind, total, other, dtype)}")

    def blocks(
        self,
        headers: list[str],
        last: int,
        reductions: list[int],
        roots: Iterable[int],
        one_pass: Callable[[str], None],
    ) -> None:
        """A pass whose sums are added in blocks of the last axis; a block's own total is called `b<number>`."""

        def block() -> None:
            for r in reductions:
                v = self.loops.values[r]
                self.line(f"b{r} = {start_of(str(v.data), v.dtype)}")
            found = self.made_in_blocks(roots)
            if found:
                self.line(f"end = min(at + {BLOCK}, n{last})")
                self.prepare(found)
            end = "end" if found else f"min(at + {BLOCK}, n{last})"
            self.along(last, f"at, {end}", lambda: one_pass("b"))
            for r in reductions:
                v = self.loops.values[r]
                x = f"f64(b{r})" if v.data == "sum" and v.dtype is float32 else f"b{r}"
                self.line(f"t{r} = {combine(str(v.data), f't{r}', x, v.dtype)}")

        self.nest(headers, block)

    def collected(self, roots: Iterable[int], outputs: Iterable[int], along: Callable[[], None]) -> None:
        """A pass over the same element of several rows: separate loops gather the elements and scatter the results.

        LLVM does not vectorize over such strides; the loop between works on contiguous elements.
        """
        loops, last = self.loops, self.loops.kept_axes[-1]
        header, place = [f"for i{last} in range(at, end):"], f"i{last} - at"
        row = self.index(loops.reduced_axes)
        there = f"{row if row.isidentifier() else f'({row})'} * {SOME_ROWS} + {place}"
        for number in self.not_known(roots, "load"):
            v = loops.values[number]
            if not loops.is_full(number) or last not in v.axes:
                continue
            name = f"got{number}"
            if number not in self.buffered:  # later passes find it there
                length = " * ".join(f"n{a}" for a in loops.reduced_axes)
                self.buffered[number] = self.new_scratch(name, f"{SOME_ROWS} * {length}", v.dtype)
                store = f"m.store({name}, {self.buffered[number]}, {there}, {self.expression(number)})"
                self.nest(header, partial(self.line, store))
            self.known[number] = f"m.load({name}, {self.buffered[number]}, {there})"
        self.put_into = {o: self.new_scratch(f"put{o}", str(SOME_ROWS), self.dtype_of(o)) for o in outputs}
        along()
        for o, array in self.put_into.items():
            to = f"out{o}, {len(loops.loads) + o}, {self.index(loops.stores[o].axes)}"
            self.nest(header, partial(self.line, f"m.store({to}, m.load(put{o}, {array}, {place}))"))
        self.put_into = {}

    def dtype_of(self, output: int) -> DType:
        """An output's element type."""
        return self.loops.values[self.loops.stores[output].value].dtype

    def columns(self, ends: Callable[[int], str], place: str, length: str) -> None:
        """For one element of the outer kept axes: passes with the last of these inside; reductions are vectors along it.

        `place`, `length`: the index of an element in such a vector, and its number of elements.
        """
        loops = self.loops
        last = loops.kept_axes[-1]
        vectors = self.aside

        fetch = partial(self.fetch_aside, "col", place)

        def vector(number: int) -> None:
            if number not in vectors:
                vectors[number] = self.new_scratch(f"col{number}", length, loops.values[number].dtype)

        for stage in range(max(self.stages) + 1):
            reductions, outputs = self.reductions(stage), self.outputs(stage, full=True)
            roots = self.roots(reductions, outputs)
            kept = [k for k in self.kept_values(roots) if k not in vectors]
            for k in kept:
                if last not in loops.values[k].axes and self.stages[k] == 0:
                    self.value(k)  # one number for all elements of the vectors
            kept = [k for k in kept if k not in self.known]
            scans = self.not_known(roots, "scan")
            if reductions or kept or scans:

                def before(
                    reductions: list[int] = reductions, kept: list[int] = kept, scans: list[int] = scans
                ) -> None:
                    fetch()
                    for s in scans:
                        v = loops.values[s]
                        if s not in self.buffered:
                            self.buffered[s] = self.new_scratch(f"scan{s}", f"n{last}", v.dtype)
                        self.line(f"m.store(scan{s}, {self.buffered[s]}, i{last}, {start_of(v.data.kind, v.dtype)})")
                    for k in kept:
                        name = self.value(k)
                        vector(k)
                        self.line(f"m.store(col{k}, {vectors[k]}, {place}, {name})")
                    for r in reductions:
                        v = loops.values[r]
                        vector(r)
                        self.line(f"m.store(col{r}, {vectors[r]}, {place}, {start_of(str(v.data), v.dtype)})")

                self.inner(last, ends(last), kept, before)
            if reductions or outputs:

                def one_pass(
                    reductions: list[int] = reductions, outputs: list[int] = outputs, scans: list[int] = scans
                ) -> None:
                    fetch()
                    for s in scans:
                        self.run_down(s, loops.values[s], last)
                    for r in reductions:
                        v = loops.values[r]
                        total = combine(
                            str(v.data), f"m.load(col{r}, {vectors[r]}, {place})", self.value(v.args[0]), v.dtype
                        )
                        self.line(f"m.store(col{r}, {vectors[r]}, {place}, {total})")
                    for o in outputs:
                        self.put(o)

                along = partial(self.inner, last, ends(last), roots, one_pass)
                if self.short_rows:
                    along = partial(self.collected, roots, outputs, along)
                self.nest([self.header(a, f"0, n{a}") for a in loops.reduced_axes], along)
            done = self.outputs(stage, full=False)
            if done:

                def after(done: list[int] = done) -> None:
                    fetch()
                    for o in done:
                        self.put(o)

                self.inner(last, ends(last), [loops.stores[o].value for o in done], after)
