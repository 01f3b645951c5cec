"""Regions: consecutive calls that become one call, with the slots that it takes, gives and frees; and how to run them one by one.

The code generators make regions (CUDA graphs on GPUs, native regions on CPUs). A region runs call by call at first, and whenever the
compiled form does not fit. So do the nodes of a fused kernel (`Steps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ...graph.core.graph import Node, Tensor
from ...graph.resources.resource_manager import Context
from ..backend import Backend, ContextOf, NodeError
from ..ir.fused_kernel import FusedKernel, inputs_of
from ..ir.partition import PartitionGraph, PartitionStep
from ..ir.program import Call
from .lower import free_dead_slots, lower


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive calls of a program.

    Attributes:
        calls: in the order of the program.
        given: input slots, which none of the calls makes.
        outputs: slots that they make and do not free, because later instructions take them.
        frees: slots of `given` whose last use is here.
        constants: values of the input slots that never change.
    """

    calls: tuple[Call, ...]
    given: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    constants: Mapping[int, Any]

    def as_call(self, kernel: Any, op: str) -> Call:
        """One call that replaces them, of a kernel that takes `given` and makes `outputs`."""
        last = self.calls[-1]
        nodes = tuple([n for c in self.calls for n in c.nodes or (c.node,)])
        return Call(kernel, self.given, self.outputs, self.frees, last.node, op, last.origin, nodes)

    def one_by_one(self, inputs: Sequence[Any], passed: type[Exception] = NodeError) -> list[Any]:
        """Run them one by one; gives the values of `outputs`.

        Raises:
            NodeError: names the node that failed. Exceptions of the types `passed` are raised unchanged.
        """
        slots = dict(self.constants)
        slots.update(zip(self.given, inputs, strict=True))
        del inputs
        for call in self.calls:
            try:
                result = call.kernel(*[slots[i] for i in call.inputs])
            except (NodeError, passed):
                raise
            except Exception as e:
                node: Any = SimpleNamespace(name=call.node, type=call.op, source=call.source)
                raise NodeError(node) from e
            if len(call.outputs) == 1:
                slots[call.outputs[0]] = result
            else:
                for i, value in zip(call.outputs, result, strict=True):
                    slots[i] = value
                value = None
            result = None
            for i in call.frees:
                slots.pop(i, None)
        return [slots[i] for i in self.outputs]


def region_of(calls: Sequence[Call], constants: Mapping[int, Any]) -> Region:
    """The region of these calls. `constants`, by slot: of the whole program."""
    made: set[int] = set()
    given: dict[int, None] = {}
    for call in calls:
        given.update(dict.fromkeys(i for i in call.inputs if i not in made and i not in constants))
        made.update(call.outputs)
    freed = [i for call in calls for i in call.frees]
    # A slot may be assigned again: its value at the end counts, unless it was freed.
    held: set[int] = set()
    for call in calls:
        held.update(call.outputs)
        held.difference_update(call.frees)
    frees = tuple(dict.fromkeys(i for i in freed if i in given and i not in held))
    used = {i for c in calls for i in c.inputs}
    own = {i: v for i, v in constants.items() if i in used}
    return Region(tuple(calls), tuple(given), tuple(sorted(held)), frees, own)


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
        self._lowering = (*constants, *steps), backend, context_of or _stateless
        self._made: tuple[Region, list[int], list[int]] | None = None

    def __call__(self, *inputs: Any) -> Any:
        self._made = self._made or self._lowered()
        region, given, order = self._made
        made = region.one_by_one([inputs[i] for i in given])
        return one_or_all([made[i] for i in order])

    def _lowered(self) -> tuple[Region, list[int], list[int]]:
        """The calls, which inputs of the kernel they take, and in which order they give its outputs."""
        program = free_dead_slots(lower(self._graph, *self._lowering))
        calls = [step for step in program.instructions if isinstance(step, Call)]
        region = region_of(calls, constants_of(program.slots))
        position = {slot: i for i, (_, slot) in enumerate(program.feeds)}
        order = [region.outputs.index(slot) for _, slot in program.fetches]
        return region, [position[slot] for slot in region.given], order


def _stateless(node: Node) -> Context:
    raise AssertionError(f"{node.name} has no state: it is part of a kernel")
