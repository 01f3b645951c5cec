"""What a GPU's unit becomes before it is lowered: the passes that only GPUs have, around fusion, in their order.

attention and its gradient    parts become one node each (`attention_fusion`)
fusion                        nodes that lie in one space become kernels (`fuse`)
edges                         kernels are joined to the products that they stand beside (`edged`)
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.core.dtypes import FLOAT8
from ..fusion.epilogue import fuse_epilogues
from ..fusion.fuse import Fusion, fuse
from ..ir.fused_kernel import FusedKernel
from ..ir.legality import SUPPORTED
from ..ir.partition import PartitionGraph
from ..passes.attention_fusion import fuse_attention
from ..passes.rewrite import Fired, Rewrites
from ..target import GPU_LONGEST_SCAN, GPU_OPERATIONS_PER_BYTE


def gpu_rewrites(wanted: Rewrites) -> Rewrites:
    """What is rewritten for a GPU, where that is for CPUs: templates make some functions worth to be recognised."""
    return replace(wanted, recognised=wanted.recognised | {"Attention"})


def fuse_for_gpu(
    unit: PartitionGraph, wanted: Rewrites, *, float8: bool = True
) -> tuple[PartitionGraph, Fusion, tuple[Fired, ...]]:
    """The unit after its first pass, its steps with kernels among them, and what the first pass did.

    Args:
        unit: what a GPU runs, after rewriting.
        wanted: what may be rewritten.
        float8: whether the GPU's instructions know numbers of 8 bits.
    """
    fired: tuple[Fired, ...] = ()
    if "Attention" in wanted.recognised and wanted.rules:
        unit, fired = fuse_attention(unit)
    # Arithmetic on single numbers stays in kernels of its own (no `numbers`): as nodes it would run on the host, which waits for the GPU.
    fused = fuse(
        unit,
        small=True,
        lone=True,
        types=SUPPORTED + FLOAT8 * float8,
        again=GPU_OPERATIONS_PER_BYTE,
        longest=GPU_LONGEST_SCAN,
    )
    steps = fuse_epilogues(unit, fused.steps)
    inside = {n.name for s in steps if isinstance(s, FusedKernel) for n in s.nodes}
    return unit, Fusion(steps, {name: why for name, why in fused.reasons.items() if name not in inside}), fired
