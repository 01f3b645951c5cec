"""Changes of variables by one kernel: dense updates of optimizers, made from the rule's loops; scatters and updates of rows; gathers.

A change of rows writes them in place, unless the variable's value has other references: then the variable first gets a copy. An
optimizer with slots that decay in all rows (Adam) updates all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node
from ...graph.resources.variable import VariableState
from ..check import compare_update
from ..fusion.optimizer_loops import SparseUpdate, sparse_update_of
from ..fusion.table_loops import kept_in
from ..ir.loop_nest import SUPPORTED, LoopNest, NotFusibleError
from .bind.rows import MOST_UPDATES, fits, gathered, slices_of
from .driver.api import CudaError
from .driver.array import DeviceArray
from .emit.schedules import routines, size_names, specialise
from .ir import Choice, Choose, Template, triton_type
from .kernels import GpuContext, GpuKernel
from .residency import HostKernel, brought, lives_on_device, value_on
from .templates.tables import check_scatter, decaying_update, launch_sizes, scatter, sparse_update
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
            ready = self._prepared(key, [*[brought(device, s._value, s.name) for s in states], *rest])
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
        """Whether values and shapes are as they must be, that of the gradient, too."""
        gradient = given[self.gradient - self.places]
        return super().is_ready(states, given) and bool(gradient.shape == states[0].read().shape)


# --- rows ------------------------------------------------------------------------------------------------------------


Shape = tuple[int, ...]


def sparse_kernel(gpu: GpuContext, node: Node, fallback: HostKernel) -> GpuKernel | None:
    """The kernel of a node that gathers or changes rows of variables; None if there is none."""
    name = node.type.removeprefix("Resource")
    try:
        if name == "Gather":
            return GatherKernel(gpu, node, fallback)
        if name.startswith("Scatter"):
            return _scatter(gpu, node, fallback)
        sparse = sparse_update_of(node)
        if sparse is not None and sparse.dtype in SUPPORTED:
            return _row_update(gpu, node, sparse, fallback)
    except (ValueError, KeyError, NotFusibleError):  # not these types
        return None
    return None


def _scatter(gpu: GpuContext, node: Node, fallback: HostKernel) -> VariableUpdate:
    """ScatterAdd and kin, ScatterNdAdd and kin, on a variable."""
    index, dtype = (t.dtype.base for t in node.inputs[1:3])
    name = node.type.removeprefix("Resource").removeprefix("Scatter")
    is_nd, kind = name.startswith("Nd"), name.removeprefix("Nd").lower()
    check_scatter(kind, dtype)  # ValueError, KeyError: not this type

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        shape, at, updates = shapes
        coordinates = at if is_nd else (*at, 1)
        sizes = slices_of(shape, coordinates)
        single = updates == () and not is_nd
        if sizes is None or not (single or fits(shape, coordinates, updates)):
            return None
        ways = scatter(kind, dtype, index, sizes, coordinates[-1], single=single)
        return Choice(ways[:1], sizes, [(shape, dtype.np)])

    return VariableUpdate(gpu, node, 1, dtype, choose, fallback)


def _row_update(gpu: GpuContext, node: Node, sparse: SparseUpdate, fallback: HostKernel) -> VariableUpdate:
    """An optimizer's update of the rows that a sparse gradient names, or of all, where slots decay."""
    places, decays = sparse.places, sparse.rule.decays
    loops, make = (sparse.dense(), decaying_update) if decays else (sparse.sparse(kept_in(sparse.dtype)), sparse_update)

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        given = shapes[1:]
        sizes = _sizes(shapes[0], given[sparse.gradient - places], given[sparse.indices - places])
        if sizes is None:
            return None
        ways = make(loops, places, sparse.gradient, sparse.dtype, sparse.index, sizes)
        return Choice(ways[:1], sizes, [(shapes[0], sparse.dtype.np)] * places)

    return VariableUpdate(gpu, node, places, sparse.dtype, choose, fallback, whole=decays)


def _sizes(shape: Shape, rows: Shape, indices: Shape) -> dict[str, int] | None:
    """The sizes of a launch; None if the shapes do not fit, or there is nothing to do."""
    if len(indices) != 1 or not shape or rows != (*indices, *shape[1:]) or 0 in shape:
        return None
    if not 0 < indices[0] < MOST_UPDATES:
        return None
    return launch_sizes(shape[0], math.prod(shape[1:]), indices[0], shape[:1])


class GatherKernel(GpuKernel):
    """Rows of a resource variable; only these are read."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        dtype, index = node.outputs[0].dtype.base, node.inputs[1].dtype.base
        triton_type(dtype.name)  # KeyError for a type that kernels cannot have
        template = Template(2, lambda shapes, others: gathered(dtype, index, shapes[0], shapes[1], 0, 0))
        super().__init__(gpu, node.name, node.inputs, template, lambda value, at: np.asarray(value)[np.asarray(at)])
        self.reference = fallback

    def __call__(self, state: VariableState, indices: Any) -> Any:
        if not state.is_initialized or not state.read().shape:
            return self.reference(state, indices)
        value = value_on(state, self.device)
        return super().__call__(value, indices if type(indices) is DeviceArray else np.asarray(indices))
