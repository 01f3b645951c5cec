"""Slots: variables that an optimizer keeps beside a variable, on its device.

A slot of `w` is called `w/<optimizer>`, the second one `w/<optimizer>_1`, as in TensorFlow 1.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..graph.shape import is_static
from ..graph.variable_scope import get_variable, variable_scope
from ..graph.variables import ResourceVariable


def create_slot(primary: Any, val: Any, name: str, colocate_with_primary: bool = True) -> Any:
    """A slot that starts with the value `val`."""
    with variable_scope(None, f"{primary.op.name}/{name}"), _beside(primary, colocate_with_primary):
        return get_variable(
            "",
            initializer=val,
            trainable=False,
            use_resource=isinstance(primary, ResourceVariable),
            validate_shape=val.get_shape().is_fully_defined(),
        )


def create_slot_with_initializer(
    primary: Any, initializer: Any, shape: Any, dtype: Any, name: str, colocate_with_primary: bool = True
) -> Any:
    """A slot of that shape and type, whose value an initializer makes."""
    with variable_scope(None, f"{primary.op.name}/{name}"), _beside(primary, colocate_with_primary):
        return get_variable(
            "",
            shape=shape,
            dtype=dtype,
            initializer=initializer,
            trainable=False,
            use_resource=isinstance(primary, ResourceVariable),
        )


def create_zeros_slot(primary: Any, name: str, dtype: Any = None, colocate_with_primary: bool = True) -> Any:
    """A slot of zeros, of the variable's shape, and of its type unless `dtype` says another."""
    from ..graph.initializers import zeros_initializer
    from ..graph.ops.creation import zeros
    from ..graph.ops.shapes import shape

    dtype = primary.dtype.base if dtype is None else dtype
    dims = primary.get_shape().dims_tuple
    if is_static(dims):
        return create_slot_with_initializer(
            primary, zeros_initializer(), dims, dtype, name, colocate_with_primary
        )
    return create_slot(primary, zeros(shape(primary.initialized_value()), dtype), name, colocate_with_primary)


def _beside(primary: Any, colocate: bool) -> AbstractContextManager[None]:
    return primary.graph.colocate_with(primary) if colocate else nullcontext()
