"""The wire: what a message is, and how it becomes bytes and comes back.

A message is a kind, some named fields, and tensors. It travels as a list of frames:

    frame 0    the header: what the message begins with, its description, and then what differs from step to step
    then       the raw elements of tensors, C order, little-endian, as every machine here is
    then       the value of each field of type `bytes`, in the order of the kind's row

    header         0x94, version, how many numbers, 0 (a byte each), the size of the description (4 bytes),
                   the numbers: the kind's required fields of type int (8 bytes each), the description, the values
    description    msgpack of [kind, the other fields, [[dtype, shape, place], ...]]

The description of a message is the same at each step of a run signature. So either side remembers those that it has seen: a step
costs a look into a table instead of packing, unpacking and checking them again.

A tensor's place says where its bytes are: `here`, among the values, when they are few, since a frame costs more than copying them
does; `lent`: in shared memory, and the values say where; the name of a compression (`compression.py`): in a frame, made smaller;
without a place they are a frame as they are.

Fields of type `bytes` (a graph, a partition) leave the header so that the header stays small: unpacking msgpack can need seventy
times the memory of its input, raw frames need none. In the description such a field holds its length.

Nothing that arrives is trusted. `KINDS` (kinds.py) says which kinds exist and what each carries; `decode` checks a
message against it, and every bound, before it makes a single array. Whatever is wrong, it raises
`WireError`, nothing else. Nothing is ever unpickled or evaluated. `encode` checks the same table, so that a
mistake shows where it was made.

This module knows no sockets: it can be tested, fuzzed and reused without any.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import msgpack
import numpy as np

from . import compression
from .kinds import HEAD, KINDS, MAX_DEPTH, KindSchema, WireError, check_fields
from .shared_memory import SHARE_BYTES
from .tensor_bytes import (
    BOOL,
    BORROW_BYTES,
    HERE,
    LENT,
    MAX_DIM,
    MAX_RANK,
    NAME_OF,
    PLACE,
    Bytes,
    Frame,
    Layout,
    Tensor,
    layout_of,
    pack_tensor,
    strings_size,
    unpack_compressed,
    unpack_tensor,
)

VERSION = 2  # one byte on the wire

#: A tensor of at most this many bytes travels in the header, as long as those of a message need no more than `MAX_INLINE` together.
INLINE_BYTES = 4096
MAX_INLINE = 256 * 1024

MAX_HEADER = 1 << 20  # bytes, for most kinds
MAX_WIDE_HEADER = 16 << 20  # bytes, for the kinds whose fields describe whole plans
MAX_TENSORS = 16_384  # per message

_MOST_REMEMBERED: Final = 1_024  # descriptions, each way; so what others send takes a bounded part of the memory
_LONGEST_REMEMBERED: Final = 1_024  # bytes of one
_MOST_FORMED: Final = 64  # descriptions of one form: shapes of what is fed

_FIRST: Final = 0x94  # as version 1 had it, so that either notices the other
_HEAD_BYTES: Final = struct.calcsize(HEAD)
#: The first four bytes of a message of this version -> what unpacks the size of its description, and its numbers.
_STARTS = {
    bytes([_FIRST, VERSION, n, 0]): struct.Struct(f"<4xI{n}q")
    for n in range(1 + max(len(schema.numbers) for schema in KINDS.values()))
}


class UnfitError(WireError):
    """A message each field of which is what it may be, and which do not go together."""


class UnreadableError(WireError):
    """A tensor lies in shared memory that the receiver cannot read: the sender should let tensors travel."""


@dataclass(slots=True, eq=False, repr=False)  # a frozen one takes twice as long to make
class Message:
    """One message. Compared by identity, since arrays have no single truth value.

    Attributes:
        kind: a key of `KINDS`.
        fields: plain values: None, bool, int, float, str, bytes, and lists and str-keyed dicts of them. The lists and dicts of
            one that arrived belong to others, too: nobody changes them.
        tensors: arrays of any element type in `graph.dtypes`, strings as object arrays of bytes or str.
            Decoded ones are read-only and alias the received buffer.
        form: of one that is to be sent, and whose `fields` are its numbers alone: the others.

    >>> frames = encode(Message("ping", {"seq": 7}))
    >>> decode(frames)
    Message('ping', seq=7)
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()
    form: Form | None = None

    def __repr__(self) -> str:
        parts = [repr(self.kind)]
        for name, value in self.fields.items():
            text = f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)
            parts.append(f"{name}={text if len(text) <= 80 else text[:77] + '...'}")
        parts += [f"{t.dtype}{list(t.shape)}" for t in self.tensors]
        return f"Message({', '.join(parts)})"


