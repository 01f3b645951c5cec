"""The event loop of an endpoint or of a client: it watches descriptors, and runs the calls that other threads queue.

Each watched descriptor has a callback. Other threads put calls into a queue and wake the loop through a socket pair. So state that
belongs to the loop needs no lock. An endpoint's loop has a thread of its own, the I/O thread (`start`). A client's loop runs in the
thread that waits for messages (`turn`).
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

logger = logging.getLogger(__name__)

TICK_S = 0.25  # interval of `tick`, about
BUSY_POLL_S = 150e-6
"""How long the thread polls for an event that it expects before it sleeps: about the time in which another task runs a small segment and
answers. Being woken costs more than a small message, and most on a virtual machine, whose idle processors have to be started."""
CROWDED_S = 15e-6  # a yield that takes this long gave the processor to another thread
MOST_FAILURES = 100  # iterations that fail one after the other before the process exits
EXIT_STATUS = 70  # exit status when the I/O thread cannot go on: EX_SOFTWARE


class EventLoop:
    """Watches descriptors.

    On the I/O thread an exception in a callback is logged, and the thread goes on, so that one peer cannot block the others. If
    `MOST_FAILURES` iterations in a row fail, the process exits, since a task that receives no messages only delays the others.

    Attributes:
        name: the endpoint's name, for the log.
        settle: called after the callbacks of each iteration: receives and sends what the descriptors do not report.
        patience: returns the seconds that the next iteration may wait for an event; -1: without limit.
        queue: the calls that the next iteration makes.
    """

    def __init__(self) -> None:
        self.name = "a client"
        self.settle: Callable[[], None] = lambda: None
        self.patience: Callable[[], float] = lambda: -1
        self._attend: dict[int, Callable[[int], None]] = {}  # descriptor -> its callback
        self.queue: deque[Callable[[], None]] = deque()
        # Calls that are queued before `_closing` is set will run; none are queued afterwards.
        self._lock = threading.Lock()
        self._woken = False
        self._closing = False
        self._expects_event = False
        self._ident = 0
        self._thread: threading.Thread | None = None
        self._poller = select.epoll()  # its cost grows with the events, not with the descriptors
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self.watch(self._wake_in.fileno(), self._drain_wakes)

    def start(self, name: str, tick: Callable[[], None], end: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            tick: called about every `TICK_S` seconds.
            end: called when the loop has ended.
        """
        self.name = name
        self._thread = threading.Thread(target=self._run, args=(tick, end), name=f"dovetail-io-{name}", daemon=True)
        self._thread.start()

    # Called from any thread.

    def call_soon(self, function: Callable[[], None]) -> bool:
        """Run `function` on the thread; False if the thread has ended and will never run it."""
        with self._lock:
            if self._closing:
                return False
            self.queue.append(function)
        if not self.is_current():  # the I/O thread itself reads the queue before it waits
            self.wake()
        return True

    def wake(self) -> None:
        """Wake the thread for another iteration."""
        # One byte wakes it for all calls queued before the byte is read. The flag is cleared before the queue
        # is read, so a caller that finds it set knows that the queue will still be read. A full pipe wakes as
        # well; a closed one has no reader.
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                self._wake_out.send(b"\0")

    def is_current(self) -> bool:
        return get_ident() == self._ident

    def close(self) -> None:
        """Run the queued calls and end. Waits for the thread, except when the thread itself calls this."""
        with self._lock:
            self._closing = True
        self.wake()
        if self._thread is None:
            self.run_queue()
            self._shut()
        elif not self.is_current():
            self._thread.join()

    # Called on the thread only, or before it runs.

    def watch(self, fd: int, attend: Callable[[int], None], events: int = select.POLLIN) -> None:
        """Call `attend` with the events of a descriptor."""
        self._attend[fd] = attend
        self._poller.register(fd, events)

    def watch_for(self, fd: int, events: int) -> None:
        self._poller.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        del self._attend[fd]
        self._poller.unregister(fd)

    def expect_event(self, soon: bool = True) -> None:
        """Busy-poll for a moment before the next sleep, if an event will come soon. Calls of other threads have no effect."""
        if get_ident() == self._ident:
            self._expects_event = soon

    def run_queue(self) -> None:
        """Run the queued calls; calls that these queue wait for the next round."""
        for _ in range(len(self.queue)):
            self.guard(self.queue.popleft())

    def guard(self, function: Callable[[], None]) -> None:
        """Call `function` and log an exception that it raises."""
        try:
            function()
        except Exception:
            logger.exception("%s: a call on the I/O thread failed", self.name)

    def turn(self, limit: float) -> None:
        """One iteration: wait up to `limit` seconds for events (-1: without limit), and handle them."""
        patience = 0.0 if self.queue else self.patience()
        if patience < 0 or 0 <= limit < patience:
            patience = limit
        attends = self._attend
        events = self._busy_poll() if self._expects_event and patience else []
        for fd, event in events or self._poller.poll(patience):
            attend = attends.get(fd)
            if attend is not None:  # closed earlier in this iteration
                attend(event)
        self.settle()
        if self.queue:
            self.run_queue()

    def _run(self, tick: Callable[[], None], end: Callable[[], None]) -> None:
        self._ident = get_ident()
        next_tick = time.monotonic() + TICK_S
        failures = 0
        try:
            while not self._closing:
                try:
                    self.turn(max(0.0, next_tick - time.monotonic() + 0.001))
                    if time.monotonic() >= next_tick:
                        next_tick = time.monotonic() + TICK_S
                        tick()
                    failures = 0
                except Exception:  # MemoryError, too
                    failures += 1
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

    def _busy_poll(self) -> list[tuple[int, int]]:
        """Poll without sleeping, until something comes or another thread needs the processor."""
        self._expects_event = False
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
        return []

    def _drain_wakes(self, event: int) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.recv(4_096)
        self._woken = False

    def _shut(self) -> None:
        self._poller.close()
        self._wake_in.close()
        self._wake_out.close()
