"""Matrix products of cuBLASLt with separate kernels for prologue and epilogue, as candidates beside the fused template.

The template does all of it as one kernel, and the product never passes through memory. The library's products are faster than the
template's for many sizes, exact ones of float32 above all, which is worth more where a product takes long. So both are candidates,
each measured as a whole. Numbers do not depend on the winner, except for the order of sums: a product in half precision stays
float32 until its epilogue is done.

A bias alone is left to the library, which adds it before it rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...graph.core.dtypes import FLOAT8, DType, float32
from ..fusion.epilogue import Edge, EpilogueKernel
from ..ir.fused_kernel import FusedKernel
from ..ir.loop_nest import LoopNestBuilder, Value
from .context import GpuContext
from .driver.cublaslt import LibraryProduct, Product, is_there, library_products
from .driver.device import Device
from .driver.launch import LoadedRoutine
from .ir import Routine
from .kernels import FusedGpuKernel, hash_of, loaded

Shape = tuple[int, ...]
ALGORITHMS = 2  # of the library's, that are measured with kernels around them
_LABEL = "a product by cuBLASLt, with kernels around it"


class EpilogueLaunch:
    """A prologue or epilogue as a launch of its own.

    Args:
        gpu: the device, and how its kernels run.
        edge: the work.
        tile: shape of the operand, or of the product.
        beside: shapes of the other inputs.
        told: the values that its sizes are computed from.

    Raises:
        ValueError: it is not as fusion assumed.
    """

    def __init__(
        self, gpu: GpuContext, edge: Edge, tile: Shape, beside: Sequence[Shape], told: Sequence[Sequence[int]]
    ) -> None:
        choice = FusedGpuKernel(gpu, edge.kernel).choose(edge.given(tile, beside), told)
        routine = None if choice is None else choice.candidates[0]
        if choice is None or not isinstance(routine, Routine):
            raise ValueError("no kernel for these shapes")
        self.routine = routine
        self.beside = len(beside)
        self.bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in choice.outputs)
        self._device, self._edge = gpu.device, edge
        self._sizes, self._outputs = choice.sizes, len(choice.outputs)
        self._ready: LoadedRoutine | None = None

    def __call__(self, tile: int, beside: Sequence[int], outputs: Sequence[int]) -> None:
        """Queue a run, on arrays at these addresses."""
        if self._ready is None:
            self._ready = loaded(self._device, self.routine, self.beside + 1, self._outputs, self._sizes)
        self._ready([*self._edge.given(tile, beside), *outputs], _LABEL)


class LibraryGemm:
    """A candidate: prologue kernels, a product of the library, an epilogue kernel.

    Called with the addresses of the operands, of what the kernels read beside them (before the first operand, before the second,
    behind), and of the outputs.

    Attributes:
        name: what it is, where measurements are kept.
        routines: what must be compiled for it.
    """

    def __init__(
        self,
        device: Device,
        product: LibraryProduct,
        before: Sequence[EpilogueLaunch | None],
        behind: EpilogueLaunch | None,
        scratch: int,
    ) -> None:
        self._device, self._product = device, product
        self._before, self._behind, self._scratch = before, behind, scratch
        pieces = [p for p in (*before, behind) if p is not None]
        self.routines = [p.routine for p in pieces]
        self.name = " with ".join([product.name, *(hash_of(x.kernel) for r in self.routines for x in r.launches)])

    def __call__(self, addresses: Sequence[int]) -> None:
        """Queue a run on the device's compute stream."""
        pool = self._device.pool
        operands, rest = list(addresses[:2]), list(addresses[2:])
        blocks = []  # until everything is queued
        for i, piece in enumerate(self._before):
            if piece is not None:
                block, _ = pool.allocate(piece.bytes, _LABEL)
                blocks.append(block)
                piece(operands[i], rest[: piece.beside], [block.pointer])
                operands[i] = block.pointer
                del rest[: piece.beside]
        if self._behind is None:
            self._product([*operands, *rest])  # a bias, if there is one, and the result
            return
        block, _ = pool.allocate(self._scratch, _LABEL)
        blocks.append(block)
        self._product([*operands, block.pointer])
        self._behind(block.pointer, rest[: self._behind.beside], rest[self._behind.beside :])


def library_gemms(
    gpu: GpuContext,
    group: EpilogueKernel,
    product: Product,
    operands: Sequence[Shape],
    tile: Shape,
    beside: Sequence[Sequence[Shape]],
    told: Sequence[Sequence[Sequence[int]]],
) -> list[LibraryGemm]:
    """The library's candidates for a fused product; none where the library is missing or has no kernel for it.

    Args:
        gpu: the device, and how its kernels run.
        group: the step.
        product: what the library is asked for, with operands and result in the anchor's type.
        operands: shapes of the operands as they are in memory.
        tile: shape of the product as the kernel behind gets it.
        beside: shapes of what each kernel reads beside its tile: before each operand, and behind.
        told: the values from which each kernel's sizes are computed.

    Raises:
        ValueError: sizes are not as fusion assumed.
    """
    device = gpu.device
    if not is_there(device):
        return []
    before: list[EpilogueLaunch | None] = [None, None]
    (first, second, behind), result = group.edges, product.result
    narrow = [_stored_narrow(edge) for edge in (first, second)]
    if device.target.has_float8 and result.size == 2 and narrow[0] and narrow[1]:
        product = replace(product, types=(narrow[0], narrow[1]))
    else:
        for i, edge in enumerate((first, second)):
            if edge is not None:
                before[i] = EpilogueLaunch(gpu, edge, operands[i], beside[i], told[i])
    out, piece, scratch = [], None, 0
    if behind is not None:
        if _is_bias(behind, result):
            found = library_products(device, replace(product, bias=True))
            out += [LibraryGemm(device, p, before, None, 0) for p in found[:ALGORITHMS]]
        if result.size == 2:
            behind, result = replace(behind, kernel=widened(behind.kernel, behind.tile)), float32
        piece = EpilogueLaunch(gpu, behind, tile, beside[2], told[2])
        scratch = math.prod(tile) * result.size
    found = library_products(device, replace(product, result=result))
    return out + [LibraryGemm(device, p, before, piece, scratch) for p in found[:ALGORITHMS]]


def _stored_narrow(edge: Edge | None) -> DType | None:
    """The type of float8 that an operand is, when all that is done before it is to make it wider."""
    if edge is None or [v.op for v in edge.kernel.loops.values] != ["load", "cast"]:
        return None
    dtype = edge.kernel.loops.values[0].dtype
    return dtype if dtype in FLOAT8 else None


def _is_bias(edge: Edge, dtype: DType) -> bool:
    """Whether all that is done behind a product is to add a vector to its rows, in the product's type."""
    values, work = edge.loops.loops.values, edge.loops
    if [v.op for v in values] != ["load", "load", "add"] or len(work.loops.stores) != 1:
        return False
    rank = max(a for axes in work.axes for a in axes) + 1
    vector = next((v for v in values[:2] if v.data != 0), None)
    if vector is None or work.original(vector.axes) != (rank - 1,):
        return False
    return all(v.dtype is dtype for v in values) and len(edge.kernel.outputs) == 1


def widened(kernel: FusedKernel, position: int) -> FusedKernel:
    """A kernel that takes one of its inputs in float32 instead of half precision; what is stored stays as it was."""

    def write(builder: LoopNestBuilder, v: Value) -> int:
        return builder.add(replace(v, dtype=float32) if v.op == "load" and v.data == position else v)

    return replace(kernel, loops=kernel.loops.rewritten(write))
