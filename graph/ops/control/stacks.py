"""Stacks: where a loop keeps the values that its gradient needs.

A `StackV2` node makes a new stack in each step and gives out a handle. The stack has no other name. It is freed when the last
reference to the handle is dropped. Ops that take the handle run on the stack's device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.build import apply
from ...core.dtypes import Array, DType, resource
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, Trait, define, typed_attr
from ...core.shape import Dims
from ...resources.resource_manager import Context
from ..math.static_operands import no_cost


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
        f"Second-order gradients through while_loop do not exist: '{node.name}' (made at {node.source}) is part "
        "of the gradient of a loop, and its value depends on an x"
    )


define(
    "StackV2",
    infer=_stack_rule,
    reference=lambda context: StackState(),
    cost=no_cost,
    traits=Trait.STATEFUL | Trait.STATE_HANDLE,
    internal_attrs=("elem_type",),
)
define("StackPushV2", infer=_push_rule, reference=_push, cost=no_cost, traits=Trait.STATEFUL)
define(
    "StackPopV2",
    infer=_pop_rule,
    reference=_pop,
    gradient=_no_second_order,
    cost=no_cost,
    traits=Trait.STATEFUL,
    internal_attrs=("elem_type", "shape"),
)


def saved_values(pop: Node) -> list[Tensor]:
    """The tensors that a StackPopV2 may give: those pushed onto its stack."""
    stack = _stack_of(pop)
    return [n.inputs[1] for n in pop.graph.nodes if n.type == "StackPushV2" and _stack_of(n) is stack]


def _stack_of(node: Node) -> Node:
    while node.type != "StackV2":
        node = node.inputs[0].op
    return node


def stack_v2(elem_type: DType) -> Tensor:
    """A new stack, empty when a step begins: its handle."""
    return apply("StackV2", (), {"elem_type": elem_type.base})


def stack_push(handle: Tensor, value: Tensor) -> Tensor:
    """Put a value on top; gives the value."""
    return apply("StackPushV2", (handle, value))


def stack_pop(handle: Tensor, elem_type: DType, dims: Dims) -> Tensor:
    """Take the value on top, of this static shape."""
    return apply("StackPopV2", (handle,), {"elem_type": elem_type.base, "shape": dims})
