"""Tallies: how members of a group find out that a message between them was lost.

Theory of operation. A connection may break and come back, and what was on its way is gone; both ends live, and answer each
other. So either end counts what it has sent within a membership, and what has come. A task that has waited for another one for
`COUNT_S` asks it to `count`, and again every `COUNT_S`; the answer (`counted`) comes on the connection on which parts come, behind them.
What was counted and has not come by the next answer is lost, and so is the membership.

By the next answer, not at once: a part counts as sent a moment before it is handed to the connection's owner.

The question says which membership of the other task is meant. One that is gone, or has failed, is told so again: the `end` was
lost. One that the asker does not know yet introduces itself again: the `join` was lost.
"""

from __future__ import annotations

from typing import Final

COUNT_S: Final = 1.0
COUNTED: Final = frozenset({"part", "end"})  # what must not be lost; whom a poke does not reach looks by himself


class Tally:
    """What one membership and another task have said to each other.

    >>> tally = Tally()
    >>> tally.came += 2
    >>> tally.lacks(3), tally.lacks(3)  # the third may be on its way; but not for so long
    (False, True)
    """

    __slots__ = ("_due", "asked", "came", "sent")

    def __init__(self) -> None:
        self.sent = self.came = 0
        self.asked = float("-inf")  # when it was asked last
        self._due = 0  # what should have come by now

    def lacks(self, sent: int) -> bool:
        """Whether something is lost, now that the other end says that it has sent so many."""
        if self.came < self._due:
            return True
        self._due = sent
        return False


__all__ = ["COUNTED", "COUNT_S", "Tally"]
