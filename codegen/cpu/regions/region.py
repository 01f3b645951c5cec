"""Native regions: runs of calls that become one call of compiled code once there is a plan for their shapes.

A region first runs its calls one by one, while their kernels are compiled. When the same shapes occur for the third time, it makes a
plan for them (`native.plan_cache`), and from then on runs the plan. It has kernels and what is between them (views, shapes, copies), or
updates of several variables, such as those of a parameter server for coalesced gradients. It locks all variables that it updates at
once, in the global lock order. The update of a large variable is in no region, so that readers of small ones do not wait for it.

The memory that a region will need is told before anything is compiled or run, from sizes alone (`planned_regions`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....graph.core.dtypes import resource
from ....graph.core.graph import Tensor
from ....graph.core.shape import element_count
from ....graph.resources.variable import VariableState, changing
from ...ir.program import Call, Instruction, PooledKernel, RegionKernel, calls_of
from ...lower.region import Region, one_or_all
from ...memory.plan import Arena
from ..kernels.copy import JoinKernel
from ..kernels.fused import RegionOnlyKernel
from ..kernels.node import RecordableKernel
from ..kernels.optimizer import UpdateKernel
from ..native.plan_cache import PlanCache
from ..native.planner import KNOWN, NotPlannableError, Planner, stand_in
from ..tiering import TieredKernel

ONE_BY_ONE = 2  # runs before a plan is made: the step is one that repeats
LARGEST = 1 << 20  # bytes of a variable that is updated together with others, some 50 microseconds
# Bytes of an arena and of what leaves; where tensors are larger, what Python does between launches is no matter.
MOST_MEMORY = 1 << 26


class NativeRegion(RegionKernel, PooledKernel):
    """Calls of a program that run as one call.

    Args:
        region: the calls. launches: how many of them are launches. at_once: compile what a plan needs and wait for it.

    Attributes:
        calls: the calls that it runs. launches: how many of them are launches. replays: how many runs used a plan.
    """

    def __init__(self, region: Region, launches: int = 0, at_once: bool = False) -> None:
        self.region = region
        self.calls = region.calls
        self.launches = launches
        self.replays = 0
        self._at_once = at_once
        self._plans = PlanCache(self.record_into, f"a region up to {self.calls[-1].node}", ONE_BY_ONE, MOST_MEMORY)
        kernels: list[Any] = [
            c.kernel.kernel if isinstance(c.kernel, RegionOnlyKernel) else c.kernel for c in region.calls
        ]
        self._cold: list[TieredKernel] = [k for k in kernels if isinstance(k, TieredKernel)]
        changed = [i for c in self.calls if is_update(c) for i in c.inputs[: _update(c).places]]
        looked_up = {c.inputs[i] for c in self.calls for i in variables_of(c)}
        at = {slot: i for i, slot in enumerate(region.given)}
        self._changed = tuple([at[i] for i in dict.fromkeys(changed)])
        self._are_distinct = len(changed) == len(self._changed)
        self._read = tuple([i for i, slot in enumerate(region.given) if slot in looked_up])
        updated = {o: at[c.inputs[0]] for c in self.calls if is_update(c) for o in c.outputs}
        self._results = tuple([updated.get(o, -1) for o in region.outputs])  # variables; -1: what plans give

    def __call__(self, *inputs: Any) -> Any:
        outputs = None if self._cold and not self._is_warm() else self.by_plan(inputs)
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

    @property
    def arenas(self) -> tuple[int, ...]:
        """Bytes of the arenas of the plans that there are, one for each set of shapes."""
        return self._plans.arenas

    def send(self, outputs: Collection[int]) -> None:
        """As `PooledKernel.send`. A region that makes values gives no variables."""
        self._plans.sent = outputs

    def record_into(self, planner: Planner, inputs: Sequence[Any]) -> Sequence[Any]:
        """Record all calls into a plan, in which variables are their values; gives what leaves, without the variables."""
        region = self.region
        values = {**region.constants, **dict(zip(region.given, inputs, strict=True))}
        for call in self.calls:
            taken = [values[i] for i in call.inputs]
            if is_update(call):
                _update(call).record_into(planner, taken)
            else:
                values.update(zip(call.outputs, record(planner, call, taken), strict=True))
        return [values[o] for o, at in zip(region.outputs, self._results, strict=True) if at < 0]

    def by_plan(self, inputs: tuple[Any, ...]) -> list[Any] | None:
        """Run by a plan; None: there is none that fits, or a kernel has failed, without a visible effect."""
        arrays = list(inputs)
        for i in self._read:
            arrays[i] = arrays[i].read() if arrays[i].is_initialized else None
        if not self._changed:
            return self._plans.run(tuple(arrays), self._at_once)
        states: list[VariableState] = [inputs[i] for i in self._changed]
        if not self._are_distinct or len(set(states)) < len(states) or not all(s.is_initialized for s in states):
            return None
        with changing(states) as values:
            for i, value in zip(self._changed, values, strict=True):
                arrays[i] = value
            made = self._plans.run(tuple(arrays), self._at_once)
        left = iter(made or ())
        return None if made is None else [inputs[at] if at >= 0 else next(left) for at in self._results]

    def _is_warm(self) -> bool:
        """Whether all kernels are compiled."""
        self._cold = [k for k in self._cold if k.function is None]
        return not self._cold


# --- updates of variables --------------------------------------------------------------------------------------------


def is_update(call: Call) -> bool:
    """Whether a call is an update of a variable that a plan takes."""
    return isinstance(call.kernel, UpdateKernel) and not call.kernel.checks


def is_large_update(call: Call) -> bool:
    """Whether an update stays a call of its own; an unknown number of elements counts as one."""
    if not is_update(call):
        return False
    update = _update(call)
    array = update.node.inputs[update.places + update.gradient]
    return update.places * (element_count(array.dims) or 1) * array.dtype.size > LARGEST


def _update(call: Call) -> UpdateKernel:
    assert isinstance(call.kernel, UpdateKernel)
    return call.kernel


# --- before anything runs --------------------------------------------------------------------------------------------


def regions_of(instructions: Iterable[Instruction]) -> Iterator[Call]:
    """The calls that are native regions, in loops too."""
    return (call for call in calls_of(instructions) if isinstance(call.kernel, NativeRegion))


def planned_regions(
    instructions: Iterable[Instruction], tensors: Mapping[int, Tensor]
) -> Iterator[tuple[NativeRegion, Arena | None]]:
    """A program's native regions, each with its arena, if its size is known; `tensors`: by slot."""
    for call in regions_of(instructions):
        run = call.kernel
        assert isinstance(run, NativeRegion)
        needs = arena_bytes(run, [_sizes(tensors.get(i)) for i in run.region.given])
        nodes = frozenset(n for c in run.calls for n in c.nodes or (c.node,))
        leaving = frozenset(tensors[i].name for i in run.region.outputs if i in tensors)
        yield run, None if needs is None else Arena(nodes, leaving, needs)


