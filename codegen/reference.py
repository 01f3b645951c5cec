"""The NumPy backend: each node's kernel is its op's reference. Slower than compiled kernels, but the definition of correct results."""

from __future__ import annotations

import functools

from ..graph.core.errors import UnimplementedError
from ..graph.core.graph import Node
from ..graph.resources.resource_manager import Context
from .backend import ContextOf
from .ir.fused_kernel import FusedKernel
from .ir.program import Kernel
from .lower.region import Steps
from .options import KernelOptions


class NumpyBackend:
    """Runs every op's NumPy reference. Serves CPU devices, and emulated GPUs."""

    name = "numpy"
    options = KernelOptions(fold=False, merge=False, rewrite=False)

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
        return Steps(self, group.nodes, (*group.inputs, *group.shapes), group.outputs, context_of)