Lend: TypeAlias = Callable[[np.ndarray[Any, Any], bool], "Sequence[int] | None"]
"""Says where the receiver can read an array, or, if so asked, a copy of its own; None: it has to travel."""

Borrow: TypeAlias = Callable[[Any, int], np.ndarray[Any, np.dtype[np.uint8]]]
"""The bytes at such a place, so many; ValueError when they cannot be read."""

_Known: TypeAlias = tuple[KindSchema, dict[str, Any], tuple[Layout, ...], int]
"""What a description means: the kind, the fields in it, its tensors, and how many frames the message has without its `bytes`."""

_packed: dict[Hashable, bytes] = {}  # kind, fields and tensors' descriptions -> the description
_understood: dict[bytes, _Known] = {}
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


def _remember(table: dict[_K, _V], key: _K, value: _V) -> None:
    """Keep what a description means, or is made of; forget the oldest one if there are too many. Several threads may do so."""
    table[key] = value
    if len(table) > _MOST_REMEMBERED:
        with contextlib.suppress(KeyError, RuntimeError):  # another thread was quicker
            del table[next(iter(table))]


# --- out -------------------------------------------------------------------------------------------------------------


def encode(message: Message, lend: Lend | None = None, compressed: bool = False) -> list[Frame]:
    """The frames of `message`. `lend` is asked for every tensor of `SHARE_BYTES` and more; `compressed`: make large ones smaller.

    Tensors of `BORROW_BYTES` and more are not copied: their frames are views of the arrays, which must not
    change until they have been sent. Smaller ones are copied.

    Raises:
        WireError: an unknown kind, a field that the kind does not have or of another type, a tensor where
            none may be or of an element type that cannot travel. Nothing has been sent.
    """
    if message.form is not None:
        return message.form.encode(tuple(message.fields.values()), message.tensors, lend)
    schema = KINDS.get(message.kind)
    if schema is None:
        raise WireError(f"there is no message kind {message.kind!r}; known kinds: {', '.join(KINDS)}")
    fields = message.fields
    frames: list[Frame] = [b""]
    specs: list[tuple[Any, ...]] = []
    values: list[Frame] = []
    if message.tensors:
        _check_attached(schema, len(message.tensors))
        _pack_tensors(message.tensors, schema, lend, compressed, frames, specs, values)
    try:
        others, numbers = fields.copy(), []
        for name in schema.numbers:
            numbers.append(others.pop(name))
        key = schema.kind, tuple(others.items()), tuple(specs)
        description = _packed.get(key)
    except (AttributeError, KeyError, TypeError):  # one is missing; or there is a list, or what can be no field
        description = key = None
    if description is None:
        description = _describe(schema, fields, specs, frames)
        if key is not None and schema.tensors and len(description) <= _LONGEST_REMEMBERED:
            _remember(_packed, key, description)
    frames[0] = _header(schema, numbers, description, values)
    return frames


