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

Nothing that arrives is trusted. `KINDS` (schema.py) says which kinds exist and what each carries; `decode` checks a
message against it, and every bound, before it makes a single array. Whatever is wrong, it raises
`WireError`, nothing else. Nothing is ever unpickled or evaluated. `encode` checks the same table, so that a
mistake shows where it was made.

`encode` and `decode` are in `codec.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from .schema import KINDS, MAX_DEPTH, KindSchema, WireError
from .tensors import BORROW_BYTES, MAX_DIM, Bytes, Frame, Tensor

VERSION = 3  # one byte on the wire; processes of another version are refused with an error that says so

#: A tensor of at most this many bytes travels in the header, as long as those of a message need no more than `MAX_INLINE` together.
INLINE_BYTES = 4096
MAX_INLINE = 256 * 1024

MAX_HEADER = 1 << 20  # bytes, for most kinds
MAX_WIDE_HEADER = 16 << 20  # bytes, for the kinds whose fields describe whole plans
MAX_TENSORS = 16_384  # per message

MOST_REMEMBERED: Final = 1_024  # descriptions, each way; so what others send takes a bounded part of the memory
LONGEST_REMEMBERED: Final = 1_024  # bytes of one

FIRST: Final = 0x94  # as version 1 had it, so that either notices the other


class InconsistentMessageError(WireError):
    """A message whose fields are valid each, but contradict each other."""


class UnmappedTensorError(WireError):
    """A tensor lies in shared memory that the receiver cannot map: the sender should send its bytes."""


class Encoder(Protocol):
    """What knows most of a message already; see `codec.HeaderTemplate`."""

    def encode(
        self, numbers: tuple[int, ...], tensors: Sequence[Tensor], lend: Lend | None = None, /
    ) -> list[Frame]: ...


@dataclass(slots=True, eq=False, repr=False)  # a frozen one takes twice as long to make
class Message:
    """One message. Compared by identity, since arrays have no single truth value.

    Attributes:
        kind: a key of `KINDS`.
        fields: plain values: None, bool, int, float, str, bytes, and lists and str-keyed dicts of them. The lists and dicts of
            one that arrived belong to others, too: nobody changes them.
        tensors: arrays of any element type in `graph.dtypes`, strings as object arrays of bytes or str.
            Decoded ones are read-only and alias the received buffer.
        template: of a message to be sent whose `fields` are its numbers alone: encodes it with the other fields.

    >>> frames = encode(Message("ping", {"seq": 7}))
    >>> decode(frames)
    Message('ping', seq=7)
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()
    template: Encoder | None = None

    def __repr__(self) -> str:
        parts = [repr(self.kind)]
        for name, value in self.fields.items():
            text = f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)
            parts.append(f"{name}={text if len(text) <= 80 else text[:77] + '...'}")
        parts += [f"{t.dtype}{list(t.shape)}" for t in self.tensors]
        return f"Message({', '.join(parts)})"


ChannelKey: TypeAlias = int | str
"""A channel's number; inside a loop, followed by those of the iterations."""

Lend: TypeAlias = Callable[[np.ndarray[Any, Any], bool], "Sequence[int] | None"]
"""Lends an array (or, if asked, a copy for the receiver alone): gives the numbers of a `Reference`; None: its bytes must travel."""

Borrow: TypeAlias = Callable[[Any, int], np.ndarray[Any, np.dtype[np.uint8]]]
"""Maps that many bytes of a `Reference`; ValueError if they cannot be mapped."""

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


def remember(table: dict[_K, _V], key: _K, value: _V) -> None:
    """Keep what a description means, or is made of; forget the oldest one if there are too many. Several threads may do so."""
    table[key] = value
    if len(table) > MOST_REMEMBERED:
        with contextlib.suppress(KeyError, RuntimeError):  # another thread was quicker
            del table[next(iter(table))]


def check_tensor_count(schema: KindSchema, count: int) -> None:
    """WireError: a message of this kind may not carry so many tensors."""
    if not schema.tensors:
        raise WireError(f"message {schema.kind!r} carries no tensors, but {count} are attached")
    if count > MAX_TENSORS:
        raise WireError(f"message {schema.kind!r}: {count} tensors, at most {MAX_TENSORS} can travel together")


__all__ = [
    "BORROW_BYTES",
    "INLINE_BYTES",
    "KINDS",
    "MAX_DEPTH",
    "MAX_DIM",
    "MAX_HEADER",
    "MAX_TENSORS",
    "MAX_WIDE_HEADER",
    "VERSION",
    "Borrow",
    "Bytes",
    "ChannelKey",
    "Frame",
    "Lend",
    "Message",
    "Tensor",
    "InconsistentMessageError",
    "UnmappedTensorError",
    "WireError",
]