def arena_bytes(run: NativeRegion, sizes: Sequence[tuple[tuple[int, ...], np.dtype[Any]] | None]) -> int | None:
    """Bytes of a region's arena for inputs of these shapes and types; None: one is not known, or the region runs call by call."""
    planner = Planner(is_dry=True)
    try:
        inputs = [planner.given(i, stand_in(*x)) for i, x in enumerate(sizes) if x is not None]
        if len(inputs) < len(sizes):
            return None
        return planner.arena_bytes(run.record_into(planner, inputs), MOST_MEMORY)
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


# --- how calls enter a plan ------------------------------------------------------------------------------------------
# Kernels record themselves; the ops' own references compute views, and values that shapes determine, on placeholders or on the values
# themselves.


SHAPE_OPS = frozenset(("Shape", "ShapeN", "Size", "Rank"))
"""Ops whose outputs depend on the shapes of their inputs alone."""

_OF_KNOWN = frozenset(
    ("AddV2", "BroadcastArgs", "BroadcastGradientArgs", "Cast", "ConcatV2", "ExpandDims", "FloorDiv", "FloorMod", "GatherV2", "Identity",
     "Maximum", "Minimum", "Mul", "Neg", "Pack", "Prod", "Range", "RealDiv", "Reshape", "Slice", "Squeeze", "StridedSlice", "Sub", "Sum")
)  # fmt: skip

