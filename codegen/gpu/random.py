"""Random numbers on GPUs that no fused kernel makes, and the streams of those that they do.

They are the very bits that the CPU would make, from the same key and the same count of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node
from ...graph.ops.random.random_common import stream_of
from ...graph.resources.resource_manager import Context
from ..ir.program import Kernel
from .driver.device import Device
from .ir import Routine
from .kernels import loaded
from .residency import SMALL, HostKernel, on_host
from .templates.random import integers, normal

DRAWS: dict[str, Callable[[DType], Routine]] = {"RandomStandardNormal": normal, "RandomUniformInt": integers}


def stream_kernel(device: Device, node: Node, plain: Kernel) -> Kernel:
    """Makes the stream of a draw, in the GPU's memory: a captured graph that takes it is one for all draws."""
    return lambda *waited: tuple([device.from_host(x, node.name) for x in plain(*waited)])


class RandomKernel:
    """Draws numbers of a given shape. Each run draws others, so what is launched is put together anew."""

    def __init__(self, device: Device, node: Node, context: Context, fallback: HostKernel) -> None:
        self.device = device
        self.context = context
        self.fallback = fallback
        self.label = node.name
        self.dtype = node.outputs[0].dtype.base.np
        self.seeds = int(node.attrs["seed"]), int(node.attrs["seed2"])
        self.routine = DRAWS[node.type](node.outputs[0].dtype.base)

    def __call__(self, shape: Any, *bounds: Any) -> Any:
        sizes = tuple(int(d) for d in on_host(shape))
        count = math.prod(sizes)
        limits = self.limits(bounds)
        if count <= (SMALL if bounds else 0) or min(sizes, default=1) < 0 or limits is None:
            return self.fallback(shape, *bounds)
        stream = stream_of(self.context, *self.seeds)
        device = self.device
        with device.entered():
            low, high = stream.key
            numbers = {"key": low | high << 32, "draw": stream.draw, "n": count, **limits}
            out = device.empty(sizes, self.dtype, self.label)
            loaded(device, self.routine, 0, 1, numbers)([out.pointer], self.label)
        return out

    def limits(self, bounds: Sequence[Any]) -> dict[str, int] | None:
        """What a launch is told of an integer's bounds; None where the reference must say that there is none between them."""
        if not bounds:
            return {}
        low, high = (int(on_host(b)) for b in bounds)
        return {"low": low % (1 << 64), "span": high - low} if 0 < high - low < 1 << 64 else None
