"""Residency: which values live in GPU memory and which in host memory. Also the kernels without a launch: host ops, shapes, views.

Floating-point tensors, and all large ones, live in GPU memory as `DeviceArray`s from the moment they arrive or are made until they
leave. Integers and flags of up to SMALL elements (shapes, axes, counters, conditions) stay in host memory, where the program uses
them. A kernel uploads its inputs that are in host memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node
from ...graph.resources.variable import VariableState
from ..ir.program import Kernel
from .driver.array import DeviceArray
from .driver.device import Device
from .driver.ipc import Incoming

SMALL = 64  # the most elements of a tensor of integers or flags that stays in host memory


def lives_on_device(dtype: DType, count: int | None) -> bool:
    """Whether a tensor of this type and number of elements (None: unknown) lives in GPU memory."""
    if dtype.is_ref or dtype.np.kind not in "fiubV" or dtype.np.hasobject:
        return False
    return dtype.is_floating or count is None or count > SMALL


def brought(device: Device, value: Any, label: str) -> DeviceArray:
    """A value from host memory, or from another GPU, in this GPU's memory."""
    return device.from_peer(value, label) if type(value) is DeviceArray else device.from_host(value, label)


def received(device: Device, value: Any) -> Any:
    """A value from the client or another device, moved to GPU memory if it belongs there."""
    if type(value) is DeviceArray:
        return device.from_peer(value, "a received tensor")
    if type(value) is Incoming:
        return value.taken("a received tensor")
    if isinstance(value, (np.ndarray, np.generic)) and belongs_on_device(value):
        return device.from_host(value, "a fed or received tensor")
    return value


def belongs_on_device(value: Any) -> bool:
    """Whether an array in host memory belongs in GPU memory."""
    kind = value.dtype.kind
    return kind == "f" or (kind == "V" and value.dtype.names is None) or (kind in "iub" and value.size > SMALL)


def on_host(value: Any) -> Any:
    """A value in host memory, for a NumPy kernel. The value of a variable is moved there."""
    if type(value) is DeviceArray:
        return value.device.to_host(value)
    if type(value) is VariableState:
        with value.lock:
            stored: Any = value._value
            if type(stored) is DeviceArray:
                value._value = stored.device.to_host(stored)
    return value


def acquire(state: VariableState, device: Device) -> None:
    """Acquire a variable's lock.

    All threads acquire it before the device's lock, but the one that captures, which has that already: it does not wait.

    Raises:
        NotCapturableError: this thread captures, and another one has the variable's lock.
    """
    if not state.lock.acquire(blocking=not device.captures_here):
        device.must_run(f"an access to variable '{state.name}', which another step changes at this moment,")


def value_on(state: VariableState, device: Device) -> Any:
    """A variable's value, moved to a GPU's memory."""
    acquire(state, device)
    try:
        value = brought(device, state._value, state.name)
        state.move(value)
    finally:
        state.lock.release()
    return value


class HostKernel:
    """Runs a node's NumPy reference on copies of its inputs in host memory."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, *inputs: Any) -> Any:
        return self.kernel(*[on_host(x) for x in inputs])


class ShapeKernel:
    """Runs a node that uses only the shape of its first input. The result of a view shares the input's memory."""

    def __init__(self, kernel: Kernel, node: Node, *, is_view: bool = False) -> None:
        self.kernel, self.is_view, self.is_reshape = kernel, is_view, node.type == "Reshape"

    def __call__(self, x: Any, *rest: Any) -> Any:
        rest = tuple(map(on_host, rest))
        if type(x) is not DeviceArray:
            return self.kernel(x, *rest)
        if self.is_reshape and (shape := tuple(map(int, rest[0]))) and -1 not in shape and math.prod(shape) == x.size:
            return x.reshape(shape)
        # The reference knows the rules and their errors: it gets an array of the same shape and type without contents.
        made = self.kernel(np.broadcast_to(np.zeros((), x.dtype), x.shape), *rest)
        return x.reshape(made.shape) if self.is_view else made
