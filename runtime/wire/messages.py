"""The wire format: what a message is, and how its bytes are laid out.

A message is a kind, some named fields, and tensors. It travels as a list of frames:

    frame 0    the header: a fixed start, the description, and the values that differ from step to step
    then       the raw elements of tensors, C order, little-endian (as all supported machines are)
    then       the value of each field of type `bytes`, in the order of the kind's row

    header         0x94, version, how many numbers, 0 (a byte each), the size of the description (4 bytes),
                   the numbers: the kind's required fields of type int (8 bytes each), the description, the values
    description    msgpack of [kind, the other fields, [[dtype, shape, place], ...]]

The description of a message is the same at each step of a run signature. So both sides cache the descriptions that they have seen: a
step costs a table lookup instead of packing, unpacking and checking.

A tensor's place says where its bytes are. `here`: small tensors lie among the values, since a frame costs more than a copy.
`lent`: in shared memory; the values have the reference. `frame`: in a frame.

Fields of type `bytes` (a graph, a partition) have frames of their own to keep the header small; they are not in the description.

Received data is not trusted. `KINDS` (schema.py) lists the kinds and their fields. `decode` checks a message against it, and
every bound, before it makes an array. msgspec checks while it unpacks, so a malformed description costs no memory. Every error is a
`WireError`. Nothing is ever unpickled or evaluated. `encode` checks what it has packed in the same way, so an error shows at the sender.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from .schema import KINDS, KindSchema, WireError
from .tensors import (
    FRAME,
    HERE,
    LENT,
    NAME_OF,
    PLACE,
    SHARE_BYTES,
    SPEC,
    Frame,
    Layout,
    Spec,
    Tensor,
    layout_of,
    pack_tensor,
    strings_size,
    unpack_tensor,
)

VERSION = 13  # one byte; messages of another version are refused with an error that names both

#: A tensor of at most this many bytes is in the header, as long as those of a message need no more than `MAX_INLINE` together.
INLINE_BYTES = 4096
MAX_INLINE = 256 * 1024

MAX_HEADER = 16 << 20  # bytes
MAX_TENSORS = 16_384  # per message
MAX_FRAMES = MAX_TENSORS + 8  # the header, the tensors and the fields outside the header

MOST_REMEMBERED: Final = 1_024  # cached descriptions per direction, which bounds the memory that peers can fill
LONGEST_REMEMBERED: Final = 1_024  # bytes of a cached description

_FIRST: Final = 0x94  # as in version 1, so that all versions recognize each other
#: First four bytes of a message of this version -> the struct that unpacks the size of its description and its numbers.
_STARTS: Final = {
    bytes([_FIRST, VERSION, n, 0]): struct.Struct(f"<4xI{n}q")
    for n in range(1 + max(len(schema.numbers) for schema in KINDS.values()))
}


class InconsistentMessageError(WireError):
    """The fields of a message are valid, but contradict each other."""


class UnmappedTensorError(WireError):
    """A tensor lies in shared memory that the receiver cannot map. The sender should send its bytes."""


class Message(msgspec.Struct, eq=False):  # a dataclass takes 3 times as long to make
    """One message. Compared by identity, since arrays have no single truth value.

    Attributes:
        kind: a key of `KINDS`.
        fields: plain values: None, bool, int, float, str, bytes, and lists and str-keyed dicts of them. Decoded messages share their
            lists and dicts: do not change them.
        tensors: arrays of any element type in `graph.dtypes`, strings as object arrays of bytes or str.
            Decoded ones are read-only and alias the received buffer.

    >>> frames = encode(Message("ping", {"seq": 7}))
    >>> decode(frames)
    Message('ping', seq=7)
    """

    kind: str
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()

    def reply(self, tensors: tuple[Tensor, ...] = (), /, **fields: Any) -> Message:
        """The reply to this request, of the kind that the table says."""
        return Message(KINDS[self.kind].reply, {"request": self.fields["request"], **fields}, tensors)

    def __repr__(self) -> str:
        parts = [repr(self.kind)]
        for name, value in self.fields.items():
            text = f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)
            parts.append(f"{name}={text if len(text) <= 80 else text[:77] + '...'}")
        parts += [f"{t.dtype}{list(t.shape)}" for t in self.tensors]
        return f"Message({', '.join(parts)})"


ChannelKey: TypeAlias = int | str
"""A channel's number; inside loops, followed by the iteration numbers."""

