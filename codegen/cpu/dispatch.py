"""Single nodes with compiled kernels on CPUs (images, products, sums of rows): the reference first, those when it pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...graph.core.errors import InternalError
from ...graph.core.graph import Node
from ..check import agree, difference
from ..ir.program import Kernel
from .kernels.attention import attention_kernel
from .kernels.gemm import OPS as PRODUCTS, matrix_kernel, put_product
from .kernels.image import TOLD as TOLD_SIZES, image_kernel
from .kernels.mixed_precision_gemm import NarrowProduct, is_narrow_product
from .kernels.segment import TOLD as TOLD_COUNTS, row_kernel
from .kernels.topk import TOLD as TOLD_TOP, top_kernel
from .native.planner import Planner, Value
from .native.recorder import put_by
from .tiering import WarmingKernel

TOLD = {**TOLD_SIZES, **TOLD_COUNTS, **TOLD_TOP}
"""Which input's value the kernel of an op looks at."""


class NodeKernel(WarmingKernel):
    """The kernel of one node.

    Args:
        node: what it runs. reference: the op's reference, attributes bound.
        text, call: see `image_kernel`, `matrix_kernel`.
        check: compare with the reference, at every run. threads: most that may work on it.

    Attributes:
        is_native: whether native plans can have it.
    """

    def __init__(
        self, node: Node, reference: Kernel, text: str, call: Callable[..., Any], check: bool, threads: int = 1
    ) -> None:
        super().__init__(text, reference)
        self.node = node
        self.is_native = not check
        self.nodes = (node,)
        self._threads = threads
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
            pairs = zip(made, wanted, strict=True) if len(self.node.outputs) > 1 else ((made, wanted),)
            differing = next(((mine, theirs) for mine, theirs in pairs if not agree(mine, theirs)), None)
            if differing is not None:
                raise InternalError(
                    self.node, self.node,
                    f"The compiled kernel of '{self.node.name}' ({self.node.type}), made at {self.node.source}, differs from "
                    f"the reference: {difference(*differing)}. This is an error in Dovetail; DOVETAIL_BACKEND=numpy avoids it.",
                )  # fmt: skip
        return made

    def gather(self) -> None:
        """Become part of a native stretch, in which products of all sizes are done here: also where it runs one by one."""
        if self.node.type in PRODUCTS:
            self._call = partial(self._call, smallest=0)

    def put_into(self, planner: Planner, inputs: Sequence[Value]) -> Sequence[Value]:
        """Put its launches into a native plan."""
        function = planner.function_of(self)
        if self.node.type in PRODUCTS:
            return put_product(planner, function, self.node, inputs, self._threads)
        return put_by(planner, partial(self._call, function), inputs, TOLD.get(self.node.type, -1))


def own_kernel(node: Node, threads: int) -> tuple[str, Callable[..., Any]] | None:
    """A node's source text, and what is to be called with the compiled function and the inputs; None where there is none."""
    return (
        image_kernel(node, threads)
        or matrix_kernel(node, threads)
        or row_kernel(node, threads)
        or attention_kernel(node, threads)
        or top_kernel(node, threads)
    )


def kernel_for(node: Node, reference: Kernel, *, threads: int, compile_first: bool, check: bool) -> Kernel:
    """A compiled kernel for a node that has one, else the reference."""
    kernel: WarmingKernel
    if is_narrow_product(node):
        kernel = NarrowProduct(node, reference, threads, check)
    else:
        found = own_kernel(node, threads)
        if found is None:
            return reference
        kernel = NodeKernel(node, reference, *found, check, threads)
    if compile_first:
        kernel.compile()
    return kernel
