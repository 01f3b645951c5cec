"""Variables in a GPU's memory, and the updates of optimisers as kernels.

A variable's value is a `DeviceArray` that nobody changes while somebody else holds it: reads are snapshots, as everywhere. So an
update writes to new memory, unless the variable is the only one that holds its value: then it is updated in place. Kernels that
still read the old value were launched before, on the same stream.

Every dense update is one kernel over the variable and its slots (`optimizer_loops`). Changes of some rows are in `sparse`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.core.errors import InternalError
from ...graph.core.graph import Node
from ...graph.core.shape import element_count
from ...graph.resources.resource_manager import Context, VariableState
from ..check import agree, difference
from ..fusion.legality import SUPPORTED
from ..fusion.optimizer_loops import update_of
from ..ir.loop_nest import LoopNest
from ..ir.program import Kernel
from .backend import CudaBackend
from .driver.allocator import Block
from .driver.array import DeviceArray
from .driver.copies import SMALL_COPY
from .emit.schedules import routines, size_names, specialise
from .kernels import Choice, OnDevice
from .random import DRAWS, RandomOnDevice, StreamOnDevice
from .residency import lives_on_device, on_device

if TYPE_CHECKING:
    from .residency import OnHost

_ASSIGNS = frozenset(("Assign", "AssignVariableOp"))


def state_kernel(backend: CudaBackend, node: Node, context: Context, fallback: OnHost) -> Kernel | None:
    """The kernel of a node that changes variables, draws random numbers, or meets others; None: it has none for GPUs."""
    from .collectives import collective_kernel
    from .sparse import rows_kernel

    found = collective_kernel(backend, node, context)
    if found is not None:
        return found
    if node.type in _ASSIGNS:
        return Assign(backend, node, context, fallback)
    rows = rows_kernel(backend, node, fallback)
    if rows is not None:
        return rows
    if node.type == "RandomStream":
        return StreamOnDevice(backend.device, node, fallback.kernel)
    if node.type in DRAWS:
        try:
            return RandomOnDevice(backend.device, node, context, fallback)
        except ValueError:  # not this type
            return None
    updated = update_of(node)
    if updated is None:
        return None
    loops, places, gradient = updated
    dtype = node.inputs[gradient].dtype.base
    if not dtype.is_floating or dtype not in SUPPORTED:
        return None
    return Update(backend, node, places, gradient, loops, fallback)


# --- assignment ------------------------------------------------------------------------------------------------------


class Assign:
    """Stores a value as it is: it is never changed by anybody who does not hold it alone.

    A small one is copied over the old one, so that the variable stays where it is: graphs of launches read it there.

    Attributes:
        is_small: whether it is known to be small, and in the GPU's memory.
    """

    def __init__(self, backend: CudaBackend, node: Node, context: Context, fallback: OnHost) -> None:
        self.backend = backend
        self.fallback = fallback
        dtype, dims = node.inputs[1].dtype.base, node.inputs[1].dims
        count = element_count(dims)
        self.is_small = bool(
            count and dtype.is_floating and count * dtype.size <= SMALL_COPY and dims == node.inputs[0].dims
        )
        self.validate = bool(node.attrs["validate_shape"])
        self.is_ref = bool(node.outputs)
        self.dims = context.output_dims[0] if self.is_ref else node.attrs.get("shape")

    def __call__(self, state: VariableState, value: Any) -> Any:
        device = self.backend.device
        if not lives_on_device(state.dtype, int(np.prod(value.shape, dtype=np.int64))):
            device.must_run("an assignment on the host")
            return self.fallback(state, value)
        if self.validate:
            dims = state.read().shape if state.is_initialized else self.dims
            if dims is not None and (
                len(dims) != len(value.shape)
                or any(d is not None and d != n for d, n in zip(dims, value.shape, strict=True))
            ):
                device.must_run("an assignment of another shape")
                return self.fallback(state, value)  # which says what is wrong
        if type(value) is not DeviceArray:
            value = device.from_host(np.asarray(value, state.dtype.np), state.name)
        with state.lock:
            if value.nbytes <= SMALL_COPY and held_alone(state) and self._fits(state._value, value):
                with device.entered():
                    if device.updates is not None:
                        device.updates.append(state)
                    device.copy_into(state._value, value)  # type: ignore[arg-type]
            else:
                device.must_run("an assignment that moves a variable")
                state.move(value)
        return state if self.is_ref else ()

    @staticmethod
    def _fits(old: Any, new: DeviceArray) -> bool:
        return bool(old.device is new.device and old.shape == new.shape and old.dtype == new.dtype)


# --- updates ---------------------------------------------------------------------------------------------------------


class Update(OnDevice):
    """An update of a variable and its slots by one kernel, in place where nobody else holds a value."""

    def __init__(
        self, backend: CudaBackend, node: Node, places: int, gradient: int, loops: LoopNest, fallback: OnHost
    ) -> None:
        constants = [i for i, t in enumerate(node.inputs) if t.op.type == "Const"]
        super().__init__(backend, node.name, len(node.inputs), constants, fallback)
        self.places = places
        self.gradient = gradient
        self.loops = loops
        self.is_ref = bool(node.outputs)
        self.dtype = node.inputs[gradient].dtype.base.np
        self.node = node
        self.count = element_count(node.inputs[gradient].dims)  # elements, where that is known
        self.shared = tuple(i for i, v in enumerate(loops.loads) if not v.axes)

    def choose(self, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
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
        before = copies(states) if self.backend.check else []
        with ExitStack() as held:
            for state in sorted(set(states), key=lambda s: (s.name, id(s))):  # the order of update_together
                held.enter_context(state.lock)
            for state in states:
                state.move(on_device(state, device))
            shape = states[0].read().shape
            ready = self._ready.get(shape)
            if ready is None:
                arrays = [*[s._value for s in states], *rest]
                ready = self._tuned(self.choose([shape], ()), arrays)  # type: ignore[arg-type]
                self._ready[shape] = ready
                del arrays
            with device.lock:
                device.make_current()
                old = [pointer_of(s) for s in states]
                if not all(map(held_alone, states)):
                    device.must_run("an update of a variable whose value somebody holds")
                if device.updates is not None:
                    device.updates += states
                new: list[Any] = [
                    s._value if held_alone(s) else device.empty(shape, self.dtype, s.name) for s in states
                ]
                ready.run([*old, *[x.pointer for x in rest], *[x.pointer for x in new]], self.label)
                for state, value in zip(states, new, strict=True):
                    state._value = value
                del new
        if self.backend.check:
            compare_places(self.node, self.fallback, states, before, given)
        return states[0] if self.is_ref else ()

    def is_ready(self, states: Sequence[VariableState], gradient: Any) -> bool:
        """Whether values and shapes are as they must be; where not, the reference says what is wrong."""
        if not all(s.is_initialized for s in states):
            return False
        shape = states[0].read().shape
        return bool(
            gradient.shape == shape and all(s.read().shape == shape and s.dtype.np == self.dtype for s in states)
        )


def copies(states: Sequence[VariableState]) -> list[np.ndarray[Any, Any]]:
    """What variables hold, in the host's memory."""
    return [np.array(s.read()) for s in states]


