"""One session of a monitored session, with its threads and hooks. It is recreated after a failure."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ...graph.core.errors import AbortedError, OpError, UnavailableError
from ...runtime.config import RunMetadata, RunOptions
from ...runtime.session.session import Session
from .coordinator import Coordinator
from .queue_runner import start_queue_runners
from .session_manager import SessionCreator
from .session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues

LOST = (AbortedError, UnavailableError)
"""Errors that mean: a task died or restarted; a new session can go on."""


class LiveSession:
    """A session, the threads that serve it, and the hooks around its steps. It is recreated after a failure."""

    def __init__(self, creator: SessionCreator, hooks: Sequence[SessionRunHook], grace_s: float) -> None:
        self.session = creator.create_session()
        self._hooks = hooks
        self._grace_s = grace_s
        self.stopped = False
        self.coord = Coordinator(clean_stop_exception_types=(), survived=LOST)
        # An error in a thread, such as one that fills queues, must end the step that waits for it.
        threading.Thread(target=self._end_waits, args=(self.session, self.coord), daemon=True).start()
        try:
            if self.session.graph.get_collection("queue_runners"):
                start_queue_runners(self.session, self.coord)
            for hook in hooks:
                hook.after_create_session(self.session, self.coord)
        except BaseException:
            self.close(abruptly=True)
            raise

    @staticmethod
    def _end_waits(session: Session, coord: Coordinator) -> None:
        coord.wait_for_stop()
        try:
            coord.raise_requested_exception()
        except Exception:
            with contextlib.suppress(OpError):
                session.close()

    def should_stop(self) -> bool:
        """Whether a hook or a thread asked to stop; the error of a thread is raised."""
        self.coord.raise_requested_exception()
        return self.stopped or self.coord.should_stop()

    def raise_lost(self) -> None:
        """Raise the error of a thread that has lost a task."""
        if isinstance(self.coord.requested_exception, LOST):
            self.coord.raise_requested_exception()

    def run(
        self, fetches: Any, feeds: Mapping[Any, Any] | None, options: RunOptions | None, metadata: RunMetadata | None
    ) -> Any:
        """A step, with the hooks around it. Where it fails because a thread has lost a task, the thread's error is raised."""
        try:
            return self._run(fetches, feeds, options, metadata)
        except LOST:
            raise
        except Exception:
            self.raise_lost()
            raise

    def _run(
        self, fetches: Any, feeds: Mapping[Any, Any] | None, options: RunOptions | None, metadata: RunMetadata | None
    ) -> Any:
        if self.should_stop():
            raise RuntimeError("Run called even after should_stop requested.")
        context = SessionRunContext(SessionRunArgs(fetches, feeds), self.session)
        options = options or RunOptions()
        metadata = metadata or RunMetadata()
        wanted, fed, options = self._before_run(context, fetches, feeds, options)
        values = self._step(wanted, fed, options, metadata)
        for i, hook in enumerate(self._hooks):
            hook.after_run(context, SessionRunValues(values.get(str(i)), options, metadata))
        self.stopped = self.stopped or context.stop_requested
        return values["caller"]

    def _before_run(
        self, context: SessionRunContext, fetches: Any, feeds: Mapping[Any, Any] | None, options: RunOptions
    ) -> tuple[dict[str, Any], dict[Any, Any] | None, RunOptions]:
        wanted: dict[str, Any] = {"caller": fetches}
        fed = dict(feeds or {})
        for i, hook in enumerate(self._hooks):
            more = hook.before_run(context)
            if more is None:
                continue
            if not isinstance(more, SessionRunArgs):
                raise TypeError(f"before_run of {hook!r} must give SessionRunArgs or None, not {more!r}")
            if more.fetches is not None and not (isinstance(more.fetches, (list, tuple, dict)) and not more.fetches):
                wanted[str(i)] = more.fetches
            for key, value in (more.feed_dict or {}).items():
                if key in fed:
                    whose = "the caller" if feeds is not None and key in feeds else "another hook"
                    raise RuntimeError(f"Same tensor is fed by two: {key} by {hook!r} and by {whose}.")
                fed[key] = value
            if more.options is not None:
                options = _both(options, more.options)
        return wanted, fed or None, options

    def _step(self, fetches: Any, feeds: Any, options: RunOptions, metadata: RunMetadata) -> Any:
        try:
            return self.session.run(fetches, feeds, options, metadata)
        except LOST:
            raise
        except Exception:
            self.coord.raise_requested_exception()  # a thread's error is the cause, where there is one
            raise

    def close(self, abruptly: bool = False) -> None:
        """End the threads, then the session; abruptly: the session first, so that no thread can close a shared queue.

        Threads that wait in a step end only with the session, so it is closed before they are joined.
        """
        if abruptly:
            self.session.close()
            self.coord.request_stop()
        else:
            self.coord.request_stop()
            self.coord.wait_for_closers()
            self.session.close()
        with contextlib.suppress(OpError):  # (nothing is raised for the errors that ended the session)
            self.coord.join(stop_grace_period_secs=self._grace_s, ignore_live_threads=True)


def _both(a: RunOptions, b: RunOptions) -> RunOptions:
    """Run options that satisfy both."""
    return RunOptions(
        trace_level=max(a.trace_level, b.trace_level),
        timeout_in_ms=max(a.timeout_in_ms, b.timeout_in_ms),
        output_partition_graphs=a.output_partition_graphs or b.output_partition_graphs,
    )
