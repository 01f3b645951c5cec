"""Source text of CPU kernels: loop IR in, a readable Numba module out.

A kernel is a function of flat arrays (the inputs, then the outputs), the sizes of the axes, and the range `[lo, hi)` of the axis
that is split between threads. Three nests of loops serve all kernels:

    pointwise   nothing is reduced: the axes in order
    rows        the last axis is reduced: for each kept element, one pass over the reduced axes per stage of reductions. What
                is costly and needed in a later pass is put aside, the rest is computed again
    columns     the last axis is kept: each pass goes over the reduced axes outside and the last axis inside, as memory lies,
                and reductions accumulate in vectors

Random numbers are made a stretch of the innermost axis at a time (`random_math`), before the loop that uses them. So are running sums
along a row: what they sum is made as vectors, only the sums go step by step, and what is made of them is vectors again. A running sum
down columns is a vector of totals.

What a user wrote is compiled as written: no fast-math flags, integers wrap around, NaN and infinities as in NumPy. Two things
differ from NumPy, and both stay within stated bounds: the functions of `vecmath`, and the order of sums in a row, which are
added in blocks whose totals are added in float64.

float16 and bfloat16 are memory only: arrays of their bits. A kernel computes them in float32, and rounds where it stores them and
where a cast asks for it (`_widened`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..graph.dtypes import DType, bfloat16, float16, float32, float64
from .loops import COSTLY, READS, Loops, Scan, Store, Value
from .row_facts import is_below_zero, passes_over_nan

BLOCK = 4096  # elements of a row that are added in the row's own type: long enough for speed, short enough for accuracy
STRIP = 512  # elements of a row, parts of a block, that are worked on while as many of the next row come from memory
FETCHED = (
    128,
    8192,
)  # lengths of rows for which that is done: others come by themselves, or would not stay in the first cache
_LINE = 64  # bytes of a line of the cache

ROWS = -1
"""Where a kernel is split by the rows of the table that it adds to: whoever has some takes all that goes into them, in order."""

HEADER = '@njit(SIGNATURE, nogil=True, error_model="numpy", cache=True)\ndef kernel('
"""How the function in a kernel's text begins."""

_SHORT = {"float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
          "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "boolean", "float16": "u16", "bfloat16": "u16"}  # fmt: skip
_NARROW = (float16, bfloat16)

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
              "ne": "!=", "and": "&", "or": "|", "xor": "^", "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<",
              "shr": ">>"}  # fmt: skip
_SAME_NAME = {"floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc", "sqrt": "sqrt"}


@dataclass(frozen=True, slots=True)
class NumbaSource:
    """A generated module.

    Attributes:
        text: the module; its function is called `kernel`.
        split: the axis that `lo` and `hi` are a range of; None when the kernel cannot be split, ROWS where they are rows of the table
            that it adds to.
    """

    text: str
    split: int | None


def numba_source(loops: Loops, versions: str = "", in_place: int = 0) -> NumbaSource:
    """Write a kernel; `versions` is put into the text, because what it names decides what the text means.

    The first `in_place` outputs have the same memory as the inputs of the same numbers, which nothing is read from: those
    arguments are there for the caller's convenience. Such a kernel is pointwise, so each element is read before it is written.
    """
    described = "\n".join(f"#   {line}" for line in str(loops).splitlines())
    loops = _widened(loops)
    assert not (in_place and any(loops.reduced)), "a reduction reads again what is overwritten"
    writer = _Writer(loops, in_place)
    split = writer.write()
    used = sorted({_SHORT[v.dtype.name] for v in loops.values} - {"boolean"})
    widths = [
        f"{short} = np.{name}"
        for name, short in _SHORT.items()
        if (short in used or short == "f64") and name not in ("float16", "bfloat16")
    ]
    draws = any(v.op == "random" for v in loops.values)
    arrays = [f"types.Array(types.{_type(v.dtype)}, 1, 'C', readonly=True)" for v in loops.loads]
    arrays += [f"types.Array(types.{_type(loops.values[s.value].dtype)}, 1, 'C')" for s in loops.stores]
    ints = len(loops.reduced) + 2
    names = [f"in{i}" for i in range(len(loops.loads))] + [f"out{i}" for i in range(len(loops.stores))]
    names += [f"n{i}" for i in range(len(loops.reduced))] + ["lo", "hi"]
    text = "\n".join(
        [
            "# Made by Dovetail from:",
            described,
            *([f"# for {versions}"] if versions else []),
            "import numpy as np",
            "from numba import njit, types",
            "",
            f"from dovetail.codegen import {'random_math as r, ' if draws else ''}vecmath as m",
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
            *writer.lines,
            "",
        ]
    )
    return NumbaSource(text, split)


