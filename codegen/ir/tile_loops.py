"""Tile loops: elementwise work that a template does on a tile in registers.

A matrix product or a convolution does such work on its operands after the load (a prologue), and on its result before the store (an
epilogue). It is a loop nest without reductions. Input 0 is the tile. The other inputs are arrays, broadcast over the axes that they
lack. The template continues with the stored values, or writes them. So a product with a bias and a GELU, which keeps the value
before the GELU for the gradient, is one kernel with two outputs:

    loops over d0, d1
      v0: float32[d0, d1] = load in0        the product
      v1: float32[d1] = load in1            the bias
      v2: float32[d0, d1] = add v0 v1
      ...
      store out0[d0, d1] = v9
      store out1[d0, d1] = v2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...graph.core.dtypes import DType, float32
from .loop_nest import BINARY, UNARY, LoopNest, LoopNestBuilder, Value

_KNOWN = UNARY | BINARY | {"load", "constant", "random", "select"}


@dataclass(frozen=True, slots=True)
class TileLoops:
    """Elementwise work on one tile of an operand, or of the result, of a template.

    Attributes:
        loops: without reductions; input 0 is the tile.
        axes: for each axis of `loops`, the template's axes that it collapses, as `LoopNestBuilder.finish` gives them.
    """

    loops: LoopNest
    axes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if any(self.loops.reduced) or any(v.op in ("reduce", "count") for v in self.loops.values):
            raise ValueError("the elementwise work of a template cannot contain reductions")
        if any(s.row is not None for s in self.loops.stores):
            raise ValueError("what a template makes does not go into rows of a table")
        for v in self.loops.values:
            if v.op not in _KNOWN:
                raise ValueError(f"no template can compute {v.op}")
        if any(v.dtype.size == 8 and v.dtype.is_floating and (v.op != "load" or v.data) for v in self.loops.values):
            raise ValueError("templates compute in float32; float64 only passes through")

    @property
    def extra(self) -> list[Value]:
        """The inputs after the tile."""
        return [v for v in self.loops.loads if v.data > 0]

    @property
    def outputs(self) -> list[DType]:
        """Types of the stores."""
        return [self.loops.values[s.value].dtype for s in self.loops.stores]

    def original(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Axes of the loops as axes of the template."""
        return tuple(a for group in axes for a in self.axes[group])


def plain(dtype: DType, rank: int, computed: DType = float32) -> TileLoops:
    """Tile loops that only round to `dtype`."""
    builder = LoopNestBuilder([False] * rank)
    builder.store(builder.cast(builder.load(0, computed, range(rank)), dtype), range(rank))
    return TileLoops(*builder.finish())
