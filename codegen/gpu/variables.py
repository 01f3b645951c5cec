"""Variables in a GPU's memory: references to their values, assignments, in-place updates; gathers.

A variable's value is a `DeviceArray`. Reads are snapshots, so an array with other references does not change: an update writes to new
memory, unless only the variable refers to its value. Then it updates in place. Kernels that still read the old value were launched
before, on the same stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from sys import getrefcount
from typing import Any

import numpy as np

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node
from ...graph.core.reference_counts import ONLY_ATTRIBUTE
from ...graph.core.shape import compatible, element_count
from ...graph.resources.resource_manager import Context
from ...graph.resources.variable import VariableState
from ..check import compare_update
from ..fusion.optimizer_loops import SparseUpdate, sparse_update_of, update_of
from ..fusion.table_loops import kept_in
from ..ir.loop_nest import SUPPORTED, LoopNest, NotFusibleError
from .driver.allocator import Block
from .driver.api import CudaError
from .driver.array import DeviceArray
from .driver.device import Device
from .emit.launches import routines, size_names
from .ir import TRITON_TYPES, Choice, Choose, Shape, Template
from .kernels import GpuContext, GpuKernel
from .ops.rows import fits, gathered, slices_of
from .residency import HostKernel, acquire, brought, lives_on_device, value_on
from .schedule import specialise
from .templates.tables import check_scatter, decaying_update, scatter, sparse_update

ASSIGNS = frozenset(("Assign", "AssignVariableOp"))


def assigns_in_place(node: Node) -> bool:
    """Whether what a node of `ASSIGNS` assigns is known to be in GPU memory, and of the variable's shape."""
    dtype, dims = node.inputs[1].dtype.base, node.inputs[1].dims
    count = element_count(dims)
    return bool(count and lives_on_device(dtype, count) and dims == node.inputs[0].dims)


class AssignKernel:
    """Copies a value over the old one, so that the variable's address stays the same for CUDA graphs that read it.

    Where others refer to the old value, or it has another shape, the variable gets the new value itself: a value is changed only by the
    holder of its sole reference.
    """

    def __init__(self, gpu: GpuContext, node: Node, context: Context, fallback: HostKernel) -> None:
        self.gpu = gpu
        self.fallback = fallback
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
            value, name = owners[i]._value, states[i].name
            new[i] = device.empty(value.shape, value.dtype, name) if whole else device.copy(value, name)
            del value
        yield old, [new[i].pointer if i in new else pointer for i, pointer in enumerate(old)]
        for i, array in new.items():
            owners[i]._value = array


def all_unshared(states: Sequence[VariableState]) -> bool:
    """Whether only these variables refer to their values and the values' memory."""
    for state in states:
        owner: Any = state
        if getrefcount(owner._value) != ONLY_ATTRIBUTE or type(owner._value) is not DeviceArray:
            return False
        if getrefcount(owner._value._owner) != ONLY_ATTRIBUTE or type(owner._value._owner) is not Block:
            return False
    return True


# --- updates ---------------------------------------------------------------------------------------------------------
# Dense updates of optimizers are made from the rule's loops. A change of rows writes them in place, unless the variable's value has
# other references: then the variable first gets a copy. An optimizer with slots that decay in all rows (Adam) updates all of them.


@dataclass(frozen=True, slots=True)
class Change:
    """How a node changes variables, its first inputs.

    Attributes:
        places: how many inputs are variables.
        dtype: theirs.
        choose: of a template that loads all inputs. Its arrays are the inputs and, as outputs, the changed variables, which are mostly
            the same memory.
        whole: whether all elements of the outputs are written; else they begin as copies.
    """

    places: int
    dtype: DType
    choose: Choose
    whole: bool = False


class VariableUpdate(GpuKernel):
    """A change of variables, in place if their values have no other references."""

    def __init__(self, gpu: GpuContext, node: Node, change: Change, fallback: HostKernel) -> None:
        super().__init__(gpu, node.name, node.inputs, Template(len(node.inputs), change.choose), fallback)
        self.node, self.places, self.dtype, self.whole = node, change.places, change.dtype, change.whole
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
        """Whether the kernel can run on these values. If not, the reference raises the error."""
        if not all(s.is_initialized and s.dtype.np == self.dtype.np for s in states) or len(set(states)) < len(states):
            return False
        shape = states[0].read().shape
        return all(s.read().shape == shape for s in states) and lives_on_device(self.dtype, math.prod(shape))


