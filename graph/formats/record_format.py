"""The records of a serialized graph, for messages and files. `graph/io/serialization.py` writes and reads them.

A graph is a stream of small msgpack arrays, the records. It is written and read record by record.

    ["dovetail-graph", version, nodes before, seed]   the first record
    ["s", string]                                     a string, to which later records refer by its number (0, 1, ...)
    ["b", outer or -1, spec, description, file, line] a device block, numbered likewise, for explanations only
    ["c", bytes]                                      a piece of a large constant of the next node
    ["n", name, op, inputs, control inputs, attrs, device, colocation, container, file, line, shapes, block]
    ["l", node, node]                                 a loop's Merge and its NextIteration, a back edge
    ["p", node, device]                               the device that a placement search has chosen for the node
    ["end", number of nodes]                          the last record, which detects a truncated stream

`inputs` is flat: each input is a node number and an output number. A loop's Merge comes before its NextIteration, so both of its inputs
are the first input. A node's device is the one that was requested when it was made. Loading does not apply device blocks again. Element
types and arrays are msgpack extension types. Arrays are stored as raw elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np

from ..core import dtypes
from ..core.dtypes import Array, DType, text_array
from ..core.shape import VALUE_RANK

FORMAT = "dovetail-graph"
VERSION = 1
CHUNK = 64 << 20  # maximum bytes of a constant in one record; msgpack's limit is 4 GiB
MAX_RECORD = 4 * CHUNK  # maximum bytes of a record

_DTYPE, _ARRAY, _CHUNKED = 1, 2, 3  # msgpack extension types


class MalformedError(Exception):
    """A record is malformed. The reader of the stream adds the position to the message."""


def extension(value: Any, out: list[bytes]) -> Any:
    """The msgpack extension of an element type or an array. Records with the pieces of a large array are appended to `out`."""
    if isinstance(value, DType):
        return msgpack.ExtType(_DTYPE, value.name.encode())
    if isinstance(value, np.ndarray):
        dtype = dtypes.as_dtype(value.dtype)
        if dtype is dtypes.string:
            items = [v.encode() if isinstance(v, str) else v for v in value.ravel()]
            if not all(isinstance(v, bytes) for v in items):
                raise TypeError("an array of objects holds something that is not text")
            return msgpack.ExtType(_ARRAY, msgpack.packb((dtype.name, value.shape, items)))
        if value.nbytes <= CHUNK:
            return msgpack.ExtType(_ARRAY, msgpack.packb((dtype.name, value.shape, value.tobytes())))
        flat: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        raw = memoryview(flat)
        pieces = range(0, len(raw), CHUNK)
        out.extend(msgpack.packb(("c", raw[i : i + CHUNK])) for i in pieces)
        return msgpack.ExtType(_CHUNKED, msgpack.packb((dtype.name, value.shape, len(pieces))))
    raise TypeError(f"{value!r} is a {type(value).__name__}")


class Reader:
    """An iterator over the records of a stream. It keeps pieces of a large constant for the next node."""

    def __init__(self, limit: int, file: Any = None) -> None:
        names = (
            "max_buffer_size",
            "max_str_len",
            "max_bin_len",
            "max_array_len",
            "max_map_len",
            "max_ext_len",
        )
        limits = dict.fromkeys(names, limit)
        self._pieces: list[bytes] = []
        self._unpacker = msgpack.Unpacker(file, use_list=False, ext_hook=self._extension, **limits)
        self.feed = self._unpacker.feed

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for record in self._unpacker:
            if type(record) is not tuple or not record:
                raise MalformedError("a record is not an array")
            if record[0] != "c":
                yield record
            elif len(record) == 2 and isinstance(record[1], bytes):
                self._pieces.append(record[1])
            else:
                raise MalformedError("a piece of a constant is not bytes")

    def _extension(self, code: int, data: bytes) -> Any:
        if code == _DTYPE:
            return _dtype(data.decode())
        if code not in (_ARRAY, _CHUNKED):
            raise MalformedError(f"unknown extension type {code}")
        name, shape, content = msgpack.unpackb(data, use_list=False)
        if code == _CHUNKED:
            if type(content) is not int or not 0 < content <= len(self._pieces):
                raise MalformedError("pieces of a constant are missing")
            taken, self._pieces[:content] = self._pieces[:content], []
            content = b"".join(taken)
        return _array(_dtype(name), shape, content)


def unpacked(data: bytes) -> Any:
    """Unpack a single value, with element types and arrays. MalformedError, or an error of msgpack, if it is malformed."""
    return msgpack.unpackb(data, use_list=False, ext_hook=Reader(MAX_RECORD)._extension)


def _dtype(name: Any) -> DType:
    found = dtypes.BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        raise MalformedError(f"no element type is called {name!r}")
    return found


def _array(dtype: DType, shape: Any, content: Any) -> Array:
    if type(shape) is not tuple or len(shape) > VALUE_RANK or not all(type(d) is int and d >= 0 for d in shape):
        raise MalformedError("a constant's shape is malformed")
    count = math.prod(shape)
    if dtype is dtypes.string:
        if type(content) is not tuple or len(content) != count or not all(type(v) is bytes for v in content):
            raise MalformedError("a constant of text does not hold what its shape says")
        array = text_array(content, shape)
        array.flags.writeable = False
        return array
    if dtype.np.hasobject or dtype.is_ref:
        raise MalformedError(f"no constant holds {dtype.name}")
    if type(content) is not bytes or len(content) != count * dtype.size:
        raise MalformedError(f"a constant of {count} {dtype.name} does not have {count * dtype.size} bytes")
    array = np.frombuffer(content, dtype.np).reshape(shape)
    if dtype.is_bool and count and array.view(np.uint8).max() > 1:
        raise MalformedError("a constant of bool holds something else")
    return array
