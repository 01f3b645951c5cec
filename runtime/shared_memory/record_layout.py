"""The 192-byte record in shared memory that says where the value of a published variable lies: see `shared_variable.py`.

Its words have 64 bits each:

    version    odd: there is no value, and the words behind may change; even: they hold
    number     the record's number: a record is used again for another variable, with another number
    turn       how many changes the value has had; if odd, it is in the second buffer
    holder     the process that holds the lock, for error messages
    wanted     for an accumulator: how many gradients the task waits for (graph/resources/shared_accumulator.py)
    descriptor and number of the segment, offset of the first buffer, distance to the second one, bytes, element type, rank, dimensions

The order of stores and loads matters. Each is a call of its own here, so compilers keep it. Processors keep it if they reorder neither
loads with loads nor stores with stores. x86 keeps it, ARM does not, so variables are not published on ARM.
"""

from __future__ import annotations

import mmap
import platform
from typing import Final, NamedTuple

from ...graph.core import dtypes

PAGE: Final = 4096
RECORD_BYTES: Final = 192  # three cache lines
RECORDS: Final = 512  # per segment
VERSION, NUMBER, TURN, HOLDER, WANTED, WHERE = range(6)
_HEAD: Final = 7  # words of `WHERE` before the dimensions
MOST_DIMS: Final = RECORD_BYTES // 8 - WHERE - _HEAD

TYPES: Final = tuple(t for t in dtypes.ALL if t.np.kind != "O" and t is not dtypes.resource)
CODES: Final = {t.np: i for i, t in enumerate(TYPES)}


def can_publish() -> bool:
    """Whether this machine supports published variables: its processors keep the order of stores and loads."""
    return platform.machine() in ("x86_64", "AMD64")


class RecordAddress(NamedTuple):
    """The address of a record: a reference to shared memory, and the record's number."""

    pid: int
    fd: int
    segment: int
    offset: int
    number: int


def words_of(memory: mmap.mmap, offset: int) -> memoryview:
    """The words of a record in a mapped segment."""
    return memoryview(memory)[offset : offset + RECORD_BYTES].cast("Q")