Lend: TypeAlias = Callable[[np.ndarray[Any, Any], bool], "Sequence[int] | None"]
"""Lends an array (or a copy, for the receiver alone). Returns the numbers of a `Reference`; None: its bytes must be sent."""

Borrow: TypeAlias = Callable[[Any, int], np.ndarray[Any, np.dtype[np.uint8]]]
"""Maps that many bytes of a `Reference`; ValueError if they cannot be mapped."""


def _too_many(schema: KindSchema, count: int) -> WireError:
    """The error of a message that may not have that many tensors."""
    if not schema.tensors:
        return WireError(f"message {schema.kind!r} carries no tensors, but {count} are attached")
    return WireError(f"message {schema.kind!r}: {count} tensors, at most {MAX_TENSORS} can travel together")


# --- encoding --------------------------------------------------------------------------------------------------------

_pack = msgspec.msgpack.Encoder().encode
_packed: dict[Hashable, bytes] = {}  # kind, fields and tensors' descriptions -> the description


def _remember(table: dict[Any, Any], key: Hashable, value: Any, schema: KindSchema, description: bytes) -> None:
    """Cache what comes again at each step."""
    if key is not None and (schema.tensors or not schema.content.fields) and len(description) <= LONGEST_REMEMBERED:
        if len(table) >= MOST_REMEMBERED:
            table.clear()
        table[key] = value


def encode(message: Message, lend: Lend | None = None) -> list[Frame]:
    """The frames of `message`. Tensors of `SHARE_BYTES` or more are offered to `lend`.

    Tensors of `BORROW_BYTES` and more are not copied: their frames are views of the arrays, which must not
    change until they are sent. Smaller ones are copied.

    Raises:
        WireError: an unknown kind, an unknown field or one of a wrong type, a tensor where
            the kind has none, or an unsupported element type. Nothing has been sent.
    """
    schema = KINDS.get(message.kind)
    if schema is None:
        raise WireError(f"there is no message kind {message.kind!r}; known kinds: {', '.join(KINDS)}")
    fields = message.fields
    frames: list[Frame] = [b""]
    specs: list[Spec] = []
    values: list[Frame] = []
    if message.tensors:
        if not schema.tensors or len(message.tensors) > MAX_TENSORS:
            raise _too_many(schema, len(message.tensors))
        _pack_tensors(message.tensors, schema, lend, frames, specs, values)
    try:
        others = fields.copy()
        numbers = list(map(others.pop, schema.numbers))
        key = schema.kind, tuple(others.items()), tuple(specs)
        description = _packed.get(key)
    except (AttributeError, KeyError, TypeError):  # a field is missing, or a value is unhashable
        description = key = None
    if description is None:
        description, numbers = _describe(schema, fields, specs, frames)
        _remember(_packed, key, description, schema, description)
    try:
        head = schema.head.pack(_FIRST, VERSION, len(numbers), len(description), *numbers)
    except struct.error as error:
        raise WireError(f"message {schema.kind!r} cannot be packed: {error}") from None
    frames[0] = header = b"".join((head, description, *values))
    if len(header) > MAX_HEADER:
        raise WireError(
            f"message {schema.kind!r}: its fields need {len(header)} bytes, more than the {MAX_HEADER} allowed"
        )
    return frames


