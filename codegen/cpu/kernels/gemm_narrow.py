"""Matrix products of float16 and bfloat16: widened, multiplied and summed in float32, and rounded once (mixed-precision GEMM).

The product is that of float32 (`gemm`), of any size. The casts around it are made from loop nests, like all casts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ....graph.core.dtypes import DType, bfloat16, float16, float32
from ....graph.core.errors import InternalError
from ....graph.core.graph import Node
from ....graph.resources.buffer_pool import buffers
from ...check import agree, difference
from ...ir.loop_nest import LoopNest, LoopNestBuilder
from ...ir.program import Kernel
from ..emit.instantiate import text_of
from ..emit.nest import as_passed, source_of
from ..jit import Function, compile_now
from ..native.planner import Planner, Value
from ..thread_pool import Ranges, ranges_of, share
from ..tiering import TieredKernel
from .gemm import FUNCTIONS, OPS, product_of, record_product

Array = np.ndarray[Any, Any]

NARROW = (float16, bfloat16)
_NS_PER_CAST = 0.3  # one core, for a number


@cache
def cast(source: DType, to: DType) -> LoopNest:
    """The numbers of an array as another type.

    >>> print(cast(float16, float32))
    loops over d0
      v0: float16[d0] = load in0
      v1: float32[d0] = cast v0
      store out0[d0] = v1
    """
    build = LoopNestBuilder([False])
    build.store(build.apply("cast", build.load(0, source, [0]), dtype=to), [0])
    return build.finish()[0]


def is_narrow_product(node: Node) -> bool:
    """Whether a node is a product that this kernel supports."""
    return node.type in OPS and node.outputs[0].dtype.base in NARROW


def sources(node: Node) -> tuple[str, str, str]:
    """The texts of a product's kernels: of the product itself, of what widens, and of what narrows."""
    dtype = node.outputs[0].dtype.base
    product = text_of("kernels/gemm_source", FUNCTIONS, "float32")
    return product, source_of(cast(dtype, float32)).text, source_of(cast(float32, dtype)).text


class NarrowProduct(TieredKernel):
    """The kernel of a narrow product.

    Args:
        node: the node that it runs. reference: the op's reference.
        threads: the most threads that it may use. check: compare with the reference, at every run.
    """

    def __init__(self, node: Node, reference: Kernel, threads: int, check: bool) -> None:
        text, self._widen, self._narrow = sources(node)
        super().__init__(text, reference)
        self.node = node
        self.nodes = (node,)
        self.is_native = not check
        self._dtype = node.outputs[0].dtype.base.np
        self._threads = threads
        self._check = check
        self._casts: tuple[Function, Function] | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The source texts of the product and of both casts."""
        return self.text, self._widen, self._narrow

    def compile(self) -> None:
        """Compile all now."""
        self._casts = compile_now(self._widen), compile_now(self._narrow)
        super().compile()

    def _swap_in(self, function: Function) -> None:
        self._casts = compile_now(self._widen), compile_now(self._narrow)
        super()._swap_in(function)

    def __call__(self, a: Array, b: Array) -> Any:
        if self.function is None or self._casts is None:
            return self._on_numpy((a, b))
        if not a.size or not b.size:
            return self._reference(a, b)
        widen, narrow = self._casts
        wide_a, wide_b = (self._cast(widen, x, float32.np) for x in (a, b))
        product = product_of(self.node, wide_a, wide_b, self._threads, 0)
        if product is None:
            return self._reference(a, b)
        out = buffers.empty((*product.stack, product.rows, product.columns), float32.np)
        product.run(self.function, out.reshape(-1))
        made = self._cast(narrow, out, self._dtype)
        if self._check:
            self._compare(made, self._reference(a, b))
        return made

    def _cast(self, function: Function, x: Array, dtype: np.dtype[Any]) -> Array:
        out = buffers.empty(x.shape, dtype)
        flat = (as_passed(np.ascontiguousarray(x).reshape(-1)), as_passed(out.reshape(-1)))
        share(function, (*flat, x.size), self._ranges(x.size), self._threads)
        return out

    def _ranges(self, size: int) -> Ranges:
        return ranges_of(size, size * _NS_PER_CAST, self._threads)

    def record_into(self, planner: Planner, inputs: Sequence[Value]) -> Sequence[Value]:
        """Put its launches into a native plan."""
        function = planner.function_of(self)
        widen, narrow = (planner.compiled(text) for text in (self._widen, self._narrow))
        wide = [self._record_cast(planner, widen, v, float32.np) for v in inputs]
        (out,) = record_product(planner, function, self.node, wide, self._threads)
        return [self._record_cast(planner, narrow, out, self._dtype)]

    def _record_cast(self, planner: Planner, function: Any, value: Value, dtype: np.dtype[Any]) -> Value:
        value = planner.in_order(value)
        out, size = planner.made(value.array.shape, dtype), value.array.size
        words = [*planner.vector(value), *planner.vector(out), size]
        planner.launch(function, words, self._ranges(size), self._threads)
        return out

    def _compare(self, made: Array, wanted: Array) -> None:
        if not agree(made, wanted):
            raise InternalError(
                self.node, self.node,
                f"The compiled product '{self.node.name}' ({self.node.type}), made at {self.node.source}, differs from the "
                f"reference: {difference(made, wanted)}. This is an error in Dovetail; DOVETAIL_BACKEND=numpy avoids it.",
            )  # fmt: skip
