"""What one client may have of a server at once: so much, and then an error instead of more.

A client is whoever has one key. Without keys it is a process, whatever connections its threads make: it says its name when it opens
a session, and steps belong to programs, programs to sessions.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections.abc import Sequence
from operator import add, gt, sub
from typing import NamedTuple

from ..graph.core.errors import ResourceExhaustedError

NAME_CHARS = 64  # of a client's name
_names: dict[int, str] = {}  # process -> its name; a forked child is another client


def this_client() -> str:
    """The name by which this process is known as a client: drawn by chance, so no other one has it."""
    return _names.get(os.getpid()) or _names.setdefault(os.getpid(), secrets.token_hex(8))


class Limit(NamedTuple):
    """How much a client may have of one thing.

    Attributes:
        most: so much; 0: no limit.
        what: the thing, for the error: "running steps".
        setting: the setting that the limit comes from.
    """

    most: int
    what: str
    setting: str


class Quota:
    """How much of some things each client has. Any thread may use it.

    >>> steps = Quota(Limit(1, "running steps", "DOVETAIL_CLIENT_STEPS"))
    >>> steps.take("alice", 1)
    >>> steps.take("bob", 1)
    >>> steps.take("alice", 1)
    Traceback (most recent call last):
    ...
    ResourceExhaustedError: This client has 1 running steps at this server, and 1 more would be over the limit of 1 ...
    """

    def __init__(self, *limits: Limit) -> None:
        self._limits = limits
        self._most = tuple(limit.most or math.inf for limit in limits)
        self._nothing = (0,) * len(limits)
        self._taken: dict[str | bytes, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def take(self, client: str | bytes, *amounts: int) -> None:
        """Note that a client gets so much of each thing.

        Raises:
            ResourceExhaustedError: it would have too much then; nothing is noted.
        """
        with self._lock:
            now = self._taken.get(client, self._nothing)
            then = tuple(map(add, now, amounts))
            if any(map(gt, then, self._most)):
                raise self._refused(now, amounts)
            self._taken[client] = then

    def check(self, client: str | bytes, *amounts: int) -> None:
        """As `take`, where the client is done with it at once: nothing is noted."""
        now = self._taken.get(client, self._nothing)
        if any(map(gt, map(add, now, amounts), self._most)):
            raise self._refused(now, amounts)

    def give_back(self, client: str | bytes, *amounts: int) -> None:
        """Note that it no longer has so much."""
        with self._lock:
            left = tuple(map(sub, self._taken.get(client, self._nothing), amounts))
            if max(left) > 0:
                self._taken[client] = left
            else:
                self._taken.pop(client, None)

    def taken(self) -> tuple[int, ...]:
        """How much of each thing all clients have together."""
        with self._lock:
            return tuple(map(sum, zip(self._nothing, *self._taken.values(), strict=True)))

    def _refused(self, now: Sequence[int], amounts: Sequence[int]) -> ResourceExhaustedError:
        for limit, has, more in zip(self._limits, now, amounts, strict=True):
            if limit.most and has + more > limit.most:
                break
        return ResourceExhaustedError(
            None, None,
            f"This client has {has} {limit.what} at this server, and {more} more would be over the limit of "
            f"{limit.most} ({limit.setting} of the server). Wait until some have ended",
        )  # fmt: skip
