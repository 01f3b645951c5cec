"""PNG files of 8 or 16 bits: an encoder, and a decoder for 16 bits in several channels (which Pillow reduces to 8).

A row is stored as differences from its left or upper neighbours, by one of five filters: http://www.w3.org/TR/png, chapter 9.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from ...core.dtypes import Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOURS = {
    1: 0,
    2: 4,
    3: 2,
    4: 6,
}  # the type of colour, by how many channels there are: grey, grey and alpha, RGB, RGBA
_CHANNELS = {colour: channels for channels, colour in _COLOURS.items()}


def encode(image: Array, level: int = -1) -> bytes:
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
    best = (
        np.abs(ways.view(np.int8).astype(np.int32)).sum(2).argmin(0)
    )  # libpng's guess: the smallest numbers compress best
    stored = np.concatenate([best.astype(np.uint8)[:, None], ways[best, np.arange(height)]], 1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8 * size, _COLOURS[channels], 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(stored.tobytes(), level)), (b"IEND", b"")
    return SIGNATURE + b"".join(chunk(*part) for part in parts)


def deep(contents: bytes) -> bool:
    """Whether it is a file of 16 bits, of several channels."""
    return contents[:8] == SIGNATURE and len(contents) > 25 and contents[24] == 16 and contents[25] in (2, 4, 6)


def _chunks(contents: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at + 8 <= len(contents):
        (length,) = struct.unpack_from(">I", contents, at)
        yield contents[at + 4 : at + 8], contents[at + 8 : at + 8 + length]
        at += length + 12


def decode_deep(contents: bytes) -> Array:
    """The picture in a file of 16 bits: uint16 `[height, width, channels]`.

    Raises:
        ValueError: it is damaged, or interlaced.
    """
    parts = list(_chunks(contents))
    width, height, _, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", parts[0][1])
    if interlaced:
        raise ValueError("interlaced PNG files of 16 bits cannot be read")
    channels = _CHANNELS[colour]
    step = 2 * channels
    try:
        data = zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT"))
        rows = np.frombuffer(data, np.uint8).reshape(height, 1 + step * width)
    except (zlib.error, ValueError) as e:
        raise ValueError(f"the PNG file is damaged: {e}") from None
    out = np.zeros((height + 1, width + 1, step), np.int64)  # with a row and a pixel of zeros in front
    for y, row in enumerate(rows, 1):
        _restore(int(row[0]), row[1:].reshape(width, step).astype(np.int64), out[y], out[y - 1])
    pixels = out[1:, 1:].astype(np.uint8).tobytes()
    return np.frombuffer(pixels, ">u2").reshape(height, width, channels).astype(np.uint16)


def _restore(way: int, stored: Array, row: Array, above: Array) -> None:
    """Unfilter a row: compute its bytes from the stored ones. A pixel of zeros precedes it."""
    if way == 1:
        np.cumsum(stored, 0, out=row[1:])
        row[1:] &= 255
    elif way == 0:
        row[1:] = stored & 255
    elif way == 2:
        row[1:] = (stored + above[1:]) & 255
    elif way in (3, 4):
        for x, pixel in enumerate(stored, 1):
            left, up, corner = row[x - 1], above[x], above[x - 1]
            if way == 3:
                near = (left + up) // 2
            else:  # Paeth's: the one that is nearest to left + up - corner
                to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
                near = np.where(
                    (to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner)
                )
            row[x] = (pixel + near) & 255
    else:
        raise ValueError(f"the PNG file is damaged: there is no filter {way}")
