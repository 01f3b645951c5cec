"""Hooks: what is done around each step of a monitored session, under TensorFlow 1's names.

A session calls its hooks in this order:

    begin                   once; the graph may still change
    after_create_session    for each session: at the start, and when one is recreated after a failure
      before_run            may add fetches and feeds to the step
      after_run             gets what the hook fetched
    end                     when all went well
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class SessionRunArgs:
    """What a hook, or the program, wants of a step: the arguments of `Session.run`.

    Attributes:
        fetches: as `Session.run` takes them.
        feed_dict: what to feed.
        options: limits of the step.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: Any = None


@dataclass(slots=True)
class SessionRunValues:
    """What a step gave to a hook.

    Attributes:
        results: the values of its fetches.
        options: the step's options.
        run_metadata: facts about the step.
    """

    results: Any
    options: Any
    run_metadata: Any


class SessionRunContext:
    """A step, as hooks see it.

    Attributes:
        original_args: the program's fetches and feeds.
        session: the session below all hooks: runs in it call no hooks.
        stop_requested: whether a stop was requested.
    """

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self.original_args = original_args
        self.session = session
        self.stop_requested = False

    def request_stop(self) -> None:
        """Let `should_stop()` be true after this step."""
        self.stop_requested = True


class SessionRunHook:
    """Base of what a monitored session calls around its steps. Each method does nothing; override those that you need.

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
        """Before the session is made. The last moment at which nodes may be added to the graph."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """The session is there, and its variables have values."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Before a step: what to fetch and feed besides."""
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """After a step that ended well."""

    def end(self, session: Any) -> None:
        """At the end, when no error ended the loop. The session still runs."""
