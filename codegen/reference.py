"""The NumPy backend: each node's kernel is its op's reference. Slower than compiled kernels, but the definition of correct results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..graph.core.errors import UnimplementedError
from ..graph.core.graph import Node, Tensor
from ..graph.resources.resource_manager import Context
from .backend import Backend, ContextOf, DimsOf, bind
from .ir.fused_kernel import FusedKernel, inputs_of
from .ir.partition import PartitionGraph, PartitionStep
from .ir.program import REFERENCE, BoundWork, Call, Kernel, Region, Work, one_or_all
from .lower.lower import free_dead_slots, lower
from .options import KernelOptions


class NumpyBackend:
    """Runs every op's NumPy reference. Serves CPU devices, and emulated GPUs."""

    name = "numpy"
    options = KernelOptions(fold=False, merge=False, rewrite=False)

    def choose(self, step: Node | FusedKernel) -> Work:
        """As `Backend.choose`: there is one family."""
        return Work(step, REFERENCE)

    def bind(self, work: BoundWork, context_of: ContextOf, sent: Sequence[int] = ()) -> Kernel:
        """As `Backend.bind`. No kernel writes into send buffers."""
        assert isinstance(work, Work)
        step = work.step
        return reference_of(step, context_of) if isinstance(step, Node) else references_of(step, context_of)

    def schedules(self, work: Work, dims_of: DimsOf) -> Sequence[object]:
        """As `Backend.schedules`: there are none."""
        return ()


def reference_of(node: Node, context_of: ContextOf) -> Kernel:
    """The reference of a node's op, with the node's attributes bound.

    Raises:
        UnimplementedError: the op has none.
    """
    op = node.opdef
    if op.reference is None:
        text = f"'{node.name}' ({op.name}), created at {node.source}, has no kernel: its value can only be fed"
        raise UnimplementedError(node, node, text)
    attrs = op.kernel_attrs(node.attrs) if node.attrs else {}
    if op.is_stateful:
        return functools.partial(op.reference, context_of(node), **attrs)
    return functools.partial(op.reference, **attrs) if attrs else op.reference


def references_of(group: FusedKernel, context_of: ContextOf | None = None) -> Kernel:
    """The references of a fused kernel's nodes, one by one. `context_of`: the `Context` of nodes that look up rows of a variable."""
    return Steps(NumpyBackend(), group.nodes, (*group.inputs, *group.shapes), group.outputs, context_of)


class Steps:
    """Steps of a partition as a kernel, which runs them one by one. They are lowered when it first runs.

    Args:
        backend: gives their kernels.
        steps: in order.
        inputs, outputs: the tensors that the kernel takes and gives.
        context_of: the `Context` of nodes that read state.
    """

    def __init__(
        self,
        backend: Backend,
        steps: Sequence[PartitionStep | FusedKernel],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        context_of: ContextOf | None = None,
    ) -> None:
        feeds, fetches = (tuple((t.name, t) for t in of) for of in (inputs, outputs))
        self._graph = PartitionGraph("", (), feeds, fetches)
        constants = dict.fromkeys(t.op for step in steps for t in inputs_of(step) if t.op.type == "Const")
        self._steps, self._backend, self._context_of = (*constants, *steps), backend, context_of or _stateless
        self._made: tuple[Region, list[int], list[int]] | None = None

    def __call__(self, *inputs: Any) -> Any:
        self._made = self._made or self._lowered()
        region, given, order = self._made
        made = region.one_by_one([inputs[i] for i in given])
        return one_or_all([made[i] for i in order])

    def _lowered(self) -> tuple[Region, list[int], list[int]]:
        """The calls, which inputs of the kernel they take, and in which order they give its outputs."""
        lowered = lower(self._graph, self._steps, self._backend)
        program = bind(free_dead_slots(lowered), self._backend, self._context_of)
        calls = [step for step in program.instructions if isinstance(step, Call)]
        region = Region.of(calls, program.constants)
        position = {slot: i for i, (_, slot) in enumerate(program.feeds)}
        order = [region.outputs.index(slot) for _, slot in program.fetches]
        return region, [position[slot] for slot in region.given], order


def _stateless(node: Node) -> Context:
    raise AssertionError(f"{node.name} has no state: it is part of a kernel")
