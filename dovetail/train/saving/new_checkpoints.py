"""Iterates over checkpoints as they are written, to evaluate or export in one process while another one trains."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from .checkpoint_state import latest_checkpoint

POLL_S = 1.0  # polling interval for a folder; each poll reads one small file


def wait_for_new_checkpoint(
    checkpoint_dir: str,
    last_checkpoint: str | None = None,
    seconds_to_sleep: float = POLL_S,
    timeout: float | None = None,
) -> str | None:
    """The path of the next checkpoint of a folder; None: there was none within `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    while (found := latest_checkpoint(checkpoint_dir)) in (None, last_checkpoint):
        left = math.inf if end is None else end - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(seconds_to_sleep, left))
    return found


def checkpoints_iterator(
    checkpoint_dir: str,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], Any] | None = None,
) -> Iterator[str]:
    """Checkpoints of a folder, each when it appears. A slow consumer misses some.

    Args:
        min_interval_secs: at least so long between two. timeout: how long to wait for the next one; None: for ever.
        timeout_fn: called when the time is over; True: end. None: end.
    """
    seen: str | None = None
    while True:
        found = wait_for_new_checkpoint(checkpoint_dir, seen, timeout=timeout)
        if found is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        seen, given = found, time.monotonic()
        yield found
        time.sleep(max(0.0, min_interval_secs - (time.monotonic() - given)))


__all__ = ["checkpoints_iterator", "wait_for_new_checkpoint"]
