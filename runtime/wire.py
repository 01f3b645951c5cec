"""The wire: what a message is, and how it becomes bytes and comes back.

A message is a kind, some named fields, and tensors. It travels as a list of frames:

    frame 0          the header: msgpack of [version, kind, fields, [[dtype, shape, place], ...]]
    frames 1 .. n    the raw elements of tensors, C order, little-endian, as every machine here is
    then             the value of each field of type `bytes`, in the order of the kind's row

Fields of type `bytes` (a graph, a partition) leave the header so that the header stays small: unpacking
msgpack can need seventy times the memory of its input, raw frames need none. In the header such a field holds
its length.

A tensor of strings has dtype `string`; its frame is one uint32 length per element, then all the bytes.

A tensor's place is its bytes themselves, when they are few: a frame costs more than copying them does. It is where the tensor
lies in shared memory, or nothing: then the tensor has a frame, or a word: then its frame is compressed in that way (`compression.py`).

Nothing that arrives is trusted. `KINDS` says which kinds exist and what each carries; `decode` checks a
message against it, and every bound below, before it makes a single array. Whatever is wrong, it raises
`WireError`, nothing else. Nothing is ever unpickled or evaluated. `encode` checks the same table, so that a
mistake shows where it was made.

This module knows no sockets: it can be tested, fuzzed and reused without any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgpack
import numpy as np

from ..graph import dtypes
from . import compression
from .shared_memory import SHARE_BYTES

VERSION = 1  # one byte on the wire, so below 128

#: A frame of this many bytes or more is borrowed from its array, not copied. Copying 64 KiB costs about what
#: the bookkeeping of a borrowed buffer costs (8 µs). Whoever sends a larger array must not write into it
#: afterwards.
BORROW_BYTES = 64 * 1024

#: A tensor of at most this many bytes travels in the header, as long as those of a message need no more than `MAX_INLINE` together.
INLINE_BYTES = 4096
MAX_INLINE = 256 * 1024

MAX_HEADER = 1 << 20  # bytes, for most kinds
MAX_WIDE_HEADER = 16 << 20  # bytes, for the kinds whose fields describe whole plans
MAX_TENSORS = 16_384  # per message
MAX_RANK = 32
MAX_DIM = 1 << 40
MAX_DEPTH = 16  # lists and dicts inside one another, in one field

Frame: TypeAlias = bytes | memoryview
Bytes: TypeAlias = "Frame | np.ndarray[Any, np.dtype[np.uint8]]"
"""A frame, or shared memory."""
Tensor: TypeAlias = np.ndarray[Any, Any] | np.generic


class WireError(ValueError):
    """A message that breaks the protocol, arriving or about to leave.

    Attributes:
        request: the request number of the message, as far as it could be read; else 0. An answer can name it.
    """

    def __init__(self, message: str, request: int = 0) -> None:
        super().__init__(message)
        self.request = request


class UnreadableError(WireError):
    """A tensor lies in shared memory that the receiver cannot read: the sender should let tensors travel."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Message:
    """One message. Compared by identity, since arrays have no single truth value.

    Attributes:
        kind: a key of `KINDS`.
        fields: plain values: None, bool, int, float, str, bytes, and lists and str-keyed dicts of them.
        tensors: arrays of any element type in `graph.dtypes`, strings as object arrays of bytes or str.
            Decoded ones are read-only and alias the received buffer.

    >>> frames = encode(Message("ping", {"seq": 7}))
    >>> decode(frames)
    Message('ping', seq=7)
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()

    def __repr__(self) -> str:
        parts = [repr(self.kind)]
        for name, value in self.fields.items():
            text = f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)
            parts.append(f"{name}={text if len(text) <= 80 else text[:77] + '...'}")
        parts += [f"{t.dtype}{list(t.shape)}" for t in self.tensors]
        return f"Message({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class KindSchema:
    """What one kind of message carries.

    Attributes:
        kind: its name.
        fields: field name -> the Python types its value may have.
        required: the fields that must be there; the others may be missing or None.
        tensors: whether tensors may be attached.
        given: whether they are the receiver's to write into; else he shares them with others.
        wide: whether the header may have up to `MAX_WIDE_HEADER` bytes.
        blobs: the fields of type `bytes`, which travel in frames of their own.
    """

    kind: str
    fields: Mapping[str, tuple[type, ...]]
    required: frozenset[str]
    tensors: bool
    given: bool
    wide: bool
    blobs: tuple[str, ...]


# A float may be written as an int; a list may be given as a tuple (it arrives as a list).
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,), "int": (int,), "float": (float, int), "str": (str,), "bytes": (bytes,),
    "list": (list, tuple), "dict": (dict,),
}  # fmt: skip
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})


def _row(kind: str, fields: str = "", *, tensors: bool = False, given: bool = False, wide: bool = False) -> KindSchema:
    """One row of `KINDS`; `fields` reads `name type, name? type|type`; what has a `?` may be missing."""
    types: dict[str, tuple[type, ...]] = {}
    required: set[str] = set()
    blobs: list[str] = []
    for entry in filter(None, map(str.strip, fields.split(","))):
        name, type_names = entry.split()
        if not name.endswith("?"):
            required.add(name)
        name = name.removesuffix("?")
        types[name] = tuple(t for type_name in type_names.split("|") for t in _TYPES[type_name])
        if type_names == "bytes":
            blobs.append(name)
        if entry.split()[0].endswith("?"):
            types[name] += (type(None),)
    if len(kind) > 31:
        raise ValueError(f"kind {kind!r}: at most 31 characters, so that the header starts in one known way")
    return KindSchema(kind, types, frozenset(required), tensors, given, wide, tuple(blobs))


#: Every kind of message there is. A new kind is a new row.
KINDS: dict[str, KindSchema] = {row.kind: row for row in (
    _row("hello", "memory? list, readable bool, lane? list"),
    _row("ping", "seq int, request? int"),
    _row("pong", "seq int, incarnation int, clock? int, working? bool"),
    _row("status", "request int"),
    _row("devices", "request int, devices list, incarnation int", wide=True),
    _row("stats", "request int"),
    _row("figures", "request int, figures dict", wide=True),
    _row("create_session", "request int, config dict"),
    _row("waiting", "request int, tasks list"),
    _row("session_created", "request int, session str, devices list", wide=True),
    _row("extend", "request int, session str, from_version int, graph bytes"),
    _row("extended", "request int, version int"),
    _row("prepare", "request int, session str, feeds list, fetches list, targets list, warm? bool", wide=True),
    _row("prepared", "request int, parts list", wide=True),
    _row("plan", "request int, session str, feeds list, fetches list, targets list, program str", wide=True),
    _row("planned", "request int, plan bytes"),
    _row("register", "request int, program str, session str, partition bytes, info dict", wide=True),
    _row("registered", "request int, incarnation int"),
    _row("release", "programs list"),
    _row("missing", "step int, task str, channels list"),
    _row("coming", "step int, task str, known bool"),
    _row("accounted", "step int, task str, channels list"),
    _row("run", "request int, step int, program str, feeds list, trace? bool, quiet? bool", tensors=True),
    _row("trace", "request int, notes bytes"),
    _row("done", "request int, fetches list", tensors=True, given=True),
    _row("tensors", "step int, channels list, without list", tensors=True),
    _row(
        "collective",
        "event str, task str, group str, token int, instance? str, run? int, sender? int, to? int, tag? int, what? str, "
        "reason? str, code? str",
        tensors=True,
    ),
    _row("abort", "step int, code str, reason str"),
    _row("touch", "session str"),
    _row("close_session", "request int, session str"),
    _row("forget_session", "request int, session str"),
    _row("closed", "request int"),
    _row("reset", "request int, containers list, config? dict"),
    _row("reset_containers", "request int, containers list, sessions? list"),
    _row("error", "request int, code str, message str, node? str, task? str"),
)}  # fmt: skip


Lend: TypeAlias = Callable[[np.ndarray[Any, Any], bool], "list[int] | None"]
"""Says where the receiver can read an array, or, if so asked, a copy of its own; None: it has to travel."""

Borrow: TypeAlias = Callable[[Any, int], np.ndarray[Any, np.dtype[np.uint8]]]
"""The bytes at such a place, so many; ValueError when they cannot be read."""


def encode(message: Message, lend: Lend | None = None, compressed: bool = False) -> list[Frame]:
    """The frames of `message`. `lend` is asked for every tensor of `SHARE_BYTES` and more; `compressed`: make large ones smaller.

    Tensors of `BORROW_BYTES` and more are not copied: their frames are views of the arrays, which must not
    change until they have been sent. Smaller ones are copied.

    Raises:
        WireError: an unknown kind, a field that the kind does not have or of another type, a tensor where
            none may be or of an element type that cannot travel. Nothing has been sent.
    """
    schema = KINDS.get(message.kind)
    if schema is None:
        raise WireError(f"there is no message kind {message.kind!r}; known kinds: {', '.join(KINDS)}")
    fields = message.fields
    request = _request_of(fields)
    _check_fields(schema, fields, request)
    frames: list[Frame] = [b""]
    specs: list[tuple[Any, ...]] = []
    inline = 0
    room = compression.MOST_BYTES if compressed else 0
    if message.tensors:
        _check_attached(schema, len(message.tensors), request)
        for index, tensor in enumerate(message.tensors):
            if lend is not None and tensor.nbytes >= SHARE_BYTES and tensor.dtype in _NAME_OF:
                place = lend(np.asarray(tensor), schema.given)
                if place is not None:
                    specs.append((_NAME_OF[tensor.dtype], tensor.shape, place))
                    continue
            if room and tensor.dtype in _NAME_OF:
                packed = compression.compress(np.asarray(tensor), room)
                if packed is not None:
                    room -= tensor.nbytes
                    specs.append((_NAME_OF[tensor.dtype], tensor.shape, compression.NAME))
                    frames.append(packed)
                    continue
            name, buffer = _pack_tensor(tensor, index, request)
            size = len(buffer)
            if size <= INLINE_BYTES and inline + size <= MAX_INLINE:
                inline += size
                specs.append((name, tensor.shape, buffer))
            else:
                specs.append((name, tensor.shape))
                frames.append(buffer)
    if schema.blobs:
        fields = dict(fields)
        for blob in schema.blobs:
            if fields.get(blob) is not None:
                frames.append(fields[blob])
                fields[blob] = len(fields[blob])
    try:
        header: bytes = _packers.pack((VERSION, message.kind, fields, specs))
    except Exception as error:  # an int beyond 64 bits, a str with lone surrogates
        raise WireError(f"message {message.kind!r} cannot be packed: {error}", request) from None
    limit = MAX_WIDE_HEADER if schema.wide else MAX_HEADER
    if len(header) > limit:
        raise WireError(
            f"message {message.kind!r}: its fields need {len(header)} bytes, more than the {limit} allowed",
            request,
        )
    frames[0] = header
    return frames


def decode(frames: Sequence[Frame], borrow: Borrow | None = None) -> Message:
    """The message that `frames` carry; its tensors are read-only views of the frames, or of shared memory.

    Each frame is `bytes` or a memoryview of single bytes. Without `borrow` no tensor may lie in shared memory.

    Raises:
        WireError: anything about the frames that is not as the protocol has it.
    """
    if not frames:
        raise WireError("an empty message: there is no header frame")
    header = frames[0]
    _check_preamble(header)
    try:
        # The first byte says "an array of four", so what comes out has four elements.
        _, kind, fields, specs = msgpack.unpackb(header, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack's own, and for some inputs TypeError or OverflowError
        raise WireError(f"the header is not msgpack: {error or type(error).__name__}") from None
    if type(kind) is not str or type(fields) is not dict or type(specs) is not list:
        raise WireError("the header is not [version, kind, fields, tensors]")
    request = _request_of(fields)
    schema = KINDS.get(kind)
    if schema is None:
        raise WireError(f"there is no message kind {kind[:64]!r}", request)
    if specs:
        _check_attached(schema, len(specs), request)
    count = 1  # frames of their own
    for spec in specs:
        if type(spec) is not list or len(spec) != 3 or type(spec[2]) is str:
            count += 1
    if schema.blobs:
        _restore_blobs(schema, fields, frames, count, request)
    elif len(frames) != count:
        raise WireError(f"message {kind!r}: {count - 1} tensors announced, {len(frames) - 1} frames came", request)
    _check_fields(schema, fields, request)
    if not specs:
        return Message(kind, fields)
    tensors: list[Tensor] = []
    at = 1
    room = compression.MOST_BYTES
    for spec in specs:
        index = len(tensors)
        if type(spec) is not list or len(spec) != 3:
            tensors.append(_unpack_tensor(spec, frames[at], index, request))
            at += 1
        elif type(spec[2]) is bytes:
            tensors.append(_unpack_tensor(spec, spec[2], index, request))
        elif type(spec[2]) is str:
            tensor = _compressed_tensor(spec, frames[at], room, index, request)
            room -= tensor.nbytes
            tensors.append(tensor)
            at += 1
        else:
            tensors.append(_placed_tensor(spec, borrow, index, request))
    return Message(kind, fields, tuple(tensors))


# Checks: the same for what leaves and what arrives.


def _request_of(fields: Any) -> int:
    request = fields.get("request", 0) if type(fields) is dict else 0
    return request if type(request) is int else 0


def _check_preamble(header: Frame) -> None:
    """Look at the bytes that every version of the protocol has in one place, before msgpack does."""
    size = len(header)
    if size < 3 or header[0] != 0x94:  # msgpack for "an array of four elements"
        raise WireError("not a message of this protocol")
    if header[1] != VERSION:
        raise WireError(
            f"the peer speaks version {header[1]} of the protocol, this process version {VERSION}: "
            "run the same release of dovetail in all tasks and clients"
        )
    if size > MAX_HEADER and (size > MAX_WIDE_HEADER or not bytes(header[2:34]).startswith(_WIDE)):
        raise WireError(f"a header of {size} bytes is larger than its kind allows")


def _check_fields(schema: KindSchema, fields: dict[str, Any], request: int) -> None:
    if type(fields) is not dict:
        raise WireError(f"message {schema.kind!r}: fields must be a dict, not {type(fields).__name__}")
    types = schema.fields
    for name, value in fields.items():
        allowed = types.get(name)
        if allowed is None:
            known = ", ".join(types) or "none"
            raise WireError(f"message {schema.kind!r} has no field {_short(name)}; its fields: {known}", request)
        kind = type(value)
        if kind not in allowed:
            expected = " or ".join(t.__name__ for t in allowed if t is not tuple)
            raise WireError(f"message {schema.kind!r}: field {name!r} must be {expected}, not {kind.__name__}", request)
        if (kind is list or kind is dict or kind is tuple) and value:
            if kind is not dict and _SCALARS.issuperset(map(type, value)):
                continue
            try:
                _check_plain(value, 1)
            except WireError as error:
                raise WireError(f"message {schema.kind!r}: field {name!r} {error}", request) from None
    if not schema.required <= fields.keys():
        missing = ", ".join(sorted(schema.required - fields.keys()))
        raise WireError(f"message {schema.kind!r} lacks {missing}", request)


def _check_plain(value: Any, depth: int) -> None:
    """Only plain values, with str keys, not too deep: code that walks a field later needs no guard."""
    if depth > MAX_DEPTH:
        raise WireError(f"nests deeper than {MAX_DEPTH}")
    items: Iterable[Any] = value
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise WireError(f"has a key {_short(key)}; keys must be str")
        items = value.values()
    for item in items:
        kind = type(item)
        if kind in _SCALARS:
            continue
        if kind is not list and kind is not dict and kind is not tuple:
            raise WireError(f"holds a {kind.__name__}; only plain values can travel")
        _check_plain(item, depth + 1)


def _check_attached(schema: KindSchema, count: int, request: int) -> None:
    if not schema.tensors:
        raise WireError(f"message {schema.kind!r} carries no tensors, but {count} are attached", request)
    if count > MAX_TENSORS:
        raise WireError(f"message {schema.kind!r}: {count} tensors, at most {MAX_TENSORS} can travel together", request)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 64 else text[:61] + "..."


# Tensors. The element types are those of `graph.dtypes`, under the same names.

_NP_OF = {t.name: t.np for t in dtypes.ALL if t.np.kind != "O"}
_NAME_OF = {np_dtype: name for name, np_dtype in _NP_OF.items()}
_STRING = dtypes.string.name
_BOOL = np.dtype(np.bool_)
_LENGTH = np.dtype("<u4")


def _pack_tensor(tensor: Tensor, index: int, request: int) -> tuple[str, Frame]:
    """The element type's name and the bytes of one tensor."""
    if not isinstance(tensor, (np.ndarray, np.generic)):
        raise WireError(f"tensor {index} is a {type(tensor).__name__}, not a NumPy array", request)
    dtype = tensor.dtype
    name = _NAME_OF.get(dtype)
    if name is None:
        if dtype.kind in "OSUT":
            return _STRING, _pack_strings(np.asarray(tensor), index, request)
        name = None if dtype.isnative else _NAME_OF.get(dtype.newbyteorder("="))
        if name is None:
            raise WireError(f"tensor {index} has element type {dtype}, which cannot travel", request)
        tensor = tensor.astype(_NP_OF[name])
    if tensor.nbytes < BORROW_BYTES:
        return name, tensor.tobytes()
    # bfloat16 and float8 do not offer the buffer protocol; their bytes do.
    return name, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


