"""CRC-32C (Castagnoli, RFC 3720), which guards what TensorFlow writes: records, tables, tensors. Compiled when it is first used."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

POLYNOMIAL = 0x82F63B78  # reflected
MASK = 0xA282EAD8  # TensorFlow's: a CRC of bytes that hold CRCs would say little


def _tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Eight tables, so that eight bytes are taken at once ("slicing by eight", Kounavis and Berry, 2005)."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0, tables[k - 1] & 0xFF]
    return tables


@functools.cache
def _compiled() -> Callable[[Any], int]:
    import numba

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator,unused-ignore]
    def crc(data: Any, tables: Any) -> Any:
        value = np.uint32(0xFFFFFFFF)
        whole = len(data) // 8 * 8
        for i in range(0, whole, 8):
            low = value ^ (
                np.uint32(data[i])
                | np.uint32(data[i + 1]) << np.uint32(8)
                | np.uint32(data[i + 2]) << np.uint32(16)
                | np.uint32(data[i + 3]) << np.uint32(24)
            )
            value = (
                tables[7, low & np.uint32(0xFF)]
                ^ tables[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
                ^ tables[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
                ^ tables[4, (low >> np.uint32(24)) & np.uint32(0xFF)]
                ^ tables[3, data[i + 4]]
                ^ tables[2, data[i + 5]]
                ^ tables[1, data[i + 6]]
                ^ tables[0, data[i + 7]]
            )
        for i in range(whole, len(data)):
            value = tables[0, (value ^ np.uint32(data[i])) & np.uint32(0xFF)] ^ (value >> np.uint32(8))
        return value ^ np.uint32(0xFFFFFFFF)

    tables = _tables()
    return lambda data: int(crc(data, tables))


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The CRC of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return _compiled()(np.frombuffer(data, np.uint8))


def mask(crc: int) -> int:
    """A CRC as TensorFlow's files have it: rotated and moved."""
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def masked(data: bytes | bytearray | memoryview) -> bytes:
    """The CRC of bytes as TensorFlow's files have it, in four bytes."""
    return struct.pack("<I", mask(crc32c(data)))


__all__ = ["crc32c", "mask", "masked"]
