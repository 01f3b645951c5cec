"""Pauses of Python's cycle collector, the cached process id, and the number of cores.

A forked child must not change state that its parent shares with other processes. So the process id is checked in many places, several times
per step. It is cached because a system call costs hundreds of instructions.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 50_000  # objects; a step of a small graph makes far fewer
_FEW = 1_000  # objects; Python 3.12 itself freezes some hundreds when it starts


@contextmanager
def collector_paused() -> Iterator[None]:
    """A context in which Python's cycle collector is paused, for code that makes very many long-lived objects.

    Repeated scans would double the time to build a large graph. Afterwards, the objects are in the oldest generation. Otherwise the
    collector would scan them twice more.
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
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_pid = os.getpid()


def process_id() -> int:
    """`os.getpid()`, from a cache."""
    return _pid


def _forked() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
