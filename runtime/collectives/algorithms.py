"""Collective algorithms by messages, for one member at a time: which parts it sends, and how it combines the received parts.

A `MessageAlgorithm` is one member's share of one collective. It gets its own value (`begin`) and the parts of others (`receive`), and
returns the parts to send as (rank, tag, array). It has no sockets and no threads. The ranks fix the order of additions, so the
order of arrival does not matter, and all members get the same bits in each run.

Algorithms for n members and s bytes:

    doubling   log2(n) rounds of s bytes: in each round, members whose ranks differ in one bit exchange their values. It has the fewest
               rounds, so it is the fastest for small values. If n is no power of two, each of the last ranks first sends its value to
               one of the first ranks, which returns the result.
    ring       2 (n - 1) rounds of s / n bytes: in the first half (reduce-scatter), each member adds its own values to the circulating
               segments. In the second (all-gather), the sums circulate. Each member sends 2 s (n - 1) / n bytes, the minimum. Segments
               are pipelined in chunks; a member is at most `WINDOW` chunks ahead of what it received.
    direct     one round: each member sends to all others what they need. For gathering, and for reducing to one share per member.

R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH, 2005; P. Patarasuk, X. Yuan:
Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from ...graph.resources.buffer_pool import buffers
from ...graph.resources.collective_context import REDUCTIONS

Array: TypeAlias = np.ndarray[Any, Any]
Part: TypeAlias = tuple[int, int, Array]
"""(rank, tag, array): a part for a member. Tags are unique between two members within a run."""

CHUNK_BYTES = 4 << 20
"""A message costs about as much as copying 1 MiB. Chunks of 4 MiB are twice as fast as of 1 MiB, measured with 16 MiB and more."""
WINDOW = 8  # chunks
DOUBLING_BYTES = 512 << 10  # below, the number of rounds dominates the time; above, the bytes do


class MessageAlgorithm(ABC):
    """One member's share of one collective by messages. `result` is valid once `is_done`."""

    # Whether it goes on without messages of the others, which may leave when they are done.
    is_under_way = False

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.result: Any = None
        self.is_done = False

    @abstractmethod
    def begin(self) -> list[Part]:
        """The first parts to send."""

    @abstractmethod
    def receive(self, sender: int, tag: int, array: Array) -> list[Part]:
        """The parts to send after this part was received."""

    @abstractmethod
    def expects(self) -> set[int]:
        """The ranks whose parts are still missing."""

    def stop(self) -> None:  # noqa: B027  (most have nothing to end)
        """End what goes on elsewhere: the other members are gone, or the step has ended."""

    def finish(self, result: Any) -> None:
        """Set the result."""
        self.result, self.is_done = result, True


class RecursiveDoubling(MessageAlgorithm):
    """All-reduce by recursive doubling."""

    IN, OUT = -1, -2  # tags for the ranks beyond the power of two: IN is the round before round 0

    def __init__(self, rank: int, size: int, value: Array, reduction: str) -> None:
        super().__init__(rank, size)
        self._now, self._reduce, self._mean = value, REDUCTIONS[reduction], reduction == "mean"
        self._power = 1 << (size.bit_length() - 1)
        self._extra = size - self._power
        self._round = self.IN if rank < self._extra else 0
        self._came: dict[int, Array] = {}

    def begin(self) -> list[Part]:
        if self.rank >= self._power:
            return [(self.rank - self._power, self.IN, self._now)]
        return self._offer()

    def receive(self, sender: int, tag: int, array: Array) -> list[Part]:
        if tag == self.OUT:
            self.finish(array)
            return []
        self._came[tag] = array
        out: list[Part] = []
        while not self.is_done and self._round in self._came:
            theirs = self._came.pop(self._round)
            first = self._round == self.IN or self.rank & (1 << self._round) == 0
            self._now = self._reduce(*((self._now, theirs) if first else (theirs, self._now)))
            self._round += 1
            out += self._offer()
        return out

    def _offer(self) -> list[Part]:
        """This round's part; after the last round, the result for a rank beyond the power of two."""
        if self._round == self.IN:
            return []
        if 1 << self._round < self._power:
            return [(self.rank ^ (1 << self._round), self._round, self._now)]
        if self._mean:
            self._now = mean_of(self._now, self.size)
        self.finish(self._now)
        return [(self.rank + self._power, self.OUT, self._now)] if self.rank < self._extra else []

    def expects(self) -> set[int]:
        if self.is_done:
            return set()
        if self.rank >= self._power:
            return {self.rank - self._power}
        if self._round == self.IN:
            return {self.rank + self._power}
        return {self.rank ^ (1 << self._round)}


