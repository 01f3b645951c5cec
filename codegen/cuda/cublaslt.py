"""Matrix products by cuBLASLt, which compete with the templates' when candidates are measured.

NVIDIA's library has kernels that are written for each GPU; for plain products of some sizes they are faster than ours. It is used
through the bindings of nvmath-python (`nvmath.bindings.cublasLt`), one Python function per function of the library. Where the
package or the library is missing there is nothing to compete, and nothing is said but a line in the log.

The library thinks in columns: a matrix of ours with r rows and c columns is one of its own with c rows and r columns. So what it is
asked for is the transposed product, outᵀ = bᵀ aᵀ: the same numbers in the same places, with the operands swapped.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.dtypes import DType
from .device import Device
from .optional import OptionalBindings

logger = logging.getLogger(__name__)

WORKSPACE = 32 << 20  # bytes that its kernels may use beside operands and result: what NVIDIA recommends for an H100
_REAL = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType_t
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_TF32 = 68, 70, 77  # cublasComputeType_t
_TRANSPOSED = 1  # cublasOperation_t
_TRANS_A, _TRANS_B = 3, 4  # cublasLtMatmulDescAttributes_t
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # cublasLtMatrixLayoutAttribute_t
_MOST_WORKSPACE = 1  # cublasLtMatmulPreferenceAttributes_t

bindings = OptionalBindings("cuBLASLt", "nvmath.bindings.cublasLt")
use = bindings.use


class _Library:
    """The library on one device: its handle, and memory for its kernels."""

    def __init__(self, device: Device) -> None:
        self.device = device
        with device.entered():
            self.handle = int(bindings().create())
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


class LibraryProduct:
    """One product of certain sizes: a candidate, called with the addresses of a, b and the result.

    Attributes:
        name: what it is, where measurements are kept.
    """

    def __init__(
        self, library: _Library, dtype: DType, sizes: Sequence[int], transposed: tuple[bool, bool], tf32: bool
    ) -> None:
        m, n, k, batch = sizes
        tf32 = tf32 and dtype.name == "float32"
        self.name = f"cublaslt {dtype.name} {transposed}{' tf32' * tf32}"
        self._library = library
        lt, real = bindings(), _REAL[dtype.name]
        scale = np.float64 if dtype.name == "float64" else np.float32
        self._factors = np.array([1, 0], scale)  # of the product, and of what was in the result's place
        made: list[Callable[[], Any]] = []
        self._finalizer = weakref.finalize(self, _destroy, made)

        def own(handle: int, destroy: Callable[[int], Any]) -> int:
            made.append(partial(destroy, handle))
            return handle

        compute = _COMPUTE_64F if dtype.name == "float64" else _COMPUTE_TF32 if tf32 else _COMPUTE_32F
        self._operation = own(int(lt.matmul_desc_create(compute, _REAL[np.dtype(scale).name])), lt.matmul_desc_destroy)
        for which, flag in ((_TRANS_A, transposed[1]), (_TRANS_B, transposed[0])):  # its a is our b
            if flag:
                _set(lt.matmul_desc_set_attribute, self._operation, which, ctypes.c_int32(_TRANSPOSED))
        shapes = ((k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n), (m, n))
        self._layouts = []
        for rows, columns in shapes:
            layout = own(int(lt.matrix_layout_create(real, columns, rows, columns)), lt.matrix_layout_destroy)
            if batch > 1:
                _set(lt.matrix_layout_set_attribute, layout, _BATCH_COUNT, ctypes.c_int32(batch))
                _set(lt.matrix_layout_set_attribute, layout, _BATCH_STRIDE, ctypes.c_int64(rows * columns))
            self._layouts.append(layout)
        self._algorithm = self._likely(lt)

    def _likely(self, lt: Any) -> Any:
        """The algorithm that the library holds to be the best. ValueError when it has none."""
        a, b, out = self._layouts
        preference = int(lt.matmul_preference_create())
        try:
            limit = ctypes.c_uint64(WORKSPACE)
            _set(lt.matmul_preference_set_attribute, preference, _MOST_WORKSPACE, limit)
            found, count = np.zeros(1, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
            lt.matmul_algo_get_heuristic(
                self._library.handle,
                self._operation,
                b,
                a,
                out,
                out,
                preference,
                1,
                found.ctypes.data,
                count.ctypes.data,
            )
        finally:
            lt.matmul_preference_destroy(preference)
        if not count[0]:
            raise ValueError("cuBLASLt has no algorithm for this product")
        return found  # begins with the algorithm

    def __call__(self, addresses: Sequence[int]) -> None:
        """Queue a run on the device's compute stream."""
        a, b, out = addresses
        of_a, of_b, of_out = self._layouts
        one = self._factors.ctypes.data
        bindings().matmul(
            self._library.handle, self._operation, one, b, of_b, a, of_a, one + self._factors.itemsize, out, of_out, out, of_out,
            self._algorithm.ctypes.data, self._library.workspace.pointer, WORKSPACE, int(self._library.device.compute.handle),
        )  # fmt: skip


def library_products(
    device: Device, dtype: DType, sizes: Sequence[int], transposed: tuple[bool, bool], tf32: bool = False
) -> list[LibraryProduct]:
    """The library's candidates for a product: one, or none where the library is missing or has nothing for it.

    Args:
        device: where it runs.
        dtype: of operands and result.
        sizes: m, n, k, and how many matrices the stacks have.
        transposed: whether an operand lies transposed in memory.
        tf32: products of float32 may be made from 10 bits of each factor's fraction.
    """
    library = _library(device) if dtype.name in _REAL else None
    if library is None:
        return []
    try:
        with device.entered():
            return [LibraryProduct(library, dtype, sizes, transposed, tf32)]
    except Exception as e:  # of the library: it has no class of errors that says "not this product"
        logger.info("no product by cuBLASLt for %s %s: %s", dtype.name, sizes, e)
        return []


def _set(function: Callable[..., Any], handle: int, which: int, value: Any) -> None:
    function(handle, which, ctypes.addressof(value), ctypes.sizeof(value))


def _destroy(made: list[Callable[[], Any]]) -> None:
    for destroy in reversed(made):
        destroy()
