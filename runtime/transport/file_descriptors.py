"""A reserve of file descriptors: what peers cannot take from a process.

Each connection takes a descriptor, and who connects decides how many there are. When none is left, a process can open no file, and one
that goes on listening spins, since the connection that it cannot accept is announced again and again. So a server keeps a few
descriptors back. When all others are taken it stops listening, then lets go of those that it has kept, for its own files, and listens
again when there are enough.
"""

from __future__ import annotations

import contextlib
import os

RESERVE = 32
"""So many are kept back; fewer where the process may have only a few hundred. Twice as many are free before peers are accepted again."""


class DescriptorReserve:
    """Descriptors of this process that are kept back. Used by one thread.

    Attributes:
        is_used: whether there are so few that the process needs them itself: no peer may be accepted.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._size = min(RESERVE, _limit() // 8)
        self._kept: list[int] = []

    def look(self) -> bool:
        """See how many there are; gives `is_used`."""
        if self._kept and not self.is_used:
            probe = _taken(1)
            self.is_used = not probe
            _let_go(probe)
        elif self._kept:  # nobody is accepted any more: those who waited for that would have taken them
            self.close()
        else:
            found = _taken(2 * self._size)
            self.is_used = len(found) < 2 * self._size
            keep = 0 if self.is_used else self._size
            self._kept = found[:keep]
            _let_go(found[keep:])
        return self.is_used

    def close(self) -> None:
        """Let go of them."""
        _let_go(self._kept)
        self._kept = []


def _limit() -> int:
    """How many descriptors this process may have."""
    try:
        import resource  # only Unix has it
    except ImportError:
        return 8 * RESERVE
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 8 * RESERVE if limit == resource.RLIM_INFINITY else limit


def _taken(count: int) -> list[int]:
    """So many descriptors, or fewer if there are no more."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        while len(found) < count:
            found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    return found


def _let_go(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


__all__ = ["RESERVE", "DescriptorReserve"]
