"""Several arrays as one: what travels together is not copied together first.

Reducing on a board: what each member does, round by round.

Theory of operation. A value is reduced in rounds, each as large as a member's place on the board. Three counters in each row tell
what the member has done, in rounds since the board was made:

    staged    its own values are in its place
    reduced   it has reduced its share, and put the result where the others find it
    taken     it has all that it needs of the round

    flat      one wait: each member stages its value, and reduces all of them for itself. For values of up to `FLAT_BYTES`.
    common    two waits: each member stages the others' shares, reduces its own over all members into an area that all have, and
              waits for the others' shares of it. Rounds are so small that what is staged stays in the caches; of the memory beyond,
              a member reads its value once and writes its share of the result, the least there is.
    copied    the same where no area is free, because a member still holds earlier results: each copies the others' shares.

A round may begin when nobody needs what had its place before. So at any time a member knows by looking at the others' counters
what it can do: `Sharing.advance` does it. What is added to what is fixed by the ranks, so all get the same bits, each time.

A result in an area is in use as long as an array over it lives in some member. With each run, all tell which areas they have let
go of, and the first that all have is taken.

Who has nothing to do yields the processor for a moment, then sleeps until another one wakes it, and after `PATIENCE_S` in vain sets
its step aside, to be poked.

Gathering and scattering on a board.

Theory of operation. As reducing (`shared_memory_algorithms.py`), in rounds as large as a member's place, but with one wait in each:
members stage what others need, and each takes what it needs from all places, into memory of its own.

    gather     each stages its value, and copies those of the others. Values may differ in length: the first round, which all must
               have staged, tells how long each is, and so how many rounds there are.
    scatter    each stages the others' shares, and reduces its own.

So a byte is written to shared memory once, whatever the number of members, and what is staged stays in the caches until it is taken.
Where values are sent instead, a large one may be lent where it lies. So large values are scattered by parts, of which each byte has one
reader, and a broadcast always is: its root need not wait for the others.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..core.errors import InvalidArgumentError
from .algorithms import REDUCTIONS, Array, divided, result_of
from .shared_buffer import ASLEEP, AWAKE, FLAT_BYTES, LINE, POKE, REDUCED, SLOTS, STAGED, TAKEN, Board

__all__ = ["Gathering", "Pieces", "SCATTER_BYTES", "Scattering", "Sharing", "can_be_shared"]


class Pieces:
    """Arrays of one type, one behind the other, as a flat array that nobody makes.

    Attributes:
        size, dtype, nbytes: of all of them together.
    """

    __slots__ = ("_arrays", "dtype", "nbytes", "size")

    def __init__(self, values: Sequence[Array]) -> None:
        self._arrays = [np.ascontiguousarray(v).reshape(-1) for v in values]
        self.dtype = self._arrays[0].dtype
        self.size = sum([a.size for a in self._arrays])
        self.nbytes = self.size * self.dtype.itemsize

    def between(self, begin: int, end: int) -> Iterator[tuple[int, Array]]:
        """The elements from `begin` to before `end`: parts of the arrays, each with its distance from `begin`."""
        at = 0
        for array in self._arrays:
            first, last = max(begin - at, 0), min(end - at, array.size)
            if first < last:
                yield at + first - begin, array if last - first == array.size else array[first:last]
            at += array.size
            if at >= end:
                return

    def copy_to(self, place: Array, begin: int) -> None:
        """Copy the elements from `begin` on to a flat array, until it is full."""
        for at, part in self.between(begin, begin + place.size):
            np.copyto(place[at : at + part.size], part)


PATIENCE_S = 0.02  # a thread is held so long while nobody makes progress
YIELDS = 60  # before sleeping: about as long as waking somebody takes


class Sharing:
    """One member's share of one reduction on a board. `result` is there once `is_done`: a flat array.

    Args:
        values: what the member brings: arrays of one type, which travel together.
    """

    makes_areas = True  # whether results may lie on the board

    def __init__(self, values: Sequence[Array], reduction: str) -> None:
        self.result: Any = None
        self.is_done = False
        self._value, self._reduce, self._mean = Pieces(values), REDUCTIONS[reduction], reduction == "mean"
        self._board: Board | None = None

    @property
    def nbytes(self) -> int:
        """Of this member's value."""
        return self._value.nbytes

    def start(self, board: Board, run: int, label: bytes) -> None:
        """It is this run's turn on the board."""
        value = self._value
        self._board, self._run, self._label = board, run, label
        place_bytes = board.layout.place_bytes
        self._flat = value.nbytes <= min(FLAT_BYTES, place_bytes)
        self._common = False
        share = max(1, place_bytes // board.size // LINE * LINE // value.dtype.itemsize)  # elements
        self._per_round = value.size if self._flat else share * board.size
        self._begin = board.rounds
        self._end = self._begin + (1 if self._flat else -(-value.size // self._per_round))
        self._staged = self._reduced = self._taken = self._begin
        board.write_label(run, label)

    def resume(self, stop: Callable[[], bool]) -> bool:
        """As `drive`, after it gave up."""
        assert self._board is not None
        self._board.state(AWAKE)
        return self.drive(stop)

    def drive(self, stop: Callable[[], bool]) -> bool:
        """Go on until it is done, `stop` says so, or nothing has happened for some time; whether it is done.

        If not, the others have been asked to poke this member.

        Raises:
            InvalidArgumentError: another member's run is about something else.
        """
        board = self._board
        assert board is not None
        machine = board.machine
        while True:
            self.advance()
            if self.is_done:
                return True
            if stop():
                return False
            if machine.may_sleep() and self._wait(board):
                continue
            if not self.look():
                return False
            board.state(AWAKE)

    def look(self) -> bool:
        """Whether there is something to do; if not, the others will poke this member when something happens."""
        if self._board is not None and not self.is_ready():
            self._board.state(POKE)
        return self.is_ready()

    def _wait(self, board: Board) -> bool:
        """Wait until there is something to do; False after some time in vain."""
        for _ in range(YIELDS):
            os.sched_yield()
            if self.is_ready():
                return True
        until = time.monotonic() + PATIENCE_S
        while not self.is_ready():
            left = until - time.monotonic()
            if left <= 0:
                return False
            board.state(ASLEEP)
            if not self.is_ready():
                board.machine.sleep(board.sleeps[board.rank], ASLEEP, left)
            board.state(AWAKE)
        return True

    def advance(self) -> None:
        """Do all that can be done now."""
        while not self.is_done and self._one():
            pass

    def is_ready(self) -> bool:
        """Whether there is something to do."""
        return not self.expects()

    def expects(self) -> set[int]:
        """Ranks for which this one waits: none when it has something to do."""
        board = self._board
        if board is None or self.is_done:
            return set()
        ways = []
        if self._may_stage():
            ways.append(self._before_staging(board))
        if self._reduced < self._staged:
            ways.append(board.behind(STAGED, self._reduced + 1))
        if self._taken < self._reduced:
            ways.append(board.behind(REDUCED, self._taken + 1))
        return set() if not all(ways) else set().union(*ways)

    def _one(self) -> bool:
        """Do one thing; False if none can be done."""
        board = self._board
        assert board is not None
        if self._reduced < self._staged and not board.behind(STAGED, self._reduced + 1):
            if self._reduced == self._begin:
                self._compare(board)
            self._reduce_round(board)
        elif self._taken < self._reduced and not board.behind(REDUCED, self._taken + 1):
            self._take_round(board)
        elif self._may_stage() and not self._before_staging(board):
            self._stage_round(board)
        else:
            return False
        return True

    def _may_stage(self) -> bool:
        """Whether a round is left to be staged, as far as this member is concerned."""
        return self._staged < self._end and self._staged - self._taken < SLOTS

    def _before_staging(self, board: Board) -> list[int]:
        """Ranks that may still need what is in the next round's place."""
        before = self._staged - SLOTS
        return board.behind(REDUCED if self._common and before >= self._begin else TAKEN, before + 1)

    def _compare(self, board: Board) -> None:
        """See that all members mean the same, and where the result goes."""
        free = self._check_labels(board)
        if self._flat:
            return
        self._common = free > 0 and self._value.nbytes <= board.layout.area_bytes
        if self._common:
            self._out = board.area((free & -free).bit_length() - 1, self._value.size, self._value.dtype)
        else:
            self._out = result_of(self._value.size, self._value.dtype)

    def _check_labels(self, board: Board) -> int:
        """See that all members mean the same; gives the bits of the areas that all have let go of."""
        mine = self._run, self._label
        free = -1
        for r in range(board.size):
            run, areas, label = board.read_label(r)
            free &= areas
            if (run, label) != mine:
                raise InvalidArgumentError(None, None, _differs(board.rank, mine, r, (run, label)))
        return free

    def _bounds(self, number: int) -> list[int]:
        """Where the ranks' shares of a round begin and end, in the value."""
        board = self._board
        assert board is not None
        start = (number - self._begin) * self._per_round
        count = min(self._per_round, self._value.size - start)
        return [start + count * r // board.size for r in range(board.size + 1)]

    def _stage_round(self, board: Board) -> None:
        number, value = self._staged, self._value
        if self._flat:
            value.copy_to(board.place(number % SLOTS, board.rank, value.dtype, 0, value.size), 0)
        else:
            bounds = self._bounds(number)
            first, own, after, last = bounds[0], bounds[board.rank], bounds[board.rank + 1], bounds[-1]
            for begin, end in ((first, own), (after, last)):  # all but its own share
                if begin < end:
                    place = board.place(number % SLOTS, board.rank, value.dtype, begin - first, end - begin)
                    value.copy_to(place, begin)
        self._has_staged(board)

    def _has_staged(self, board: Board) -> None:
        self._staged += 1
        board.count(STAGED, self._staged)

    def _reduce_round(self, board: Board) -> None:
        number, value = self._reduced, self._value
        slot, dtype = number % SLOTS, value.dtype
        self._reduced += 1
        if self._flat:
            parts = [board.place(slot, r, dtype, 0, value.size) for r in range(board.size)]
            self.result = self._reduced_to(np.empty(value.size, dtype), parts)
            self._taken += 1
            self._finish(board)
            return
        bounds = self._bounds(number)
        begin, end = bounds[board.rank], bounds[board.rank + 1]
        place = [board.place(slot, r, dtype, begin - bounds[0], end - begin) for r in range(board.size)]
        to = self._out[begin:end] if self._common else place[board.rank]
        for at, part in value.between(begin, end):
            piece = slice(at, at + part.size)
            self._reduced_to(to[piece], [part if r == board.rank else p[piece] for r, p in enumerate(place)])
        board.count(REDUCED, self._reduced)
        if not self._common:
            np.copyto(self._out[begin:end], to)

    def _reduced_to(self, out: Array, parts: Sequence[Array]) -> Array:
        self._reduce(parts[0], parts[1], out=out)
        for part in parts[2:]:
            self._reduce(out, part, out=out)
        if self._mean and out.dtype.kind == "f":
            count = len(parts)
            if count & (count - 1):
                np.true_divide(out, count, out=out)
            else:
                np.multiply(out, out.dtype.type(1 / count), out=out)  # the same number, sooner
        elif self._mean:
            np.copyto(out, divided(out, len(parts)))
        return out

    def _take_round(self, board: Board) -> None:
        number = self._taken
        if self._common:
            self._taken += 1
            if self._taken == self._end:
                self.result = self._out
                self._finish(board)
            return
        bounds = self._bounds(number)
        for r in range(board.size):
            if r != board.rank and bounds[r] < bounds[r + 1]:
                count = bounds[r + 1] - bounds[r]
                theirs = board.place(number % SLOTS, r, self._out.dtype, bounds[r] - bounds[0], count)
                np.copyto(self._out[bounds[r] : bounds[r + 1]], theirs)
        self._taken += 1
        self.result = self._out
        self._went_on(board)

    def _went_on(self, board: Board) -> None:
        """A round has been taken, perhaps the last."""
        if self._taken == self._end:
            self._finish(board)
        else:
            board.count(TAKEN, self._taken)

    def _finish(self, board: Board) -> None:
        board.rounds = self._end
        board.runs += 1
        board.words[board.rows[board.rank] + REDUCED] = self._reduced  # where nobody waited for that
        self.is_done = True
        board.count(TAKEN, self._taken)


def _differs(rank: int, mine: tuple[int, bytes], other: int, theirs: tuple[int, bytes]) -> str:
    if mine[1] == theirs[1]:
        return f"member {rank} is at run {mine[0]}, but member {other} at run {theirs[0]}; all members must run the same program"
    return (
        f"member {rank} brings {_text(mine[1])}, but member {other} {_text(theirs[1])}; "
        "all members must run the same program"
    )


def _text(label: bytes) -> str:
    return label.rstrip(b"\0").decode(errors="replace")


SCATTER_BYTES = 4 << 20  # up to here waiting costs more than what lending saves: measured with 1 and 16 MiB


def can_be_shared(value: Array) -> bool:
    """Whether a board can hold such elements: text and handles have no bytes of their own."""
    return not value.dtype.hasobject


class _Spreading(Sharing):
    """What both have in common: rounds of `_per_round` elements, staged and then taken by `_take_part`."""

    makes_areas = False

    def __init__(self, value: Array, reduction: str = "sum") -> None:
        super().__init__((value,), reduction)
        self._flat_value, self._shape = np.ascontiguousarray(value).reshape(-1), value.shape

    def start(self, board: Board, run: int, label: bytes) -> None:
        """As `Sharing.start`."""
        self._board, self._run, self._label = board, run, label
        self._flat = self._common = False
        self._per_round = self._room(board)
        self._begin = board.rounds
        self._end = self._begin + self._rounds(board)
        self._staged = self._reduced = self._taken = self._begin
        board.write_label(run, label, self._shape[0] if self._shape else 0)

    def _room(self, board: Board) -> int:
        """How many elements of a value are staged in a round."""
        return max(1, board.layout.place_bytes // int(self._value.dtype.itemsize))

    def _rounds(self, board: Board) -> int:
        """How many rounds there are, as far as this member knows."""
        return max(1, -(-int(self._value.size) // int(self._per_round)))

    def _compare(self, board: Board) -> None:
        self._check_labels(board)
        self._make(board)

    def _make(self, board: Board) -> None:
        """Make room for the result, now that all members are there."""
        raise NotImplementedError

    def _reduce_round(self, board: Board) -> None:
        self._take_part(board, self._reduced - self._begin, self._part(board, self._reduced))
        self._reduced += 1
        self._taken += 1
        self._went_on(board)

    def _part(self, board: Board, number: int) -> Callable[[int, int, int], Array]:
        """What a rank has staged in a round: from so many elements on, so many."""
        slot, dtype = number % SLOTS, self._value.dtype
        return lambda rank, start, count: board.place(slot, rank, dtype, start, count)

    def _take_part(self, board: Board, number: int, part: Callable[[int, int, int], Array]) -> None:
        """Take what is needed of a round, the first of which is 0."""
        raise NotImplementedError

    def _span(self, number: int, size: int) -> tuple[int, int]:
        """Where a round begins in a value of so many elements, and how many it has of it."""
        begin = min(size, number * self._per_round)
        return begin, min(self._per_round, size - begin)


class Gathering(_Spreading):
    """All members' values, joined along the first axis."""

    def _make(self, board: Board) -> None:
        rows, inner = [board.read_length(r) for r in range(board.size)], math.prod(self._shape[1:])
        self._starts = [sum(rows[:r]) * inner for r in range(board.size + 1)]
        self._end = self._begin + max(1, -(-max(rows) * inner // self._per_round))
        self._out = result_of(self._starts[-1], self._value.dtype)
        self.result = self._out.reshape(sum(rows), *self._shape[1:])

    def _stage_round(self, board: Board) -> None:
        begin, count = self._span(self._staged - self._begin, self._value.size)
        if count:
            place = self._part(board, self._staged)(board.rank, 0, count)
            np.copyto(place, self._flat_value[begin : begin + count])
        self._has_staged(board)

    def _take_part(self, board: Board, number: int, part: Callable[[int, int, int], Array]) -> None:
        for r in range(board.size):
            start = self._starts[r]
            begin, count = self._span(number, self._starts[r + 1] - start)
            if count:
                theirs = self._flat_value[begin : begin + count] if r == board.rank else part(r, 0, count)
                np.copyto(self._out[start + begin : start + begin + count], theirs)


class Scattering(_Spreading):
    """This member's share of the rows of the reduced value."""

    def __init__(self, value: Array, reduction: str, members: int) -> None:
        super().__init__(value, reduction)
        self._share = int(self._value.size) // members

    def _room(self, board: Board) -> int:
        return max(1, board.layout.place_bytes // board.size // LINE * LINE // int(self._value.dtype.itemsize))

    def _rounds(self, board: Board) -> int:
        return max(1, -(-self._share // int(self._per_round)))

    def _make(self, board: Board) -> None:
        self._out = result_of(self._share, self._value.dtype)
        self.result = self._out.reshape(self._shape[0] // board.size, *self._shape[1:])

    def _stage_round(self, board: Board) -> None:
        begin, count = self._span(self._staged - self._begin, self._share)
        part = self._part(board, self._staged)
        for r in range(board.size):
            if r != board.rank and count:
                at = r * self._share + begin
                np.copyto(part(board.rank, r * self._per_round, count), self._flat_value[at : at + count])
        self._has_staged(board)

    def _take_part(self, board: Board, number: int, part: Callable[[int, int, int], Array]) -> None:
        begin, count = self._span(number, self._share)
        if not count:
            return
        at = board.rank * self._share + begin
        parts = [
            self._flat_value[at : at + count] if r == board.rank else part(r, board.rank * self._per_round, count)
            for r in range(board.size)
        ]
        self._reduced_to(self._out[begin : begin + count], parts)
