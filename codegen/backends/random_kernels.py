"""Random numbers on CPUs: the words of `graph.philox`, made eight blocks at a time, and shared by threads."""

from __future__ import annotations

import math
from typing import Any

from ...graph.dtypes import DType, float32, float64
from ...graph.errors import InternalError
from ...graph.node import Node
from ...graph.ops.random import stream_of
from ...graph.state import Context
from ..agreement import agree, difference
from ..buffers import buffers
from ..loop_text import source_of
from ..program import Kernel
from ..threads import ranges_of, share
from .warming import WarmingKernel

DRAWS: dict[str, tuple[str, tuple[DType, ...], float]] = {
    "RandomUniform": ("uniform", (float32, float64), 1.5),
    "RandomStandardNormal": ("normal", (float32,), 6.0),
}
"""Op -> the draw, the element types that are compiled, and nanoseconds for a number of 32 bits."""

_LOW = 0xFFFFFFFF


class RandomKernel(WarmingKernel):
    """The kernel of one node that draws floats.

    Args:
        node: what it runs. reference: the op's reference, context and attributes bound.
        context: the node's. threads: how many may work on it.
        check: compare with the reference, at every run.
    """

    def __init__(self, node: Node, reference: Kernel, context: Context, threads: int, check: bool) -> None:
        self._draw, _, self._time = DRAWS[node.type]
        dtype = node.outputs[0].dtype.base
        super().__init__(source_of("random_loops", {self._draw: ("wiiii", ())}, dtype.name), reference)
        self._node = node
        self._context = context
        self._dtype = dtype.np
        self._seeds = int(node.attrs["seed"]), int(node.attrs["seed2"])
        self._threads = threads
        self._check = check

    def __call__(self, shape: Any) -> Any:
        function = self.function
        if function is None:
            return self._on_numpy((shape,))
        sizes = tuple(int(d) for d in shape)
        if min(sizes, default=1) < 0:
            return self._reference(shape)  # which says what is wrong
        stream = stream_of(self._context, *self._seeds)
        count = math.prod(sizes)
        out = buffers.empty(sizes, self._dtype)
        blocks = -(-count * self._dtype.itemsize // 16)
        ranges = ranges_of(blocks, count * self._time * self._dtype.itemsize / 4, self._threads)
        draw = (stream.draw & _LOW, (stream.draw >> 32) & _LOW)
        share(function, (out.reshape(-1), *stream.key, *draw), ranges, self._threads)
        if self._check:
            wanted = getattr(stream, self._draw)(sizes, self._dtype)
            if not agree(out, wanted):
                raise InternalError(
                    self._node, self._node,
                    f"The compiled draw of '{self._node.name}' ({self._node.type}), made at {self._node.source}, differs from the "
                    f"reference: {difference(out, wanted)}. This is an error in Dovetail; DOVETAIL_BACKEND=numpy avoids it.",
                )  # fmt: skip
        return out


def random_kernel(
    node: Node, reference: Kernel, context: Context | None, threads: int, check: bool
) -> RandomKernel | None:
    """The kernel of a node that draws; None where there is none."""
    found = DRAWS.get(node.type)
    if found is None or context is None or node.outputs[0].dtype.base not in found[1]:
        return None
    return RandomKernel(node, reference, context, threads, check)
