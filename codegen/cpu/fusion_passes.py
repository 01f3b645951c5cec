"""What a CPU's unit becomes before it is lowered: the passes around fusion, in their order.

attention and its gradient    parts become one node each (`attention_fusion`)
fusion                        nodes that lie in one space become kernels (`fuse`)
overwriting                   results take the places of inputs that die with them (`overwriting`)
"""

from __future__ import annotations

from dataclasses import replace

from ..fusion.fuse import Fusion, fuse
from ..fusion.inplace import reuse_inputs_in_place
from ..ir.partition import PartitionGraph
from ..passes.attention_fusion import fuse_attention
from ..passes.rewrite import Fired, Rewrites
from ..target import OPERATIONS_PER_BYTE
from .kernels.attention import TYPES


def fuse_for_cpu(
    unit: PartitionGraph, wanted: Rewrites, *, small: bool
) -> tuple[PartitionGraph, Fusion, tuple[Fired, ...]]:
    """The unit after its first pass, its steps with kernels among them, and what the first pass did.

    Args:
        unit: what a CPU runs, after rewriting.
        wanted: what may be rewritten.
        small: fuse what is too small to gain, too.
    """
    unit, fired = fuse_attention(unit, TYPES) if wanted.rules else (unit, ())
    fusion = fuse(unit, small=small, again=OPERATIONS_PER_BYTE, numbers=True)
    return unit, replace(fusion, steps=reuse_inputs_in_place(unit, fusion.steps)), fired
