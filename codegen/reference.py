"""The NumPy backend: each node's kernel is its op's reference. Slower than compiled kernels, but the definition of correct results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..graph.core.errors import UnimplementedError
from ..graph.core.graph import Node, Tensor
from ..graph.resources.resource_manager import Context
from .backend import ContextOf, NodeError
from .ir.program import Kernel
from .passes.rewrite import NONE, Rewrites

if TYPE_CHECKING:
    from .ir.fused_kernel import FusedKernel


class NumpyBackend:
    """Runs every op's NumPy reference. Serves CPU devices, and emulated GPUs."""

    name = "numpy"
    rewrites: Rewrites = NONE

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        """The op's reference with the node's attributes bound."""
        op = node.opdef
        if op.reference is None:
            text = f"'{node.name}' ({op.name}), created at {node.source}, has no kernel: its value can only be fed"
            raise UnimplementedError(node, node, text)
        attrs = op.kernel_attrs(node.attrs) if node.attrs else {}
        if op.is_stateful:
            return functools.partial(op.reference, context, **attrs)
        return functools.partial(op.reference, **attrs) if attrs else op.reference

    def fused(self, group: FusedKernel, context_of: ContextOf | None = None) -> Kernel:
        """The nodes one by one."""
        return one_by_one(self, group.nodes, (*group.inputs, *group.shapes), group.outputs, context_of)


def one_by_one(
    backend: NumpyBackend,
    nodes: Sequence[Node],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    context_of: ContextOf | None = None,
) -> Kernel:
    """A function that runs nodes in order and frees each value after its last use.

    `context_of`: the `Context` of nodes that read state. If a node fails, it raises `NodeError` from the node's exception.
    """
    slot_of = {t: i for i, t in enumerate(inputs)}
    start: list[Any] = [None] * len(inputs)
    calls: list[tuple[Kernel, tuple[int, ...], tuple[int, ...], Node]] = []
    for node in nodes:
        for t in (*node.inputs, *node.outputs):
            if t not in slot_of:
                slot_of[t] = len(start)
                start.append(t.op.attrs["value"] if t.op.type == "Const" else None)
        taken = tuple(slot_of[t] for t in node.inputs)
        context = context_of(node) if context_of is not None and node.opdef.is_stateful else None
        calls.append((backend.kernel(node, context), taken, tuple(slot_of[t] for t in node.outputs), node))
    asked = [slot_of[t] for t in outputs]
    seen = set(asked)
    steps = []
    for kernel, taken, made, node in reversed(calls):
        lost = tuple(dict.fromkeys(s for s in (*taken, *made) if s not in seen))
        seen.update(lost)
        steps.append((kernel, taken, made, lost, node))
    steps.reverse()
    given = len(inputs)

    def run(*values: Any) -> Any:
        slots = [*values, *start[given:]]
        for kernel, taken, made, lost, node in steps:
            try:
                result = kernel(*[slots[i] for i in taken])
            except Exception as e:
                raise NodeError(node) from e
            if len(made) == 1:
                slots[made[0]] = result
            else:
                for i, value in zip(made, result, strict=True):
                    slots[i] = value
            for i in lost:
                slots[i] = None
        return slots[asked[0]] if len(asked) == 1 else tuple([slots[i] for i in asked])

    return run
