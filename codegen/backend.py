"""The interface of backends.

A backend makes kernels for one type of device: one per fusion group, and one per node that is not fused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..graph.core.graph import Node
from ..graph.resources.resource_manager import Context
from .ir.program import Kernel
from .options import KernelOptions

if TYPE_CHECKING:
    from .ir.fused_kernel import FusedKernel


ContextOf: TypeAlias = Callable[[Node], Context]


class Backend(Protocol):
    """Makes kernels for one type of device.

    `options`: which rewrites may be applied to the nodes beforehand.
    """

    name: str
    options: KernelOptions

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        """A function of the node's input arrays that gives its output (one array, or a tuple when not exactly one).

        `context` is given for stateful ops only.

        Inputs that `node.opdef.ref_inputs` names, and inputs of type `resource`, are `VariableState` objects; all others are
        arrays, which the kernel must not change. It must be safe to call from several threads at once.
        """
        ...

    def fused(self, group: FusedKernel, context_of: ContextOf | None = None) -> Kernel:
        """A function of `group.inputs` and then `group.shapes` that gives `group.outputs`: one array, or a tuple.

        `context_of`: the `Context` for a stateful node: a group may look up rows of a variable.
        """
        ...


class NodeError(Exception):
    """A node inside a fused kernel failed; the cause is chained. The caller of the kernel names the node in the error."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.name)
        self.node = node
