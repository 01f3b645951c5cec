"""LevelDB's sorted tables (SSTables): the index of TensorFlow's checkpoints.

    blocks of entries, then a block that says where they are, then a footer of 48 bytes:
        where the filters are (none here), where the index is, and a magic number

An entry shares the beginning of its key with the one before. Every 16th key is written in full, and the end of the block says where these
are. A block is followed by its compression type (here: none) and its masked CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from .crc32c import masked

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER = 48
_BLOCK = 256 << 10  # bytes from which a block is closed: TensorFlow's
_WHOLE = 16  # every so many entries a key is written out


class TableError(ValueError):
    """What is wrong with a table."""


def is_table(data: bytes) -> bool:
    """Whether a file's bytes end as a table does."""
    return len(data) >= _FOOTER and data.endswith(MAGIC)


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values, in order. TableError: it is damaged."""
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
    """A table of these keys and values; keys ascend."""
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
    """A number in as many bytes as it needs, seven bits in each."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number that begins there, and where the next thing does. IndexError: there is none."""
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
    """Where a block is and how long, and what follows."""
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
    """Add a block; where it is."""
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
