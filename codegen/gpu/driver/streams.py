"""Streams of a GPU (queues of work), and events (points in them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .api import NOT_READY, bindings, check

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: the default stream, which other libraries use, does not wait for it


class Stream:
    """A queue of work of the device that is current when it is made.

    Args:
        context: the device's. It must be current in a thread that waits.
        new_event: makes the device's events.
    """

    __slots__ = ("context", "handle", "new_event")

    def __init__(self, context: Any, new_event: Callable[[], Event]) -> None:
        self.context = context
        self.new_event = new_event
        self.handle = check(bindings().cuStreamCreate(_NON_BLOCKING))

    def record(self, event: Event | None = None) -> Event:
        """An event that has happened when all work queued so far is done."""
        event = event or self.new_event()
        check(bindings().cuEventRecord(event.handle, self.handle))
        return event

    def wait(self, event: Event) -> None:
        """Let what is queued from now on start after the event; the caller goes on."""
        check(bindings().cuStreamWaitEvent(self.handle, event.handle, 0))

    def synchronize(self) -> None:
        """Wait until all work queued so far is done. CudaError when a kernel failed."""
        driver = bindings()
        check(driver.cuCtxSetCurrent(self.context))
        check(driver.cuStreamSynchronize(self.handle))


class Event:
    """A point in a stream.

    Args:
        handle: the driver's.
        context: the device's; a thread that has none may wait, too.
        end: takes the handle when no reference to the event is left: one without timing is used again, another one destroyed.
    """

    __slots__ = ("_end", "context", "handle")

    def __init__(self, handle: Any, context: Any, end: Callable[[Any], Any]) -> None:
        self.handle = handle
        self.context = context
        self._end = end

    def __del__(self) -> None:
        self._end(self.handle)

    @property
    def is_done(self) -> bool:
        """Whether it has happened."""
        driver = bindings()
        check(driver.cuCtxSetCurrent(self.context))
        code = int(driver.cuEventQuery(self.handle)[0])
        if code not in (0, NOT_READY):
            check((code,))
        return code == 0

    def synchronize(self) -> None:
        """Wait until it has happened."""
        driver = bindings()
        check(driver.cuCtxSetCurrent(self.context))
        check(driver.cuEventSynchronize(self.handle))

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two events that were made with `timing=True`."""
        return float(check(bindings().cuEventElapsedTime(earlier.handle, self.handle)))
