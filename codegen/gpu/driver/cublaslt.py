"""Matrix products by cuBLASLt, which compete with the templates' when candidates are measured.

NVIDIA's library has kernels that are written for each GPU; for many sizes they are faster than ours, above all for exact products of
float32. It is called through the bindings of nvmath-python (`nvmath.bindings.cublasLt`), one Python function per function of the
library. Where nvmath-python or the library is missing, only the templates are measured, and a line in the log says so.

The library thinks in columns: a matrix of ours with r rows and c columns is one of its own with c rows and r columns. So what it is
asked for is the transposed product, outᵀ = bᵀ aᵀ: the same numbers in the same places, with the operands swapped.

What it may do is narrower than what it could. Sums are float32 or wider: a split sum of halves is not put together in halves. Of its
work behind a product only the bias is used: it does not say what its rectifier makes of NaN, and its GELU is an approximation.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ....graph.core.dtypes import FLOAT8, DType, float32, float64
from .device import Device
from .launch import NotSuitableError
from .optional import OptionalBindings

logger = logging.getLogger(__name__)

WORKSPACE = 32 << 20  # bytes of workspace for its kernels: NVIDIA's recommendation for an H100
ALGORITHMS = 3  # most candidates for a product: the library's own estimate of which is the fastest is often wrong
ALIGNED = 16  # bytes: all that is promised of addresses; the library would count on 256
# cudaDataType_t
_REAL = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 14,
    "float8_e4m3fn": 28,
    "float8_e5m2": 29,
}
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_TF32 = 68, 70, 77  # cublasComputeType_t
_TRANSPOSED = 1  # cublasOperation_t
_TRANS_A, _TRANS_B, _EPILOGUE, _BIAS = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
_ADD_BIAS = 4  # cublasLtEpilogue_t
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # cublasLtMatrixLayoutAttribute_t
_MOST_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t
_IN_PLACE, _IN_COMPUTED_TYPE = 1, 2  # cublasLtReductionScheme_t: where the parts of a split sum are put together

bindings = OptionalBindings("cuBLASLt", "nvmath.bindings.cublasLt", probe="get_version")
use = bindings.use


@dataclass(frozen=True, slots=True)
class Product:
    """A product for the library: out = a @ b.

    Attributes:
        types: of a and b: one floating-point type, or two of float8.
        result: type of the result: the operands', or float32; of float8 also a half.
        sizes: m, n, k, and how many matrices the stacks have.
        transposed: whether an operand lies transposed in memory.
        steps: elements from one matrix of a stack to the next, of each operand; 0: all use the first.
        tf32: products of float32 may be made from 10 bits of each factor's fraction.
        bias: a vector of n numbers of the result's type is added to each row, before the result is rounded.
    """

    types: tuple[DType, DType]
    result: DType
    sizes: tuple[int, int, int, int]
    transposed: tuple[bool, bool] = (False, False)
    steps: tuple[int, int] = (0, 0)
    tf32: bool = False
    bias: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the library has products of these types."""
        a, b = self.types
        if a in FLOAT8 and b in FLOAT8:
            return self.result.size in (2, 4)
        return a is b and a.name in _REAL and (self.result is a or (self.result is float32 and a.size == 2))


