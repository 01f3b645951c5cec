"""What can be part of a fused kernel at all: its element types, and how a node that cannot be is refused."""

from __future__ import annotations

from ...graph.core.dtypes import NUMBERS, bool_

SUPPORTED = (*NUMBERS, bool_)
"""Element types of fused kernels. Narrow floats are computed in float32 and rounded once, at the end of each kernel."""


class NotFusibleError(Exception):
    """The node cannot be part of a fused kernel; says why."""
