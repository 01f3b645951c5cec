"""Variables in a GPU's memory: references to their values, assignments, and in-place updates.

A variable's value is a `DeviceArray`. Reads are snapshots, so an array with other references does not change: an update writes to new
memory, unless only the variable refers to its value. Then it updates in place. Kernels that still read the old value were launched
before, on the same stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from sys import getrefcount
from typing import Any

import numpy as np

from ...graph.core.graph import Node
from ...graph.core.reference_counts import ONLY_ATTRIBUTE
from ...graph.core.shape import compatible, element_count
from ...graph.resources.resource_manager import Context
from ...graph.resources.variable import VariableState
from .driver.allocator import Block
from .driver.array import DeviceArray
from .driver.device import Device
from .kernels import GpuContext
from .residency import HostKernel, acquire, brought, lives_on_device


class AssignKernel:
    """Copies a value over the old one, so that the variable's address stays the same for CUDA graphs that read it.

    Where others refer to the old value, or it has another shape, the variable gets the new value itself: a value is changed only by the
    holder of its sole reference.

    Attributes:
        is_in_place: whether the value is known to be in GPU memory, and of the variable's shape.
    """

    def __init__(self, gpu: GpuContext, node: Node, context: Context, fallback: HostKernel) -> None:
        self.gpu = gpu
        self.fallback = fallback
        dtype, dims = node.inputs[1].dtype.base, node.inputs[1].dims
        count = element_count(dims)
        self.is_in_place = bool(count and lives_on_device(dtype, count) and dims == node.inputs[0].dims)
        self.validate = bool(node.attrs["validate_shape"])
        self.is_ref = bool(node.outputs)
        self.dims = context.output_dims[0] if self.is_ref else node.attrs.get("shape")

    def __call__(self, state: VariableState, value: Any) -> Any:
        device = self.gpu.device
        if not lives_on_device(state.dtype, int(np.prod(value.shape, dtype=np.int64))):
            device.must_run("an assignment on the host")
            return self.fallback(state, value)
        if self.validate:
            dims = state.read().shape if state.is_initialized else self.dims
            if not compatible(dims, value.shape):
                device.must_run("an assignment of another shape")
                return self.fallback(state, value)  # which raises the error
        if type(value) is not DeviceArray:
            value = device.from_host(np.asarray(value, state.dtype.np), state.name)
        acquire(state, device)
        try:
            owner: Any = state  # of an array in GPU memory, a type that `VariableState` does not know
            if all_unshared((state,)) and owner._value.is_like(value):
                with device.entered():
                    if device.updates is not None:
                        device.updates.append(state)
                    device.copy_into(owner._value, value)
                if state.on_change is not None:
                    state.on_change(None)
            else:
                device.must_run("an assignment that moves a variable")
                state.move(value)
        finally:
            state.lock.release()
        return state if self.is_ref else ()


@contextmanager
def mutable_values(
    device: Device, states: Sequence[VariableState], *, whole: bool = False
) -> Iterator[tuple[list[int], list[int]]]:
    """The addresses of variables' values, and of what they become: the same where only the variable refers to its value.

    Inside the context, some elements of the latter may be changed, which begin as copies of the values; with `whole`, all of them must
    be written, and their content is undefined.
    """
    with ExitStack() as locks:
        for state in sorted(set(states), key=lambda s: (s.name, id(s))):  # the order of update_together
            acquire(state, device)
            locks.callback(state.lock.release)
        for state in states:
            state.move(brought(device, state._value, state.name))
        locks.enter_context(device.entered())
        if not all_unshared(states):
            device.must_run("an update of a variable whose value is still referenced")
        if device.updates is not None:
            device.updates += states
        owners: Sequence[Any] = states  # of arrays in GPU memory, a type that `VariableState` does not know
        old = [owner._value.pointer for owner in owners]
        # A reference to a variable's value would keep it from being updated in place, so only others have one here.
        new: dict[int, DeviceArray] = {}
        for i in [i for i, s in enumerate(states) if not all_unshared((s,))]:
            value = owners[i]._value
            made = (
                device.empty(value.shape, value.dtype, states[i].name) if whole else device.copy(value, states[i].name)
            )
            new[i] = made
            del value
        yield old, [new[i].pointer if i in new else pointer for i, pointer in enumerate(old)]
        for i, array in new.items():
            owners[i]._value = array


def all_unshared(states: Sequence[VariableState]) -> bool:
    """Whether only these variables refer to their values and the values' memory."""
    for state in states:
        owner: Any = state
        if (
            getrefcount(owner._value) != ONLY_ATTRIBUTE
            or type(owner._value) is not DeviceArray
            or getrefcount(owner._value._owner) != ONLY_ATTRIBUTE
            or type(owner._value._owner) is not Block
        ):
            return False
    return True
