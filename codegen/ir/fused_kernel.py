"""Fused kernels: the steps that replace the nodes that one kernel runs.

Some size equalities are known only at run time. If a static size is unknown, fusion assumes that no broadcasting happens along it
(`index_maps.py`). The kernel's launcher checks the real shapes with `sized`, and runs the nodes one by one on NumPy if they
differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.core.graph import Node, Tensor
from ...graph.core.places import Places
from .index_maps import AxisMap
from .loop_nest import LoopNest
from .partition import PartitionStep, RecvTensor, inputs_of_step, node_of
from .schedule import CpuSchedule
from .windows import SlidingWindow


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption of a kernel about the value of one of its `shapes`.

    Attributes:
        position: index into `shapes`; the value is a vector of integers.
        axes: the space's axis of each dimension of a tensor; None: of size 1.
        over: None: the vector holds that tensor's sizes. Else it holds dimensions of that tensor, and all other dimensions have
            size 1.
    """

    position: int
    axes: AxisMap
    over: frozenset[int] | None

    def holds(self, value: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether it holds, for axes of these sizes."""
        dims = [1 if a is None else sizes[a] for a in self.axes]
        if self.over is None:
            return len(value) == len(dims) and all(v in (d, -1) for v, d in zip(value, dims, strict=True))
        return all(0 <= v < len(dims) and (v in self.over or dims[v] == 1) for v in value)


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """The sizes of a fused kernel for inputs of certain shapes.

    Attributes:
        space: the size of each axis of the iteration space. loops: that of each axis of the kernel's loops, which join such axes.
        outputs: the shape and element type of each output.
        rows: the number of rows of each output that is a table, by the output's position.
        numbers: the other sizes that the loops ask for, by name, and of each input that is a table the number of its rows.
    """

    space: list[int]
    loops: tuple[int, ...]
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    rows: dict[int, int]
    numbers: dict[str, int]


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """A step of a partition that runs several nodes as one kernel.

    Attributes:
        nodes: in topological order. Among them are Shape nodes whose results the kernel knows.
        inputs: the kernel's inputs from outside, in order.
        shapes: further inputs of the nodes that the kernel does not read (the target shape of a broadcast).
        outputs: tensors with consumers outside.
        loops: the kernel's loop nest.
        parts: for each axis of `loops`, the axes of the space before adjacent axes were collapsed.
        input_axes: for each input, the space's axis of each of its dimensions; None: of size 1.
        output_axes: the same for the outputs.
        axes_of: the same for every tensor of the nodes.
        reduced: for each axis of the space, whether it is reduced.
        sizes: static size of each axis of the space.
        assumed: assumptions about the values of `shapes`.
        ranges: (input, axis): the input's numbers must be positions along that axis.
        lookups: (input, input): a table, or a variable's handle, and the row indices. `input_axes` leaves out the first dimension of
            the table.
        checks: the nodes are dead if one of these tensors is, or one of `after`.
        after: nodes, and numbers of channels, that the nodes wait for and that may be dead.
        is_predicated: whether the nodes may be dead.
        moves: (input, places): the input is read at these places. `input_axes` has the axes of its whole dimensions only; the others have
            the tensor's static sizes.
        windows: what slides over images; the inputs that are read through them have no `input_axes`.
        tables: (output, input, shape): the output is a table, the input holds the indices of the rows to add to, and the value of that
            one of `shapes` is the number of rows. Such an output is the only one.
        schedule: how it runs on a CPU; None: not chosen yet. On GPUs that depends on sizes.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Tensor, ...]
    shapes: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    loops: LoopNest
    parts: tuple[tuple[int, ...], ...]
    input_axes: tuple[AxisMap, ...]
    output_axes: tuple[AxisMap, ...]
    axes_of: Mapping[Tensor, AxisMap]
    reduced: tuple[bool, ...]
    sizes: tuple[int | None, ...]
    assumed: tuple[Assumption, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    checks: tuple[Tensor, ...] = ()
    after: tuple[Node | int, ...] = ()
    is_predicated: bool = False
    lookups: tuple[tuple[int, int], ...] = ()
    tables: tuple[tuple[int, int, int], ...] = ()
    schedule: CpuSchedule | None = None
    moves: tuple[tuple[int, Places], ...] = ()
    windows: tuple[SlidingWindow, ...] = ()

    def sizes_for(self, shapes: Sequence[tuple[int, ...]], values: Sequence[Sequence[int]]) -> list[int] | None:
        """Sizes of the space's axes for inputs of these shapes; None if they violate fusion's assumptions.

        `values`: the values of the vectors in `assumed`, in that order.
        """
        sizes = list(self.sizes)
        seen = [False] * len(sizes)
        tables, moved = {table for table, _ in self.lookups}, dict(self.moves)
        seen_through = {i for w in self.windows for _, i in w.inputs}
        for i, (shape, axes) in enumerate(zip(shapes, self.input_axes, strict=True)):
            if i in seen_through:
                continue
            if i in tables:
                shape = shape[1:]
            if len(shape) != len(axes):
                return None
            for at, (d, axis) in enumerate(zip(shape, axes, strict=True)):
                if axis is None:
                    if d != (self.inputs[i].dims or ())[at] if i in moved else d != 1:
                        return None
                elif sizes[axis] is None or not seen[axis] and sizes[axis] == d:
                    sizes[axis] = d
                    seen[axis] = True
                elif sizes[axis] != d:
                    return None
        if None in sizes:  # known only from the values of `shapes`
            for a, value in zip(self.assumed, values, strict=True):
                if a.over is None and len(value) == len(a.axes):
                    for axis, size in zip(a.axes, value, strict=True):
                        if axis is not None and sizes[axis] is None and size >= 0:
                            sizes[axis] = size
        if any(w.sizes(shapes, sizes) is None for w in self.windows) or None in sizes:
            return None
        known: list[int] = sizes  # type: ignore[assignment]
        if not all(a.holds(value, known) for a, value in zip(self.assumed, values, strict=True)):
            return None
        return known

    def sized(
        self, shapes: Sequence[tuple[int, ...]], values: Mapping[int, Sequence[int]] | Sequence[Sequence[int]]
    ) -> KernelSizes | None:
        """The sizes for inputs of these shapes; None if the nodes must run one by one.

        `values`: contents of the kernel's `shapes`, by position; at least of those that are assumed to hold something, or a number of rows.
        """
        space = self.sizes_for(shapes, [values[a.position] for a in self.assumed])
        rows = {output: int(values[at][0]) for output, _, at in self.tables}
        if space is None or any(count <= 0 for count in rows.values()):
            return None
        if 0 in space and (rows or any(v.op in ("position", "gather") for v in self.loops.values)):
            return None  # no elements: there is no place of an extreme, an error that the reference raises
        outputs = []
        for i, (t, axes) in enumerate(zip(self.outputs, self.output_axes, strict=True)):
            shape = tuple(1 if a is None else space[a] for a in axes)
            outputs.append(((rows[i], *shape) if i in rows else shape, t.dtype.base.np))
        joined = tuple(math.prod(space[a] for a in part) for part in self.parts)
        numbers = {f"begin{i}_{d}": place.begin for i, places in self.moves for d, place in enumerate(places)}
        numbers |= {f"extent{i}_{d}": size for i, _ in self.moves for d, size in enumerate(shapes[i])}
        for k, window in enumerate(self.windows):
            numbers |= {f"{name}{k}": size for name, size in (window.sizes(shapes, [*space]) or {}).items()}
        gathers = [v for v in self.loops.values if v.op == "gather"]
        widths = {v.data: math.prod(joined[a] for a in self.loops.row_axes(v)) for v in gathers}
        numbers |= {f"rows_in{i}": math.prod(shapes[i]) // width for i, width in widths.items()}
        return KernelSizes(space, joined, tuple(outputs), rows, numbers)

    def joined_sizes(self) -> list[int | None]:
        """Static size of each axis of `loops`."""
        known = [[n for a in part if (n := self.sizes[a]) is not None] for part in self.parts]
        return [math.prod(k) if len(k) == len(part) else None for k, part in zip(known, self.parts, strict=True)]


def inputs_of(step: PartitionStep | FusedKernel) -> Iterable[Tensor]:
    """The tensors that a step or a fused kernel takes."""
    return (*step.inputs, *step.shapes) if isinstance(step, FusedKernel) else inputs_of_step(step)


def nodes_of(step: PartitionStep | FusedKernel) -> tuple[Node, ...]:
    """The nodes that a step or a fused kernel runs."""
    if isinstance(step, FusedKernel):
        return step.nodes
    node = node_of(step)
    return () if node is None else (node,)


def outputs_of(step: PartitionStep | FusedKernel) -> Iterable[Tensor]:
    """The tensors that a step or a fused kernel makes."""
    if isinstance(step, RecvTensor):
        return () if step.tensor is None else (step.tensor,)
    node = step if isinstance(step, FusedKernel) else node_of(step)
    return () if node is None else node.outputs