def _describe(schema: KindSchema, fields: Any, specs: Sequence[Spec], frames: list[Frame]) -> tuple[bytes, list[int]]:
    """Check a message, and pack its description and its numbers; fields of type `bytes` become frames."""
    try:
        msgspec.convert(fields, schema.type, builtin_types=(bytes,))
        frames += [fields[name] for name in schema.blobs]
        others = {n: value for n, value in fields.items() if n not in schema.numbers and n not in schema.blobs}
        return _pack((schema.kind, others, specs)), [fields[name] for name in schema.numbers]
    except Exception as error:  # msgspec's own errors; an int beyond 64 bits, a str with lone surrogates
        raise WireError(f"message {schema.kind!r} cannot be packed: {error}") from None


def _pack_tensors(
    tensors: Sequence[Tensor], schema: KindSchema, lend: Lend | None,
    frames: list[Frame], specs: list[Spec], values: list[Frame],
) -> None:  # fmt: skip
    """Describe tensors, and append their bytes, or shared-memory references, to the frames and values."""
    inline = 0
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, np.ndarray):
            if not isinstance(tensor, np.generic):
                raise WireError(f"tensor {index} is a {type(tensor).__name__}, not a NumPy array")
            tensor = np.asarray(tensor)  # a NumPy scalar's `tobytes` takes 8 times as long
        if lend is not None and tensor.nbytes >= SHARE_BYTES and tensor.dtype in NAME_OF:
            place = lend(tensor, schema.given)
            if place is not None:
                specs.append((NAME_OF[tensor.dtype], tensor.shape, LENT))
                values.append(PLACE.pack(*place))
                continue
        name, buffer = pack_tensor(tensor, index)
        size = len(buffer)
        if size <= INLINE_BYTES and inline + size <= MAX_INLINE:
            inline += size
            specs.append((name, tensor.shape, HERE))
            values.append(buffer)
        else:
            specs.append((name, tensor.shape, FRAME))
            frames.append(buffer)


# --- decoding --------------------------------------------------------------------------------------------------------


_unpack = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw, list[SPEC]]).decode
_unpack_fields = msgspec.msgpack.Decoder(dict[str, Any]).decode
_unpack_kind = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw, msgspec.Raw]).decode
_Known: TypeAlias = tuple[KindSchema, dict[str, Any], list[Layout], int, int | None]
"""A decoded description: the kind, its fields, its tensors, the number of frames; and the size of its values if they are plain numbers,
which need no other check."""
_known: dict[bytes, _Known] = {}


def glimpse(header: Frame) -> tuple[str, dict[str, int]]:
    """The kind of a message with this header, and its numbers; '' and none if they cannot be read."""
    try:
        start = _STARTS[bytes(header[:4])]
        size, *numbers = start.unpack_from(header)
        schema = KINDS[_unpack_kind(header[start.size : start.size + size])[0]]
        return schema.kind, dict(zip(schema.numbers, numbers, strict=True))
    except Exception:
        return "", {}


def decode(frames: Sequence[Frame], borrow: Borrow | None = None) -> Message:
    """The message in `frames`. Its tensors are read-only views of the frames or of shared memory.

    Each frame is `bytes` or a memoryview of single bytes. Without `borrow`, tensors in shared memory are refused.

    Raises:
        WireError: the frames break the protocol in any way.
    """
    if not frames:
        raise WireError("an empty message: there is no header frame")
    header = frames[0]
    try:
        if len(header) > MAX_HEADER:
            raise WireError(f"a header of {len(header)} bytes is larger than the {MAX_HEADER} allowed")
        if type(header) is not bytes:
            header = bytes(header)
        start = _STARTS.get(header[:4])
        if start is None or len(header) < start.size:
            raise _no_start(header)
        numbers = start.unpack_from(header)
        at = start.size + numbers[0]
        description = header[start.size : at]
        known = _known.get(description)
        if known is None:
            known = _understood(description)
            _remember(_known, description, known, known[0], description)
        schema, others, layouts, frame_count, size = known
        if len(numbers) != 1 + len(schema.numbers):
            raise WireError(f"message {schema.kind!r} has {len(schema.numbers)} numbers, {len(numbers) - 1} came")
        if len(frames) != frame_count:
            raise WireError(f"message {schema.kind!r}: {frame_count - 1} frames announced, {len(frames) - 1} came")
        fields = others.copy()
        for i, name in enumerate(schema.numbers, 1):
            fields[name] = numbers[i]
        if schema.blobs:
            fields.update(zip(schema.blobs, map(bytes, frames[1:]), strict=False))
        if size is None:
            return Message(schema.kind, fields, _unpack_tensors(layouts, header, at, frames, borrow))
        if at + size != len(header):
            raise WireError(f"message {schema.kind!r}: a header of {at + size} bytes was announced, {len(header)} came")
        tensors: list[Tensor] = []
        for _, size, dtype, shape in layouts:
            tensors.append(np.ndarray(shape, dtype, header[at : (at := at + size)]))
        return Message(schema.kind, fields, tuple(tensors))
    except WireError as error:
        error.request = glimpse(header)[1].get("request", 0)
        raise


