"""Contractions on CPUs, as launches of a plan (`contraction_source` has the loops); and matrix products, which are one.

OpenBLAS hands a product of more than 64 x 64 x 64 to threads that spin while they wait for each other: on a busy machine, a hundred
times the product's own time. So products of middling size are computed here, shared like any other kernel (`native.launches`). BLAS does
smaller ones, without threads, and larger ones. docs/concepts/kernels-cpu.md has the numbers.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ....graph.core.dtypes import Array
from ....graph.core.graph import Node
from ...ir.nodes import transposed
from ...ir.program import Kernel
from ...target import LARGEST_PRODUCT, SHARED_MATRIX_BYTES, SHARED_MATRIX_PARTS, SMALLEST_PRODUCT
from ..emit.instantiate import text_of
from ..jit import Function
from ..native.planner import Planner
from ..schedule import product_schedule
from ..work_parts import LINE
from .node import NodeKernel

Jumps: TypeAlias = "tuple[int, ...]"

FUNCTIONS = {"contract": ("aaaaci", (3, 4, 3, 2, 6, 4, 5, 4, 4, 3, 3, 3)), "overlay": ("aaa", (3, 3, 6, 2))}


def contract(
    planner: Planner,
    function: Function,
    threads: int,
    x: Array,
    w: Array,
    y: Array,
    image: tuple[int, int, int],
    result: tuple[int, int, int, int],
    sums: tuple[int, int, int],
    window: tuple[int, ...],
    x_jumps: Jumps,
    w_jumps: Jumps,
    y_jumps: Jumps,
    counts: Jumps = (1, 1, 1),
    x_stack: Jumps = (0, 0, 0),
    w_stack: Jumps = (0, 0, 0),
    by_filter: bool = False,
) -> None:
    """Record a contraction of vectors: `contraction_source.contract` tells the arguments. `by_filter`: it is a gradient by the filter.

    Each of its threads is a part of the launch, with a line of counters, and takes units of work until none is left.
    """
    matrices, is_packed = math.prod(counts), x_jumps[3] != 1
    schedule = product_schedule(
        image, result, sums, window, x.itemsize, threads, matrices, is_packed=is_packed, by_filter=by_filter
    )
    planner.schedules.append(schedule)
    room = planner.empty((schedule.threads * schedule.scratch,), x.dtype)
    jumps, stacks = (x_jumps, w_jumps, y_jumps), (counts, x_stack, w_stack)
    numbers = (image, result, sums, schedule.held, window, *jumps, schedule.box, *stacks)
    own = max(1, min(schedule.threads, schedule.units))
    counters = planner.empty((own * LINE,), np.dtype(np.int64))
    planner.clear(counters)
    planner.share(function, (x, w, y, room, counters, schedule.units, *numbers), own, own, own)


class ProductKernel(NodeKernel):
    """The kernel of a product. Inside a native region it also does the small products that BLAS does elsewhere."""

    def __init__(self, node: Node, reference: Kernel, threads: int, check: bool) -> None:
        functions = {"contract": FUNCTIONS["contract"]}
        text = text_of("kernels/contraction_source", functions, node.outputs[0].dtype.base.name)
        super().__init__(node, reference, text, self._record, check=check)
        self._threads = threads
        self._smallest = SMALLEST_PRODUCT

    def enter_region(self) -> None:
        """Become part of a region: products of all sizes are done here, also while the region runs one by one."""
        self._smallest = 0

    def _record(self, function: Any, planner: Planner, a: Array, b: Array) -> Array | None:
        """The product as a contraction of one row of pixels; None where BLAS, by way of the reference, must do it."""
        flip_a, flip_b = transposed(self.node)
        a, b = (a.swapaxes(-1, -2) if flip_a else a), (b.swapaxes(-1, -2) if flip_b else b)
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
            return None
        rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
        if not self._smallest < rows * inner * columns <= LARGEST_PRODUCT:
            return None
        try:
            stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            return None
        if len(stack) > 3:
            return None
        a, b = np.broadcast_to(a, stack + a.shape[-2:]), np.broadcast_to(b, stack + b.shape[-2:])
        out = planner.empty((*stack, rows, columns), a.dtype)
        matrix = b if columns > 1 else a
        if 1 in (rows, columns) and matrix.strides[-2] == matrix.itemsize != matrix.strides[-1]:
            # Its columns are contiguous: the transposed product reads it along them.
            a, b, rows, columns = b.swapaxes(-1, -2), a.swapaxes(-1, -2), columns, rows
        (a, a_jumps), (b, b_jumps) = (_as_vector(x if _is_vector(x) else planner.ordered(x)) for x in (a, b))
        counts, x_stack, w_stack = (1,) * (3 - len(stack)) + stack, a_jumps[:3], b_jumps[:3]
        parts, sums = out, 1
        if not stack and rows == 1 and b_jumps[4] == 1 and inner * columns * a.itemsize >= SHARED_MATRIX_BYTES:
            sums = equal_parts(inner, SHARED_MATRIX_PARTS)
            counts, x_stack, w_stack = (
                (1, 1, sums),
                (0, 0, inner // sums * a_jumps[4]),
                (0, 0, inner // sums * b_jumps[3]),
            )
            parts = planner.empty((sums, columns), a.dtype) if sums > 1 else out
        inner //= sums
        contract(
            planner, function, self._threads, a, b, parts.reshape(-1),
            image=(1, rows, inner), result=(1, 1, rows, columns), sums=(1, 1, inner), window=(1, 1, 1, 1, 0, 0),
            x_jumps=(0, 0, *a_jumps[3:]), w_jumps=(0, 0, 0, *b_jumps[3:]), y_jumps=(0, 0, 0, columns),
            counts=counts, x_stack=x_stack, w_stack=w_stack,
        )  # fmt: skip
        if sums > 1:
            add_parts(planner, function, self._threads, parts, out)
        return out


def equal_parts(length: int, most: int) -> int:
    """Into how many equal parts, of at most so many, a length can be divided."""
    return next((parts for parts in range(most, 1, -1) if length % parts == 0), 1)


def add_parts(planner: Planner, function: Function, threads: int, parts: Array, total: Array) -> None:
    """Record the sum of the rows of a matrix: a row of ones times it, always in one order."""
    count, size = parts.shape
    contract(
        planner, function, threads, planner.in_memory(np.ones(count, parts.dtype)), parts.reshape(-1), total.reshape(-1),
        image=(1, 1, count), result=(1, 1, 1, size), sums=(1, 1, count), window=(1, 1, 1, 1, 0, 0),
        x_jumps=(0, 0, 0, 1), w_jumps=(0, 0, 0, size, 1), y_jumps=(0, 0, 0, size),
    )  # fmt: skip


def _is_vector(x: Array) -> bool:
    """Whether `_as_vector` takes it as it is."""
    if x.flags.c_contiguous:
        return True
    last = x.itemsize in x.strides[-2:]
    return last and x.ndim <= 5 and not any(s < 0 or s % x.itemsize for s in x.strides)


def _as_vector(x: Array) -> tuple[Array, tuple[int, ...]]:
    """The memory of a stack of matrices (`_is_vector`) as a vector, and how far it is to the next along each of five axes."""
    jumps = [s // x.itemsize for s in x.strides]
    if jumps[-1] != 1 and jumps[-2] != 1:  # axes of one element, whose strides do not matter
        jumps[-1] = 1
    span = 1 + sum((n - 1) * j for n, j in zip(x.shape, jumps, strict=True))
    flat = x.reshape(-1) if x.flags.c_contiguous else as_strided(x, (span,), (x.itemsize,))
    return flat, (*(0,) * (5 - x.ndim), *jumps)
