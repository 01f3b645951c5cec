"""A registered program set, and what is known about how long its programs take.

A *stretch* is what a program does without a pause; it is known by the device and by where it begins. A small one is run by the thread
that brought what it waited for, any other one by a thread of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..codegen.ir.program import Program
from .carried import Carry

if TYPE_CHECKING:
    from .execution import ChannelKey, Execution

SMALL_S = (
    300e-6  # a program that runs no longer than this is run where its message came in: a hand-over costs about as much
)
AWAY_S = 3e-3  # and one that waits so long by itself (a Python function may sleep) is not, either
MOST_SLOW = 6  # how well slow runs are remembered


class Stretch:
    """What is known about one stretch.

    A slow run may be slow because other processes had the cores. So what counts is the time that the thread was at work, unless it
    was away for very long; it takes more than one slow run to make a stretch slow, and several quick ones to make it quick again.
    To ask for the time at work is a call of the kernel: it is not asked for after a quick run, and the first slow one after
    quick ones says nothing yet.

    Attributes:
        last: the seconds that it took last; an hour if it never ran.
        is_small: whether it is known to be short.
        is_clear: whether it is known to be quick, and was the last time: then nobody needs to know how long it is at work.
    """

    __slots__ = ("_slow", "is_clear", "is_small", "last")

    def __init__(self) -> None:
        self.last = 3600.0
        self.is_small = self.is_clear = False
        self._slow = -1  # how slow it has been; not known yet

    def measured(self, seconds: float, at_work: float | None) -> None:
        """It took so long, and so long of that the thread was at work, if that is known."""
        if at_work is None and seconds <= SMALL_S:
            return  # as ever
        self.last = seconds
        if seconds > AWAY_S or (at_work is not None and at_work > SMALL_S):
            self._slow = MOST_SLOW if self._slow < 0 else min(MOST_SLOW, self._slow + 3)
        elif self._slow:
            self._slow = max(0, self._slow - 1)
        self.is_small = self._slow <= MOST_SLOW // 2
        self.is_clear = self._slow == 0 and seconds <= SMALL_S


@dataclass(slots=True)
class Loaded:
    """This task's part of one run signature.

    Attributes:
        held: channels whose tensors wait for a later one: see `awaited.py`.
        handle: under which it is known.
        carries: as in `Registration`.
        reports: whether the client hears of the end (`reports.py`).
        client: as in `Registration`.
        alone: the only stretch of a part that meets nobody (`alone.py`); None: it may meet somebody.
        stretches: by device and where they begin.
        gaps: channel -> how long the program then goes on before it sends or pauses, about.
    """

    session: str
    programs: tuple[Program, ...]
    held: frozenset[int] = frozenset()
    handle: str = ""
    carries: frozenset[str] = frozenset()
    reports: bool = True
    client: str = ""
    alone: Stretch | None = None
    stretches: dict[tuple[str, int], Stretch] = field(default_factory=dict)
    gaps: dict[ChannelKey, float] = field(default_factory=dict)

    def stretch(self, execution: Execution) -> Stretch:
        """The stretch that comes next."""
        key = execution.program.device, execution.counter
        return self.stretches.get(key) or self.stretches.setdefault(key, Stretch())

    def went_on(self, channel: ChannelKey, seconds: float) -> None:
        """After sending to a channel, the program went on for so long. One hiccup counts little."""
        known = self.gaps.get(channel, 0.0)
        self.gaps[channel] = min((known + seconds) / 2, 2 * known + SMALL_S / 4)

    def carry(self, client: int, task: str) -> Carry | None:
        """What a client's tensors start on a task."""
        return Carry(self.handle, client) if client and task in self.carries else None


__all__ = ["AWAY_S", "MOST_SLOW", "SMALL_S", "Loaded", "Stretch"]