def _understood(description: bytes) -> _Known:
    """Check a description, and return what it means."""
    try:
        kind, packed, specs = _unpack(description)
    except Exception as error:
        raise WireError(f"the description is not msgpack of [kind, fields, tensors]: {error}") from None
    schema = KINDS.get(kind)
    if schema is None:
        raise WireError(f"there is no message kind {kind[:64]!r}")
    if len(specs) > (MAX_TENSORS if schema.tensors else 0):
        raise _too_many(schema, len(specs))
    try:
        schema.checker.decode(packed)
    except Exception as error:  # msgspec's own errors, and RecursionError
        raise WireError(f"message {kind!r}: {error}") from None
    layouts = [layout_of(*spec) for spec in specs]
    count = 1 + len(schema.blobs) + sum(place == FRAME for place, *_ in layouts)
    is_plain = all(
        place == HERE and size and dtype is not None and dtype.kind != "b" for place, size, dtype, _ in layouts
    )
    size = sum(size for _, size, _, _ in layouts) if is_plain else None
    return schema, _unpack_fields(packed), layouts, count, size


def _unpack_tensors(
    layouts: Sequence[Layout], header: bytes, at: int, frames: Sequence[Frame], borrow: Borrow | None
) -> tuple[Tensor, ...]:
    """The tensors of a message whose values start at `at` of its header."""
    tensors: list[Tensor] = []
    frame = 1
    for layout in layouts:
        place, size, dtype, _ = layout
        index = len(tensors)
        if place == HERE:
            end = at + (size if dtype is not None else strings_size(size, header, at, index))
            tensors.append(unpack_tensor(layout, header[at:end], index))
            at = end
        elif place == LENT:
            tensors.append(_unpack_lent(layout, header[at : at + PLACE.size], borrow, index))
            at += PLACE.size
        else:
            tensors.append(unpack_tensor(layout, frames[frame], index))
            frame += 1
    if at != len(header):
        raise WireError(f"{len(header) - at} bytes too many for the values of a message")
    return tuple(tensors)


def _unpack_lent(layout: Layout, place: bytes, borrow: Borrow | None, index: int) -> Tensor:
    if borrow is None or layout[2] is None:
        raise WireError(f"tensor {index} cannot lie in shared memory here")
    if len(place) != PLACE.size:
        raise WireError(f"tensor {index} is lent, and where is cut off")
    try:
        memory = borrow(PLACE.unpack(place), layout[1])
    except ValueError as error:
        raise UnmappedTensorError(f"tensor {index} lies in shared memory that cannot be read: {error}") from None
    return unpack_tensor(layout, memory, index)


def _no_start(header: bytes) -> WireError:
    """The error of a message with a wrong start. Its first two bytes mean the same in every version."""
    if len(header) < 2 or header[0] != _FIRST:
        return WireError("not a message of this protocol")
    if header[1] != VERSION:
        return WireError(
            f"the peer speaks version {header[1]} of the protocol, this process version {VERSION}: "
            "run the same release of dovetail in all tasks and clients"
        )
    return WireError("the header is not [numbers, description, values], or is cut off")
