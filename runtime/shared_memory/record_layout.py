"""Records: what processes of one machine tell each other of a variable, in shared memory.

A record belongs to the task that has the variable (`variable_publisher.py`); others read the variable by it (`variable_reader.py`),
and change it (`shared_variable.py`). Its words, of 64 bits each:

    sequence number | the post's number | version of what follows; 0: there is nothing to read
    spare           how many bytes behind the value its second place is; 0: it has one place, and only its owner changes it
    turn            how often an opened variable has changed: where that is odd, the value is in the second place
    holder          the process that changes it, for errors
    wanted          how many gradients the task waits for, of an accumulator (graph/resources/shared_accumulator.py)
    descriptor and number of the segment, offset, bytes, element type, dimensions

The order of stores and loads matters. Each is a call of its own here, so compilers keep it; processors do where loads are not
exchanged with loads nor stores with stores: on x86, but not on ARM, where there are no records therefore.
"""

from __future__ import annotations

import mmap
import os
import platform
from typing import Any, Final, NamedTuple

from ...graph.core import dtypes

MOST_BYTES: Final = 1 << 20
"""Larger values are better lent: a copy of them costs more than two messages."""

PAGE: Final = 4096
RECORD_BYTES: Final = 192  # three cache lines
RECORDS: Final = 512  # in a segment
SEQUENCE, NUMBER, VERSION, SPARE, TURN, HOLDER, WANTED, WHERE = range(8)
_HEAD: Final = 6  # words of `WHERE` before the dimensions: descriptor, segment, offset, bytes, type, rank
MOST_DIMS: Final = RECORD_BYTES // 8 - WHERE - _HEAD

TYPES: Final = tuple(t for t in dtypes.ALL if t.np.kind != "O" and t is not dtypes.resource)
CODES: Final = {t.np: i for i, t in enumerate(TYPES)}

_ORDERED: Final = frozenset(("x86_64", "AMD64", "i686", "i386"))
"""Machines whose processors keep the order of stores, and that of loads."""


def can_publish() -> bool:
    """Whether this machine and system have what records need."""
    return platform.machine() in _ORDERED and hasattr(os, "pidfd_open")


class RecordAddress(NamedTuple):
    """Where a post is: its record, as a reference to shared memory names it, and its number."""

    pid: int
    fd: int
    segment: int
    offset: int
    number: int

    @classmethod
    def from_fields(cls, fields: Any) -> RecordAddress:
        """From a message's plain data. ValueError: it is malformed."""
        if (
            type(fields) not in (list, tuple)
            or len(fields) != 5
            or any(type(x) is not int or not 0 <= x < 1 << 63 for x in fields)
        ):
            raise ValueError(f"not the place of a post: {fields!r:.80}")
        return cls(*fields)


def words_of(memory: mmap.mmap, offset: int) -> memoryview:
    """The words of a record in a mapped segment."""
    return memoryview(memory)[offset : offset + RECORD_BYTES].cast("Q")


__all__ = [
    "CODES", "HOLDER", "MOST_BYTES", "MOST_DIMS", "NUMBER", "PAGE", "RECORDS", "RECORD_BYTES", "SEQUENCE", "SPARE", "TURN", "TYPES",
    "VERSION", "WANTED", "WHERE", "RecordAddress", "can_publish", "words_of",
]  # fmt: skip
