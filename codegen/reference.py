"""The NumPy backend: each node's kernel is its op's reference. Slower than compiled kernels, but the definition of correct results."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..graph.core.errors import UnimplementedError
from ..graph.core.graph import Node
from .backend import ContextOf, DimsOf
from .ir.fused_kernel import FusedKernel
from .ir.program import REFERENCE, BoundWork, Kernel, Work
from .lower.region import Steps
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
