"""TensorFlow's checkpoints in format V2, the "tensor bundle": an index and files of bytes.

`model.ckpt-10.index`, the index, is a sorted table. Its keys are names. A value has the position of a tensor's bytes: file, offset,
size and CRC-32C. The empty key has the number of files `model.ckpt-10.data-00000-of-00001`. A partitioned variable has an entry
with its slices, and an entry for each slice, whose key has the name and the slice (`_slice_key`). Strings are stored as their lengths,
a checksum of the lengths, and their bytes.

`CheckpointReader` (`checkpoints.py`) reads both kinds of checkpoints. `write_bundle` writes a checkpoint for TensorFlow.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.dtypes import Array, DType, as_dtype, string
from ..core.shape import dims_of_proto, set_dims
from .atomic_files import path_of, write_bytes_durably, write_durably
from .crc32c import crc32c, mask, masked
from .protos import message
from .sstable import TableError, is_table, read_table, read_varint, varint, write_table


def is_bundle(index: bytes) -> bool:
    """Whether the bytes of an index file belong to a checkpoint of TensorFlow."""
    return is_table(index)


def read_bundle(prefix: str, index: bytes) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The files of a checkpoint, and its tensors by name in the form of `checkpoints`' manifest: type, shape, and slices.

    Args:
        prefix: name of the checkpoint.
        index: the bytes of the index file.

    Raises:
        UnimplementedError: the package `protobuf` is not installed.
        ValueError: the index is damaged.
    """
    entries = dict(read_table(index))
    header = _parsed("BundleHeaderProto", entries.pop(b"", b""))
    if header.endianness:
        raise TableError("its numbers are big-endian, which is not supported")
    name = path_of(prefix).name
    files = [f"{name}.data-{i:05}-of-{header.num_shards:05}" for i in range(header.num_shards)]
    slices: dict[bytes, Any] = {}
    tensors: dict[str, dict[str, Any]] = {}
    for key, value in entries.items():
        if key.startswith(b"\0"):
            slices[key] = value
    for key, value in entries.items():
        if key in slices:
            continue
        entry = _parsed("BundleEntryProto", value)
        title, dims = key.decode(), dims_of_proto(entry.shape)
        if dims is None or None in dims:
            raise TableError(f"the shape of '{title}' is not known")
        shape = [int(d or 0) for d in dims]
        pieces = [_piece(entry, [0] * len(shape), shape)] if not entry.slices else []
        for part in entry.slices:
            offset = [int(e.start) for e in part.extent]
            sizes = [
                int(e.length) if e.HasField("length") else d - o
                for e, o, d in zip(part.extent, offset, shape, strict=True)
            ]
            stored = slices.get(
                _slice_key(key, [(e.start, e.length if e.HasField("length") else -1) for e in part.extent])
            )
            if stored is None:
                raise TableError(f"a slice of '{title}' is missing")
            pieces.append(_piece(_parsed("BundleEntryProto", stored), offset, sizes))
        if any(p["shard"] >= len(files) for p in pieces):
            raise TableError(f"'{title}' is in a file that the header does not name")
        tensors[title] = {"dtype": as_dtype(int(entry.dtype)).base.name, "shape": shape, "slices": pieces}
    return files, tensors


def _parsed(kind: str, data: bytes) -> Any:
    found = message(kind)()
    try:
        found.ParseFromString(data)
    except Exception as e:  # protobuf's DecodeError, which has no class without the package
        raise TableError(f"a {kind} is malformed: {e}") from None
    return found


def _piece(entry: Any, offset: list[int], shape: list[int]) -> dict[str, Any]:
    """A slice in the form of `checkpoints`' manifest, with the position of its bytes."""
    return {
        "offset": offset, "shape": shape, "shard": int(entry.shard_id), "at": int(entry.offset), "size": int(entry.size),
        "crc": int(entry.crc32c),
    }  # fmt: skip


