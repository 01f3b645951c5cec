"""Gathering and scattering on a board.

Theory of operation. As reducing (`sharing.py`), in rounds as large as a member's place, but with one wait in each: members stage what
others need, and each takes what it needs from all places, into memory of its own.

    gather     each stages its value, and copies those of the others. Values may differ in length: the first round, which all must
               have staged, tells how long each is, and so how many rounds there are.
    scatter    each stages the others' shares, and reduces its own.

So a byte is written to shared memory once, whatever the number of members, and what is staged stays in the caches until it is taken.
Where values are sent instead, a large one may be lent where it lies. So large values are scattered by parts, of which each byte has one
reader, and a broadcast always is: its root need not wait for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .boards import LINE, SLOTS, Board
from .exchanges import Array, result_of
from .sharing import Sharing

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


__all__ = ["SCATTER_BYTES", "Gathering", "Scattering", "can_be_shared"]