def _pack_strings(array: np.ndarray[Any, Any], index: int, request: int) -> bytes:
    values: list[bytes] = []
    for value in array.ravel().tolist():
        if type(value) is str:
            try:
                value = value.encode()
            except UnicodeEncodeError as error:
                raise WireError(f"tensor {index}: {error}", request) from None
        if type(value) is not bytes:
            raise WireError(
                f"tensor {index} holds a {type(value).__name__}; arrays of objects may hold bytes and str",
                request,
            )
        values.append(value)
    lengths = [len(value) for value in values]
    if lengths and max(lengths) >= 1 << 32:
        raise WireError(
            f"tensor {index} holds a string of {max(lengths)} bytes; at most {(1 << 32) - 1} can travel",
            request,
        )
    return b"".join([np.array(lengths, _LENGTH).tobytes(), *values])


def _unpack_tensor(spec: Any, frame: Bytes, index: int, request: int) -> Tensor:
    """One read-only array over `frame`, after everything about it was checked. Its description may go on after the shape."""
    if type(spec) is not list or not 2 <= len(spec) <= 3 or type(spec[0]) is not str or type(spec[1]) is not list:
        raise WireError(f"tensor {index}: its description is not [dtype, shape]", request)
    name, shape = spec[0], spec[1]
    if len(shape) > MAX_RANK:
        raise WireError(f"tensor {index} has rank {len(shape)}, at most {MAX_RANK} is allowed", request)
    count = 1
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= MAX_DIM:
            raise WireError(f"tensor {index} has a dimension {_short(dim)}", request)
        count *= dim
    try:
        if name == _STRING:
            return _unpack_strings(shape, count, frame, index, request)
        dtype = _NP_OF.get(name)
        if dtype is None:
            raise WireError(f"tensor {index} has an unknown element type {_short(name)}", request)
        size = count * dtype.itemsize
        if size != len(frame):
            raise WireError(f"tensor {index}: {name}{shape} needs {size} bytes, its frame has {len(frame)}", request)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, frame)
        # A bool that is neither 0 nor 1 would be true and false by turns, depending on who asks.
        if dtype is _BOOL and size and np.ndarray(size, np.uint8, frame).max() > 1:
            raise WireError(f"tensor {index}: a bool is neither 0 nor 1", request)
        if type(frame) is bytes:  # nobody can write into it, and Python aligns it
            return array
        flags = array.flags
        if not flags.aligned:  # small frames may start at any byte of the receive buffer
            array = array.copy()
            flags = array.flags
        flags.writeable = False
        return array
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError(f"tensor {index}: {name}{_short(shape)} cannot be made: {error}", request) from None


