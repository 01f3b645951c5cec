"""Pauses Python's cycle collector while many long-lived objects are made, caches the process id, and counts the cores.

A forked child must not change state that its parent shares with other processes. So the process id is checked wherever that could
happen, also several times per step, and a system call costs as much as hundreds of instructions.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 50_000  # objects, by far more than a step of a small graph makes
_FEW = 1_000  # objects: Python 3.12 itself freezes some hundred when it starts


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's cycle collector: a large graph makes so many long-lived objects that repeated scans would double the time.

    Afterwards they belong to the oldest generation at once. Otherwise the collector would first scan them twice.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # Objects that the program has frozen stay frozen.
            if gc.get_count()[0] > _MANY and gc.get_freeze_count() < _FEW:
                gc.freeze()
                gc.unfreeze()  # moves all to the oldest generation
            gc.enable()


def own_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_pid = os.getpid()


def process_id() -> int:
    """As `os.getpid`."""
    return _pid


def _forked() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
