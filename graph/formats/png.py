"""A writer of PNG files."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from ..core.dtypes import Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""The first bytes of every PNG file."""


COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
"""Number of channels -> PNG's colour type: grey, grey with alpha, RGB, RGBA."""


def png_of(image: Array, level: int = -1) -> bytes:
    """Encode an image as a PNG file.

    Args:
        image: uint8 or uint16 of shape `[height, width, channels]`. 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGBA) channels.
        level: compression level of zlib, from 0 (fast) to 9 (small). -1 is zlib's default.
    """
    height, width, channels = image.shape
    size = image.dtype.itemsize
    rows = np.ascontiguousarray(image.astype(image.dtype.newbyteorder(">"))).reshape(height, -1).view(np.uint8)
    left, above = np.zeros_like(rows), np.zeros_like(rows)
    left[:, channels * size :] = rows[:, : -channels * size]
    above[1:] = rows[:-1]
    ways = np.stack([rows, rows - left, rows - above])
    # libpng's heuristic: the filter with the smallest sum of absolute values compresses best.
    best = np.abs(ways.view(np.int8).astype(np.int32)).sum(2).argmin(0)
    stored = np.concatenate([best.astype(np.uint8)[:, None], ways[best, np.arange(height)]], 1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8 * size, COLOURS[channels], 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(stored.tobytes(), level)), (b"IEND", b"")
    return SIGNATURE + b"".join(chunk(*part) for part in parts)
