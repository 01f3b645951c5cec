"""How calls enter a native plan: kernels record themselves; the ops' own references compute views, and values that shapes determine, on
placeholders or on the values themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.program import Call
from ..kernels.copy import JoinKernel
from ..kernels.node import RecordableKernel
from ..native.planner import KNOWN, NotPlannableError, Planner

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
