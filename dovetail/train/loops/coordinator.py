"""Stopping several threads together, and telling the first of their errors: TensorFlow 1's `Coordinator`."""

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
"""End of the names of threads that close a queue when the coordinator stops."""
CANCEL_S = 5.0  # closing queues at the end is one short step


class Coordinator:
    """Lets threads ask each other to stop, and waits for their ends.

    Args:
        clean_stop_exception_types: errors that mean an ordinary end: they stop the threads, and `join` does not raise them.
        survived: errors after which training continues in a new session. Queue runners then leave their queues open, because
            the new session shares them.

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
            ex: the error that is the reason, or `sys.exc_info()`. The first one is kept and raised by `join`, unless it is of a
                type that means an ordinary end.
        """
        error = ex[1] if isinstance(ex, tuple) else ex
        with self._lock:
            if self._joined:  # no later `join` will raise it: report it here
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
        """Reset it: no stop is requested, and there is no error."""
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
        """A block in which an error asks all threads to stop, and goes no further."""
        try:
            yield
        except Exception:
            self.request_stop(sys.exc_info())

    @property
    def requested_exception(self) -> BaseException | None:
        """The error that was given with the request to stop; None: there was none."""
        with self._lock:
            return self._error

    def raise_requested_exception(self) -> None:
        """Raise the error that was given with the request to stop, if there was one."""
        error = self.requested_exception
        if error is not None:
            raise error

    def leaves_open(self) -> bool:
        """Whether it stopped for an error after which a new session continues, with the same queues."""
        return isinstance(self.requested_exception, self._survived)

    # --- waiting ---------------------------------------------------------------------------------------------------

    def register_thread(self, thread: threading.Thread) -> None:
        """Let `join` wait for this thread, too."""
        with self._lock:
            self._threads.add(thread)

    @property
    def joined(self) -> bool:
        """Whether `join` has ended."""
        return self._joined

    def wait_for_closers(self, timeout: float = CANCEL_S) -> None:
        """Wait, at most `timeout` seconds, until the threads that close queues at a stop have done so."""
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

        After a stop request, they get `stop_grace_period_secs` to end.

        Raises:
            RuntimeError: threads still run after that, and `ignore_live_threads` is not set. The error that was given with the
                request to stop, if there was one, comes first.
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
    """Runs a function again and again until the coordinator stops; its error stops all.

    Args:
        coord: the coordinator.
        timer_interval_secs: seconds between two runs; None: as fast as it can.
        target: the function; else override `run_loop`.
        args: the function; else override `run_loop`.
        kwargs: the function; else override `run_loop`.
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
        """Make one and start it."""
        thread = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        thread.start()
        return thread

    def run(self) -> None:
        """The thread."""
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
        """Called once before the first run."""

    def stop_loop(self) -> None:
        """Called once after the last run, unless that failed."""

    def run_loop(self) -> None:
        """One run."""
        function, args, kwargs = self._function
        if function is not None:
            function(*args, **kwargs)
