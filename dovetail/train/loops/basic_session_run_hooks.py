"""Hooks of training loops that stop, log, count steps, detect NaN, write summaries, trace, wait and feed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...graph.core.default_graph import get_default_graph
from ...graph.core.errors import UnimplementedError
from ...graph.formats.atomic_files import path_of
from ...interop.tensorboard import FileWriterCache
from ...interop.tensorboard.writer import scalar_summary
from ...runtime.config import RunOptions
from ..global_step import get_global_step
from .session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues

logger = logging.getLogger(__name__)


# Number of runs with an unchanged global step after which a warning is logged.
_UNCHANGED_RUNS = 20


def require_global_step(hook: SessionRunHook) -> Any:
    """Returns the graph's global step. RuntimeError: there is none."""
    step = get_global_step()
    if step is None:
        raise RuntimeError(f"Global step should be created to use {type(hook).__name__}.")
    return step


class SecondOrStepTimer:
    """Decides at which steps a periodic action is due.

    Args:
        every_secs: seconds between two actions; give this or `every_steps`.
        every_steps: steps between two actions.

    Raises:
        ValueError: both or neither of the arguments are given.
    """

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if (every_secs is None) == (every_steps is None):
            raise ValueError("exactly one of every_secs and every_steps should be provided.")
        self._secs, self._steps = every_secs, every_steps
        self.reset()

    def reset(self) -> None:
        """Reset the timer: the next step is due."""
        self._last_step: int | None = None
        self._last_time: float | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether the action is due at that step."""
        if self._last_step is None or self._last_time is None:
            return True
        if step == self._last_step:
            return False
        if self._secs is not None:
            return time.monotonic() >= self._last_time + self._secs
        assert self._steps is not None
        return step >= self._last_step + self._steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record that the action ran at that step. Returns (seconds, steps) since it last ran; None the first time."""
        now = time.monotonic()
        since = None if self._last_time is None else now - self._last_time
        steps = None if self._last_step is None else step - self._last_step
        self._last_step, self._last_time = step, now
        return since, steps

    def last_triggered_step(self) -> int | None:
        """The step at which it last triggered."""
        return self._last_step


class StopAtStepHook(SessionRunHook):
    """Stops training at a global step.

    Args:
        num_steps: number of steps after the one at which the session starts.
        last_step: global step at which to stop; give this or `num_steps`.

    Raises:
        ValueError: both or neither of the arguments are given.
        RuntimeError: the graph has no global step.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError("Exactly one of num_steps or last_step must be specified.")
        self._num_steps, self._last_step = num_steps, last_step
        self._seen = 0

    def begin(self) -> None:
        self._step = require_global_step(self)

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._seen = 0
        if self._last_step is None:
            assert self._num_steps is not None
            self._last_step = int(session.run(self._step)) + self._num_steps

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        # The fetched step may be from before or after the update. Read it again only near the end.
        assert self._last_step is not None
        step, before = int(run_values.results), self._seen
        self._seen = step
        if step < before:
            logger.warning(
                "The global step went back from %d to %d: another task restored a checkpoint or initialized the variables. Training "
                "continues from there", before, step,
            )  # fmt: skip
        if step + 1 >= self._last_step and run_context.session.run(self._step) >= self._last_step:
            run_context.request_stop()


class StepCounterHook(SessionRunHook):
    """Logs the steps per second, and writes them as summary `global_step/sec` if there is a writer.

    Args:
        every_n_steps: steps between messages; give this or `every_n_secs`.
        every_n_secs: seconds between messages.
        output_dir: folder for summaries.
        summary_writer: a `FileWriter` to use instead. Without both: only log.
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
    ) -> None:
        if every_n_secs is not None and every_n_steps == 100:
            every_n_steps = None
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps)
        self._folder, self._writer = output_dir, summary_writer

    def begin(self) -> None:
        self._step = require_global_step(self)
        self._tag = f"{self._step.op.name}/sec"
        self._seen, self._same = None, 0
        if self._writer is None and self._folder:
            self._writer = _writer_if_installed(self._folder)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._warn_if_unchanged(run_values.results)
        if not self._timer.should_trigger_for_step(run_values.results + 1):
            return
        step = int(run_context.session.run(self._step))
        if self._timer.should_trigger_for_step(step):
            seconds, steps = self._timer.update_last_triggered_step(step)
            if seconds and steps is not None:
                self._report(steps / seconds, step)

    def _warn_if_unchanged(self, step: Any) -> None:
        """Logs a warning if the global step does not change."""
        self._same = self._same + 1 if step == self._seen else 0
        self._seen = step
        if self._same and self._same % _UNCHANGED_RUNS == 0:
            logger.warning(
                "It seems that global step (tf.train.get_global_step) has not been increased for %d runs; it is %s. "
                "Pass it to Optimizer.minimize or Optimizer.apply_gradients, which increment it.",
                self._same, step,
            )  # fmt: skip

    def _report(self, rate: float, step: int) -> None:
        logger.info("%s: %g", self._tag, rate)
        if self._writer is not None:
            self._writer.add_summary(scalar_summary(self._tag, rate), step)

    def end(self, session: Any) -> None:
        if self._writer is not None:
            self._writer.flush()


