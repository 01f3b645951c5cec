"""What tests of the transport say to each other, and how they wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from dovetail.runtime.wire.messages import Message

WAIT_S = 60.0  # far beyond what anything here takes; only a failure waits so long


def ping(seq: int = 1) -> Message:
    """A small message."""
    return Message("ping", {"seq": seq})


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.005)
