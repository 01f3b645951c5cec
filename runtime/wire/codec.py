"""`encode` turns messages into frames, `decode` frames into messages. `messages.py` describes the format.

`encode` checks a message against the schema, so an error shows at the sender. `decode` checks every byte before it allocates.
Both cache the descriptions of recent messages: a repeated step costs one table lookup.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from . import compression
from .messages import (
    FIRST,
    INLINE_BYTES,
    LONGEST_REMEMBERED,
    MAX_HEADER,
    MAX_INLINE,
    MAX_WIDE_HEADER,
    VERSION,
    Borrow,
    Lend,
    Message,
    UnmappedTensorError,
    check_tensor_count,
    remember,
)
from .schema import HEAD, KINDS, KindSchema, WireError, check_fields
from .tensors import (
    BOOL,
    HERE,
    LENT,
    NAME_OF,
    PLACE,
    SHARE_BYTES,
    Frame,
    Layout,
    Tensor,
    layout_of,
    pack_tensor,
    strings_size,
    unpack_compressed,
    unpack_tensor,
)

_packed: dict[Hashable, bytes] = {}  # kind, fields and tensors' descriptions -> the description


def encode(message: Message, lend: Lend | None = None, compressed: bool = False) -> list[Frame]:
    """The frames of `message`. Tensors of `SHARE_BYTES` or more are offered to `lend`. `compressed`: compress large ones.

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
    specs: list[tuple[Any, ...]] = []
    values: list[Frame] = []
    if message.tensors:
        check_tensor_count(schema, len(message.tensors))
        _pack_tensors(message.tensors, schema, lend, compressed, frames, specs, values)
    try:
        others, numbers = fields.copy(), []
        for name in schema.numbers:
            numbers.append(others.pop(name))
        key = schema.kind, tuple(others.items()), tuple(specs)
        description = _packed.get(key)
    except (AttributeError, KeyError, TypeError):  # a field is missing, or a value is unhashable
        description = key = None
    if description is None:
        description = _describe(schema, fields, specs, frames)
        if key is not None and schema.tensors and len(description) <= LONGEST_REMEMBERED:
            remember(_packed, key, description)
    frames[0] = _header(schema, numbers, description, values)
    return frames


def _header(schema: KindSchema, numbers: Sequence[int], description: bytes, values: Sequence[Frame]) -> bytes:
    """The first frame of a message."""
    try:
        head = schema.head.pack(FIRST, VERSION, len(numbers), len(description), *numbers)
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
    """Describe tensors, and append their bytes, or shared-memory references, to the frames and values."""
    inline = 0
    room = compression.MOST_BYTES if compressed else 0
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, np.generic):
            tensor = np.asarray(tensor)  # a NumPy scalar's `tobytes` takes 8 times as long
        if type(tensor) is np.ndarray and tensor.nbytes <= INLINE_BYTES and inline <= MAX_INLINE - INLINE_BYTES:
            known = NAME_OF.get(tensor.dtype)
            if known is not None:  # the common case: a small tensor of numbers
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
    """Check a message, and pack its description; fields of type `bytes` become frames."""
    check_fields(schema.kind, schema.content, fields)
    others = {name: value for name, value in fields.items() if name not in schema.numbers}
    for blob in schema.blobs:
        frames.append(fields[blob])
        others[blob] = len(fields[blob])
    try:
        return _pack((schema.kind, others, specs))
    except Exception as error:  # an int beyond 64 bits, a str with lone surrogates
        raise WireError(f"message {schema.kind!r} cannot be packed: {error}") from None


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[str, dict[str, Any], list[Any]]).decode
_HEAD_BYTES: Final = struct.calcsize(HEAD)
#: First four bytes of a message of this version -> the struct that unpacks the size of its description and its numbers.
_STARTS = {
    bytes([FIRST, VERSION, n, 0]): struct.Struct(f"<4xI{n}q")
    for n in range(1 + max(len(schema.numbers) for schema in KINDS.values()))
}
_Known: TypeAlias = tuple[KindSchema, dict[str, Any], tuple[Layout, ...], int]
"""A decoded description: the kind, its fields, its tensors, and the number of frames without those of `bytes` fields."""
_understood: dict[bytes, _Known] = {}


