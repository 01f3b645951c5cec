"""Gathers, scatters and sparse optimizer updates of rows of variables in a GPU's memory.

A change writes the named rows in place, unless the variable's value has other references: then the variable first gets a copy. An
optimizer with slots that decay in all rows (Adam) needs all of them: the rows are summed to a dense gradient, and the update is the
dense one.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node
from ...graph.ops.state.training import RULES
from ...graph.resources.variable import VariableState
from ..check import compare_update
from ..fusion.optimizer_loops import sparse_update as sparse_loops, update
from ..fusion.table_loops import kept_in
from ..ir.legality import SUPPORTED, NotFusibleError
from .bind.scatter import MOST_UPDATES, fits, slices_of
from .bind.template import Choice
from .context import GpuContext
from .driver.array import DeviceArray
from .driver.launch import LoadedRoutine
from .ir import Routine, triton_type
from .kernels import GpuKernel, loaded_kernel
from .optimizer import OptimizerUpdate
from .residency import HostKernel, lives_on_device, value_on
from .templates.gather import check_segment_sum, gather, segment_sum
from .templates.scatter import check_scatter, launch_sizes, scatter
from .templates.sparse_optimizer import sparse_update
from .variables import host_copies, mutable_values

Shape = tuple[int, ...]


def sparse_kernel(gpu: GpuContext, node: Node, fallback: HostKernel) -> GpuKernel | None:
    """The kernel of a node that gathers or changes rows of variables; None if there is none."""
    name = node.type.removeprefix("Resource")
    try:
        if name == "Gather":
            return GatherKernel(gpu, node, fallback)
        if name.startswith("Scatter"):
            return ScatterKernel(gpu, node, fallback)
        if name.startswith("SparseApply"):
            rule = RULES[name.removeprefix("SparseApply")]
            return (DecayingUpdate if rule.decays else SparseUpdate)(gpu, node, fallback)
    except (ValueError, KeyError, NotFusibleError):  # not these types
        return None
    return None


class SparseVariableKernel(GpuKernel):
    """A change of some rows of variables, the first `places` inputs. Subclasses return the launch from `routine`."""

    def __init__(self, gpu: GpuContext, node: Node, places: int, fallback: HostKernel) -> None:
        constants = [i for i, t in enumerate(node.inputs) if t.op.type == "Const"]
        super().__init__(gpu, node.name, len(node.inputs), constants, fallback)
        self.node = node
        self.places = places
        self.is_ref = bool(node.outputs)
        # Of the routine's addresses: the variables, the other inputs, the variables again.
        self.names: Sequence[str] = ()
        self._runs: dict[Any, Callable[[Sequence[int], str], None] | None] = {}

    @abstractmethod
    def routine(self, shape: Shape, given: Sequence[Shape]) -> tuple[Routine, dict[str, int]] | None:
        """What to launch, and its sizes, for variables of a shape and the other inputs'; None: the reference raises the error."""

    def __call__(self, *inputs: Any) -> Any:
        states: Sequence[VariableState] = inputs[: self.places]
        dtype = self.node_dtype
        if not all(s.is_initialized and s.dtype.np == dtype.np for s in states) or len(set(states)) < len(states):
            return self.fallback(*inputs)
        shape = states[0].read().shape
        if not lives_on_device(dtype, math.prod(shape)):
            return self.fallback(*inputs)
        given = [x if type(x) is DeviceArray else np.asarray(x) for x in inputs[self.places :]]
        key = shape, tuple([x.shape for x in given])
        if any(s.read().shape != shape for s in states):
            return self.fallback(*inputs)
        if key not in self._runs:
            self._runs[key] = self._prepared_for(*key)
        run = self._runs[key]
        if run is None:
            return self.fallback(*inputs)
        device = self.device
        arrays = [
            x if type(x) is DeviceArray and x.device is device else self._brought(self.places + i, x)
            for i, x in enumerate(given)
        ]
        before = host_copies(states) if self.gpu.check else []
        with mutable_values(device, states) as (_, places):
            run([*places, *[x.pointer for x in arrays], *places], self.label)
        if self.gpu.check:
            compare_update(
                "The GPU's change", self.node, self.fallback, states, before, [s.read() for s in states], given
            )
        return states[0] if self.is_ref else ()

    @property
    def node_dtype(self) -> DType:
        """The element type of the variables."""
        return self.node.inputs[0].dtype.base

    def _prepared_for(self, shape: Shape, given: Sequence[Shape]) -> LoadedRoutine | None:
        found = self.routine(shape, given)
        if found is None:
            return None
        routine, sizes = found
        kernels = [loaded_kernel(self.device, launch.kernel) for launch in routine.launches]
        return LoadedRoutine(self.device, routine, kernels, 0, 0, sizes, names=self.names)