class Form:
    """The messages of a kind with tensors that have the same fields, but for their numbers: what describes them is known by their tensors.

    Args:
        kind: a key of `KINDS` whose messages carry tensors.
        fields: all but the numbers.

    Raises:
        WireError: as of `encode`.

    >>> form = Form("run", {"program": "p", "feeds": ["x:0"]})
    >>> decode(encode(Message("run", {"request": 7, "step": 7}, (np.array(1.0),), form)))
    Message('run', program='p', feeds=['x:0'], request=7, step=7, float64[])
    """

    __slots__ = ("_described", "_fields", "_schema")

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        self._schema = KINDS[kind]
        self._fields = fields
        self._described: dict[tuple[Any, ...], bytes] = {}
        encode(Message(kind, dict.fromkeys(self._schema.numbers, 0) | fields))  # so that a mistake shows here

    def encode(self, numbers: tuple[int, ...], tensors: Sequence[Tensor], lend: Lend | None = None) -> list[Frame]:
        """The frames of one of them; its numbers are in the order of the kind's row."""
        schema = self._schema
        frames: list[Frame] = [b""]
        specs: list[tuple[Any, ...]] = []
        values: list[Frame] = []
        if tensors:
            _check_attached(schema, len(tensors))
            _pack_tensors(tensors, schema, lend, False, frames, specs, values)
        key = tuple(specs)
        description = self._described.get(key)
        if description is None:
            fields = dict(zip(schema.numbers, numbers, strict=True)) | self._fields
            description = _describe(schema, fields, specs, frames)
            if len(self._described) >= _MOST_FORMED:
                self._described.clear()
            self._described[key] = description
        frames[0] = _header(schema, numbers, description, values)
        return frames


def _header(schema: KindSchema, numbers: Sequence[int], description: bytes, values: Sequence[Frame]) -> bytes:
    """The first frame of a message."""
    try:
        head = schema.head.pack(_FIRST, VERSION, len(numbers), len(description), *numbers)
    except struct.error as error:
        raise WireError(f"message {schema.kind!r} cannot be packed: {error}") from None
    header = b"".join((head, description, *values))
    if len(header) > MAX_HEADER:
        limit = MAX_WIDE_HEADER if schema.wide else MAX_HEADER
        if len(header) > limit:
            raise WireError(
                f"message {schema.kind!r}: its fields need {len(header)} bytes, more than the {limit} allowed"
            )
    return header


def _pack_tensors(
    tensors: Sequence[Tensor], schema: KindSchema, lend: Lend | None, compressed: bool,
    frames: list[Frame], specs: list[tuple[Any, ...]], values: list[Frame],
) -> None:  # fmt: skip
    """Describe tensors, and put their bytes, or where they lie, among the frames and values."""
    inline = 0
    room = compression.MOST_BYTES if compressed else 0
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, np.generic):
            tensor = np.asarray(tensor)  # a scalar's own `tobytes` takes eight times as long
        if type(tensor) is np.ndarray and tensor.nbytes <= INLINE_BYTES and inline <= MAX_INLINE - INLINE_BYTES:
            known = NAME_OF.get(tensor.dtype)
            if known is not None:  # a small tensor of numbers, as most are
                inline += tensor.nbytes
                specs.append((known, tensor.shape, HERE))
                values.append(tensor.tobytes())
                continue
        if not isinstance(tensor, np.ndarray):
            raise WireError(f"tensor {index} is a {type(tensor).__name__}, not a NumPy array")
        if (lend is not None or room) and tensor.nbytes >= SHARE_BYTES and tensor.dtype in NAME_OF:
            place = None if lend is None else lend(tensor, schema.given)
            if place is not None:
                specs.append((NAME_OF[tensor.dtype], tensor.shape, LENT))
                values.append(PLACE.pack(*place))
                continue
            packed = compression.compress(tensor, room) if room else None
            if packed is not None:
                room -= tensor.nbytes
                specs.append((NAME_OF[tensor.dtype], tensor.shape, compression.NAME))
                frames.append(packed)
                continue
        name, buffer = pack_tensor(tensor, index)
        size = len(buffer)
        if size <= INLINE_BYTES and inline + size <= MAX_INLINE:
            inline += size
            specs.append((name, tensor.shape, HERE))
            values.append(buffer)
        else:
            specs.append((name, tensor.shape))
            frames.append(buffer)


def _describe(schema: KindSchema, fields: Any, specs: Sequence[Any], frames: list[Frame]) -> bytes:
    """Check a message, and pack its description; the fields of type `bytes` become frames."""
    check_fields(schema.kind, schema.fields, schema.required, fields)
    others = {name: value for name, value in fields.items() if name not in schema.numbers}
    for blob in schema.blobs:
        frames.append(fields[blob])
        others[blob] = len(fields[blob])
    try:
        return _packers.pack((schema.kind, others, specs))
    except Exception as error:  # an int beyond 64 bits, a str with lone surrogates
        raise WireError(f"message {schema.kind!r} cannot be packed: {error}") from None


