"""The loop IR: what one fused kernel computes, as values over a space of axes.

A kernel runs over a *space*: a few axes, some of which may be *reduced*. Each value varies over some of the axes and is made
once for each combination of those. It is broadcast to a user that varies over more axes. A value is *full* if it varies over a
reduced axis, else *kept*. A reduction makes a kept value from a full one, over all reduced axes. So a softmax over rows is one
kernel, and broadcasting, several outputs and several reductions need no concepts of their own:

    loops over d0, reducing d1
      v0: float32[d0, d1] = load in0
      v1: float32[d0] = reduce max v0
      v2: float32[d0, d1] = sub v0 v1
      v3: float32[d0, d1] = exp v2
      v4: float32[d0] = reduce sum v3
      v5: float32[d0, d1] = div v3 v4
      store out0[d0, d1] = v5

A schedule (`schedule`) decides how loops are nested, and which values are saved or recomputed between two of them. Sizes are no part of
a nest, so one kernel serves every batch size. Nor are names, so equal kernels of different graphs are one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...graph.core.dtypes import NUMBERS, DType, bool_, float32

FLOAT32_ONLY = frozenset(("sin", "cos", "tan", "pow", "erfc", "lgamma"))
"""Functions that have no form for float64."""
COSTLY = FLOAT32_ONLY | {
    *("exp", "expm1", "log", "log1p", "tanh", "erf", "sinh", "cosh", "asinh", "acosh", "atanh", "asin", "acos", "atan")
}
"""Functions whose results are saved rather than recomputed: each costs about as much as ten additions."""

# Operations on one number, by how many they take. Their meaning is NumPy's.
UNARY = (COSTLY - {"pow"}) | {
    *("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "sqrt", "isnan", "isinf", "isfinite", "not", "invert", "cast")
}  # fmt: skip
BINARY = frozenset(
    ("add", "sub", "mul", "div", "pow", "minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor",
     "bitand", "bitor", "bitxor", "shl", "shr")
)  # fmt: skip
TO_BOOL = frozenset(["lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite", "not", "and", "or", "xor"])
READS = frozenset(["load", "gather"])
"""Values that are read from inputs."""
SET, ADD, MAX = "set", "add", "max"
"""What a store does with the old value."""
REDUCTIONS = frozenset(["sum", "prod", "max", "min", "any", "all"])


def identity_of(kind: str, dtype: DType) -> bool | int | float:
    """The value of a reduction without elements."""
    if kind in ("any", "all"):
        return kind == "all"
    if kind in ("sum", "prod"):
        return int(kind == "prod")
    if dtype.is_floating:
        return -math.inf if kind == "max" else math.inf
    return int(dtype.min if kind == "max" else dtype.max)


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a kernel.

    Attributes:
        op: `load`, `gather` (of the row of a table that `args` names, the element at the axes that the row's number does not
            vary over), `constant`, `count` (how many elements are reduced), `size` (a number that a launch gives, by name),
            `position` (along its one axis, from 0), `random` (of
            the stream whose key and draw `args` are, the number at the element's place in an array of all its axes), `scan` (the
            running sum or product along the reduced axis, which is only one then: see `Scan`), `reduce`,
            `select`, `quotient` (of integers; what is negative is rounded in any direction), or one of UNARY and BINARY.
        args: numbers of the values that it is made from.
        dtype: element type.
        axes: the axes that it varies over, ascending.
        data: the input's number for `load` and `gather`; the number for `constant`; the name for `size`; the kind for `reduce`; for
            `random` `uniform` or `normal` (`graph.philox`), a `Scan` for `scan`.
    """

    op: str
    args: tuple[int, ...]
    dtype: DType
    axes: tuple[int, ...]
    data: Any = None