class RingAllReduce(MessageAlgorithm):
    """All-reduce of a flat array around a ring. Tags are positions in the sequence of chunks that a member sends."""

    def __init__(self, rank: int, size: int, value: Array, reduction: str, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(rank, size)
        self._value, self._reduce, self._mean = value, REDUCTIONS[reduction], reduction == "mean"
        self._per_segment = max(1, -(-value.nbytes // (size * chunk_bytes)))
        chunks = self._per_segment * size
        self._bounds = [value.size * i // chunks for i in range(chunks + 1)]
        self._total = 2 * (size - 1) * self._per_segment
        self._sent = self._received = 0
        self._came: dict[int, Array] = {}

    def begin(self) -> list[Part]:
        self._out = buffers.empty(self._value.shape, self._value.dtype)
        return self._send()

    def receive(self, sender: int, tag: int, array: Array) -> list[Part]:
        self._came[tag] = array
        out: list[Part] = []
        while self._received in self._came:
            self._take(self._received, self._came.pop(self._received))
            self._received += 1
            out += self._send()
        if self._received == self._total and self._sent == self._total:
            self.finish(self._out)
        return out

    def _send(self) -> list[Part]:
        """The chunks to send now: those that are known and within the window."""
        out: list[Part] = []
        limit = min(self._total, self._received + min(WINDOW, self._per_segment))
        while self._sent < limit:
            step, chunk = divmod(self._sent, self._per_segment)
            place = self._place(self.rank - step if step < self.size - 1 else self.rank + self.size - step, chunk)
            source = self._value if step == 0 else self._out
            out.append(((self.rank + 1) % self.size, self._sent, source[place]))
            self._sent += 1
        return out

    def _take(self, position: int, array: Array) -> None:
        step, chunk = divmod(position, self._per_segment)
        if step < self.size - 1:
            place = self._place(self.rank - step - 1, chunk)
            self._reduce(array, self._value[place], out=self._out[place])
            if self._mean and step == self.size - 2:  # the segment's sum is complete: divide it once, for all members
                self._out[place] = mean_of(self._out[place], self.size)
        else:
            self._out[self._place(self.rank + self.size - 1 - step, chunk)] = array

    def _place(self, segment: int, chunk: int) -> slice:
        at = (segment % self.size) * self._per_segment + chunk
        return slice(self._bounds[at], self._bounds[at + 1])

    def expects(self) -> set[int]:
        return set() if self.is_done else {(self.rank - 1) % self.size}


class DirectExchange(MessageAlgorithm):
    """Each member sends one part to each other member, and combines one part from each, by rank.

    Args:
        parts: the part for each rank, with this member's own.
        combine: makes the result from the parts, by rank.
    """

    def __init__(self, rank: int, size: int, parts: Sequence[Array], combine: Callable[[list[Array]], Any]) -> None:
        super().__init__(rank, size)
        self._parts, self._combine = parts, combine
        self._came: dict[int, Array] = {rank: parts[rank]}

    def begin(self) -> list[Part]:
        return [((self.rank + i) % self.size, 0, self._parts[(self.rank + i) % self.size]) for i in range(1, self.size)]

    def receive(self, sender: int, tag: int, array: Array) -> list[Part]:
        self._came[sender] = array
        if len(self._came) == self.size:
            self.finish(self._combine([self._came[r] for r in range(self.size)]))
        return []

    def expects(self) -> set[int]:
        return set(range(self.size)) - self._came.keys()


class TreeBroadcast(MessageAlgorithm):
    """Broadcast from `root` along a binomial tree: each round, twice as many members have the value."""

    def __init__(self, rank: int, size: int, value: Array, root: int) -> None:
        super().__init__(rank, size)
        self._value, self._root = value, root
        self._number = (rank - root) % size  # the root is 0; the parent's number lacks the lowest bit

    def begin(self) -> list[Part]:
        return self._pass_on(self._value) if self._number == 0 else []

    def receive(self, sender: int, tag: int, array: Array) -> list[Part]:
        return self._pass_on(array)

    def _pass_on(self, value: Array) -> list[Part]:
        self.finish(value)
        bit = 1 << (self.size - 1).bit_length() if self._number == 0 else self._number & -self._number
        out: list[Part] = []
        while bit > 1:
            bit >>= 1
            if self._number + bit < self.size:
                out.append(((self._number + bit + self._root) % self.size, 0, value))
        return out

    def expects(self) -> set[int]:
        return set() if self.is_done else {(self._number - (self._number & -self._number) + self._root) % self.size}


def all_reduce(rank: int, size: int, value: Array, reduction: str, way: str) -> MessageAlgorithm:
    """The algorithm that reduces a flat array; `way` is "ring", "doubling" or "auto"."""
    if size > 1 and (way == "ring" or (way == "auto" and value.nbytes > DOUBLING_BYTES)):
        return RingAllReduce(rank, size, value, reduction)
    return RecursiveDoubling(rank, size, value, reduction)


def all_gather(rank: int, size: int, value: Array) -> MessageAlgorithm:
    """The algorithm that joins all members' arrays along the first axis, in the order of ranks."""
    return DirectExchange(rank, size, [value] * size, lambda came: np.concatenate(came, 0))


def reduce_scatter(rank: int, size: int, value: Array, reduction: str) -> MessageAlgorithm:
    """The algorithm that reduces an array and gives each member an equal share of its rows, in the order of ranks."""
    rows = len(value) // size
    reduce = REDUCTIONS[reduction]

    def combine(came: list[Array]) -> Array:
        total = came[0]
        for array in came[1:]:
            total = reduce(total, array)
        return mean_of(total, size) if reduction == "mean" else total

    return DirectExchange(rank, size, [value[i * rows : (i + 1) * rows] for i in range(size)], combine)


def flatten(values: Sequence[Array]) -> Array:
    """Arrays of one type, joined into a flat one; a single array is not copied."""
    if len(values) == 1:
        return np.ascontiguousarray(values[0]).reshape(-1)
    return np.concatenate([np.asarray(v).reshape(-1) for v in values]) if values else np.zeros(0, np.float32)


def unflatten(array: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The inverse of `flatten`: views of these shapes."""
    return [
        array[part] if len(shape) == 1 else array[part].reshape(shape)
        for shape, part in zip(shapes, _slices(tuple(shapes)), strict=True)
    ]


@lru_cache(1_000)
def _slices(shapes: tuple[tuple[int, ...], ...]) -> tuple[slice, ...]:
    """The slices of arrays of these shapes in a flat one."""
    ends = list(accumulate(map(math.prod, shapes), initial=0))
    return tuple(map(slice, ends, ends[1:]))


def mismatch_text(rank: int, mine: str, other: int, theirs: str) -> str:
    """Why two members cannot run one collective: what each brings."""
    return f"member {rank} brings {mine}, but member {other} {theirs}; all members must run the same program"


def mean_of(total: Array, size: int) -> Array:
    """The mean, from a sum over `size` members."""
    mean: Array = (total / size).astype(total.dtype, copy=False)
    return mean
