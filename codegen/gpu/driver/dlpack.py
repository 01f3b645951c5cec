"""DLPack: how array libraries hand each other memory, as C structures in a capsule.

The structures are those of `dlpack.h`, version 0.8, which everybody takes. An exported array is kept alive by a Python object
whose number stands in the structure, until the taker calls the deleter (or the capsule goes without having been taken).
"""

from __future__ import annotations

import ctypes
import itertools
from functools import cache
from typing import Any

import numpy as np

from ....graph.core.dtypes import as_dtype

CPU, CUDA = 1, 2
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}  # kDLInt, kDLUInt, kDLFloat, kDLBool
_NAMED = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}  # kDLBfloat, kDLFloat8_e4m3fn, kDLFloat8_e5m2


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_alive: dict[int, Any] = {}  # number in a structure's context -> what it keeps alive
_numbers = itertools.count(1)


def _let_go(managed: Any) -> None:
    _alive.pop(managed.contents.context, None)


_delete = _Deleter(_let_go)


@cache
def _python() -> Any:
    api = ctypes.pythonapi
    api.PyCapsule_New.restype = ctypes.py_object
    api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return api


_UNUSED, _USED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")  # capsules keep the pointers


def _capsule_gone(address: int) -> None:
    """Free the array of a capsule that no consumer took. The capsule is given by address: it has no references any more."""
    api = ctypes.pythonapi
    valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", api))
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    if valid(address, b"dltensor"):
        _delete(ctypes.cast(pointer(address, b"dltensor"), ctypes.POINTER(_Managed)))


_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_capsule_gone)


def exported(array: Any, pointer: int, dims: tuple[int, ...], dtype: np.dtype[Any], gpu: int) -> Any:
    """A capsule of a contiguous array at an address of a GPU's memory. `array` lives until the taker calls the deleter."""
    name = as_dtype(dtype).name
    code = _NAMED[name] if name in _NAMED else _KINDS[dtype.kind]
    shape = (ctypes.c_int64 * max(len(dims), 1))(*dims)
    number = next(_numbers)
    managed = _Managed(
        _Tensor(
            pointer, _Device(CUDA, gpu), len(dims), _Type(code, 8 * dtype.itemsize, 1),
            ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)), None, 0,
        ),
        number,
        _delete,
    )  # fmt: skip
    _alive[number] = (array, shape, managed)
    return _python().PyCapsule_New(ctypes.addressof(managed), _UNUSED, ctypes.cast(_destructor, ctypes.c_void_p))


class _Keep:
    """An imported array of another library; it is released with its last reference."""

    def __init__(self, managed: Any) -> None:
        self.managed = managed

    def __del__(self) -> None:
        if self.managed.contents.deleter:
            self.managed.contents.deleter(self.managed)


def imported(capsule: Any) -> tuple[int, tuple[int, ...], tuple[int, ...] | None, np.dtype[Any], Any]:
    """(address, shape, strides in elements or None, type, what keeps it alive) of a capsule, which is used up.

    Raises:
        ValueError: it has been used, or its type is none of ours.
    """
    api = _python()
    if not api.PyCapsule_IsValid(capsule, b"dltensor"):
        raise ValueError("the DLPack capsule was used before, or is of a version that is not known here")
    managed = ctypes.cast(api.PyCapsule_GetPointer(capsule, b"dltensor"), ctypes.POINTER(_Managed))
    api.PyCapsule_SetName(capsule, _USED)
    keep = _Keep(managed)
    t = managed.contents.tensor
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else None
    return (t.data or 0) + t.byte_offset, shape, strides, _dtype(t.dtype.code, t.dtype.bits, t.dtype.lanes), keep


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    if lanes == 1:
        for name, named in _NAMED.items():
            if named == code and as_dtype(name).size * 8 == bits:
                return as_dtype(name).np
        for kind, number in _KINDS.items():
            if number == code and bits in (8, 16, 32, 64):
                return np.dtype("bool" if kind == "b" else f"{kind}{bits // 8}")
    raise ValueError(f"DLPack's type (code {code}, {bits} bits, {lanes} lanes) is none that kernels can have")
