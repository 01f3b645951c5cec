"""Tensors as bytes and back: element types, descriptions, and the checks of received tensors.

A tensor of numbers is its elements in C order, little-endian. A tensor of strings is one uint32 length per element, then all bytes.
"""

from __future__ import annotations

import math
import struct
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np

from ...graph.core import dtypes
from ...graph.core.shape import VALUE_RANK
from .schema import WireError

#: A frame of this many bytes or more is borrowed from its array, not copied. Copying 64 KiB costs about as much as
#: the bookkeeping of a borrowed buffer (8 µs). The sender must not change a larger array
#: afterwards.
BORROW_BYTES = 64 * 1024

SHARE_BYTES: Final = 64 << 10
"""Tensors of this size or more are shared. Copying a smaller one is faster than finding or mapping a block."""

MAX_DIM = 1 << 40

HERE: Final = "here"
LENT: Final = "lent"
FRAME: Final = "frame"
PLACE: Final = struct.Struct("<5q")  # the reference of a lent tensor

Frame: TypeAlias = bytes | memoryview
Bytes: TypeAlias = "Frame | np.ndarray[Any, np.dtype[np.uint8]]"
"""The bytes of a tensor: a frame, or shared memory."""
Tensor: TypeAlias = np.ndarray[Any, Any] | np.generic

# The element types are those of `graph.dtypes`, under the same names.
_NP_OF = {t.name: t.np for t in dtypes.ALL if t.np.kind != "O"}
NAME_OF = {np_dtype: name for name, np_dtype in _NP_OF.items()}
_STRING = dtypes.string.name
_BOOL = np.dtype(np.bool_)
_LENGTH = np.dtype("<u4")

Spec: TypeAlias = tuple[str, tuple[int, ...], str]
"""A tensor's description: element type, shape, and the place of its bytes (`HERE`, `LENT` or `FRAME`)."""
_NAMES: Any = Literal[(_STRING, *_NP_OF)]
_SHAPE: Any = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_DIM)], ...], msgspec.Meta(max_length=VALUE_RANK)]
SPEC: Any = tuple[_NAMES, _SHAPE, Literal["here", "lent", "frame"]]
"""The same for msgspec."""
Layout: TypeAlias = tuple[str, int, "np.dtype[Any] | None", tuple[int, ...]]
"""Place of a tensor's bytes, their number, the element type, the shape.
For strings: no element type, and the number of elements instead of bytes."""


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


def layout_of(name: str, shape: tuple[int, ...], place: str) -> Layout:
    dtype = _NP_OF.get(name)
    return place, math.prod(shape) * (1 if dtype is None else dtype.itemsize), dtype, shape


def unpack_tensor(layout: Layout, data: Bytes, index: int) -> Tensor:
    """One read-only array over `data`, which must have exactly its bytes."""
    _, size, dtype, shape = layout
    needed = size if dtype is not None else strings_size(size, data, 0, index)
    if needed != len(data):
        raise WireError(f"tensor {index}: {dtype or _STRING}{list(shape)} needs {needed} bytes, {len(data)} came")
    try:
        if dtype is None:
            return _unpack_strings(shape, size, data)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data)
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise WireError(f"tensor {index}: {dtype or _STRING}{list(shape)} cannot be made: {error}") from None
    # Operations disagree on whether a bool byte other than 0 and 1 is true.
    if dtype is _BOOL and size and np.ndarray(size, np.uint8, data).max() > 1:
        raise WireError(f"tensor {index}: a bool is neither 0 nor 1")
    if type(data) is not bytes:  # `bytes` are immutable, and aligned by Python
        if not array.flags.aligned:  # small frames may start at any byte of the receive buffer
            array = array.copy()
        array.flags.writeable = False
    return array


def strings_size(count: int, data: Bytes, at: int, index: int) -> int:
    """The bytes of that many strings at `at`, lengths included. WireError: their lengths are incomplete."""
    start, there = count * _LENGTH.itemsize, len(data) - at
    if start > there:
        raise WireError(f"tensor {index}: {count} strings need {start} bytes for lengths, its frame has {there}")
    return start + int(np.ndarray(count, _LENGTH, data, at).sum(dtype=np.uint64))


def _unpack_strings(shape: tuple[int, ...], count: int, data: Bytes) -> Tensor:
    flat, start = np.empty(count, object), count * _LENGTH.itemsize
    for i, length in enumerate(np.ndarray(count, _LENGTH, data).tolist()):
        flat[i] = bytes(data[start : start + length])
        start += length
    array = flat.reshape(shape)
    array.setflags(write=False)
    return array
