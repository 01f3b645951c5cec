"""TensorFlow 1's `Coordinator`, which stops several threads together and reports the first error."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...graph.core.errors import OutOfRangeError

logger = logging.getLogger(__name__)

CLOSER = "-close_on_stop"
"""Suffix of the names of threads that close a queue when the coordinator stops."""
# Seconds to wait for these threads. Closing a queue is one short step.
CANCEL_S = 5.0


class Coordinator:
    """Stops a group of threads together, and joins them.

    Args:
        clean_stop_exception_types: exceptions that end training normally. They stop the threads, but `join` does not raise them. None:
            OutOfRangeError.
        survived: exceptions after which training continues in a new session. Queue runners then leave their queues open, because the
            new session uses them.

    >>> coordinator = Coordinator()
    >>> threads = [threading.Thread(target=work, args=(coordinator,)) for _ in range(4)]  # each: while not coord.should_stop()
    >>> for thread in threads: thread.start()
    >>> coordinator.join(threads)
    """

    def __init__(
        self,
        clean_stop_exception_types: Iterable[type[BaseException]] | None = None,
        *,
        survived: tuple[type[BaseException], ...] = (),
    ) -> None:
        clean = (OutOfRangeError,) if clean_stop_exception_types is None else clean_stop_exception_types
        self._clean = tuple(clean)
        self._survived = survived
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._joined = False
        self._error: BaseException | None = None
        self._threads: set[threading.Thread] = set()

    # --- stopping --------------------------------------------------------------------------------------------------

    def request_stop(self, ex: Any = None) -> None:
        """Ask all threads to stop.

        Args:
            ex: the exception that caused the stop, or `sys.exc_info()`. `join` raises the first one, unless it is one of
                `clean_stop_exception_types`.
        """
        error = ex[1] if isinstance(ex, tuple) else ex
        with self._lock:
            if self._joined:  # no later `join` will raise it
                if error is not None and not isinstance(error, self._clean):
                    raise error
                return
            if self._stop.is_set():
                return
            if error is not None and not isinstance(error, self._clean):
                logger.info("Error reported to Coordinator: %s, %s", type(error), error)
                self._error = error
            self._stop.set()

    def clear_stop(self) -> None:
        """Clear the stop request and its exception."""
        with self._lock:
            self._joined = False
            self._error = None
            self._stop.clear()

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait for a stop request, at most `timeout` seconds. Returns whether there was one."""
        return self._stop.wait(timeout)

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """A context that catches exceptions and requests a stop with them."""
        try:
            yield
        except Exception:
            self.request_stop(sys.exc_info())

    @property
    def requested_exception(self) -> BaseException | None:
        """The exception of the stop request; None: there is none."""
        with self._lock:
            return self._error

    def raise_requested_exception(self) -> None:
        """Raise the exception of the stop request, if there is one."""
        error = self.requested_exception
        if error is not None:
            raise error

    def leaves_open(self) -> bool:
        """Whether the queues stay open, because a new session continues after the exception."""
        return isinstance(self.requested_exception, self._survived)

    # --- waiting ---------------------------------------------------------------------------------------------------

    def register_thread(self, thread: threading.Thread) -> None:
        """Add a thread that `join` waits for."""
        with self._lock:
            self._threads.add(thread)

    @property
    def joined(self) -> bool:
        """Whether `join` has returned."""
        return self._joined

    def wait_for_closers(self, timeout: float = CANCEL_S) -> None:
        """Wait, at most `timeout` seconds, until the threads that close queues after a stop have finished."""
        deadline = time.monotonic() + timeout
        with self._lock:
            closers = [t for t in self._threads if t.name.endswith(CLOSER)]
        for t in closers:
            t.join(max(0.0, deadline - time.monotonic()))

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until all threads have ended: those given and those registered.

        Args:
            threads: threads to wait for, besides those of `register_thread`.
            stop_grace_period_secs: seconds that threads have to end after a stop request.
            ignore_live_threads: only log which threads are still running after that.

        Raises:
            Exception: the exception of the stop request.
            RuntimeError: threads are still running, and `ignore_live_threads` is False.
        """
        with self._lock:
            waiting = [*self._threads, *(t for t in threads or () if t not in self._threads)]
        while any(t.is_alive() for t in waiting) and not self._stop.wait(0.05):
            pass
        deadline = time.monotonic() + stop_grace_period_secs
        for t in waiting:
            t.join(max(0.0, deadline - time.monotonic()))
        alive = [t.name for t in waiting if t.is_alive()]
        with self._lock:
            self._joined = True
            self._threads.clear()
            error = self._error
        if error is not None:
            raise error
        if alive:
            text = f"Coordinator stopped with threads still running: {' '.join(alive)}"
            if not ignore_live_threads:
                raise RuntimeError(text)
            logger.info("%s", text)


class LooperThread(threading.Thread):
    """Calls a function repeatedly until the coordinator stops. An exception of the function stops all threads.

    Args:
        coord: the coordinator.
        timer_interval_secs: seconds between the starts of calls; None: no pause.
        target: the function; None: the method `run_loop`, to override.
        args: arguments of `target`.
        kwargs: keyword arguments of `target`.
    """

    def __init__(
        self,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any] | None = None,
        args: Any = None,
        kwargs: Any = None,
    ) -> None:
        if not isinstance(coord, Coordinator):
            raise ValueError(f"'coord' argument must be a Coordinator: {coord!r}")
        super().__init__(daemon=True)
        self._coord = coord
        self._interval = timer_interval_secs
        self._function = target, tuple(args or ()), dict(kwargs or {})
        coord.register_thread(self)

    @staticmethod
    def loop(
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
    ) -> LooperThread:
        """Create a thread and start it."""
        thread = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        thread.start()
        return thread

    def run(self) -> None:
        """The main function of the thread."""
        with self._coord.stop_on_exception():
            self.start_loop()
            if self._interval is None:
                while not self._coord.should_stop():
                    self.run_loop()
            else:
                next_time = time.monotonic()
                while not self._coord.wait_for_stop(max(0.0, next_time - time.monotonic())):
                    next_time += self._interval
                    self.run_loop()
            self.stop_loop()

    def start_loop(self) -> None:
        """Called once before the first iteration."""

    def stop_loop(self) -> None:
        """Called once after the last iteration, unless that failed."""

    def run_loop(self) -> None:
        """One iteration."""
        function, args, kwargs = self._function
        if function is not None:
            function(*args, **kwargs)
