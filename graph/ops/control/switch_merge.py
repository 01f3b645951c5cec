"""The ops of control flow, and stacks.

TensorFlow 1 expresses control flow in the dataflow graph. A *dead* tensor has no value in a step, because it depends on the output of a
`Switch` that was not taken. A node with a dead input does not run, and its outputs are dead, too. A `Merge` ends the propagation: its
output is the live input.

    Switch(data, pred)     -> (data if pred is false, data if pred is true); the other output is dead
    Merge(a, b, ...)       -> (the live input, its number)
    Enter(data)            -> data, inside the loop `frame_name`; in all iterations if `is_constant`
    LoopCond(pred)         -> pred; the loop continues while it is true
    NextIteration(data)    -> data, in the next iteration
    Exit(data)             -> data, outside the loop, when it has ended
    ControlTrigger()       waits for its control inputs, and is live even if they are dead

The second input of a loop's Merge is a NextIteration. This is the only edge from a later node to an earlier one. `graph/core/frames.py` and
the executors implement deadness and iterations.

A loop keeps the values that its gradient needs on stacks. A `StackV2` node creates a new stack in each step and returns its handle. The
stack is freed with the last reference to the handle. Ops that take the handle run on the stack's device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import apply
from ...core.dtypes import Array, DType, bool_, int32, resource
from ...core.errors import InternalError, invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, Trait, define, typed_attr
from ...core.shape import Dims, common, compatible, text
from ...resources.resource_manager import DEAD, Context
from ..math.common import same_type
from ..math.static_operands import no_cost, same_rule


def _need_bool(pred: Tensor) -> None:
    if pred.dtype.base is not bool_:
        raise TypeError(f"the condition must be a bool, not {pred.dtype.base.name}")
    if pred.dims not in (None, ()):
        raise ValueError(f"the condition must be a scalar bool, not of shape {text(pred.dims)}")


def _switch_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    data, pred = inputs
    _need_bool(pred)
    return [(data.dtype.base, data.dims)] * 2


def _ref_switch_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    data, pred = inputs
    _need_bool(pred)
    _need_ref(data)
    return [(data.dtype, data.dims)] * 2


def _need_ref(data: Tensor) -> None:
    if not data.dtype.is_ref:
        raise TypeError(f"a reference to a variable is expected, not a value of type {data.dtype.name}")


def _merge_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not inputs:
        raise ValueError("there must be at least one input")
    dtype, dims = same_type(inputs), inputs[0].dims
    for t in inputs[1:]:
        dims = common(dims, t.dims)
    return [(dtype, dims), (int32, ())]


def _enter_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (data,) = inputs
    frame, constant, parallel, dims = (attrs[k] for k in ("frame_name", "is_constant", "parallel_iterations", "shape"))
    if not isinstance(frame, str) or not frame or not isinstance(constant, bool):
        raise TypeError("frame_name must be a non-empty string, and is_constant a bool")
    if type(parallel) is not int or parallel < 1:
        raise ValueError(f"parallel_iterations must be a positive number, not {parallel!r}")
    if dims is None:
        return [(data.dtype.base, data.dims)]
    # The shape is in a tuple of one element, because None is a shape, too: the unknown one.
    (invariant,) = dims
    if not compatible(invariant, data.dims):
        raise ValueError(f"shape {text(data.dims)} does not fit the loop's shape {text(invariant)}")
    return [(data.dtype.base, invariant)]


def _ref_enter_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (data,) = inputs
    _need_ref(data)
    ((_, dims),) = _enter_rule(inputs, attrs)
    return [(data.dtype, dims)]


def _loop_cond_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (pred,) = inputs
    _need_bool(pred)
    return [(bool_, ())]


def switch(data: Array, pred: Array) -> tuple[Array, Array]:
    """The outputs of Switch for live inputs."""
    return (DEAD, data) if pred else (data, DEAD)


def merge(*inputs: Array) -> tuple[Array, Any]:
    """The outputs of Merge: the first live input and its number. Both are dead if all inputs are."""
    for i, value in enumerate(inputs):
        if value is not DEAD:
            return value, np.int32(i)
    return DEAD, DEAD


_ENTER_ATTRS = ("frame_name", "is_constant", "parallel_iterations", "shape")


def _no_gradient_alone(node: Node, *grads: Any) -> Sequence[Any]:
    raise InternalError(
        node, node, f"The gradient of '{node.name}' ({node.type}) is computed only for its whole cond or loop"
    )


# graph/gradients/control_flow.py makes the gradients of these ops.
_back: dict[str, Any] = {"gradient": _no_gradient_alone, "cost": no_cost}

define("Switch", infer=_switch_rule, reference=switch, **_back)
define("RefSwitch", infer=_ref_switch_rule, reference=switch, ref_inputs=(0,), **_back)
define("Merge", infer=_merge_rule, reference=merge, **_back)
define("Enter", infer=_enter_rule, reference=lambda x: x, internal_attrs=_ENTER_ATTRS, **_back)
define(
    "RefEnter",
    infer=_ref_enter_rule,
    reference=lambda x: x,
    internal_attrs=_ENTER_ATTRS,
    ref_inputs=(0,),
    **_back,
)
define("Exit", infer=same_rule, reference=lambda x: x, **_back)
define("NextIteration", infer=same_rule, reference=lambda x: x, **_back)
define("LoopCond", _loop_cond_rule, lambda x: x, cost=no_cost)
define("ControlTrigger", lambda inputs, attrs: [], lambda: (), cost=no_cost)


# --- stacks -----------------------------------------------------------------------------------------------------------


class StackState:
    """The values on a stack."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: list[Any] = []


