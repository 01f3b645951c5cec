"""Writes epilogues and prologues, which are tile loops (`ir/loop_nest.py`), into the kernels of templates.

Half-precision values are computed in float32 and rounded where they are stored, or cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.loop_nest import TileLoops, Value
from ..emit.expr import NARROW, ExpressionWriter, stored_as
from ..ir import Parameter, triton_type


@dataclass(frozen=True, slots=True)
class TilePosition:
    """Where a template's tile lies.

    Attributes:
        index: for each axis of the template, the expression of a tile's (or a number's) positions along it, in int64 where that
            matters, shaped so that all of them broadcast to the tile's shape.
        sizes: for each axis, its size.
        masks: for each axis, what is inside; empty when everything is. Axes that share one have the same text.
        offsets: the positions of all axes as one offset into a contiguous array, where the template has it anyhow.
    """

    index: tuple[str, ...]
    sizes: tuple[str, ...]
    masks: tuple[str, ...]
    offsets: str | None = None

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


class EpilogueWriter(ExpressionWriter):
    """The lines of tile loops in a kernel, and the parameters that they bring.

    Args:
        work: the epilogue, or a prologue.
        first_input: the number of the kernel's input that is input 1 of the work.
    """

    def __init__(self, work: TileLoops, first_input: int) -> None:
        super().__init__(work.loops)
        self.work = work
        self.first_input = first_input
        self.parameters = tuple(Parameter(self._input(v), "*" + triton_type(v.dtype.name), True) for v in work.extra)
        self._at = TilePosition((), (), ())

    def _input(self, value: Value) -> str:
        return f"in{self.first_input + value.data - 1}"

    def results(self) -> tuple[Parameter, ...]:
        """A parameter for each store, when stores are what the kernel writes."""
        types = [triton_type(d.name) for d in self.work.outputs]
        return tuple(Parameter(f"out{i}", f"*{t}", True) for i, t in enumerate(types))

    def compute(self, tile: str, at: TilePosition, prefix: str = "v") -> tuple[list[str], list[str]]:
        """The lines that compute, and for each store the name of its value; `tile` names input 0."""
        values = self.loops.values
        self.lines, self.prefix, self._at = [], prefix, at
        self.known = {i: tile for i, v in enumerate(values) if v.op == "load" and v.data == 0}
        used = {a for v in values for a in v.args}
        names = []
        for s in self.loops.stores:
            v = values[s.value]
            rounded = v.op == "cast" and v.dtype in NARROW and s.value not in used  # who stores it rounds it
            names.append(self.value(v.args[0] if rounded else s.value))
        return self.lines, names

    def store(self, tile: str, at: TilePosition) -> list[str]:
        """The lines that compute and write all outputs."""
        lines, values = self.compute(tile, at)
        for i, (name, s) in enumerate(zip(values, self.loops.stores, strict=True)):
            axes = self.work.original(s.axes)
            mask = at.mask(axes)
            value = f"{name}.to({stored_as(self.loops.values[s.value].dtype)})"
            lines.append(f"tl.store(out{i} + {at.offset(axes)}, {value}{f', mask={mask}' if mask else ''})")
        return lines

    def read(self, v: Value) -> str:
        """The elements of an input that belong to the tile."""
        axes = self.work.original(v.axes)
        mask = self._at.mask(axes)
        options = f", mask={mask}, other=0" if mask else ""
        loaded = f"tl.load({self._input(v)} + {self._at.offset(axes)}{options})"
        return f"{loaded}.to(tl.float32)" if v.dtype in NARROW else loaded

    def random(self, v: Value) -> str:
        """Numbers at the tile's position in an array with the value's axes."""
        where = self._at.offset(self.work.original(v.axes))
        return f"{v.data}{8 * v.dtype.size}({', '.join([where, *map(self.value, v.args)])})"
