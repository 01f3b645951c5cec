"""Python's cycle collector, held back while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

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
