"""Random numbers made on the GPU: the very bits that the CPU would make, from the same key and the same count of runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...graph.dtypes import DType
from ...graph.node import Node
from ...graph.ops.random import stream_of
from ...graph.state import Context
from ..cuda.device import Device
from ..cuda.kernels import RoutineOnDevice
from ..gpu_kernel import Routine
from ..triton_ops.random import normal, uniform
from .cuda import loaded_kernel, on_host

if TYPE_CHECKING:
    from .cuda import OnHost

DRAWS: dict[str, Callable[[DType], Routine]] = {"RandomUniform": uniform, "RandomStandardNormal": normal}


class RandomOnDevice:
    """Draws floats of a given shape. Each run draws others, so what is launched is put together anew."""

    def __init__(self, device: Device, node: Node, context: Context, fallback: OnHost) -> None:
        self.device = device
        self.context = context
        self.fallback = fallback
        self.label = node.name
        self.dtype = node.outputs[0].dtype.base.np
        self.seeds = int(node.attrs["seed"]), int(node.attrs["seed2"])
        self.routine = DRAWS[node.type](node.outputs[0].dtype.base)

    def __call__(self, shape: Any) -> Any:
        sizes = tuple(int(d) for d in on_host(shape))
        count = math.prod(sizes)
        if count <= 0 or min(sizes, default=1) < 0:
            return self.fallback(shape)
        stream = stream_of(self.context, *self.seeds)
        device = self.device
        with device.entered():
            kernels = [loaded_kernel(device, launch.kernel) for launch in self.routine.launches]
            numbers = {"key0": stream.key[0], "key1": stream.key[1], "draw": stream.draw, "n": count}
            out = device.empty(sizes, self.dtype, self.label)
            RoutineOnDevice(device, self.routine, kernels, 0, 1, numbers)([out.pointer], self.label)
        return out