class OptimizerUpdate(VariableUpdate):
    """An update of a variable and its slots."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        found = update_of(node)
        assert found is not None
        self.loops, places, self.gradient = found
        dtype = node.inputs[self.gradient].dtype.base
        choose = partial(update_choice, self.loops, places, dtype)
        super().__init__(gpu, node, Change(places, dtype, choose, whole=True), fallback)

    def is_ready(self, states: Sequence[VariableState], given: Sequence[Any]) -> bool:
        """As `VariableUpdate.is_ready`, also for the gradient."""
        gradient = given[self.gradient - self.places]
        return super().is_ready(states, given) and bool(gradient.shape == states[0].read().shape)


def update_choice(loops: LoopNest, places: int, dtype: DType, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice:
    """Routines over all elements of a variable and its slots. The first of the shapes is theirs."""
    n = math.prod(shapes[0])
    names = dict(zip(size_names(loops), (n,), strict=True))
    return Choice(routines(loops, specialise(loops, (n,))), names, [(shapes[0], dtype.np)] * places)


# --- rows ------------------------------------------------------------------------------------------------------------


def row_change(node: Node) -> Change | None:
    """The change of a node that updates rows of variables; None if it has no kernel."""
    try:
        if node.type.removeprefix("Resource").startswith("Scatter"):
            return _scatter(node)
        sparse = sparse_update_of(node)
        return _row_update(sparse) if sparse is not None and sparse.dtype in SUPPORTED else None
    except (ValueError, KeyError, NotFusibleError):  # not these types
        return None


def _scatter(node: Node) -> Change:
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

    return Change(1, dtype, choose)


def _row_update(sparse: SparseUpdate) -> Change:
    """An optimizer's update of the rows that a sparse gradient names, or of all, where slots decay."""
    places, decays = sparse.places, sparse.rule.decays
    loops, make = (sparse.dense(), decaying_update) if decays else (sparse.sparse(kept_in(sparse.dtype)), sparse_update)

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        given = shapes[1:]
        rows, indices = given[sparse.gradient - places], given[sparse.indices - places]
        sizes = slices_of(shapes[0], (*indices, 1))
        if sizes is None or len(indices) != 1 or not fits(shapes[0], (*indices, 1), rows):
            return None
        ways = make(loops, places, sparse.gradient, sparse.dtype, sparse.index, sizes)
        return Choice(ways[:1], sizes, [(shapes[0], sparse.dtype.np)] * places)

    return Change(places, sparse.dtype, choose, whole=decays)


def gathers(node: Node) -> bool:
    """Whether a node gathers rows of a variable of a type that kernels can have."""
    return node.type.removeprefix("Resource") == "Gather" and node.outputs[0].dtype.base.name in TRITON_TYPES


def gather_template(node: Node) -> Template:
    """The template of a gather of a variable's rows."""
    dtype, index = node.outputs[0].dtype.base, node.inputs[1].dtype.base
    return Template(2, lambda shapes, others: gathered(dtype, index, shapes[0], shapes[1], 0, 0))


class GatherKernel(GpuKernel):
    """Gathers rows of a resource variable. Only these rows are read."""

    def __init__(self, gpu: GpuContext, node: Node, fallback: HostKernel) -> None:
        on_host = lambda value, at: np.asarray(value)[np.asarray(at)]  # noqa: E731
        super().__init__(gpu, node.name, node.inputs, gather_template(node), on_host)
        self.reference = fallback

    def __call__(self, state: VariableState, indices: Any) -> Any:
        if not state.is_initialized or not state.read().shape:
            return self.reference(state, indices)
        value = value_on(state, self.device)
        return super().__call__(value, indices if type(indices) is DeviceArray else np.asarray(indices))
