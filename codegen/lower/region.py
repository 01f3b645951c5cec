"""Regions: which slots consecutive calls take, give and free as one call; and a partition's steps as a kernel that runs them so.

The code generators make regions (CUDA graphs on GPUs, native regions on CPUs). A region runs call by call at first, and whenever the
compiled form does not fit. So do the nodes of a fused kernel (`Steps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...graph.core.graph import Node, Tensor
from ...graph.resources.resource_manager import Context
from ..backend import Backend, ContextOf, bind
from ..ir.fused_kernel import FusedKernel, inputs_of
from ..ir.partition import PartitionGraph, PartitionStep
from ..ir.program import Call, Region
from .lower import free_dead_slots, lower


def region_of(calls: Sequence[Call], constants: Mapping[int, Any], launches: int = 0) -> Region:
    """The region of these calls, so many of which launch a kernel. `constants`, by slot: of the whole program."""
    made: set[int] = set()
    given: dict[int, None] = {}
    held: set[int] = set()  # a slot may be assigned again: its value at the end counts, unless it was freed
    for call in calls:
        given.update(dict.fromkeys(i for i in call.inputs if i not in made and i not in constants))
        made.update(call.outputs)
        held.update(call.outputs)
        held.difference_update(call.frees)
    freed = [i for call in calls for i in call.frees]
    frees = tuple(dict.fromkeys(i for i in freed if i in given and i not in held))
    used = {i for c in calls for i in c.inputs}
    own = {i: v for i, v in constants.items() if i in used}
    return Region(tuple(calls), tuple(given), tuple(sorted(held)), frees, own, launches)


def constants_of(slots: Sequence[Any]) -> dict[int, Any]:
    """The slots of a program that hold something before it runs."""
    return {i: v for i, v in enumerate(slots) if v is not None}


def one_or_all(outputs: Sequence[Any]) -> Any:
    """Outputs as a kernel gives them."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


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
        region = region_of(calls, constants_of(program.slots))
        position = {slot: i for i, (_, slot) in enumerate(program.feeds)}
        order = [region.outputs.index(slot) for _, slot in program.fetches]
        return region, [position[slot] for slot in region.given], order


def _stateless(node: Node) -> Context:
    raise AssertionError(f"{node.name} has no state: it is part of a kernel")
