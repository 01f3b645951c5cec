"""Writes the Triton text of elementwise work on a template's tiles (`ir/tile_loops.py`): its expressions, loads and stores.

Half-precision values are computed in float32 and rounded where they are stored, or cast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph.core.dtypes import DType, bool_, float32
from ...ir.loop_nest import COSTLY, Value
from ...ir.tile_loops import TileLoops
from ..ir import Parameter, triton_type

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Types that are computed in float32."""

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
              "ne": "!=", "and": "&", "or": "|", "xor": "^", "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<",
              "shr": ">>"}  # fmt: skip

_FUNCTIONS = {
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "sign": "tl.where({0} > 0, 1, tl.where({0} < 0, -1, {0})).to({0}.dtype)",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "sqrt": "tl.sqrt_rn({0})",
    "isnan": "{0} != {0}",
    "isinf": "tl.abs({0}) == float('inf')",
    "isfinite": "tl.abs({0}) < float('inf')",
    "not": "{0} == 0",
    "invert": "~{0}",
    "select": "tl.where({0}, {1}, {2})",
}

_MATH = {
    **{name: f"{name}32" for name in COSTLY}, "round": "rint32", "trunc": "trunc", "minimum": "minimum", "maximum": "maximum",
}  # fmt: skip
"""Functions of `device_math`: the same polynomials as on CPUs."""


@dataclass(frozen=True, slots=True)
class TilePosition:
    """Where a template's tile lies.

    Attributes:
        index: for each axis of the template, the expression of a tile's (or a number's) positions along it, in int64 where that
            matters, shaped so that all of them broadcast to the tile's shape.
        sizes: for each axis, its size.
        masks: for each axis, what is inside; empty when everything is. Axes that share one have the same text.
        offsets: the positions of all axes as one offset into a contiguous array, where the template has it anyhow.
        rank: of the tile.
    """

    index: tuple[str, ...]
    sizes: tuple[str, ...]
    masks: tuple[str, ...]
    offsets: str | None = None
    rank: int = 2

    def mask(self, axes: Sequence[int]) -> str:
        """What is inside, for an array with these axes; empty when everything is."""
        return " & ".join(dict.fromkeys(self.masks[a] for a in axes if self.masks[a]))

    def offset(self, axes: tuple[int, ...]) -> str:
        """Where the elements of a contiguous array with these axes lie."""
        if self.offsets is not None and axes == tuple(range(len(self.sizes))):
            return self.offsets
        text = ""
        for axis in axes:
            text = f"({text}) * {self.sizes[axis]} + {self.index[axis]}" if text else self.index[axis]
        return text or "0"


class EpilogueWriter:
    """The lines of an edge in a kernel, and the parameters that they bring."""

    def __init__(self, edge: TileLoops, first_input: int, aligned: bool = True) -> None:
        self.edge = edge
        self.first_input = first_input
        self.functions: set[str] = set()  # of triton_math, that the lines call
        self.parameters = tuple(Parameter(self._input(v), "*" + triton_type(v.dtype.name), aligned) for v in edge.extra)

    def _input(self, value: Value) -> str:
        return f"in{self.first_input + value.data - 1}"

    def outputs(self, aligned: bool = True) -> tuple[Parameter, ...]:
        """A parameter for each store, when stores are what the kernel writes."""
        return tuple(Parameter(f"out{i}", "*" + triton_type(d.name), aligned) for i, d in enumerate(self.edge.outputs))

    def compute(self, tile: str, place: TilePosition, prefix: str = "v") -> tuple[list[str], list[str]]:
        """The lines that compute, and for each store the name of its value; `tile` names input 0."""
        lines, names = [], []
        used = {a for v in self.edge.loops.values for a in v.args}
        for i, v in enumerate(self.edge.loops.values):
            if v.op == "load" and v.data == 0:
                names.append(tile)
            elif v.op == "cast" and v.dtype.name in NARROW and i not in used:
                names.append(names[v.args[0]])  # who stores it rounds it
            else:
                names.append(f"{prefix}{i}")
                lines.append(f"{names[i]} = {self._expression(v, names, place)}")
        return lines, [names[s.value] for s in self.edge.loops.stores]

    def store(self, tile: str, place: TilePosition) -> list[str]:
        """The lines that compute and write all outputs."""
        lines, values = self.compute(tile, place)
        for i, (name, s) in enumerate(zip(values, self.edge.loops.stores, strict=True)):
            axes = self.edge.original(s.axes)
            dtype = self.edge.loops.values[s.value].dtype
            lines.append(
                f"tl.store(out{i} + {place.offset(axes)}, {name}.to({type_text(dtype)}){_masked(place.mask(axes))})"
            )
        return lines

    def _expression(self, v: Value, names: list[str], place: TilePosition) -> str:
        args = [names[a] for a in v.args]
        if v.op == "load":
            axes = self.edge.original(v.axes)
            mask = place.mask(axes)
            loaded = f"tl.load({self._input(v)} + {place.offset(axes)}{_masked(mask)}{', other=0' if mask else ''})"
            return f"{loaded}.to({_computed(v.dtype)})" if v.dtype.name in NARROW else loaded
        if v.op == "constant":
            return f"tl.full({[1] * place.rank}, {_literal(v)}, {_computed(v.dtype)})"
        if v.op == "random":
            function = f"{v.data}{8 * v.dtype.size}"
            self.functions.add(function)
            return f"{function}({place.offset(self.edge.original(v.axes))}, {', '.join(args)})"
        if v.op == "cast":
            source = self.edge.loops.values[v.args[0]].dtype
            if v.dtype is bool_:
                return f"{args[0]} != 0"
            narrow = v.dtype.name in NARROW
            if narrow:
                return f"{args[0]}.to({type_text(v.dtype)}).to(tl.float32)"
            return args[0] if source.name in NARROW and v.dtype is float32 else f"{args[0]}.to({type_text(v.dtype)})"
        if v.op == "div":
            return f"tl.div_rn({args[0]}, {args[1]})"
        if v.op in _OPERATORS:
            return f"{args[0]} {_OPERATORS[v.op]} {args[1]}"
        if v.op in ("minimum", "maximum") and not v.dtype.is_floating:
            return f"tl.{v.op}({args[0]}, {args[1]})"
        if v.op in _MATH:
            self.functions.add(_MATH[v.op])
            return f"{_MATH[v.op]}({', '.join(args)})"
        return _FUNCTIONS[v.op].format(*args)


def _masked(mask: str) -> str:
    return f", mask={mask}" if mask else ""


def type_text(dtype: DType) -> str:
    """An element type in a kernel's text."""
    special = {"bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5"}
    return special.get(dtype.name, f"tl.{dtype.name}")


def _computed(dtype: DType) -> str:
    return "tl.float32" if dtype.name in NARROW else type_text(dtype)


def _literal(v: Value) -> str:
    if v.dtype.is_floating:
        number = float(v.data)
        return repr(number) if math.isfinite(number) else f"float('{number}')"
    return repr(v.data)
