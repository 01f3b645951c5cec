"""`MonitoredTrainingSession` and related classes: sessions that initialize, save, stop, and recover from lost tasks.

A session creator creates the plain sessions of a monitored session. The chief's creator restores the latest checkpoint or initializes the
variables. A worker's creator waits until the chief has done so. Each step calls the hooks. When a task dies or restarts, the step fails
with UnavailableError or AbortedError. The monitored session then closes the plain session, creates a new one, calls
`after_create_session` of the hooks, and runs the step again. Any other error ends the loop.

The chief restores the variables of all tasks, also of those that did not die, so that all values are of the same step.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ...graph.core.argument_names import explains_arguments
from ...graph.core.default_graph import get_default_graph
from ...graph.core.errors import AbortedError, OpError, OutOfRangeError, UnavailableError
from ...graph.core.graph import Graph
from ...runtime.config import ConfigProto, RunMetadata, RunOptions
from ...runtime.session.session import Session
from .basic_session_run_hooks import StepCounterHook, SummarySaverHook
from .checkpoint_hooks import CheckpointSaverHook
from .coordinator import Coordinator
from .queue_runner import start_queue_runners
from .scaffold import Scaffold
from .session_manager import RETRY_S, ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from .session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues

logger = logging.getLogger(__name__)

DEFAULT: Any = object()
TASK_LOST_ERRORS = (AbortedError, UnavailableError)
"""Errors of a task that died or restarted. Training continues in a new session."""


class LiveSession:
    """A plain session with its threads, and the hooks around its steps. After a failure, it is replaced by a new one."""

    def __init__(self, creator: SessionCreator, hooks: Sequence[SessionRunHook], grace_s: float) -> None:
        self.session = creator.create_session()
        self._hooks = hooks
        self._grace_s = grace_s
        self.stopped = False
        self.coord = Coordinator(clean_stop_exception_types=(), survived=TASK_LOST_ERRORS)
        # An error in a queue runner must end the step that waits for the queue.
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
        """Whether a hook or a thread requested a stop. Raises the error of a thread."""
        self.coord.raise_requested_exception()
        return self.stopped or self.coord.should_stop()

    def raise_lost(self) -> None:
        """Raises the error of a thread that has lost a task."""
        if isinstance(self.coord.requested_exception, TASK_LOST_ERRORS):
            self.coord.raise_requested_exception()

    def run(
        self, fetches: Any, feeds: Mapping[Any, Any] | None, options: RunOptions | None, metadata: RunMetadata | None
    ) -> Any:
        """Runs a step with the hooks. If it fails because a thread has lost a task, raises the thread's error."""
        try:
            return self._run(fetches, feeds, options, metadata)
        except TASK_LOST_ERRORS:
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
        requested, fed, options = self._before_run(context, fetches, feeds, options)
        if len(requested) == 1:  # the session remembers what it has parsed, but not dictionaries
            values = {"caller": self._step(fetches, fed, options, metadata)}
        else:
            values = self._step(requested, fed, options, metadata)
        for i, hook in enumerate(self._hooks):
            hook.after_run(context, SessionRunValues(values.get(str(i)), options, metadata))
        self.stopped = self.stopped or context.stop_requested
        return values["caller"]

    def _before_run(
        self, context: SessionRunContext, fetches: Any, feeds: Mapping[Any, Any] | None, options: RunOptions
    ) -> tuple[dict[str, Any], dict[Any, Any] | None, RunOptions]:
        requested: dict[str, Any] = {"caller": fetches}
        fed = dict(feeds or {})
        for i, hook in enumerate(self._hooks):
            more = hook.before_run(context)
            if more is None:
                continue
            if not isinstance(more, SessionRunArgs):
                raise TypeError(f"before_run of {hook!r} must return SessionRunArgs or None, not {more!r}")
            if more.fetches is not None and not (isinstance(more.fetches, (list, tuple, dict)) and not more.fetches):
                requested[str(i)] = more.fetches
            for key, value in (more.feed_dict or {}).items():
                if key in fed:
                    whose = "the caller" if feeds is not None and key in feeds else "another hook"
                    raise RuntimeError(f"Same tensor is fed by two: {key} by {hook!r} and by {whose}.")
                fed[key] = value
            if more.options is not None:
                options = _merge_options(options, more.options)
        return requested, fed or None, options

    def _step(self, fetches: Any, feeds: Any, options: RunOptions, metadata: RunMetadata) -> Any:
        try:
            return self.session.run(fetches, feeds, options, metadata)
        except TASK_LOST_ERRORS:
            raise
        except Exception:
            self.coord.raise_requested_exception()  # the error of a thread, if there is one, is the cause
            raise

    def close(self, abruptly: bool = False) -> None:
        """Ends the threads and then the session. `abruptly`: ends the session first, so that no thread can close a shared queue.

        A thread that waits in a step ends when the session is closed, so the session is closed before the threads are joined.
        """
        if abruptly:
            self.session.close()
            self.coord.request_stop()
        else:
            self.coord.request_stop()
            self.coord.wait_for_closers()
            self.session.close()
        with contextlib.suppress(OpError):  # the error that ended the session was reported before
            self.coord.join(stop_grace_period_secs=self._grace_s, ignore_live_threads=True)