class ScatterKernel(SparseVariableKernel):
    """ScatterAdd and kin, ScatterNdAdd and kin, on a variable."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        super().__init__(gpu, node, 1, fallback)
        name = node.type.removeprefix("Resource").removeprefix("Scatter")
        self.is_nd = name.startswith("Nd")
        self.kind = name.removeprefix("Nd").lower()
        self.index, self.dtype = (t.dtype.base for t in node.inputs[1:3])
        self.names = ("in0", "in1", "in2", "out0")
        check_scatter(self.kind, self.dtype)  # ValueError, KeyError: not this type

    @property
    def node_dtype(self) -> DType:
        """The element type of the variables."""
        return self.dtype

    def routine(self, shape: Shape, given: Sequence[Shape]) -> tuple[Routine, dict[str, int]] | None:
        """A scatter of these sizes."""
        at, updates = given
        coordinates = at if self.is_nd else (*at, 1)
        sizes = slices_of(shape, coordinates)
        single = updates == () and not self.is_nd
        if sizes is None or not (single or fits(shape, coordinates, updates)):
            return None
        return scatter(self.kind, self.dtype, self.index, sizes, coordinates[-1], single=single)[0], sizes


class SparseUpdate(SparseVariableKernel):
    """An optimizer's update of the rows that a sparse gradient names."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        self.sparse = _Sparse(node)
        super().__init__(gpu, node, self.sparse.places, fallback)
        sparse = self.sparse
        # The loops take the indices behind all others; the node has them behind the gradient.
        last = len(node.inputs) - 1
        numbers = [i if i < sparse.indices else last if i == sparse.indices else i - 1 for i in range(len(node.inputs))]
        self.names = (*(f"in{i}" for i in numbers), *(f"out{i}" for i in range(self.places)))
        rule, flags = sparse.rule, sparse.flags
        self.loops = sparse_loops(rule, sparse.dtype, flags, sparse.index, kept_in(sparse.dtype))

    @property
    def node_dtype(self) -> DType:
        """The element type of the variables."""
        return self.sparse.dtype

    def routine(self, shape: Shape, given: Sequence[Shape]) -> tuple[Routine, dict[str, int]] | None:
        """An update of these sizes."""
        sparse = self.sparse
        sizes = sparse.sizes(shape, given[sparse.gradient - self.places], given[sparse.indices - self.places])
        if sizes is None:
            return None
        return sparse_update(self.loops, self.places, sparse.gradient, sparse.dtype, sparse.index, sizes)[0], sizes