class _Packers(threading.local):
    """One packer per thread: making one costs more than packing; it serves one thread at a time."""

    def __init__(self) -> None:
        self.pack: Callable[[Any], bytes] = msgpack.Packer().pack


_packers = _Packers()


# --- in --------------------------------------------------------------------------------------------------------------


def decode(frames: Sequence[Frame], borrow: Borrow | None = None) -> Message:
    """The message that `frames` carry; its tensors are read-only views of the frames, or of shared memory.

    Each frame is `bytes` or a memoryview of single bytes. Without `borrow` no tensor may lie in shared memory.

    Raises:
        WireError: anything about the frames that is not as the protocol has it.
    """
    if not frames:
        raise WireError("an empty message: there is no header frame")
    header = frames[0]
    if len(header) > MAX_HEADER:
        _check_size(header)
    if type(header) is not bytes:
        header = bytes(header)
    start = _STARTS.get(header[:4])
    if start is None or len(header) < start.size:
        raise _no_start(header)
    numbers = start.unpack_from(header)
    at = start.size + numbers[0]
    description = header[start.size : at]
    known = _understood.get(description)
    fields: dict[str, Any] = {}
    try:
        if known is None:
            schema, others, specs = _unpacked(description)
            fields = dict(zip(schema.numbers, numbers[1:], strict=False))
            known = _understand(schema, others, specs)
            if schema.tensors and len(description) <= _LONGEST_REMEMBERED:
                _remember(_understood, description, known)
        schema, others, layouts, frame_count = known
        if len(numbers) != 1 + len(schema.numbers):
            raise WireError(f"message {schema.kind!r} has {len(schema.numbers)} numbers, {len(numbers) - 1} came")
        fields = others.copy()
        for i, name in enumerate(schema.numbers, 1):
            fields[name] = numbers[i]
        if schema.blobs:
            _restore_blobs(schema, fields, frames)
        elif len(frames) != frame_count:
            raise WireError(
                f"message {schema.kind!r}: {frame_count - 1} tensors announced, {len(frames) - 1} frames came"
            )
        if not layouts:
            if at != len(header):
                raise WireError(f"message {schema.kind!r}: {len(header) - at} bytes too many")
            return Message(schema.kind, fields)
        return Message(schema.kind, fields, _unpack_tensors(layouts, header, at, frames, borrow))
    except WireError as error:
        error.request = fields.get("request") or 0
        raise


def _check_size(header: Frame) -> None:
    """Look at the kind of a large message before anything is made of it."""
    begin = _HEAD_BYTES + 8 * header[2] + 1
    if len(header) > MAX_WIDE_HEADER or not bytes(header[begin : begin + 32]).startswith(_WIDE):
        raise WireError(f"a header of {len(header)} bytes is larger than its kind allows")


def _no_start(header: bytes) -> WireError:
    """What is wrong with how a message begins. Its first two bytes mean the same in every version."""
    if len(header) < 2 or header[0] != _FIRST:
        return WireError("not a message of this protocol")
    if header[1] != VERSION:
        return WireError(
            f"the peer speaks version {header[1]} of the protocol, this process version {VERSION}: "
            "run the same release of dovetail in all tasks and clients"
        )
    return WireError("the header is not [numbers, description, values], or is cut off")


_WIDE = tuple(msgpack.packb(schema.kind) for schema in KINDS.values() if schema.wide)


