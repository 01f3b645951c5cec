"""`NodeKernel`: the compiled kernel of a single node, written by hand.

Such a kernel is a source text with a compiled function, and a Python function `call(function, *inputs, executor=...)` around it. The
call allocates memory, makes arrays contiguous, adds padding and shares the work among threads. It does so through an executor
(`native.recorder`), so the same code runs the kernel and records it into a native plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ....graph.core.graph import Node
from ...check import compare
from ...ir.program import Kernel
from ..native.planner import Planner, Value
from ..native.recorder import record_by
from ..tiering import TieredKernel


class NodeKernel(TieredKernel):
    """The kernel of one node.

    Args:
        node: the node that it runs. reference: the op's reference, attributes bound; it does the work until the kernel is compiled, and
            where `call` returns None.
        text: the source text. call: `call(function, *inputs, executor=...)` returns the outputs, or None for unsupported sizes.
        check: compare with the reference at every run. known_input: the input whose value `call` reads, such as a shape; -1: none.

    Attributes:
        is_native: whether native plans can have it.
    """

    def __init__(
        self, node: Node, reference: Kernel, text: str, call: Callable[..., Any], *, check: bool, known_input: int = -1
    ) -> None:
        super().__init__(text, reference)
        self.node = node
        self.is_native = not check
        self.nodes = (node,)
        self._call = call
        self._check = check
        self._known_input = known_input

    def __call__(self, *inputs: Any) -> Any:
        if self.function is None:
            return self._on_numpy(inputs)
        made = self._call(self.function, *inputs)
        if made is None:
            return self._reference(*inputs)
        if self._check:
            wanted, several = self._reference(*inputs), len(self.node.outputs) > 1
            compare("The compiled kernel of", self.node, *((made, wanted) if several else ([made], [wanted])))
        return made

    def record_into(self, planner: Planner, inputs: Sequence[Value]) -> Sequence[Value]:
        """Record its launches into a native plan."""
        return record_by(planner, partial(self._call, planner.function_of(self)), inputs, self._known_input)
