"""Matrix products of middling size: when they are done here, and how they are cut into units of work (`gemm_source` has the loops).

OpenBLAS hands a product of more than 64 x 64 x 64 to threads that spin while they wait for each other. That is fastest on an idle
machine. On a busy one (several tasks, as clusters on one machine have) each product costs several time slices of the scheduler, a
hundred times what the product itself does. So these products are shared like any other kernel (`worker_pool`), in tiles as fast as
those of BLAS (docs/concepts/kernels-cpu.md has the numbers). BLAS does smaller ones, without threads, and larger ones, which last so long
that waiting does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ....graph.core.graph import Node
from ...ir.program import Kernel
from ..emit.instantiate import text_of
from ..native.recorder import Recorder
from .node import NodeKernel

Array: TypeAlias = np.ndarray[Any, Any]

# Multiply-adds of one product: from where OpenBLAS takes threads, to where we use it again.
SMALLEST, LARGEST = (
    1 << 18,
    1 << 30,
)
_TALLEST, _WIDEST = 16, 8  # tiles and panels of a unit; its rows stay in the second cache while panels go over them
_TALLEST_PACKED = 8  # the same where rows are packed, once for each unit: fewer rows, and more columns that use them
_ROW_WIDEST = 1 << 14  # bytes of a unit of one row's product: they stay in the first cache
_NS_PER_BYTE = 0.02  # one core, of a matrix that is read once
_UNITS = 32  # target number of work units: a thread that is done early takes another one
_LEAST, _MOST = 1 << 20, 1 << 23  # multiply-adds of a unit: some 10 to 80 microseconds
WORTH_HELP_NS = 150_000.0  # of one thread's time
NS_PER_FLOP = 0.008  # one core, float32

FUNCTIONS = {"multiply": ("rrwwc", (3, 3, 5, 5, 4))}
_TYPES = (np.dtype(np.float32), np.dtype(np.float64))


OPS = {"MatMul": ("transpose_a", "transpose_b"), "BatchMatMulV2": ("adj_x", "adj_y")}
"""Products, and the attributes that say which factors are taken transposed."""


class ProductKernel(NodeKernel):
    """The kernel of a product. Inside a native region it also does the small products that BLAS does elsewhere."""

    def __init__(self, node: Node, reference: Kernel, threads: int, check: bool) -> None:
        text = text_of("kernels/gemm_source", FUNCTIONS, node.outputs[0].dtype.base.name)
        super().__init__(node, reference, text, self._record, check=check)
        self._threads = threads
        self._smallest = SMALLEST

    def enter_region(self) -> None:
        """Become part of a region: products of all sizes are done here, also while the region runs one by one."""
        self._smallest = 0

    def _record(self, function: Any, recorder: Recorder, a: Array, b: Array) -> Array | None:
        product = product_of(self.node, recorder, a, b, self._threads, self._smallest)
        if product is None:
            return None
        out = recorder.empty((*product.stack, product.rows, product.columns), product.dtype)
        plan = product.plan()
        first, second = (product.b, product.a) if plan.is_turned else (product.a, product.b)
        room = recorder.empty((plan.threads * plan.room,), product.dtype)
        arrays = (first, second, out.reshape(-1), room)
        recorder.share_units(function, arrays, plan.terms, plan.units, plan.threads)
        return out


def product_kernel(node: Node, reference: Kernel, threads: int, check: bool) -> ProductKernel | None:
    """The kernel of a product of float32 or float64; None for other types."""
    return ProductKernel(node, reference, threads, check) if node.outputs[0].dtype.base.np in _TYPES else None


@dataclass(frozen=True, slots=True)
class Product:
    """A product of stacks of matrices, as the compiled kernel takes it.

    Attributes:
        a, b: the memory of the factors, as vectors. a_jumps, b_jumps: how far it is to the next along the stack's three axes, rows,
            columns.
        stack: sizes of the result's axes before the last two, which have `rows` and `columns`; `inner` is summed.
        threads: how many may work on it. is_turned: whether the result is to be written with its last two axes exchanged.
    """

    a: Array
    b: Array
    a_jumps: tuple[int, ...]
    b_jumps: tuple[int, ...]
    stack: tuple[int, ...]
    rows: int
    inner: int
    columns: int
    threads: int
    is_turned: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        dtype: np.dtype[Any] = self.a.dtype
        return dtype

    def plan(self, may_turn: bool = True) -> Plan:
        """How to do it. `may_turn`: the transposed factors may be multiplied in the other order."""
        if may_turn and self._is_quicker_turned():
            return replace(self._turned().plan(False), is_turned=True)
        matrices, size = math.prod(self.stack), self.a.itemsize
        work = matrices * self.rows * self.inner * self.columns * size
        time = work * (_NS_PER_BYTE if 1 in (self.rows, self.columns) else NS_PER_FLOP / 2)
        threads = self.threads if time >= WORTH_HELP_NS else 1
        if self.rows == 1 == self.b_jumps[4]:
            unit, units, room = _row_unit(self.columns, matrices, size, threads, self.is_turned)
        else:
            unit, units, room = _unit(
                self.rows, self.inner, self.columns, matrices, size, self.a_jumps[4] == 1, self.is_turned
            )
        counts = (1,) * (3 - len(self.stack)) + self.stack if len(self.stack) <= 3 else (1, 1, matrices)
        terms = (self.rows, self.inner, self.columns), counts, self.a_jumps, self.b_jumps, unit
        return Plan(terms, units, min(threads, units), room)

    def _is_quicker_turned(self) -> bool:
        """Whether to exchange the factors: the second one, which packing would transpose, is then read in place as the first.

        The first factor and the product are then transposed. The same holds for a column-major matrix times a column: a row is quicker.
        """
        if self.columns == 1 and self.a_jumps[3] == 1 != self.a_jumps[4]:
            return True
        less = self.rows * (self.inner + self.columns)
        return self.b_jumps[3] == 1 != self.b_jumps[4] and 2 * less < self.inner * self.columns

    def _turned(self) -> Product:
        """The transposed factors in the other order."""
        *a_stack, a_row, a_column = self.a_jumps
        *b_stack, b_row, b_column = self.b_jumps
        a_jumps, b_jumps = (*b_stack, b_column, b_row), (*a_stack, a_column, a_row)
        return Product(
            self.b, self.a, a_jumps, b_jumps, self.stack, self.columns, self.inner, self.rows, self.threads, True
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """How a product is done.

    Attributes:
        terms: the kernel's arguments after the vectors.
        units: of work, for `threads`. room: the number of elements that each of them packs.
        is_turned: whether the kernel takes the second factor as its first.
    """

    terms: tuple[tuple[int, ...], ...]
    units: int
    threads: int
    room: int
    is_turned: bool = False


def product_of(
    node: Node, recorder: Recorder, a: Array, b: Array, threads: int, smallest: int = SMALLEST
) -> Product | None:
    """The product that a node does of these arrays; None where BLAS, by way of the reference, must do it.

    `smallest`: multiply-adds of one product above which it is done here.
    """
    flip_a, flip_b = (bool(node.attrs[name]) for name in OPS[node.type])
    a, b = (a.swapaxes(-1, -2) if flip_a else a), (b.swapaxes(-1, -2) if flip_b else b)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        return None
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if not smallest < rows * inner * columns <= LARGEST:
        return None
    stack = a.shape[:-2]
    if stack != b.shape[:-2]:
        try:
            stack = np.broadcast_shapes(stack, b.shape[:-2])
        except ValueError:
            return None
        a, b = np.broadcast_to(a, stack + a.shape[-2:]), np.broadcast_to(b, stack + b.shape[-2:])
    if len(stack) > 3:
        a, b = (_as_stack(recorder, x) for x in (a, b))
    (a, a_jumps), (b, b_jumps) = (as_vector(x if is_vector(x) else recorder.ordered(x)) for x in (a, b))
    return Product(a, b, a_jumps, b_jumps, stack, rows, inner, columns, threads)


def _as_stack(recorder: Recorder, x: Array) -> Array:
    """A stack of matrices with one axis before the last two."""
    made = x.reshape(-1, *x.shape[-2:])
    return made if np.may_share_memory(made, x) else recorder.ordered(x).reshape(made.shape)


def is_vector(x: Array) -> bool:
    """Whether `as_vector` takes it as it is."""
    if x.flags.c_contiguous:
        return True
    last = x.itemsize in x.strides[-2:]
    return last and x.ndim <= 5 and not any(s < 0 or s % x.itemsize for s in x.strides)


def as_vector(x: Array) -> tuple[Array, tuple[int, ...]]:
    """The memory of a stack of matrices (`is_vector`) as a vector, and how far it is to the next along each of five axes."""
    jumps = [s // x.itemsize for s in x.strides]
    if jumps[-1] != 1 and jumps[-2] != 1:  # axes of one element, whose strides do not matter
        jumps[-1] = 1
    span = 1 + sum((n - 1) * j for n, j in zip(x.shape, jumps, strict=True))
    flat = x.reshape(-1) if x.flags.c_contiguous else as_strided(x, (span,), (x.itemsize,))
    return flat, (*(0,) * (5 - x.ndim), *jumps)


def _row_unit(
    columns: int, matrices: int, size: int, threads: int, is_turned: bool
) -> tuple[tuple[int, int, int, int], int, int]:
    """`_unit` of a single row's product, which packs nothing: a part for each thread."""
    from .microkernel import MR, NR  # loads numba

    lanes = NR["float32"] * 4 // size
    parts = 1 if matrices >= threads else threads
    wide = min(_ROW_WIDEST // size, -(-columns // parts))
    wide = -(-wide // lanes)
    return (MR, wide, 1, int(is_turned)), matrices * -(-columns // (wide * lanes)), 2 * MR * lanes


@lru_cache(maxsize=1024)
def _unit(
    rows: int, inner: int, columns: int, matrices: int, size: int, direct: bool, is_turned: bool
) -> tuple[tuple[int, int, int, int], int, int]:
    """(rows and panels of a unit of work, steps at a time, whether the factors are exchanged); units; elements that a thread packs."""
    from .gemm_source import INNER, LONG  # loads numba
    from .microkernel import MR, NR  # which only load with Numba

    lanes = NR["float32"] * 4 // size
    down = -(-rows // ((_TALLEST if direct else _TALLEST_PACKED) * MR))
    high = -(-rows // (down * MR)) * MR
    wanted = min(_MOST, max(_LEAST, matrices * rows * inner * columns // _UNITS))
    wide = max(1, min(_WIDEST, -(-columns // lanes), round(wanted / (high * max(1, inner) * lanes))))
    across = -(-columns // (wide * lanes))
    times = max(1, -(-inner // (LONG if is_turned else INNER)))
    steps = max(1, -(-inner // times))
    room = steps * wide * lanes + (not direct) * steps * high + MR * lanes + is_turned * high * wide * lanes
    return (high, wide, steps, int(is_turned)), matrices * down * across, -(-room // lanes) * lanes
