"""The machines that code is generated for: cores, caches, costs of one core, and limits of GPUs.

These numbers decide tile sizes, fusion, and parallelism. They are rough on purpose: a kernel that is tiled for a cache of 2 MiB runs
well with one of 1 or 4 MiB. Numbers that tune a single kernel stay with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

# --- CPUs ------------------------------------------------------------------------------------------------------------

CACHE_LINE_BYTES = 64
"""What memory moves in, and what two threads must not both write to."""

L2_BYTES = 1 << 21
"""The second cache of one core. The working set of one unit of work is a half or a quarter of it."""

# Rough cost of one element on one core, float32, measured on a 2.6 GHz Zen 4.
NS_PER_BYTE, NS_PER_OPERATION, NS_PER_COSTLY = 0.05, 0.03, 0.25
NS_PER_RANDOM = {"uniform": 0.8, "normal": 5.0}
NS_PER_SCAN_STEP = 1.2  # of a running sum: each step depends on the one before

OPERATIONS_PER_BYTE = NS_PER_BYTE / NS_PER_OPERATION
"""How many operations take as long as one byte of memory."""


@cache
def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- GPUs ------------------------------------------------------------------------------------------------------------

GPU_OPERATIONS_PER_BYTE = 10.0
"""How many operations of float32 take as long as one byte of the GPU's memory: by its maker's figures 20 on an H100 (67 TFLOP/s,
3.35 TB/s), 10 to 12 on an A100 (19.5 TFLOP/s, 1.6 to 2 TB/s). The lower number: a function may be more instructions than it counts."""

GPU_INDEX_MARGIN = 1 << 20
"""How far the offsets of a block's tile may reach beyond an array: with 32 bits they must not come around to where it begins."""

GPU_LONGEST_SCAN = 16384
"""Elements of a running sum, or of an arg-extreme, that one block has at once. Templates serve longer ones."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU by its maker's figures: CUDA C++ Programming Guide, "Compute Capabilities", and the data sheets.

    Attributes:
        name: the product.
        multiprocessors: how many there are. An MI300X has 304.
        block_shared_bytes: the most shared memory that one block may ask for.
        shared_bytes: shared memory of a multiprocessor, of which each block takes `GPU_BLOCK_RESERVED` more than it asks for.
        warps, blocks: the most that a multiprocessor runs at a time.
        bytes_per_second: speed of its memory.
        flops: operations per second of products, by the bytes of an operand's element: 1, 2, 4 (exact), 8; and "tf32".
    """

    name: str
    multiprocessors: int
    block_shared_bytes: int
    shared_bytes: int
    warps: int
    blocks: int
    bytes_per_second: float
    flops: Mapping[int | str, float]


GPUS = {
    80: GpuModel(
        "A100", 108, 163 << 10, 164 << 10, 64, 32, 1.56e12, {2: 312e12, "tf32": 156e12, 4: 19.5e12, 8: 19.5e12}
    ),
    90: GpuModel(
        "H100", 132, 227 << 10, 228 << 10, 64, 32, 3.35e12, {1: 1979e12, 2: 989e12, "tf32": 495e12, 4: 67e12, 8: 67e12}
    ),
    100: GpuModel(
        "B200", 148, 227 << 10, 228 << 10, 64, 32, 8e12, {1: 4500e12, 2: 2250e12, "tf32": 1100e12, 4: 75e12, 8: 37e12}
    ),
}
"""By architecture: the compute capability times ten."""

GPU_REGISTERS = 65536
"""Registers of a multiprocessor, a quarter of them for each of its four schedulers."""

GPU_BLOCK_RESERVED = 1 << 10
"""Bytes of shared memory that the system takes for each block."""

SMALLEST_BLOCK_SHARED_BYTES = 99 << 10
"""Shared memory that a block may have on any GPU from compute capability 8.0 on."""

H100_MULTIPROCESSORS = GPUS[90].multiprocessors
"""What templates assume where the kernel text is chosen before the GPU is known."""