_reported_folders: set[str] = set()
"""Folders for which a warning was logged that no summaries are written."""


def _writer_if_installed(folder: str) -> Any:
    try:
        return FileWriterCache.get(folder)
    except UnimplementedError as e:
        if folder not in _reported_folders:
            _reported_folders.add(folder)
            logger.warning("No summaries are written to %s: %s", folder, e)
        return None


class LoggingTensorHook(SessionRunHook):
    """Logs the values of tensors.

    Args:
        tensors: tensors or their names (`loss` means `loss:0`); or a dictionary from labels to these.
        every_n_iter: steps between messages; give this or `every_n_secs`.
        every_n_secs: seconds between messages.
        at_end: also log at the end. Without an interval, log only at the end.
        formatter: function from a dictionary of values to the message; None: `name = value, ...`.

    Raises:
        ValueError: both intervals are given, or neither of them nor `at_end`.
    """

    def __init__(
        self,
        tensors: Any,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        only_end = at_end and every_n_iter is None and every_n_secs is None
        if not only_end and (every_n_iter is None) == (every_n_secs is None):
            raise ValueError("either at_end and/or exactly one of every_n_iter and every_n_secs must be provided.")
        if every_n_iter is not None and every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}.")
        if isinstance(tensors, Mapping):
            self._tensors = dict(tensors)
        else:
            self._tensors = {str(getattr(t, "name", t)): t for t in tensors}
        self._formatter = formatter
        self._at_end = at_end
        self._timer = None if only_end else SecondOrStepTimer(every_n_secs, every_n_iter)

    def begin(self) -> None:
        self._count = 0
        self._due = False
        self._fetched = {name: _element(t) for name, t in self._tensors.items()}
        if self._timer is not None:
            self._timer.reset()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        self._due = self._timer is not None and self._timer.should_trigger_for_step(self._count)
        return SessionRunArgs(self._fetched) if self._due else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._due:
            self._log(run_values.results)
        self._count += 1

    def end(self, session: Any) -> None:
        if self._at_end:
            self._log(session.run(self._fetched))

    def _log(self, values: dict[str, Any]) -> None:
        since = None
        if self._timer is not None:
            since, _ = self._timer.update_last_triggered_step(self._count)
        if self._formatter is not None:
            line = self._formatter(values)
        else:
            with np.printoptions(suppress=True):
                line = ", ".join(f"{name} = {values[name]}" for name in self._tensors)
            line += "" if since is None else f" ({since:.3f} sec)"
        logger.info("%s", line)


def _element(element: Any) -> Any:
    if not isinstance(element, str):
        return element
    return get_default_graph().as_graph_element(element if ":" in element else f"{element}:0")


class NanLossDuringTrainingError(RuntimeError):
    """Raised by `NanTensorHook` when the loss is NaN."""

    def __str__(self) -> str:
        return "NaN loss during training."


class NanTensorHook(SessionRunHook):
    """Ends training when the loss is NaN.

    Args:
        loss_tensor: the loss.
        fail_on_nan_loss: raise NanLossDuringTrainingError; if False, request a stop instead.
    """

    def __init__(self, loss_tensor: Any, fail_on_nan_loss: bool = True) -> None:
        self._loss, self._fails = loss_tensor, fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if np.isnan(run_values.results).any():
            if self._fails:
                logger.error("Model diverged with loss = NaN.")
                raise NanLossDuringTrainingError
            logger.warning("Model diverged with loss = NaN.")
            run_context.request_stop()


