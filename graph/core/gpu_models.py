"""Models of GPUs: published figures, for code generation and for predicted times.

By the roofline model (Williams, Waterman and Patterson, 2009), the least time of a kernel is the longer of the times for moving its bytes
and for computing its operations. No figure here is measured. The limits of a multiprocessor are from the CUDA C++ Programming Guide,
"Compute Capabilities". The speeds are from the data sheets, without sparsity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from .graph import Node
from .opdef import Cost

MATRIX_OPS = frozenset({
    "MatMul", "BatchMatMulV2", "Attention", "AttentionWithSums", "AttentionGrad", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter",
})  # fmt: skip
"""Ops that multiply matrices. Matrix instructions compute them, except for exact products of float32."""


class Work(IntEnum):
    """Kinds of arithmetic with different speeds: matrix products of each type, and elementwise operations."""

    FLOAT8 = 0
    FLOAT16 = 1
    TF32 = 2
    FLOAT32 = 3
    FLOAT64 = 4
    ELEMENTWISE = 5
    ELEMENTWISE_64 = 6


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU by its maker's figures.

    Attributes:
        name: the product.
        architecture: the compute capability times ten.
        multiprocessors: the number of multiprocessors.
        block_shared_bytes: the largest shared memory that a block may request, in bytes.
        shared_bytes: the shared memory of a multiprocessor, in bytes. Each block uses `BLOCK_RESERVED` more than it requests.
        warps: the largest number of warps that a multiprocessor runs at a time.
        blocks: the largest number of blocks that a multiprocessor runs at a time.
        bytes_per_second: the memory bandwidth.
        rates: operations per second of each kind of `Work`.
    """

    name: str
    architecture: int
    multiprocessors: int
    block_shared_bytes: int
    shared_bytes: int
    warps: int
    blocks: int
    bytes_per_second: float
    rates: tuple[float, ...]

    def with_speeds(self, flops: float | None, bytes_per_second: float | None) -> GpuModel:
        """The model with the described or measured speeds of a device. None means the published speed.

        `flops` is the rate of float32 products, in operations per second. The other rates are scaled in proportion.
        """
        if not flops and not bytes_per_second:
            return self
        share = flops / self.rates[Work.FLOAT32] if flops else 1.0
        rates = tuple(rate * share for rate in self.rates)
        return replace(self, rates=rates, bytes_per_second=bytes_per_second or self.bytes_per_second)

    def seconds(
        self, nodes: Iterable[Node], moved: float, cost_of: Callable[[Node], Cost], tf32: bool = False
    ) -> float:
        """The least time in seconds of a kernel that computes these nodes and moves `moved` bytes. `tf32`: see `work_of`."""
        computed = sum(cost_of(node).flops / self.rates[work_of(node, tf32)] for node in nodes)
        return max(moved / self.bytes_per_second, computed)


def _rates(
    float8: float, float16: float, tf32: float, float32: float, float64: float, vector64: float
) -> tuple[float, ...]:
    """Rates by `Work`, from TFLOP/s. Data sheets count a multiply-add as two operations. Elementwise work has one per instruction."""
    return tuple(1e12 * rate for rate in (float8, float16, tf32, float32, float64, float32 / 2, vector64 / 2))


_KIB = 1 << 10
# An A100 has no float8 instructions, and multiplies float8 as float16.
_A100 = GpuModel("A100", 80, 108, 163 * _KIB, 164 * _KIB, 64, 32, 2.039e12, _rates(312, 312, 156, 19.5, 19.5, 9.7))
_H100 = GpuModel("H100", 90, 132, 227 * _KIB, 228 * _KIB, 64, 32, 3.35e12, _rates(1979, 989, 495, 67, 67, 34))
_B200 = GpuModel("B200", 100, 148, 227 * _KIB, 228 * _KIB, 64, 32, 8e12, _rates(4500, 2250, 1100, 75, 37, 37))

GPU_MODELS = {m.name: m for m in (_A100, _H100, replace(_H100, name="H200", bytes_per_second=4.8e12), _B200)}
"""Product -> its model, in the SXM form: the A100 with 80 GB, the B200 on an HGX board."""

DEFAULT_GPU = _H100
"""The model for GPUs of unknown products."""

GPUS = {m.architecture: m for m in (_A100, _H100, _B200)}
"""Architecture -> the first product of it, for which kernels are compiled."""

REGISTERS, SCHEDULERS, REGISTER_UNIT = 65536, 4, 8
"""Of a multiprocessor: the number of registers, the number of schedulers that share them, and the unit in which threads get registers."""

BLOCK_RESERVED = 1 << 10
"""Bytes of shared memory that the system reserves per block."""

SMALLEST_BLOCK_SHARED_BYTES = 99 << 10
"""Bytes of shared memory that a block may have on every GPU of compute capability 8.0 or more."""


def model_named(product: str, architecture: int) -> GpuModel:
    """The model of a product by its full name (`NVIDIA H100 80GB HBM3`). An unknown product has that of the newest known architecture.

    >>> model_named("NVIDIA H200", 90).name, model_named("NVIDIA A100-SXM4-80GB", 80).name, model_named("NVIDIA L4", 89).name
    ('H200', 'A100', 'A100')
    """
    named = next((m for m in GPU_MODELS.values() if m.name in product and m.architecture == architecture), None)
    return named or max(
        (m for m in GPUS.values() if m.architecture <= architecture), key=lambda m: m.architecture, default=_A100
    )


def work_of(node: Node, tf32: bool = False) -> Work:
    """The kind of a node's arithmetic. `tf32` tells whether float32 products may round their factors to 10 bits of mantissa."""
    given = node.outputs or node.inputs
    dtype = given[0].dtype.base if given else None
    if node.type not in MATRIX_OPS:
        return Work.ELEMENTWISE_64 if dtype is not None and dtype.is_floating and dtype.size == 8 else Work.ELEMENTWISE
    if all(t.op.type == "Cast" and t.op.inputs[0].dtype.base.size == 1 for t in node.inputs[:2]):
        return Work.FLOAT8
    size = 4 if dtype is None else dtype.size
    return {1: Work.FLOAT8, 2: Work.FLOAT16, 8: Work.FLOAT64}.get(size, Work.TF32 if tf32 else Work.FLOAT32)