_VIEWS = {
    "BroadcastTo": 0, "ExpandDims": 0, "Identity": 0, "PreventGradient": 0, "Reshape": 0, "Slice": 0, "Split": 1, "SplitV": 0,
    "Squeeze": 0, "StopGradient": 0, "StridedSlice": 0, "Transpose": 0, "Unpack": 0,
}  # fmt: skip
"""Ops that give a view of one input, and which input that is. The values of their other inputs must be known."""


def kernel_of(call: Call) -> RecordableKernel | None:
    """The kernel of a call that a plan can have."""
    kernel = call.kernel
    return kernel if isinstance(kernel, RecordableKernel) and kernel.is_native else None


def variables_of(call: Call) -> Sequence[int]:
    """Which inputs of a call are variables, whose values its kernel looks up."""
    return call.kernel.variables if isinstance(call.kernel, RecordableKernel) else ()


def can_record(call: Call, known: set[int], constants: Any) -> bool:
    """Whether a plan can have this call. `known`: slots whose values follow from shapes; such outputs are added to it."""
    if call.op in SHAPE_OPS or _may_be_known(call) and _are_known(call, known, constants):
        known.update(call.outputs)
        return True
    return call.op in _VIEWS or kernel_of(call) is not None


def _may_be_known(call: Call) -> bool:
    """Whether the outputs of a call are computed with the plan where the inputs are known then."""
    return call.op in _OF_KNOWN and isinstance(kernel_of(call), JoinKernel | None)


def _are_known(call: Call, known: set[int], constants: Any) -> bool:
    """Whether the values of all inputs of a call are known. A plain loop: it runs for each of 100,000 additions."""
    for i in call.inputs:  # noqa: SIM110
        if i not in known and i not in constants:
            return False
    return True


def is_launching(call: Call) -> bool:
    """Whether a call is a launch, as far as can be known without shapes."""
    kernel = kernel_of(call)
    return kernel is not None and not kernel.is_region_only


def work_of(call: Call) -> float:
    """Arithmetic operations and bytes of a kernel, an unknown size counting as 1; nothing for views, shapes and copies."""
    kernel = kernel_of(call)
    costs = [] if kernel is None else [n.opdef.cost_of(n) for n in kernel.nodes]
    return sum((c.flops + c.bytes for c in costs), 0.0)


def record(planner: Planner, call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    """Record a call into a plan; gives its outputs.

    Raises:
        NotPlannableError: not possible with these inputs.
    """
    if call.op in SHAPE_OPS or _may_be_known(call) and all(map(planner.is_known, inputs)):
        return _small(_made(call, inputs))
    kernel = kernel_of(call)
    return _record_view(planner, call, inputs) if kernel is None else kernel.record_into(planner, inputs)


def _made(call: Call, arrays: Sequence[Any]) -> Sequence[Any]:
    """The outputs of the reference."""
    result = call.kernel(*arrays)
    return (result,) if len(call.outputs) == 1 else result


def _small(values: Sequence[Any]) -> Sequence[Any]:
    """Values that shapes tell, which are kept with the plan."""
    if any(x.nbytes > KNOWN for x in values):
        raise NotPlannableError("what shapes tell is large")
    return values


def _record_view(planner: Planner, call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    which = _VIEWS[call.op]
    values = [x if i == which else planner.known(x) for i, x in enumerate(inputs)]
    if planner.is_known(values[which]):
        return _small(_made(call, values))
    for _ in range(2):
        shown = _made(call, values)
        if all(planner.memory_of(x) is not None for x in shown):
            return shown
        values[which] = planner.ordered(values[which])  # these strides allow no view: copy to contiguous memory first
    raise NotPlannableError(f"{call.op} copies")
