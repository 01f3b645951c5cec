"""The interface that every backend has.

A backend turns nodes into kernels for one type of device. Lowering asks it for one kernel per node; it may be handed more at
a time once kernels are fused.
"""

from __future__ import annotations

from typing import Protocol

from ...graph.node import Node
from ...graph.state import Context
from ..program import Kernel


class Backend(Protocol):
    """Makes kernels for one type of device."""

    name: str

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        """A function of the node's input arrays that gives its output (one array, or a tuple when not exactly one).

        `context` is given for stateful ops only.

        Inputs that `node.opdef.ref_inputs` names, and inputs of type `resource`, are `VariableState` objects; all others are
        arrays, which the kernel must not change. It must be safe to call from several threads at once.
        """
        ...
