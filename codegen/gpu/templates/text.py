"""Puts a kernel together from its body, its arguments and its grid, and writes epilogues and prologues, which are tile loops, into it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....graph.core.dtypes import DType, float32, float64
from ...ir.loop_nest import LoopNestBuilder, TileLoops, Value
from ...ir.schedule import GpuProductSchedule, GpuSchedule
from ..emit.device_math import functions as math_functions
from ..emit.expr import NARROW, ExpressionWriter, Names, stored_as
from ..emit.launches import launches
from ..ir import HEADER, Count, Grid, Launch, Parameter, Routine, Scratch, TritonKernel, triton_type

Constants = tuple[tuple[str, bool | int | float | str], ...]


def make_launch(
    name: str,
    body: str,
    parameters: Sequence[Parameter],
    constants: Constants,
    grid: Grid,
    schedule: GpuSchedule | GpuProductSchedule,
    *,
    own: str = "",
    contract: bool = True,
) -> Launch:
    """A kernel and its grid. Its body may call functions of `device_math`; `own`: the text of others. `contract`: see `TritonKernel`."""
    body = textwrap.dedent(body)
    kept = "\N{NO-BREAK SPACE}"  # lines do not break here
    arguments = ", ".join([p.name for p in parameters] + [f"{c}:{kept}tl.constexpr" for c, _ in constants])
    head = f"def {name}({arguments}):"
    if len(head) > 110:
        head = f"def {name}(\n{textwrap.fill(arguments, 110, initial_indent=' ' * 4, subsequent_indent=' ' * 4)}\n):"
    head = head.replace(kept, " ")
    text = f"{HEADER}@triton.jit\n{head}\n{textwrap.indent(body.strip(chr(10)), ' ' * 4)}\n"
    called = math_functions(body + own) + own  # they stand behind, so that every kernel begins in the same line
    text += f"\n\n{called.rstrip()}\n" if called else ""
    kernel = TritonKernel(name, text, tuple(parameters), constants, schedule.warps, schedule.stages, contract)
    return Launch(kernel, grid, schedule)


def dot(a: str, b: str, total: str, dtype: DType, tf32: bool, more: str = "") -> str:
    """A product of tiles of one type, added to `total` (empty: alone), in float32 or wider. `tf32`: of 10 bits of float32 factors."""
    options = {float32: f', input_precision="{"tf32" if tf32 else "ieee"}"', float64: ", out_dtype=tl.float64"}
    return f"tl.dot({a}, {b}{', ' + total if total else ''}{options.get(dtype, more)})"


def lines(*pieces: str | Sequence[str]) -> str:
    """Pieces of text below one another; a sequence counts as its items, empty ones are left out."""
    flat = [line for piece in pieces for line in ([piece] if isinstance(piece, str) else piece)]
    return "\n".join(line.strip("\n") for line in flat if line)


def inside(head: str, *pieces: str | Sequence[str]) -> str:
    """A loop, or another block, with its body."""
    return f"{head}\n{textwrap.indent(lines(*pieces), ' ' * 4)}"


def address(dtype: DType) -> str:
    """Triton's type of an array's address."""
    return f"*{triton_type(dtype.name)}"


def arguments(arrays: Mapping[str, str], *numbers: str) -> tuple[Parameter, ...]:
    """A kernel's parameters: arrays, by name and type, and sizes of 64 bits."""
    return (*(Parameter(n, t, True) for n, t in arrays.items()), *(Parameter(n, "i64") for n in numbers))


# --- epilogues and prologues -----------------------------------------------------------------------------------------
# Half-precision values are computed in float32 and rounded where they are stored, or cast.


@dataclass(frozen=True, slots=True)
class TilePosition:
    """The position of a template's tile.

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
        """The mask of an array with these axes; empty if all elements are inside."""
        return " & ".join(dict.fromkeys(self.masks[a] for a in axes if self.masks[a]))

    def offset(self, axes: tuple[int, ...]) -> str:
        """The offsets of the tile's elements in a contiguous array with these axes."""
        if self.offsets is not None and axes == tuple(range(len(self.sizes))):
            return self.offsets
        text = ""
        for axis in axes:
            text = f"({text}) * {self.sizes[axis]} + {self.index[axis]}" if text else self.index[axis]
        return text or "0"