def read_piece(path: Path, piece: Mapping[str, Any], dtype: DType) -> Array:
    """The values of a slice. ValueError if they are damaged. OSError if they cannot be read."""
    with path.open("rb") as file:
        file.seek(piece["at"])
        data = file.read(piece["size"])
    if len(data) != piece["size"]:
        raise TableError("the file is cut short")
    if dtype is string:
        return _texts(data, math.prod(piece["shape"]), piece["crc"]).reshape(piece["shape"])
    if mask(crc32c(data)) != piece["crc"]:
        raise TableError("the checksum differs")
    return np.frombuffer(data, dtype.np).reshape(piece["shape"]).copy()


def _texts(data: bytes, count: int, crc: int) -> Array:
    """Parse strings: their lengths, the checksum of the lengths as integers of four or eight bytes, and the strings."""
    sizes, at = [], 0
    try:
        for _ in range(count):
            size, at = read_varint(data, at)
            sizes.append(size)
    except IndexError:
        raise TableError("the lengths of texts are cut short") from None
    lengths = b"".join(struct.pack("<I" if n < 1 << 32 else "<Q", n) for n in sizes)
    body = data[at : at + 4]
    if body != masked(lengths) or mask(crc32c(lengths + data[at:])) != crc:
        raise TableError("the checksum differs")
    at += 4
    out: Array = np.empty(count, object)
    for i, size in enumerate(sizes):
        out[i] = data[at : at + size]
        at += size
    return out


def write_bundle(prefix: str, tensors: Iterable[tuple[str, Array]]) -> None:
    """Write a checkpoint for TensorFlow, with one data file, and flush it to the disk.

    Args:
        prefix: name of the checkpoint.
        tensors: names and values. Strings are bytes.

    Raises:
        UnimplementedError: the package `protobuf` is not installed.
        OSError: a file cannot be written.
    """
    path = path_of(f"{prefix}.data-00000-of-00001")
    entries: dict[bytes, bytes] = {}

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            for name, value in sorted(tensors):
                dtype = as_dtype(value.dtype)
                at = file.tell()
                data, crc = _bytes_of(value, dtype)
                file.write(data)
                entry = message("BundleEntryProto")(dtype=dtype.enum, offset=at, size=len(data), crc32c=mask(crc))
                set_dims(entry.shape, value.shape)
                entries[name.encode()] = entry.SerializeToString()

    write_durably(path, write)
    header = message("BundleHeaderProto")(num_shards=1)
    header.version.producer = 1
    table = write_table(sorted({b"": header.SerializeToString(), **entries}.items()))
    write_bytes_durably(path_of(f"{prefix}.index"), table)


def _bytes_of(value: Array, dtype: DType) -> tuple[bytes, int]:
    """The bytes of a tensor, and their CRC."""
    if dtype is not string:
        data = np.ascontiguousarray(value).tobytes()
        return data, crc32c(data)
    texts = [v.encode() if isinstance(v, str) else bytes(v) for v in value.ravel()]
    lengths = b"".join(struct.pack("<I" if len(t) < 1 << 32 else "<Q", len(t)) for t in texts)
    check = masked(lengths)
    body = b"".join(texts)
    return b"".join(varint(len(t)) for t in texts) + check + body, crc32c(lengths + check + body)


def _slice_key(name: bytes, extents: Iterable[tuple[int, int]]) -> bytes:
    """The key of a slice: numbers and strings in TensorFlow's "ordered code", whose order as bytes is that of the values."""
    extents = list(extents)
    escaped = b"".join({0: b"\0\xff", 255: b"\xff\0"}.get(c, bytes([c])) for c in name)
    out = bytearray(_unsigned(0) + escaped + b"\0\1" + _unsigned(len(extents)))
    for start, length in extents:
        out += _signed(start) + _signed(length)
    return bytes(out)


def _unsigned(number: int) -> bytes:
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([len(data)]) + data


def _signed(number: int) -> bytes:
    """A signed number in ordered code, with as few bytes as possible. The first bits have the sign and the number of bytes."""
    for size in range(1, 9):
        if -(1 << (7 * size - 1)) <= number < 1 << (7 * size - 1):
            break
    else:
        raise TableError(f"slices of {number} elements are not supported")
    bits = (number + (1 << 80)) & ((1 << (8 * size)) - 1)  # two's complement
    mark = ((1 << size) - 1) << (7 * size)  # `size` leading ones
    return (bits ^ mark).to_bytes(size, "big")
