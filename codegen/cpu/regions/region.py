"""Native regions: runs of calls that become one call of compiled code once there is a plan for their shapes.

A region first runs its calls one by one, while their kernels are compiled. When the same shapes occur for the third time, it makes a
plan for them (`native.plans`), and from then on runs the plan, with the same bits. A number that is out of range ends a run before any
effect of it can be seen; the calls then run one by one, which raises the error and says where. So do shapes that no plan can be made for.

A region of updates locks all their variables at once, in the global lock order. The update of a large variable is in no region, so that
readers of small ones do not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....graph.core.dtypes import resource
from ....graph.core.graph import Tensor
from ...ir.program import Call, Region, one_or_all
from ...memory.plan import Arena
from ..jit import TieredKernel
from ..kernels.gemm import ProductKernel
from ..kernels.node import RecordableKernel
from ..native.planner import KNOWN, NotPlannableError, Planner
from ..native.plans import PlanCache, Sizes

ONE_BY_ONE = 2  # runs before a plan is made: the step is one that repeats
# Bytes of an arena and of what leaves; where tensors are larger, what Python does between launches is no matter.
MOST_MEMORY = 1 << 26


class NativeRegion:
    """Calls of a program that run as one call.

    Args:
        region: the calls, with their kernels. at_once: compile what a plan needs and wait for it.

    Attributes:
        plans: its plans. replays: how many runs used one.
    """

    def __init__(self, region: Region, at_once: bool = False) -> None:
        self.region = region
        self.replays = 0
        self._at_once = at_once
        kernels: list[Any] = [c.kernel for c in region.calls]
        self._cold: list[TieredKernel] = [k for k in kernels if isinstance(k, TieredKernel)]
        at = {slot: i for i, slot in enumerate(region.given)}
        read: set[int] = set()
        changed: list[int] = []
        for call in region.calls:
            if isinstance(call.kernel, ProductKernel):
                call.kernel.enter_region()
            if isinstance(call.kernel, RecordableKernel):
                read.update([at[call.inputs[i]] for i in call.kernel.read if call.inputs[i] in at])
                changed += [at[call.inputs[i]] for i in call.kernel.changed]
        what = f"a region up to {region.calls[-1].node}"
        self.plans = PlanCache(self.record_into, what, tuple(read), changed, ONE_BY_ONE, MOST_MEMORY)

    def __call__(self, *inputs: Any) -> Any:
        if self._cold:
            self._cold = [k for k in self._cold if k.function is None]
        outputs = None if self._cold else self.plans.run(inputs, self._at_once)
        if outputs is not None:
            self.replays += 1
            return one_or_all(outputs)
        began, cold = time.perf_counter(), [(kernel, kernel.spent) for kernel in self._cold]
        outputs = self.region.one_by_one(inputs)
        took = time.perf_counter() - began
        # All alike, however short they run: each one that is missing keeps the region from its plan. They have counted their own time.
        for kernel, before in cold:
            kernel.cost(took / len(cold) - (kernel.spent - before))
        return one_or_all(outputs)

    def record_into(self, planner: Planner, inputs: Sequence[Any]) -> Sequence[Any]:
        """Record all calls into a plan, in which variables are their values; gives what leaves."""
        values = {**self.region.constants, **dict(zip(self.region.given, inputs, strict=True))}
        for call in self.region.calls:
            values.update(zip(call.outputs, record(planner, call, [values[i] for i in call.inputs]), strict=True))
        return [values[o] for o in self.region.outputs]


# --- before anything runs --------------------------------------------------------------------------------------------


def arena_of(run: NativeRegion, tensors: Mapping[int, Tensor]) -> Arena | None:
    """The arena of a region, if its size is known, and unless it runs call by call; `tensors`: of the program, by slot."""
    plan = run.plans.predicted([_sizes(tensors.get(i)) for i in run.region.given])
    leaving = frozenset(tensors[i].name for i in run.region.outputs if i in tensors)
    return None if plan is None else Arena(frozenset(run.region.nodes), leaving, plan.arena_bytes)


def _sizes(tensor: Tensor | None) -> Sizes:
    """Shape and type of a tensor, or of the variable that it refers to, as far as they are known."""
    if tensor is not None and tensor.op.type == "VarHandleOp":
        return tensor.op.attrs["shape"], tensor.op.attrs["dtype"].np
    if tensor is None or tensor.dtype.base is resource:
        return None, np.dtype(np.uint8)
    return tensor.dims, tensor.dtype.base.np


# --- how calls enter a plan ------------------------------------------------------------------------------------------
# Kernels record themselves. Views of placeholders, and values that follow from shapes, are computed by the ops' own references.

SHAPE_OPS = frozenset(("Shape", "ShapeN", "Size", "Rank"))
"""Ops whose outputs depend on the shapes of their inputs alone."""

OF_KNOWN = frozenset(
    ("AddV2", "BroadcastArgs", "BroadcastGradientArgs", "Cast", "ConcatV2", "ExpandDims", "FloorDiv", "FloorMod", "GatherV2", "Identity",
     "Maximum", "Minimum", "Mul", "Neg", "Pack", "Prod", "Range", "RealDiv", "Reshape", "Slice", "Squeeze", "StridedSlice", "Sub", "Sum")
)  # fmt: skip
"""Ops whose references compute them while the plan is made, if all inputs are known then."""

VIEWS = {
    "BroadcastTo": 0, "ExpandDims": 0, "Identity": 0, "PreventGradient": 0, "Reshape": 0, "Slice": 0, "Split": 1, "SplitV": 0,
    "Squeeze": 0, "StopGradient": 0, "StridedSlice": 0, "Transpose": 0, "Unpack": 0,
}  # fmt: skip
"""Ops that give a view of one input, and which input that is. The values of their other inputs must be known."""


def record(planner: Planner, call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    """Record a call into a plan; gives its outputs.

    Raises:
        NotPlannableError: not possible with these inputs.
    """
    if call.op in SHAPE_OPS or call.op in OF_KNOWN and all(map(planner.is_known, inputs)):
        values = _outputs(call, inputs)
        if all(x.nbytes <= KNOWN for x in values):
            return values
    if isinstance(call.kernel, RecordableKernel):
        return call.kernel.record_into(planner, inputs)
    if call.op not in VIEWS:
        raise NotPlannableError("a value that follows from shapes is large")
    which = VIEWS[call.op]
    values = [x if i == which else planner.known(x) for i, x in enumerate(inputs)]
    for _ in range(2):
        shown = _outputs(call, values)
        if planner.is_known(values[which]) or all(planner.memory_of(x) is not None for x in shown):
            return shown
        values[which] = planner.ordered(values[which])  # these strides allow no view: copy to contiguous memory first
    raise NotPlannableError(f"{call.op} copies")


def _outputs(call: Call, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of the reference."""
    result = call.kernel(*arrays)
    return [result] if len(call.outputs) == 1 else list(result)
