"""Dense updates of variables on CPUs: one compiled kernel per rule of an optimizer, which overwrites the variable and its slots.

An update reads and writes each element once, and makes nothing beside: no temporary arrays, and no new value next to the old
one, unless somebody holds that (`graph.state.changing`). All variables of one element type share their rule's kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.core.dtypes import bfloat16, float16
from ...graph.core.errors import InternalError
from ...graph.core.node import Node
from ...graph.core.shape import element_count
from ...graph.resources.resource_manager import VariableState, changing
from ..agreement import agree, difference
from ..fusible import SUPPORTED
from ..kernel_cache import source_of
from ..loop_cost import nanoseconds
from ..loops import Loops
from ..native_planner import NotPlannableError, Planner, Value
from ..numba_source import as_passed
from ..program import Kernel
from ..threads import Ranges, ranges_of, share
from ..update_loops import update_of
from .warming import WarmingKernel

SMALLEST = 1 << 3  # elements; below that NumPy takes about as long as a launch


class UpdateKernel(WarmingKernel):
    """The kernel of one update.

    Args:
        node: what it runs. reference: the op's reference, attributes bound.
        loops: the new values of the places, from what they were and from the node's other inputs.
        places: how many of the inputs are variables. gradient: which input has the variable's shape.
        check: compare with the reference, at every run.

    Attributes:
        loops: the new values, from what they were and from the other inputs.
        places: how many of the inputs are variables. gradient: which of those behind has their shape.
        checks: as `check`.
    """

    def __init__(
        self, node: Node, reference: Kernel, loops: Loops, places: int, gradient: int, threads: int, check: bool
    ) -> None:
        super().__init__(source_of(loops, places).text, reference)
        self.node = node
        self.loops = loops
        self.places = places
        self.gradient = gradient - places
        self._threads = threads
        self.checks = check
        self._narrow = any(v.dtype in (float16, bfloat16) for v in loops.values)
        self._result_is_place = bool(node.outputs)
        self._ranges: dict[int, Ranges] = {}  # by the number of elements

    def __call__(self, *inputs: Any) -> Any:
        function = self.function
        if function is None:
            return self._on_numpy(inputs)
        places = self.places
        states: Sequence[VariableState] = inputs[:places]
        if places > 1 and len(set(states)) < len(states):
            return self._reference(*inputs)
        given = [x.ravel() for x in inputs[places:]]
        shape, size = inputs[places + self.gradient].shape, given[self.gradient].size
        ranges = self._ranges.get(size)
        if ranges is None:
            ranges = self._ranges[size] = ranges_of(size, nanoseconds(self.loops, (size,)), self._threads)
        with changing(states) as values:
            fits = all(v.shape == shape for v in values)
            if fits:
                before = [v.copy() for v in values] if self.checks else []
                flat = [x.reshape(-1) for x in values]
                arrays = (*flat, *given, *flat)
                if self._narrow:
                    arrays = tuple([as_passed(x) for x in arrays])
                share(function, (*arrays, size), ranges, self._threads)
                if self.checks:
                    compare_update(self.node, self._reference, states, before, values, inputs[self.places :])
        if not fits:
            return self._reference(*inputs)  # which says what is wrong
        return self.result(states)

    def put_into(self, planner: Planner, inputs: Sequence[Value]) -> None:
        """Put its launch into a native plan, whose first inputs are the variables' values."""
        function = planner.function_of(self)
        places = self.places
        values, given = inputs[:places], [planner.in_order(v) for v in inputs[places:]]
        array = given[self.gradient].array
        self.check_fit(values, array.shape)
        size = array.size
        ranges = ranges_of(size, nanoseconds(self.loops, (size,)), self._threads)
        vectors = [word for v in (*values, *given, *values) for word in planner.vector(v)]
        planner.launch(function, [*vectors, size], ranges, self._threads)

    def check_fit(self, values: Sequence[Value], shape: tuple[int, ...]) -> None:
        """NotPlannableError unless the variables' values are such as the kernel takes, for a gradient of this shape."""
        for v, loaded in zip(values, self.loops.loads, strict=False):
            if v.array.shape != shape or v.array.dtype != loaded.dtype.np:
                raise NotPlannableError("a value of another shape than its gradient")

    def result(self, states: Sequence[VariableState]) -> Any:
        """What the node gives, for these variables."""
        return states[0] if self._result_is_place else ()


def compare_update(
    node: Node,
    reference: Kernel,
    states: Sequence[VariableState],
    before: Sequence[Any],
    mine: Sequence[Any],
    given: Sequence[Any],
) -> None:
    """InternalError where the reference makes something else of the values that were there before."""
    twins = [VariableState(s.name, s.dtype) for s in states]
    for twin, value in zip(twins, before, strict=True):
        twin.assign(value)
    reference(*twins, *given)
    for twin, value in zip(twins, mine, strict=True):
        if not agree(value, twin.read()):
            raise InternalError(
                node, node,
                f"The compiled update of '{twin.name}' by '{node.name}' ({node.type}), made at {node.source}, "
                f"differs from the reference: {difference(value, twin.read())}. This is an error in Dovetail; "
                f"DOVETAIL_BACKEND=numpy avoids it.",
            )  # fmt: skip


def update_kernel(node: Node, reference: Kernel, threads: int, check: bool) -> UpdateKernel | None:
    """The kernel of a node that updates variables from a dense array; None: it is none, too small, or of a type without kernels."""
    found = update_of(node)
    if found is None:
        return None
    loops, places, gradient = found
    grad = node.inputs[gradient]
    if grad.dtype.base not in SUPPORTED or (element_count(grad.dims) or SMALLEST) < SMALLEST:
        return None
    return UpdateKernel(node, reference, loops, places, gradient, threads, check)
