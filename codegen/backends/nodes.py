"""Single nodes with compiled kernels on CPUs (images, products, sums of rows): the reference first, those when it pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...graph.errors import InternalError
from ...graph.node import Node
from ..agreement import agree, difference
from ..image_kernels import image_kernel
from ..matrix_kernels import matrix_kernel
from ..program import Kernel
from ..row_kernels import row_kernel
from .warming import WarmingKernel


class NodeKernel(WarmingKernel):
    """The kernel of one node.

    Args:
        node: what it runs. reference: the op's reference, attributes bound.
        text, call: see `image_kernel`, `matrix_kernel`.
        check: compare with the reference, at every run.
    """

    def __init__(self, node: Node, reference: Kernel, text: str, call: Callable[..., Any], check: bool) -> None:
        super().__init__(text, reference)
        self.node = node
        self._call = call
        self._check = check

    def __call__(self, *inputs: Any) -> Any:
        if self.function is None:
            return self._on_numpy(inputs)
        made = self._call(self.function, *inputs)
        if made is None:
            return self._reference(*inputs)
        if self._check:
            wanted = self._reference(*inputs)
            if not agree(made, wanted):
                raise InternalError(
                    self.node, self.node,
                    f"The compiled kernel of '{self.node.name}' ({self.node.type}), made at {self.node.source}, differs from "
                    f"the reference: {difference(made, wanted)}. This is an error in Dovetail; DOVETAIL_BACKEND=numpy avoids it.",
                )  # fmt: skip
        return made


def kernel_for(node: Node, reference: Kernel, *, threads: int, compile_first: bool, check: bool) -> Kernel:
    """A compiled kernel for a node that has one, else the reference."""
    found = image_kernel(node, threads) or matrix_kernel(node, threads) or row_kernel(node, threads)
    if found is None:
        return reference
    kernel = NodeKernel(node, reference, *found, check)
    if compile_first:
        kernel.compile()
    return kernel
