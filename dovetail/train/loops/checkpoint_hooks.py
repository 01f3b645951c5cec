"""The hook that saves checkpoints, and the listeners that it calls."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ...graph.core.default_graph import get_default_graph
from ...graph.core.errors import AbortedError, CancelledError, UnavailableError
from ...graph.formats.atomic_files import path_of
from ...graph.formats.checkpoints import checkpoint_exists
from ..saving.meta_graph import write_training_graph
from .basic_session_run_hooks import SecondOrStepTimer, require_global_step
from .scaffold import Scaffold
from .session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues

logger = logging.getLogger(__name__)


class CheckpointSaverListener:
    """Base of listeners that `CheckpointSaverHook` calls before and after each save. The methods do nothing; override them."""

    def begin(self) -> None:
        """Called before the session is created."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Called before a checkpoint is saved."""

    def after_save(self, session: Any, global_step_value: int) -> Any:
        """Called after a checkpoint was saved. Training stops if it returns True."""

    def end(self, session: Any, global_step_value: int) -> None:
        """Called at the end of training."""


class CheckpointSaverHook(SessionRunHook):
    """Saves a checkpoint at the start, periodically, and at the end.

    Args:
        checkpoint_dir: the folder; created if needed.
        save_secs: seconds between checkpoints; give this or `save_steps`.
        save_steps: steps between checkpoints.
        saver: the `Saver`; None: that of `scaffold`, or the only saver of the graph.
        scaffold: a `Scaffold` with the saver; give this or `saver`.
        checkpoint_basename: file name prefix of checkpoints.
        listeners: `CheckpointSaverListener`s to call.
        save_graph_def: write the graph beside each checkpoint, and as `graph.pbtxt`.
        in_background: save in a thread while steps continue. A save that is due during another save is skipped. A save that fails because
            a task was lost is not repeated. TensorFlow has no such argument.

    Raises:
        ValueError: both `saver` and `scaffold` are given.

    >>> hooks = [CheckpointSaverHook("/tmp/run", save_secs=600)]
    """

    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Iterable[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
        in_background: bool = False,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise ValueError("You cannot provide both saver and scaffold.")
        self._saver, self._scaffold = saver, scaffold
        self._folder = path_of(checkpoint_dir)
        self._path = str(self._folder / checkpoint_basename)
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._listeners = list(listeners or [])
        self._saves_graph = save_graph_def
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dovetail-save") if in_background else None
        self._running: Future[bool] | None = None  # a save in the background

    def add_listeners(self, listeners: Iterable[CheckpointSaverListener]) -> None:
        """Add listeners."""
        self._listeners += listeners

    def begin(self) -> None:
        self._step = require_global_step(self)
        self._folder.mkdir(parents=True, exist_ok=True)
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._ended(wait=True)  # a save of a lost session
        step = int(session.run(self._step))
        if self._saves_graph:
            write_training_graph(get_default_graph(), self._folder)
        # Do not overwrite the checkpoint from which this session was restored: other workers may have trained since.
        if not checkpoint_exists(f"{self._path}-{step}"):
            self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._ended():
            run_context.request_stop()
        if self._running is None and self._timer.should_trigger_for_step(run_values.results + 1):
            step = int(run_context.session.run(self._step))
            if self._timer.should_trigger_for_step(step):
                self._timer.update_last_triggered_step(step)
                if self._thread is not None:
                    self._running = self._thread.submit(self._save, run_context.session, step)
                elif self._save(run_context.session, step):
                    run_context.request_stop()

    def _ended(self, wait: bool = False) -> bool:
        """Finishes a background save that is done. Returns whether a listener requested a stop."""
        running = self._running
        if running is None or not (wait or running.done()):
            return False
        self._running = None
        try:
            return running.result()
        except (
            AbortedError,
            CancelledError,
            UnavailableError,
            RuntimeError,
        ) as e:  # RuntimeError: the session was closed
            logger.warning("A checkpoint could not be saved: %s", e)
            return False

    def end(self, session: Any) -> None:
        self._ended(wait=True)
        last = int(session.run(self._step))
        if last != self._timer.last_triggered_step():
            self._save(session, last)
        for listener in self._listeners:
            listener.end(session, last)
        if self._thread is not None:
            self._thread.shutdown()

    def _save(self, session: Any, step: int) -> bool:
        """Saves a checkpoint. Returns whether a listener requested a stop."""
        logger.info("Saving checkpoints for %d into %s.", step, self._path)
        for listener in self._listeners:
            listener.before_save(session, step)
        self._get_saver().save(session, self._path, global_step=step, write_meta_graph=self._saves_graph)
        stops = [listener.after_save(session, step) for listener in self._listeners]  # call all of them
        return any(stops)

    def _get_saver(self) -> Any:
        if self._saver is None:
            if self._scaffold is not None:
                return self._scaffold.saver
            self._saver = Scaffold.get_or_default("saver", "savers", _no_saver)
        return self._saver


def _no_saver() -> Any:
    raise RuntimeError(
        "No items in collection savers. Please add a saver to the collection or provide a saver or scaffold."
    )
