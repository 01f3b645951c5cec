"""Tensors made smaller for their way over a network, without loss.

zlib finds little in raw numbers, whose bytes look alike only every four or eight. So the bytes are sorted first by their place in an
element, all first bytes, then all second ones, as HDF5's and Blosc's shuffle does: exponents and high bytes then stand together.
A piece from the middle is tried first; noise, such as the mantissas of trained weights, travels as it is.

What arrives is not trusted: a peer announces how large a tensor is, and no more is ever unpacked than that; nor than `MOST_BYTES` in
one message, which is also what the I/O thread may spend time on.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np

NAME: Final = "zlib"  # how a message says so
LEAST_BYTES: Final = 64 << 10  # a smaller tensor is not worth it
MOST_BYTES: Final = 256 << 20  # in one message, unpacked
_LEVEL: Final = 1  # the higher ones take several times as long, and gain some hundredths
_SAMPLE: Final = 64 << 10
_WORTH: Final = (
    3 / 4
)  # of its size is what a tensor must become, at most: random numbers become 6 / 7, and take longest

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def compress(array: np.ndarray[Any, Any], room: int = MOST_BYTES) -> bytes | None:
    """The bytes of a tensor, compressed; None: that would gain too little, or it is too small, or has more than `room` bytes.

    >>> len(compress(np.zeros(1 << 20, np.float32))) < 20_000
    True
    """
    size, width = array.nbytes, array.dtype.itemsize
    if not LEAST_BYTES <= size <= room:
        return None
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, width)
    start = (len(flat) - _SAMPLE // width) // 2
    sample = flat[start : start + _SAMPLE // width]
    if len(zlib.compress(sample.T.tobytes(), _LEVEL)) > _WORTH * sample.nbytes:
        return None
    packed = zlib.compress(flat.T.tobytes(), _LEVEL)
    return packed if len(packed) <= _WORTH * size else None


def decompress(packed: bytes | memoryview, size: int, width: int) -> Bytes:
    """The bytes of a tensor of `size` bytes, whose elements have `width` bytes each.

    Raises:
        ValueError: it is not what `compress` makes of so many bytes. No more than that many are unpacked to find out.
    """
    if not LEAST_BYTES <= size <= MOST_BYTES or size % width:
        raise ValueError(f"{size} bytes are not compressed")
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(packed, size)
        rest = b"" if reader.eof else reader.decompress(reader.unconsumed_tail, 1)
    except zlib.error as error:
        raise ValueError(f"not compressed with zlib: {error}") from None
    if len(plain) != size or rest or not reader.eof or reader.unused_data:
        raise ValueError(f"compressed data do not unpack to {size} bytes")
    return np.ascontiguousarray(np.frombuffer(plain, np.uint8).reshape(width, -1).T).reshape(-1)
