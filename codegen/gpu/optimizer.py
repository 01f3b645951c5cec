"""Dense updates of optimizers: one kernel over a variable and its slots, made from the rule's loops (`fusion/optimizer_loops`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.core.graph import Node
from ...graph.core.shape import element_count
from ...graph.resources.variable import VariableState
from ..check import compare_update
from ..ir.loop_nest import LoopNest
from .bind.template import Choice
from .context import GpuContext
from .driver.api import CudaError
from .driver.array import DeviceArray
from .emit.schedules import routines, size_names, specialise
from .kernels import GpuKernel
from .residency import HostKernel, on_device
from .variables import host_copies, mutable_values


class OptimizerUpdate(GpuKernel):
    """An update of a variable and its slots by one kernel, in place if their values have no other references."""

    def __init__(
        self, gpu: GpuContext, node: Node, places: int, gradient: int, loops: LoopNest, fallback: HostKernel
    ) -> None:
        constants = [i for i, t in enumerate(node.inputs) if t.op.type == "Const"]
        super().__init__(gpu, node.name, len(node.inputs), constants, fallback)
        self.places = places
        self.gradient = gradient
        self.loops = loops
        self.is_ref = bool(node.outputs)
        self.dtype = node.inputs[gradient].dtype.base.np
        self.node = node
        self.operands = [node.inputs[gradient]], ()
        self.count = element_count(node.inputs[gradient].dims)  # elements, where that is known
        self.shared = tuple(i for i, v in enumerate(loops.loads) if not v.axes)

    def choose(self, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice:
        """Routines over all elements, whatever the shape."""
        n = int(np.prod(shapes[0], dtype=np.int64))
        outputs = [(shapes[0], self.dtype)] * self.places
        names = dict(zip(size_names(self.loops), (n,), strict=True))
        return Choice(routines(self.loops, specialise(self.loops, (n,))), names, outputs)

    def __call__(self, *inputs: Any) -> Any:
        states: Sequence[VariableState] = inputs[: self.places]
        given = inputs[self.places :]
        if not self.is_ready(states, given[self.gradient - self.places]):
            return self.fallback(*inputs)
        rest = [x if type(x) is DeviceArray else self._brought(self.places + i, x) for i, x in enumerate(given)]
        device = self.device
        before = host_copies(states) if self.gpu.check else []
        shape = states[0].read().shape
        if shape not in self._ready:
            arrays = [*[on_device(s, device) for s in states], *rest]
            self._ready[shape] = self._tuned(self.choose([shape], ()), arrays)
            del arrays
        ready = self._ready[shape]
        if ready is None:
            return self.fallback(*inputs)
        with mutable_values(device, states, whole=True) as (old, new):
            addresses = [*old, *[x.pointer for x in rest], *new]
            try:
                ready.run(addresses, self.label)
            except CudaError as e:
                if not self._run_another(ready, e, addresses):
                    raise
        if self.gpu.check:
            compare_update(
                "The GPU's change", self.node, self.fallback, states, before, [s.read() for s in states], given
            )
        return states[0] if self.is_ref else ()

    def is_ready(self, states: Sequence[VariableState], gradient: Any) -> bool:
        """Whether values and shapes are as they must be; where not, the reference says what is wrong."""
        if not all(s.is_initialized for s in states):
            return False
        shape = states[0].read().shape
        return bool(
            gradient.shape == shape and all(s.read().shape == shape and s.dtype.np == self.dtype for s in states)
        )
