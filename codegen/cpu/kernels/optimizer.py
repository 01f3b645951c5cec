"""Updates of variables on CPUs, dense and sparse: one compiled kernel per optimizer rule, which overwrites the variable and its slots.

Dense: an update reads and writes each element once. It makes no temporary arrays, and updates in place unless another consumer
holds the old value (`resource_manager.changing`). All variables of one element type share their rule's kernel.

Sparse, for the rows that a gradient names, as in an embedding: two kernels, both loops with a table (`Store.row`):

    the sums     rows of the gradient that name the same row of the variable are added up, in their order. Often there are none
    the update   the rule for each named row: read from the variable and its slots, and written back

A rule that is linear in the gradient (gradient descent) needs no sums, unless the gradient is so large that threads should share them:
one thread updates a row each time it is named. A rule whose slots decay everywhere (Adam) needs all rows, and the update is the dense one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....graph.core.dtypes import Array, float32, float64
from ....graph.core.graph import Node
from ....graph.core.shape import element_count
from ....graph.resources.buffer_pool import buffers
from ....graph.resources.variable import VariableState, changing
from ...check import compare_update
from ...fusion.optimizer_loops import SparseUpdate, sparse_update_of, update_of
from ...fusion.table_loops import added
from ...ir.loop_nest import SUPPORTED, LoopNest, NotFusibleError
from ...ir.program import Kernel
from ...target import LONE_UPDATE_BYTES, NS_PER_SUM, SMALLEST_UPDATE
from ..emit.module import source_of
from ..jit import Function, TieredKernel, compile_now
from ..native.launches import share
from ..native.planner import NotPlannableError, Planner
from ..schedule import schedule_of
from ..work_parts import nanoseconds, parts_of, parts_of_rows
from .node import PlannedKernel


class UpdateKernel(PlannedKernel):
    """The kernel of one update from a dense array, which overwrites variables, its first inputs.

    Args:
        node: the node that it runs. reference: the op's reference, attributes bound.
        loops: the new values of the variables, from the old ones and from the node's other inputs.
        places: how many of the inputs are variables. gradient: which input has the variable's shape.
        threads: the most that it may use. check: compare with the reference, at every run.
    """

    def __init__(
        self, node: Node, reference: Kernel, loops: LoopNest, places: int, gradient: int, threads: int, check: bool
    ) -> None:
        text = source_of(loops, schedule_of(loops), places).text
        super().__init__(text, reference, check, changed=range(places))
        self.node = node
        self.places = places
        self._loops = loops
        self._gradient = gradient - places  # among the inputs after the variables
        self._threads = threads

    def _compare(self, inputs: Sequence[Any]) -> None:
        _compare(self.node, self._reference, self.places, lambda *x: self.plans.run(x, True) is not None, inputs)

    def record_into(self, planner: Planner, inputs: Sequence[Any]) -> Sequence[Any]:
        """Record its launch in a native plan, whose first inputs are the variables' values; gives the first one if the node gives it."""
        function = planner.compiled(self.text)
        values = inputs[: self.places]
        given = [planner.ordered(planner.in_memory(x)) for x in inputs[self.places :]]
        shape, size = given[self._gradient].shape, given[self._gradient].size
        for v, loaded in zip(values, self._loops.loads, strict=False):
            if v.shape != shape or v.dtype != loaded.dtype.np:
                raise NotPlannableError("a value of another shape than its gradient")
        parts = parts_of(size, nanoseconds(self._loops, (size,)), self._threads)
        planner.share(function, [*values, *given, *values, size], size, parts, self._threads)
        return values[: len(self.node.outputs)]


def dense_update(node: Node) -> tuple[LoopNest, int, int] | None:
    """As `update_of`; None if the update is too small, or of a type without kernels."""
    found = update_of(node)
    if found is None:
        return None
    grad = node.inputs[found[2]]
    if grad.dtype.base not in SUPPORTED or (element_count(grad.dims) or SMALLEST_UPDATE) < SMALLEST_UPDATE:
        return None
    return found


