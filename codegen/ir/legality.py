"""What can be part of a fused kernel at all: its element types, and how a node that cannot be is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...graph.core.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ...graph.core.graph import Tensor

SUPPORTED = (float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool_, float16, bfloat16)
"""Element types of fused kernels. Narrow floats are computed in float32 and rounded once, at the end of each kernel."""


class NotFusibleError(Exception):
    """The node cannot be part of a fused kernel; says why."""


def check_types(tensors: Iterable[Tensor], types: Sequence[DType] = SUPPORTED) -> None:
    """Raise `NotFusibleError` when a kernel cannot have the element type of one of these."""
    for t in tensors:
        if t.dtype not in types:
            raise NotFusibleError(
                f"{t.dtype.name} stays with NumPy" if not t.dtype.is_ref else "it takes a variable's place"
            )
