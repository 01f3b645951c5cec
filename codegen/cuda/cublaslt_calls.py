"""cuBLASLt's functions without a package of bindings: for machines that have the library, and nvmath-python not.

The library comes with CUDA, and with PyTorch, JAX and CuPy as the package nvidia-cublas; cuda-pathfinder, on which NVIDIA's bindings of
the driver stand, knows where it lies. A function here has the name, the arguments and the results of the one in
`nvmath.bindings.cublasLt`, so whoever calls does not see the difference. What the arguments mean is told in the library's own
header, cublasLt.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

_ADDRESS, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_MATMUL = [_ADDRESS] * 14 + [_SIZE, _ADDRESS]
_HEURISTIC = [_ADDRESS] * 7 + [_INT, _ADDRESS, _ADDRESS]


class CublasLtError(RuntimeError):
    """The library refused something, in its own words."""


class CublasLt:
    """The library.

    Args:
        path: of libcublasLt.so.

    Raises:
        OSError: it cannot be loaded, or is not that library.
    """

    matmul_heuristic_result_dtype = np.dtype(
        [("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
         ("reserved", "<i4", (4,))]
    )  # fmt: skip

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)

        def function(name: str, *arguments: Any) -> Callable[..., None]:
            try:
                found = library[f"cublasLt{name}"]
            except AttributeError as e:
                raise OSError(f"{path}: {e}") from e
            found.argtypes, found.restype = arguments, _INT

            def call(*values: Any) -> None:
                status = found(*values)
                if status:
                    raise CublasLtError(f"cublasLt{name}: {self._words(status).decode()}")

            return call

        self._words = library.cublasLtGetStatusString
        self._words.argtypes, self._words.restype = [_INT], ctypes.c_char_p
        library.cublasLtGetVersion.restype = _SIZE
        self.get_version: Callable[[], int] = library.cublasLtGetVersion
        self._create = function("Create", _ADDRESS)
        self._desc_create = function("MatmulDescCreate", _ADDRESS, _INT, _INT)
        self._layout_create = function(
            "MatrixLayoutCreate", _ADDRESS, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64
        )
        self._preference_create = function("MatmulPreferenceCreate", _ADDRESS)
        attribute = (_ADDRESS, _INT, _ADDRESS, _SIZE)
        self.matmul_desc_destroy = function("MatmulDescDestroy", _ADDRESS)
        self.matmul_desc_set_attribute = function("MatmulDescSetAttribute", *attribute)
        self.matrix_layout_destroy = function("MatrixLayoutDestroy", _ADDRESS)
        self.matrix_layout_set_attribute = function("MatrixLayoutSetAttribute", *attribute)
        self.matmul_preference_destroy = function("MatmulPreferenceDestroy", _ADDRESS)
        self.matmul_preference_set_attribute = function("MatmulPreferenceSetAttribute", *attribute)
        self.matmul_algo_get_heuristic = function("MatmulAlgoGetHeuristic", *_HEURISTIC)
        self.matmul = function("Matmul", *_MATMUL)

    def create(self) -> int:
        """A handle."""
        return _made(self._create)

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        """What a product computes with."""
        return _made(self._desc_create, compute_type, scale_type)

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        """How a matrix lies in memory."""
        return _made(self._layout_create, type, rows, cols, ld)

    def matmul_preference_create(self) -> int:
        """What an algorithm must keep to."""
        return _made(self._preference_create)


def _made(create: Callable[..., None], *arguments: Any) -> int:
    handle = ctypes.c_void_p()
    create(ctypes.byref(handle), *arguments)
    return int(handle.value or 0)


def found() -> CublasLt:
    """The library that is installed here.

    Raises:
        ImportError: cuda-pathfinder is not installed.
        OSError: the library is not, or cannot be loaded.
    """
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        loaded = load_nvidia_dynamic_lib("cublasLt")
    except (DynamicLibNotFoundError, RuntimeError) as e:
        raise OSError(f"libcublasLt.so is not found: {str(e).splitlines()[0]}") from e
    if loaded.abs_path is None:
        raise OSError("libcublasLt.so is loaded, from an unknown place")
    return CublasLt(loaded.abs_path)