def compare_places(
    node: Node,
    reference: Kernel,
    states: Sequence[VariableState],
    before: Sequence[np.ndarray[Any, Any]],
    given: Sequence[Any],
) -> None:
    """InternalError where a node's reference makes something else of what variables held before than they hold now."""
    twins = [VariableState(s.name, s.dtype) for s in states]
    for twin, value in zip(twins, before, strict=True):
        twin.assign(value)
    reference(*twins, *given)
    for twin, state in zip(twins, states, strict=True):
        mine, theirs = np.asarray(state.read()), np.asarray(twin.read())
        if not agree(mine, theirs):
            raise InternalError(
                node, node,
                f"The GPU's change of '{state.name}' by '{node.name}' ({node.type}), made at {node.source}, differs from the "
                f"reference: {difference(mine, theirs)}. This is an error in Dovetail.",
            )  # fmt: skip


def pointer_of(state: VariableState) -> int:
    """The address of a variable's value, which is in a GPU's memory."""
    value: Any = state._value
    address: int = value.pointer
    return address


def held_alone(state: VariableState) -> bool:
    """Whether nobody but the variable holds its value, or the memory that it is in."""
    return all_held_alone((state,))


def all_held_alone(states: Sequence[VariableState]) -> bool:
    """Whether nobody but these variables holds their values, or the memory that those are in."""
    count = sys.getrefcount
    for state in states:
        value: Any = state._value
        # The variable's slot, `value` here, and the argument of the call; the array's slot and the argument.
        if (
            type(value) is not DeviceArray
            or count(value) != 3
            or type(value._owner) is not Block
            or count(value._owner) != 2
        ):
            return False
    return True
