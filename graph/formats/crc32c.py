"""CRC-32C (Castagnoli, RFC 3720) as in TensorFlow's files: the checksum of records, tables and tensors."""

from __future__ import annotations

import struct

import google_crc32c

MASK = 0xA282EAD8  # TensorFlow rotates a checksum and adds this: the checksum of bytes that hold their own checksum says little


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The checksum of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return int(google_crc32c.value(bytes(data)))  # the library takes nothing but `bytes`, which this does not copy


def mask(crc: int) -> int:
    """A checksum as TensorFlow's files have it: rotated by 15 bits, plus `MASK`."""
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def masked(data: bytes | bytearray | memoryview) -> bytes:
    """The checksum of bytes as TensorFlow's files have it: four bytes, little-endian."""
    return struct.pack("<I", mask(crc32c(data)))
