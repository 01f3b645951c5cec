"""Changes to a slice of a variable: `v[1:, 0].assign(x)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert, make
from ...core.dtypes import resource
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, Trait, define, nbytes
from ...core.operators import assignments
from ...core.shape import compatible, text
from ...resources.resource_manager import Context, VariableState, changing
from ..array.slicing import MASKS, checked_index, sliced_dims
from ..math.static_operands import Array, invalid
from .variables import expect_type, place_of, read_variable


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    place, begin, end, strides, value = inputs
    dtype, dims = place_of(place)
    expect_type(value, dtype, "value")
    wanted = sliced_dims(dims, begin, end, strides, attrs)
    if not compatible(value.dims, wanted):
        raise ValueError(f"the slice has shape {text(wanted)}, the value {text(value.dims)}")
    return [(dtype.ref, dims)] if place.dtype.is_ref else []


def _assign(is_ref: bool) -> Callable[..., Any]:
    def reference(
        context: Context, state: VariableState, begin: Array, end: Array, strides: Array, value: Array, **masks: int
    ) -> Any:
        with changing([state]) as (held,):
            at = checked_index(held.shape, begin, end, strides, masks)
            wanted = np.shape(held[at])
            if wanted != value.shape:
                raise invalid(f"The slice of the variable has shape {text(wanted)}, the value {text(value.shape)}")
            held[at] = value
        return state if is_ref else ()

    return reference


for _op, _is_ref in (("StridedSliceAssign", True), ("ResourceStridedSliceAssign", False)):
    define(
        _op,
        infer=_rule,
        reference=_assign(_is_ref),
        cost=lambda node: Cost(0.0, 2 * nbytes(node.inputs[4])),
        traits=Trait.STATEFUL,
        ref_inputs=(0,) if _is_ref else (),
    )


def _assignment(piece: Tensor) -> Callable[..., Tensor]:
    """The method `assign` of `v[...]`. AttributeError: the tensor is no slice of a variable."""
    place = piece
    if piece.op.type == "StridedSlice":
        place = piece.op.inputs[0]
        while place.op.type in ("Enter", "Switch", "Identity", "ReadVariableOp") and not _is_place(place):
            place = place.op.inputs[0]
    if place is piece or not _is_place(place):
        raise AttributeError(f"{piece!r} is no slice of a variable, so it has no 'assign'")

    def assign(value: TensorLike, name: str | None = None) -> Tensor:
        """Set the slice to a value of its shape; gives the variable's whole value after it."""
        node: Node = piece.op
        is_ref = place.dtype.is_ref
        op = "StridedSliceAssign" if is_ref else "ResourceStridedSliceAssign"
        with place.graph.op_scope(name or op) as scope:
            new = convert(value, place_of(place)[0], name="value")
            attrs = {mask: node.attrs[mask] for mask in MASKS if mask in node.attrs}
            change = make(op, (place, *node.inputs[1:], new), attrs, scope)
        if is_ref:
            return change.outputs[0]
        with place.graph.control_dependencies([change]):
            return read_variable(place)

    return assign


def _is_place(tensor: Tensor) -> bool:
    return tensor.dtype.is_ref or tensor.dtype is resource


assignments[:] = [_assignment]
