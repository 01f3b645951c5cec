"""What one client may have of a server at once: so much, and then an error instead of more.

A client is whoever has one key. Without keys it is a process, whatever connections its threads make: it says its name when it opens
a session, and steps belong to programs, programs to sessions.
"""

from __future__ import annotations

import os
import secrets
import threading

from ..graph.errors import ResourceExhaustedError

NAME_CHARS = 64  # of a client's name
_names: dict[int, str] = {}  # process -> its name; a forked child is another client


def this_client() -> str:
    """The name by which this process is known as a client: drawn by chance, so no other one has it."""
    return _names.get(os.getpid()) or _names.setdefault(os.getpid(), secrets.token_hex(8))


class Quota:
    """How much of something each client has. Any thread may use it.

    Args:
        most: what a client may have; 0: no limit.
        what: the thing, for the error: "running steps".
        setting: the setting that the limit comes from.

    >>> steps = Quota(1, "running steps", "DOVETAIL_CLIENT_STEPS")
    >>> steps.take("alice")
    >>> steps.take("bob")
    >>> steps.take("alice")
    Traceback (most recent call last):
    ...
    ResourceExhaustedError: This client has 1 running steps at this server, and 1 more would be over the limit of 1 ...
    """

    def __init__(self, most: int, what: str, setting: str) -> None:
        self._most = most
        self._what = what
        self._setting = setting
        self._taken: dict[str | bytes, int] = {}
        self._lock = threading.Lock()

    def take(self, client: str | bytes, amount: int = 1) -> None:
        """Note that a client gets so much.

        Raises:
            ResourceExhaustedError: it would have too much then; nothing is noted.
        """
        with self._lock:
            now = self._taken.get(client, 0)
            if self._most and now + amount > self._most:
                raise ResourceExhaustedError(
                    None, None,
                    f"This client has {now} {self._what} at this server, and {amount} more would be over the limit of "
                    f"{self._most} ({self._setting} of the server). Wait until some have ended",
                )  # fmt: skip
            self._taken[client] = now + amount

    def give_back(self, client: str | bytes, amount: int = 1) -> None:
        """Note that it no longer has so much."""
        with self._lock:
            left = self._taken.get(client, 0) - amount
            if left > 0:
                self._taken[client] = left
            else:
                self._taken.pop(client, None)

    def taken(self) -> int:
        """How much all clients have together."""
        with self._lock:
            return sum(self._taken.values())
