"""How calls without a kernel enter a native plan: views, values that shapes determine, concatenations.

The ops' own references compute views and known values, on placeholders or on the values themselves. Only copies are launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...ir.program import Call
from ..kernels.copy import Pack
from ..kernels.node import RecordableKernel
from ..native.planner import KNOWN, NotPlannableError, Planner

Array: TypeAlias = np.ndarray[Any, Any]
Put: TypeAlias = Callable[[Planner, Call, Sequence[Any]], Sequence[Any]]

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
    if kernel_of(call) is not None:
        return True
    if call.op in SHAPE_OPS or call.op in _OF_KNOWN and _are_known(call, known, constants):
        known.update(call.outputs)
        return True
    return call.op in _VIEWS or call.op in _JOINED


def _are_known(call: Call, known: set[int], constants: Any) -> bool:
    """Whether the values of all inputs of a call are known. A plain loop: it runs for each of 100,000 additions."""
    for i in call.inputs:  # noqa: SIM110
        if i not in known and i not in constants:
            return False
    return True


def is_launching(call: Call) -> bool:
    """Whether a call is a launch, as far as can be known without shapes."""
    kernel = kernel_of(call)
    return call.op in _JOINED or kernel is not None and not kernel.is_region_only


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
    kernel = kernel_of(call)
    if kernel is not None:
        return kernel.record_into(planner, inputs)
    if call.op in SHAPE_OPS or call.op in _OF_KNOWN and all(map(planner.is_known, inputs)):
        return _small(_made(call, inputs))
    if call.op in _VIEWS:
        return _record_view(planner, call, inputs)
    return _JOINED[call.op](planner, call, inputs)


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


def _join(planner: Planner, parts: Sequence[Any], axis: int) -> Array:
    """Concatenate parts along one of their axes."""
    first, begin = parts[0], 0
    if any(p.dtype != first.dtype or _without(p.shape, axis) != _without(first.shape, axis) for p in parts):
        raise NotPlannableError("parts that do not fit")
    along = sum(p.shape[axis] for p in parts)
    out = planner.empty((*first.shape[:axis], along, *first.shape[axis + 1 :]), first.dtype)
    for p in parts:
        end = begin + p.shape[axis]
        planner.copy(planner.in_memory(p), out[(*(slice(None),) * axis, slice(begin, end))])
        begin = end
    return out


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _record_concat(planner: Planner, call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    *parts, along = inputs
    axis, rank = int(planner.known(along)), parts[0].ndim
    if not -rank <= axis < rank:
        raise NotPlannableError("an axis that is not there")
    return [_join(planner, parts, axis % rank)]


def _record_pack(planner: Planner, call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    kernel, shape = call.kernel, inputs[0].shape
    if not isinstance(kernel, Pack) or any(x.shape != shape for x in inputs):
        raise NotPlannableError("parts that do not fit")
    axis = kernel.axis % (len(shape) + 1)
    return [_join(planner, [np.expand_dims(x, axis) for x in inputs], axis)]


_JOINED: dict[str, Put] = {"ConcatV2": _record_concat, "Pack": _record_pack}