def _widened(loops: Loops) -> Loops:
    """The same loops with narrow floats only in memory, and in casts from and to float32."""
    if not any(v.dtype in _NARROW for v in loops.values):
        return loops
    values: list[Value] = []
    wide: list[int] = []  # for each old value, the number of the one to compute with

    def add(value: Value) -> int:
        values.append(value)
        return len(values) - 1

    for v in loops.values:
        args = tuple(wide[a] for a in v.args)
        if v.dtype not in _NARROW:
            wide.append(add(Value(v.op, args, v.dtype, v.axes, v.data)))
            continue
        if v.op in READS:
            number = add(Value(v.op, args, v.dtype, v.axes, v.data))
        elif v.op == "cast":
            source = args[0]
            if values[source].dtype not in (float32, float64):
                source = add(Value("cast", (source,), float32, v.axes))
            number = add(Value("cast", (source,), v.dtype, v.axes))
        else:
            wide.append(add(Value(v.op, args, float32, v.axes, v.data)))
            continue
        wide.append(add(Value("cast", (number,), float32, v.axes)))
    stores = []
    for s in loops.stores:
        dtype, number = loops.values[s.value].dtype, wide[s.value]
        if dtype in _NARROW:
            number = add(Value("cast", (number,), dtype, values[number].axes))
        stores.append(Store(number, s.axes, None if s.row is None else wide[s.row], s.adds))
    return Loops(loops.reduced, tuple(values), tuple(stores))


def as_passed(array: Any) -> Any:
    """An array as kernels take it: narrow floats as their bits."""
    return array.view(np.uint16) if array.dtype in (float16.np, bfloat16.np) else array


def _type(dtype: DType) -> str:
    return "boolean" if dtype.is_bool else "uint16" if dtype in _NARROW else dtype.name


def _literal(value: object, dtype: DType) -> str:
    if dtype.is_bool:
        return repr(bool(value))
    if dtype.is_floating:
        number = float(value)  # type: ignore[arg-type]
        if not math.isfinite(number):
            return f"{_SHORT[dtype.name]}({'np.nan' if math.isnan(number) else 'np.inf' if number > 0 else '-np.inf'})"
        return f"{_SHORT[dtype.name]}({number!r})"
    return f"{_SHORT[dtype.name]}({value!r})"


def _start(kind: str, dtype: DType) -> str:
    """What a reduction of nothing is."""
    if kind in ("any", "all"):
        return repr(kind == "all")
    if kind in ("sum", "prod"):
        return _literal(0 if kind == "sum" else 1, dtype)
    low = kind == "max"
    if dtype.is_floating:
        return _literal(-math.inf if low else math.inf, dtype)
    return _literal(int(dtype.min if low else dtype.max), dtype)


def _combine(kind: str, total: str, x: str, dtype: DType, *, any_order: bool = False) -> str:
    """One step of a reduction."""
    if kind in ("any", "all"):
        return f"{total} {'|' if kind == 'any' else '&'} {x}"
    if kind in ("max", "min"):
        if dtype.is_floating:
            return f"m.f{kind}imum({total}, {x})"
        return f"m.select({x} {'>' if kind == 'max' else '<'} {total}, {x}, {total})"
    sign = "+" if kind == "sum" else "*"
    if not dtype.is_floating:
        return f"{_SHORT[dtype.name]}({total} {sign} {x})"
    if any_order:
        return f"m.accumulate{'' if kind == 'sum' else '_product'}({total}, {x})"
    return f"{total} {sign} {x}"


