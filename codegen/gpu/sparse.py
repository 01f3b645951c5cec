"""Gathers, scatters and sparse optimizer updates of rows of variables in a GPU's memory.

A change writes the named rows in place, unless the variable's value has other references: then the variable first gets a copy. An
optimizer with slots that decay in all rows (Adam) needs all of them: the rows are summed to a dense gradient, and the update is the
dense one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.core.graph import Node
from ...graph.ops.state.training import RULES
from ...graph.resources.variable import VariableState
from ..fusion.optimizer_loops import sparse_update as sparse_loops, update
from ..fusion.table_loops import kept_in
from ..ir.legality import SUPPORTED, NotFusibleError
from .bind.rows import gathered
from .bind.scatter import MOST_UPDATES, fits, slices_of
from .bind.template import Choice
from .context import GpuContext
from .driver.array import DeviceArray
from .ir import triton_type
from .kernels import GpuKernel
from .optimizer import OptimizerUpdate, VariableUpdate
from .residency import HostKernel, value_on
from .templates.scatter import check_scatter, launch_sizes, scatter
from .templates.sparse_optimizer import sparse_update

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


class ScatterKernel(VariableUpdate):
    """ScatterAdd and kin, ScatterNdAdd and kin, on a variable."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        self.index, dtype = (t.dtype.base for t in node.inputs[1:3])
        super().__init__(gpu, node, 1, dtype, fallback)
        name = node.type.removeprefix("Resource").removeprefix("Scatter")
        self.is_nd = name.startswith("Nd")
        self.kind = name.removeprefix("Nd").lower()
        check_scatter(self.kind, dtype)  # ValueError, KeyError: not this type

    def choose(self, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        """A scatter of these sizes."""
        shape, at, updates = shapes
        coordinates = at if self.is_nd else (*at, 1)
        sizes = slices_of(shape, coordinates)
        single = updates == () and not self.is_nd
        if sizes is None or not (single or fits(shape, coordinates, updates)):
            return None
        ways = scatter(self.kind, self.dtype, self.index, sizes, coordinates[-1], single=single)
        return Choice(ways[:1], sizes, [(shape, self.dtype.np)])


class SparseUpdate(VariableUpdate):
    """An optimizer's update of the rows that a sparse gradient names."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        sparse = self.sparse = _Sparse(node)
        super().__init__(gpu, node, sparse.places, sparse.dtype, fallback)
        self.loops = sparse_loops(sparse.rule, sparse.dtype, sparse.flags, sparse.index, kept_in(sparse.dtype))

    def choose(self, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        """An update of these sizes."""
        sparse, given = self.sparse, shapes[1:]
        sizes = sparse.sizes(shapes[0], given[sparse.gradient - self.places], given[sparse.indices - self.places])
        if sizes is None:
            return None
        ways = sparse_update(self.loops, self.places, sparse.gradient, sparse.dtype, sparse.index, sizes)
        return Choice(ways[:1], sizes, [(shapes[0], sparse.dtype.np)] * self.places)


class DecayingUpdate(GpuKernel):
    """An optimizer with slots that change in all rows: sums the gradient's rows, then runs the dense update."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        sparse = self.sparse = _Sparse(node)
        super().__init__(gpu, node.name, len(node.inputs), (), fallback)
        loops = update(sparse.rule, sparse.dtype, sparse.flags)
        self.update = OptimizerUpdate(gpu, node, sparse.places, sparse.gradient, loops, fallback)
        self.sums = _RowSums(gpu, sparse, node.name)

    def __call__(self, *inputs: Any) -> Any:
        sparse = self.sparse
        states: Sequence[VariableState] = inputs[: sparse.places]
        if not all(s.is_initialized for s in states):
            return self.fallback(*inputs)
        dense = self.sums(inputs[sparse.gradient], inputs[sparse.indices], np.array(states[0].read().shape, np.int64))
        given = [x for i, x in enumerate(inputs) if i != sparse.indices]
        given[sparse.gradient] = dense
        if dense is None or not self.update.fits(states, dense):
            return self.fallback(*inputs)
        return self.update(*given)


class _RowSums(GpuKernel):
    """A sparse gradient's rows as a dense one of a shape; None where they do not fit."""

    def __init__(self, gpu: GpuContext, sparse: _Sparse, label: str) -> None:
        super().__init__(gpu, label, 2, (), lambda *inputs: None)
        self.sparse = sparse
        self._has_others = True
        self.checked = False  # the update is

    def choose(self, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        """A sum of these sizes."""
        (shape,), sparse = others, self.sparse
        sizes = sparse.sizes(shape, *shapes)
        if sizes is None:
            return None
        ways = scatter("add", sparse.dtype, sparse.index, sizes, begin="cleared", names=("in1", "in0"))
        return Choice(ways[:1], sizes, [(shape, sparse.dtype.np)])


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
        return gathered(self.dtype, self.index, shape, picked, 0, 0)
