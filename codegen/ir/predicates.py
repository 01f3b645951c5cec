"""Which nodes of a step are dead together.

A node under a `cond` is dead if any of its inputs or control inputs is dead. So deadness starts at the outputs of Switches and
propagates down to Merges. A node's predicate is a set of *sources*, any of which may be dead:

    an output of a Switch       its condition and side: all Switches of one condition are dead together on one side
    the output of a Merge       the Merge: unlike other ops, it is dead only if all of its inputs are
    a received tensor           the channel: the sending device decides

Two nodes with the same set are dead together for every value of the conditions, and may share a kernel. Different sets may still be
equivalent; then there are two kernels where one would do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeAlias

from ...graph.core.graph import Node, Tensor
from .partition import BeginLoop, PartitionGraph, PartitionStep, RecvTensor, RunPredicated, SendTensor

Predicate: TypeAlias = frozenset[Hashable]

NONE: Predicate = frozenset()
"""Of a node that always runs."""


class Predicates:
    """The sources of each node that may be dead, in the order of the steps."""

    def __init__(self) -> None:
        self._of_tensor: dict[Tensor, Predicate] = {}
        self._of_waited: dict[Node | int, Predicate] = {}

    def see(self, step: PartitionStep) -> Predicate:
        """Take the next step in; the sources of its node."""
        if isinstance(step, Node):
            return self._made(step, NONE) if step.opdef.name in ("Switch", "RefSwitch") else NONE
        if isinstance(step, RecvTensor):
            # Only its consumers show whether it can be dead: a plain node takes it only if it cannot.
            self._of_waited[step.channel] = frozenset([("channel", step.channel)])
            if step.tensor is not None:
                self._of_tensor[step.tensor] = self._of_waited[step.channel]
        elif isinstance(step, BeginLoop):
            for merge in step.merges:
                self._give(merge, self._of_tensor.get(merge.inputs[0], NONE))
        elif isinstance(step, RunPredicated):
            sources = self._together(step.node.inputs, step.after)
            if step.node.type in ("Merge", "RefMerge") or not sources:
                sources = frozenset([("node", step.node)])
            self._of_waited[step.node] = sources
            return self._made(step.node, sources)
        return NONE

    def _together(self, tensors: Iterable[Tensor], after: Iterable[Node | int]) -> Predicate:
        found = [self._of_tensor.get(t, NONE) for t in tensors]
        found += [self._of_waited.get(a, frozenset([("node", a)])) for a in after]
        return NONE.union(*found)

    def _made(self, node: Node, sources: Predicate) -> Predicate:
        if node.type in ("Switch", "RefSwitch"):
            for side, t in enumerate(node.outputs):
                self._of_tensor[t] = sources | {("side", _condition(node.inputs[1]), side)}
        else:
            self._give(node, sources)
        return sources

    def _give(self, node: Node, sources: Predicate) -> None:
        if sources:
            for t in node.outputs:
                self._of_tensor[t] = sources


def _condition(pred: Tensor) -> Tensor:
    """The tensor of a condition, of which `cond` makes a copy for its Switches."""
    while pred.op.type == "Identity" and not pred.op.inputs[0].dtype.is_ref:
        pred = pred.op.inputs[0]
    return pred


def asked_for(unit: PartitionGraph) -> frozenset[Node | int]:
    """The nodes and channels whose deadness other steps need."""
    asked: set[Node | int] = set()
    for step in unit.steps:
        if isinstance(step, RunPredicated):
            asked.update(step.after)
        elif isinstance(step, SendTensor) and step.token is not None:
            asked.add(step.token)
    return frozenset(asked)