@dataclass(frozen=True, slots=True)
class Scan:
    """The parameters of a running sum or product. All scans of one kernel have one direction.

    Attributes:
        kind: `sum` or `prod`.
        reverse: from the end of the axis to its beginning.
        exclusive: up to each element, without itself.
    """

    kind: str
    reverse: bool = False
    exclusive: bool = False

    def __str__(self) -> str:
        return self.kind + " reverse" * self.reverse + " exclusive" * self.exclusive


@dataclass(frozen=True, slots=True)
class Store:
    """An output.

    Attributes:
        value: what is stored.
        axes: those that the output has; the value is broadcast over those that it lacks. Of a table, those of a row.
        row: of a table, the value that says into which of its rows this goes: a scatter. Elsewhere the table stays as it was.
        how: what becomes of what is there: SET, ADD or MAX. With the latter two, several values may go into one row.
    """

    value: int
    axes: tuple[int, ...]
    row: int | None = None
    how: str = SET


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass over the reduced axes computes, one for each stage of reductions.

    Attributes:
        reductions: values. outputs: numbers of outputs with reduced axes. roots: the values that these are made of.
        after: numbers of outputs without reduced axes, which are stored after it.
    """

    reductions: tuple[int, ...]
    outputs: tuple[int, ...]
    roots: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoopNest:
    """One fused kernel.

    Attributes:
        reduced: for each axis of the space, whether it is reduced.
        values: in order; each is made from earlier ones.
        stores: the outputs, in order. Each has all axes, or all kept ones.
    """

    reduced: tuple[bool, ...]
    values: tuple[Value, ...]
    stores: tuple[Store, ...]

    @property
    def loads(self) -> list[Value]:
        """The inputs, in order; of a table that is read at several places, one of these."""
        found = {int(v.data): v for v in self.values if v.op in READS}
        return [found[i] for i in sorted(found)]

    def row_axes(self, gathered: Value) -> tuple[int, ...]:
        """The axes along which a table's rows lie."""
        picked = self.values[gathered.args[0]].axes
        return tuple(a for a in gathered.axes if a not in picked)

    def may_be_absent(self, gathered: Value) -> bool:
        """Whether the row number may be -1, for no row. Then the element is 0."""
        row = self.values[gathered.args[0]]
        return row.op == "select" and self.values[row.args[2]].data == -1

    def is_absent_unless(self, number: int, condition: int) -> bool:
        """Whether a value is an element of a row that is absent exactly where a condition does not hold."""
        v = self.values[number]
        return v.op == "gather" and self.may_be_absent(v) and self.values[v.args[0]].args[0] == condition

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of the numbers that a launch gives, in order."""
        return tuple(str(v.data) for v in self.values if v.op == "size")

    def axes_of(self, store: Store) -> tuple[int, ...]:
        """The axes over which an output is stored: of a table, also those that the row varies over."""
        return store.axes if store.row is None else (*self.values[store.row].axes, *store.axes)

    @property
    def kept_axes(self) -> tuple[int, ...]:
        """The axes that are not reduced."""
        return tuple(i for i, r in enumerate(self.reduced) if not r)

    @property
    def reduced_axes(self) -> tuple[int, ...]:
        """The axes that are reduced."""
        return tuple(i for i, r in enumerate(self.reduced) if r)

    @property
    def backwards(self) -> bool:
        """Whether scans go along the reduced axis from its end."""
        return any(v.op == "scan" and v.data.reverse for v in self.values)

    def is_full(self, number: int) -> bool:
        """Whether a value varies over a reduced axis, or there is none and it varies with the space."""
        return any(self.reduced[a] for a in self.values[number].axes)

    def backward_slice(self, roots: Iterable[int], ends: Callable[[int], bool] = lambda i: False) -> list[int]:
        """The roots and all values that they depend on, in order. It stops at values for which `ends` holds."""
        found: set[int] = set()
        todo = list(roots)
        while todo:
            i = todo.pop()
            if i not in found:
                found.add(i)
                todo.extend(() if ends(i) else self.values[i].args)
        return sorted(found)

    def rewritten(self, write: Callable[[LoopNestBuilder, Value], int]) -> tuple[LoopNest, dict[int, int]]:
        """The same loops with each value as `write` adds it, and the new number of each value that is still needed.

        A value may get another type. Stored values are cast back to their own.
        """
        builder = LoopNestBuilder(self.reduced)
        new: list[int] = []
        for v in self.values:
            new.append(write(builder, replace(v, args=tuple(new[a] for a in v.args))))
        for s in self.stores:
            value = builder.cast(new[s.value], self.values[s.value].dtype)
            builder.store(value, s.axes, None if s.row is None else new[s.row], s.how)
        loops, _ = builder.finish()
        live = {number: i for i, number in enumerate(builder.live())}
        return loops, {i: live[number] for i, number in enumerate(new) if number in live}

    def stages(self) -> list[int]:
        """For each value, the longest chain of reductions that it depends on."""
        out: list[int] = []
        for v in self.values:
            stage = max((out[a] for a in v.args), default=0)
            out.append(stage + 1 if v.op == "reduce" else stage)
        return out

    def passes(self) -> list[Pass]:
        """The passes over the reduced axes, in order."""
        stages, found = self.stages(), []
        for stage in range(max(stages, default=0) + 1):
            reductions = tuple(i for i, v in enumerate(self.values) if v.op == "reduce" and stages[i] == stage + 1)
            ready = [i for i, s in enumerate(self.stores) if stages[s.value] == stage]
            full = tuple(i for i in ready if any(self.reduced[a] for a in self.axes_of(self.stores[i])))
            roots = [self.values[r].args[0] for r in reductions] + [self.stores[o].value for o in full]
            found.append(Pass(reductions, full, tuple(roots), tuple(i for i in ready if i not in full)))
        return found

    def __str__(self) -> str:
        kept, reduced = (", ".join(f"d{i}" for i in axes) for axes in (self.kept_axes, self.reduced_axes))
        lines = ["loops over " + (kept or "nothing") + (f", reducing {reduced}" if reduced else "")]
        for i, v in enumerate(self.values):
            data = {"load": f" in{v.data}", "constant": f" {v.data!r}"}.get(v.op, f" {v.data}" if v.data else "")
            args = "".join(f" v{a}" for a in v.args)
            if v.op == "gather":
                data, args = f" in{v.data}", _axes(self.row_axes(v), v.args[0])
            lines.append(f"  v{i}: {v.dtype.name}{_axes(v.axes)} = {v.op}{data}{args}")
        for i, s in enumerate(self.stores):
            place = _axes(s.axes, s.row)
            lines.append(f"  {_VERBS[s.how]} out{i}{place} {_SIGNS[s.how]} v{s.value}")
        return "\n".join(lines)


_VERBS = {SET: "store", ADD: "add", MAX: "max"}
_SIGNS = {SET: "=", ADD: "+=", MAX: "max="}


def _axes(axes: Iterable[int], row: int | None = None) -> str:
    inner = ", ".join([*([] if row is None else [f"v{row}"]), *(f"d{a}" for a in axes)])
    return f"[{inner}]" if inner else ""


class LoopNestBuilder:
    """Builds a `LoopNest`. Equal values are made once; `finish` drops dead values and joins axes."""

    def __init__(self, reduced: Sequence[bool]) -> None:
        self._reduced = tuple(reduced)
        self._values: list[Value] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._stores: list[Store] = []

    def dtype(self, number: int) -> DType:
        """A value's element type."""
        return self._values[number].dtype

    @property
    def operations(self) -> frozenset[str]:
        """The names of the operations so far."""
        return frozenset(v.op for v in self._values)

    @property
    def depth(self) -> int:
        """The length of the longest chain of values."""
        depths: list[int] = []
        for v in self._values:
            depths.append(1 + max([depths[a] for a in v.args], default=0))
        return max(depths, default=0)

    def constant_of(self, number: int) -> Any:
        """The number that a value is; None if it is no constant."""
        v = self._values[number]
        return v.data if v.op == "constant" else None

    def load_of(self, number: int) -> int | None:
        """The input that a value is an element of; None when it is computed."""
        v = self._values[number]
        return v.data if v.op == "load" else None

    def load(self, position: int, dtype: DType, axes: Iterable[int]) -> int:
        """An element of an input."""
        return self.add(Value("load", (), dtype, tuple(sorted(axes)), position))

    def gather(self, position: int, dtype: DType, row: int, axes: Iterable[int]) -> int:
        """An element of a table, which is an input: of the row with the number `row`, whose elements lie along `axes`."""
        every = sorted({*axes, *self._values[row].axes})
        return self.add(Value("gather", (row,), dtype, tuple(every), position))

    def constant(self, value: bool | int | float, dtype: DType) -> int:
        """A number."""
        return self.add(Value("constant", (), dtype, (), value))

    def count(self, dtype: DType) -> int:
        """How many elements each reduction takes."""
        return self.add(Value("count", (), dtype, ()))

    def size(self, name: str, dtype: DType) -> int:
        """A number that a launch gives."""
        return self.add(Value("size", (), dtype, (), name))

    def position(self, axis: int, dtype: DType) -> int:
        """Where an element is along an axis."""
        return self.add(Value("position", (), dtype, (axis,)))

    def random(self, kind: str, dtype: DType, key: int, draw: int, axes: Iterable[int]) -> int:
        """A random number of a stream: that at the element's place in an array of these axes."""
        return self.add(Value("random", (key, draw), dtype, tuple(sorted(axes)), kind))

    def apply(self, op: str, *args: int, dtype: DType | None = None) -> int:
        """An operation on numbers; `dtype` is given for casts only."""
        result = dtype or (bool_ if op in TO_BOOL else self._values[args[-1]].dtype)
        axes = sorted({a for x in args for a in self._values[x].axes})
        return self.add(Value(op, args, result, tuple(axes)))

    def cast(self, number: int, dtype: DType) -> int:
        """A number as another type: itself when it is of this type."""
        return number if self.dtype(number) is dtype else self.apply("cast", number, dtype=dtype)

    def reduce(self, kind: str, arg: int) -> int:
        """A reduction over all reduced axes."""
        kept = tuple(a for a in self._values[arg].axes if not self._reduced[a])
        return self.add(Value("reduce", (arg,), self._values[arg].dtype, kept, kind))

    def scan(self, how: Scan, arg: int) -> int:
        """A running sum or product along the one axis that is reduced, over which the operand varies."""
        v = self._values[arg]
        reduced = {i for i, r in enumerate(self._reduced) if r}
        return self.add(Value("scan", (arg,), v.dtype, tuple(sorted(reduced.union(v.axes))), how))

    def store(self, value: int, axes: Iterable[int], row: int | None = None, how: str = SET) -> None:
        """An output; of a table, into this row: see `Store`."""
        self._stores.append(Store(value, tuple(axes), row, how))

    def add(self, value: Value) -> int:
        """A value that is made of those with the numbers `args`."""
        # repr distinguishes 0.0 and -0.0, which are equal
        key = (value.op, value.args, value.dtype, value.axes, repr(value.data))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._values)
            self._values.append(value)
        return number

    def finish(self, *, join: bool = True) -> tuple[LoopNest, tuple[tuple[int, ...], ...]]:
        """The kernel, and for each of its axes the axes of the builder's space that it is made of.

        `join`: neighbouring axes that everything has both of, or neither, become one.
        """
        live = self.live()
        new_number = {old: new for new, old in enumerate(live)}
        everything = {self._values[i].axes for i in live} | {s.axes for s in self._stores}
        groups: list[list[int]] = []
        for axis in range(len(self._reduced)):
            before = groups[-1][-1] if groups else -1
            alike = all((axis in a) == (before in a) for a in everything)
            joins = join and groups and alike and self._reduced[axis] == self._reduced[before]
            groups[-1].append(axis) if joins else groups.append([axis])
        first = {g[0]: new for new, g in enumerate(groups)}

        def renamed(axes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(first[a] for a in axes if a in first)

        values = []
        for i in live:
            v = self._values[i]
            values.append(Value(v.op, tuple(new_number[a] for a in v.args), v.dtype, renamed(v.axes), v.data))
        stores = tuple(
            Store(new_number[s.value], renamed(s.axes), None if s.row is None else new_number[s.row], s.how)
            for s in self._stores
        )
        reduced = tuple(self._reduced[g[0]] for g in groups)
        return LoopNest(reduced, tuple(values), stores), tuple(map(tuple, groups))

    def live(self) -> list[int]:
        """Values that outputs need, and all inputs, needed or not: they are the kernel's arguments."""
        live = {i for s in self._stores for i in (s.value, s.row) if i is not None}
        live |= {i for i, v in enumerate(self._values) if v.op in READS}
        for i in range(len(self._values) - 1, -1, -1):
            if i in live:
                live.update(self._values[i].args)
        return sorted(live)


SUPPORTED = (*NUMBERS, bool_)
"""Element types of fused kernels. Narrow floats are computed in float32 and rounded once, at the end of each kernel."""


class NotFusibleError(Exception):
    """The node cannot be part of a fused kernel. The message says why."""


# --- tile loops ------------------------------------------------------------------------------------------------------
# The elementwise work of a matrix product or convolution: on an operand after the load (a prologue), or on the result before the store
# (an epilogue). It is a loop nest without reductions. Input 0 is the tile. The other inputs are arrays, broadcast over the axes that
# they lack. The template continues with the stored values, or writes them. A product with a bias and a GELU, which keeps the value
# before the GELU for the gradient, is one kernel with two outputs:
#
#     loops over d0, d1
#       v0: float32[d0, d1] = load in0        the product
#       v1: float32[d1] = load in1            the bias
#       v2: float32[d0, d1] = add v0 v1
#       ...
#       store out0[d0, d1] = v9
#       store out1[d0, d1] = v2


_KNOWN = UNARY | BINARY | {"load", "constant", "random", "select"}


@dataclass(frozen=True, slots=True)
class TileLoops:
    """Elementwise work on one tile of an operand, or of the result, of a template.

    Attributes:
        loops: without reductions; input 0 is the tile.
        axes: for each axis of `loops`, the template's axes that it collapses, as `LoopNestBuilder.finish` gives them.
    """

    loops: LoopNest
    axes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if any(self.loops.reduced) or any(v.op in ("reduce", "count") for v in self.loops.values):
            raise ValueError("the elementwise work of a template cannot contain reductions")
        if any(s.row is not None for s in self.loops.stores):
            raise ValueError("what a template makes does not go into rows of a table")
        for v in self.loops.values:
            if v.op not in _KNOWN:
                raise ValueError(f"no template can compute {v.op}")
        if any(v.dtype.size == 8 and v.dtype.is_floating and (v.op != "load" or v.data) for v in self.loops.values):
            raise ValueError("templates compute in float32; float64 only passes through")

    @property
    def extra(self) -> list[Value]:
        """The inputs after the tile."""
        return [v for v in self.loops.loads if v.data > 0]

    @property
    def outputs(self) -> list[DType]:
        """Types of the stores."""
        return [self.loops.values[s.value].dtype for s in self.loops.stores]

    def original(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Axes of the loops as axes of the template."""
        return tuple(a for group in axes for a in self.axes[group])


def plain(dtype: DType, rank: int, computed: DType = float32) -> TileLoops:
    """Tile loops that only round to `dtype`."""
    builder = LoopNestBuilder([False] * rank)
    builder.store(builder.cast(builder.load(0, computed, range(rank)), dtype), range(rank))
    return TileLoops(*builder.finish())
