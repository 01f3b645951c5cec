"""Collective algorithms in shared memory: what each member does, round by round.

A value is processed in rounds, each as large as a member's staging area. Three counters in each member's row show its progress, in rounds
since the buffer was made:

    staged    its values are in its staging area
    reduced   it has reduced its share, and published the result
    taken     it has read all that it needs of the round

`SharedMemoryAllReduce` works in one of three modes:

    flat      one wait: each member stages its value, and reduces all values itself. For values of up to `FLAT_BYTES`.
    common    two waits: each member stages the others' shares, reduces its own share into a result area that all members map, and
              waits for the others' shares. Staged data fits into the caches. Of other memory, a member only reads its value once and
              writes its share of the result, which is the minimum.
    copied    the same without a free result area, because a member still holds earlier results: each copies the others' shares.

`SharedMemoryGather` has one wait per round: each member stages its value, and copies those of the others. A byte is written to shared
memory once, for any number of members. Values may differ in length: all members stage in the first round, with their lengths, which
give the number of rounds.

A reduce-scatter is an all-reduce of which each member takes its rows. Broadcasts are sent by messages: the root does not wait for the
others.

A round may start when no member needs the former content of its staging area. So the other members' counters show a member its next
possible step (`expects`). The ranks fix the order of additions, so all members get the same bits in each run.

A result area is in use as long as any member has an array over it. With each run, every member publishes the areas that it has
released, and the first one that all have released is used.

An idle member yields its core for a moment, and then looks every `POLL_S`: to be woken by a futex would not be faster. After
`PATIENCE_S` it returns its thread, and another member wakes it by a message.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...graph.core.errors import invalid
from ...graph.resources.buffer_pool import buffers
from ...graph.resources.collective_context import REDUCTIONS
from .algorithms import Array, mean_of, mismatch_text
from .shared_buffer import FLAT_BYTES, LINE, REDUCED, SLOTS, STAGED, TAKEN, SharedBuffer

PATIENCE_S = 0.02  # a thread blocks this long while no member makes progress
YIELDS = 60  # before it sleeps: about the time of a wake-up
POLL_S = 50e-6


class SharedMemoryAllReduce:
    """One member's share of one all-reduce in shared memory. `result`, a flat array, is valid once `is_done`."""

    has_result_areas = True  # whether results may be in result areas
    is_under_way = False  # as a `MessageAlgorithm`'s

    def __init__(self, value: Array, reduction: str) -> None:
        self.result: Any = None
        self.is_done = self._flat = self._common = False
        self._value = np.ascontiguousarray(value).reshape(-1)
        self.nbytes = self._value.nbytes
        self._reduce, self._mean = REDUCTIONS[reduction], reduction == "mean"
        self._length = 0  # published with the label
        self._staged = self._reduced = self._taken = self._end = 0  # rounds: until `start` there are none

    def start(self, buffer: SharedBuffer, run: int, label: bytes) -> None:
        """Start this run: it has the buffer now."""
        self._buffer, self._run, self._label = buffer, run, label
        self._per_round = self._room(buffer)
        self._begin = buffer.rounds
        self._end = self._begin + max(1, -(-self._value.size // self._per_round))
        self._staged = self._reduced = self._taken = self._begin
        buffer.write_label(run, label, self._length)

    def _room(self, buffer: SharedBuffer) -> int:
        """How many elements are processed in a round."""
        self._flat = self._value.nbytes <= min(FLAT_BYTES, buffer.layout.staging_bytes)
        if self._flat:
            return max(1, self._value.size)
        share = buffer.layout.staging_bytes // buffer.size // LINE * LINE  # of each rank, in whole cache lines
        return max(1, share // self._value.dtype.itemsize) * buffer.size

    def drive(self, stop: Callable[[], bool]) -> bool:
        """Run until it is done, `stop` returns True, or no member makes progress for `PATIENCE_S`. Returns whether it is done.

        If it is not done, the other members will wake this one by a message.

        Raises:
            InvalidArgumentError: another member runs a different collective.
        """
        buffer = self._buffer
        while True:
            while not self.is_done and self._step():
                pass
            if self.is_done:
                return True
            if stop():
                return False
            if buffer.may_sleep() and self._wait():
                continue
            if not self.look():
                return False
            buffer.set_notify(False)

    def look(self) -> bool:
        """Whether a step is possible. If not, the other members will wake this one by a message."""
        if not self.is_ready():
            self._buffer.set_notify(True)
        return self.is_ready()

    def _wait(self) -> bool:
        """Wait until a step is possible; False after `PATIENCE_S`."""
        for _ in range(YIELDS):
            os.sched_yield()
            if self.is_ready():
                return True
        until = time.monotonic() + PATIENCE_S
        while not self.is_ready():
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_S)
        return True

    def is_ready(self) -> bool:
        return not self.expects()

    def expects(self) -> set[int]:
        """Ranks that this one waits for: none if a step is possible."""
        ways = []
        if self._may_stage():
            ways.append(self._before_staging(self._buffer))
        if self._reduced < self._staged:
            ways.append(self._buffer.behind(STAGED, self._reduced + 1))
        if self._taken < self._reduced:
            ways.append(self._buffer.behind(REDUCED, self._taken + 1))
        return set() if not all(ways) else set().union(*ways)

    def _step(self) -> bool:
        """Do one step. False: none is possible."""
        buffer = self._buffer
        if self._reduced < self._staged and not buffer.behind(STAGED, self._reduced + 1):
            if self._reduced == self._begin:
                self._compare(buffer)
            self._reduce_round(buffer)
        elif self._taken < self._reduced and not buffer.behind(REDUCED, self._taken + 1):
            self._take_round(buffer)
        elif self._may_stage() and not self._before_staging(buffer):
            self._stage_round(buffer)
        else:
            return False
        return True

    def _may_stage(self) -> bool:
        return self._staged < self._end and self._staged - self._taken < SLOTS

    def _before_staging(self, buffer: SharedBuffer) -> list[int]:
        """Ranks that may still need the staging area of the next round."""
        before = self._staged - SLOTS
        return buffer.behind(REDUCED if self._common and before >= self._begin else TAKEN, before + 1)

    def _compare(self, buffer: SharedBuffer) -> None:
        """Check that all members run the same collective, and choose where the result goes."""
        free, _ = self._check_labels(buffer)
        if self._flat:
            return
        self._common = free > 0 and self._value.nbytes <= buffer.layout.area_bytes
        if self._common:
            area = buffer.areas[(free & -free).bit_length() - 1]
            self._out = np.ndarray(self._value.size, self._value.dtype, area)
        else:
            self._out = buffers.empty((self._value.size,), self._value.dtype)

    def _check_labels(self, buffer: SharedBuffer) -> tuple[int, list[int]]:
        """Check that all members run the same collective. Returns the result areas that all have released, as bits, and their lengths."""
        free, lengths = -1, []
        for r in range(buffer.size):
            run, areas, length, label = buffer.read_label(r)
            lengths.append(length)
            free &= areas
            if label != self._label:
                said = [x.rstrip(b"\0").decode(errors="replace") for x in (self._label, label)]
                raise invalid(mismatch_text(buffer.rank, said[0], r, said[1]))
            if run != self._run:
                text = f"member {buffer.rank} is at run {self._run}, but member {r} at run {run}"
                raise invalid(f"{text}; all members must run the same program")
        return free, lengths

    def _bounds(self, number: int) -> list[int]:
        """The bounds of the ranks' shares of a round, in elements of the value."""
        start, size = (number - self._begin) * self._per_round, self._buffer.size
        count = min(self._per_round, self._value.size - start)
        return [start + count * r // size for r in range(size + 1)]

    def _stage_round(self, buffer: SharedBuffer) -> None:
        number, value = self._staged, self._value
        if self._flat:
            np.copyto(buffer.staging(number % SLOTS, buffer.rank, value.dtype, 0, value.size), value)
        else:
            bounds = self._bounds(number)
            first, own, after, last = bounds[0], bounds[buffer.rank], bounds[buffer.rank + 1], bounds[-1]
            for begin, end in ((first, own), (after, last)):  # all but its own share
                if begin < end:
                    place = buffer.staging(number % SLOTS, buffer.rank, value.dtype, begin - first, end - begin)
                    np.copyto(place, value[begin:end])
        self._has_staged(buffer)

    def _has_staged(self, buffer: SharedBuffer) -> None:
        self._staged += 1
        buffer.advance(STAGED, self._staged)

    def _reduce_round(self, buffer: SharedBuffer) -> None:
        number, value = self._reduced, self._value
        slot, dtype = number % SLOTS, value.dtype
        self._reduced += 1
        if self._flat:
            parts = [buffer.staging(slot, r, dtype, 0, value.size) for r in range(buffer.size)]
            self.result = self._reduced_to(np.empty(value.size, dtype), parts)
            self._round_taken(buffer)
            return
        bounds = self._bounds(number)
        begin, end = bounds[buffer.rank], bounds[buffer.rank + 1]
        place = [buffer.staging(slot, r, dtype, begin - bounds[0], end - begin) for r in range(buffer.size)]
        to = self._out[begin:end] if self._common else place[buffer.rank]
        place[buffer.rank] = value[begin:end]
        self._reduced_to(to, place)
        buffer.advance(REDUCED, self._reduced)
        if not self._common:
            np.copyto(self._out[begin:end], to)

    def _reduced_to(self, out: Array, parts: Sequence[Array]) -> Array:
        self._reduce(parts[0], parts[1], out=out)
        for part in parts[2:]:
            self._reduce(out, part, out=out)
        if self._mean and out.dtype.kind == "f":
            np.true_divide(out, len(parts), out=out)
        elif self._mean:
            np.copyto(out, mean_of(out, len(parts)))
        return out

    def _take_round(self, buffer: SharedBuffer) -> None:
        bounds = [] if self._common else self._bounds(self._taken)
        for r, (begin, end) in enumerate(pairwise(bounds)):
            if r != buffer.rank and begin < end:
                slot = self._taken % SLOTS
                theirs = buffer.staging(slot, r, self._out.dtype, begin - bounds[0], end - begin)
                np.copyto(self._out[begin:end], theirs)
        self.result = self._out
        self._round_taken(buffer)

    def _round_taken(self, buffer: SharedBuffer) -> None:
        """Record that a round, perhaps the last, has been read."""
        self._taken += 1
        if self._taken == self._end:
            self._finish(buffer)
        elif not self._common:
            buffer.advance(TAKEN, self._taken)

    def _finish(self, buffer: SharedBuffer) -> None:
        buffer.rounds = self._end
        buffer.runs += 1
        buffer.words[buffer.rows[buffer.rank] + REDUCED] = self._reduced  # in case no member waited for it
        self.is_done = True
        buffer.advance(TAKEN, self._taken)


class SharedMemoryGather(SharedMemoryAllReduce):
    """All members' values, joined along the first axis. A round stages `_per_round` elements, which the others then read."""

    has_result_areas = False

    def __init__(self, value: Array) -> None:
        super().__init__(value, "sum")
        self._shape, self._length = value.shape, value.shape[0]

    def _room(self, buffer: SharedBuffer) -> int:
        return max(1, buffer.layout.staging_bytes // self._value.dtype.itemsize)

    def _compare(self, buffer: SharedBuffer) -> None:
        _, rows = self._check_labels(buffer)
        inner = math.prod(self._shape[1:])
        self._starts = [sum(rows[:r]) * inner for r in range(buffer.size + 1)]
        self._end = self._begin + max(1, -(-max(rows) * inner // self._per_round))
        self._out = buffers.empty((self._starts[-1],), self._value.dtype)
        self.result = self._out.reshape(sum(rows), *self._shape[1:])

    def _stage_round(self, buffer: SharedBuffer) -> None:
        begin, count = self._span(self._staged, self._value.size)
        if count:
            place = buffer.staging(self._staged % SLOTS, buffer.rank, self._value.dtype, 0, count)
            np.copyto(place, self._value[begin : begin + count])
        self._has_staged(buffer)

    def _reduce_round(self, buffer: SharedBuffer) -> None:
        for r in range(buffer.size):
            start = self._starts[r]
            begin, count = self._span(self._reduced, self._starts[r + 1] - start)
            if count:
                own = self._value[begin : begin + count]
                staged = buffer.staging(self._reduced % SLOTS, r, self._value.dtype, 0, count)
                np.copyto(self._out[start + begin : start + begin + count], own if r == buffer.rank else staged)
        self._reduced += 1
        self._round_taken(buffer)

    def _span(self, number: int, size: int) -> tuple[int, int]:
        """The start of a round in a value of `size` elements, and the number of its elements."""
        begin = min(size, (number - self._begin) * self._per_round)
        return begin, min(self._per_round, size - begin)
