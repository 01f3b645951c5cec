"""The thread of an endpoint: it waits for descriptors, and does what other threads ask it to do.

Whoever adds a descriptor says what is to be called when something happens on it. Other threads put calls in a queue and wake the thread
through a socket pair. So whatever belongs to this thread needs no lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Protocol

from .zmq_sockets import new_poller

logger = logging.getLogger(__name__)

TICK_S = 0.25  # how often `tick` is called, about
BUSY_POLL_S = 150e-6
"""So long the I/O thread looks out for an answer that is expected at once before it sleeps: about what another task takes to do a small
stretch and to send. To sleep and to be woken costs the two ends 30 µs together, and more where a virtual processor has to be started."""
MOST_FAILURES = 100  # turns that fail one after the other, before the process ends
EXIT_STATUS = 70  # of a process whose I/O thread cannot go on: EX_SOFTWARE
CROWDED_S = 15e-6  # the processor was another's for so long when it was offered: others need it, so it is time to sleep


class PolledSockets(Protocol):
    """Whose descriptors do not say everything, so that they are asked in each turn, too."""

    def settle(self) -> None:
        """Take and send what there is. What has happened on descriptors has been attended to."""
        ...

    def patience(self) -> float:
        """How many seconds the next turn may wait for something to happen; -1: without end."""
        ...


class EventLoop:
    """A thread that waits for descriptors.

    An exception in what is called on it is logged, and the thread goes on: whatever one peer does, the others are heard. If every turn
    fails, the process ends, since one that hears no peer only keeps others waiting.

    Attributes:
        name: whose it is, for the log.
    """

    def __init__(self) -> None:
        self.name = ""
        self._attend: dict[int, Callable[[int], None]] = {}  # what takes the events of a descriptor
        self._queue: deque[Callable[[], None]] = deque()
        self._lock = (
            threading.Lock()
        )  # what enters the queue before `_closing` is set will run; nothing enters it afterwards
        self._woken = False
        self._closing = False
        self._is_answer_near = False  # whether an answer to what has just been sent is probably near
        self._ident = 0
        self._turns = 0  # that ended well
        self._thread: threading.Thread | None = None
        self._poller = new_poller()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self.watch(self._wake_in.fileno(), self._drain_wakes)

    def start(
        self, name: str, sockets: PolledSockets, tick: Callable[[], None] | None, end: Callable[[], None]
    ) -> None:
        """Begin to wait.

        Args:
            name: see `name`. sockets: what is asked in each turn.
            tick: called about every `TICK_S` seconds. end: called when nothing will be waited for any more.
        """
        self.name = name
        self._thread = threading.Thread(
            target=self._run, args=(sockets, tick, end), name=f"dovetail-io-{name}", daemon=True
        )
        self._thread.start()

    # Called from any thread.

    def call_soon(self, function: Callable[[], None]) -> bool:
        """Run `function` on the thread; False if it has ended and it will never run."""
        with self._lock:
            if self._closing:
                return False
            self._queue.append(function)
        if not self.is_current():  # it looks at the queue before it waits again
            self.wake()
        return True

    def wake(self) -> None:
        """Have another turn."""
        # One byte wakes for all that was queued before it is read. The flag is cleared before the queue is
        # read, so whoever finds it set knows that the queue will still be read. A full pipe wakes, too; a
        # closed one has nobody left to wake.
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                self._wake_out.send(b"\0")

    def busy_poll_hint(self) -> None:
        """An answer to what the calling thread has sent is probably near. Of no effect on other threads than this one."""
        if get_ident() == self._ident:
            self._is_answer_near = hasattr(os, "sched_yield")

    def is_current(self) -> bool:
        """Whether the caller runs on the thread."""
        return get_ident() == self._ident

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Do what is queued, and end. It is waited for, except by the thread itself."""
        with self._lock:
            self._closing = True
        self.wake()
        if self._thread is None:
            self._shut()
        elif not self.is_current():
            self._thread.join()

    # Called on the thread only, or before it runs.

    def watch(self, fd: int, attend: Callable[[int], None], events: int = select.POLLIN) -> None:
        """Call `attend` with what happens on a descriptor."""
        self._attend[fd] = attend
        self._poller.register(fd, events)

    def watch_for(self, fd: int, events: int) -> None:
        """Look for other events on it from now on."""
        self._poller.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """No longer."""
        del self._attend[fd]
        self._poller.unregister(fd)

    def run_queue(self) -> None:
        """Do what is queued; what these calls queue in turn waits for the next round."""
        for _ in range(len(self._queue)):
            self.guard(self._queue.popleft())

    def guard(self, function: Callable[[], None]) -> None:
        """Call something; what it raises is logged."""
        try:
            function()
        except Exception:
            logger.exception("%s: a call on the I/O thread failed", self.name)

    def _run(self, sockets: PolledSockets, tick: Callable[[], None] | None, end: Callable[[], None]) -> None:
        self._ident = get_ident()
        try:
            failures = 0
            while not self._closing:
                turns = self._turns
                try:
                    self._take_turns(sockets, tick)
                except Exception:  # MemoryError, too
                    failures = failures + 1 if self._turns == turns else 1
                    if failures == MOST_FAILURES:
                        raise
                    logger.exception("%s: a turn of the I/O thread failed", self.name)
                    time.sleep(0.001 * failures)
        except BaseException:
            if sys.is_finalizing():
                return
            logger.critical("%s: the I/O thread cannot go on, so this process ends", self.name, exc_info=True)
            logging.shutdown()
            os._exit(EXIT_STATUS)
        with self._lock:
            self._closing = True
        self.run_queue()
        self.guard(end)
        self._shut()

    def _take_turns(self, sockets: PolledSockets, tick: Callable[[], None] | None) -> None:
        """Attend to what happens, until the thread is to end."""
        attends = self._attend
        next_tick = time.monotonic() + TICK_S
        while not self._closing:
            patience = 0.0 if self._queue else sockets.patience()
            if patience < 0 and tick is not None:
                patience = max(0.0, next_tick - time.monotonic() + 0.001)
            events = self._busy_poll() if self._is_answer_near and patience else None
            for fd, event in events or self._poller.poll(patience):
                attend = attends.get(fd)
                if attend is not None:  # else it was closed earlier in this turn
                    attend(event)
            sockets.settle()
            if self._queue:
                self.run_queue()
            if tick is not None and time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK_S
                tick()
            self._turns += 1

    def _busy_poll(self) -> list[tuple[int, int]] | None:
        """Look for something to happen without sleeping, for a moment, and only as long as nobody else wants the processor."""
        self._is_answer_near = False
        poll, clock, offer = self._poller.poll, time.perf_counter, os.sched_yield
        now = clock()
        end = now + BUSY_POLL_S
        while now < end:
            events = poll(0)
            if events:
                return events
            before = clock()
            offer()
            now = clock()
            if now - before > CROWDED_S:
                break
        return None

    def _drain_wakes(self, event: int) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.recv(4_096)
        self._woken = False

    def _shut(self) -> None:
        self._poller.close()
        self._wake_in.close()
        self._wake_out.close()


__all__ = ["CROWDED_S", "TICK_S", "BUSY_POLL_S", "EventLoop", "PolledSockets"]
