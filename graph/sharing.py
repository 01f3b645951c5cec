"""Reducing on a board: what each member does, round by round.

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
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .boards import ASLEEP, AWAKE, FLAT_BYTES, LINE, POKE, REDUCED, SLOTS, STAGED, TAKEN, Board
from .errors import InvalidArgumentError
from .exchanges import REDUCTIONS, Array, divided, result_of
from .pieces import Pieces

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


__all__ = ["Sharing"]
