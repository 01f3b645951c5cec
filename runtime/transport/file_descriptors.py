"""A reserve of file descriptors: connecting peers cannot use up all of them.

Each connection takes a descriptor, and peers decide how many connections there are. A process without a free descriptor can open no
file. If it still listens it spins, since the connection that it cannot accept is reported again and again. So a server keeps a few
descriptors in reserve. When all others are taken it stops listening, then closes the reserve for its own use, and listens again when
enough descriptors are free.
"""

from __future__ import annotations

import contextlib
import os
import resource

RESERVE = 32
"""Size of the reserve; smaller where the process may have only a few hundred. Accepting resumes when twice as many are free."""


class DescriptorReserve:
    """Descriptors that this process keeps in reserve. One thread uses it.

    Attributes:
        is_used: whether the process needs the reserve itself. No peer may be accepted then.
    """

    def __init__(self) -> None:
        self.is_used = False
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._size = RESERVE if limit == resource.RLIM_INFINITY else min(RESERVE, limit // 8)
        self._reserved: list[int] = []

    def look(self) -> bool:
        """Count the free descriptors and take or release the reserve; returns `is_used`."""
        if self._reserved and not self.is_used:
            probe = _taken(1)
            self.is_used = not probe
            _let_go(probe)
        elif self._reserved:  # the server has stopped accepting, so waiting peers cannot take them
            self.close()
        else:
            found = _taken(2 * self._size)
            self.is_used = len(found) < 2 * self._size
            keep = 0 if self.is_used else self._size
            self._reserved = found[:keep]
            _let_go(found[keep:])
        return self.is_used

    def close(self) -> None:
        """Release the reserve."""
        _let_go(self._reserved)
        self._reserved = []


def _taken(count: int) -> list[int]:
    """Open that many descriptors, or fewer if there are no more."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        while len(found) < count:
            found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    return found


def _let_go(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)
