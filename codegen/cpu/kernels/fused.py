"""Kernels that fusion makes: loop nests compiled for CPUs, or run by NumPy until they are.

A plan has what follows from the shapes of the inputs: sizes of the axes, shapes of the outputs, how threads share the work. Shapes that
fusion did not foresee (a size of 1 that is broadcast) run on NumPy, node by node. Errors come from there too: a kernel cannot fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....graph.core.dtypes import resource
from ...backend import ContextOf
from ...check import compare_fused
from ...ir.fused_kernel import FusedKernel, KernelSizes
from ...ir.loop_nest import READS, LoopNest
from ...ir.schedule import CpuLoops, CpuSchedule
from ...reference import references_of
from ...target import COLUMN_STRIP
from ..emit.module import NumbaSource, source_of
from ..native.planner import LEAST, NotPlannableError, Planner
from ..schedule import schedule_of
from ..work_parts import nanoseconds, parts_of, parts_of_rows
from .node import PlannedKernel


class CpuFusedKernel(PlannedKernel):
    """A fused kernel: that of a fusion group, `group`. NumPy does its work until it is compiled."""

    def __init__(
        self,
        group: FusedKernel,
        context_of: ContextOf | None = None,
        *,
        threads: int = 1,
        compile_first: bool = False,
        check: bool = False,
    ) -> None:
        self.group = group
        self._context_of = context_of
        self.source = source_for(group)
        variables = [i for i, t in enumerate(group.inputs) if t.dtype is resource]
        super().__init__(self.source.text, references_of(group, context_of), check, variables)
        self._threads = threads
        self._loaded = len(group.inputs)
        self._assumed = {*(a.position for a in group.assumed), *(at for *_, at in group.tables)}
        if compile_first:
            self.compile()

    def record_into(self, planner: Planner, inputs: Sequence[Any]) -> Sequence[Any]:
        """Put its launch into a native plan, in which the inputs that are variables are their values."""
        function = planner.compiled(self.text)
        given = [planner.ordered(planner.in_memory(x)) for x in inputs[: self._loaded]]
        types = [t.dtype.base.np for t in self.group.inputs]
        for i in self.read:
            types[i] = next(v.dtype.np for v in self.group.loops.values if v.op in READS and v.data == i)
        if any(x.dtype != dtype for x, dtype in zip(given, types, strict=True)):
            raise NotPlannableError("an array of another type")
        values = {at: np.ravel(planner.known(inputs[self._loaded + at])).tolist() for at in self._assumed}
        sized = self.group.sized([x.shape for x in given], values)
        if sized is None:
            raise NotPlannableError("sizes that fusion did not foresee")
        for i, axis in self.group.ranges:
            planner.check(given[i], sized.space[axis])
        for table, rows in self.group.lookups:
            planner.check(given[rows], given[table].shape[0])
        for output, rows, _ in self.group.tables:
            planner.check(given[rows], sized.rows[output], LEAST)  # negative ones are left out
        outputs = [planner.empty(shape, dtype) for shape, dtype in sized.outputs]
        arrays = given + outputs
        length, parts = parts_for(self.group.loops, self.source.schedule, sized, self._threads)
        if self.source.partial:  # a result for each piece
            arrays += [planner.empty((length,), dtype.np) for dtype in self.source.partial]
            arrays.append(planner.empty((1,), np.dtype(np.int64)))
            planner.clear(arrays[-1])
        numbers = [sized.numbers[name] for name in self.group.loops.sizes]
        planner.share(function, [*arrays, *sized.loops, *numbers], length, parts, self._threads)
        return outputs

    def _compare(self, inputs: Sequence[Any]) -> None:
        def run(part: FusedKernel, values: Sequence[Any]) -> tuple[Any, Any]:
            kernel = CpuFusedKernel(part, self._context_of, compile_first=True)
            return kernel(*values), kernel._reference(*values)

        # Both sides take the values that variables have now.
        given = [x.snapshot() if i in self.read and x.is_initialized else x for i, x in enumerate(inputs)]
        outputs = self.plans.run(given, self.is_awaited)
        if outputs is not None:
            compare_fused("The fused kernel", self.group, given, outputs, self._reference(*given), run)


def source_for(group: FusedKernel) -> NumbaSource:
    """The source text of a group's kernel."""
    return source_of(group.loops, group.schedule or schedule_of(group.loops, group.joined_sizes()))


def parts_for(loops: LoopNest, schedule: CpuSchedule, sized: KernelSizes, threads: int) -> tuple[int, int]:
    """How long a kernel's work is, and into how many parts it is divided, for these sizes."""
    sizes, time = sized.loops, nanoseconds(loops, sized.loops)
    if schedule.loops is CpuLoops.TABLE:
        rows, width = sized.rows[0], math.prod(sizes[a] for a in loops.stores[0].axes)
        return rows, parts_of_rows(rows, width, time, threads)
    if schedule.shared is None:
        return 0, 1
    if schedule.has_pieces:
        pieces = max(1, -(-sizes[0] // schedule.tile))
        return pieces, parts_of(pieces, time, threads)
    is_along = schedule.loops is CpuLoops.COLUMNS and schedule.shared == len(sizes) - 1
    length = sizes[schedule.shared]
    return length, parts_of(length, time, threads, COLUMN_STRIP if is_along else 1)