def _compressed_tensor(spec: list[Any], frame: Frame, room: int, index: int, request: int) -> Tensor:
    """One read-only array of what a frame unpacks to, if it says that it is so much and no more than `room`."""
    dtype, size = _size_of(spec, index, request)
    if spec[2] != compression.NAME:
        raise WireError(f"tensor {index} is compressed in an unknown way {_short(spec[2])}", request)
    if size > room:
        raise WireError(
            f"tensor {index}: compressed tensors of a message have more than {compression.MOST_BYTES} bytes", request
        )
    try:
        memory = compression.decompress(frame, size, dtype.itemsize)
    except (ValueError, MemoryError) as error:
        raise WireError(f"tensor {index}: {error}", request) from None
    return _unpack_tensor(spec, memory, index, request)


def _size_of(spec: list[Any], index: int, request: int) -> tuple[np.dtype[Any], int]:
    """A tensor's element type and how many bytes it has, as its description says."""
    name, shape = spec[0], spec[1]
    dtype = _NP_OF.get(name) if type(name) is str else None
    if dtype is None:
        raise WireError(f"tensor {index} has an element type that cannot lie there: {_short(name)}", request)
    count = 1
    for dim in shape if type(shape) is list else [None]:
        if type(dim) is not int or not 0 <= dim <= MAX_DIM:
            raise WireError(f"tensor {index} has a dimension {_short(dim)}", request)
        count *= dim
    return dtype, count * dtype.itemsize