class EpilogueWriter:
    """Writes tile loops in a kernel, and the parameters that they need.

    Args:
        work: the epilogue, or a prologue.
        first_input: the number of the kernel's input that is input 1 of the work.
    """

    def __init__(self, work: TileLoops, first_input: int) -> None:
        self.work = work
        self.first_input = first_input
        self.parameters = tuple(Parameter(self._input(v), "*" + triton_type(v.dtype.name), True) for v in work.extra)

    def _input(self, value: Value) -> str:
        return f"in{self.first_input + value.data - 1}"

    def results(self) -> tuple[Parameter, ...]:
        """A parameter for each store, when stores are what the kernel writes."""
        return tuple(Parameter(f"out{i}", address(d), True) for i, d in enumerate(self.work.outputs))

    def compute(self, tile: str, at: TilePosition, prefix: str = "v") -> tuple[list[str], list[str]]:
        """The lines that compute, and for each store the name of its value; `tile` names input 0."""
        loops, values = self.work.loops, self.work.loops.values

        def placed(number: int) -> str:
            v = values[number]
            axes = self.work.original(v.axes)
            if v.op == "random":  # at the tile's position in an array with the value's axes
                return f"{v.data}{8 * v.dtype.size}({', '.join([at.offset(axes), *map(writer.value, v.args)])})"
            mask = at.mask(axes)
            options = f", mask={mask}, other=0" if mask else ""
            loaded = f"tl.load({self._input(v)} + {at.offset(axes)}{options})"
            return f"{loaded}.to(tl.float32)" if v.dtype in NARROW else loaded

        writer = ExpressionWriter(loops, placed)
        writer.prefix = prefix
        writer.known = {i: tile for i, v in enumerate(values) if v.op == "load" and v.data == 0}
        used = {a for v in values for a in v.args}
        names = []
        for s in loops.stores:
            v = values[s.value]
            rounded = v.op == "cast" and v.dtype in NARROW and s.value not in used  # the store rounds it
            names.append(writer.value(v.args[0] if rounded else s.value))
        return writer.lines, names

    def store(self, tile: str, at: TilePosition) -> list[str]:
        """The lines that compute and write all outputs."""
        lines, values = self.compute(tile, at)
        for i, (name, s) in enumerate(zip(values, self.work.loops.stores, strict=True)):
            axes = self.work.original(s.axes)
            mask = at.mask(axes)
            value = f"{name}.to({stored_as(self.work.loops.values[s.value].dtype)})"
            lines.append(f"tl.store(out{i} + {at.offset(axes)}, {value}{f', mask={mask}' if mask else ''})")
        return lines


def parts_added(
    part: Launch, splits: int, work: TileLoops, first_input: int, sizes: Sequence[str], known: Mapping[str, int]
) -> Routine:
    """`part`, of which `splits` blocks leave a sum each in scratch0, and a kernel that adds these in order and does the work on the sums.

    `first_input`: as of `EpilogueWriter`. `sizes`: of the work's axes, by name.
    """
    builder = LoopNestBuilder([True] + [False] * len(sizes))
    number: list[int] = []
    for v in work.loops.values:
        v = replace(v, args=tuple(number[a] for a in v.args), axes=tuple(1 + a for a in work.original(v.axes)))
        if v.op == "load" and v.data == 0:
            number.append(builder.reduce("sum", builder.load(0, v.dtype, (0, *v.axes))))
        else:
            number.append(builder.add(v))
    for s in work.loops.stores:
        builder.store(number[s.value], [1 + a for a in work.original(s.axes)])
    writer = EpilogueWriter(work, first_input)
    inputs, outputs = (tuple(p.name for p in parameters) for parameters in (writer.parameters, writer.results()))
    names = Names(("scratch0", *inputs), outputs, (str(splits), *sizes))
    total = launches(builder.finish(join=False)[0], names, [splits, *(known.get(name, 1) for name in sizes)])[0]
    count = (Count((), times=splits), *(Count((name,)) for name in sizes))
    return Routine((part, total), (Scratch("scratch0", triton_type(work.loops.loads[0].dtype.name), count),))