class DecayingUpdate(GpuKernel):
    """An optimizer with slots that change in all rows: sums the gradient's rows, then runs the dense update."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        sparse = self.sparse = _Sparse(node)
        constants = [i for i, t in enumerate(node.inputs) if t.op.type == "Const"]
        super().__init__(gpu, node.name, len(node.inputs), constants, fallback)
        loops = update(sparse.rule, sparse.dtype, sparse.flags)
        self.update = OptimizerUpdate(gpu, node, sparse.places, sparse.gradient, loops, fallback)
        check_segment_sum(sparse.dtype)
        self._sums: dict[Any, LoadedRoutine | None] = {}

    def __call__(self, *inputs: Any) -> Any:
        sparse, device = self.sparse, self.device
        states: Sequence[VariableState] = inputs[: sparse.places]
        if not all(s.is_initialized for s in states):
            return self.fallback(*inputs)
        shape = states[0].read().shape
        rows, indices = (
            x if type(x) is DeviceArray else np.asarray(x) for x in (inputs[sparse.gradient], inputs[sparse.indices])
        )
        key = shape, rows.shape, indices.shape
        if key not in self._sums:
            self._sums[key] = self._prepared_for(*key)
        sums = self._sums[key]
        if sums is None or any(s.read().shape != shape or s.dtype.np != sparse.dtype.np for s in states):
            return self.fallback(*inputs)
        rows, indices = (
            x if type(x) is DeviceArray and x.device is device else self._brought(at, x)
            for at, x in ((sparse.gradient, rows), (sparse.indices, indices))
        )
        with device.entered():
            dense = device.empty(shape, sparse.dtype.np, self.label)
            sums([rows.pointer, indices.pointer, dense.pointer], self.label)
        given = [x for i, x in enumerate(inputs) if i != sparse.indices]
        given[sparse.gradient] = dense
        return self.update(*given)

    def _prepared_for(self, shape: Shape, rows: Shape, indices: Shape) -> LoadedRoutine | None:
        sizes = self.sparse.sizes(shape, rows, indices)
        if sizes is None:
            return None
        routine = segment_sum(self.sparse.dtype, self.sparse.index, sizes)[0]
        kernels = [loaded_kernel(self.device, launch.kernel) for launch in routine.launches]
        return LoadedRoutine(self.device, routine, kernels, 2, 1, sizes)


class _Sparse:
    """The parameters of a sparse update node.

    Attributes:
        rule, flags: the optimizer's rule.
        places: number of inputs that are variables.
        gradient, indices: positions of these inputs.
        dtype: type of variables and gradient.
        index: type of the indices.
    """

    def __init__(self, node: Node) -> None:
        rule = RULES[node.type.removeprefix("Resource").removeprefix("SparseApply")]
        self.places = 1 + len(rule.slots)
        self.gradient = self.places + len(rule.before)
        self.indices = self.gradient + 1
        self.dtype, self.index = (node.inputs[i].dtype.base for i in (self.gradient, self.indices))
        if self.dtype not in SUPPORTED:
            raise ValueError(f"no kernel updates {self.dtype.name}")
        self.rule = rule.name
        self.flags = tuple(sorted((name, bool(node.attrs[name])) for name in rule.flags))

    def sizes(self, shape: Shape, rows: Shape, indices: Shape) -> dict[str, int] | None:
        """The sizes of a launch; None if the shapes do not fit, or there is nothing to do."""
        if len(indices) != 1 or not shape or rows != (*indices, *shape[1:]) or 0 in shape:
            return None
        if not 0 < indices[0] < MOST_UPDATES:
            return None
        return launch_sizes(shape[0], math.prod(shape[1:]), indices[0], shape[:1])


class GatherKernel(GpuKernel):
    """Rows of a resource variable; only these are read."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        constants = [1] if node.inputs[1].op.type == "Const" else []
        super().__init__(gpu, node.name, 2, constants, lambda value, at: np.asarray(value)[np.asarray(at)])
        self.reference = fallback
        self.dtype, self.index = node.outputs[0].dtype.base, node.inputs[1].dtype.base
        triton_type(self.dtype.name)  # KeyError for a type that kernels cannot have

    def __call__(self, state: VariableState, indices: Any) -> Any:
        if not state.is_initialized or not state.read().shape:
            return self.reference(state, indices)
        value = value_on(state, self.device)
        return super().__call__(value, indices if type(indices) is DeviceArray else np.asarray(indices))

    def choose(self, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        """A gather of these sizes."""
        shape, picked = shapes
        if 0 in shape or 0 in picked:
            return None
        after = math.prod(shape[1:])
        count = math.prod(picked)
        sizes = {"batch": 1, "before": 1, "length": shape[0], "count": count, "after": after}
        return Choice(gather(self.dtype, self.index, sizes), sizes, [((*picked, *shape[1:]), self.dtype.np)])