def _placed_tensor(spec: list[Any], borrow: Borrow | None, index: int, request: int) -> Tensor:
    """One read-only array over shared memory."""
    if borrow is None:
        raise WireError(f"tensor {index} cannot lie in shared memory here", request)
    _, size = _size_of(spec, index, request)
    try:
        memory = borrow(spec[2], size)
    except ValueError as error:
        raise UnreadableError(f"tensor {index} lies in shared memory that cannot be read: {error}", request) from None
    return _unpack_tensor(spec, memory, index, request)


def _unpack_strings(shape: list[int], count: int, frame: Bytes, index: int, request: int) -> Tensor:
    start = count * _LENGTH.itemsize
    if start > len(frame):
        raise WireError(
            f"tensor {index}: {count} strings need {start} bytes for lengths, its frame has {len(frame)}",
            request,
        )
    lengths = np.ndarray(count, _LENGTH, frame)
    if start + int(lengths.sum(dtype=np.uint64)) != len(frame):
        raise WireError(f"tensor {index}: the lengths of its strings do not add up to its frame", request)
    flat = np.empty(count, object)
    for i, length in enumerate(lengths.tolist()):
        flat[i] = bytes(frame[start : start + length])
        start += length
    array = flat.reshape(shape)
    array.setflags(write=False)
    return array


def _restore_blobs(schema: KindSchema, fields: dict[str, Any], frames: Sequence[Frame], at: int, request: int) -> None:
    """Put the fields of type `bytes` back where the header has their lengths."""
    for name in schema.blobs:
        length = fields.get(name)
        if length is None:
            continue
        if type(length) is not int or at >= len(frames) or length != len(frames[at]):
            raise WireError(f"message {schema.kind!r}: field {name!r} and its frame do not match", request)
        fields[name] = bytes(frames[at])
        at += 1
    if at != len(frames):
        raise WireError(f"message {schema.kind!r}: {len(frames) - at} frames too many", request)


class _Packers(threading.local):
    """One packer per thread: making one costs more than packing; it serves one thread at a time."""

    def __init__(self) -> None:
        self.pack: Callable[[Any], bytes] = msgpack.Packer().pack


_packers = _Packers()
_WIDE = tuple(msgpack.packb(schema.kind) for schema in KINDS.values() if schema.wide)
