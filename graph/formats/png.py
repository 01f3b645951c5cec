"""PNG files, written without a library."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from ..core.dtypes import Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""What every file begins with."""


COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
"""The type of colour, by channels: grey, grey and alpha, RGB, RGBA."""


def png_of(image: Array, level: int = -1) -> bytes:
    """A picture as a file.

    Args:
        image: uint8 or uint16, `[height, width, channels]` with 1 (grey), 2 (with alpha), 3 (RGB) or 4 (RGBA) channels.
        level: from 0, the quickest, to 9, the smallest; -1: between.
    """
    height, width, channels = image.shape
    size = image.dtype.itemsize
    rows = np.ascontiguousarray(image.astype(image.dtype.newbyteorder(">"))).reshape(height, -1).view(np.uint8)
    left, above = np.zeros_like(rows), np.zeros_like(rows)
    left[:, channels * size :] = rows[:, : -channels * size]
    above[1:] = rows[:-1]
    ways = np.stack([rows, rows - left, rows - above])
    # libpng's guess: the smallest numbers compress best
    best = np.abs(ways.view(np.int8).astype(np.int32)).sum(2).argmin(0)
    stored = np.concatenate([best.astype(np.uint8)[:, None], ways[best, np.arange(height)]], 1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8 * size, COLOURS[channels], 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(stored.tobytes(), level)), (b"IEND", b"")
    return SIGNATURE + b"".join(chunk(*part) for part in parts)
