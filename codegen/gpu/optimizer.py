"""Changes of variables by one kernel; among them are dense updates of optimizers, made from the rule's loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node
from ...graph.resources.variable import VariableState
from ..check import compare_update
from ..ir.loop_nest import LoopNest
from .bind.template import Choice, Choose, Template
from .context import GpuContext
from .driver.api import CudaError
from .emit.schedules import routines, size_names, specialise
from .kernels import GpuKernel
from .residency import HostKernel, lives_on_device, on_device
from .variables import mutable_values


class VariableUpdate(GpuKernel):
    """A change of variables, a node's first inputs, in place if their values have no other references.

    Args:
        places: how many inputs are variables.
        dtype: theirs.
        choose: of a template that loads all inputs. Its arrays are the inputs and, as outputs, the changed variables, which are mostly
            the same memory.
        whole: whether all elements of the outputs are written; else they begin as copies.
    """

    def __init__(
        self, gpu: GpuContext, node: Node, places: int, dtype: DType, choose: Choose, fallback: HostKernel,
        *, whole: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(gpu, node.name, node.inputs, Template(len(node.inputs), choose), fallback)
        self.operands = (), ()
        self.node, self.places, self.dtype, self.whole = node, places, dtype, whole
        self.is_ref = bool(node.outputs)

    def __call__(self, *inputs: Any) -> Any:
        states: Sequence[VariableState] = inputs[: self.places]
        given = inputs[self.places :]
        if not self.is_ready(states, given):
            return self.fallback(*inputs)
        device = self.device
        rest = self.brought(inputs, range(self.places, len(inputs)))
        before = [np.array(s.read()) for s in states] if self.gpu.check else []
        key = states[0].read().shape, *[x.shape for x in rest]
        try:
            ready = self._ready[key]
        except KeyError:
            ready = self._prepared(key, [*[on_device(s, device) for s in states], *rest])
        if ready is None:
            return self.fallback(*inputs)
        with mutable_values(device, states, whole=self.whole) as (old, new):
            addresses = [*(old if self.whole else new), *[x.pointer for x in rest], *new]
            try:
                ready.run(addresses, self.label)
            except CudaError as e:
                if not self._run_another(ready, e, addresses):
                    raise
        if self.gpu.check:
            made = [s.read() for s in states]
            compare_update("The GPU's change", self.node, self.fallback, states, before, made, given)
        return states[0] if self.is_ref else ()

    def is_ready(self, states: Sequence[VariableState], given: Sequence[Any]) -> bool:
        """Whether values and shapes are as they must be; where not, the reference says what is wrong."""
        if not all(s.is_initialized and s.dtype.np == self.dtype.np for s in states) or len(set(states)) < len(states):
            return False
        shape = states[0].read().shape
        return all(s.read().shape == shape for s in states) and lives_on_device(self.dtype, math.prod(shape))


class OptimizerUpdate(VariableUpdate):
    """An update of a variable and its slots."""

    def __init__(
        self, gpu: GpuContext, node: Node, places: int, gradient: int, loops: LoopNest, fallback: HostKernel
    ) -> None:
        super().__init__(gpu, node, places, node.inputs[gradient].dtype.base, self._over_all, fallback, whole=True)
        self.gradient = gradient
        self.loops = loops
        self.operands = [node.inputs[gradient]], ()

    def _over_all(self, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice:
        """Routines over all elements, whatever the shape."""
        n = math.prod(shapes[0])
        outputs = [(shapes[0], self.dtype.np)] * self.places
        names = dict(zip(size_names(self.loops), (n,), strict=True))
        return Choice(routines(self.loops, specialise(self.loops, (n,))), names, outputs)

    def is_ready(self, states: Sequence[VariableState], given: Sequence[Any]) -> bool:
        """As `VariableUpdate.is_ready`."""
        return self.fits(states, given[self.gradient - self.places])

    def fits(self, states: Sequence[VariableState], gradient: Any) -> bool:
        """Whether values and shapes are as they must be, those of the gradient, too."""
        return super().is_ready(states, ()) and bool(gradient.shape == states[0].read().shape)
