"""Gathers, scatters and sparse optimizer updates of rows of variables in a GPU's memory.

A change writes the named rows in place, unless the variable's value has other references: then the variable first gets a copy. An
optimizer with slots that decay in all rows (Adam) updates all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.core.graph import Node
from ...graph.resources.variable import VariableState
from ..fusion.optimizer_loops import SparseUpdate, sparse_update_of
from ..fusion.table_loops import kept_in
from ..ir.legality import SUPPORTED, NotFusibleError
from .bind.rows import MOST_UPDATES, fits, gathered, slices_of
from .bind.template import Choice, Template
from .context import GpuContext
from .driver.array import DeviceArray
from .ir import triton_type
from .kernels import GpuKernel
from .optimizer import VariableUpdate
from .residency import HostKernel, value_on
from .templates.tables import check_scatter, decaying_update, launch_sizes, scatter, sparse_update

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