class _Library:
    """The library on one device: its handle, and memory for its kernels."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.calls = bindings()
        self.version = int(self.calls.get_version())
        with device.entered():
            self.handle = int(self.calls.create())
            self.workspace, _ = device.pool.allocate(WORKSPACE, "cuBLASLt")


def _library(device: Device) -> _Library | None:
    """The library on a device, found once; None where it cannot be used."""
    if "cublaslt" not in device.loaded:
        made = None
        if bindings():
            try:
                made = _Library(device)
            except Exception as e:
                # The library's own errors have no common class but this one; a memory limit may also be in its way.
                logger.info("cuBLASLt is not used on %s: %s", device, e)
        device.loaded["cublaslt"] = made
    found: _Library | None = device.loaded["cublaslt"]
    return found


def is_there(device: Device) -> bool:
    """Whether the library can be used on a device."""
    return _library(device) is not None


class _Described:
    """A product in the library's own words: what is computed, and how the matrices lie."""

    def __init__(self, library: _Library, product: Product) -> None:
        self.library, self.product = library, product
        lt = library.calls
        m, n, k, batch = product.sizes
        a, b = product.types
        scale = float64 if a is float64 else float32
        self.factors = np.array([1, 0], scale.np)  # alpha of the product, and beta of the result's old values
        made: list[Callable[[], Any]] = []
        self._finalizer = weakref.finalize(self, _destroy, made)

        def own(handle: int, destroy: Callable[[int], Any]) -> int:
            made.append(partial(destroy, handle))
            return handle

        compute = _COMPUTE_64F if a is float64 else _COMPUTE_TF32 if product.tf32 and a is float32 else _COMPUTE_32F
        self.operation = own(int(lt.matmul_desc_create(compute, _REAL[scale.name])), lt.matmul_desc_destroy)
        for which, flag in ((_TRANS_A, product.transposed[1]), (_TRANS_B, product.transposed[0])):  # its a is our b
            if flag:
                _set(lt.matmul_desc_set_attribute, self.operation, which, ctypes.c_int32(_TRANSPOSED))
        if product.bias:
            _set(lt.matmul_desc_set_attribute, self.operation, _EPILOGUE, ctypes.c_uint32(_ADD_BIAS))
            self.set_bias(ALIGNED)  # the search for algorithms uses only its alignment
        shapes = ((k, m) if product.transposed[0] else (m, k), (n, k) if product.transposed[1] else (k, n), (m, n))
        self.layouts = []
        for (rows, columns), dtype, step in zip(shapes, (a, b, product.result), (*product.steps, m * n), strict=True):
            layout = own(
                int(lt.matrix_layout_create(_REAL[dtype.name], columns, rows, columns)), lt.matrix_layout_destroy
            )
            if batch > 1:
                _set(lt.matrix_layout_set_attribute, layout, _BATCH_COUNT, ctypes.c_int32(batch))
                _set(lt.matrix_layout_set_attribute, layout, _BATCH_STRIDE, ctypes.c_int64(step))
            self.layouts.append(layout)

    def set_bias(self, address: int) -> None:
        """Set the address of the bias."""
        set_attribute = self.library.calls.matmul_desc_set_attribute
        _set(set_attribute, self.operation, _BIAS, ctypes.c_uint64(address))

    def algorithms(self) -> Any:
        """The algorithms that the library holds to be the best, best first, as its results tell them."""
        lt = self.library.calls
        a, b, out = self.layouts
        preference = int(lt.matmul_preference_create())
        try:
            set_preference = lt.matmul_preference_set_attribute
            _set(set_preference, preference, _MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))
            exact = _IN_COMPUTED_TYPE | (_IN_PLACE if self.product.result.size >= 4 else 0)
            _set(set_preference, preference, _REDUCTIONS, ctypes.c_uint32(exact))
            for which in _ALIGNMENTS:
                _set(set_preference, preference, which, ctypes.c_uint32(ALIGNED))
            found, count = np.zeros(ALGORITHMS, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
            lt.matmul_algo_get_heuristic(
                self.library.handle, self.operation, b, a, out, out, preference, ALGORITHMS, found.ctypes.data, count.ctypes.data
            )  # fmt: skip
        finally:
            lt.matmul_preference_destroy(preference)
        return [r for r in found[: int(count[0])] if not r["state"] and r["workspace_size"] <= WORKSPACE]


class LibraryProduct:
    """A product by one algorithm: a candidate, called with the addresses of a, b, the bias if there is one, and the result.

    Attributes:
        name: what it is, where measurements are kept.
    """

    def __init__(self, described: _Described, algorithm: Any) -> None:
        self._described = described
        self._algorithm = np.array(algorithm["algo"])  # of its own, so that its address stays
        self._library = described.library
        p = described.product
        types = " ".join(t.name for t in (*p.types, p.result))
        extras = " tf32" * (p.tf32 and p.types[0] is float32) + " bias" * p.bias
        number = hashlib.sha256(self._algorithm.tobytes()).hexdigest()[:12]
        self.name = f"cublaslt {self._library.version} {types} {p.sizes} {p.transposed} {p.steps}{extras} {number}"

    def __call__(self, addresses: Sequence[int]) -> None:
        """Queue a run on the device's compute stream. NotSuitableError: the library refuses it."""
        described, library = self._described, self._library
        if described.product.bias:
            a, b, bias, out = addresses
            described.set_bias(bias)
        else:
            a, b, out = addresses
        of_a, of_b, of_out = described.layouts
        one = described.factors.ctypes.data
        try:
            library.calls.matmul(
                library.handle, described.operation, one, b, of_b, a, of_a, one + described.factors.itemsize, out, of_out, out, of_out,
                self._algorithm.ctypes.data, library.workspace.pointer, WORKSPACE, int(library.device.compute.handle),
            )  # fmt: skip
        except Exception as e:  # of the library, whose errors have no common class
            raise NotSuitableError(f"{self.name}: {e}") from e


def library_products(device: Device, product: Product) -> list[LibraryProduct]:
    """The library's candidates for a product, likely ones first; none where the library is missing or has nothing for it."""
    library = _library(device) if product.is_known else None
    if library is None:
        return []
    try:
        with device.entered():
            described = _Described(library, product)
            return [LibraryProduct(described, found) for found in described.algorithms()]
    except Exception as e:  # of the library: it has no class of errors that says "not this product"
        logger.info("no product by cuBLASLt for %s: %s", product, e)
        return []


def _set(function: Callable[..., Any], handle: int, which: int, value: Any) -> None:
    function(handle, which, ctypes.addressof(value), ctypes.sizeof(value))


def _destroy(made: list[Callable[[], Any]]) -> None:
    for destroy in reversed(made):
        destroy()