class SparseUpdateKernel(TieredKernel):
    """The kernels of one update by rows.

    Args:
        found: what it does. loops: the rule, over the named rows; over all rows, where slots decay everywhere. The other arguments are
            those of an `UpdateKernel`.
    """

    def __init__(
        self, node: Node, found: SparseUpdate, loops: LoopNest, reference: Kernel, threads: int, check: bool
    ) -> None:
        super().__init__(source_of(loops, schedule_of(loops), found.places).text, reference)
        self.node = node
        self._found = found
        self._loops = loops
        self._threads = threads
        self._check = check
        sums = added(found.dtype, found.index)
        self._sums_text = source_of(sums, schedule_of(sums)).text
        self._sums: Function | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The source texts of the update and of the sums."""
        return self.text, self._sums_text

    def _swap_in(self, function: Function) -> None:
        self._sums = compile_now(self._sums_text)
        super()._swap_in(function)

    def __call__(self, *inputs: Any) -> Any:
        if self.function is None:
            return self._on_numpy(inputs)
        if self._check:
            _compare(self.node, self._reference, self._found.places, self._is_done, inputs)
        if not self._is_done(*inputs):
            return self._reference(*inputs)  # which raises the error
        return inputs[0] if self.node.outputs else ()

    def _is_done(self, *inputs: Any) -> bool:
        """Overwrite the variables. False: the kernel does not support these, and nothing has changed."""
        states: Sequence[VariableState] = inputs[: self._found.places]
        if len(set(states)) < len(states):
            return False
        rows = None if self._found.rule.decays else np.asarray(inputs[self._found.indices])
        with changing(states, rows) as values:
            return self._change(values, inputs)

    def _change(self, values: Sequence[Array], inputs: Sequence[Any]) -> bool:
        """Overwrite the rows that the gradient names."""
        places, gradient, decays = self._found.places, self._found.gradient, self._found.rule.decays
        grad, indices = map(np.asarray, inputs[gradient : gradient + 2])
        shape = values[0].shape
        if not indices.size or not shape or any(v.shape != shape or v.dtype != grad.dtype for v in values):
            return False
        if grad.shape != (indices.size, *shape[1:]) or int(indices.min()) < 0 or int(indices.max()) >= shape[0]:
            return False
        flat = [v.reshape(-1) for v in values]
        threads = self._threads
        if decays:
            grad = self._added(grad, indices, len(values[0]))
        elif self._found.rule.linear and grad.nbytes <= LONE_UPDATE_BYTES:
            threads = 1
        else:
            indices, grad = self._summed(grad, indices, len(values[0]))
        given = [x.ravel() for x in (*inputs[places:gradient], grad, *inputs[gradient + 2 :])]
        arrays = [*flat, *given, *([] if decays else [indices.ravel()]), *flat]
        sizes = (flat[0].size,) if decays else (indices.size, math.prod(grad.shape[1:]))
        parts = parts_of(sizes[0], nanoseconds(self._loops, sizes), threads)
        assert self.function is not None
        share(self.function, (*arrays, *sizes), sizes[0], parts, threads)
        return True

    def _summed(self, grad: Array, indices: Array, rows: int) -> tuple[Array, Array]:
        """The distinct row indices, and the sum of the gradient's rows for each."""
        count = np.arange(indices.size, dtype=indices.dtype)
        last = buffers.empty((rows,), indices.dtype)  # only what is named is written, and read
        last[indices] = count
        owner = last[indices]
        own = owner == count
        if own.all():
            return np.ascontiguousarray(indices), grad
        number = np.cumsum(own, dtype=indices.dtype) - 1
        return indices[own], self._added(grad, number[owner], int(number[-1]) + 1)

    def _added(self, data: Array, ids: Array, count: int) -> Array:
        """The sums of the rows of `data` by their ids, which are below `count`."""
        inner = data.shape[ids.ndim :]
        out = buffers.empty((count, *inner), data.dtype)
        width = math.prod(inner)
        parts = parts_of_rows(count, width, data.size * NS_PER_SUM, self._threads)
        assert self._sums is not None
        share(self._sums, (data.ravel(), ids.ravel(), out.reshape(-1), ids.size, width), count, parts, self._threads)
        return out


def _compare(node: Node, reference: Kernel, places: int, is_done: Callable[..., bool], inputs: Sequence[Any]) -> None:
    """Raise InternalError unless an update of so many variables, the first inputs, does what the reference does. They do not change.

    `is_done` does the update; False: it does not support these inputs.
    """
    states, given = inputs[:places], inputs[places:]
    if all(s.is_initialized for s in states):
        twins, before = [s.snapshot() for s in states], [s.read() for s in states]
        if is_done(*twins, *given):
            made = [t.read() for t in twins]
            compare_update("The compiled update", node, reference, states, before, made, given)


def _sparse_update(node: Node) -> tuple[SparseUpdate, LoopNest] | None:
    """An update of the rows that a gradient names, and its loops; None: it is none, or of a type or a rule without kernels."""
    found = sparse_update_of(node)
    if found is None or found.dtype not in (float32, float64):
        return None
    try:
        return found, found.dense() if found.rule.decays else found.sparse()
    except NotFusibleError:
        return None


def takes_update(node: Node) -> bool:
    """Whether a node is an update that has a kernel here."""
    return dense_update(node) is not None or _sparse_update(node) is not None


def update_kernel(node: Node, reference: Kernel, threads: int, check: bool) -> UpdateKernel | SparseUpdateKernel:
    """The kernel of an update, dense or sparse."""
    dense, sparse = dense_update(node), _sparse_update(node)
    if dense is not None:
        return UpdateKernel(node, reference, *dense, threads, check)
    assert sparse is not None
    return SparseUpdateKernel(node, *sparse, reference, threads, check)
