"""Messages as frames: see `wire.py`."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import msgpack
import numpy as np

from . import compression
from .kinds import KINDS, KindSchema, WireError, check_fields
from .shared_memory import SHARE_BYTES
from .tensor_bytes import HERE, LENT, NAME_OF, PLACE, Frame, Tensor, pack_tensor
from .wire import (
    FIRST,
    INLINE_BYTES,
    LONGEST_REMEMBERED,
    MAX_HEADER,
    MAX_INLINE,
    MAX_WIDE_HEADER,
    VERSION,
    Lend,
    Message,
    check_attached,
    remember,
)

_MOST_FORMED: Final = 64  # descriptions of one form: shapes of what is fed

_packed: dict[Hashable, bytes] = {}  # kind, fields and tensors' descriptions -> the description


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
        check_attached(schema, len(message.tensors))
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
        if key is not None and schema.tensors and len(description) <= LONGEST_REMEMBERED:
            remember(_packed, key, description)
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
            check_attached(schema, len(tensors))
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
