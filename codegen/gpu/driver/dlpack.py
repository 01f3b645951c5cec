"""DLPack, by which array libraries hand each other memory: NumPy's own, with the GPU written into its capsules.

NumPy does not read the elements of an array that it exports or imports. So an array of a GPU is exported as one of the host's at the same
address, whose capsule then gets the GPU's number; an imported capsule takes the way back. NumPy keeps both alive as long as is needed.
Types that NumPy has no letter for pass as unsigned integers of their size.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from ....graph.core.dtypes import as_dtype

CPU, CUDA = 1, 2
_NAMED = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}  # kDLBfloat, kDLFloat8_e4m3fn, kDLFloat8_e5m2
_UNSIGNED = 1  # kDLUInt


class _Head(ctypes.Structure):
    """How a capsule's structure begins (`dlpack.h`)."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("index", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
    )  # fmt: skip


_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def exported(array: Any, pointer: int, dims: tuple[int, ...], dtype: np.dtype[Any], gpu: int) -> Any:
    """A capsule of a contiguous array at an address of a GPU's memory. `array` lives until the taker calls the deleter."""
    code = _NAMED.get(as_dtype(dtype).name)
    letter = dtype.str if code is None else f"<u{dtype.itemsize}"
    told = {"shape": dims, "typestr": letter, "data": (pointer, False), "version": 3}
    capsule = np.asarray(SimpleNamespace(__array_interface__=told, array=array)).__dlpack__()
    head = _Head.from_address(_pointer_in(capsule, b"dltensor"))
    head.kind, head.index = CUDA, gpu
    head.code = head.code if code is None else code
    return capsule


def imported(capsule: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], np.dtype[Any], Any]:
    """(address, shape, strides in elements, type, what keeps it alive) of a capsule, which is used up.

    Raises:
        ValueError: it has been used, or its type is none of ours.
    """
    head = _Head.from_address(_pointer_in(capsule, b"dltensor"))
    named = [as_dtype(n) for n, code in _NAMED.items() if code == head.code and as_dtype(n).size * 8 == head.bits]
    head.kind, head.index = CPU, 0
    head.code = _UNSIGNED if named else head.code
    given = SimpleNamespace(__dlpack__=lambda **options: capsule, __dlpack_device__=lambda: (CPU, 0))
    try:
        array = np.from_dlpack(given)
    except (BufferError, RuntimeError) as e:
        raise ValueError(f"an array that kernels cannot have: {e}") from e
    dtype = named[0].np if named else array.dtype
    return array.ctypes.data, array.shape, tuple(s // dtype.itemsize for s in array.strides), dtype, array
