"""Tensors as bytes and back: element types, descriptions, and the checks of received tensors.

A tensor of numbers is its elements in C order, little-endian. A tensor of strings is one uint32 length per element, then all bytes.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

import numpy as np

from ...graph.core import dtypes
from ...graph.core.shape import VALUE_RANK
from .schema import WireError, short

#: A frame of this many bytes or more is borrowed from its array, not copied. Copying 64 KiB costs about as much as
#: the bookkeeping of a borrowed buffer (8 µs). The sender must not change a larger array
#: afterwards.
BORROW_BYTES = 64 * 1024

SHARE_BYTES: Final = 64 << 10
"""Tensors of this size or more are shared. Copying a smaller one is faster than finding or mapping a block."""

MAX_DIM = 1 << 40

HERE: Final = "here"
LENT: Final = "lent"
_PLACES: Final = {place: place for place in (HERE, LENT, "")}  # interned, so that `is` compares them
PLACE: Final = struct.Struct("<5q")  # the reference of a lent tensor

Frame: TypeAlias = bytes | memoryview
Bytes: TypeAlias = "Frame | np.ndarray[Any, np.dtype[np.uint8]]"
"""The bytes of a tensor: a frame, or shared memory."""
Tensor: TypeAlias = np.ndarray[Any, Any] | np.generic
Layout: TypeAlias = tuple[str, int, "np.dtype[Any] | None", tuple[int, ...]]
"""Place of a tensor's bytes (`HERE`, `LENT`, or empty: in a frame), their number, the element type, the shape.
For strings: no element type, and the number of elements instead of bytes."""

# The element types are those of `graph.dtypes`, under the same names.
_NP_OF = {t.name: t.np for t in dtypes.ALL if t.np.kind != "O"}
NAME_OF = {np_dtype: name for name, np_dtype in _NP_OF.items()}
_STRING = dtypes.string.name
BOOL = np.dtype(np.bool_)
_LENGTH = np.dtype("<u4")
_MAX_BYTES = (1 << 63) - 1


# --- packing ---------------------------------------------------------------------------------------------------------


def pack_tensor(tensor: np.ndarray[Any, Any], index: int) -> tuple[str, Frame]:
    """The element type's name and the bytes of one tensor."""
    dtype = tensor.dtype
    name = NAME_OF.get(dtype)
    if name is None:
        if dtype.kind in "OSUT":
            return _STRING, _pack_strings(tensor, index)
        name = None if dtype.isnative else NAME_OF.get(dtype.newbyteorder("="))
        if name is None:
            raise WireError(f"tensor {index} has element type {dtype}, which cannot travel")
        tensor = tensor.astype(_NP_OF[name])
    if tensor.nbytes < BORROW_BYTES:
        return name, tensor.tobytes()
    # bfloat16 and float8 do not support the buffer protocol; their bytes do.
    return name, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


def _pack_strings(array: np.ndarray[Any, Any], index: int) -> bytes:
    values: list[bytes] = []
    for value in array.ravel().tolist():
        if type(value) is str:
            try:
                value = value.encode()
            except UnicodeEncodeError as error:
                raise WireError(f"tensor {index}: {error}") from None
        if type(value) is not bytes:
            raise WireError(f"tensor {index} holds a {type(value).__name__}; arrays of objects may hold bytes and str")
        values.append(value)
    lengths = [len(value) for value in values]
    if lengths and max(lengths) >= 1 << 32:
        raise WireError(f"tensor {index} holds a string of {max(lengths)} bytes; at most {(1 << 32) - 1} can travel")
    return b"".join([np.array(lengths, _LENGTH).tobytes(), *values])


# --- unpacking -------------------------------------------------------------------------------------------------------


def layout_of(spec: Any, index: int) -> Layout:
    """Check a tensor's description, and return its layout."""
    if type(spec) is not list or not 2 <= len(spec) <= 3 or type(spec[0]) is not str or type(spec[1]) is not list:
        raise WireError(f"tensor {index}: its description is not [dtype, shape]")
    name, shape = spec[0], spec[1]
    where = spec[2] if len(spec) == 3 else ""
    if len(shape) > VALUE_RANK:
        raise WireError(f"tensor {index} has rank {len(shape)}, at most {VALUE_RANK} is allowed")
    count = room = 1
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= MAX_DIM:
            raise WireError(f"tensor {index} has a dimension {short(dim)}")
        count *= dim
        room *= dim or 1
    dtype = _NP_OF.get(name)
    if dtype is None and name != _STRING:
        raise WireError(f"tensor {index} has an unknown element type {short(name)}")
    if type(where) is not str or where not in _PLACES:
        raise WireError(f"tensor {index} lies in an unknown place: {short(where)}")
    if dtype is None and where not in (HERE, ""):
        raise WireError(f"tensor {index} holds strings, which cannot lie there: {short(where)}")
    width = 8 if dtype is None else dtype.itemsize
    if room * width > _MAX_BYTES:  # as NumPy counts, with 1 for a dimension of 0
        raise WireError(f"tensor {index}: {name}{short(shape)} cannot be made: it is too large")
    return _PLACES[where], count if dtype is None else count * width, dtype, tuple(shape)


def unpack_tensor(layout: Layout, data: Bytes, index: int) -> Tensor:
    """One read-only array over `data`, which has exactly its bytes."""
    _, size, dtype, shape = layout
    try:
        if dtype is None:
            return _unpack_strings(shape, size, data, index)
        if size != len(data):
            raise WireError(f"tensor {index}: {dtype}{list(shape)} needs {size} bytes, its frame has {len(data)}")
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data)
        # Operations disagree on whether a bool byte other than 0 and 1 is true.
        if dtype is BOOL and size and np.ndarray(size, np.uint8, data).max() > 1:
            raise WireError(f"tensor {index}: a bool is neither 0 nor 1")
        if type(data) is bytes:  # immutable, and aligned by Python
            return array
        flags = array.flags
        if not flags.aligned:  # small frames may start at any byte of the receive buffer
            array = array.copy()
            flags = array.flags
        flags.writeable = False
        return array
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError(f"tensor {index}: {dtype}{short(shape)} cannot be made: {error}") from None


def strings_size(count: int, data: Bytes, at: int, index: int) -> int:
    """The bytes of that many strings at `at`, lengths included. WireError: their lengths are incomplete."""
    start, there = count * _LENGTH.itemsize, len(data) - at
    if start > there:
        raise WireError(f"tensor {index}: {count} strings need {start} bytes for lengths, its frame has {there}")
    return start + int(np.ndarray(count, _LENGTH, data, at).sum(dtype=np.uint64))


def _unpack_strings(shape: tuple[int, ...], count: int, data: Bytes, index: int) -> Tensor:
    if strings_size(count, data, 0, index) != len(data):
        raise WireError(f"tensor {index}: the lengths of its strings do not add up to its frame")
    flat, start = np.empty(count, object), count * _LENGTH.itemsize
    for i, length in enumerate(np.ndarray(count, _LENGTH, data).tolist()):
        flat[i] = bytes(data[start : start + length])
        start += length
    array = flat.reshape(shape)
    array.setflags(write=False)
    return array