def decode(frames: Sequence[Frame], borrow: Borrow | None = None) -> Message:
    """The message in `frames`. Its tensors are read-only views of the frames or of shared memory.

    Each frame is `bytes` or a memoryview of single bytes. Without `borrow`, tensors in shared memory are refused.

    Raises:
        WireError: the frames break the protocol in any way.
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
            if schema.tensors and len(description) <= LONGEST_REMEMBERED:
                remember(_understood, description, known)
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
    """Check the kind of a large message before it is decoded."""
    begin = _HEAD_BYTES + 8 * header[2] + 1
    if len(header) > MAX_WIDE_HEADER or not bytes(header[begin : begin + 32]).startswith(_WIDE):
        raise WireError(f"a header of {len(header)} bytes is larger than its kind allows")


def _no_start(header: bytes) -> WireError:
    """The error of a message with a wrong start. Its first two bytes mean the same in every version."""
    if len(header) < 2 or header[0] != FIRST:
        return WireError("not a message of this protocol")
    if header[1] != VERSION:
        return WireError(
            f"the peer speaks version {header[1]} of the protocol, this process version {VERSION}: "
            "run the same release of dovetail in all tasks and clients"
        )
    return WireError("the header is not [numbers, description, values], or is cut off")


_WIDE = tuple(_pack(schema.kind) for schema in KINDS.values() if schema.wide)


def _unpacked(description: bytes) -> tuple[KindSchema, dict[str, Any], list[Any]]:
    """The parts of a description; only its kind is checked."""
    try:
        kind, others, specs = _unpack(description)
    except Exception as error:  # msgspec's own errors, and RecursionError
        raise WireError(f"the description is not msgpack of [kind, fields, tensors]: {error}") from None
    schema = KINDS.get(kind)
    if schema is None:
        raise WireError(f"there is no message kind {kind[:64]!r}")
    return schema, others, specs


def _understand(schema: KindSchema, others: dict[str, Any], specs: list[Any]) -> _Known:
    """Check a description, and return what it means."""
    if specs:
        check_tensor_count(schema, len(specs))
    layouts = tuple([layout_of(spec, index) for index, spec in enumerate(specs)])
    check_fields(schema.kind, schema.described, others)
    return schema, others, layouts, 1 + sum(where not in (HERE, LENT) for where, *_ in layouts)


def _unpack_tensors(
    layouts: Sequence[Layout], header: bytes, at: int, frames: Sequence[Frame], borrow: Borrow | None
) -> tuple[Tensor, ...]:
    """The tensors of a message whose values start at `at` of its header."""
    tensors: list[Tensor] = []
    frame = 1
    room = compression.MOST_BYTES
    for layout in layouts:
        where, size, dtype, shape = layout
        index = len(tensors)
        if where is HERE:
            end = at + (size if dtype is not None else strings_size(layout, header, at, index))
            if dtype is not None and dtype is not BOOL and end <= len(header):  # any bytes are valid for such a tensor
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
    """One read-only array in shared memory."""
    if borrow is None:
        raise WireError(f"tensor {index} cannot lie in shared memory here")
    if len(place) != PLACE.size:
        raise WireError(f"tensor {index} is lent, and where is cut off")
    try:
        memory = borrow(PLACE.unpack(place), layout[1])
    except ValueError as error:
        raise UnmappedTensorError(f"tensor {index} lies in shared memory that cannot be read: {error}") from None
    return unpack_tensor(layout, memory, index)


def _restore_blobs(schema: KindSchema, fields: dict[str, Any], frames: Sequence[Frame]) -> None:
    """Restore the fields of type `bytes`; the description has their lengths."""
    for at, name in enumerate(schema.blobs, 1):
        if at >= len(frames) or fields[name] != len(frames[at]):
            raise WireError(f"message {schema.kind!r}: field {name!r} and its frame do not match")
        fields[name] = bytes(frames[at])
    if len(frames) > 1 + len(schema.blobs):
        raise WireError(f"message {schema.kind!r}: {len(frames) - 1 - len(schema.blobs)} frames too many")
