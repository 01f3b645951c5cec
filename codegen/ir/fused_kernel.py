"""Fused nodes: what fusion puts into a unit in the place of the nodes that one kernel runs.

What sizes are equal is partly only known when the graph runs. Where a static size is unknown, fusion assumes that no
broadcasting happens along it (`axes`); the kernel's launcher compares the real shapes with that, by way of `sizes_for`, and runs
the nodes one by one on NumPy when they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...graph.core.graph import Node, Tensor
from .index_maps import AxisMap
from .loop_nest import LoopNest
from .partition import PartitionStep, RecvTensor, inputs_of_step, node_of


@dataclass(frozen=True, slots=True)
class Assumption:
    """What a kernel takes for granted of the value of one of its `shapes`.

    Attributes:
        position: which of them; a vector of integers.
        axes: the space's axis of each dimension of a tensor; None: of size 1.
        over: None: the vector holds that tensor's sizes. Else it holds dimensions of that tensor, and all that are not among
            these have size 1.
    """

    position: int
    axes: AxisMap
    over: frozenset[int] | None

    def holds(self, value: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether it is so, for axes of these sizes."""
        dims = [1 if a is None else sizes[a] for a in self.axes]
        if self.over is None:
            return len(value) == len(dims) and all(v in (d, -1) for v, d in zip(value, dims, strict=True))
        return all(0 <= v < len(dims) and (v in self.over or dims[v] == 1) for v in value)


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """Nodes that one kernel runs: a step of a unit.

    Attributes:
        nodes: in an order in which they can run one by one; among them, shapes that others need and the kernel knows.
        inputs: tensors that come from outside; the kernel's inputs, in order.
        shapes: tensors that the nodes take besides, which the kernel does not look at (the target of a broadcast).
        outputs: tensors that somebody outside takes.
        loops: what the kernel computes.
        parts: for each axis of `loops`, the axes of the space before neighbours were joined.
        input_axes: for each input, the space's axis of each of its dimensions; None: of size 1.
        output_axes: the same for the outputs.
        axes_of: the same for every tensor of the nodes.
        reduced: for each axis of the space, whether it is reduced.
        sizes: static size of each axis of the space.
        assumed: what must hold of the values of `shapes`.
        ranges: (input, axis): its numbers must be positions along that axis.
        lookups: (input, input): a table, or a variable's handle, and what holds numbers of its rows. Of the table's dimensions
            `input_axes` leaves the first one out.
        checks: tensors that decide, with what is in `after`, whether the nodes are dead: all of them are, or none.
        after: nodes, and numbers of channels, that the nodes wait for and that may be dead.
        is_guarded: whether the nodes may be dead.
        tables: (output, input, shape): the output is a table, the input says into which of its rows something is added, and the value
            of that one of the `shapes` is how many rows it has. Such an output is the only one.
        overwrites: (input, output): the output may lie where the input was, which dies with the kernel (`overwriting`).
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
    is_guarded: bool = False
    overwrites: tuple[tuple[int, int], ...] = ()
    lookups: tuple[tuple[int, int], ...] = ()
    tables: tuple[tuple[int, int, int], ...] = ()

    def sizes_for(self, shapes: Sequence[tuple[int, ...]], values: Sequence[Sequence[int]]) -> list[int] | None:
        """Sizes of the space's axes for inputs of these shapes; None when they are not as fusion assumed.

        `values`: what the vectors hold that `assumed` speaks of, in that order.
        """
        sizes = list(self.sizes)
        seen = [False] * len(sizes)
        tables = {table for table, _ in self.lookups}
        for i, (shape, axes) in enumerate(zip(shapes, self.input_axes, strict=True)):
            if i in tables:
                shape = shape[1:]
            if len(shape) != len(axes):
                return None
            for d, axis in zip(shape, axes, strict=True):
                if axis is None:
                    if d != 1:
                        return None
                elif sizes[axis] is None or not seen[axis] and sizes[axis] == d:
                    sizes[axis] = d
                    seen[axis] = True
                elif sizes[axis] != d:
                    return None
        if None in sizes:
            self._sized_by(values, sizes)
        if None in sizes:
            return None
        known: list[int] = sizes  # type: ignore[assignment]
        if not all(a.holds(value, known) for a, value in zip(self.assumed, values, strict=True)):
            return None
        return known

    def joined_sizes(self) -> list[int | None]:
        """Static size of each axis of `loops`."""
        known = [[n for a in part if (n := self.sizes[a]) is not None] for part in self.parts]
        return [math.prod(k) if len(k) == len(part) else None for k, part in zip(known, self.parts, strict=True)]

    def _sized_by(self, values: Sequence[Sequence[int]], sizes: list[int | None]) -> None:
        """Put in sizes that only shapes which were given tell."""
        for a, value in zip(self.assumed, values, strict=True):
            if a.over is None and len(value) == len(a.axes):
                for axis, size in zip(a.axes, value, strict=True):
                    if axis is not None and sizes[axis] is None and size >= 0:
                        sizes[axis] = size


def inputs_of(step: PartitionStep | FusedKernel) -> Iterable[Tensor]:
    """The tensors that a step takes, of a kernel too."""
    return (*step.inputs, *step.shapes) if isinstance(step, FusedKernel) else inputs_of_step(step)


def outputs_of(step: PartitionStep | FusedKernel) -> Iterable[Tensor]:
    """The tensors that a step gives, of a kernel too."""
    if isinstance(step, RecvTensor):
        return () if step.tensor is None else (step.tensor,)
    node = step if isinstance(step, FusedKernel) else node_of(step)
    return () if node is None else node.outputs
