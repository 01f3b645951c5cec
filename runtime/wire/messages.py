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
`lent`: in shared memory; the values have the reference. The name of a compression (`compression.py`): in a frame, compressed.
No place: in a frame, as they are.

Fields of type `bytes` (a graph, a partition) have frames of their own to keep the header small: unpacking msgpack can need 70 times the
memory of its input, raw frames need none. In the description such a field holds its length.

Received data is not trusted. `KINDS` (schema.py) lists the kinds and their fields. `decode` checks a message against it, and
every bound, before it makes an array. Every error is a `WireError`. Nothing is ever unpickled or evaluated. `encode` checks the
same table, so an error shows at the sender.

`encode` and `decode` are in `codec.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from .schema import KindSchema, WireError
from .tensors import Tensor

VERSION = 8  # one byte; messages of another version are refused with an error that names both

#: A tensor of at most this many bytes is in the header, as long as those of a message need no more than `MAX_INLINE` together.
INLINE_BYTES = 4096
MAX_INLINE = 256 * 1024

MAX_HEADER = 1 << 20  # bytes, for most kinds
MAX_WIDE_HEADER = 16 << 20  # bytes, for the kinds whose fields describe whole plans
MAX_TENSORS = 16_384  # per message
MAX_FRAMES = MAX_TENSORS + 8  # the header, the tensors and the fields outside the header

MOST_REMEMBERED: Final = 1_024  # cached descriptions per direction, which bounds the memory that peers can fill
LONGEST_REMEMBERED: Final = 1_024  # bytes of a cached description

FIRST: Final = 0x94  # as in version 1, so that both versions recognize each other


class InconsistentMessageError(WireError):
    """The fields of a message are valid, but contradict each other."""


class UnmappedTensorError(WireError):
    """A tensor lies in shared memory that the receiver cannot map. The sender should send its bytes."""


@dataclass(slots=True, eq=False, repr=False)  # a frozen one takes 2 times as long to make
class Message:
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
    fields: dict[str, Any] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()

    def reply(self, kind: str, /, tensors: tuple[Tensor, ...] = (), **fields: Any) -> Message:
        """The reply of this kind to this request."""
        return Message(kind, {"request": self.fields["request"], **fields}, tensors)

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

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


def remember(table: dict[_K, _V], key: _K, value: _V) -> None:
    """Cache an entry; the oldest is dropped from a full table. Thread-safe."""
    table[key] = value
    if len(table) > MOST_REMEMBERED:
        with contextlib.suppress(KeyError, RuntimeError):  # another thread dropped it
            del table[next(iter(table))]


def check_tensor_count(schema: KindSchema, count: int) -> None:
    """WireError: a message of this kind may not have that many tensors."""
    if not schema.tensors:
        raise WireError(f"message {schema.kind!r} carries no tensors, but {count} are attached")
    if count > MAX_TENSORS:
        raise WireError(f"message {schema.kind!r}: {count} tensors, at most {MAX_TENSORS} can travel together")
