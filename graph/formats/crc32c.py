"""CRC-32C (Castagnoli, RFC 3720) as in TensorFlow's files: the checksum of records, tables and tensors."""

from __future__ import annotations

import struct

import google_crc32c

MASK = 0xA282EAD8  # added to a rotated checksum, because a plain checksum of data with checksums is weak


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The CRC-32C of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return int(google_crc32c.value(bytes(data)))  # the library takes only `bytes`, which are not copied


def mask(crc: int) -> int:
    """The masked checksum of TensorFlow's files: rotated by 15 bits, plus `MASK`."""
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def masked(data: bytes | bytearray | memoryview) -> bytes:
    """The masked checksum of bytes, as four bytes in little-endian order."""
    return struct.pack("<I", mask(crc32c(data)))