class _Writer:
    """The lines of one kernel's body."""

    def __init__(self, loops: Loops, in_place: int = 0) -> None:
        self.loops = loops
        self.in_place = in_place
        self.lines: list[str] = []
        self.depth = 1
        self.stages = loops.stages()
        self.arrays = len(loops.loads) + len(loops.stores)  # and then the scratch arrays
        self.scratch: list[str] = []
        self.known: dict[int, str] = {}  # value -> how it is called where we are
        self.fetched: list[Value] = []  # what is read of the next row meanwhile
        self.aside: dict[int, int] = {}  # value that was put aside -> the array with it
        self.stretch: dict[int, int] = {}  # random value or running sum -> the array with a stretch of it
        self.innermost = len(loops.reduced) - 1

    # --- text ------------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def nest(self, headers: Iterable[str], body: Callable[[], None]) -> None:
        """Loops inside one another. What `body` computes is not known after them."""
        before, depth = dict(self.known), self.depth
        for header in headers:
            self.line(header)
            self.depth += 1
        body()
        self.known, self.depth = before, depth

    def inner(self, axis: int, ends: str, roots: Iterable[int], body: Callable[[], None]) -> None:
        """The innermost loop, from a start to an end; `roots`: what it needs. What is made in stretches is made before."""
        found = self.in_stretches(roots)
        if not found:
            self.strips(axis, ends, body)
            return
        end = ends.split(", ")[1]

        def stretch() -> None:
            self.line(f"end = min(at + {BLOCK}, {end})")
            self.prepare(found)
            self.nest([self.header(axis, "at, end")], body)

        self.nest([self.stretches(axis, ends)], stretch)

    def header(self, axis: int, ends: str) -> str:
        """A loop along an axis."""
        start, end = ends.split(", ", 1)
        if self.goes_back(axis):
            return f"for i{axis} in range({end} - 1, {start} - 1, -1):"
        return f"for i{axis} in range({ends.removeprefix('0, ')}):"

    def stretches(self, axis: int, ends: str) -> str:
        """A loop over the stretches of an axis; `at` is where one begins."""
        start, end = ends.split(", ")
        if self.goes_back(axis):
            return f"for at in range(({end} - 1) // {BLOCK} * {BLOCK}, -1, -{BLOCK}):"
        return f"for at in range({start}, {end}, {BLOCK}):"

    def goes_back(self, axis: int) -> bool:
        """Whether loops along an axis go from its end, as the running sums along it do."""
        return self.loops.backwards and self.loops.reduced[axis]

    def strips(self, axis: int, ends: str, body: Callable[[], None]) -> None:
        """The innermost loop; of a second pass over a row a strip at a time, while the same strip of the next row is fetched."""
        if not self.fetched:
            self.nest([self.header(axis, ends)], body)
            return
        start, end = ends.split(", ", 1)
        length = " * ".join(f"n{a}" for a in self.loops.reduced_axes)
        self.scratch.append(f"    ahead = n{axis} if {FETCHED[0]} <= {length} <= {FETCHED[1]} else 0")

        def strip() -> None:
            self.line(f"stop = min(part + {STRIP}, n{axis})")
            for v in self.fetched:
                lines = f"for i{axis} in range(part, min(stop, ahead), {_LINE // v.dtype.size}):"
                fetch = f"m.fetch(in{v.data}, {self.index(v.axes)} + {length})"
                self.nest([lines], partial(self.line, fetch))
            self.nest([f"for i{axis} in range(part, stop):"], body)

        self.nest([f"for part in range({start}, {end}, {STRIP}):"], strip)

    def read_first(self) -> list[Value]:
        """What the first pass over a row reads of it, where the next row's lies right behind it."""
        values, kept = self.loops.values, self.loops.kept_axes
        if not kept:
            return []
        needed = {values[r].args[0] for r in self.reductions(0)}
        needed |= {self.loops.stores[o].value for o in self.outputs(0, full=True)}
        for i in range(len(values) - 1, -1, -1):
            if i in needed and values[i].op != "reduce":
                needed.update(values[i].args)
        last = (kept[-1], *self.loops.reduced_axes)
        return [values[i] for i in sorted(needed) if values[i].op == "load" and values[i].axes[-len(last) :] == last]

    def in_stretches(self, roots: Iterable[int]) -> list[int]:
        """The values that are made in stretches of the innermost axis, of those that these are made of and that are not known."""
        values, inner = self.loops.values, self.innermost
        drawn = [i for i in self.not_known(roots, "random") if inner in values[i].axes]
        return sorted(drawn + (self.not_known(roots, "scan") if self.loops.reduced[inner] else []))

    def not_known(self, roots: Iterable[int], op: str) -> list[int]:
        """The values of one kind that these are made of, and that are not known."""
        todo, seen = list(roots), set()
        while todo:
            i = todo.pop()
            if i not in seen and i not in self.known and i not in self.aside and self.loops.values[i].op != "reduce":
                seen.add(i)
                todo.extend(self.loops.values[i].args)
        return sorted(i for i in seen if self.loops.values[i].op == op)

    def prepare(self, numbers: Iterable[int]) -> None:
        """Make a stretch of values, from position `at` of the innermost axis up to `end`."""
        for i in numbers:
            v = self.loops.values[i]
            name = f"{v.op}{i}"
            if i not in self.stretch:
                size = f"{BLOCK} + r.MARGIN" if v.op == "random" else f"{BLOCK}"
                self.stretch[i] = self.new_scratch(name, size, v.dtype)
            if v.op == "random":
                stream = ", ".join(self.value(a) for a in v.args)
                first = self.index(v.axes, last="at")
                self.line(f"at{i} = r.{v.data}{8 * v.dtype.size}({name}, {first}, end - at, {stream}) - at")
            else:
                self.run_along(i, v)
            begin = f"+ at{i}" if v.op == "random" else "- at"
            self.known[i] = f"m.load({name}, {self.stretch[i]}, i{self.innermost} {begin})"

    def run_along(self, number: int, v: Value) -> None:
        """A stretch of a running sum: what is summed, as vectors, and then one step after the other."""
        place, last = f"scan{number}, {self.stretch[number]}", self.innermost
        how: Scan = v.data

        def summed() -> None:
            self.fetch_aside("row", self.index(self.loops.reduced_axes))
            self.line(f"m.store({place}, i{last} - at, {self.value(v.args[0])})")

        def step() -> None:
            total = f"total{number}"
            self.line(f"x = m.load({place}, k)")
            steps = [f"{total} = {_combine(how.kind, total, 'x', v.dtype)}", f"m.store({place}, k, {total})"]
            for line in reversed(steps) if how.exclusive else steps:
                self.line(line)

        self.nest([f"for i{last} in range(at, end):"], summed)
        self.nest([f"for k in range({'end - at - 1, -1, -1' if how.reverse else 'end - at'}):"], step)

    def fetch_aside(self, name: str, place: str) -> None:
        """From here on, what was put aside is read from there."""
        for number, array in self.aside.items():
            self.known[number] = f"m.load({name}{number}, {array}, {place})"

    def run_down(self, number: int, v: Value, last: int) -> None:
        """A step of a running sum down columns, whose totals are a vector."""
        place, how, total = f"scan{number}, {self.stretch[number]}, i{last}", v.data, f"total{number}"
        self.line(f"{total} = m.load({place})")
        self.line(f"v{number} = {_combine(how.kind, total, self.value(v.args[0]), v.dtype)}")
        self.line(f"m.store({place}, v{number})")
        self.known[number] = total if how.exclusive else f"v{number}"

    def new_scratch(self, name: str, size: str, dtype: DType) -> int:
        """A vector of the kernel's own; its number among the arrays."""
        self.scratch.append(f"    {name} = np.empty({size}, np.{'bool_' if dtype.is_bool else dtype.name})")
        self.arrays += 1
        return self.arrays - 1

    def index(self, axes: Iterable[int], row: str = "", last: str = "") -> str:
        """Where the current element is in a flat array that has these axes; or in a table, in this row.

        `last`: the place along the last axis, if it is not the current one.
        """
        out = row
        places = {a: f"i{a}" for a in axes}
        if last:
            places[max(places)] = last
        for a, i in places.items():
            out = f"({out}) * n{a} + {i}" if "+" in out else f"{out} * n{a} + {i}" if out else i
        return out or "0"

    # --- values ----------------------------------------------------------------------------------------------------

    def value(self, number: int) -> str:
        """Name of a value; it, and what it needs, is computed here unless it is known."""
        known = self.known.get(number)
        if known is not None:
            return known
        v = self.loops.values[number]
        if v.op == "constant":
            return _literal(v.data, v.dtype)
        assert v.op != "reduce", "a reduction is known before it is used"
        text = self.expression(v)
        name = self.known[number] = f"v{number}"
        self.line(f"{name} = {text}")
        return name

    def expression(self, v: Value) -> str:
        """What a value is, in Python."""
        if v.op == "load":
            if v.data < self.in_place:
                return f"m.load(out{v.data}, {len(self.loops.loads) + v.data}, {self.index(v.axes)})"
            return f"m.load(in{v.data}, {v.data}, {self.index(v.axes)})"
        if v.op == "gather":
            if v.data < self.in_place:
                place = self.index(self.loops.row_axes(v), self.value(v.args[0]))
                return f"m.load(out{v.data}, {len(self.loops.loads) + v.data}, {place})"
            return f"m.load(in{v.data}, {v.data}, {self.index(self.loops.row_axes(v), self.value(v.args[0]))})"
        short = _SHORT[v.dtype.name]
        if v.op == "position":
            return f"{short}(i{v.axes[0]})"
        if v.op == "count":
            return f"{short}({' * '.join(f'n{a}' for a in self.loops.reduced_axes) or '1'})"
        args = [self.value(a) for a in v.args]
        if v.op == "random":
            return f"r.{v.data}{8 * v.dtype.size}_at({self.index(v.axes)}, {', '.join(args)})"
        source = self.loops.values[v.args[-1]].dtype
        floating = source.is_floating
        if v.op == "div" and self.is_part(v):
            return f"m.part_of{8 * v.dtype.size}({', '.join(args)})"
        if v.op in _OPERATORS:
            text = f"{args[0]} {_OPERATORS[v.op]} {args[1]}"
            return text if v.dtype.is_bool or v.dtype.is_floating else f"{short}({text})"
        if v.op == "exp" and v.dtype is float32 and is_below_zero(self.loops, v.args[0]):
            return f"m.exp_below32({args[0]})"
        if v.op in COSTLY:
            return f"m.{v.op}{8 * v.dtype.size}({', '.join(args)})"
        if v.op in _SAME_NAME:
            return f"m.{_SAME_NAME[v.op]}({args[0]})"
        (a, *rest) = args
        if v.op == "select":
            return f"m.select({a}, {', '.join(rest)})"
        if v.op in ("minimum", "maximum"):
            if floating:
                return f"m.f{v.op}({a}, {rest[0]})"
            return f"m.select({a} {'<' if v.op == 'minimum' else '>'} {rest[0]}, {a}, {rest[0]})"
        if v.op == "neg":
            return f"-{a}" if floating else f"{short}({short}(0) - {a})"
        if v.op == "abs":
            if floating or source.is_unsigned:
                return f"m.fabs({a})" if floating else a
            return f"m.select({a} < {short}(0), {short}({short}(0) - {a}), {a})"
        if v.op == "sign":
            below = f"m.select({a} < {short}(0), {short}(-1), {a})" if not source.is_unsigned else a
            return f"m.select({a} > {short}(0), {short}(1), {below})"
        if v.op == "cast":
            if v.dtype in _NARROW:
                if source is float64:  # NumPy rounds to a bfloat16 by way of float32, to a float16 at once
                    a = f"m.towards_odd({a})" if v.dtype is float16 else f"f32({a})"
                return f"m.to_{v.dtype.name}({a})"
            if source in _NARROW:
                return f"m.from_{source.name}({a})"
            if v.dtype.is_bool:
                return f"{a} != {_literal(0, source)}"
            return f"{short}({a})"
        return {
            "not": f"not {a}",
            "invert": f"{short}(~{a})" if v.op == "invert" else "",
            "isnan": f"{a} != {a}",
            "isinf": f"m.fabs({a}) == {_SHORT[source.name]}(np.inf)",
            "isfinite": f"m.fabs({a}) < {_SHORT[source.name]}(np.inf)",
        }[v.op]

    def is_part(self, v: Value) -> bool:
        """Whether a quotient is that of an exponential and the sum of these along rows, as in a softmax: from 0 to 1, one divisor."""
        kept, reduced = self.loops.kept_axes, self.loops.reduced_axes
        if kept and reduced and kept[-1] > reduced[-1]:
            return False  # each column has its own
        part, total = (self.loops.values[a] for a in v.args)
        return part.op == "exp" and total.op == "reduce" and total.data == "sum" and total.args[0] == v.args[0]

    def put(self, output: int) -> None:
        """Store an output's current element."""
        store = self.loops.stores[output]
        array = f"out{output}, {len(self.loops.loads) + output}"
        place = self.index(store.axes, "" if store.row is None else self.value(store.row))
        value = self.value(store.value)
        if store.adds:
            value = _combine("sum", f"m.load({array}, {place})", value, self.loops.values[store.value].dtype)
        self.line(f"m.store({array}, {place}, {value})")

    # --- nests -----------------------------------------------------------------------------------------------------

    def write(self) -> int | None:
        """Write the body; the axis that can be split."""
        if any(s.adds for s in self.loops.stores):
            self.added()
            self.lines[:0] = self.scratch
            return ROWS
        kept, reduced = self.loops.kept_axes, self.loops.reduced_axes
        columns = bool(reduced and kept) and kept[-1] > reduced[-1]
        outer = kept[:-1] if columns or not reduced else kept
        split = kept[0] if kept else None

        def ends(axis: int) -> str:
            return "lo, hi" if axis == split else f"0, n{axis}"

        body = (lambda: self.columns(ends)) if columns else self.rows if reduced else lambda: self.pointwise(ends)
        self.nest([self.header(a, ends(a)) for a in outer], body)
        self.lines[:0] = self.scratch
        return split

    def added(self) -> None:
        """Sums into the rows of a table: whoever has its rows from lo to hi goes along everything, and takes what goes into those."""
        (store,) = self.loops.stores
        assert store.row is not None and not any(self.loops.reduced)
        width = " * ".join(f"n{a}" for a in store.axes) or "1"
        zero = _literal(0, self.loops.values[store.value].dtype)
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
        """The innermost loop when nothing is reduced."""

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

    def outputs(self, stage: int, full: bool) -> list[int]:
        """Outputs that can be stored after so many reductions: those with the reduced axes, or those without."""
        axes = len(self.loops.reduced)
        found = [i for i, s in enumerate(self.loops.stores) if self.stages[s.value] == stage]
        return [i for i in found if (len(self.loops.stores[i].axes) == axes) == full]

    def reductions(self, stage: int) -> list[int]:
        """Reductions whose operands are there after so many reductions."""
        return [i for i, v in enumerate(self.loops.values) if v.op == "reduce" and self.stages[i] == stage + 1]

    def kept_values(self, numbers: Iterable[int]) -> list[int]:
        """The values without reduced axes that these need directly, loads and constants left out."""
        out: dict[int, None] = {}
        todo = list(numbers)
        seen: set[int] = set()
        while todo:
            i = todo.pop()
            if i in seen:
                continue
            seen.add(i)
            v = self.loops.values[i]
            if not self.loops.is_full(i) and v.op not in ("load", "constant", "count"):
                out[i] = None
            elif v.op != "reduce":
                todo.extend(v.args)
        return sorted(out)

    def later_uses(self, stage: int) -> set[int]:
        """Full values of up to this stage that are costly, random, or gathered from here and there, and that a later pass needs."""
        needed: set[int] = set()
        for later in range(stage + 1, max(self.stages) + 1):
            roots = [self.loops.values[r].args[0] for r in self.reductions(later)]
            roots += [self.loops.stores[o].value for o in self.outputs(later, full=True)]
            todo = list(roots)
            while todo:
                i = todo.pop()
                v = self.loops.values[i]
                scattered = v.op == "gather" and self.loops.is_full(v.args[0]) and v.dtype not in _NARROW
                costly = v.op in COSTLY or v.op in ("random", "scan") or scattered
                if self.loops.is_full(i) and costly and self.stages[i] <= stage:
                    needed.add(i)
                elif v.op != "reduce":
                    todo.extend(v.args)
        return needed

    def rows(self) -> None:
        """For one kept element: a pass over the reduced axes per stage."""
        axes = self.loops.reduced_axes
        length = " * ".join(f"n{a}" for a in axes)
        aside = self.aside
        loops = self.loops

        for stage in range(max(self.stages) + 1):
            reductions, outputs = self.reductions(stage), self.outputs(stage, full=True)
            if reductions or outputs:
                in_blocks = any(
                    loops.values[r].data in ("sum", "prod") and loops.values[r].dtype.is_floating for r in reductions
                )
                to_put = sorted(self.later_uses(stage) - aside.keys())
                for r in reductions:
                    v = loops.values[r]
                    wide = in_blocks and v.data == "sum" and v.dtype is float32
                    self.line(
                        f"{'t' if in_blocks else 'v'}{r} = {'f64(0.0)' if wide else _start(str(v.data), v.dtype)}"
                    )
                headers = [self.header(a, f"0, n{a}") for a in axes[:-1]]
                # Kept values are computed before the loop that uses them, once.
                roots = [loops.values[r].args[0] for r in reductions] + [loops.stores[o].value for o in outputs]
                for k in self.kept_values(roots):
                    self.value(k)
                for s in self.not_known(roots + to_put, "scan"):
                    self.line(f"total{s} = {_start(loops.values[s].data.kind, loops.values[s].dtype)}")

                def one_pass(
                    prefix: str,
                    reductions: list[int] = reductions,
                    outputs: list[int] = outputs,
                    to_put: list[int] = to_put,
                ) -> None:
                    self.fetch_aside("row", self.index(axes))
                    for number in to_put:
                        if self.needed_here(number, reductions, outputs):
                            name = self.value(number)
                            array = aside[number] = self.new_scratch(f"row{number}", length, loops.values[number].dtype)
                            self.line(f"m.store(row{number}, {array}, {self.index(axes)}, {name})")
                    for r in reductions:
                        v = loops.values[r]
                        x = self.value(v.args[0])
                        total = f"{prefix}{r}"
                        combined = _combine(str(v.data), total, x, v.dtype, any_order=True)
                        self.line(f"{total} = {f'm.larger({total}, {x})' if passes_over_nan(loops, r) else combined}")
                    for o in outputs:
                        self.put(o)

                needed = roots + to_put
                self.fetched = self.read_first() if stage == 1 and not self.in_stretches(needed) else []
                if in_blocks:
                    self.blocks(headers, axes[-1], reductions, needed, one_pass)
                else:
                    last = partial(self.inner, axes[-1], f"0, n{axes[-1]}", needed, partial(one_pass, "v"))
                    self.nest(headers, last)
                for r in reductions:
                    v = loops.values[r]
                    if in_blocks:
                        self.line(f"v{r} = f32(t{r})" if v.data == "sum" and v.dtype is float32 else f"v{r} = t{r}")
                    self.known[r] = f"v{r}"
            for o in self.outputs(stage, full=False):
                self.put(o)

    def needed_here(self, number: int, reductions: list[int], outputs: list[int]) -> bool:
        """Whether this pass computes a value anyway."""
        todo = [self.loops.values[r].args[0] for r in reductions] + [self.loops.stores[o].value for o in outputs]
        while todo:
            i = todo.pop()
            if i == number:
                return True
            if self.loops.values[i].op != "reduce":
                todo.extend(self.loops.values[i].args)
        return False

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
                self.line(f"b{r} = {_start(str(v.data), v.dtype)}")
            found = self.in_stretches(roots)
            if found:
                self.line(f"end = min(at + {BLOCK}, n{last})")
                self.prepare(found)
            end = "end" if found else f"min(at + {BLOCK}, n{last})"
            self.strips(last, f"at, {end}", lambda: one_pass("b"))
            for r in reductions:
                v = self.loops.values[r]
                x = f"f64(b{r})" if v.data == "sum" and v.dtype is float32 else f"b{r}"
                self.line(f"t{r} = {_combine(str(v.data), f't{r}', x, v.dtype)}")

        self.nest([*headers, self.stretches(last, f"0, n{last}")], block)

    def columns(self, ends: Callable[[int], str]) -> None:
        """For one element of the outer kept axes: passes with the last axis inside; reductions are vectors along it."""
        loops = self.loops
        last = loops.kept_axes[-1]
        vectors = self.aside

        fetch = partial(self.fetch_aside, "col", f"i{last}")

        def vector(number: int) -> None:
            if number not in vectors:
                vectors[number] = self.new_scratch(f"col{number}", f"n{last}", loops.values[number].dtype)

        for stage in range(max(self.stages) + 1):
            reductions, outputs = self.reductions(stage), self.outputs(stage, full=True)
            roots = [loops.values[r].args[0] for r in reductions] + [loops.stores[o].value for o in outputs]
            kept = [k for k in self.kept_values(roots) if k not in vectors]
            scans = self.not_known(roots, "scan")
            if reductions or kept or scans:

                def before(
                    reductions: list[int] = reductions, kept: list[int] = kept, scans: list[int] = scans
                ) -> None:
                    fetch()
                    for s in scans:
                        v = loops.values[s]
                        if s not in self.stretch:
                            self.stretch[s] = self.new_scratch(f"scan{s}", f"n{last}", v.dtype)
                        self.line(f"m.store(scan{s}, {self.stretch[s]}, i{last}, {_start(v.data.kind, v.dtype)})")
                    for k in kept:
                        name = self.value(k)
                        vector(k)
                        self.line(f"m.store(col{k}, {vectors[k]}, i{last}, {name})")
                    for r in reductions:
                        v = loops.values[r]
                        vector(r)
                        self.line(f"m.store(col{r}, {vectors[r]}, i{last}, {_start(str(v.data), v.dtype)})")

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
                        total = _combine(
                            str(v.data), f"m.load(col{r}, {vectors[r]}, i{last})", self.value(v.args[0]), v.dtype
                        )
                        self.line(f"m.store(col{r}, {vectors[r]}, i{last}, {total})")
                    for o in outputs:
                        self.put(o)

                along = partial(self.inner, last, ends(last), roots, one_pass)
                self.nest([self.header(a, f"0, n{a}") for a in loops.reduced_axes], along)
            done = self.outputs(stage, full=False)
            if done:

                def after(done: list[int] = done) -> None:
                    fetch()
                    for o in done:
                        self.put(o)

                self.inner(last, ends(last), [loops.stores[o].value for o in done], after)
