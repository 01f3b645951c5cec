"""The interface of hooks, which a monitored session calls around each step. The names are those of TensorFlow 1.

A session calls its hooks in this order:

    begin                   once; the graph may still change
    after_create_session    for each session: at the start, and when one is recreated after a failure
      before_run            may add fetches and feeds to the step
      after_run             receives the values that the hook fetched
    end                     at the end, unless an error ended the loop
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class SessionRunArgs:
    """The fetches, feeds and options that a hook, or the program, adds to a step.

    Attributes:
        fetches: as in `Session.run`.
        feed_dict: as in `Session.run`.
        options: a `RunOptions`.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: Any = None


@dataclass(slots=True)
class SessionRunValues:
    """The results of a step for a hook.

    Attributes:
        results: the values of its fetches.
        options: the step's options.
        run_metadata: the `RunMetadata` of the step.
    """

    results: Any
    options: Any
    run_metadata: Any


class SessionRunContext:
    """The context of a step, for hooks.

    Attributes:
        original_args: the program's fetches and feeds.
        session: the plain session, whose steps call no hooks.
        stop_requested: whether a stop was requested.
    """

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self.original_args = original_args
        self.session = session
        self.stop_requested = False

    def request_stop(self) -> None:
        """Request a stop: `should_stop()` returns True after this step."""
        self.stop_requested = True


class SessionRunHook:
    """Base of hooks, which a monitored session calls around its steps. The methods do nothing; override those that you need.

    >>> class Loss(dt.train.SessionRunHook):
    ...     def before_run(self, run_context):
    ...         return dt.train.SessionRunArgs(loss)
    ...
    ...     def after_run(self, run_context, run_values):
    ...         print(run_values.results)
    ...         if run_values.results < 0.01:
    ...             run_context.request_stop()
    >>> with dt.train.MonitoredTrainingSession(hooks=[Loss()]) as session:
    ...     while not session.should_stop():
    ...         session.run(train_op)
    """

    def begin(self) -> None:
        """Called before the session is created. Nodes can be added to the graph only here."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Called after a session was created and its variables have values."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before a step. Returns additional fetches and feeds as `SessionRunArgs`, or None."""
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after a step that succeeded."""

    def end(self, session: Any) -> None:
        """Called at the end, unless an error ended the loop. The session is still open."""
