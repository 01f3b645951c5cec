"""LevelDB's sorted tables (SSTables), which are the index of TensorFlow's checkpoints.

    blocks of entries
    the index: a block with the position of each block
    a footer of 48 bytes: the position of the filters (there are none), the position of the index, and a magic number

A key omits the prefix that it shares with the key before it. Every 16th key is complete, and the end of the block has the positions of
these keys. A block is followed by its compression type (no compression) and its masked CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from .crc32c import masked

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER = 48
_BLOCK = 256 << 10  # bytes after which a block ends, as in TensorFlow
_WHOLE = 16  # number of entries from one complete key to the next


class TableError(ValueError):
    """A table is damaged or not supported."""


def is_table(data: bytes) -> bool:
    """Whether the bytes of a file end with the magic number of a table."""
    return len(data) >= _FOOTER and data.endswith(MAGIC)


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table in order. TableError if it is damaged."""
    if not is_table(data):
        raise TableError("it does not end as a table")
    try:
        _, at = _handle(data, len(data) - _FOOTER)
        index, _ = _handle(data, at)
        for _, where in _entries(_block(data, *index)):
            yield from _entries(_block(data, *_handle(where, 0)[0]))
    except (IndexError, struct.error):
        raise TableError("it is cut short") from None


def write_table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A table of keys and values. The keys must be sorted."""
    out = bytearray()
    index: list[tuple[bytes, bytes]] = []
    pending: list[tuple[bytes, bytes]] = []
    size = 0

    def close() -> None:
        if pending:
            index.append((pending[-1][0], _append(out, pending)))
            pending.clear()

    for key, value in entries:
        pending.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK:
            close()
            size = 0
    close()
    filters = _append(out, [])
    footer = filters + _append(out, index)
    return bytes(out + footer + bytes(_FOOTER - len(MAGIC) - len(footer)) + MAGIC)


def varint(number: int) -> bytes:
    """A number in LevelDB's variable-length format, with seven bits per byte."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it. IndexError if the data end."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise TableError("a number is too long")


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """The offset and size of a block, and the position after them."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _block(data: bytes, offset: int, size: int) -> bytes:
    block = data[offset : offset + size + 1]
    if len(block) <= size:
        raise TableError("a block is cut short")
    if masked(block) != data[offset + size + 1 : offset + size + 5]:
        raise TableError("a block's checksum differs")
    if block[-1]:
        raise TableError(f"a block is compressed (kind {block[-1]}), which is not supported")
    return block[:-1]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (count,) = struct.unpack_from("<I", block, len(block) - 4)
    end, at, key = len(block) - 4 * (count + 1), 0, b""
    if end < 0:
        raise TableError("a block is malformed")
    while at < end:
        shared, at = read_varint(block, at)
        fresh, at = read_varint(block, at)
        size, at = read_varint(block, at)
        if shared > len(key) or at + fresh + size > end:
            raise TableError("an entry is malformed")
        key = key[:shared] + block[at : at + fresh]
        at += fresh
        yield key, block[at : at + size]
        at += size


def _append(out: bytearray, entries: list[tuple[bytes, bytes]]) -> bytes:
    """Append a block. Returns its offset and size in bytes of the format."""
    block, whole, last = bytearray(), [], b""
    for i, (key, value) in enumerate(entries):
        shared = 0
        if i % _WHOLE:
            most = min(len(key), len(last))
            while shared < most and key[shared] == last[shared]:
                shared += 1
        else:
            whole.append(len(block))
        block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    whole = whole or [0]
    block += struct.pack(f"<{len(whole) + 1}I", *whole, len(whole))
    where = varint(len(out)) + varint(len(block))
    block.append(0)
    out += block + masked(block)
    return where
