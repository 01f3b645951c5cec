"""Matrix products of middling size, compiled for CPUs.

OpenBLAS hands a product of more than 64 x 64 x 64 to threads that wait actively for each other. On a machine with nothing else to
do that is as fast as can be; on a busy one (several tasks, as clusters on one machine are) each product costs several slices of
the scheduler, a hundred times what the product itself does. So these products are shared like any other kernel (`threads`), in
tiles that are as fast as those of BLAS. Left to BLAS are smaller ones, which it does at once, and larger ones, which last so
long that waiting is no matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ..graph.node import Node
from .buffers import buffers
from .loop_text import source_of
from .threads import ranges_of, share

Array: TypeAlias = np.ndarray[Any, Any]

SMALLEST, LARGEST = (
    1 << 18,
    1 << 30,
)  # multiply-adds of one product: from where OpenBLAS takes threads, to where we use it again
_ROW_BLOCK = 96  # that of `matrix_loops`
_LANES = {np.dtype(np.float32): 16, np.dtype(np.float64): 8}
_BLOCKS = 8  # at least as many as that, so that threads can share them
_NS_PER_FLOP, _NS_PER_PACKED = 0.015, 1.0  # one core, float32

_FUNCTIONS = {"pack": ("rwi", (2, 3)), "multiply": ("rrwi", (3, 3, 1)), "multiply_low": ("rrwi", (3, 3, 3, 1))}


OPS = {"MatMul": ("transpose_a", "transpose_b"), "BatchMatMulV2": ("adj_x", "adj_y")}
"""Products, and the attributes that say which factors are taken transposed."""


def matrix_kernel(node: Node, threads: int) -> tuple[str, Callable[..., Array | None]] | None:
    """For a product: its source text, and what is to be called with the compiled functions and the inputs.

    That gives None where BLAS, by way of the reference, must do the work.
    """
    names = OPS.get(node.type)
    if names is None:
        return None
    dtype = node.outputs[0].dtype.base
    if dtype.np not in _LANES:
        return None
    flip_a, flip_b = (bool(node.attrs[name]) for name in names)

    def call(functions: Any, a: Array, b: Array) -> Array | None:
        return _product(functions, a, b, flip_a, flip_b, threads)

    return source_of("matrix_loops", _FUNCTIONS, dtype.name), call


def _product(functions: Any, a: Array, b: Array, flip_a: bool, flip_b: bool, threads: int) -> Array | None:
    if a.ndim < 2 or b.ndim < 2 or a.shape[:-2] != b.shape[:-2]:
        return None
    inner, rows = (a.shape[-2], a.shape[-1]) if flip_a else (a.shape[-1], a.shape[-2])
    columns = b.shape[-2] if flip_b else b.shape[-1]
    work = rows * inner * columns
    if (b.shape[-1] if flip_b else b.shape[-2]) != inner or not SMALLEST < work <= LARGEST:
        return None
    pack, multiply, multiply_low = functions
    lanes = _LANES[a.dtype]
    matrices, count = math.prod(a.shape[:-2]), -(-columns // lanes)
    down = -(-rows // _ROW_BLOCK)
    group = max(1, min(count, count * matrices * down // _BLOCKS))
    blocks = ranges_of(matrices * down * -(-count // group), 2.0 * matrices * work * _NS_PER_FLOP, threads)
    out = buffers.empty((*a.shape[:-2], rows, columns), a.dtype)
    along_a = (rows * inner, 1, rows) if flip_a else (rows * inner, inner, 1)
    along_b = (inner * columns, 1, inner) if flip_b else (inner * columns, columns, 1)
    sizes = (rows, inner, columns)
    if down == 1:
        share(
            multiply_low, (a.ravel(), b.ravel(), out.ravel(), lanes, sizes, along_a, along_b, (group,)), blocks, threads
        )
        return out
    panel = buffers.empty((matrices * count * inner * lanes,), a.dtype)
    packed = ranges_of(matrices * count, panel.size * _NS_PER_PACKED, threads)
    share(pack, (b.ravel(), panel, lanes, (inner, columns), along_b), packed, threads)
    share(multiply, (a.ravel(), panel, out.ravel(), lanes, sizes, along_a, (group,)), blocks, threads)
    return out
