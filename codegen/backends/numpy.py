"""The NumPy backend: each node's kernel is its op's own reference. Slow beside compiled kernels, and always right."""

from __future__ import annotations

import functools

from ...graph.errors import UnimplementedError
from ...graph.node import Node
from ...graph.state import Context
from ..program import Kernel


class NumpyBackend:
    """Runs every op's NumPy reference. Serves CPU devices, and emulated GPUs."""

    name = "numpy"

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        """The op's reference with the node's attributes bound."""
        op = node.opdef
        if op.reference is None:
            raise UnimplementedError(node, node, f"'{node.name}' ({op.name}), made at {node.source}, has no kernel: its value can only be fed")
        attrs = op.kernel_attrs(node.attrs) if node.attrs else {}
        if op.is_stateful:
            return functools.partial(op.reference, context, **attrs)
        return functools.partial(op.reference, **attrs) if attrs else op.reference
