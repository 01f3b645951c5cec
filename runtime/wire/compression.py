"""Lossless compression of tensors for slow networks.

zlib compresses raw numbers badly, since similar bytes are four or eight bytes apart. So the bytes are first sorted by their position in
the element: all first bytes, then all second ones (the shuffle filter of HDF5 and Blosc). Exponents and high bytes are then adjacent.
A sample from the middle is tried first. Noise, such as the mantissas of trained weights, is sent uncompressed.

Received data is not trusted: no more is unpacked than the announced size of the tensor, and than `MOST_BYTES` in one message, which
also bounds the time of the I/O thread.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np

NAME: Final = "zlib"  # its name in a message
LEAST_BYTES: Final = 64 << 10  # smaller tensors are not compressed
MOST_BYTES: Final = 256 << 20  # unpacked bytes per message
_LEVEL: Final = 1  # higher levels take several times as long, for a few per cent less
_SAMPLE: Final = 64 << 10
_WORTH: Final = 3 / 4  # largest accepted ratio: random numbers reach 6 / 7, and take longest

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def compress(array: np.ndarray[Any, Any], room: int = MOST_BYTES) -> bytes | None:
    """The compressed bytes of a tensor; None: it gains too little, is too small, or has more than `room` bytes.

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
    """The uncompressed bytes of a tensor of `size` bytes with elements of `width` bytes.

    Raises:
        ValueError: the data is not compressed from that many bytes. No more than that are unpacked to check it.
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