def _need_handle(handle: Tensor) -> None:
    if handle.dtype is not resource:
        raise TypeError(f"a stack's handle is expected, not a value of type {handle.dtype.name}")


def _stack_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "elem_type", DType)
    return [(resource, ())]


def _push_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, value = inputs
    _need_handle(handle)
    return [(value.dtype.base, value.dims)]


def _pop_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (handle,) = inputs
    _need_handle(handle)
    return [(typed_attr(attrs, "elem_type", DType).base, attrs["shape"])]


def _push(context: Context, stack: StackState, value: Array) -> Array:
    stack.values.append(value)
    return value


def _pop(context: Context, stack: StackState) -> Any:
    if not stack.values:
        raise invalid(f"{context.node_name}: the stack is empty when calling Pop()")
    return stack.values.pop()


def _no_second_order(node: Node, grad: Any) -> Sequence[Any]:
    raise LookupError(
        f"Second-order gradients through while_loop are not supported: '{node.name}' (created at {node.source}) is part "
        "of the gradient of a loop, and its value depends on an x"
    )


define(
    "StackV2",
    _stack_rule,
    lambda context: StackState(),
    cost=no_cost,
    traits=Trait.STATEFUL | Trait.STATE_HANDLE,
    internal_attrs=("elem_type",),
)
define("StackPushV2", _push_rule, _push, cost=no_cost, traits=Trait.STATEFUL)
define(
    "StackPopV2",
    _pop_rule,
    _pop,
    gradient=_no_second_order,
    cost=no_cost,
    traits=Trait.STATEFUL,
    internal_attrs=("elem_type", "shape"),
)


def saved_values(pop: Node) -> list[Tensor]:
    """The tensors whose values a StackPopV2 may return: those pushed onto its stack."""
    stack = _stack_of(pop)
    return [n.inputs[1] for n in pop.graph.nodes if n.type == "StackPushV2" and _stack_of(n) is stack]


def _stack_of(node: Node) -> Node:
    while node.type != "StackV2":
        node = node.inputs[0].op
    return node


def stack_v2(elem_type: DType) -> Tensor:
    """The handle of a new stack, which is empty at the beginning of a step."""
    return apply("StackV2", (), {"elem_type": elem_type.base})


def stack_push(handle: Tensor, value: Tensor) -> Tensor:
    """Push a value onto a stack. Returns the value."""
    return apply("StackPushV2", (handle, value))


def stack_pop(handle: Tensor, elem_type: DType, dims: Dims) -> Tensor:
    """Pop a value of this type and static shape."""
    return apply("StackPopV2", (handle,), {"elem_type": elem_type.base, "shape": dims})