def _unpacked(description: bytes) -> tuple[KindSchema, dict[str, Any], list[Any]]:
    """The parts of a description, of which nothing is known yet but the kind."""
    try:
        parts = msgpack.unpackb(description, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack's own, and for some inputs TypeError or OverflowError
        raise WireError(f"the description is not msgpack: {error or type(error).__name__}") from None
    if type(parts) is not list or len(parts) != 3 or [type(part) for part in parts] != [str, dict, list]:
        raise WireError("the description is not [kind, fields, tensors]")
    kind, others, specs = parts
    schema = KINDS.get(kind)
    if schema is None:
        raise WireError(f"there is no message kind {kind[:64]!r}")
    return schema, others, specs


def _understand(schema: KindSchema, others: dict[str, Any], specs: list[Any]) -> _Known:
    """What a description means, after everything in it was checked."""
    if specs:
        _check_attached(schema, len(specs))
    layouts = tuple([layout_of(spec, index) for index, spec in enumerate(specs)])
    check_fields(schema.kind, schema.described, schema.required.difference(schema.numbers), others)
    return schema, others, layouts, 1 + sum(where not in (HERE, LENT) for where, *_ in layouts)


def _check_attached(schema: KindSchema, count: int) -> None:
    if not schema.tensors:
        raise WireError(f"message {schema.kind!r} carries no tensors, but {count} are attached")
    if count > MAX_TENSORS:
        raise WireError(f"message {schema.kind!r}: {count} tensors, at most {MAX_TENSORS} can travel together")


def _unpack_tensors(
    layouts: Sequence[Layout], header: bytes, at: int, frames: Sequence[Frame], borrow: Borrow | None
) -> tuple[Tensor, ...]:
    """The tensors of a message whose values begin at `at` of its header."""
    tensors: list[Tensor] = []
    frame = 1
    room = compression.MOST_BYTES
    for layout in layouts:
        where, size, dtype, shape = layout
        index = len(tensors)
        if where is HERE:
            end = at + (size if dtype is not None else strings_size(layout, header, at, index))
            if dtype is not None and dtype is not BOOL and end <= len(header):  # any bytes are such a tensor
                tensors.append(np.ndarray(shape, dtype, header[at:end]))
            else:
                tensors.append(unpack_tensor(layout, header[at:end], index))
            at = end
        elif where is LENT:
            tensors.append(_unpack_lent(layout, header[at : at + PLACE.size], borrow, index))
            at += PLACE.size
        else:
            if where:
                tensors.append(unpack_compressed(layout, frames[frame], room, index))
                room -= layout[1]
            else:
                tensors.append(unpack_tensor(layout, frames[frame], index))
            frame += 1
    if at != len(header):
        raise WireError(f"{len(header) - at} bytes too many for the values of a message")
    return tuple(tensors)


def _unpack_lent(layout: Layout, place: bytes, borrow: Borrow | None, index: int) -> Tensor:
    """One read-only array over shared memory."""
    if borrow is None:
        raise WireError(f"tensor {index} cannot lie in shared memory here")
    if len(place) != PLACE.size:
        raise WireError(f"tensor {index} is lent, and where is cut off")
    try:
        memory = borrow(PLACE.unpack(place), layout[1])
    except ValueError as error:
        raise UnreadableError(f"tensor {index} lies in shared memory that cannot be read: {error}") from None
    return unpack_tensor(layout, memory, index)


def _restore_blobs(schema: KindSchema, fields: dict[str, Any], frames: Sequence[Frame]) -> None:
    """Put the fields of type `bytes` back where the description has their lengths."""
    for at, name in enumerate(schema.blobs, 1):
        if at >= len(frames) or fields[name] != len(frames[at]):
            raise WireError(f"message {schema.kind!r}: field {name!r} and its frame do not match")
        fields[name] = bytes(frames[at])
    if len(frames) > 1 + len(schema.blobs):
        raise WireError(f"message {schema.kind!r}: {len(frames) - 1 - len(schema.blobs)} frames too many")


__all__ = [
    "BORROW_BYTES",
    "INLINE_BYTES",
    "KINDS",
    "MAX_DEPTH",
    "MAX_DIM",
    "MAX_HEADER",
    "MAX_RANK",
    "MAX_TENSORS",
    "MAX_WIDE_HEADER",
    "VERSION",
    "Borrow",
    "Bytes",
    "Form",
    "Frame",
    "Lend",
    "Message",
    "Tensor",
    "UnfitError",
    "UnreadableError",
    "WireError",
    "decode",
    "encode",
]