class SummarySaverHook(SessionRunHook):
    """Writes summaries periodically.

    Args:
        save_steps: steps between summaries; give this or `save_secs`.
        save_secs: seconds between summaries.
        output_dir: folder of the event file.
        summary_writer: a `FileWriter` to use instead.
        scaffold: a `Scaffold` whose `summary_op` is written; give this or `summary_op`.
        summary_op: string tensor with serialized summaries, or a list of these.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        scaffold: Any = None,
        summary_op: Any = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Exactly one of scaffold or summary_op must be provided.")
        self._scaffold, self._summary_op = scaffold, summary_op
        self._folder, self._writer = output_dir, summary_writer
        self._timer = SecondOrStepTimer(save_secs, save_steps)

    def begin(self) -> None:
        if self._writer is None and self._folder:
            self._writer = _writer_if_installed(self._folder)
        self._step = require_global_step(self)
        self._due = False
        self._next = 0
        self._shown = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._writer is not None and not self._shown:
            self._shown = True
            self._writer.add_graph(session.graph)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        fetches: dict[str, Any] = {"step": self._step}
        summary = self._summary_op if self._summary_op is not None else self._scaffold.summary_op
        self._due = self._writer is not None and summary is not None and self._timer.should_trigger_for_step(self._next)
        if self._due:
            fetches["summary"] = list(summary) if isinstance(summary, (list, tuple)) else [summary]
        return SessionRunArgs(fetches)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results["step"])
        if self._due:
            step = int(run_context.session.run(self._step))
            self._timer.update_last_triggered_step(step)
            for summary in run_values.results["summary"]:
                self._writer.add_summary(summary, step)
        self._next = step + 1

    def end(self, session: Any) -> None:
        if self._writer is not None:
            self._writer.flush()


class GlobalStepWaiterHook(SessionRunHook):
    """Delays a worker until the global step has reached a number, so that early training has fewer asynchronous workers."""

    def __init__(self, wait_until_step: int) -> None:
        self._wait_until = wait_until_step
        self._waits = True

    def begin(self) -> None:
        self._step = require_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> None:
        logged_at = -1.0
        while self._waits and self._wait_until > 0:
            step = int(run_context.session.run(self._step))
            if step >= self._wait_until:
                break
            if time.monotonic() - logged_at > 30:
                logger.info("Waiting for global step %d before starting training. It is %d.", self._wait_until, step)
                logged_at = time.monotonic()
            time.sleep(0.1)
        self._waits = False


class FinalOpsHook(SessionRunHook):
    """Runs ops at the end of a session; `final_ops_values` has their values."""

    def __init__(self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None) -> None:
        self._ops, self._feeds = final_ops, final_ops_feed_dict
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """The values of the ops, after the end."""
        return self._values

    def end(self, session: Any) -> None:
        if self._ops is not None:
            self._values = session.run(self._ops, feed_dict=self._feeds)


class FeedFnHook(SessionRunHook):
    """Calls a function in each step, and feeds the dictionary that it returns."""

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self._feed = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(None, self._feed())


class ProfilerHook(SessionRunHook):
    """Traces a step periodically: the times of kernels and transfers in all participating tasks.

    Each trace is a file `timeline-STEP.json`, which Perfetto and chrome://tracing show. The first step is not traced, because it compiles.

    Args:
        save_steps: steps between traces; give this or `save_secs`.
        save_secs: seconds between traces.
        output_dir: the folder; created if needed.
        show_dataflow: accepted without effect.
        show_memory: accepted without effect.

    >>> hooks = [ProfilerHook(save_steps=1000, output_dir="/tmp/traces")]
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._folder = path_of(output_dir)

    def begin(self) -> None:
        self._next: int | None = None  # the global step after the next step
        self._lag = 0  # 1 if the global step is fetched before its update, else 0
        self._due = False
        self._step = require_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        self._due = self._next is not None and self._timer.should_trigger_for_step(self._next)
        options = RunOptions(trace_level=RunOptions.FULL_TRACE) if self._due else None
        return SessionRunArgs(self._step, options=options)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results)
        if self._next is None:
            self._lag = min(max(int(run_context.session.run(self._step)) - step, 0), 1)
            self._timer.update_last_triggered_step(step + self._lag - 1)
        step += self._lag
        if self._due:
            step = int(run_context.session.run(self._step))
            self._timer.update_last_triggered_step(step)
            self._save(run_values.run_metadata.trace, step)
        self._next = step + 1

    def _save(self, trace: Any, step: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"timeline-{step}.json"
        trace.save(path)
        logger.info("Saved the trace of step %d into %s.", step, path)