def _merge_options(a: RunOptions, b: RunOptions) -> RunOptions:
    """Returns run options that satisfy both."""
    return RunOptions(
        trace_level=max(a.trace_level, b.trace_level),
        timeout_in_ms=max(a.timeout_in_ms, b.timeout_in_ms),
        output_partition_graphs=a.output_partition_graphs or b.output_partition_graphs,
    )


class StepContext:
    """The argument of the function that is passed to `run_step_fn`.

    Attributes:
        session: the plain session, whose steps call no hooks.
        run_with_hooks: runs a step with hooks. Its arguments are those of `Session.run`.
    """

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any]) -> None:
        self.session = session
        self.run_with_hooks = run_with_hooks

    def request_stop(self) -> None:
        """Leave `run_step_fn` and the session's `with` block, by raising StopIteration."""
        raise StopIteration("step_fn has requested the iterations to stop.")


class _Monitored:
    """Base of both kinds of monitored sessions."""

    runs_queue_runners = True
    """Monitored sessions start the queue runners themselves."""

    def __init__(
        self,
        session_creator: SessionCreator | None,
        hooks: Sequence[SessionRunHook] | None,
        should_recover: bool,
        stop_grace_period_secs: float,
    ) -> None:
        self._graph = get_default_graph()
        self._was_finalized = self._graph.finalized
        self._hooks = list(hooks or [])
        for hook in self._hooks:
            hook.begin()
        self._creator = session_creator or ChiefSessionCreator()
        self._recovers = should_recover
        self._grace_s = stop_grace_period_secs
        self._live: LiveSession | None = None
        self._closed = False
        self._make()

    def _make(self) -> LiveSession:
        """Creates a session, and tries again while tasks are lost."""
        while True:
            try:
                with self._graph.as_default():
                    self._live = LiveSession(self._creator, self._hooks, self._grace_s)
                return self._live
            except TASK_LOST_ERRORS as e:
                if not self._recovers:
                    raise
                logger.warning("The session cannot be created yet; trying again. %s: %s", type(e).__name__, e)
                time.sleep(RETRY_S)

    @property
    def graph(self) -> Graph:
        """The graph of the session."""
        return self._graph

    def _lost(self, e: OpError) -> None:
        logger.warning("A task was lost; creating a new session. %s: %s", type(e).__name__, e)
        if self._live is not None:
            self._live.close(abruptly=True)
        self._live = None

    def _with_session(self, do: Callable[[LiveSession], Any]) -> Any:
        if self._closed:
            raise RuntimeError("Session is already closed.")
        while True:
            live = self._live or self._make()
            try:
                return do(live)
            except TASK_LOST_ERRORS as e:
                if not self._recovers:
                    raise
                self._lost(e)

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Run a step with the hooks. The arguments and the other errors are those of `Session.run`.

        Raises:
            RuntimeError: the session is closed or should stop, or a tensor is fed twice, by hooks or the caller.
        """
        return self._with_session(lambda live: live.run(fetches, feed_dict, options, run_metadata))

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
        """Call `step_fn(step_context)`.

        Args:
            step_fn: function of a `StepContext`. It may run steps without hooks in `step_context.session`, and one step with hooks by
                `step_context.run_with_hooks`.

        Raises:
            StopIteration: the function called `step_context.request_stop()`. It ends the `with` block of the session normally.
            ValueError: the function does not have exactly one parameter.
        """
        taken = tuple(inspect.signature(step_fn).parameters)
        if len(taken) != 1:
            raise ValueError(
                "`step_fn` may either have one `step_context` argument, or `self` and `step_context` if it's an instance "
                f"method. Got {taken} instead."
            )

        def do(live: LiveSession) -> Any:
            def run_with_hooks(
                fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
            ) -> Any:
                return live.run(fetches, feed_dict, options, run_metadata)

            try:
                return step_fn(StepContext(live.session, run_with_hooks))
            except (StopIteration, *TASK_LOST_ERRORS):
                raise
            except Exception:
                live.raise_lost()
                raise

        return self._with_session(do)

    def should_stop(self) -> bool:
        """Whether the training loop should end: a hook requested it, a thread failed, or the session is closed."""
        if self._closed:
            return True
        if self._live is None:
            return False
        try:
            return self._live.should_stop()
        except TASK_LOST_ERRORS as e:
            if not self._recovers:
                return True
            self._lost(e)
            self._make()
            return False
        except Exception:
            return True

    def close(self) -> None:
        """Call `end` of the hooks, stop the threads, and close the session."""
        self._end(None)

    def _end(self, error: type[BaseException] | None) -> None:
        if self._closed:
            if error is None:
                raise RuntimeError("Session is already closed.")
            return
        try:
            if error is None and self._live is not None:
                for hook in self._hooks:
                    hook.end(self._live.session)
            if error is None and self._live is not None:
                self._live.coord.raise_requested_exception()
        finally:
            self._closed = True
            live, self._live = self._live, None
            if live is not None:
                live.close()
            if not self._was_finalized:
                self._graph.unfinalize()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is not None and issubclass(kind, (OutOfRangeError, StopIteration)):
            kind = None  # the input is exhausted, which is a normal end
        self._end(kind)
        return kind is None


class MonitoredSession(_Monitored):
    """A session that calls hooks around each step, and is recreated when a task dies or restarts.

    Args:
        session_creator: a `ChiefSessionCreator` or `WorkerSessionCreator`; None: a chief in this process.
        hooks: `SessionRunHook`s.
        stop_grace_period_secs: seconds that threads have to end after a stop.

    >>> with MonitoredSession(hooks=[StopAtStepHook(last_step=100)]) as session:
    ...     while not session.should_stop():
    ...         session.run(train_op)
    """

    class StepContext(StepContext):
        """See `run_step_fn`."""

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
    ) -> None:
        super().__init__(session_creator, hooks, True, stop_grace_period_secs)

    def __enter__(self) -> MonitoredSession:
        return self


class SingularMonitoredSession(_Monitored):
    """A monitored session that fails when a task dies. It is not recreated.

    Args:
        hooks: `SessionRunHook`s.
        scaffold: as in `ChiefSessionCreator`.
        master: as in `ChiefSessionCreator`.
        config: as in `ChiefSessionCreator`.
        checkpoint_dir: as in `ChiefSessionCreator`.
        checkpoint_filename_with_path: as in `ChiefSessionCreator`.
        stop_grace_period_secs: seconds that threads have to end after a stop.
    """

    def __init__(
        self,
        hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path)
        super().__init__(creator, hooks, False, stop_grace_period_secs)

    def __enter__(self) -> SingularMonitoredSession:
        return self

    def raw_session(self) -> Session | None:
        """The plain session, without hooks; None after this one is closed."""
        return None if self._live is None else self._live.session


@explains_arguments
def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: Any = DEFAULT,
    save_summaries_steps: Any = DEFAULT,
    save_summaries_secs: Any = DEFAULT,
    config: ConfigProto | None = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: Any = DEFAULT,
    summary_dir: str | None = None,
    save_in_background: bool = False,
) -> MonitoredSession:
    """A session for training loops, which is recreated when a task dies or restarts.

    The chief's session initializes or restores variables, saves checkpoints and writes summaries. The sessions of other tasks wait until
    the variables are initialized.

    Args:
        master: the session's target, such as `server.target`; '': this process.
        is_chief: whether this task is the chief.
        config: a `ConfigProto`.
        scaffold: a `Scaffold`: initialization ops, saver and summaries; None: the defaults.
        checkpoint_dir: folder of checkpoints, which all tasks can access; None: no checkpoints.
        hooks: `SessionRunHook`s for all tasks.
        chief_only_hooks: hooks for the chief, called before `hooks`.
        save_checkpoint_secs: seconds between checkpoints. Default: 600, unless `save_checkpoint_steps` is given; None: not by time.
        save_checkpoint_steps: steps between checkpoints.
        save_summaries_steps: steps between summaries. Default: 100, unless `save_summaries_secs` is given.
        save_summaries_secs: seconds between summaries.
        summary_dir: folder of summaries; None: `checkpoint_dir`.
        log_step_count_steps: steps between log messages with the steps per second; None: no messages.
        stop_grace_period_secs: seconds that threads have to end after a stop.
        max_wait_secs: seconds to wait for the chief.
        save_in_background: save in a thread while steps continue; see `CheckpointSaverHook`. TensorFlow has no such argument.

    >>> with MonitoredTrainingSession(server.target, is_chief, "/shared/run", hooks=[StopAtStepHook(last_step=1000)]) as session:
    ...     while not session.should_stop():
    ...         session.run(train_op)
    """
    scaffold = scaffold or Scaffold()
    if not is_chief:
        worker = WorkerSessionCreator(scaffold, master, config, max_wait_secs)
        return MonitoredSession(worker, hooks, stop_grace_period_secs)
    if save_summaries_steps is DEFAULT and save_summaries_secs is DEFAULT:
        save_summaries_steps = 100
    if save_checkpoint_secs is DEFAULT and save_checkpoint_steps is DEFAULT:
        save_checkpoint_secs = 600
    every = {
        name: None if value is DEFAULT else value
        for name, value in (
            ("summary_steps", save_summaries_steps), ("summary_secs", save_summaries_secs),
            ("save_secs", save_checkpoint_secs), ("save_steps", save_checkpoint_steps),
        )
    }  # fmt: skip
    folder = summary_dir or checkpoint_dir
    all_hooks = list(chief_only_hooks or [])
    if folder:
        if log_step_count_steps:
            all_hooks.append(StepCounterHook(log_step_count_steps, output_dir=folder))
        if every["summary_steps"] or every["summary_secs"]:
            all_hooks.append(SummarySaverHook(every["summary_steps"], every["summary_secs"], folder, scaffold=scaffold))
    if checkpoint_dir and (every["save_secs"] or every["save_steps"]):
        all_hooks.append(
            CheckpointSaverHook(
                checkpoint_dir,
                every["save_secs"],
                every["save_steps"],
                scaffold=scaffold,
                in_background=save_in_background,
            )
        )
    chief = ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
    return MonitoredSession(chief, [*all_hooks, *(hooks or [])], stop_grace_period_secs)
