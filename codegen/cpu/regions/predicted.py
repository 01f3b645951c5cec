"""The memory that native regions will need, before anything is compiled or run.

A region allocates what leaves it, and an arena for what stays inside, when it begins. Both follow from sizes alone: the calls go
through a planner that looks up no compiled function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....graph.core.dtypes import resource
from ....graph.core.graph import Tensor
from ...ir.program import Call, Instruction, Loop
from ...memory.plan import Arena
from ..native.planner import Compilable, NotPlannableError, Planner, Value, stand_in
from .region import NativeRegion


class Predictor(Planner):
    """A planner that lays out memory only: kernels need not be compiled, and inputs have no values."""

    def known(self, value: Value) -> Any:
        """A value itself, where shapes or constants tell it."""
        if value.memory is not None:
            raise NotPlannableError("what a kernel needs to know is not known before the step")
        return value.array

    def function_of(self, kernel: Compilable) -> Any:
        """None: it is not called."""
        return None

    def compiled(self, text: str) -> Any:
        """None: it is not called."""
        return None

    def needs(self, outputs: Sequence[Value]) -> int:
        """Bytes of the arena."""
        return self._laid_out(outputs, ())[-1]


def arenas_of(instructions: Iterable[Instruction], tensors: Mapping[int, Tensor]) -> Iterator[Arena]:
    """The arenas of a program's native regions, of those whose sizes are known; `tensors`: by slot."""
    for _, arena in predicted(instructions, tensors):
        if arena is not None:
            yield arena


def predicted(
    instructions: Iterable[Instruction], tensors: Mapping[int, Tensor]
) -> Iterator[tuple[NativeRegion, Arena | None]]:
    """A program's native regions, each with its arena, if that is known; `tensors`: by slot."""
    for call in runs_of(instructions):
        run = call.kernel
        assert isinstance(run, NativeRegion)
        needs = _needs(run, tensors)
        nodes = frozenset(n for c in run.calls for n in c.nodes or (c.node,))
        leaving = frozenset(tensors[i].name for i in run.region.outputs if i in tensors)
        yield run, None if needs is None else Arena(nodes, leaving, needs)


def runs_of(instructions: Iterable[Instruction]) -> Iterator[Call]:
    """The calls that are native regions, in loops too."""
    for step in instructions:
        if isinstance(step, Loop):
            yield from runs_of((*step.head, *step.body))
        elif isinstance(step, Call) and isinstance(step.kernel, NativeRegion):
            yield step


def _needs(run: NativeRegion, tensors: Mapping[int, Tensor]) -> int | None:
    """Bytes of a region's arena; None where sizes are not known, or the region runs call by call."""
    given = []
    for slot in (run.region.given[i] for i in run.order):
        found = _sizes(tensors.get(slot))
        if found is None:
            return None
        given.append(stand_in(*found))
    planner = Predictor()
    try:
        return planner.needs(run.record_into(planner, given))
    except NotPlannableError:
        return None


def _sizes(tensor: Tensor | None) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and type of a tensor, or of the variable that it refers to, if they are known."""
    if tensor is None:
        return None
    dims, dtype = tensor.dims, tensor.dtype.base
    if dtype is resource:
        if tensor.op.type != "VarHandleOp":
            return None
        dims, dtype = tensor.op.attrs["shape"], tensor.op.attrs["dtype"]
    if dims is None or any(d is None for d in dims):
        return None
    return tuple(int(d or 0) for d in dims), dtype.np
