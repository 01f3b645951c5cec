"""Single nodes that native stretches have kernels for: an addition of biases between a product and what takes it apart, a sum.

One operation by itself is no kernel, since NumPy does it in about the time of a launch. Between kernels it would break a stretch, and
there a launch costs nearly nothing. So such a node has a kernel as soon as it is part of a stretch, and only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.core.graph import Node
from ..fusion.fuse import fuse
from ..fusion.op_rules import rule_of
from ..ir.legality import NotFusibleError
from ..ir.partition import PartitionGraph
from ..ir.program import Call, Instruction, Kernel, Loop, Predicated
from .native.planner import NotPlannableError, Planner, Value


def may_be_lone(node: Node) -> bool:
    """Whether a node may have a kernel in a stretch: one that computes floating-point numbers along axes, element by element or summed."""
    if node.opdef.is_stateful or len(node.outputs) != 1:
        return False
    data = (*node.outputs, *node.inputs)
    if not node.outputs[0].dtype.is_floating or any(t.dtype.is_ref for t in data):
        return False
    if all(t.dims is not None and not t.dims for t in data):
        return False
    try:
        rule_of(node)
    except NotFusibleError:
        return False
    return True


class LoneKernel:
    """The kernel of a node: the reference, until it is part of a stretch.

    Attributes:
        is_lone: it is only worth being launched between others.
    """

    is_lone = True

    def __init__(self, node: Node, reference: Kernel, backend: Any) -> None:
        self.reference = reference
        self.kernel: Any = None
        self.nodes = (node,)
        self._node = node
        self._backend = backend
        self._order: tuple[int, ...] = ()
        self._is_native: bool | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self.kernel is None:
            return self.reference(*inputs)
        return self.kernel(*[inputs[i] for i in self._order])

    @property
    def is_native(self) -> bool:
        """Whether native plans can have it."""
        if self._is_native is None:
            self._is_native = self._group() is not None
        return self._is_native

    def _group(self) -> Any:
        node = self._node
        unit = PartitionGraph("", (node,), (), tuple((t.name, t) for t in node.outputs))
        kernels = fuse(unit, small=True, lone=True).kernels
        return kernels[0] if kernels else None

    def gather(self) -> None:
        """Become part of a stretch."""
        group, taken = self._group(), list(self._node.inputs)
        self.kernel = self._backend.fused(group)
        self._order = tuple(taken.index(t) for t in (*group.inputs, *group.shapes))

    def put_into(self, planner: Planner, inputs: Sequence[Value]) -> Sequence[Value]:
        """Put its launch into a native plan."""
        if self.kernel is None:
            raise NotPlannableError("a node that is in no stretch")
        made: Sequence[Value] = self.kernel.put_into(planner, [inputs[i] for i in self._order])
        return made


def without_lone(instructions: Sequence[Instruction]) -> None:
    """Have the references alone for nodes that have become part of no stretch."""
    for step in instructions:
        if isinstance(step, Loop):
            without_lone((*step.head, *step.body))
            continue
        call = step.call if isinstance(step, Predicated) else step
        if isinstance(call, Call) and isinstance(call.kernel, LoneKernel) and call.kernel.kernel is None:
            call.kernel = call.kernel.reference
