"""Creates slots: variables that an optimizer keeps for each variable, on its device. Moving averages also have slots for tensors.

As in TensorFlow 1, the first slot of `w` is named `w/<optimizer>`, and the second one `w/<optimizer>_1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from ...graph.core.shape import is_static
from ...graph.ops.array.creation import zeros
from ...graph.variables.initializers import zeros_initializer
from ...graph.variables.ref_and_resource import ResourceVariable
from ...graph.variables.scope import get_variable, variable_scope
from ...graph.variables.variable import Variable, VariableAggregation


def create_slot(
    primary: Any,
    val: Any,
    name: str,
    colocate_with_primary: bool = True,
    aggregation: VariableAggregation | None = None,
) -> Any:
    """Creates a slot with an initial value.

    Args:
        primary: the variable or tensor that the slot belongs to.
        val: the initial value, a tensor.
        name: suffix of the slot's name.
        colocate_with_primary: whether the slot is colocated with `primary`.
        aggregation: how values that replicas assign are combined.
    """
    is_full = val.get_shape().is_fully_defined()
    return _create(primary, name, colocate_with_primary, aggregation, initializer=val, validate_shape=is_full)


def create_slot_with_initializer(
    primary: Any,
    initializer: Any,
    shape: Any,
    dtype: Any,
    name: str,
    colocate_with_primary: bool = True,
    aggregation: VariableAggregation | None = None,
) -> Any:
    """Creates a slot from an initializer, a shape and an element type. The other arguments are those of `create_slot`."""
    made = {"initializer": initializer, "shape": shape, "dtype": dtype}
    return _create(primary, name, colocate_with_primary, aggregation, **made)


def create_zeros_slot(
    primary: Any,
    name: str,
    dtype: Any = None,
    colocate_with_primary: bool = True,
    aggregation: VariableAggregation | None = None,
) -> Any:
    """Creates a slot of zeros with the shape of `primary`. `dtype`: None: that of `primary`."""
    from ...graph.ops.array.shapes import shape  # a parameter has this name

    dtype = primary.dtype.base if dtype is None else dtype
    dims = primary.get_shape().dims_tuple
    if is_static(dims):
        made = zeros_initializer()
        return create_slot_with_initializer(primary, made, dims, dtype, name, colocate_with_primary, aggregation)
    value = primary.initialized_value() if isinstance(primary, Variable) else primary
    return create_slot(primary, zeros(shape(value), dtype), name, colocate_with_primary, aggregation)


def _create(primary: Any, name: str, colocate: bool, aggregation: VariableAggregation | None, **arguments: Any) -> Any:
    """Creates a slot. `arguments`: arguments of `get_variable` for its value and shape."""
    is_resource = isinstance(primary, ResourceVariable)
    with _slot_scope(primary, name), _beside(primary, colocate):
        slot = get_variable("", trainable=False, use_resource=is_resource, aggregation=aggregation, **arguments)
    return _sliced_like(primary, slot)


@contextmanager
def _slot_scope(primary: Any, name: str) -> Iterator[None]:
    first = primary._single() if isinstance(primary, Variable) else primary  # all replicas use the same name for a slot
    with variable_scope(None, f"{first.op.name}/{name}") as scope:
        scope.set_partitioner(None)  # each part of a partitioned variable has its own slot
        yield


def _sliced_like(primary: Any, slot: Any) -> Any:
    """Returns the slot. If `primary` is a part of a partitioned variable, marks the slot as the same part of a whole slot."""
    part = primary.save_slice_info if isinstance(primary, Variable) else None
    if part is not None and slot.get_shape().as_list() == part.var_shape:
        whole = slot.op.name.replace(primary.op.name, part.full_name, 1)
        slot.save_slice_info = replace(part, full_name=whole)
    return slot


def _beside(primary: Any, colocate: bool) -> AbstractContextManager[None]:
    return primary.graph.colocate_with(primary) if colocate else nullcontext()
