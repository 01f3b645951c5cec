"""Python's cycle collector, held back while many objects are made that stay.

Which process this is, without asking the kernel each time.

What a process shares with others is not its forked child's to change. So it is looked who this is wherever that could be, also
several times in a step; and a call of the kernel costs as much as hundreds of instructions.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["process_id"]

_MANY = 50_000  # objects, by far more than a step of a small graph is made of
_FEW = 1_000  # objects: what Python 3.12 freezes by itself when it starts is some hundred


@contextmanager
def collector_paused() -> Iterator[None]:
    """Hold Python's cycle collector back: a large graph makes so many objects that stay that it would look through all of them
    again and again, which doubles the time.

    Afterwards they count as old at once. Else the collector would begin by looking through them twice, to find that they stay.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if gc.get_count()[0] > _MANY and gc.get_freeze_count() < _FEW:  # what the program has frozen stays frozen
                gc.freeze()
                gc.unfreeze()  # to the oldest generation, whatever the generation before
            gc.enable()


_pid = os.getpid()


def process_id() -> int:
    """As `os.getpid`."""
    return _pid


def _forked() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
